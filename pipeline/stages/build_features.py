"""Stage 1: features of every image, written to the shared store by row blocks; nothing to do where it exists."""

from functools import partial

from pipeline.datasets import build_feature_store, feature_store, store_users
from pipeline.datasets.open_data import release_data
from pipeline.stages.run_state import Run
from pipeline.stages.workspace import FEATURES
from storage.lock import holder

WAIT_SECONDS = 24 * 3600.0  # for another run that builds the same store


def build_features(run: Run) -> None:
    """Build the feature store of a run unless a verified one is there.

    Raises CorruptDataError where the store is damaged, LockedError where another run builds it for too long.
    """
    layout, shape = run.feature_layout, run.shape
    with run.stage(FEATURES):
        if run.config.resources.features_store == "none":
            return  # computed on the fly by whoever reads them
        store_users.register(layout, run.layout.root)  # before it looks: see `pipeline.feature_stores`
        keys = not run.layout.centers.exists()  # an earlier version may have begun the run
        if feature_store.is_built(layout, keys=keys):
            run.events.record("features reused", digest=layout.digest)
            return
        held_by = holder(layout.lock)
        if held_by is not None:
            run.events.say(f"waiting for process {held_by['pid']} on {held_by['host']} to build {layout.folder}")
        with build_feature_store.building(layout, WAIT_SECONDS, run.events.warn):
            if not feature_store.is_built(layout, keys=keys):
                with run.doing(FEATURES, "preparing the store"):
                    task, items = build_feature_store.prepare(layout, shape, run.request)
                build = partial(build_feature_store.build_item, task)
                run.run_items(FEATURES, build, items, unit="rows", size=lambda item: item.block.n_rows)
                with run.doing(FEATURES, "sealing the store"):
                    build_feature_store.finish(layout, shape)
                release_data()
