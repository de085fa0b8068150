"""Stage 1: features of every image, written to the shared store by row blocks; nothing to do where it exists."""

from pipeline import feature_store
from pipeline.stages.run import Run
from storage.lock import holder

WAIT_SECONDS = 24 * 3600.0  # for another run that builds the same store


def run(run: Run) -> None:
    """Build the feature store of a run unless a verified one is there.

    Raises CorruptDataError where the store is damaged, LockedError where another run builds it for too long.
    """
    layout, shape = run.feature_layout, run.shape
    with run.stage("features"):
        if run.features is not layout:
            return  # computed on the fly by whoever reads them
        if feature_store.is_built(layout):
            run.events.record("features reused", digest=layout.digest)
            return
        held_by = holder(layout.lock)
        if held_by is not None:
            run.events.say(f"waiting for process {held_by['pid']} on {held_by['host']} to build {layout.folder}")
        with feature_store.building(layout, WAIT_SECONDS):
            if not feature_store.is_built(layout):
                task, items = feature_store.prepare(layout, shape, run.request)
                run.run_items("features", feature_store.build_function(task), items)
                feature_store.finish(layout, shape)
