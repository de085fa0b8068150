"""Greedy selection from more candidates than deserve a Gram over all rows: finalists first, then the choice of these.

The finalists are chosen on a sample of the fit rows. Where not all candidates have a Gram at once, they come in turns:
each turn chooses from the finalists of the one before and from candidates that had none yet. What is chosen at a turn
is committed; its statistics, the largest files, are then dropped.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime.executors import available_processors
from pipeline.solvers.forward_selection import forward
from pipeline.solvers.preselection import Preselection, turns
from pipeline.stages.accumulate_statistics import STORING, commit_parts, load_statistics, statistics_to_arrays
from pipeline.stages.candidate_names import read_candidates
from pipeline.stages.greedy_selection import (
    FINALISTS,
    Selected,
    checkpointed,
    choose_centers,
    finish_selection,
    fit_chosen,
)
from pipeline.stages.largest_values import largest_values
from pipeline.stages.out_of_core.candidate_scores import positions_of
from pipeline.stages.out_of_core.round_names import MARKERS, round_name
from pipeline.stages.run_state import SOLVE, STATISTICS, Run, is_whole
from pipeline.stages.statistics_pass import FIT, HELD_OUT, MEMBERS, SAMPLE, StatisticsPass
from pipeline.stages.training_rows import row_task
from storage.arrays import read_dataclass, write_arrays, write_dataclass
from storage.errors import ANEW
from storage.files import make_folder
from storage.folder_layouts import MANIFEST_NAME, RunLayout
from storage.folders import check_folder, remove_folder
from storage.records import read_markers, write_marker


@dataclass(frozen=True)
class SelectionRound:
    """What one turn did: candidates with a Gram, finalists chosen of them, the mean squared error of the sample."""

    round: int
    working_set: int
    n_active: int
    sample_error: float
    kernel_entries: int


@dataclass(frozen=True)
class Turn:
    """What a turn chose, as committed: columns (f,) i8 in the order chosen, and what the sample tells of them.

    error: mean squared error of the sample; refused, drift: as of a `Selection`; seconds: that it took.
    """

    chosen: NDArray[np.int64]
    error: float
    refused: int
    drift: float
    seconds: float


@dataclass(frozen=True)
class TurnTask:
    """What a worker needs to choose finalists on the statistics of a turn."""

    layout: RunLayout
    name: str
    size: int
    intercept: bool
    checkpoints_kept: int


def select_among_finalists(run: Run) -> tuple[Selected, list[SelectionRound]]:
    """Choose finalists on a sample, and centers among them on all rows; return the result and the record of each turn.

    Raises InvalidDataError where no candidate lowers the error.
    """
    candidates = read_candidates(run.layout, run.shape.n_train)
    assert run.preselection is not None
    finalists, records, done = _finalists(run, candidates, run.preselection)
    _compute(run, finalists)
    chosen = choose_centers(run, FINALISTS, n_back=run.preselection.n_back)
    seconds, drift = chosen.seconds + sum(turn.seconds for turn in done), max(turn.drift for turn in done)
    chosen = replace(chosen, refused=done[-1].refused, drift=drift, seconds=seconds)
    fitted = fit_chosen(run, chosen, FINALISTS)
    positions = positions_of(candidates, finalists[chosen.chosen])
    return finish_selection(run, chosen, positions, finalists, fitted), records


def _finalists(
    run: Run, candidates: NDArray[np.int64], asked: Preselection
) -> tuple[NDArray[np.int64], list[SelectionRound], list[Turn]]:
    """Return the finalists of the last turn, by name and in the order chosen, and the record of each turn."""
    at_once = run.config.centers.working_set
    assert at_once is not None  # the plan has filled it in
    finalists, records, done = np.empty(0, np.int64), list[SelectionRound](), list[Turn]()
    n_sampled = round(asked.share * (1.0 - run.config.statistics.hold_out) * run.shape.n_train)  # about
    told = read_markers(run.layout.markers(MARKERS))  # but a kill may come before that
    for index, turn in enumerate(turns(len(candidates), at_once, asked.n_finalists, run.config.seed)):
        members = np.sort(np.concatenate([finalists, candidates[turn]]))
        name = round_name(index)
        if not is_whole(run.layout.solution(f"{name}.npz")):
            _choose(run, name, members, asked)
        _clean(run, name)
        done.append(read_dataclass(run.layout.solution(f"{name}.npz"), Turn, remedy=ANEW))
        finalists = members[done[-1].chosen]
        entries = n_sampled * len(members)
        records.append(SelectionRound(index, len(members), len(finalists), done[-1].error, entries))
        if name not in told:
            _tell(run, records[-1])
    return finalists, records, done


def _choose(run: Run, name: str, members: NDArray[np.int64], asked: Preselection) -> None:
    """Commit the statistics of a turn, and what is chosen on them."""
    if not (run.layout.statistics_file(name) / MANIFEST_NAME).exists():
        with run.charged(STATISTICS):
            task = _pass(run, name, members, (SAMPLE,), asked.share)
            statistics = run.row_pass(STATISTICS, task, run.layout.row_pass(name)).statistics()[SAMPLE]
            with run.doing(STATISTICS, STORING):
                statistics.check_range()
                write_arrays(run.layout.statistics_file(name), statistics_to_arrays(statistics))
            del statistics
    with run.doing(SOLVE, "checking the statistics"):
        check_folder(run.layout.statistics_file(name), remedy=ANEW)
    make_folder(run.layout.solutions)
    keep = run.config.resources.keep
    turn = TurnTask(run.layout, name, asked.n_finalists, bool(run.config.solver.intercept), keep)
    commit, size = partial(commit_turn, turn), asked.n_finalists**2
    run.run_items(SOLVE, commit, [f"{name}.npz"], part=run.layout.solution, unit="", size=lambda file: size)


def commit_turn(task: TurnTask, file: str) -> None:
    """Choose the finalists of a turn and commit them as a solution of this name; StoppedError after a checkpoint."""
    statistics = load_statistics(task.layout, task.name)
    started = time.perf_counter()
    most, folder = min(task.size, statistics.n_centers), task.layout.checkpoints(f"{task.name}-selection")
    choose = partial(forward, statistics, most, intercept=task.intercept, n_threads=available_processors())
    found = checkpointed(folder, "a sample of the fit rows", most, task.checkpoints_kept, choose)
    squares = (statistics.centred_targets()[1] if task.intercept else statistics.yty).sum()
    error = max(float(squares - found.reductions.sum()), 0.0) / max(statistics.weight_sum, 1.0)
    seconds = time.perf_counter() - started
    write_dataclass(task.layout.solution(file), Turn(found.chosen, error, found.refused, found.drift, seconds))


def _clean(run: Run, name: str) -> None:
    """Remove what finalists were chosen from: they are committed."""
    statistics, row_pass = run.layout.statistics_file(name), run.layout.row_pass(name)
    for folder in (statistics, row_pass, run.layout.checkpoints(f"{name}-selection")):
        remove_folder(folder, durable=False)


def _compute(run: Run, finalists: NDArray[np.int64]) -> None:
    """Commit the statistics of the finalists, of fit rows and held-out rows apart."""
    name = FINALISTS.everything
    if not (run.layout.statistics_file(name) / MANIFEST_NAME).exists():
        with run.charged(STATISTICS):
            task = _pass(run, name, finalists, (FIT, HELD_OUT))
            parts = run.row_pass(STATISTICS, task, run.layout.row_pass(name)).statistics()
            entries = {"kernel_entries": run.shape.n_train * len(finalists)}
            commit_parts(run, parts[FIT], parts[HELD_OUT], FINALISTS, {"rows": finalists}, entries)
    remove_folder(run.layout.row_pass(name), durable=False)


def _pass(
    run: Run, name: str, members: NDArray[np.int64], parts: tuple[str, ...], share: float = 1.0
) -> StatisticsPass:
    """Return the pass over the columns of some candidates, whose names are stored for it."""
    folder: Path = run.layout.row_pass(name)
    make_folder(folder)
    write_arrays(folder / MEMBERS, {"members": members})
    return StatisticsPass(
        row_task(run), parts, len(members), largest_values(run), members=folder / MEMBERS, share=share
    )


def _tell(run: Run, record: SelectionRound) -> None:
    """Commit and tell what a turn did."""
    write_marker(run.layout.markers(MARKERS), round_name(record.round), asdict(record))
    run.events.metric(stage=SOLVE, **asdict(record))
    run.events.say(
        f"turn {record.round}: {record.n_active} finalists of {record.working_set} candidates, squared error of the "
        f"sample {record.sample_error:.6g}; {record.kernel_entries:.3g} kernel entries"
    )
