"""The pass that adds up statistics of kernel columns: of fit rows and held-out rows apart, of either, or of all.

It serves the statistics of all candidates, of a round of a selection, of the held-out rows at some centers, and of
centers that move (mathematics.md, eqs. 7, 8 and 11).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.exact_sums import Each, Tile
from pipeline.kernels.gram_statistics import RowBounds, StatisticsSums
from pipeline.kernels.kernel_forms import TILE_COLUMNS as COLUMNS_TILE
from pipeline.kernels.kernel_forms import ColumnGenerator
from pipeline.runtime import progress
from pipeline.runtime.stored_arrays import Stored
from pipeline.stages.block_pass import Add, BlockPass, ExactSums
from pipeline.stages.training_rows import RowBlock, RowGrid, RowTask, row_grid

FIT, HELD_OUT, ALL, SAMPLE = "fit", "hold_out", "all", "sample"
COLUMNS = "columns"  # the array of stored statistics that names their columns, in rising order, where not all were kept
MEMBERS = "members.npz"


def statistics_pass(
    rows: RowTask,
    parts: tuple[str, ...],
    n_columns: int,
    largest: RowBounds,
    *,
    members: Stored | None = None,
    batch: range | None = None,
    share: float = 1.0,
    name: str = "",
) -> BlockPass[ExactSums]:
    """Return a pass that adds up the statistics of some columns, by part.

    Parameters
    ----------
    parts : FIT and HELD_OUT, one of them, ALL, or SAMPLE, of the fit rows
    n_columns, members : how many, and what has the candidates "members", by name, whose columns these are, or "points"
        (m, d) that are none; None: all candidates, where their features are committed with them
    largest : bounds of what a row adds
    batch : the training rows that are added up; None: all
    share, name : of the fit rows that are sampled, and of the sample: turns of a selection are alike
    """
    shape, sampled, sums_bytes = rows.shape, parts == (SAMPLE,), 8 * len(parts) * n_columns**2
    chosen = range(shape.n_train) if batch is None else batch
    # Blocks of rows that were added are as long as those of the first ones.
    blocks = row_grid("train", shape.n_first, n_columns, sums_bytes, share)
    blocks = replace(blocks, n_rows=len(chosen), first=chosen.start)
    key = (n_columns, parts, largest, COLUMNS_TILE, GRAM_TILE, *((share, name) if sampled else ()))
    return BlockPass(
        rows,
        blocks,
        partial(_opened, parts, n_columns, members, blocks),
        partial(no_sums, parts, n_columns, largest, blocks),
        key,
        sums_bytes=sums_bytes,
        threads_a_piece=-(-n_columns // COLUMNS_TILE),
        share=share if sampled else None,
        counts=True,
    )


def no_sums(parts: tuple[str, ...], n_columns: int, largest: RowBounds, blocks: RowGrid, n_kept: int = 0) -> ExactSums:
    """Return the sums of each part, of no rows; see `StatisticsSums`."""
    bounds = largest, blocks.block_rows, blocks.n_blocks
    return ExactSums({part: StatisticsSums(n_columns, *bounds, n_kept) for part in parts})


def _opened(
    parts: tuple[str, ...], n_columns: int, members: Stored | None, blocks: RowGrid, rows: RowTask
) -> Add[ExactSums]:
    """Read the centers of the columns; return what adds a block."""
    arrays = {} if members is None else members.read()
    if members is None:
        generator = rows.generator_at_once()
    elif "points" in arrays:
        generator = rows.generator_of(arrays["points"])
    else:
        generator = rows.generator(arrays["members"])
    of_columns = rows.shape.n_features / (rows.shape.n_features + n_columns)  # about their part of the time

    def add(sums: ExactSums, number: int, block: RowBlock, each: Each) -> None:
        add_block(generator, parts, of_columns, sums, block, blocks.size(number), each)

    return add


def add_block(
    generator: ColumnGenerator,
    parts: tuple[str, ...],
    of_columns: float,
    sums: ExactSums,
    block: RowBlock,
    n_rows: float,
    each: Each,
) -> None:
    """Add a block: its columns are computed once, one part after the other, so that each has contiguous ones.

    of_columns : the share of the time that columns take; n_rows : that are counted as done
    """
    held_out, every = block.held_out, np.ones(len(block.X), bool)
    rows_of = {FIT: ~held_out, HELD_OUT: held_out, ALL: every, SAMPLE: every}
    rows = [np.flatnonzero(rows_of[part]) for part in parts]
    order = np.concatenate(rows)
    X, order = (block.X, order) if len(order) == len(block.X) else (block.X[order], np.arange(len(order)))
    counted = counting(each, of_columns * n_rows)
    columns: np.ndarray = generator.block(X, order, np.float64, counted)
    first = 0
    for part, chosen in zip(parts, rows, strict=True):
        span = slice(first, first + len(chosen))
        counted = counting(each, (1 - of_columns) * n_rows * len(chosen) / max(len(order), 1))
        weights = None if block.weights is None else block.weights[chosen]
        sums[part].add(columns[span], block.targets[chosen], weights, counted)
        first = span.stop


def counting(each: Each, rows: float) -> Each:
    """Return an `each` that counts rows as done in equal parts, with its tiles: a block of many columns takes long."""

    def counted(function: Callable[[Tile], None], tiles: Iterable[Tile], /) -> None:
        waiting = list(tiles)

        def count(tile: Tile) -> None:
            function(tile)
            progress.advance(rows / len(waiting))

        each(count, waiting)

    return counted
