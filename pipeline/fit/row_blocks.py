"""Rows cut into blocks, and passes over the blocks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_held_out
from features.rows import some_of
from features.source import Part
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_rows import FeatureAccess, FeatureShape, open_features
from pipeline.fit.filled_settings import value_dtype
from pipeline.fit.target_facts import TargetFacts
from pipeline.kernels.exact_sums import TILE_COLUMNS
from pipeline.kernels.kernel_functions import Kernel
from pipeline.runtime import stopping
from pipeline.runtime.row_pass import AddPiece, RowPass, S, Workers
from storage.arrays import Arrays, Stored

LEAST_ROWS, MOST_ROWS = 32, 2048  # A block has rows within these: shorter ones are slow, longer ones no faster.
MOST_VALUES = 2**24  # A block of columns has at most these values.
LEAST_PIECES = 32  # Rows are cut into these blocks or more: twice the number adds every sum twice as often.
SHORT_BYTES = 2**27  # Blocks grow with sums that are larger than this.
READ_BYTES = 2**24  # Blocks whose features take no more are read together.
FeaturesOf = Literal["all", "held-out", "none"]


class RowBlock(NamedTuple):
    """Some rows: their number, that of the first, and what training adds to what is stored of them."""

    number: int
    start: int
    X: NDArray[np.floating]  # (rows, d)
    y: NDArray[Any]  # (rows,), labels as stored
    targets: NDArray[np.float64]  # (rows, T), those of `TargetFacts.encoded`
    groups: NDArray[np.uint64]  # (rows,), of training rows, equal for those that are held out together
    held_out: NDArray[np.bool_]  # (rows,)
    weights: NDArray[np.float64] | None  # (rows,), of training rows with the factors of the classes; None: 1 each

    @property
    def counts(self) -> NDArray[np.float64]:
        return np.ones(len(self.y)) if self.weights is None else self.weights

    def cut(self, rows: slice | NDArray[np.bool_]) -> "RowBlock":
        arrays: list[Any] = [None if values is None else values[rows] for values in self[2:]]
        return RowBlock(self.number, self.start, *arrays)


@dataclass(frozen=True)
class RowTask:
    """What a worker needs to stream any blocks of rows through the kernel. Small and picklable."""

    candidates: Stored
    features: FeatureAccess
    shape: FeatureShape
    kernel: type[Kernel]
    sigma2: float
    precision: str
    seed: int
    facts: TargetFacts

    def features_of(self, candidates: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return the features (m, d) of some candidates.

        A run that has the features of all candidates in one file reads them there: rows that are far apart would take
        most of a feature store.
        """
        arrays = self.candidates.read(mapped=True)
        if "X" in arrays and np.isin(candidates, arrays["index"]).all():
            return np.asarray(arrays["X"][positions_of(arrays["index"], candidates)])
        return open_features(self.features).X[candidates]

    def kernel_of(self, candidates: NDArray[np.int64]) -> Kernel:
        """Return the kernel of the columns of some candidates."""
        return self.kernel_at(self.features_of(candidates))

    def kernel_at(self, points: NDArray[np.floating]) -> Kernel:
        return self.kernel(points, self.sigma2, np.dtype(self.precision).type)

    def kernel_in(self, arrays: Arrays) -> Kernel:
        """Return the kernel of the "points" (m, d) among arrays, or else of the candidates "columns" (m,)."""
        return self.kernel_at(arrays["points"]) if "points" in arrays else self.kernel_of(arrays["columns"])


@dataclass(frozen=True)
class RowGrid:
    """Rows cut into blocks, by the data alone: `part` (train or test), how many of its rows, from `first` on.

    It also has what the memory of a pass depends on: `block_pass` streams the blocks, `memory_of` counts their bytes.
    """

    part: Part
    n_rows: int
    block_rows: int
    first: int = 0
    n_columns: int = 0  # columns that are computed of each block
    sums_bytes: int = 0  # bytes of the sums of a group of threads; 0: each block gives values of its own

    @property
    def threads_a_piece(self) -> int:
        """How many threads find work in one block."""
        return max(-(-self.n_columns // TILE_COLUMNS), 1) if self.sums_bytes else 1

    @property
    def n_blocks(self) -> int:
        return -(-self.n_rows // self.block_rows)

    def size(self, block: int) -> float:
        return min(self.block_rows, self.n_rows - block * self.block_rows)

    def rows(self, blocks: range) -> slice:
        stop = min(blocks.stop * self.block_rows, self.n_rows)
        return slice(self.first + blocks.start * self.block_rows, self.first + stop)


def row_grid(part: Part, n_rows: int, n_columns: int, sums_bytes: int = 0) -> RowGrid:
    """Return the blocks of a pass that computes `n_columns` and adds to sums of `sums_bytes`; see `RowGrid`.

    Blocks are many, so that workers can share them. Where the sums are large blocks are longer, since each costs a pass
    over the sums, and several threads can work on one. Their rows are a power of two, as those of the chunks of a
    store, so that few chunks are read twice. Nothing else matters: the bits depend on the blocks.
    """
    enough = n_rows * max(-(-sums_bytes // SHORT_BYTES), 1) // LEAST_PIECES
    rows = max(min(enough, MOST_ROWS, MOST_VALUES // max(n_columns, 1)), LEAST_ROWS)
    return RowGrid(part, n_rows, 1 << rows.bit_length() - 1, 0, n_columns, sums_bytes)


@dataclass(frozen=True)
class RunSize:
    """What the bytes of a pass depend on: settings that are filled in, the data, who computes."""

    config: TrainConfig
    shape: FeatureShape
    workers: Workers

    @property
    def n_columns(self) -> int:
        """Columns whose Gram is in memory at once."""
        return self.config.centers.working_set or 0

    @property
    def itemsize(self) -> int:
        """Bytes of a kernel value."""
        return np.dtype(value_dtype(self.config, self.shape)).itemsize


class Needs(NamedTuple):
    """What a stage needs: bytes of memory beside that of the processes, of all of them, and bytes of disk."""

    memory: int
    disk: int


def memory_of(blocks: RowGrid, run: RunSize) -> int:
    """Return the bytes of a pass over blocks: centers of each process; sums, blocks and features of each group."""
    d, workers, n_columns, in_double = run.shape.n_features, run.workers, blocks.n_columns, run.itemsize == 8
    block, read = min(blocks.block_rows, blocks.n_rows), min(read_rows(run.shape), blocks.n_rows)
    centers = n_columns * d * (12 if in_double else 4)  # as they are read, and as they are computed with
    features = 4 * d * max(block, read) * (2 if run.config.kernel.learns_scales else 1)
    group = blocks.sums_bytes + 8 * block * n_columns + features + (8 * d * block if in_double else 0)
    tile = block * run.itemsize * min(TILE_COLUMNS, n_columns)
    tile += 8 * min(TILE_COLUMNS, n_columns) ** 2 if blocks.sums_bytes else 0
    n_groups = workers.groups(blocks.sums_bytes, blocks.n_blocks, blocks.threads_a_piece)
    return workers.processes * centers + n_groups * group + workers.threads * tile


def block_pass(
    rows: RowTask,
    blocks: RowGrid,
    opened: Callable[[], AddPiece[S]],
    empty: Callable[[], S],
    key: tuple[object, ...],
    *,
    features: FeaturesOf = "all",
) -> RowPass[S]:
    """Return a pass over blocks of rows, each a piece.

    opened, empty : as of `RowPass`
    key : what determines the sums beside the blocks
    features : of which rows blocks have them
    """
    return RowPass(
        read=partial(stream_blocks, rows, blocks, features=features),
        open=opened,
        empty=empty,
        size=blocks.size,
        n_pieces=blocks.n_blocks,
        run_length=max(read_rows(rows.shape) // blocks.block_rows, 1),  # some chunks of the store
        grid=(blocks, *key),
        sums_bytes=blocks.sums_bytes,
        threads_a_piece=blocks.threads_a_piece,
    )


def stream_blocks(
    task: RowTask, grid: RowGrid, blocks: range, *, features: FeaturesOf = "all"
) -> Iterator[tuple[int, RowBlock]]:
    """Yield the number and the rows of each block, in order; all are read at once.

    features : "all"; "held-out": those of other rows are zeros; "none": (rows, 0)
    Raises as `open_features` says of reading, StoppedError on request, between two blocks.
    """
    store, rows = open_features(task.features, grid.part), grid.rows(blocks)
    X = store.X[rows] if features == "all" else None
    y, weights = store.y[rows], some_of(store.weights, rows)
    held_out, groups = np.zeros(len(y), bool), np.zeros(len(y), np.uint64)
    if grid.part == "train":
        weights, (_, groups) = task.facts.weights(y, weights), store.keys_of(rows.start, rows.stop)
        held_out = draw_held_out(task.seed, task.facts.held_out_limit, groups)
    if X is None:
        X = np.zeros((len(y), task.shape.n_features if features == "held-out" else 0), store.X.dtype)
        if features == "held-out":
            X[held_out] = store.X[rows.start + np.flatnonzero(held_out)]
    targets = task.facts.encoded(y, task.shape)
    whole = RowBlock(0, rows.start, X, y, targets, groups, held_out, weights)
    for number in blocks:
        stopping.check()
        block = grid.rows(range(number, number + 1))
        cut = whole.cut(slice(block.start - rows.start, block.stop - rows.start))
        yield number, cut._replace(number=number, start=block.start)


def read_rows(shape: FeatureShape) -> int:
    """Return how many rows are read at once, where a block has no more: some chunks."""
    return min(4 * shape.chunk_rows, READ_BYTES // (4 * shape.n_features))


def positions_of(candidates: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where some of the candidates stand among all, (rows,) i8."""
    order = np.argsort(candidates)
    return order[np.searchsorted(candidates, rows, sorter=order)]
