"""Settings that the data decide: what the user left open is filled in before a run starts, and frozen with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.config.parsers import NO_PENALTY, learns_scales, selection_size
from pipeline.config.settings import get, with_value
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.open_data import read_center_list
from pipeline.errors import ConfigError
from pipeline.kernels.kernel_forms import Kernel
from pipeline.runtime.memory_limits import limit_bytes
from pipeline.solvers.candidate_budget import (
    CENTERS,
    DEFAULT_BUDGET,
    LEAST_ROWS,
    PROCESS_BYTES,
    ROUNDS,
    Fit,
    candidates_within,
)
from pipeline.solvers.regularization_path import DEFAULT_PENALTY
from pipeline.stages import candidate_names as candidates
from pipeline.stages.setting_checks import PENALISED, check_combinations, check_scale_used

IMAGE_PENALTY = 0.01
IMAGE_SIGMA2 = 4.0
ROOT_SIGMA2 = 8.0  # of roots of histograms, whose squared norm is 20 for sphog of any image size


@dataclass(frozen=True)
class Room:
    """What there is to fit: different rows, bytes for candidates and their Grams, candidates that are listed."""

    n_different: int
    memory_bytes: int
    n_listed: int | None = None


def fill_in(
    config: TrainConfig, shape: FeatureShape, explicit: frozenset[str], room: Room | None = None
) -> tuple[TrainConfig, list[str]]:
    """Fill in what the data decide: penalty, width, scales, number of centers, intercept; return notes for the user.

    room: what is known of the rows before a run; None: all differ, and a process takes its part of the memory limit.
    Raises ConfigError where more centers were asked for than there are training rows; a default is lowered.
    """
    room = room or Room(shape.n_train, limit_bytes(config.resources) - PROCESS_BYTES)
    raw = config.features.name == "raw"
    config = _with_problem(config, shape, explicit, room.n_different) if raw else _with_defaults_of_images(config)
    if not Kernel(config.kernel.name).has_width:
        config = with_value(config, "kernel.sigma2", 1.0)
    if config.solver.intercept is None:
        config = with_value(config, "solver.intercept", raw)
    check_scale_used(config, explicit)
    config, notes = _with_count(config, shape, explicit, room)
    check_combinations(config, shape, candidates.count_candidates(config, shape.n_train))
    return _with_precision(_with_centring(config, shape)), notes


def _with_defaults_of_images(config: TrainConfig) -> TrainConfig:
    sigma2 = IMAGE_SIGMA2 if config.features.power == 1.0 else ROOT_SIGMA2
    defaults = {"solver.penalty": IMAGE_PENALTY, "kernel.sigma2": sigma2, "kernel.scale": "none"}
    return _with_defaults(config, defaults)


def _with_defaults(config: TrainConfig, defaults: Mapping[str, Any]) -> TrainConfig:
    for key, value in defaults.items():
        config = with_value(config, key, value) if get(config, key) is None else config
    return config


def _with_problem(config: TrainConfig, shape: FeatureShape, explicit: frozenset[str], n_different: int) -> TrainConfig:
    """Fill in the penalty of a table: none, unless something asks for the penalised problem.

    Without one, and where nothing is chosen, the held-out rows find width, scales and ridge.
    """
    solver, kernel = config.solver, config.kernel
    if solver.penalty is None:
        has_penalty = (
            n_different < LEAST_ROWS
            or bool(explicit & set(PENALISED))
            or solver.refit != "none"
            or "solver.refit" in explicit
            or solver.init_from is not None
            or config.centers.count == "all"
            or config.centers.on_demand
            or isinstance(kernel.sigma2, tuple)
            or config.statistics.hold_out == 0
        )
        config = with_value(config, "solver.penalty", DEFAULT_PENALTY if has_penalty else NO_PENALTY)
    if not _is_simple(config):
        return _with_defaults(config, {"kernel.sigma2": "median", "kernel.scale": "none"})
    budget = config.centers.budget or DEFAULT_BUDGET
    possible = kernel.scale is None and kernel.name == "gaussian" and kernel.sigma2 is None
    rounds = _fit_of(config, shape).rounds_within(budget) if possible else 0
    if rounds:
        config = with_value(config, "kernel.scale_rounds", min(rounds, kernel.scale_rounds))
    config = with_value(config, "solver.refit", "ridge")
    return _with_defaults(config, {"kernel.scale": "learned" if rounds else "none", "kernel.sigma2": "auto"})


def _with_precision(config: TrainConfig) -> TrainConfig:
    """Fill in the precision of kernel values: float64 where there is a certificate, which is of columns in it.

    Features of images are long, and their inner products nearly all the work: they stay float32.
    """
    if config.kernel.precision != "auto":
        return config
    has_certificate = config.solver.select == "none" and config.solver.penalty != NO_PENALTY
    exact = has_certificate and config.features.name == "raw"
    return with_value(config, "kernel.precision", "float64" if exact else "float32")


def _is_simple(config: TrainConfig) -> bool:
    """Tell whether all candidates are fitted by least squares."""
    return config.solver.penalty == NO_PENALTY and config.solver.select == "none"


def penalised(config: TrainConfig, asked: TrainConfig) -> TrainConfig:
    """Return the settings with a penalty in place of none, which was filled in: for candidates without a whole Gram."""
    if not _is_simple(config):
        return config
    for key, value in (("solver.penalty", DEFAULT_PENALTY), ("solver.refit", asked.solver.refit)):
        config = with_value(config, key, value)
    return _with_precision(with_value(config, "kernel.precision", asked.kernel.precision))


def by_budget(asked: TrainConfig, filled: TrainConfig) -> bool:
    """Tell whether a budget said how many candidates there are of a fit by least squares, which needs their Gram."""
    named = (asked.centers.count, asked.centers.list, asked.centers.working_set)
    return _is_simple(filled) and all(one is None for one in named)


def _with_count(
    config: TrainConfig, shape: FeatureShape, explicit: frozenset[str], room: Room
) -> tuple[TrainConfig, list[str]]:
    """Fill in the number of candidates: as many as are listed, as the budget pays for, or the default."""
    centers, n = config.centers, room.n_different
    if room.n_listed is not None:
        return with_value(config, "centers.count", room.n_listed), []
    given = [key for key in ("centers.count", "centers.budget") if key in explicit]
    if centers.list is not None and given:
        raise ConfigError("--center-list already says how many candidates there are; leave --centers and --budget out")
    if len(given) > 1:
        raise ConfigError("--centers and --budget both say how many candidates there are; leave one out")
    if centers.list is not None:
        return with_value(config, "centers.count", len(read_center_list(centers.list, n))), []
    if "centers.budget" in explicit or (centers.count is None and _is_simple(config)):
        budget = centers.budget or DEFAULT_BUDGET
        count = min(candidates_within(_fit_of(config, shape), budget, room.memory_bytes), n)
        words = f"{count} candidate centers of {n} rows: what a budget of {budget:g} core seconds and the memory allow"
        if learns_scales(config.kernel.scale):
            counted = min(ROUNDS, config.kernel.scale_rounds)
            words += f", with {counted} of at most {config.kernel.scale_rounds} rounds of scales counted"
        return with_value(config, "centers.count", count), [f"{words} (--budget, --centers)"] if count < n else []
    asked = CENTERS if centers.count is None else centers.count
    if asked == "all" or int(asked) <= n:
        return with_value(config, "centers.count", asked), []
    if "centers.count" in explicit:
        raise ConfigError(f"centers.count = {asked}: {shape.dataset} has {n} training rows; ask for fewer, or all")
    note = f"{n} candidate centers instead of {asked}: there are no more training rows"
    return with_value(config, "centers.count", n), [note]


def _fit_of(config: TrainConfig, shape: FeatureShape) -> Fit:
    solver = config.solver
    selected = solver.select != "none"
    return Fit(
        n_rows=shape.n_train,
        n_features=shape.n_features,
        n_outputs=shape.n_outputs,
        penalised=not selected and solver.penalty != NO_PENALTY,
        chosen=(selection_size(solver.select) or 0) if selected else None,
        scaled=learns_scales(config.kernel.scale),
    )


def _with_centring(config: TrainConfig, shape: FeatureShape) -> TrainConfig:
    """Fill in whether the targets are centred: without an intercept it would be another problem."""
    possible = shape.task == "regression" and bool(config.solver.intercept)
    if config.data.centre_targets and not possible:
        raise ConfigError("data.centre_targets = true needs a regression with an intercept (--intercept); leave it out")
    return config if config.data.centre_targets is not None else with_value(config, "data.centre_targets", possible)
