"""Stage 3: sufficient statistics of the kernel columns (mathematics.md, eqs. 7 and 8), in one pass over the rows."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.train_config import what_needs_held_out_rows
from pipeline.fit.row_blocks import Needs, RowBlock, RowGrid, RowTask, RunSize, block_pass, memory_of, row_grid
from pipeline.fit.workspace import Workspace
from pipeline.kernels.exact_sums import TILE_COLUMNS, ExactSums, ForEach
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, statistics_by_part
from pipeline.runtime.row_pass import AddPiece, RowPass
from pipeline.work.events import STATISTICS
from storage.arrays import Stored, as_arrays, as_dataclass
from storage.errors import ANEW, CorruptDataError

STORING = "storing the sums of all rows"


def accumulate_statistics(work: Workspace) -> None:
    """Commit the statistics of all training rows on all candidates, where the solves need them: fit, hold_out, all."""
    with work.events.stage(STATISTICS):
        if work.final is not None or work.in_rounds:
            return  # A finished run reads none; in rounds the solve stage computes them, for the columns it needs.
        with work.events.status("checking those of an earlier session"):
            is_done = work.store.get(name_of(ALL), mapped=True) is not None
        if not is_done:
            task = statistics_pass(work.row_task, (FIT, HELD_OUT), work.n_candidates)
            parts = statistics_by_part(work.runner.add_up(task, STATISTICS))
            names = (FIT, HELD_OUT, ALL) if what_needs_held_out_rows(work.config) else ("", "", ALL)
            commit_parts(work, parts.pop(FIT), parts.pop(HELD_OUT), names)
        work.store.drop(f"passes/{STATISTICS}")


def name_of(part: str) -> str:
    """Return the name under which the statistics of a part are committed."""
    return f"statistics/{part}"


def commit_parts(work: Workspace, fit: GramStatistics, held_out: GramStatistics, names: tuple[str, str, str]) -> None:
    """Commit the statistics of fit rows, held-out rows and all rows under these names, where not empty; all rows last.

    A resumed run takes the last as a sign that the others are there. `fit` is overwritten: `held_out` is added to it in
    place.
    """
    with work.events.status(STORING):
        for name, statistics in zip(names, (fit, held_out), strict=False):
            if name:
                work.store.put(name_of(name), as_arrays(statistics))
        everything = fit.absorbing(held_out)
        everything.check_range()
        work.store.put(name_of(names[2]), as_arrays(everything))


def statistics_of(work: Workspace, name: str) -> GramStatistics:
    """Return the statistics that are committed under a name, the Gram mapped. Raises CorruptDataError."""
    found = work.store.get(name, mapped=True)
    if found is None:
        raise CorruptDataError(f"{name}: the statistics are missing; {ANEW}")
    return as_dataclass(found, GramStatistics)


def statistics_at(
    work: Workspace, name: str, parts: tuple[str, ...], words: str, **members: NDArray[Any]
) -> dict[str, GramStatistics]:
    """Return the statistics of some columns by part: one pass for the solves.

    members : "columns" (m,), candidates by row, or "points" (m, d)
    """
    stored, (columns,) = work.store.put(f"passes/{name}/members.npz", members), members.values()
    task = statistics_pass(work.row_task, parts, len(columns), members=stored)
    return statistics_by_part(work.runner.add_up(task, name, words))


FIT, HELD_OUT, ALL = "fit", "hold_out", "all"


def statistics_pass(
    rows: RowTask,
    parts: tuple[str, ...],
    n_columns: int,
    *,
    members: Stored | None = None,
    n_kept: int = 0,
) -> RowPass[ExactSums]:
    """Return a pass that adds up the statistics of some columns, by part.

    parts : FIT and HELD_OUT, one of them, or ALL
    n_columns, members : how many columns, and what holds the "columns", candidates by row, or the "points" (m, d) that
        they are of; None: the first candidates, where the features of all are committed with them
    n_kept : columns that have a Gram: only products with the others are added up
    """
    blocks, largest = statistics_blocks(rows.shape.n_train, n_columns, len(parts), n_kept), rows.facts.bounds()
    key = (rows.sigma2, n_kept, parts, largest, TILE_COLUMNS)
    return block_pass(
        rows,
        blocks,
        partial(_block_of_columns, rows, parts, n_columns, members),
        partial(no_sums, parts, n_columns, largest, blocks, n_kept),
        key,
        features="held-out" if parts == (HELD_OUT,) else "all",
    )


def statistics_blocks(n_rows: int, n_columns: int, n_parts: int, n_kept: int = 0) -> RowGrid:
    """Return the blocks of `statistics_pass`, whose sums are a Gram of each part, without the columns that are kept."""
    return row_grid("train", n_rows, n_columns, 8 * n_parts * n_columns * (n_columns - n_kept))


def statistics_needs(run: RunSize) -> Needs:
    """Return what the statistics of fit rows and held-out rows need.

    A further Gram is read while committed sums are taken up. On disk are the sums of each process, twice while they are
    replaced, and the statistics, of fit rows and held-out rows too where a choice reads them.
    """
    blocks = statistics_blocks(run.shape.n_train, run.n_columns, 2)
    gram, sums = 8 * blocks.n_columns**2, blocks.sums_bytes
    of_parts = sums if what_needs_held_out_rows(run.config) else 0
    memory = max(memory_of(blocks, run), sums + gram)
    return Needs(memory, 2 * run.workers.processes * sums + gram + of_parts)


def no_sums(parts: tuple[str, ...], n_columns: int, largest: RowBounds, blocks: RowGrid, n_kept: int = 0) -> ExactSums:
    """Return the sums of each part, of no rows; see `StatisticsSums`."""
    bounds = largest, blocks.block_rows, blocks.n_blocks
    return ExactSums({part: StatisticsSums(n_columns, *bounds, n_kept) for part in parts})


def _block_of_columns(
    rows: RowTask, parts: tuple[str, ...], n_columns: int, members: Stored | None
) -> AddPiece[ExactSums]:
    """Return what adds a block: its columns are computed once, part after part, so that each has contiguous ones."""
    if members is None:
        kernel = rows.kernel_at(rows.candidates.read(mapped=True)["X"][:n_columns])
    else:
        kernel = rows.kernel_in(members.read())

    def add(sums: ExactSums, block: RowBlock, each: ForEach) -> None:
        rows_of = {FIT: ~block.held_out, HELD_OUT: block.held_out, ALL: np.ones(len(block.X), bool)}
        chosen = [np.flatnonzero(rows_of[part]) for part in parts]
        order = np.concatenate(chosen)
        X, order = (block.X, order) if len(order) == len(block.X) else (block.X[order], np.arange(len(order)))
        columns: np.ndarray = kernel.block(X, order, np.float64, each)
        first = 0
        for part, of_part in zip(parts, chosen, strict=True):
            span = slice(first, first + len(of_part))
            weights = None if block.weights is None else block.weights[of_part]
            sums[part].add(columns[span], block.targets[of_part], weights, each)
            first = span.stop

    return add
