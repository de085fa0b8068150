"""What a run does before its fit: store the features."""

from collections.abc import Callable
from functools import partial

from pipeline.datasets import feature_rows
from pipeline.datasets.feature_rows import FeatureItem
from pipeline.datasets.open_data import open_data, release_data
from pipeline.errors import StoppedError
from pipeline.fit.workspace import Run
from pipeline.runtime import stopping
from pipeline.runtime.executors import Executor
from pipeline.work.events import FEATURES
from storage.folders import hold_lock, holder

STORE_SECONDS = 24 * 3600.0  # for another run that builds the same store


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
