"""Stage 3: sufficient statistics of the kernel columns, one item for each span of rows.

An item streams its rows block by block through the column generator and commits its partial sums; the parts are
then added in the order of the spans, so that every executor gives the same bits.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.columns import ColumnGenerator
from pipeline.errors import InvalidDataError
from pipeline.feature_store import FeatureShape, encoded_targets, open_store
from pipeline.stages.run import Run
from pipeline.statistics import GramStatistics, StatisticsAccumulator, add_block, hold_out_rows
from storage.blocks import Block, spans
from storage.commit import make_folder, read_arrays, write_arrays
from storage.errors import CorruptDataError, MissingDataError
from storage.layout import FeatureLayout, RunLayout
from storage.manifest import MANIFEST_NAME
from storage.markers import read_markers, write_marker

STAGE = "statistics"
PARTS = ("fit", "hold_out")


@dataclass(frozen=True)
class StatisticsTask:
    """What a worker needs to accumulate any span."""

    layout: RunLayout
    feature_layout: FeatureLayout
    shape: FeatureShape
    sigma2: float
    block_rows: int
    hold_out: float
    seed: int


def run(run: Run) -> None:
    """Accumulate the statistics of all training rows and commit them as fit, hold_out and all."""
    config = run.config
    with run.stage(STAGE) as cost:
        if (run.layout.statistics_file("all") / MANIFEST_NAME).exists():
            return
        assert config.statistics.block_rows is not None  # the plan has filled these in
        assert config.kernel.sigma2 is not None
        task = StatisticsTask(
            run.layout,
            run.feature_layout,
            run.shape,
            config.kernel.sigma2,
            config.statistics.block_rows,
            config.statistics.hold_out,
            config.seed,
        )
        grid = spans(run.shape.n_train, read_rows(task), span_count(run.shape, n_centers(run)))
        make_folder(run.layout.statistics_parts)
        done = read_markers(run.layout.markers(STAGE))
        waiting = [span for span in grid if item_name(span) not in done or not _is_whole(run.layout, span)]
        cost.items += len(grid) - len(waiting)
        run.run_items(STAGE, partial(accumulate_span, task), waiting)
        _reduce(run, grid)


def n_centers(run: Run) -> int:
    """Return the number of candidates of a run."""
    count = run.config.centers.count
    return run.shape.n_train if count == "all" else int(count)


def kernel_entries(layout: RunLayout) -> int:
    """Return how many kernel entries the committed statistics took."""
    return sum(int(done["kernel_entries"]) for done in read_markers(layout.markers(STAGE)).values())


def span_count(shape: FeatureShape, n_centers: int) -> int:
    """Return into how many spans the rows are cut: about half a second of work each, at most 64.

    It depends on the data and the centers alone, never on the workers, since the order of summation does too.
    """
    operations = shape.n_train * n_centers * (2.0 * shape.n_features + n_centers)
    return int(np.clip(operations // 4e10, 1, 64))


def read_rows(task: StatisticsTask) -> int:
    """Return how many rows are read from the store at once: whole chunks, at least one block."""
    return max(task.block_rows, task.shape.chunk_rows)


def item_name(span: Block) -> str:
    """Return the name of the marker and of the partial sums of a span."""
    return f"span-{span.index:04d}"


def accumulate_span(task: StatisticsTask, span: Block) -> int:
    """Accumulate one span and commit its partial sums; return the number of kernel entries computed.

    Raises InvalidDataError where a feature is not finite.
    """
    generator = _generator(task)
    parts = {name: StatisticsAccumulator(generator.n_centers, task.shape.n_outputs) for name in PARTS}
    for start, X, targets in _blocks(task, span):
        held_out = hold_out_rows(task.seed, task.hold_out, start, start + len(X))
        add_block(generator, X, targets, held_out, parts["fit"], parts["hold_out"])
    arrays: dict[str, NDArray[np.float64]] = {}
    for name, part in parts.items():
        arrays |= {f"{name}.{key}": value for key, value in to_arrays(part.statistics()).items()}
    # No fsync: it took a tenth of the stage, and a part that is lost with the power is made again.
    write_arrays(task.layout.statistics_part(item_name(span) + ".npz"), arrays, durable=False)
    entries = span.n_rows * generator.n_centers
    write_marker(task.layout.markers(STAGE), item_name(span), {"rows": span.n_rows, "kernel_entries": entries})
    return entries


def to_arrays(statistics: GramStatistics) -> dict[str, NDArray[np.float64]]:
    """Return statistics as named arrays, ready to be stored."""
    arrays = {name: value for name, value in vars(statistics).items() if name != "weight_sum"}
    return arrays | {"weight_sum": np.array(statistics.weight_sum)}


def from_arrays(arrays: dict[str, NDArray[np.float64]]) -> GramStatistics:
    """Return the statistics that `to_arrays` turned into arrays."""
    return GramStatistics(**(arrays | {"weight_sum": float(arrays["weight_sum"])}))  # type: ignore[arg-type]


def load(layout: RunLayout, part: str) -> GramStatistics:
    """Return the committed statistics of a part (fit, hold_out or all), the Gram mapped read-only."""
    return from_arrays(read_arrays(layout.statistics_file(part), mapped=True))


def _is_whole(layout: RunLayout, span: Block) -> bool:
    """Tell whether the partial sums that a resumed run finds are all there (every array has a checksum)."""
    try:
        read_arrays(layout.statistics_part(item_name(span) + ".npz"))
    except (CorruptDataError, MissingDataError):
        return False
    return True


def _generator(task: StatisticsTask) -> ColumnGenerator:
    centers = read_arrays(task.layout.centers, mapped=True)["X"]
    return ColumnGenerator(centers, task.sigma2)


def _blocks(task: StatisticsTask, span: Block) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.float64]]]:
    """Yield (first row, features, targets) of the blocks of a span; whole chunks are read at a time."""
    store = open_store(task.feature_layout)
    for start in range(span.start, span.stop, read_rows(task)):
        stop = min(start + read_rows(task), span.stop)
        X = store.read("train", start, stop)
        if not np.isfinite(X).all():
            bad = start + int(np.flatnonzero(~np.isfinite(X).all(axis=1))[0])
            raise InvalidDataError(f"train features: row {bad} is not finite; build the feature store again")
        targets = encoded_targets(store, task.shape, "train", start, stop)
        for first in range(0, stop - start, task.block_rows):
            rows = slice(first, first + task.block_rows)
            yield start + first, X[rows], targets[rows]


def _reduce(run: Run, grid: tuple[Block, ...]) -> None:
    """Add the partial sums in the order of the spans, commit fit, hold_out and all, drop the parts."""
    sums: dict[str, GramStatistics] = {}
    for span in grid:
        arrays = read_arrays(run.layout.statistics_part(item_name(span) + ".npz"))
        for name in PARTS:
            prefix = f"{name}."
            part = from_arrays({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})
            sums[name] = sums[name] + part if name in sums else part
    for name, statistics in [*sums.items(), ("all", sums["fit"] + sums["hold_out"])]:
        write_arrays(run.layout.statistics_file(name), to_arrays(statistics))
    shutil.rmtree(run.layout.statistics_parts)
