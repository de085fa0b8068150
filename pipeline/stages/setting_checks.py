"""Settings that make no sense, alone or together, for the data at hand: each refused with what to do instead."""

from pathlib import Path

from features.source import NAMED
from features.table_cells import is_table
from pipeline.config.parsers import NO_PENALTY, is_searched, learns_scales, selection_size
from pipeline.config.settings import SETTINGS
from pipeline.config.train_config import SolverConfig, TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_request import FeatureShape
from pipeline.errors import ConfigError
from pipeline.kernels.kernel_forms import Kernel
from pipeline.solvers.feature_scales import METRIC, MOST_OF_METRIC
from pipeline.solvers.greedy_choice import SELECTION_ROOM

# Settings of the penalised solves, and why least squares, on all candidates or on those chosen, has no use for them.
_NO_PENALTY = {"solver.penalty": "which has no penalty"}
PENALISED = {
    "solver.coupling": "whose centers serve all classes",
    "solver.tolerance": "which has no duality gap",
    "solver.max_sweeps": "which sweeps nothing",
    "solver.schedule": "which has its own order",
    "solver.step": "which has its own steps",
    "solver.stop": "which has no such rule",
}
OF_ROWS = ("data.weights", "data.groups")  # what only rows of files have
OF_TABLES = ("test", "columns", "drop", "categorical", "missing")  # of `data`: what only files of cells have


def check_used(config: TrainConfig, explicit: frozenset[str]) -> None:
    """Raise ConfigError for a setting that was asked for and would have no effect."""
    name, path = config.features.name, Path(config.dataset)
    unused = {
        "solver.patience": config.solver.penalty != "auto",
        "features.cells": name != "hog",
        "features.orientations": name != "hog",
        "data.target": not is_table(path) and path.suffix != ".npz",
        **dict.fromkeys(OF_ROWS, not is_table(path) and path.suffix not in (".npz", ".zarr")),
        **dict.fromkeys((f"data.{key}" for key in OF_TABLES), not is_table(path)),
        "data.test_fraction": (config.dataset in NAMED and config.dataset != "digits") or config.data.test is not None,
        "data.noise": config.dataset != "sinc",
    }
    kernel = Kernel(config.kernel.name)
    of_others = {"kernel.sigma2": not kernel.has_width, "kernel.degree": kernel.name != "polynomial"}
    for key in sorted(explicit):
        if of_others.get(key):
            raise ConfigError(f"{key} has no effect on the {kernel.name} kernel; leave it out")
    for key in sorted(explicit):
        if unused.get(key):
            raise ConfigError(f"{key} has no effect on {config.dataset} with {name} features; leave it out")
    if config.solver.select != "none":
        _check_no_penalty(config, explicit, f"--select {config.solver.select}", "solver.penalty")
    elif config.solver.penalty == NO_PENALTY:
        _check_no_penalty(config, explicit, "--penalty none")


def check_scale_used(config: TrainConfig, explicit: frozenset[str]) -> None:
    """Raise ConfigError for rounds of scales that were asked for where no scales are learned, once that is known."""
    if "kernel.scale_rounds" in explicit and not learns_scales(config.kernel.scale):
        raise ConfigError("kernel.scale_rounds has no effect without --scale learned; add that, or leave it out")


def _check_no_penalty(config: TrainConfig, explicit: frozenset[str], asked: str, *more: str) -> None:
    """Raise ConfigError for a setting of the penalised solves that was asked for beside least squares alone."""
    for key in sorted(explicit & {*PENALISED, *more}):
        flag = SETTINGS[key].flag or key
        raise ConfigError(f"{flag} has no effect with {asked}, {(PENALISED | _NO_PENALTY)[key]}; leave it out")
    if "solver.refit" in explicit and config.solver.refit == "none":
        raise ConfigError(f"--refit none has no effect with {asked}, whose weights are least squares; leave it out")


def _check_start(solver: SolverConfig) -> None:
    """Raise ConfigError for weights to start from where nothing starts from them."""
    if solver.init_from is None:
        return
    if solver.penalty == NO_PENALTY:
        raise ConfigError("--init-from has no effect with --penalty none, which starts from no weights; leave it out")
    if solver.select != "none":
        raise ConfigError(f"--init-from has no effect with --select {solver.select}, which starts from no center")
    if is_searched(solver.penalty):
        raise ConfigError(
            f"--init-from has no effect with --penalty {solver.penalty}, whose first solve starts from zero; "
            "give a number, or leave it out"
        )


def _check_scale(config: TrainConfig, n_features: int) -> None:
    """Raise ConfigError for learned scales where none can be learned."""
    kernel, asked = config.kernel, f"--scale {config.kernel.scale}"
    if not learns_scales(kernel.scale):
        return
    if kernel.scale == METRIC and n_features > MOST_OF_METRIC:
        raise ConfigError(f"{asked} is for at most {MOST_OF_METRIC} features, there are {n_features}: choose diagonal")
    if not Kernel(kernel.name).is_bounded:
        raise ConfigError(f"{asked}: scales are learned for the gaussian kernel, not the {kernel.name} one; choose one")
    if isinstance(kernel.sigma2, tuple):
        raise ConfigError(f"{asked} is for one width, --sigma2 lists {len(kernel.sigma2)}; give one, median or auto")
    if config.solver.init_from is not None:
        raise ConfigError(f"{asked} moves the centers of the model of --init-from; leave one of them out")


def _check_polish(config: TrainConfig) -> None:
    """Raise ConfigError for centers that cannot move."""
    solver, asked = config.solver, f"--polish-centers {config.solver.polish_centers}"
    if not solver.polish_centers:
        return
    if solver.select == "none" and solver.penalty == NO_PENALTY:  # of a table, unless something asks for another
        raise ConfigError(
            f"{asked} moves centers that were chosen, and with --penalty none, given or filled in, all candidates are "
            "centers: add --select greedy:K, or --penalty auto --refit ridge"
        )
    if solver.select == "none" and solver.refit == "none":
        raise ConfigError(
            f"{asked} refits the weights wherever the centers are: add --select greedy:K or --refit ridge"
        )
    if config.kernel.name != "gaussian":
        raise ConfigError(
            f"{asked} knows how a gaussian changes as its center moves, not a {config.kernel.name} kernel"
        )
    if isinstance(config.kernel.sigma2, tuple):
        raise ConfigError(f"{asked} needs centers of one width; give --sigma2 one number, median or auto")


def check_combinations(config: TrainConfig, shape: FeatureShape, n_candidates: int) -> None:
    """Raise ConfigError where settings make no sense together."""
    solver, hold_out = config.solver, config.statistics.hold_out
    _check_start(solver)
    _check_scale(config, shape.n_features)
    _check_polish(config)
    size = None if solver.select == "none" else selection_size(solver.select)
    if size is not None and size > n_candidates:
        raise ConfigError(
            f"--select {solver.select}: there are {n_candidates} candidates; ask for fewer centers, or for more "
            "candidates with --centers"
        )
    if config.data.class_weight is not None and shape.task == "regression":
        raise ConfigError(f"--class-weight {config.data.class_weight}: {shape.dataset} is a regression; leave it out")
    if solver.coupling == "shared" and shape.n_outputs == 1:
        raise ConfigError(f"--coupling shared: {shape.dataset} has one output ({shape.task}); leave it out")
    if solver.stop == "paper" and solver.schedule != "uniform":
        raise ConfigError("solver.stop = paper needs --schedule uniform; choose both or neither")
    asked = what_needs_held_out_rows(config)
    if hold_out == 0 and asked is not None:
        raise ConfigError(f"{asked} needs held-out rows, statistics.hold_out is 0; set it to 0.1")


def check_rounds(config: TrainConfig, n_candidates: int) -> None:
    """Raise ConfigError for what needs the Gram of all candidates, or more of it than fits."""
    solver, working_set = config.solver, config.centers.working_set or 0
    if config.centers.on_demand and (
        solver.select != "none" or is_searched(solver.penalty) or solver.penalty == NO_PENALTY
    ):
        raise ConfigError(
            "centers.columns = on-demand is for one penalty: give --penalty a number or max:FRACTION, or leave it out"
        )
    if solver.select != "none":
        size = selection_size(solver.select)
        if size is None or working_set < SELECTION_ROOM * size:
            raise ConfigError(
                f"--select {solver.select}: {working_set} of {n_candidates} candidates fit at once; choose at most "
                f"{int(working_set / SELECTION_ROOM)} centers by number, or raise --memory-limit"
            )
    elif solver.penalty == NO_PENALTY:
        raise ConfigError(
            f"--penalty {solver.penalty} needs the Gram of all candidates, which does not fit; "
            "give a number or auto, raise --memory-limit, or use fewer --centers"
        )
