"""The training rows: what is found of all targets, weights and keys before they are streamed; blocks, and passes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_held_out, draw_sample, held_out_limit
from features.source import Part
from features.targets import balanced_factors, outputs
from pipeline.config.parsers import NO_PENALTY, learns_scales
from pipeline.config.train_config import TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import FeatureAccess, open_features
from pipeline.errors import InvalidDataError
from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.gram_statistics import LEAST_TARGET, RowBounds, largest_terms, too_large
from pipeline.kernels.kernel_functions import COLUMNS_TILE, Kernel
from pipeline.kernels.scaled_rows import first_non_finite_row
from pipeline.runtime import stopping
from pipeline.runtime.row_pass import AddPiece, RowPass, S, Workers
from pipeline.runtime.stored_arrays import Arrays, Stored
from pipeline.solvers.candidate_budget import LEAST_FOLDED_ROWS
from pipeline.solvers.held_out_losses import Limits, limits_of
from pipeline.stages.filled_settings import value_dtype

FOLDED_ROWS = 1000  # different ones; fewer are all held out, in folds: a part of them tells too little
MOST_ROWS = 2048  # of a block: longer ones are no faster
MOST_VALUES = 2**24  # of a block of columns
LEAST_PIECES = 128  # which 64 workers share out evenly; twice as many add every sum twice as often
ENOUGH_PIECES, QUICK_ROWS = 64, 192  # products of fewer rows are up to twice as slow: few pieces are enough of them
SHORT_BYTES = 2**25  # of sums up to which blocks are short; they grow with larger ones
READ_BYTES = 2**24  # of the features of blocks that are read together
FeaturesOf = Literal["all", "held-out", "none"]
READ_TARGETS = 65_536  # that are read at once


class RowData:
    """The rows of a fit: where their features are, what they hold, and what is asked of them."""

    features: FeatureAccess
    shape: FeatureShape
    config: TrainConfig


@dataclass(frozen=True)
class TargetFacts:
    """What training makes of targets and row weights."""

    mean: float = 0.0  # is taken off the targets
    class_factors: tuple[float, ...] = ()  # of the weights of the rows of each class; () for none
    held_out_limit: float = 0.0  # rows whose coins are below it are held out
    largest: tuple[float, ...] = ()  # the `largest_terms` of the rows
    limits: Limits = ()  # of predictions of the encoded targets; () for none

    def encoded(self, y: NDArray[Any], shape: FeatureShape) -> NDArray[np.float64]:
        """Return what the solves fit for targets y (rows,) as stored: less the mean, (rows, T) f8."""
        return outputs(y, shape.task, len(shape.classes)) - self.mean

    def weights(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Return how much rows count that have targets y (rows,) as stored, and these weights; None: 1 each."""
        if not self.class_factors:
            return weights
        factors = np.array(self.class_factors)[y]
        return factors if weights is None else weights * factors

    def bounds(self) -> RowBounds:
        return RowBounds.of(np.array(self.largest))


def find_target_facts(run: RowData) -> TargetFacts:
    """Return the facts of a run: passes over its targets and weights, where there is something to find."""
    least, most = _range_of_targets(run)
    weighs_classes, n_classes = run.config.data.class_weight is not None, len(run.shape.classes)
    counts = [np.bincount(y, weights, n_classes) for y, weights in target_blocks(run)] if weighs_classes else []
    mean, clips = _mean(run), run.shape.task == "regression" and run.config.clips
    facts = TargetFacts(
        mean=mean,
        class_factors=tuple(balanced_factors(sum(counts, np.zeros(n_classes))).tolist()) if counts else (),
        held_out_limit=_held_out_limit(run),
        limits=limits_of(least - mean, most - mean) if clips else (),
    )
    return replace(facts, largest=_largest_of(run, facts))


def _largest_of(run: RowData, facts: TargetFacts) -> tuple[float, ...]:
    """Return the `largest_terms` of the rows: of classes, whose outputs are -1 and 1, those of the heaviest row."""
    if run.shape.task == "regression":
        blocks = ((facts.encoded(y, run.shape), facts.weights(y, weights)) for y, weights in target_blocks(run))
        terms = [largest_terms(targets, weights) for targets, weights in blocks]
    else:
        heaviest, outputs = [1.0], np.ones((1, run.shape.n_outputs))
        if facts.class_factors or "train" in run.shape.weighted:
            of_rows = (facts.weights(y, weights) for y, weights in target_blocks(run))
            heaviest = [float(weights.max()) for weights in of_rows if weights is not None]
        terms = [largest_terms(outputs, max(heaviest))]
    return tuple(np.max(terms, axis=0).tolist())


def facts_of(arrays: Arrays) -> TargetFacts:
    """Return the facts among arrays that are committed with candidates."""
    factors, largest, limits = (tuple(arrays[name].tolist()) for name in ("class_factors", "largest", "limits"))
    return TargetFacts(float(arrays["mean"]), factors, float(arrays["held_out_limit"]), largest, limits)


def count_held_out(run: RowData, facts: TargetFacts) -> int:
    """Return how many different rows are held out: groups where they are given, images where there are copies."""
    seed, limit, held_out = run.config.seed, facts.held_out_limit, np.empty(0, np.uint64)
    for keys, groups in key_blocks(run) if limit else ():
        units = groups if run.config.data.is_grouped else keys
        held_out = np.union1d(held_out, units[draw_held_out(seed, limit, groups)])
    return len(held_out)


def has_few_rows(run: RowData) -> bool:
    """Return whether fewer than FOLDED_ROWS rows differ, and no fewer than folds need."""
    different = np.empty(0, np.uint64)
    for keys, _ in key_blocks(run):
        different = np.union1d(different, keys)
        if len(different) >= FOLDED_ROWS:
            return False
    return len(different) >= LEAST_FOLDED_ROWS


def is_by_folds(run: RowData) -> bool:
    """Return whether folds of all rows choose the ridge of least squares on all candidates, and what is not given."""
    return run.config.solver.is_least_squares and has_few_rows(run)


def key_blocks(run: RowData) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield the keys of the training rows and of their groups, in blocks as those of `target_blocks`."""
    store = open_features(run.features)
    for start in range(0, run.shape.n_train, READ_TARGETS):
        yield store.keys(start, min(start + READ_TARGETS, run.shape.n_train))


def all_keys(run: RowData) -> NDArray[np.uint64]:
    """Return the keys (n,) of all training rows: equal for equal ones."""
    keys, start = np.empty(run.shape.n_train, np.uint64), 0
    for of_block, _ in key_blocks(run):  # in place: the keys of many rows are held once
        keys[start : start + len(of_block)] = of_block
        start += len(of_block)
    return keys


def row_weights(run: RowData, facts: TargetFacts) -> NDArray[np.float64] | None:
    """Return the weights (n,) f8 of all training rows, their classes' factors in them; None where each counts 1."""
    if not facts.class_factors and "train" not in run.shape.weighted:
        return None
    blocks = (facts.weights(y, weights) for y, weights in target_blocks(run))
    return np.concatenate([weights for weights in blocks if weights is not None])


def target_blocks(run: RowData) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
    """Yield the targets of the training rows as stored and their own weights; no feature is read."""
    store = open_features(run.features)
    for start in range(0, run.shape.n_train, READ_TARGETS):
        y = store.targets("train", start, min(start + READ_TARGETS, run.shape.n_train))
        weights = store.weights("train", start, start + len(y))
        yield y, np.ones(len(y)) if weights is None else weights


def _held_out_limit(run: RowData) -> float:
    config, blocks = run.config, (groups for _, groups in key_blocks(run))
    limit, asked = held_out_limit(config.seed, config.statistics.hold_out, blocks), what_needs_held_out_rows(config)
    if asked is None:
        return limit
    who = "least squares" if asked == f"`solver.penalty={NO_PENALTY}`" else asked
    hold_out_none = f"`statistics.hold_out=0` without {asked}"
    if not limit:
        alike = "equal; give rows that differ" if config.data.groups is None else "of one group; give more groups"
        # scikit-learn looks for the word samples where it gives one row.
        fault = f"{who} needs held-out rows, but all {run.shape.n_train} samples are {alike}"
        raise InvalidDataError(fault, hold_out_none)
    if config.data.groups is not None and run.shape.task != "regression" and not _tells_labels_apart(run, limit):
        raise InvalidDataError(
            f"{who} chooses by held-out rows, but by groups {config.data.groups} the other rows lack their labels, or "
            "have one label alone; give groups of several labels",
            hold_out_none,
        )
    return limit


def _tells_labels_apart(run: RowData, limit: float) -> bool:
    fit = held_out = np.empty(0)
    for (y, _), (_, groups) in zip(target_blocks(run), key_blocks(run), strict=True):
        is_held_out = draw_held_out(run.config.seed, limit, groups)
        fit, held_out = np.union1d(fit, y[~is_held_out]), np.union1d(held_out, y[is_held_out])
    return len(np.unique(fit)) > 1 and bool(np.isin(held_out, fit).any())


def _mean(run: RowData) -> float:
    """Return the weighted mean of the training targets of a regression, summed exactly.

    0 without an intercept, where centred targets would be another problem.
    """
    if run.shape.task != "regression" or not run.config.solver.intercept:
        return 0.0
    total = math.fsum(weight for _, weights in target_blocks(run) for weight in weights.tolist())
    return math.fsum(value for y, weights in target_blocks(run) for value in (y / (total / weights)).tolist())


def _range_of_targets(run: RowData) -> tuple[float, float]:
    if run.shape.task != "regression":
        return 0.0, 0.0
    squares = weight = 0.0
    least, most = math.inf, -math.inf
    with np.errstate(over="ignore", under="ignore"):
        for y, weights in target_blocks(run):
            squares += float((weights * y) @ y)
            weight += float(weights.sum())
            least, most = min(least, float(y.min())), max(most, float(y.max()))
        squares *= weight
    if not math.isfinite(squares):
        raise too_large()
    if 0.0 < max(-least, most) < LEAST_TARGET:
        raise InvalidDataError(f"the targets are too small: none is above {LEAST_TARGET:g}; rescale them")
    return least, most


class RowBlock(NamedTuple):
    """Some rows: their number, that of the first, and what training adds to what is stored of them."""

    number: int
    start: int
    X: NDArray[np.floating]  # (rows, d)
    y: NDArray[Any]  # (rows,), labels as stored
    targets: NDArray[np.float64]  # (rows, T), those of `TargetFacts.encoded`
    keys: NDArray[np.uint64]  # (rows,), of training rows, equal for equal ones
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

    def kernel_of(self, candidates: NDArray[np.int64]) -> Kernel:
        """Return the kernel of the columns of some candidates; their features are read.

        A run that has the features of all candidates in one file reads them there: rows that are far apart would take
        most of a feature store.
        """
        X = points_of_candidates(self.candidates, candidates)
        return self.kernel_at(open_features(self.features).take(candidates) if X is None else X)

    def kernel_at(self, points: NDArray[np.floating]) -> Kernel:
        return self.kernel(points, self.sigma2, np.dtype(self.precision).type)


@dataclass(frozen=True)
class RowGrid:
    """Rows cut into blocks, by the data alone: `part` (train or test), how many of its rows, from `first` on."""

    part: Part
    n_rows: int
    block_rows: int
    first: int = 0

    @property
    def n_blocks(self) -> int:
        return -(-self.n_rows // self.block_rows)

    def size(self, block: int) -> float:
        return min(self.block_rows, self.n_rows - block * self.block_rows)

    def rows(self, blocks: range) -> slice:
        stop = min(blocks.stop * self.block_rows, self.n_rows)
        return slice(self.first + blocks.start * self.block_rows, self.first + stop)


def row_grid(part: Part, n_rows: int, n_columns: int, sums_bytes: int = 0, share: float = 1.0) -> RowGrid:
    """Return the blocks of a pass that computes so many columns and adds to sums of so many bytes.

    Blocks are many, so that many workers can share them, and no shorter than matrix products are quick with, unless
    they would be few. Where the sums are large they are longer, since each costs a pass over the sums, and several
    threads can work on one. Nothing else matters: the bits depend on the blocks.
    `share`: of the rows whose columns are computed; with fewer, blocks are longer.
    """
    enough = n_rows * max(-(-sums_bytes // SHORT_BYTES), 1) // LEAST_PIECES
    enough = max(enough, min(int(QUICK_ROWS / share), n_rows // ENOUGH_PIECES))
    rows = min(enough, int(MOST_ROWS / share), int(MOST_VALUES / share) // max(n_columns, 1))
    return RowGrid(part, n_rows, max(rows - rows % 32, 32))


@dataclass(frozen=True)
class _SampledRows:
    rows: Stored  # X, y, keys and groups, weights where there are any
    dtype: type

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.floating]:
        return self.rows.read(mapped=True)["X"][start:stop]

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        return self.rows.read(mapped=True)["y"][start:stop]

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        weights = self.rows.read(mapped=True).get("weights")
        return None if weights is None else weights[start:stop]

    def keys(self, start: int, stop: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        arrays = self.rows.read(mapped=True)
        return arrays["keys"][start:stop], arrays["groups"][start:stop]


def label_blocks(rows: "RowData | RowTask") -> Iterator[tuple[int, Arrays]]:
    """Yield the first of some training rows, and their y, keys, groups, and weights where they have any."""
    store, n = open_features(rows.features), rows.shape.n_train
    for start in range(0, n, READ_TARGETS):
        stopping.check()
        stop = min(start + READ_TARGETS, n)
        (keys, groups), weights = store.keys(start, stop), store.weights("train", start, stop)
        labels = {"y": store.targets("train", start, stop), "keys": keys, "groups": groups}
        yield start, labels if weights is None else labels | {"weights": weights}


def gather_sample(task: RowTask, share: float) -> Arrays:
    """Return training rows that are drawn by the seed, about a `share` of them, for `task_on_sample`.

    A smaller share draws some of the rows of a larger one; rows that are equal go together.
    """
    store, found = open_features(task.features), list[Arrays]()
    for start, labels in label_blocks(task):
        drawn = np.flatnonzero(draw_sample(task.seed, share, labels["keys"]))
        of_rows = {name: values[drawn] for name, values in labels.items()}
        found.append(of_rows | {"X": store.take(start + drawn)})
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def count_sample(task: RowTask, share: float) -> tuple[int, int, int]:
    """Return the number of sampled rows, and how many of them count (have a weight) to fit and as held-out ones."""
    counts = np.zeros(3, np.int64)
    for _, labels in label_blocks(task):
        drawn = draw_sample(task.seed, share, labels["keys"])
        held_out = draw_held_out(task.seed, task.facts.held_out_limit, labels["groups"])
        counted = drawn & (labels["weights"] > 0) if "weights" in labels else drawn
        counts += [drawn.sum(), (counted & ~held_out).sum(), (counted & held_out).sum()]
    n_rows, n_fit, n_held_out = counts.tolist()
    return n_rows, n_fit, n_held_out


def task_on_sample(task: RowTask, sample: Stored) -> RowTask:
    """Return the task on the rows that `gather_sample` returned, in the place of all training rows."""
    features: Any = _SampledRows(sample, open_features(task.features).dtype)  # no pass asks for more of them
    shape = replace(task.shape, n_train=len(sample.read(mapped=True)["y"]))
    return replace(task, features=features, shape=shape)


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
    def value_bytes(self) -> int:
        return np.dtype(value_dtype(self.config, self.shape)).itemsize

    def pieces(self, blocks: RowGrid, n_columns: int) -> int:
        """Return the pieces of a pass of statistics: blocks, or tiles of them where threads share out each block."""
        tiles = -(-n_columns // GRAM_TILE) if self.workers.in_one_process else 1
        return blocks.n_blocks * tiles * (tiles + 1) // 2


class PassBytes(NamedTuple):
    """What a pass needs: memory beside that of the processes, of all of them, and disk."""

    pieces: int  # of its work that do not wait for each other: as many workers find something to do
    memory: int
    disk: int


def block_pass_bytes(
    run: RunSize,
    n_columns: int,
    sums_bytes: int = 0,
    *,
    blocks: RowGrid | None = None,
    center_bytes: int | None = None,
    n_rows: int | None = None,
    share: float | None = None,
) -> int:
    """Return the memory of a pass over the rows: centers of each process; sums, blocks and features of each group.

    sums_bytes : of the sums of a group of threads; 0: each block gives values of its own
    blocks, center_bytes : None: those of `row_grid`; of the centers as they are read, and as they are computed with
    n_rows, share : None: all training rows; of the fit rows that are sampled as they are read, as of `row_grid`
    """
    d, workers = run.shape.n_features, run.workers
    if center_bytes is None:
        center_bytes = n_columns * d * (12 if run.value_bytes == 8 else 4)
    rows = run.shape.n_train if n_rows is None else n_rows
    grid = blocks or row_grid("train", rows, n_columns, sums_bytes, share or 1.0)
    block, read = min(grid.block_rows, rows), read_rows(run.shape)
    used = block if share is None else min(int(1.2 * share * block) + 64, block)  # drawn: a few more may be
    n_read = min(max(block, read), rows) if share is None else min(read, rows) + 2 * used
    features = 4 * d * n_read * (2 if learns_scales(run.config.kernel.scale) else 1)
    in_double = 8 * d * used if run.value_bytes == 8 else 0
    group = sums_bytes + 8 * used * n_columns + features + in_double
    tile = used * run.value_bytes * min(COLUMNS_TILE, n_columns)
    tile += 8 * min(GRAM_TILE, n_columns) ** 2 if sums_bytes else 0
    n_groups = workers.groups(sums_bytes, grid.n_blocks, -(-n_columns // COLUMNS_TILE) if sums_bytes else 1)
    return workers.processes * center_bytes + n_groups * group + workers.threads * tile


def block_pass(
    rows: RowTask,
    blocks: RowGrid,
    opened: Callable[[], AddPiece[S]],
    empty: Callable[[], S],
    key: tuple[object, ...],
    *,
    sums_bytes: int = 0,
    threads_a_piece: int = 1,
    share: float | None = None,
    counts: bool = False,
    features: FeaturesOf = "all",
) -> RowPass[S]:
    """Return a pass over blocks of rows, each a piece.

    opened, empty, sums_bytes, threads_a_piece, counts : as of `RowPass`
    key : what determines the sums beside the blocks
    share : of the fit rows that are sampled; None: all rows
    features : of which rows blocks have them
    """
    read = partial(stream_blocks, rows, blocks, features=features)
    return RowPass(
        read=read if share is None else partial(stream_sample, rows, blocks, share),
        open=opened,
        empty=empty,
        size=blocks.size,
        n_pieces=blocks.n_blocks,
        run_length=run_length(rows, blocks),
        grid=(blocks, *key),
        sums_bytes=sums_bytes,
        threads_a_piece=threads_a_piece,
        counts=counts,
    )


def stream_blocks(
    task: RowTask, grid: RowGrid, blocks: range, *, features: FeaturesOf = "all"
) -> Iterator[tuple[int, RowBlock]]:
    """Yield the number and the rows of each block, in order; all are read at once.

    features : "all"; "held-out": those of other rows are zeros; "none": (rows, 0)
    Raises InvalidDataError naming the row where a feature is not finite, CorruptDataError where the store is damaged,
    StoppedError on request, between two blocks.
    """
    store, rows = open_features(task.features), grid.rows(blocks)
    y = store.targets(grid.part, rows.start, rows.stop)
    targets = task.facts.encoded(y, task.shape)
    weights = store.weights(grid.part, rows.start, rows.stop)
    keys, held_out = np.zeros(len(y), np.uint64), np.zeros(len(y), bool)
    if grid.part == "train":
        weights, (keys, groups) = task.facts.weights(y, weights), store.keys(rows.start, rows.stop)
        held_out = draw_held_out(task.seed, task.facts.held_out_limit, groups)
    if features == "all":
        X = store.read(grid.part, rows.start, rows.stop)
    else:
        X = np.zeros((len(y), task.shape.n_features if features == "held-out" else 0), store.dtype)
        if features == "held-out":
            X[held_out] = store.take(rows.start + np.flatnonzero(held_out))
    bad = first_non_finite_row(X)
    if bad is not None:
        raise InvalidDataError(
            f"{grid.part} features: row {rows.start + bad} is not finite; build the feature store again"
        )
    whole = RowBlock(0, rows.start, X, y, targets, keys, held_out, weights)
    for number in blocks:
        stopping.check()
        block = grid.rows(range(number, number + 1))
        cut = whole.cut(slice(block.start - rows.start, block.stop - rows.start))
        yield number, cut._replace(number=number, start=block.start)


def stream_sample(task: RowTask, grid: RowGrid, share: float, blocks: range) -> Iterator[tuple[int, RowBlock]]:
    """Yield the number and the sampled fit rows of each block, in order, as `stream_blocks` has them.

    Blocks of few sampled rows are long: no more of one is read at once than of short ones.
    """
    step = max(read_rows(task.shape), 1)
    if grid.block_rows <= step:
        for number, block in stream_blocks(task, grid, blocks):
            yield number, _sampled(task, block, share)
        return
    for number in blocks:
        rows = grid.rows(range(number, number + 1))
        parts = RowGrid(grid.part, rows.stop - rows.start, step, rows.start)
        each = (range(part, part + 1) for part in range(parts.n_blocks))
        found = [_sampled(task, block, share) for part in each for _, block in stream_blocks(task, parts, part)]
        pieces: list[Any] = list(zip(*(block[2:] for block in found), strict=True))
        arrays: list[Any] = [None if values[0] is None else np.concatenate(values) for values in pieces]
        yield number, RowBlock(number, found[0].start, *arrays)


def _sampled(task: RowTask, block: RowBlock, share: float) -> RowBlock:
    return block.cut(draw_sample(task.seed, share, block.keys) & ~block.held_out)


def run_length(task: RowTask, grid: RowGrid) -> int:
    """Return how many blocks are best read together: some chunks of the store."""
    return max(read_rows(task.shape) // grid.block_rows, 1)


def read_rows(shape: FeatureShape) -> int:
    """Return how many rows are read at once, where a block has no more: some chunks, whose ends are read twice."""
    return min(4 * shape.chunk_rows, READ_BYTES // (4 * shape.n_features))


def points_of_candidates(centers: Stored, rows: NDArray[np.int64]) -> NDArray[np.floating] | None:
    """Return the features (k, d) of candidates at some training rows, where those of all are committed together."""
    arrays = centers.read(mapped=True)
    order = np.argsort(arrays["index"])
    place = order[np.minimum(np.searchsorted(arrays["index"], rows, sorter=order), len(order) - 1)]
    if "X" not in arrays or not np.array_equal(arrays["index"][place], rows):
        return None
    return np.asarray(arrays["X"][place])


def positions_of(candidates: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where some of the candidates stand among all, (rows,) i8."""
    order = np.argsort(candidates)
    return order[np.searchsorted(candidates, rows, sorter=order)]
