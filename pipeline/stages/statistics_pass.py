"""The pass that adds up statistics of kernel columns: of fit rows and held-out rows apart, of either, or of all.

It serves the statistics of all candidates, of a round of a selection, of the held-out rows at some centers, and of
the columns by which a working set grows (mathematics.md, eqs. 7, 8 and 11).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.each_tile import Each, Tile
from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, SumBounds
from pipeline.kernels.kernel_forms import TILE_COLUMNS as COLUMNS_TILE
from pipeline.runtime import progress
from pipeline.runtime.committed_sums import Arrays
from pipeline.runtime.thread_team import ThreadTeam
from pipeline.stages.training_rows import (
    BlockPieces,
    RowBlock,
    RowGrid,
    RowTask,
    row_grid,
    stream_blocks,
    stream_sample,
)
from storage.arrays import read_arrays

FIT, HELD_OUT, ALL, SAMPLE = "fit", "hold_out", "all", "sample"
COLUMNS = "columns"  # the array of stored statistics that names their columns, in rising order, where not all were kept
MEMBERS = "members.npz"


@dataclass(frozen=True)
class StatisticsPass(BlockPieces):
    """Which rows are added up, and of which columns.

    parts : FIT and HELD_OUT, one of them, ALL, or SAMPLE, of the fit rows
    members : the file of the candidates, by name, whose columns these are, or of "points" (m, d) that are none; None:
        all of a run that has their features
    n_columns : of the candidates
    largest : bounds of what a row adds
    batch : the training rows that are added up; None: all
    share : of the fit rows that are sampled
    """

    rows: RowTask
    parts: tuple[str, ...]
    n_columns: int
    largest: RowBounds
    members: Path | None = None
    batch: range | None = None
    share: float = 1.0

    @cached_property
    def blocks(self) -> RowGrid:
        """The blocks of rows; those of rows that were added are as long as those of the first ones."""
        shape = self.rows.shape
        rows = range(shape.n_train) if self.batch is None else self.batch
        grid = row_grid("train", shape.n_first, self.n_columns, self.sums_bytes, self.share)
        return replace(grid, n_rows=len(rows), first=rows.start)

    @property
    def grid(self) -> tuple[object, ...]:
        """What determines the blocks, and the bounds and tiles of their sums."""
        sizes = (self.blocks, self.n_columns, self.parts, self.largest, COLUMNS_TILE, GRAM_TILE)
        if self.members is None or self.parts != (SAMPLE,):
            return sizes
        return (*sizes, self.share, self.members.parent.name)  # turns of a selection, one after the other, are alike

    @property
    def sums_bytes(self) -> int:
        """Bytes of the Grams."""
        return 8 * len(self.parts) * self.n_columns**2

    @property
    def threads_a_piece(self) -> int:
        """How many tiles a block of columns has."""
        return -(-self.n_columns // COLUMNS_TILE)

    def empty(self) -> "PartSums":
        """Return sums of no rows."""
        bounds = SumBounds(self.blocks.block_rows, self.blocks.n_blocks, self.largest)
        return PartSums({part: StatisticsSums(self.n_columns, bounds) for part in self.parts})

    def open(self) -> "StatisticsAdder":
        """Read the centers of the columns."""
        if self.members is None:
            return StatisticsAdder(self, self.rows.generator_at_once())
        arrays = read_arrays(self.members)
        if "points" in arrays:
            return StatisticsAdder(self, self.rows.generator_of(arrays["points"]))
        return StatisticsAdder(self, self.rows.generator(arrays["members"]))


class PartSums:
    """The sums of each part."""

    def __init__(self, parts: dict[str, StatisticsSums]) -> None:
        self._parts = parts

    def __getitem__(self, part: str) -> StatisticsSums:
        return self._parts[part]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the sums of all parts."""
        return {f"{part}.{name}": units for part, sums in self._parts.items() for name, units in sums.arrays().items()}

    def absorb(self, arrays: Arrays) -> None:
        """Add those of other rows."""
        for name, units in arrays:
            part, _, of_part = name.partition(".")
            self._parts[part].absorb(of_part, units)

    def statistics(self) -> dict[str, GramStatistics]:
        """Return the statistics of each part; they take the place of the sums, so call it once."""
        return {part: sums.statistics() for part, sums in self._parts.items()}


@dataclass(frozen=True)
class StatisticsAdder:
    """The pass in a process: its columns are generated for one block of rows after the other."""

    task: StatisticsPass
    generator: ColumnGenerator

    def add(self, pieces: range, sums: PartSums, team: ThreadTeam) -> Iterator[int]:
        """Add some blocks, one after the other, and yield the number of each when it is added."""
        rows, blocks = self.task.rows, self.task.blocks
        sampled = self.task.parts == (SAMPLE,)
        share = self.task.share
        stream = stream_sample(rows, blocks, pieces, share) if sampled else stream_blocks(rows, blocks, pieces)
        for number, block in stream:
            self._add(block, blocks.size(number), sums, team)
            yield number

    def _add(self, block: RowBlock, n_rows: float, sums: PartSums, team: ThreadTeam) -> None:
        """Add a block: its columns are computed once, one part after the other, so that each has contiguous ones.

        n_rows : that are told as done
        """
        held_out, every = block.held_out, np.ones(len(block.X), bool)
        rows_of = {FIT: ~held_out, HELD_OUT: held_out, ALL: every, SAMPLE: every}
        rows = [np.flatnonzero(rows_of[part]) for part in self.task.parts]
        order = np.concatenate(rows)
        X, order = (block.X, order) if len(order) == len(block.X) else (block.X[order], np.arange(len(order)))
        of_columns, of_gram = self._cost_shares()
        each = counting(team.each, of_columns * n_rows)
        columns: NDArray[np.float64] = self.generator.block(X, order, np.float64, each)  # type: ignore[assignment]
        first = 0
        for part, chosen in zip(self.task.parts, rows, strict=True):
            span = slice(first, first + len(chosen))
            each = counting(team.each, of_gram * n_rows * len(chosen) / max(len(order), 1))
            weights = None if block.weights is None else block.weights[chosen]
            sums[part].add(columns[span], block.targets[chosen], weights, each)
            first = span.stop

    def _cost_shares(self) -> tuple[float, float]:
        """Return about which parts of the time the columns take, and their products."""
        columns, products = self.task.rows.shape.n_features, self.task.n_columns
        return columns / (columns + products), products / (columns + products)


def counting(each: Each, rows: float) -> Each:
    """Return an `each` that counts rows as done in equal parts, with its tiles: a block of many columns takes long."""

    def counted(function: Callable[[Tile], None], tiles: Iterable[Tile], /) -> None:
        waiting = list(tiles)

        def count(tile: Tile) -> None:
            function(tile)
            progress.advance(rows / len(waiting))

        each(count, waiting)

    return counted
