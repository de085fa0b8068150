"""Greedy selection from more candidates than deserve a Gram over all rows: finalists on a sample, then the choice.

Where not all candidates have a Gram at once, they come in batches: each is chosen from together with the finalists of
the one before. What a batch chooses is committed; its statistics are then dropped.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime.executors import available_processors
from pipeline.runtime.stored_arrays import Arrays, Stored, as_arrays, as_dataclass
from pipeline.solvers.forward_selection import forward
from pipeline.solvers.greedy_choice import Preselection, candidate_batches
from pipeline.stages.accumulate_statistics import (
    STORING,
    commit_parts,
    largest_values,
    name_of,
    statistics_from_arrays,
    statistics_to_arrays,
)
from pipeline.stages.block_pass import BlockPass, ExactSums
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.greedy_selection import (
    FINALISTS,
    Selected,
    checkpointed,
    choose_centers,
    finish_selection,
    fit_chosen,
)
from pipeline.stages.statistics_pass import FIT, HELD_OUT, MEMBERS, SAMPLE, statistics_pass
from pipeline.stages.training_rows import row_task
from pipeline.stages.workspace import SOLVE, STATISTICS, Unfinished, Workspace


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
    """What a batch chose, as committed: columns (f,) i8 in the order chosen, and their fit to the sample.

    error: mean squared error on the sample; refused, drift: as of a `Selection`; seconds: of the choice.
    """

    chosen: NDArray[np.int64]
    error: float
    refused: int
    drift: float
    seconds: float


@dataclass(frozen=True)
class TurnTask:
    """What a worker needs to choose finalists on the statistics of a turn."""

    statistics: Stored
    size: int
    intercept: bool


def select_among_finalists(work: Workspace, asked: Preselection) -> tuple[Selected, list[SelectionRound]]:
    """Choose finalists on a sample, and centers among them on all rows; return the result and a record of each batch.

    Raises InvalidDataError where no candidate lowers the error.
    """
    finalists, records, done = _finalists(work, work.candidates, asked)
    _accumulate(work, finalists)
    chosen = choose_centers(work, FINALISTS, n_back=asked.n_back)
    seconds, drift = chosen.seconds + sum(turn.seconds for turn in done), max(turn.drift for turn in done)
    chosen = replace(chosen, refused=done[-1].refused, drift=drift, seconds=seconds)
    fitted = fit_chosen(work, chosen, FINALISTS)
    positions = positions_of(work.candidates, finalists[chosen.chosen])
    return finish_selection(work, chosen, positions, finalists, fitted), records


def _finalists(
    work: Workspace, candidates: NDArray[np.int64], asked: Preselection
) -> tuple[NDArray[np.int64], list[SelectionRound], list[Turn]]:
    """Return the finalists of the last turn, by name and in the order chosen, and the record of each turn."""
    at_once = work.config.centers.working_set
    assert at_once is not None  # the plan has filled it in
    finalists, records, done = np.empty(0, np.int64), list[SelectionRound](), list[Turn]()
    n_sampled = round(asked.share * (1.0 - work.config.statistics.hold_out) * work.shape.n_train)  # about
    for index, turn in enumerate(candidate_batches(len(candidates), at_once, asked.n_finalists, work.config.seed)):
        members = np.sort(np.concatenate([finalists, candidates[turn]]))
        name = f"round-{index:03d}"
        found = work.committed(_solution(name))
        if found is None:
            found = _choose(work, name, members, asked)
        for dropped in (name_of(name), f"passes/{name}"):
            work.drop(dropped)
        done.append(as_dataclass(found, Turn))
        finalists = members[done[-1].chosen]
        records.append(SelectionRound(index, len(members), len(finalists), done[-1].error, n_sampled * len(members)))
        _log(work, records[-1])
    return finalists, records, done


def _solution(name: str) -> str:
    return f"solutions/{name}-selection.npz"


def _choose(work: Workspace, name: str, members: NDArray[np.int64], asked: Preselection) -> Arrays:
    """Return what is chosen at a turn, from statistics that are committed."""
    with work.charged(STATISTICS), work.status(STATISTICS, STORING):

        def make() -> Arrays:
            task = _pass(work, name, members, (SAMPLE,), asked.share)
            statistics = work.add_up(STATISTICS, task, name).statistics()[SAMPLE]
            statistics.check_range()
            return statistics_to_arrays(statistics)

        work.once(name_of(name), make, mapped=True)
    turn = TurnTask(work.stored(name_of(name)), asked.n_finalists, work.intercept)
    n_steps = asked.n_finalists**2
    (found,) = work.compute(SOLVE, choose_turn, {_solution(name): turn}, unit="", size=lambda turn: n_steps)
    return found


def choose_turn(task: TurnTask, unfinished: Unfinished) -> Arrays:
    """Choose the finalists of a turn; StoppedError after a checkpoint."""
    statistics = statistics_from_arrays(task.statistics.read(mapped=True))
    started = time.perf_counter()
    most = min(task.size, statistics.n_centers)
    way = partial(forward, statistics, most, intercept=task.intercept, n_threads=available_processors())
    found = checkpointed(unfinished, SAMPLE, "a sample of the fit rows", most, way)
    squares = (statistics.centred_targets()[1] if task.intercept else statistics.yty).sum()
    error = max(float(squares - found.reductions.sum()), 0.0) / max(statistics.weight_sum, 1.0)
    return as_arrays(Turn(found.chosen, error, found.refused, found.drift, time.perf_counter() - started))


def _accumulate(work: Workspace, finalists: NDArray[np.int64]) -> None:
    """Commit the statistics of the finalists, of fit rows and held-out rows apart."""
    name = FINALISTS.everything
    if work.committed(name_of(name), mapped=True) is None:
        with work.charged(STATISTICS):
            task = _pass(work, name, finalists, (FIT, HELD_OUT))
            parts = work.add_up(STATISTICS, task, name).statistics()
            commit_parts(work, parts[FIT], parts[HELD_OUT], FINALISTS, {"rows": finalists})
    work.drop(f"passes/{name}")


def _pass(
    work: Workspace, name: str, members: NDArray[np.int64], parts: tuple[str, ...], share: float = 1.0
) -> BlockPass[ExactSums]:
    """Return the pass over the columns of some candidates, whose names are committed for it."""
    stored = work.commit(f"passes/{name}/{MEMBERS}", {"members": members})
    bounds = largest_values(work)
    return statistics_pass(row_task(work), parts, len(members), bounds, members=stored, share=share, name=name)


def _log(work: Workspace, record: SelectionRound) -> None:
    """Log what a turn did."""
    work.metric(stage=SOLVE, **asdict(record))
    work.log(
        f"turn {record.round}: {record.n_active} finalists of {record.working_set} candidates, squared error of the "
        f"sample {record.sample_error:.6g}; {record.kernel_entries:.3g} kernel entries"
    )
