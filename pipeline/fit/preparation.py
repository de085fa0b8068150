"""What a run does before its fit: compile the loops that it lacks, mostly none, and store the features."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np

from features.deformed_copies import Copies
from features.descriptors import extract
from pipeline.config.train_config import TrainConfig
from pipeline.datasets import feature_rows
from pipeline.datasets.feature_rows import FeatureItem, FeatureShape, feature_spec
from pipeline.datasets.open_data import open_data, release_data
from pipeline.errors import StoppedError
from pipeline.fit.filled_settings import is_in_rounds, kernels_of
from pipeline.fit.workspace import Run
from pipeline.kernels.exact_sums import ExactGram
from pipeline.kernels.jit import warm_up
from pipeline.kernels.kernel_functions import DIAGONAL
from pipeline.runtime import stopping
from pipeline.runtime.executors import Executor
from pipeline.runtime.progress import COMPILING
from pipeline.solvers.problem import Problem
from pipeline.solvers.solve import SolverOptions, solve
from pipeline.work.events import COMPILE, FEATURES
from storage.folders import hold_lock, holder

IMAGE_SHAPE = (28, 28)  # Loops are compiled for images of any size.
SMALL_WIDTH = 0.1  # of images, whose features have squared norms of at most 20 or so; far is 1000 times a width
STORE_SECONDS = 24 * 3600.0  # for another run that builds the same store


def compile_needed(run: Run) -> None:
    """Compile the loops of a run in this process, before workers that only load them; a stage where any is."""
    with ExitStack() as compiling:

        def tell() -> None:
            compiling.enter_context(run.events.stage(COMPILE))
            run.events.log(COMPILING)
            compiling.enter_context(run.events.status(COMPILE, COMPILING))

        if count := warm_up(_steps_of(run), tell):
            run.events.costs[COMPILE].items += count


def compile_told(steps: Iterable[Callable[[], object]], log: Callable[[str], object] | None) -> None:
    """Compile the loops of a fit in memory; tell it by `log`, and without one by a warning."""
    warm_up(steps, partial(log or logging.getLogger("pipeline").warning, COMPILING))


def _steps_of(run: Run) -> Iterator[Callable[[], object]]:
    config = run.work.config
    if not (config.resources.stores_features and run.feature_layout.manifest.exists()):
        yield from feature_steps(config)
    for step in warming_steps(config, run.work.shape):
        stopping.check()
        yield step


def feature_steps(config: TrainConfig) -> Iterator[Callable[[], object]]:
    """Yield steps that run the loops of features on two images."""
    images = np.zeros((2, *IMAGE_SHAPE))
    yield partial(extract, feature_spec(config), images)
    if config.data.copies > 1:
        yield lambda: Copies(2, 0).deformed(images, np.arange(2))


def warming_steps(config: TrainConfig, shape: FeatureShape) -> Iterator[Callable[[], object]]:
    """Yield steps that run the loops of a fit on a few rows: columns and their sums, slopes, a solve."""
    X, weights = np.random.default_rng(0).normal(size=(8, 2)), np.ones((8, 1))
    # Candidates are priced by float32 columns. Trials and predictions have float32 values, or float64 if they need it.
    stored = (np.float64, np.float32) if is_in_rounds(config, shape.n_train) else (np.float64,)
    # Rows of tables may be many widths away from centers, and those of images where a small width is asked for.
    sigma2 = config.kernel.sigma2
    are_far = config.features.name == "raw" or (isinstance(sigma2, float) and sigma2 < SMALL_WIDTH)
    centers = 1e3 * X if are_far else X
    for kernel in kernels_of(config.kernel):
        for of_values in (np.float32, np.float64):
            columns = kernel(centers, 1.0, of_values)
            yield from (partial(columns.block, X, None, out_dtype) for out_dtype in stored)
        if config.kernel.learns_scales:
            yield partial(columns.slope_sums, X, weights, DIAGONAL)
    yield lambda: ExactGram(2, 0, 8.0, 1).add_products(np.ones((8, 2)))
    if config.solver.is_penalised:
        gram, kty = X @ X.T, X.sum(axis=1)
        problem, options = Problem(gram, kty, float(kty @ kty), 1e-3), SolverOptions(schedule=config.solver.schedule)
        yield lambda: solve(problem, options, np.random.default_rng(0))


def build_features(run: Run, *, contents: bool = False) -> bool:
    """Build the feature store of a run unless a whole one is there, each byte of which is checked with `contents`.

    Returns whether there was none, or a damaged one.
    """
    layout, shape = run.feature_layout, run.work.shape
    with run.events.stage(FEATURES):
        if not run.work.config.resources.stores_features:
            return False  # computed on the fly by whoever reads them
        if feature_rows.is_built(layout, run.events.warn, contents=contents):
            run.events.record("features reused", digest=layout.digest)
            return False
        held_by = holder(layout.lock)
        if held_by is not None:
            run.events.log(f"waiting for process {held_by['pid']} on {held_by['host']} to build {layout.folder}")
        lock = hold_lock(
            layout.lock,
            "building features",
            wait_seconds=STORE_SECONDS,
            on_wait=stopping.check,
            warn=run.events.warn,
        )
        with lock:
            if not feature_rows.is_built(layout, contents=contents):
                with run.events.status(FEATURES, "preparing the store"):
                    task, items = feature_rows.prepare(layout, shape, run.request, run.layout.data_chunks)
                build: Callable[[FeatureItem], int] = partial(feature_rows.build_item, task)
                source, executor = open_data(run.request.source, task[1].data), run.runner.executor
                if source.is_in_order:
                    built = feature_rows.build_in_order(task, items, source, shape.item_rows)
                    build, executor = (lambda item: next(built)), Executor()
                elif source.columns is not None:  # a small table: other processes do not have what this one has read
                    executor = Executor()
                try:
                    run.runner.run_items(
                        FEATURES, build, items, unit="rows", size=lambda item: item.n_rows, executor=executor
                    )
                except StoppedError as error:
                    anew = "; the features of a table are written in one reading, which begins anew"
                    raise StoppedError(f"{error}{anew if source.columns is not None else ''}") from None
                with run.events.status(FEATURES, "sealing the store"):
                    feature_rows.finish(layout)
                release_data()
    return True
