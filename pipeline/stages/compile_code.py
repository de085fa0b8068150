"""Stage 0: the compiled loops that a run needs and that no earlier one on this machine has left; mostly none."""

import time

from features.descriptors import deskew_loops, sphog_loops
from features.synthetic import rendering_loops
from pipeline.config.parsers import NO_PENALTY
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_store import store_of
from pipeline.kernels.jit import Loop, compile_loops, loops_in, not_kept
from pipeline.kernels.kernel_forms import Kernel
from pipeline.runtime import stopping
from pipeline.solvers.loops_of_training import needed_loops
from pipeline.stages.one_vs_all import solver_options
from pipeline.stages.run_state import Run
from pipeline.stages.stage_costs import COMPILE, StageCost


def compile_needed(run: Run) -> None:
    """Compile, in this process, before workers that only load; what is kept takes a few milliseconds to see."""
    missing = not_kept(loops_of(run.config, run.shape, in_rounds=run.in_rounds))
    if not missing:
        return
    run.costs.setdefault(COMPILE, StageCost())
    with run.stage(COMPILE) as cost:
        run.events.say(f"compiling {len(missing)} loops (once a checkout)", loops=len(missing))
        started = time.perf_counter()
        with run.doing(COMPILE, "compiling"):
            compile_loops(missing, stopping.check)
        cost.items += len(missing)
        run.events.say(f"compiled in {time.perf_counter() - started:.1f} s")


def loops_of(config: TrainConfig, shape: FeatureShape, *, in_rounds: bool) -> list[Loop]:
    """Return the loops of a run: of its features if they are not stored yet, of columns and sums, of the solves."""
    loops = list[Loop]()
    if not (config.resources.features_store == "zarr" and store_of(config, shape).manifest.exists()):
        loops += loops_in(sphog_loops) if config.features.name == "sphog" else []
        loops += loops_in(deskew_loops) if config.features.deskew else []
        loops += loops_in(rendering_loops) if config.dataset == "synthetic" else []
    solved = config.solver.select == "none" and config.solver.penalty != NO_PENALTY
    options = solver_options(config.solver) if solved else None
    together = shape.n_outputs if config.solver.coupling == "shared" else 1
    dtypes = {config.kernel.precision, "float32"}  # that of the model and of the widths that are tried
    return loops + needed_loops(Kernel(config.kernel.name), dtypes, options, together, in_rounds=in_rounds)
