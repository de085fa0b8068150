"""The training rows as the stages stream them: features, targets and who is held out, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline import stopping
from pipeline.columns import ColumnGenerator
from pipeline.errors import InvalidDataError
from pipeline.feature_store import FeatureShape, encoded_targets
from pipeline.kernels import Kernel
from pipeline.live_features import FeatureAccess, open_features
from pipeline.stages import candidates as candidate_names
from pipeline.stages.chosen_widths import kernel_of
from pipeline.stages.run import Run
from pipeline.statistics import hold_out_rows
from storage.blocks import Block, spans
from storage.commit import read_arrays
from storage.layout import RunLayout

PARTS_BYTES = 2 * 2**30  # of all partial sums
FEWEST_SPANS = 4  # so that two workers end about together


class RowBlock(NamedTuple):
    """Some training rows: features (rows, d) f4, targets (rows, T) f8, held out or not (rows,) bool."""

    X: NDArray[np.float32]
    targets: NDArray[np.float64]
    held_out: NDArray[np.bool_]


@dataclass(frozen=True)
class RowTask:
    """What a worker needs to stream any span of training rows through the kernel. Small and picklable."""

    layout: RunLayout
    features: FeatureAccess
    shape: FeatureShape
    kernel: Kernel
    sigma2: tuple[float, ...]
    precision: str
    block_rows: int
    hold_out: float
    seed: int

    def generator(self, candidates: NDArray[np.int64]) -> ColumnGenerator:
        """Return the generator of the columns of some candidates, by their names; their features are read."""
        rows, widths = candidate_names.parts(candidates, self.shape.n_train)
        distinct, place = candidate_names.distinct(rows)
        return self._generator(open_features(self.features).take(distinct), place, widths)

    def generator_at_once(self, columns: NDArray[np.int64] | None = None) -> ColumnGenerator:
        """Return the generator of all candidates of a run that has their features in one file, or of some of them."""
        X = read_arrays(self.layout.centers, mapped=True)["X"]
        if columns is None and len(self.sigma2) == 1:
            return self._generator(X, None, np.zeros(len(X), np.int64))
        columns = np.arange(len(X) * len(self.sigma2)) if columns is None else columns
        rows, widths = candidate_names.parts(columns, len(X))
        distinct, place = candidate_names.distinct(rows)
        return self._generator(X[distinct], place, widths)

    def _generator(
        self, points: NDArray[np.float32], place: NDArray[np.int64] | None, widths: NDArray[np.int64]
    ) -> ColumnGenerator:
        sigma2 = np.array(self.sigma2)[widths]
        return ColumnGenerator(points, sigma2, np.dtype(self.precision).type, kernel=self.kernel, place=place)

    @property
    def read_rows(self) -> int:
        """How many rows are read from the store at once: whole chunks, at least one block."""
        return max(self.block_rows, self.shape.chunk_rows)


def task_of(run: Run) -> RowTask:
    """Return the task of a run, whose plan has filled in the block size, and whose widths are committed."""
    config = run.config
    assert config.statistics.block_rows is not None
    return RowTask(
        layout=run.layout,
        features=run.features,
        shape=run.shape,
        kernel=kernel_of(run),
        sigma2=tuple(candidate_names.widths(run.layout).tolist()),
        precision=config.kernel.precision,
        block_rows=config.statistics.block_rows,
        hold_out=config.statistics.hold_out,
        seed=config.seed,
    )


def grid(task: RowTask, n_centers: int) -> tuple[Block, ...]:
    """Return the spans into which the training rows are cut."""
    return spans(task.shape.n_train, task.read_rows, span_count(task.shape, n_centers))


def span_count(shape: FeatureShape, n_centers: int) -> int:
    """Return into how many spans the rows are cut: about half a second of work each, at most 64.

    Fewer where the partial sums of the spans, two Grams each, would take the disk more time than the sums take. It
    depends on the data and the centers alone, never on the workers, since the order of summation does too.
    """
    operations = shape.n_train * n_centers * (2.0 * shape.n_features + n_centers)
    most = max(PARTS_BYTES // (16 * n_centers**2), FEWEST_SPANS)
    return int(np.clip(operations // 4e10, 1, min(most, 64)))


def blocks(task: RowTask, span: Block) -> Iterator[RowBlock]:
    """Yield the blocks of a span in order; whole chunks are read at a time.

    Raises InvalidDataError naming the row where a feature is not finite, CorruptDataError where the store is damaged,
    StoppedError on request.
    """
    store = open_features(task.features)
    for start in range(span.start, span.stop, task.read_rows):
        stopping.check()
        stop = min(start + task.read_rows, span.stop)
        X = store.read("train", start, stop)
        if not np.isfinite(X).all():
            bad = start + int(np.flatnonzero(~np.isfinite(X).all(axis=1))[0])
            raise InvalidDataError(f"train features: row {bad} is not finite; build the feature store again")
        targets = encoded_targets(store.targets("train", start, stop), task.shape)
        held_out = hold_out_rows(task.seed, task.hold_out, start, stop)
        for first in range(0, stop - start, task.block_rows):
            rows = slice(first, first + task.block_rows)
            yield RowBlock(X[rows], targets[rows], held_out[rows])
