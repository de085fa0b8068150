"""The temperature of a run's probabilities: found on training rows, in one pass over them.

Decision values of rows that were fitted are too sure, so weights are tried on rows they were not fitted to: those of
the fit rows on held-out rows; where these are few, the fit rows join with their leave-one-out values.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from pipeline.config.parsers import learns_scales
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape, describe, fill_in_features, names_of_data, source_spec
from pipeline.datasets.feature_rows import FeatureAccess, ScaledFeatures, live, store_of
from pipeline.datasets.open_data import open_data
from pipeline.errors import ConfigMismatchError
from pipeline.kernels.exact_sums import Each, serially
from pipeline.models.scores import LossSlopes, best_temperature, loss_slopes
from pipeline.runtime.stored_arrays import Arrays, Stored, StoredFile
from pipeline.solvers.ridge import FEW_ROWS, LeftOut
from pipeline.solvers.weights import CalibrationWeights, RidgeFit, Weights
from pipeline.stages.block_pass import OfBlock, Values, value_pass
from pipeline.stages.kernel_settings import kernels_of
from pipeline.stages.target_facts import RowData, count_held_out, facts_of
from pipeline.stages.training_rows import (
    FeaturesOf,
    RowBlock,
    RowGrid,
    RowTask,
    row_grid,
    row_task,
    row_task_of,
    run_length,
    stream_blocks,
)
from pipeline.stages.workspace import SOLVE, Workspace, kernel_of
from storage.folder_layouts import RunLayout
from storage.records import read_record

NAME = "temperature"
WORDS = "temperature of the probabilities"


@dataclass(frozen=True)
class FinishedRun(RowData):
    """A run that is done, as far as its rows are streamed again."""

    features: FeatureAccess
    shape: FeatureShape
    config: TrainConfig


def find_temperature(work: Workspace, tried: CalibrationWeights) -> dict[str, Any] | None:
    """Return temperature, number of rows, whether the weights were fitted to them; None for a regression."""
    if work.shape.task == "regression" or not work.config.statistics.hold_out:
        return None
    if tried.fit is not None and _has_few_rows(work):
        with work.status(SOLVE, WORDS):
            sums = _slopes_of_few(row_task(work), tried, tried.fit)
    else:
        sums = _slopes_of_held_out(work, tried)
    temperature = best_temperature(sums)
    return None if temperature is None else {NAME: temperature, "n_rows": sums.rows, "seen": tried.seen}


def _slopes_of_held_out(work: Workspace, tried: CalibrationWeights) -> LossSlopes:
    """Return the slopes of the log loss of the held-out rows: a pass over the rows."""
    arrays: Arrays = vars(tried.weights) | ({} if tried.points is None else {"points": tried.points})
    given = work.commit(f"passes/{NAME}/weights.npz", arrays)
    grid = row_grid("train", work.shape.n_train, len(tried.weights.columns))
    task = value_pass(row_task(work), grid, partial(_opened, given), features="held-out")
    values = work.add_up(SOLVE, task, NAME, WORDS)
    return replace(reduce(add, map(_slopes, values.by_block())), rows=count_held_out(work, work.facts))


def _has_few_rows(run: RowData) -> bool:
    """Return whether the fit rows join the held-out ones: not of groups, whose rows tell of each other."""
    return run.shape.n_train < FEW_ROWS and run.config.data.groups is None


def _slopes_of_few(task: RowTask, tried: CalibrationWeights, fit: RidgeFit) -> LossSlopes:
    """Return the slopes of the log loss of all rows, each without itself, of few: here and now."""
    left_out, generator = LeftOut(fit), task.generator(tried.weights.columns)
    for block in _blocks(task, row_grid("train", task.shape.n_train, len(tried.weights.columns))):
        counts = np.ones(len(block.X)) if block.weights is None else block.weights
        counted = np.flatnonzero(counts > 0)
        columns = generator.block(block.X[counted], out_dtype=np.float64)
        left_out.add(block.keys[counted], columns, block.y[counted], counts[counted], block.held_out[counted])
    return loss_slopes(*left_out.values())


def _blocks(task: RowTask, grid: RowGrid, features: FeaturesOf = "all") -> Iterator[RowBlock]:
    """Yield all blocks of rows, in order."""
    step = run_length(task, grid)
    runs = (range(first, min(first + step, grid.n_blocks)) for first in range(0, grid.n_blocks, step))
    return (block for run in runs for _, block in stream_blocks(task, grid, run, features=features))


def temperature_of_finished_run(layout: RunLayout, config: TrainConfig, tried: CalibrationWeights) -> float | None:
    """Return the temperature that the rows of a finished run give other weights: one pass in this process.

    Raises ConfigMismatchError where its data have changed, and what opening and reading features raises.
    """
    spec = source_spec(config)
    source = open_data(spec)
    request = fill_in_features(config, spec, source)[1]
    shape = describe(request, source)
    if shape.digest != read_record(layout.environment)["features"]:
        raise ConfigMismatchError(
            f"{names_of_data(config)}: no longer the data that the run was trained on; restore them"
        )
    store = store_of(config, shape)
    unscaled = store if store.manifest.exists() else live(request, shape)
    scaled = learns_scales(config.kernel.scale)
    features = ScaledFeatures(unscaled, StoredFile(layout.feature_scales)) if scaled else unscaled
    run, centers = FinishedRun(features, shape, config), StoredFile(layout.centers)
    arrays = centers.read(mapped=True)
    kernel = kernel_of(kernels_of(config.kernel), arrays)
    task = row_task_of(run, centers, features, kernel, tuple(arrays["sigma2"].tolist()), facts_of(arrays))
    if tried.fit is not None and _has_few_rows(run):
        return best_temperature(_slopes_of_few(task, tried, tried.fit))
    slopes = _of_block(task, tried)
    blocks = _blocks(task, row_grid("train", shape.n_train, len(tried.weights.columns)), "held-out")
    sums = reduce(add, (_slopes(slopes(block, serially)) for block in blocks))
    return best_temperature(replace(sums, rows=count_held_out(run, task.facts)))


def _opened(given: Stored, task: RowTask) -> OfBlock:
    arrays = dict(given.read())
    points = arrays.pop("points", None)
    return _of_block(task, CalibrationWeights(Weights(**arrays), points=points))


def _of_block(task: RowTask, tried: CalibrationWeights) -> OfBlock:
    """Return what gives the slopes of the log loss of a block's held-out rows; other rows cost no columns."""
    generator = None
    if tried.points is not None:
        generator = task.generator_of(tried.points)
    elif len(tried.weights.columns):
        generator = task.generator(tried.weights.columns)
    weights = np.ascontiguousarray(tried.weights.weights)  # as from a file: bits depend on the order in memory

    def slopes(block: RowBlock, each: Each) -> Values:
        X = block.X[block.held_out]
        decision = np.tile(tried.weights.intercept, (len(X), 1))
        if generator is not None and len(X):
            decision += generator.block(X, out_dtype=np.float64, each=each) @ weights
        counts = None if block.weights is None else block.weights[block.held_out]
        sums = loss_slopes(decision, block.y[block.held_out], counts)
        return {name: np.asarray(value) for name, value in vars(sums).items()}

    return slopes


def _slopes(values: Values) -> LossSlopes:
    others, rows = (values[name].item() for name in ("others", "rows"))
    return LossSlopes(values["slopes"], values["curvatures"], others, rows)
