"""What a run does before its fit: compile the loops that it lacks, mostly none, and store the features."""

from functools import partial

from features.descriptors import deskew, soft_hog, sphog
from pipeline.config.parsers import NO_PENALTY, learns_scales
from pipeline.config.train_config import TrainConfig
from pipeline.datasets import build_feature_store, feature_rows
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import store_of
from pipeline.datasets.open_data import release_data
from pipeline.kernels import kernel_loops
from pipeline.kernels.jit import Loop, compile_loops, loops_in, not_kept
from pipeline.runtime import stopping
from pipeline.runtime.progress import COMPILING
from pipeline.solvers import solver_loops
from pipeline.stages.kernel_settings import kernels_of
from pipeline.stages.one_vs_all import solver_options
from pipeline.stages.run_workspace import COMPILE, Run, StageCost
from pipeline.stages.workspace import FEATURES
from storage.lock import holder


def compile_needed(run: Run) -> None:
    """Compile, in this process, before workers that only load; what is kept takes a few milliseconds to see."""
    missing = not_kept(loops_of(run.config, run.shape, in_rounds=run.in_rounds))
    if not missing:
        return
    run.costs.setdefault(COMPILE, StageCost())
    with run.stage(COMPILE) as cost:
        run.events.log(f"compiling {len(missing)} loops (once a checkout)", loops=len(missing))
        with run.status(COMPILE, COMPILING):
            compile_loops(missing, stopping.check)
        cost.items += len(missing)


def prepare_workers(run: Run) -> None:
    """Let other processes import what they need while this one goes on, some two seconds in each."""
    run.executor.prepare(partial(_load, run.config, run.shape, in_rounds=run.in_rounds))


def _load(config: TrainConfig, shape: FeatureShape, *, in_rounds: bool) -> None:
    """Load the loops of a run that are kept; to get here, a process has imported the rest."""
    for loop in loops_of(config, shape, in_rounds=in_rounds):
        if loop.is_kept:  # others are compiled by the first pass, which tells it
            loop.load()


def loops_of(config: TrainConfig, shape: FeatureShape, *, in_rounds: bool) -> list[Loop]:
    """Return the loops of a run: of its features if they are not stored yet, of columns and sums, of the solves."""
    loops = list[Loop]()
    if not (config.resources.features_store == "zarr" and store_of(config, shape).manifest.exists()):
        of_name = {"sphog": sphog, "soft-hog": soft_hog}.get(config.features.name)
        loops += loops_in(of_name) if of_name else []
        loops += loops_in(deskew) if config.features.deskew else []
    names = {name for kernel in kernels_of(config.kernel) for name in kernel.loops}
    dtypes = {config.kernel.precision, "float32"}  # of the model; of trials
    columns = [one for one in loops_in(kernel_loops, *sorted(names)) if str(one.types[0].dtype) in dtypes]
    if not in_rounds:  # else candidates are scored with float32 columns too
        columns = [one for one in columns if one.dtype_of("out") in (None, "float64")]
    loops += columns + loops_in(kernel_loops, "add_lower_tile")
    if learns_scales(config.kernel.scale):
        slopes = {name for kernel in kernels_of(config.kernel) for name in kernel.slope_loops}
        loops += loops_in(kernel_loops, *slopes) if slopes else []
    if config.solver.select == "none" and config.solver.penalty != NO_PENALTY:
        skipped = () if solver_options(config.solver).polishes else solver_loops.NEWTON_LOOPS
        loops += loops_in(solver_loops, *(name for name in solver_loops.SIGNATURES if name not in skipped))
    return loops


WAIT_SECONDS = 24 * 3600.0  # for another run that builds the same store


def build_features(run: Run) -> None:
    """Build the feature store of a run unless a verified one is there.

    Raises CorruptDataError where the store is damaged, LockedError where another run builds it for too long.
    """
    layout, shape = run.feature_layout, run.shape
    with run.stage(FEATURES):
        if run.config.resources.features_store == "none":
            return  # computed on the fly by whoever reads them
        if feature_rows.is_built(layout):
            run.events.record("features reused", digest=layout.digest)
            return
        held_by = holder(layout.lock)
        if held_by is not None:
            run.events.log(f"waiting for process {held_by['pid']} on {held_by['host']} to build {layout.folder}")
        with build_feature_store.building(layout, WAIT_SECONDS, run.events.warn):
            if not feature_rows.is_built(layout):
                with run.status(FEATURES, "preparing the store"):
                    task, items = build_feature_store.prepare(layout, shape, run.request)
                build = partial(build_feature_store.build_item, task)
                run.run_items(FEATURES, build, items, unit="rows", size=lambda item: item.block.n_rows)
                with run.status(FEATURES, "sealing the store"):
                    build_feature_store.finish(layout, shape)
                release_data()
