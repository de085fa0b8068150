"""Settings that the data decide are filled in before a run starts; those that make no sense for them are refused."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from features.descriptors.extraction import OWN
from features.source import NAMED
from features.table_paths import is_table
from pipeline.config.parsers import NO_PENALTY, is_searched, learns_scales, selection_size
from pipeline.config.settings import get, with_value, with_values
from pipeline.config.train_config import AUTO_KERNEL, TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_request import ROOT, FeatureShape
from pipeline.errors import ConfigError
from pipeline.runtime.memory_limits import limit_bytes
from pipeline.solvers.candidate_budget import (
    CENTERS,
    DEFAULT_BUDGET,
    LEAST_ROWS,
    MOST_TRIED,
    PROCESS_BYTES,
    TRIAL_SIZES,
    Fit,
    TrialSizes,
    candidates_within,
)
from pipeline.solvers.greedy_choice import SELECTION_ROOM, Preselection, preselection
from pipeline.solvers.regularization_path import DEFAULT_PENALTY
from pipeline.stages.kernel_settings import check_kernel, kernels_of

# Settings of the penalised solves, and why least squares, on all candidates or on those chosen, has no use for them.
PENALISED = {
    "solver.tolerance": "which has no duality gap",
    "solver.max_sweeps": "which sweeps nothing",
    "solver.schedule": "which has its own order",
    "solver.step": "which has its own steps",
    "solver.stop": "which has no such rule",
}
OF_ROWS = ("data.weights", "data.groups")  # what only rows of files have
OF_TABLES = ("test", "columns", "drop", "categorical", "missing")  # of `data`: what only files of cells have


def check_used(config: TrainConfig, explicit: frozenset[str], path: Path) -> None:
    """Raise ConfigError for a setting that was asked for and would have no effect; `path`: of the data."""
    name = config.features.name
    of_table = config.dataset not in NAMED and is_table(path)
    unused = {
        **{f"features.{key}": key not in OWN[name] for key in OWN["soft-hog"]},
        "data.target": not of_table and path.suffix != ".npz",
        **dict.fromkeys(OF_ROWS, not of_table and path.suffix not in (".npz", ".zarr")),
        **dict.fromkeys((f"data.{key}" for key in OF_TABLES), not of_table),
        "data.test_fraction": (config.dataset in NAMED and config.dataset != "digits") or config.data.test is not None,
        "data.noise": config.dataset != "sinc",
    }
    for key in sorted(explicit):
        if unused.get(key):
            raise ConfigError(f"`{key}` has no effect on {config.dataset} with {name} features; leave it out")
    if config.solver.select != "none":
        _check_no_penalty(config, explicit, f"`solver.select={config.solver.select}`", "solver.penalty")
    elif config.solver.penalty == NO_PENALTY:
        _check_no_penalty(config, explicit, f"`solver.penalty={NO_PENALTY}`")


def _check_no_penalty(config: TrainConfig, explicit: frozenset[str], asked: str, *more: str) -> None:
    for key in sorted(explicit & {*PENALISED, *more}):
        why = PENALISED.get(key, "which has no penalty")
        raise ConfigError(f"`{key}` has no effect with {asked}, {why}; leave it out")
    if "solver.refit" in explicit and config.solver.refit == "none":
        why = "whose weights are least squares"
        raise ConfigError(f"`solver.refit=none` has no effect with {asked}, {why}; leave it out")


def check_combinations(config: TrainConfig, shape: FeatureShape, n_candidates: int) -> None:
    """Raise ConfigError where settings make no sense together."""
    solver, hold_out = config.solver, config.statistics.hold_out
    check_kernel(config, shape.n_features)
    size = None if solver.select == "none" else selection_size(solver.select)
    if size is not None and size > n_candidates:
        raise ConfigError(
            f"`solver.select={solver.select}`: there are {n_candidates} candidates; ask for fewer centers, or for more "
            "candidates with `centers.count`"
        )
    if config.data.class_weight is not None and shape.task == "regression":
        balanced = f"`data.class_weight={config.data.class_weight}`"
        raise ConfigError(f"{balanced}: {shape.dataset} is a regression; leave it out")
    if solver.stop == "paper" and solver.schedule != "uniform":
        raise ConfigError("`solver.stop=paper` needs `solver.schedule=uniform`; choose both or neither")
    asked = what_needs_held_out_rows(config)
    if hold_out == 0 and asked is not None:
        raise ConfigError(f"{asked} needs held-out rows, and `statistics.hold_out=0` has none; give 0.1")


def check_rounds(config: TrainConfig, n_candidates: int) -> None:
    """Raise ConfigError for what needs the Gram of all candidates, or more of it than fits."""
    solver, working_set = config.solver, config.centers.working_set or 0
    if config.centers.on_demand and (
        solver.select != "none" or is_searched(solver.penalty) or solver.penalty == NO_PENALTY
    ):
        raise ConfigError(
            "`centers.columns=on-demand` is for one penalty: give `solver.penalty` a number or max:FRACTION, or leave "
            "it out"
        )
    if solver.select != "none":
        size = selection_size(solver.select)
        if size is None or working_set < SELECTION_ROOM * size:
            raise ConfigError(
                f"`solver.select={solver.select}`: {working_set} of {n_candidates} candidates fit at once; choose at "
                f"most {int(working_set / SELECTION_ROOM)} centers by number, or raise `resources.memory_limit`"
            )
    elif solver.penalty == NO_PENALTY:
        raise ConfigError(
            f"`solver.penalty={solver.penalty}` needs the Gram of all candidates, which does not fit; "
            "give a number or auto, raise `resources.memory_limit`, or use fewer candidates (`centers.count`)"
        )


IMAGE_PENALTY = 0.01
SOFT_SIGMA2 = 0.25  # of square roots of soft-hog, whose norm is 1
HISTOGRAM_SIGMA2 = 4.0
ROOT_SIGMA2 = 8.0  # of roots of histograms, whose squared norm is 20 for sphog of any image size


@dataclass(frozen=True)
class Room:
    """What there is to fit: different rows, and bytes for candidates and their Grams."""

    n_different: int
    memory_bytes: int


def fill_in(
    config: TrainConfig, shape: FeatureShape, explicit: frozenset[str], room: Room | None = None
) -> tuple[TrainConfig, list[str]]:
    """Fill in what the data decide: penalty, width, scales, number of centers, intercept; return notes for the user.

    room: what is known of the rows before a run; None: all differ, and a process takes its part of the memory limit.
    Raises ConfigError where more centers were asked for than there are training rows; a default is lowered.
    """
    room = room or Room(shape.n_train, limit_bytes(config.resources) - PROCESS_BYTES)
    raw = config.features.name == "raw"
    if config.kernel.name == AUTO_KERNEL:  # which chooses the width as well
        learns = "learned" if config.kernel.sigma2 is None and raw else "none"
        config = _with_defaults(config, {"kernel.sigma2": "auto", "kernel.scale": learns})
    if raw:
        config = _with_problem(config, shape, explicit, room.n_different)
    else:
        sigma2 = _image_width(config)
        if config.kernel.name not in (None, "gaussian"):
            sigma2 = "median"  # of other distances
        defaults = {"solver.penalty": IMAGE_PENALTY, "kernel.sigma2": sigma2, "kernel.scale": "none"}
        config = _with_defaults(config, defaults)
    config = _with_defaults(config, {"kernel.name": "gaussian", "solver.intercept": raw})
    if "kernel.scale_rounds" in explicit and not learns_scales(config.kernel.scale):
        raise ConfigError("`kernel.scale_rounds` has no effect without `kernel.scale=learned`; add it, or leave it out")
    config, notes = _with_count(config, shape, explicit, room)
    check_combinations(config, shape, count_candidates(config, shape.n_train))
    return _with_precision(_with_centring(config, shape)), notes


def _image_width(config: TrainConfig) -> float | str:
    """Return the default σ² of the Gaussian kernel of image features."""
    if config.features.name == "soft-hog":
        return SOFT_SIGMA2 if config.features.power == ROOT else "median"
    return HISTOGRAM_SIGMA2 if config.features.power == 1.0 else ROOT_SIGMA2


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
            or config.centers.count == "all"
            or config.centers.on_demand
            or config.statistics.hold_out == 0
        )
        config = with_value(config, "solver.penalty", DEFAULT_PENALTY if has_penalty else NO_PENALTY)
    if not _is_simple(config):
        return _with_defaults(config, {"kernel.name": "gaussian", "kernel.sigma2": "median", "kernel.scale": "none"})
    config = with_value(config, "solver.refit", "ridge")
    free = kernel.sigma2 in (None, "auto")
    config = _with_defaults(config, {"kernel.name": AUTO_KERNEL if free else "gaussian"})
    scale = "learned" if kernel.sigma2 is None else "none"
    return _with_defaults(config, {"kernel.scale": scale, "kernel.sigma2": "auto"})


def _with_precision(config: TrainConfig) -> TrainConfig:
    """Fill in the precision of kernel values: float64 where there is a certificate, which is of columns in it.

    Features of images are long, and their inner products nearly all the work: they stay float32.
    """
    if config.kernel.precision != "auto":
        return config
    has_certificate = config.solver.select == "none" and config.solver.penalty != NO_PENALTY
    exact = has_certificate and config.features.name == "raw"
    return with_value(config, "kernel.precision", "float64" if exact else "float32")


def _is_simple(config: TrainConfig) -> bool:  # all candidates are fitted by least squares
    return config.solver.penalty == NO_PENALTY and config.solver.select == "none"


def penalised(config: TrainConfig, asked: TrainConfig) -> TrainConfig:
    """Return the settings with a penalty in place of none, which was filled in: for candidates without a whole Gram."""
    if not _is_simple(config):
        return config
    changed = {
        "solver.penalty": DEFAULT_PENALTY,
        "solver.refit": asked.solver.refit,
        "kernel.precision": asked.kernel.precision,
    }
    return _with_precision(with_values(config, changed))


def by_budget(asked: TrainConfig, filled: TrainConfig) -> bool:
    """Return whether a budget said how many candidates there are of a fit by least squares, which needs their Gram."""
    return _is_simple(filled) and asked.centers.count is None and asked.centers.working_set is None


def _with_count(
    config: TrainConfig, shape: FeatureShape, explicit: frozenset[str], room: Room
) -> tuple[TrainConfig, list[str]]:
    """Fill in the number of candidates: as many as the budget pays for, or the default."""
    centers, n = config.centers, room.n_different
    given = [key for key in ("centers.count", "centers.budget") if key in explicit]
    if len(given) > 1:
        raise ConfigError("`centers.count` and `centers.budget` both say how many candidates there are; leave one out")
    if "centers.budget" in explicit or (centers.count is None and _is_simple(config)):
        budget = centers.budget or DEFAULT_BUDGET
        count = min(candidates_within(_fit_of(config, shape), budget, room.memory_bytes), n)
        words = (
            f"at most {count} candidate centers of {n} rows: what a budget of {budget:g} core seconds and the memory"
        )
        words += " allow"
        config = with_values(config, {"centers.count": count, "centers.budget": budget})
        return config, [f"{words} (--budget, --centers)"] if count < n else []
    asked = CENTERS if centers.count is None else centers.count
    if asked == "all" or int(asked) <= n:
        return with_value(config, "centers.count", asked), []
    if "centers.count" in explicit:
        raise ConfigError(f"`centers.count={asked}`: {shape.dataset} has {n} training rows; ask for fewer, or all")
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
        kernels=len(kernels_of(config.kernel)),
        scaled=learns_scales(config.kernel.scale),
        of_classes=shape.task != "regression",
    )


def trial_sizes(config: TrainConfig, shape: FeatureShape) -> TrialSizes:
    """Return how large the trials of kernels are: what a budget pays for; half of the default one, where none is."""
    if config.centers.budget is not None:
        return _fit_of(config, shape).trial_sizes(config.centers.budget)
    sizes = _fit_of(config, shape).trial_sizes(DEFAULT_BUDGET / 2)
    chosen = None if config.solver.select == "none" else selection_size(config.solver.select)
    most = min(count_candidates(config, shape.n_train), config.centers.working_set or shape.n_train)
    used = min(most, max(chosen or most, TRIAL_SIZES[-1].few), MOST_TRIED)
    return replace(sizes, more=min(max(sizes.more, sizes.few), used), most=used)


def grows(config: TrainConfig) -> bool:
    """Return whether the number of candidates grows while the held-out error falls: of least squares by a budget."""
    return _is_simple(config) and config.centers.budget is not None and isinstance(config.centers.count, int)


def _with_centring(config: TrainConfig, shape: FeatureShape) -> TrainConfig:
    """Fill in whether the targets are centred: without an intercept it would be another problem."""
    possible = shape.task == "regression" and bool(config.solver.intercept)
    if config.data.centre_targets and not possible:
        raise ConfigError("`data.centre_targets=true` needs a regression with `solver.intercept=true`; leave it out")
    return _with_defaults(config, {"data.centre_targets": possible})


def count_candidates(config: TrainConfig, n_train: int) -> int:
    """Return how many candidates a run has, whose data have `n_train` training rows."""
    asked = config.centers.count
    assert asked is not None  # the plan has filled it in
    return n_train if asked == "all" else int(asked)


def is_in_rounds(config: TrainConfig, n_train: int) -> bool:
    """Return whether a working set grows: there is no room for the Gram of all candidates, or they enter on demand."""
    return config.centers.on_demand or (config.centers.working_set or 0) < count_candidates(config, n_train)


def preselection_of(config: TrainConfig, n_train: int) -> Preselection | None:
    """Return how the finalists of a run's selection are chosen; None where it has none, or is none."""
    if config.solver.select == "none":
        return None
    n_candidates = count_candidates(config, n_train)
    n_fit = n_train * (1.0 - config.statistics.hold_out)
    return preselection(n_fit, n_candidates, config.centers.working_set or 0, selection_size(config.solver.select))
