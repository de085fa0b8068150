"""Greedy selection of the centers: the choice of `solvers.forward_backward_selection`, checkpointed and committed.

From more candidates than deserve a Gram over all rows, finalists are chosen first, on a sample of the fit rows. Where
not all candidates have a Gram at once, they come in batches, each together with the finalists of the one before.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.fit.row_blocks import positions_of
from pipeline.fit.statistics import (
    FIT,
    HELD_OUT,
    SAMPLE,
    STORING,
    commit_parts,
    name_of,
    statistics_at,
    statistics_of,
)
from pipeline.fit.workspace import FinalWeights, Workspace
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.runtime import progress, stopping
from pipeline.runtime.executors import available_processors
from pipeline.solvers import forward_backward_selection as greedy
from pipeline.solvers.ridge import CalibrationWeights, refit, ridge_summary
from pipeline.work.events import SOLVE, STATISTICS
from pipeline.work.store import TaskCheckpoints
from storage.arrays import Arrays, Stored, as_arrays, as_dataclass

# Names of statistics on the same candidates: of the fit rows, of the held-out rows, of all rows.
AT_ONCE = ("fit", "hold_out", "all")
PREFIX_WEIGHTS = "solutions/prefixes.npz"
ROWS = {"fit": "the fit rows", "all": "all rows"}  # in messages
FINALISTS = ("finalists-fit", "finalists-hold-out", "finalists")
BatchRecord = dict[str, Any]  # of a batch


def select_centers(work: Workspace) -> tuple[FinalWeights, CalibrationWeights]:
    """Choose the centers one by one; return their weights, and those for the held-out rows; commit the prefixes'."""
    asked, columns, names = work.preselection, work.candidates, AT_ONCE
    records, batches = list[BatchRecord](), list[Arrays]()
    if asked is None:
        found = _chosen(work, names, None)
    else:
        columns, records, batches = _finalists(work, columns, asked)
        names = FINALISTS
        _accumulate_finalists(work, columns)
        found = _chosen(work, names, asked.n_back)
    chosen, tried, sizes = found["chosen"], found["tried"], found["sizes"]
    fit, held_out, everything = (statistics_of(work, name_of(name)) for name in names)
    everything = everything.cut(chosen)
    try:
        best = refit(fit.cut(tried), held_out.cut(tried), everything, intercept=work.intercept)
    except np.linalg.LinAlgError as error:
        raise InvalidDataError(f"select: {error}; ask for fewer centers") from None
    weights, intercepts = greedy.prefix_weights(everything, sizes, best.ridge, intercept=work.intercept)
    prefixes = {"sizes": sizes, "weights": np.concatenate(weights), "intercepts": intercepts + work.facts.mean}
    work.store.put(PREFIX_WEIGHTS, prefixes)
    summary: dict[str, Any] = {"penalty": None, "solves": [], "path": None, "rounds": records or None}
    curve = zip(sizes.tolist(), found["errors"].tolist(), strict=True)
    points = [{"size": size, "hold_out_error": error} for size, error in curve]
    seconds = sum(float(one["seconds"]) for one in [found, *batches])
    selection = {"n_centers": len(chosen), "wall_seconds": seconds, "curve": points}
    summary |= {"selection": selection} | ridge_summary(best)
    active = chosen if asked is None else positions_of(work.candidates, columns[chosen])
    of_fit = best.of_fit.weights.named(columns[tried])
    return FinalWeights.of(active, best.weights, summary), CalibrationWeights(of_fit, fit=best.of_fit)


def _chosen(work: Workspace, names: tuple[str, str, str], n_back: int | None) -> Arrays:
    with work.events.status(SOLVE, "checking the statistics"):
        n_candidates = [statistics_of(work, name_of(name)) for name in names][-1].n_centers
    size = work.config.solver.n_selected
    items = {f"solutions/{names[2]}-selection.npz": tuple(work.store.stored(name_of(name)) for name in names)}
    # Choosing takes a time that grows with the square of the number, and is done twice.
    n_steps = 2 * greedy.forward_most(size, n_candidates) ** 2
    choosing = partial(choose, size, n_back, work.intercept)
    (found,) = work.runner.compute(SOLVE, choosing, items, unit="", size=lambda _: n_steps)
    return found


def choose(
    size: int, n_back: int | None, intercept: bool, stored: tuple[Stored, ...], checkpoints: TaskCheckpoints
) -> Arrays:
    """Choose `size` centers, with the fit rows and with all rows, from statistics of fit, held-out and all rows.

    n_back : how many of them are dropped again, where the columns are finalists, in the order chosen
    Returns columns `chosen` (k,) i8 with all rows, `tried` (k',) with the fit rows, both in the order of the model, and
    for `sizes` (g,) of prefixes of `tried` their mean squared held-out `errors`.
    """
    fit, held_out, everything = (as_dataclass(one.read(mapped=True), GramStatistics) for one in stored)
    started = time.perf_counter()

    def select_part(part: str, statistics: GramStatistics) -> greedy.Selection:
        most = greedy.forward_most(size, statistics.n_centers)
        if n_back is not None:
            progress.status(f"dropping the finalists that are missed least on {ROWS[part]}")
            selection = greedy.drop(statistics, size, n_back, intercept=intercept)
            progress.advance(most**2)
        else:
            way = partial(greedy.select, statistics, size, intercept=intercept, n_threads=available_processors())
            selection = checkpointed(checkpoints, part, ROWS[part], most, way)
        return selection

    tried = select_part("fit", fit).chosen
    if not len(tried):
        raise InvalidDataError("select: no candidate lowers the error; the targets may all be zero")
    progress.status("held-out errors of what was chosen")
    sizes = greedy.prefix_sizes(len(tried))
    errors = greedy.held_out_curve(fit.cut(tried), held_out.cut(tried), sizes, intercept=intercept)
    chosen, seconds = select_part("all", everything).chosen, np.array(time.perf_counter() - started)
    return {"chosen": chosen, "tried": tried, "sizes": sizes, "errors": errors, "seconds": seconds}


def checkpointed(
    checkpoints: TaskCheckpoints, part: str, rows: str, most: int, choose: Callable[..., greedy.Selection]
) -> greedy.Selection:
    """Choose from the last checkpoint on; a checkpoint is made after each slab.

    choose : a way forward, called with the columns chosen `first` and what follows `after` each; but for a sample, a
    way back follows
    part, rows, most : for messages: the choice, its rows, the number of centers
    """
    checkpoint, n_chosen = checkpoints.load(), 0
    chosen_before = {} if checkpoint is None else dict(checkpoint.arrays)
    first = chosen_before.pop(part, None)

    def count(n: int, words: str | None = None) -> None:
        nonlocal n_chosen
        progress.advance(n**2 - n_chosen**2, words)
        n_chosen = n

    def after(chosen: list[int]) -> None:
        count(len(chosen), f"{len(chosen)} of {most} centers chosen on {rows}")
        checkpoints.report_selection(part, rows, len(chosen), most)
        if len(chosen) % greedy.SLAB_ROWS == 0:
            step = len(chosen) + sum(map(len, chosen_before.values()))
            checkpoints.save(step, {**chosen_before, part: np.array(chosen, np.int64)}, {})
        stopping.check()
        if part != SAMPLE and len(chosen) == most:
            progress.status(f"{most} centers chosen on {rows}, dropping those that are missed least")

    if first is not None:
        progress.status(f"taking the first {len(first)} centers chosen on {rows} up again")
    selection = choose(first=first, after=after)
    count(most)  # of which there may be fewer that add anything
    return selection


def load_prefixes(stored: Stored) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return weights (size, T) and intercept (T,) of the prefixes of a selection, smallest first."""
    arrays = stored.read()
    weights = np.split(arrays["weights"], np.cumsum(arrays["sizes"])[:-1])
    return list(zip(weights, arrays["intercepts"], strict=True))


def _finalists(
    work: Workspace, candidates: NDArray[np.int64], asked: greedy.Preselection
) -> tuple[NDArray[np.int64], list[BatchRecord], list[Arrays]]:
    """Return the finalists of the last batch, by row and in the order chosen; records and results of all batches."""
    at_once = work.config.centers.working_set
    assert at_once is not None  # the plan has filled it in
    finalists, records, done = np.empty(0, np.int64), list[BatchRecord](), list[Arrays]()
    n_sampled = round(asked.share * (1.0 - work.config.statistics.hold_out) * work.shape.n_train)  # about
    for index, batch in enumerate(
        greedy.candidate_batches(len(candidates), at_once, asked.n_finalists, work.config.seed)
    ):
        members, name = np.sort(np.concatenate([finalists, candidates[batch]])), f"round-{index:03d}"
        done.append(_of_batch(work, name, members, asked))
        finalists = members[done[-1]["chosen"]]
        record = {
            "round": index,
            "working_set": len(members),
            "n_active": len(finalists),
            "sample_error": float(done[-1]["error"]),
            "kernel_entries": n_sampled * len(members),
        }
        records.append(record)
        work.events.metric(stage=SOLVE, **record)
        work.events.log(
            "batch {round}: {n_active} finalists of {working_set} candidates, squared error of the sample "
            "{sample_error:.6g}; {kernel_entries:.3g} kernel entries".format(**record)
        )
    return finalists, records, done


def _of_batch(work: Workspace, name: str, members: NDArray[np.int64], asked: greedy.Preselection) -> Arrays:
    """Return what `choose_finalists` gives for a batch, committed; its statistics are committed until then."""
    solution = f"solutions/{name}-selection.npz"

    def make() -> Arrays:
        statistics = statistics_at(work, STATISTICS, name, members, (SAMPLE,), asked.share)[SAMPLE]
        statistics.check_range()
        return as_arrays(statistics)

    found = work.store.get(solution)
    if found is None:
        with work.events.timed_as(STATISTICS), work.events.status(STATISTICS, STORING):
            work.store.once(name_of(name), make, mapped=True)
        choosing = partial(choose_finalists, asked.n_finalists, work.intercept)
        items, n_steps = {solution: work.store.stored(name_of(name))}, asked.n_finalists**2
        (found,) = work.runner.compute(SOLVE, choosing, items, unit="", size=lambda _: n_steps)
    for dropped in (name_of(name), f"passes/{name}"):
        work.store.drop(dropped)
    return found


def _accumulate_finalists(work: Workspace, finalists: NDArray[np.int64]) -> None:
    name = FINALISTS[2]
    if work.store.get(name_of(name), mapped=True) is None:
        with work.events.timed_as(STATISTICS):
            parts = statistics_at(work, STATISTICS, name, finalists, (FIT, HELD_OUT))
            commit_parts(work, parts[FIT], parts[HELD_OUT], FINALISTS)
    work.store.drop(f"passes/{name}")


def choose_finalists(size: int, intercept: bool, stored: Stored, checkpoints: TaskCheckpoints) -> Arrays:
    """Choose finalists on the statistics of a batch; may raise StoppedError, likewise.

    chosen (f,) i8: columns in the order chosen; error: mean squared error of the sample; seconds: of the choice.
    """
    statistics = as_dataclass(stored.read(mapped=True), GramStatistics)
    started = time.perf_counter()
    most = min(size, statistics.n_centers)
    way = partial(greedy.forward, statistics, most, intercept=intercept, n_threads=available_processors())
    found = checkpointed(checkpoints, SAMPLE, "a sample of the fit rows", most, way)
    squares = (statistics.centred_targets()[1] if intercept else statistics.yty).sum()
    error = max(float(squares - found.reductions.sum()), 0.0) / max(statistics.weight_sum, 1.0)
    return {"chosen": found.chosen, "error": np.array(error), "seconds": np.array(time.perf_counter() - started)}
