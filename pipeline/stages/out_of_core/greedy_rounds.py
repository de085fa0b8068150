"""Greedy selection from more candidates than the Gram may hold: choose, score all others, admit, choose again.

A round chooses from its working set, and a pass over the rows scores every candidate against the residual of what was
chosen. The next working set holds the chosen and a diverse draw of those that would lower the error most. It ends
when a round no longer lowers the held-out error by much. Rounds are committed under their own names (round-000, …).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.solvers import working_set_rules as rules
from pipeline.stages.accumulate_statistics import commit_parts
from pipeline.stages.candidate_names import read_candidates
from pipeline.stages.greedy_selection import (
    Chosen,
    Fitted,
    Selected,
    StatisticsNames,
    choose_centers,
    finish_selection,
    fit_chosen,
)
from pipeline.stages.largest_values import largest_values
from pipeline.stages.out_of_core import grown_gram
from pipeline.stages.out_of_core.candidate_scores import positions_of
from pipeline.stages.out_of_core.grown_gram import WorkingSet
from pipeline.stages.out_of_core.residuals import compute_residuals, residual_pass
from pipeline.stages.out_of_core.round_names import MARKERS, committed_rounds, earlier_records, round_index, round_name
from pipeline.stages.out_of_core.score_pass import score_candidates, score_pass
from pipeline.stages.run_state import SOLVE, STATISTICS, Run
from pipeline.stages.statistics_pass import FIT, HELD_OUT, MEMBERS, StatisticsPass
from pipeline.stages.training_rows import row_task
from storage.atomic_writes import make_folder, read_arrays, remove_folder, write_arrays
from storage.done_markers import write_marker
from storage.remedies import ANEW

GAIN = 0.02  # of the held-out error: a round that lowers it by less is the last
MOST_ROUNDS = 6


@dataclass(frozen=True)
class SelectionRound:
    """What one round did: candidates in its working set, chosen, its held-out error, admitted for the next."""

    round: int
    working_set: int
    n_active: int
    hold_out_error: float
    admitted: int
    kernel_entries: int


def select_in_rounds(run: Run) -> tuple[Selected, list[SelectionRound]]:
    """Choose from all candidates, round by round; return the result of the last round and the record of each."""
    candidates = read_candidates(run.layout, run.shape.n_train)
    current, records = _latest(run, candidates)
    while True:
        names = round_statistics(current.name)
        chosen = choose_centers(run, names)
        fitted = fit_chosen(run, chosen, names)
        error = float(chosen.hold_out_errors[-1])
        last = len(records) + 1 == MOST_ROUNDS or (bool(records) and error > (1 - GAIN) * records[-1].hold_out_error)
        admitted, entries = (np.empty(0, np.int64), 0) if last else _admitted(run, current, candidates, chosen, fitted)
        records.append(_record(run, current, chosen, len(admitted), entries))
        if not len(admitted):
            positions = positions_of(candidates, current.candidates[chosen.chosen])
            return finish_selection(run, chosen, positions, current.candidates, fitted), records
        kept, before = current.candidates[chosen.chosen], current.name
        current = _computed(run, round_name(len(records)), np.sort(np.concatenate([kept, admitted])))
        _drop(run, before)  # nothing maps it any more: a mapped file may not go


def round_statistics(name: str) -> StatisticsNames:
    """Return the names of the statistics of a round."""
    return StatisticsNames(f"{name}-fit", f"{name}-hold-out", name)


def _latest(run: Run, candidates: NDArray[np.int64]) -> tuple[WorkingSet, list[SelectionRound]]:
    """Return the last whole round of the run, or a first one of random candidates, and the records before it."""
    names = committed_rounds(run)
    if not names:
        capacity = run.config.centers.working_set
        assert capacity is not None  # the plan has filled it in
        seed = rules.seed_candidates(len(candidates), capacity, run.config.seed)
        return _computed(run, round_name(0), np.sort(candidates[seed])), []
    records = [SelectionRound(**record) for record in earlier_records(run, names[-1])]
    for name in names[:-1]:  # left by a kill at the last moment
        _drop(run, name)
    return grown_gram.load(run, names[-1]), records


def _computed(run: Run, name: str, members: NDArray[np.int64]) -> WorkingSet:
    """Compute and commit the statistics of a round, of fit rows and held-out rows apart.

    All of the Gram comes from the same columns, none of it from the round before: columns that are computed again
    differ by the rounding of float32, which is more than what the chosen leave of the others.
    """
    folder = run.layout.row_pass(name)
    with run.charged(STATISTICS):
        make_folder(folder)
        write_arrays(folder / MEMBERS, {"members": members})
        task = StatisticsPass(
            row_task(run), (FIT, HELD_OUT), len(members), largest_values(run), members=folder / MEMBERS
        )
        parts = run.row_pass(STATISTICS, task, folder).statistics()
        entries = {"kernel_entries": run.shape.n_train * len(members)}
        commit_parts(run, parts[FIT], parts[HELD_OUT], round_statistics(name), {"rows": members}, entries)
    return grown_gram.load(run, name)


def _admitted(
    run: Run, current: WorkingSet, candidates: NDArray[np.int64], chosen: Chosen, fitted: Fitted
) -> tuple[NDArray[np.int64], int]:
    """Return the candidates that come in (mathematics.md, eq. 71), and the kernel entries that scoring all took."""
    path = run.layout.round_scores(current.name)
    if not path.exists():
        centers = current.candidates[chosen.chosen]
        residuals, entries = compute_residuals(run, current.name, centers, fitted.refit.weights, fitted.refit.intercept)
        scored = score_candidates(run, current.name, residuals, candidates)
        gains = np.einsum("mt,mt->m", scored.scores, scored.scores) / np.maximum(scored.square_bounds, 1e-300)
        make_folder(path.parent)
        write_arrays(path, {"gains": gains, "kernel_entries": np.array(entries + scored.kernel_entries)})
    for folder in (score_pass(run, current.name), residual_pass(run, current.name)):
        remove_folder(folder, durable=False)
    stored = read_arrays(path, remedy=ANEW)
    outside = ~np.isin(candidates, current.candidates)
    capacity = run.config.centers.working_set
    assert capacity is not None
    drawn = rules.diverse(
        stored["gains"], outside, capacity - len(chosen.chosen), run.config.seed, round_index(current.name)
    )
    return candidates[drawn], int(stored["kernel_entries"])


def _record(run: Run, current: WorkingSet, chosen: Chosen, admitted: int, entries: int) -> SelectionRound:
    """Commit and tell what the round did."""
    record = SelectionRound(
        round=round_index(current.name),
        working_set=len(current.candidates),
        n_active=len(chosen.chosen),
        hold_out_error=float(chosen.hold_out_errors[-1]),
        admitted=admitted,
        kernel_entries=entries + grown_gram.kernel_entries(run, current.name),
    )
    write_marker(run.layout.markers(MARKERS), current.name, asdict(record))
    run.events.metric(stage=SOLVE, **asdict(record))
    run.events.say(
        f"round {record.round}: {record.n_active} chosen of {record.working_set} in the working set, held-out error "
        f"{record.hold_out_error:.6g}; {record.admitted} admitted; {record.kernel_entries:.3g} kernel entries"
    )
    return record


def _drop(run: Run, name: str) -> None:
    """Remove the statistics of an earlier round; they are the largest files of a run."""
    for old in round_statistics(name):
        remove_folder(run.layout.statistics_file(old), durable=False)
