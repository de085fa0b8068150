"""Kernel columns that are kept: of candidates that entered a working set, each computed once and read ever after.

The columns that enter together are a group. A file holds those of one block of rows, (rows, group) in the precision
of the kernel. Who lacks a file, or finds it damaged, computes it again from the same centers and the same rows, to
the same bits: so that no pass waits for another, and nothing is lost with a process or a disk of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.feature_request import encoded_targets
from pipeline.datasets.features_on_the_fly import open_features
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.each_tile import Each
from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.gram_statistics import StatisticsSums, SumBounds
from pipeline.kernels.kernel_forms import TILE_COLUMNS as COLUMNS_TILE
from pipeline.runtime import progress, stopping
from pipeline.runtime.thread_team import ThreadTeam
from pipeline.stages.block_values import BlockValues
from pipeline.stages.largest_values import LargestValues
from pipeline.stages.statistics_pass import ALL, PartSums
from pipeline.stages.training_rows import MOST_ROWS, MOST_VALUES, BlockPieces, RowGrid, RowTask, stream_blocks
from storage.atomic_writes import make_folder, read_arrays, write_arrays
from storage.errors import CorruptDataError, MissingDataError
from storage.remedies import ANEW

LEAST_BLOCKS, LEAST_ROWS = 64, 512  # blocks of many rows, for as many workers; rows of a block of few
INPUT = "input.npz"  # of a pass: which columns it reads, and what it does with them


@dataclass(frozen=True)
class KeptColumns:
    """Which columns are kept, as members (W,) of the candidates, by name, in the order of their Gram.

    groups (W,): the number of each column's group; places (W,): where it stands in that.
    """

    members: NDArray[np.int64]
    groups: NDArray[np.int64]
    places: NDArray[np.int64]

    def grown(self, stay: NDArray[np.int64], admitted: NDArray[np.int64], group: int) -> "KeptColumns":
        """Return those that stay, and after them the candidates that are admitted, as a new group."""
        return KeptColumns(
            np.concatenate([self.members[stay], admitted]),
            np.concatenate([self.groups[stay], np.full(len(admitted), group)]),
            np.concatenate([self.places[stay], np.arange(len(admitted))]),
        )


def nothing_kept() -> KeptColumns:
    """Return no columns."""
    return KeptColumns(*(np.empty(0, np.int64) for _ in range(3)))


def kept_blocks(n_rows: int, capacity: int) -> RowGrid:
    """Return the blocks of rows of all files, for working sets of at most `capacity` columns.

    One grid for all passes: the bits of a value depend on the rows of its block. Blocks are longer than those of other
    passes: each is a file for each group.
    """
    rows = min(max(n_rows // LEAST_BLOCKS, LEAST_ROWS), MOST_ROWS, MOST_VALUES // max(capacity, 1))
    return RowGrid("train", n_rows, max(rows - rows % 32, 32))


@dataclass(frozen=True)
class KeptFiles:
    """Where the files are, and what makes those that are missing. Small and picklable.

    folder : of the groups; each has the names of its candidates and its columns of each block
    """

    rows: RowTask
    blocks: RowGrid
    folder: Path

    def group(self, number: int) -> Path:
        """Return the folder of a group."""
        return self.folder / f"group-{number:03d}"

    def begin(self, number: int, candidates: NDArray[np.int64]) -> None:
        """Write whose columns a group has; they are computed by the first pass that reads them."""
        make_folder(self.group(number))
        write_arrays(self.group(number) / "members.npz", {"members": candidates})


class OpenedColumns:
    """The kept columns in a process: all its threads read them."""

    def __init__(self, files: KeptFiles, columns: KeptColumns) -> None:
        self._files, self._columns = files, columns
        self._generators: dict[int, ColumnGenerator] = {}

    def block(self, number: int, each: Each, X: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
        """Return the columns of a block of rows, (rows, W) f8 C-contiguous; what no file has is computed and kept.

        X : the features of its rows, where they are at hand; else they are read if a file is missing
        """
        columns = self._columns
        out = np.empty((int(self._files.blocks.size(number)), len(columns.members)))
        for group in np.unique(columns.groups).tolist():
            values, here = self._values(group, number, each, X), np.flatnonzero(columns.groups == group)
            places = columns.places[here]
            whole = len(places) == values.shape[1]
            out[:, here[0] : here[-1] + 1] = values if whole else values[:, places]
        return out

    def _values(self, group: int, number: int, each: Each, X: NDArray[np.float32] | None) -> NDArray[np.floating[Any]]:
        """Return all columns of a group, of a block."""
        path = self._files.group(group) / f"block-{number:06d}.npz"
        try:
            return read_arrays(path)["columns"]
        except (MissingDataError, CorruptDataError):
            rows = self._files.rows
            if X is None:
                ((_, block),) = stream_blocks(rows, self._files.blocks, range(number, number + 1))
                X = block.X
            values = self._generator(group).block(X, out_dtype=np.dtype(rows.precision).type, each=each)
            write_arrays(path, {"columns": values}, durable=False)
            return values

    def _generator(self, group: int) -> ColumnGenerator:
        if group not in self._generators:  # two threads may both make one: they are equal
            members = read_arrays(self._files.group(group) / "members.npz", remedy=ANEW)["members"]
            self._generators[group] = self._files.rows.generator(members)
        return self._generators[group]


class _KeptPass(Protocol):
    @property
    def files(self) -> KeptFiles: ...

    @property
    def folder(self) -> Path: ...


def opened(task: _KeptPass) -> tuple[OpenedColumns, dict[str, NDArray[Any]]]:
    """Return the columns of a pass, and what its folder says to do with them."""
    arrays = read_arrays(task.folder / INPUT)
    columns = KeptColumns(*(arrays.pop(name) for name in ("members", "groups", "places")))
    return OpenedColumns(task.files, columns), arrays


def write_input(folder: Path, columns: KeptColumns, **arrays: NDArray[Any]) -> None:
    """Write what the pass of a folder reads."""
    make_folder(folder)
    write_arrays(folder / INPUT, vars(columns) | arrays)


Targets = tuple[int, NDArray[np.float64], NDArray[np.float64] | None]


def stream_targets(rows: RowTask, grid: RowGrid, pieces: range) -> Iterator[Targets]:
    """Yield the number, the targets (rows, T) f8 and the row weights of each block, as `stream_blocks` has them.

    No feature is read.
    """
    store = open_features(rows.features)
    for number in pieces:
        stopping.check()
        span = grid.rows(range(number, number + 1))
        y = store.targets(grid.part, span.start, span.stop)
        weights = rows.facts.weights(y, store.weights(grid.part, span.start, span.stop))
        yield number, encoded_targets(y, rows.shape) - rows.facts.mean, weights


@dataclass(frozen=True)
class _OfKept(BlockPieces):
    """What the passes over kept columns share; n_columns: of the working set, n_kept: those with a Gram already."""

    files: KeptFiles
    folder: Path
    n_columns: int
    n_kept: int

    @property
    def rows(self) -> RowTask:
        """How rows are read."""
        return self.files.rows

    @property
    def blocks(self) -> RowGrid:
        """The blocks of all files."""
        return self.files.blocks

    @property
    def grid(self) -> tuple[object, ...]:
        """What determines the blocks, and the bounds and tiles of their sums."""
        return (type(self).__name__, self.blocks, self.n_columns, self.n_kept, COLUMNS_TILE, GRAM_TILE)

    @property
    def threads_a_piece(self) -> int:
        """How many tiles the new columns of a block have."""
        return max(-(-(self.n_columns - self.n_kept) // COLUMNS_TILE), 1)


@dataclass(frozen=True)
class GrowthPass(_OfKept):
    """The Gram rows of the columns that enter, and the other sums of theirs (mathematics.md, eqs. 7 and 11)."""

    largest: LargestValues

    @property
    def sums_bytes(self) -> int:
        """Bytes of the new rows of the Gram."""
        return 8 * self.n_columns * (self.n_columns - self.n_kept)

    @cached_property
    def _bounds(self) -> SumBounds:
        largest, blocks = self.largest, self.blocks
        return SumBounds(blocks.block_rows, blocks.n_blocks, largest.column, largest.targets, largest.weight)

    def empty(self) -> PartSums:
        """Return sums of no rows."""
        return PartSums({ALL: StatisticsSums(self.n_columns, self._bounds, self.n_kept)})

    def open(self) -> "GrowthAdder":
        """Open the kept columns."""
        return GrowthAdder(self, opened(self)[0])


@dataclass(frozen=True)
class GrowthAdder:
    """The pass in a process."""

    task: GrowthPass
    columns: OpenedColumns

    def add(self, pieces: range, sums: PartSums, team: ThreadTeam) -> Iterator[int]:
        """Add some blocks, one after the other, and yield the number of each when it is added."""
        for number, block in stream_blocks(self.task.rows, self.task.blocks, pieces):
            columns = self.columns.block(number, team.each, block.X)
            sums[ALL].add(columns, block.targets, block.weights, team.each)
            progress.advance(len(block.X))
            yield number


@dataclass(frozen=True)
class ResidualPass(_OfKept):
    """The residuals (mathematics.md, eq. 26) of weights on kept columns; those of a row of weight s are times √s."""

    @property
    def sums_bytes(self) -> int:
        """Nothing that threads would have to share: each has the values of its own blocks."""
        return 0

    def empty(self) -> BlockValues:
        """Return the residuals of no blocks."""
        return BlockValues()

    def open(self) -> "ResidualAdder":
        """Open the kept columns and the weights."""
        columns, arrays = opened(self)
        return ResidualAdder(self, columns, arrays["weights"], arrays["intercept"])


@dataclass(frozen=True)
class ResidualAdder:
    """The pass in a process: weights (W, T), intercept (T,)."""

    task: ResidualPass
    columns: OpenedColumns
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]

    def add(self, pieces: range, values: BlockValues, team: ThreadTeam) -> Iterator[int]:
        """Compute the residuals of some blocks, and yield the number of each when it has them."""
        for number, targets, weights in stream_targets(self.task.rows, self.task.blocks, pieces):
            residuals = targets - self.columns.block(number, team.each) @ self.weights - self.intercept
            if weights is not None:
                residuals *= np.sqrt(weights)[:, None]
            values.put(number, {"residuals": residuals})
            progress.advance(len(residuals))
            yield number
