"""Greedy selection from more candidates than the Gram may hold: choose, score all others, admit, choose again.

A round chooses from its working set, and a pass over the rows scores every candidate against the residual of what was
chosen. The next working set holds the chosen and a diverse draw of those that would lower the error most. It ends
when a round no longer lowers the held-out error by much. Rounds are committed under their own names (round-000, …).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline import working_set as rules
from pipeline.stages import all_scores, grown_gram, residual, rows, scores, selection, statistics
from pipeline.stages.candidates import names as candidate_names
from pipeline.stages.grown_gram import WorkingSet
from pipeline.stages.rounds import MARKERS, committed_rounds, earlier_records, round_index, round_name
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run, is_whole
from pipeline.stages.selection import Chosen, Fitted, Names, Selected
from storage.blocks import Block
from storage.commit import make_folder, read_arrays, remove_folder, write_arrays
from storage.markers import write_marker
from storage.remedies import ANEW

STAGE = "solve"
TILE_ROWS = 4096  # of the tiles that score all candidates
GAIN = 0.02  # of the held-out error: a round that lowers it by less is the last
MOST_ROUNDS = 6


@dataclass(frozen=True)
class RoundTask:
    """What a worker needs: the rows to stream, and the round whose members the columns are of."""

    rows: RowTask
    name: str

    @property
    def members(self) -> Path:
        """The file of the names of the members."""
        return self.rows.layout.statistics_part(f"{self.name}-rows.npz")

    def part(self, span: Block) -> Path:
        """Return the file of the sums over one span."""
        return self.rows.layout.statistics_part(f"{self.name}-{span.index:04d}.npz")


@dataclass(frozen=True)
class SelectionRound:
    """What one round did: candidates in its working set, chosen, its held-out error, admitted for the next."""

    round: int
    working_set: int
    n_active: int
    hold_out_error: float
    admitted: int
    kernel_entries: int


def run(run: Run) -> tuple[Selected, list[SelectionRound]]:
    """Choose from all candidates; return the result of the last round, and what each round did."""
    candidates = candidate_names(run.layout, run.shape.n_train)
    current, records = _latest(run, candidates)
    while True:
        names = names_of(current.name)
        chosen = selection.choose(run, names)
        found = selection.fitted(run, chosen, names)
        error = float(chosen.hold_out_errors[-1])
        last = len(records) + 1 == MOST_ROUNDS or (bool(records) and error > (1 - GAIN) * records[-1].hold_out_error)
        new, entries = (np.empty(0, np.int64), 0) if last else _admitted(run, current, candidates, chosen, found)
        records.append(_record(run, current, chosen, len(new), entries))
        if not len(new):
            places = all_scores.places(candidates, current.rows[chosen.chosen])
            return selection.finish(run, chosen, places, found), records
        kept = current.rows[chosen.chosen]
        following = _computed(run, round_name(len(records)), np.sort(np.concatenate([kept, new])))
        _drop(run, current.name)
        current = following


def names_of(name: str) -> Names:
    """Return the names of the statistics of a round."""
    return Names(f"{name}-fit", f"{name}-hold-out", name)


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
    names, task = names_of(name), RoundTask(rows.task_of(run), name)
    with run.charged("statistics", instead_of=STAGE):
        make_folder(run.layout.statistics_parts)
        write_arrays(task.members, {"rows": members})
        grid = rows.grid(task.rows, len(members))
        waiting = [span for span in grid if not is_whole(task.part(span))]
        run.run_items("statistics", partial(accumulate_members, task), waiting)
        found = statistics.joined([task.part(span) for span in grid])
        write_arrays(run.layout.statistics_file(names.fit), statistics.to_arrays(found["fit"]))
        write_arrays(run.layout.statistics_file(names.hold_out), statistics.to_arrays(found["hold_out"]))
        arrays = statistics.to_arrays(found["all"]) | {"rows": members}
        entries = {"kernel_entries": run.shape.n_train * len(members)}
        write_arrays(run.layout.statistics_file(name), arrays, metadata=entries)  # last: it makes the round whole
    return grown_gram.load(run, name)


def accumulate_members(task: RoundTask, span: Block) -> None:
    """Accumulate one span for the members of a round, and commit its partial sums."""
    members = read_arrays(task.members)["rows"]
    generator = task.rows.generator(members)
    write_arrays(task.part(span), statistics.span_sums(task.rows, generator, span), durable=False)


def _admitted(
    run: Run, current: WorkingSet, candidates: NDArray[np.int64], chosen: Chosen, found: Fitted
) -> tuple[NDArray[np.int64], int]:
    """Return the candidates that come in, and the kernel entries that scoring all candidates took."""
    path = run.layout.score_found(current.name)
    if not path.exists():
        centers = current.rows[chosen.chosen]
        residuals, entries = residual.run(run, current.name, centers, found.refit.weights, found.refit.intercept)
        scored = scores.run_pass(run, current.name, residuals, candidates, TILE_ROWS, STAGE)
        gains = np.einsum("mt,mt->m", scored.scores, scored.scores) / np.maximum(scored.square_bounds, 1e-300)
        write_arrays(path, {"gains": gains, "kernel_entries": np.array(entries + scored.kernel_entries)})
    scores.clean(run, current.name)
    residual.clean(run, current.name)
    stored = read_arrays(path, remedy=ANEW)
    outside = ~np.isin(candidates, current.rows)
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
        working_set=len(current.rows),
        n_active=len(chosen.chosen),
        hold_out_error=float(chosen.hold_out_errors[-1]),
        admitted=admitted,
        kernel_entries=entries + grown_gram.kernel_entries(run, current.name),
    )
    write_marker(run.layout.markers(MARKERS), current.name, asdict(record))
    run.events.metric(stage=STAGE, **asdict(record))
    run.events.say(
        f"round {record.round}: {record.n_active} chosen of {record.working_set} in the working set, held-out error "
        f"{record.hold_out_error:.6g}; {record.admitted} admitted; {record.kernel_entries:.3g} kernel entries"
    )
    return record


def _drop(run: Run, name: str) -> None:
    """Remove the statistics of an earlier round; they are the largest files of a run."""
    for old in names_of(name):
        remove_folder(run.layout.statistics_file(old), durable=False)
