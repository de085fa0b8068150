"""Settings that make no sense, alone or together, for the data at hand: each refused with what to do instead."""

from pathlib import Path

from features.sources import NAMED
from pipeline.config import SETTINGS, SolverConfig, TrainConfig
from pipeline.errors import ConfigError
from pipeline.feature_store import FeatureShape
from pipeline.kernels import Kernel
from pipeline.setting_types import selection_size
from pipeline.statistics import hold_out_rows

# Settings of the penalised solves, and why a greedy selection has no use for them.
_PENALISED = {
    "solver.penalty": "which has no penalty",
    "solver.coupling": "whose centers serve all classes",
    "solver.tolerance": "which has no duality gap",
    "solver.max_sweeps": "which sweeps nothing",
    "solver.schedule": "which has its own order",
    "solver.step": "which has its own steps",
    "solver.stop": "which has no such rule",
}
SELECTION_ROOM = 1.5  # candidates at once for each center that is chosen in rounds; with fewer, hardly any come in


def check_used(config: TrainConfig, explicit: frozenset[str]) -> None:
    """Raise ConfigError for a setting that was asked for and would have no effect."""
    name, is_table = config.features.name, Path(config.dataset).suffix in (".npz", ".csv")
    unused = {
        "features.cells": name != "hog",
        "features.orientations": name != "hog",
        "data.target": not is_table,
        "data.test_fraction": config.dataset in NAMED and config.dataset != "digits",
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
        _check_no_penalty(config, explicit)


def _check_no_penalty(config: TrainConfig, explicit: frozenset[str]) -> None:
    """Raise ConfigError for a setting of the penalised solves that was asked for beside a selection."""
    asked = f"--select {config.solver.select}"
    for key in sorted(explicit & set(_PENALISED)):
        flag = SETTINGS[key].flag or key
        raise ConfigError(f"{flag} has no effect with {asked}, {_PENALISED[key]}; leave it out")
    if "solver.refit" in explicit and config.solver.refit == "none":
        raise ConfigError(f"--refit none has no effect with {asked}, whose weights are least squares; leave it out")


def _check_start(solver: SolverConfig) -> None:
    """Raise ConfigError for weights to start from where nothing starts from them."""
    if solver.init_from is None:
        return
    if solver.select != "none":
        raise ConfigError(f"--init-from has no effect with --select {solver.select}, which starts from no center")
    if isinstance(solver.penalty, str):
        raise ConfigError(
            f"--init-from has no effect with --penalty {solver.penalty}, whose first solve starts from zero; "
            "give a number, or leave it out"
        )


def check_combinations(config: TrainConfig, shape: FeatureShape, n_candidates: int) -> None:
    """Raise ConfigError where settings make no sense together."""
    solver, hold_out = config.solver, config.statistics.hold_out
    _check_start(solver)
    size = None if solver.select == "none" else selection_size(solver.select)
    if size is not None and size > n_candidates:
        raise ConfigError(
            f"--select {solver.select}: there are {n_candidates} candidates; ask for fewer centers, or for more "
            "candidates with --centers"
        )
    if solver.coupling == "shared" and shape.n_outputs == 1:
        raise ConfigError(f"--coupling shared: {shape.dataset} has one output ({shape.task}); leave it out")
    if solver.stop == "paper" and solver.schedule != "uniform":
        raise ConfigError("solver.stop = paper needs --schedule uniform; choose both or neither")
    needs = {
        f"--select {solver.select}": solver.select != "none",
        "--refit ridge": solver.refit != "none",
        f"--sigma2 {config.kernel.sigma2}": config.kernel.sigma2 == "auto",
        f"--penalty {solver.penalty}": isinstance(solver.penalty, str),
    }
    if hold_out == 0 and any(needs.values()):
        asked = next(flag for flag, needed in needs.items() if needed)
        raise ConfigError(f"{asked} needs held-out rows, statistics.hold_out is 0; set it to 0.1")
    if any(needs.values()) and not hold_out_rows(config.seed, hold_out, 0, shape.n_train).any():
        asked = next(flag for flag, needed in needs.items() if needed)
        raise ConfigError(
            f"{asked} needs held-out rows; of {shape.n_train} rows, statistics.hold_out = {hold_out:g} holds out "
            "none with this seed: raise it"
        )


def check_rounds(config: TrainConfig, n_candidates: int) -> None:
    """Raise ConfigError for what needs the Gram of all candidates, or more of it than fits."""
    solver, working_set = config.solver, config.centers.working_set or 0
    if solver.select != "none":
        size = selection_size(solver.select)
        if size is None or working_set < SELECTION_ROOM * size:
            raise ConfigError(
                f"--select {solver.select}: {working_set} of {n_candidates} candidates fit at once; choose at most "
                f"{int(working_set / SELECTION_ROOM)} centers by number, or raise --memory-limit"
            )
    elif isinstance(solver.penalty, str):
        raise ConfigError(
            f"--penalty {solver.penalty} needs the Gram of all candidates, which does not fit; "
            "give a number, raise --memory-limit, or choose the penalty with fewer --centers"
        )
