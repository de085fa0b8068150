"""What a run does before its fit: compile the loops that it lacks, mostly none, and store the features."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from features import deformed_copies
from features.cell_text import counted
from features.descriptors import deskew, soft_hog, sphog
from pipeline.config.parsers import learns_scales
from pipeline.config.train_config import TrainConfig
from pipeline.datasets import build_feature_store, feature_rows
from pipeline.datasets.build_feature_store import FeatureItem
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import store_of
from pipeline.datasets.open_data import open_data, release_data
from pipeline.errors import StoppedError
from pipeline.kernels import kernel_loops
from pipeline.kernels.jit import Loop, loops_in
from pipeline.runtime import stopping
from pipeline.runtime.executors import Executor
from pipeline.runtime.progress import COMPILING
from pipeline.solvers import solver_loops
from pipeline.stages.filled_settings import kernels_of, value_dtype
from pipeline.stages.run_workspace import COMPILE, Run, StageCost
from pipeline.stages.workspace import FEATURES
from storage.errors import CannotWriteError, LockedError
from storage.lock import hold_lock, holder

SILENT_SECONDS = 2.0  # of compiling, before it is told where nobody asked to be told
COMPILER_SECONDS = 60.0  # for another process that compiles, or is suspended; then both do, which harms nothing
STORE_SECONDS = 24 * 3600.0  # for another run that builds the same store


def compile_needed(run: Run) -> None:
    """Compile, in this process, before workers that only load; what is kept takes a few milliseconds to see."""
    missing = loops_to_compile(run.config, run.shape, in_rounds=run.in_rounds)
    if not missing:
        return
    run.costs.setdefault(COMPILE, StageCost())
    with run.stage(COMPILE) as cost:
        run.events.log(_compiling_words(missing), loops=len(missing))
        with run.status(COMPILE, COMPILING):
            compile_loops(missing, stopping.check)
        cost.items += len(missing)


def _compiling_words(missing: list[Loop]) -> str:
    return f"compiling {counted(len(missing), 'loop')}, once on this machine"


def compile_told(missing: list[Loop], log: Callable[[str], object] | None) -> None:
    """Compile loops; tell it by `log`, and without one by a logged warning if it takes long."""
    if not missing:
        return
    words, started = _compiling_words(missing), time.perf_counter()
    timer = threading.Timer(SILENT_SECONDS, logging.getLogger("pipeline").warning, [words])
    timer.daemon = True
    if log is None:
        timer.start()
    else:
        log(words)
    try:
        compile_loops(missing)
    finally:
        timer.cancel()
    if log is not None:
        log(f"compiled in {time.perf_counter() - started:.1f} s")


def compile_loops(missing: Iterable[Loop], check: Callable[[], None] = lambda: None) -> None:
    """Compile loops, or wait for another process that compiles, and load what it has; half a second a loop.

    `check` is called before each loop and many times a second while waiting; what it raises ends it.
    """
    lock = Path(os.environ["NUMBA_CACHE_DIR"]) / "compiling.lock"
    with ExitStack() as stack:
        with suppress(LockedError, CannotWriteError):
            stack.enter_context(hold_lock(lock, "compiling", wait_seconds=COMPILER_SECONDS, on_wait=check))
        for loop in missing:
            check()
            loop.load()


def loops_to_compile(config: TrainConfig, shape: FeatureShape, *, in_rounds: bool = False) -> list[Loop]:
    """Return the loops of a run that this machine lacks."""
    return [loop for loop in loops_of(config, shape, in_rounds=in_rounds) if not loop.is_kept]


def loops_of(config: TrainConfig, shape: FeatureShape, *, in_rounds: bool) -> list[Loop]:
    """Return the loops of a run: of its features if they are not stored yet, of columns and sums, of the solves."""
    loops = list[Loop]()
    if not (config.resources.stores_features and store_of(config, shape).manifest.exists()):
        of_name = {"sphog": sphog, "soft-hog": soft_hog}.get(config.features.name)
        loops += loops_in(of_name, *of_name.SIGNATURES) if of_name else []
        loops += loops_in(deskew, *deskew.SIGNATURES) if config.features.deskew else []
        loops += loops_in(deformed_copies, *deformed_copies.SIGNATURES) if config.data.copies > 1 else []
    kernels, learned = kernels_of(config.kernel), learns_scales(config.kernel.scale)
    names = {name for kernel in kernels for name in kernel.loops}
    dtypes = {value_dtype(config, shape), "float32"}  # of the model; of trials
    columns = [loop for loop in loops_in(kernel_loops, *sorted(names)) if loop.types[0].dtype.name in dtypes]
    if not in_rounds:  # else candidates are scored with float32 columns too
        columns = [loop for loop in columns if loop.types[-2] != kernel_loops.FLOAT32_COLUMNS]
    slopes = {name for kernel in kernels for name in kernel.slope_loops if learned}
    loops += columns + loops_in(kernel_loops, "add_lower_tile", *sorted(slopes))
    if config.solver.is_penalised:
        others = () if config.solver.schedule == "newton" else solver_loops.NEWTON_LOOPS
        loops += loops_in(solver_loops, *(name for name in solver_loops.SIGNATURES if name not in others))
    return loops


def build_features(run: Run, *, contents: bool = False) -> bool:
    """Build the feature store of a run unless a whole one is there, each byte of which is checked with `contents`.

    Returns whether there was none, or a damaged one. Raises LockedError where another run builds it for too long.
    """
    layout, shape = run.feature_layout, run.shape
    with run.stage(FEATURES):
        if not run.config.resources.stores_features:
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
                with run.status(FEATURES, "preparing the store"):
                    task, items = build_feature_store.prepare(layout, shape, run.request, run.layout.data_chunks)
                build: Callable[[FeatureItem], int] = partial(build_feature_store.build_item, task)
                source, executor = open_data(run.request.source, task[1].data), run.executor
                if source.in_order is not None:
                    built = build_feature_store.build_in_order(task, items, source, shape.item_rows)
                    build, executor = (lambda item: next(built)), Executor()
                elif source.columns is not None:  # a small table: other processes do not have what this one has read
                    executor = Executor()
                try:
                    run.run_items(
                        FEATURES, build, items, unit="rows", size=lambda item: item.block.n_rows, executor=executor
                    )
                except StoppedError as error:
                    anew = "; the features of a table are written in one reading, which begins anew"
                    raise StoppedError(f"{error}{anew if source.columns is not None else ''}") from None
                with run.status(FEATURES, "sealing the store"):
                    build_feature_store.finish(layout, shape)
                release_data()
    return True
