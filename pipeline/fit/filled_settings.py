"""Settings are filled in here, once, before anything is computed; those that make no sense for the data are refused.

`fill_in_features` knows the data, `fill_in` also the number of features and the memory; the plan adds how many
candidates have their Gram in memory at once (`pipeline/plan.py`). A run keeps these settings when it is resumed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from features.input_files import is_csv, is_of_arrays, is_picture_folder, is_table, table_files
from features.source import NAMED, Source
from pipeline.config.settings import get, with_value, with_values
from pipeline.config.train_config import AUTO_KERNEL, NO_PENALTY, KernelConfig, TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_rows import FeatureShape
from pipeline.errors import ConfigError
from pipeline.kernels.kernel_functions import KERNELS, METRIC, Kernel, kernel_named
from pipeline.solvers.candidate_budget import (
    CENTERS,
    DEFAULT_BUDGET,
    LEAST_CENTERS,
    LEAST_FOLDED_ROWS,
    OPERATIONS_A_SECOND,
    Fit,
    candidates_within,
)
from pipeline.solvers.kernel_trials import MOST_OF_METRIC
from pipeline.solvers.ladder import RUNGS
from pipeline.solvers.solve import DEFAULT_PENALTY

IMAGE_SIDE = 8  # Pixels of smaller images are as good (digits of 6 x 6: 1.8 % errors, 1.7 % by histograms).
ROOT = 0.5  # Square roots of soft-hog make fewer errors on MNIST and USPS (docs/pictures.md).
BRIGHTNESS, COLOUR_BRIGHTNESS = 0.8, 1.0  # Deskewed images have none (docs/pictures.md).
IMAGE_PENALTY = 0.01
LARGEST_PENALTY = "max:1"  # It makes any fit a constant.
SOFT_SIGMA2 = 0.25  # Square roots of soft-hog have norm 1.
HISTOGRAM_SIGMA2 = 4.0
ROOT_SIGMA2 = 8.0  # Roots of sphog have a squared norm of 20 for any image size.
MOST_TRIED = 2000  # A kernel is tried on no more candidates, unless the fit grows: more cost more than they tell.
MOST_AT_ONCE = 8000  # For one penalty, the Gram of more candidates is formed only if asked for.
WORKING_SETS = [*range(40_000, 2000, -500), *range(2000, 0, -100)]  # The first size that fits is taken.
PENALISED = {"solver.tolerance", "solver.max_sweeps", "solver.schedule"}


def fill_in_features(config: TrainConfig, source: Source) -> TrainConfig:
    """Fill in task, features and whether inputs are z-scored."""
    config = with_value(config, "data.task", source.task)
    return features_of(config, source.input_shape, source.image_scale, standardise=source.standardise)


def features_of(
    config: TrainConfig, input_shape: tuple[int, ...], scale: float | None, *, standardise: bool
) -> TrainConfig:
    """Fill in the features of inputs, and whether raw ones are z-scored; scale: that of images, else None."""
    if config.features.name == "auto":
        is_image = len(input_shape) > 1 and min(input_shape[:2]) >= IMAGE_SIDE
        config = with_value(config, "features.name", "soft-hog" if is_image else "raw")
    name = config.features.name
    power = ROOT if name == "soft-hog" else 1.0
    has_means = name == "soft-hog" and not config.features.deskew and scale is not None
    means = COLOUR_BRIGHTNESS if len(input_shape) > 2 else BRIGHTNESS
    defaults = {"features.power": power, "features.brightness": means if has_means else 0.0}
    return _with_defaults(config, defaults | {"data.standardise": standardise and name == "raw"})


@dataclass(frozen=True)
class MemoryBudget:
    """The number of different rows, and the bytes for candidates and their Grams."""

    n_different: int
    memory_bytes: int
    fits: Callable[[TrainConfig], bool]  # whether a fit has room; its working set is all candidates


def fill_in(
    asked: TrainConfig, shape: FeatureShape, explicit: frozenset[str], room: MemoryBudget
) -> tuple[TrainConfig, list[str]]:
    """Fill in the settings that data decide: penalty, width, scales, number of centers; return notes for the user."""
    config, raw = asked, asked.features.name == "raw"
    chosen = asked.solver.penalty is not None or "solver.refit" in explicit
    if config.kernel.name == AUTO_KERNEL:  # It chooses the width as well.
        learns = "learned" if config.kernel.sigma2 is None and raw else "none"
        config = _with_defaults(config, {"kernel.sigma2": "auto", "kernel.scale": learns})
    if raw:
        config = _with_problem(config, explicit, room.n_different)
    else:
        defaults = {"solver.penalty": IMAGE_PENALTY, "kernel.sigma2": _image_width(config), "kernel.scale": "none"}
        config = _with_defaults(config, defaults)
        if config.solver.is_penalised and config.statistics.hold_out and not chosen:
            config = with_value(config, "solver.refit", "ridge")  # It makes fewer errors (docs/problem.md).
    config = _with_defaults(config, {"kernel.name": "gaussian"})
    config, notes = _with_count(config, shape, explicit, room)
    refuse(_without_sense(config, shape))
    config, of_memory = _with_memory(config, shape, asked, room)
    return config, [*notes, *of_memory]


def _with_defaults(config: TrainConfig, defaults: Mapping[str, Any]) -> TrainConfig:
    return with_values(config, {key: value for key, value in defaults.items() if get(config, key) is None})


def _image_width(config: TrainConfig) -> float | str:
    if config.kernel.name not in (None, "gaussian"):
        return "median"
    if config.features.name == "soft-hog":
        return SOFT_SIGMA2 if config.features.power == ROOT else "median"
    return HISTOGRAM_SIGMA2 if config.features.power == 1.0 else ROOT_SIGMA2


def _with_problem(config: TrainConfig, explicit: frozenset[str], n_different: int) -> TrainConfig:
    """Fill in the penalty of a table: none, unless something asks for the penalised problem."""
    asks_for_a_penalty = (
        bool(explicit & (PENALISED | {"solver.refit"}))
        or config.solver.refit != "none"
        or config.centers.count == "all"
        or config.centers.on_demand
        or config.statistics.hold_out == 0
    )
    penalty = DEFAULT_PENALTY if asks_for_a_penalty else NO_PENALTY
    if n_different < LEAST_FOLDED_ROWS:  # Nothing can be chosen by folds: no column gets a weight.
        penalty = LARGEST_PENALTY
    config = _with_defaults(config, {"solver.penalty": penalty})
    if not config.solver.is_least_squares:
        return _with_defaults(config, {"kernel.name": "gaussian", "kernel.sigma2": "median", "kernel.scale": "none"})
    kernel = AUTO_KERNEL if config.kernel.sigma2 in (None, "auto") else "gaussian"
    scale = "learned" if config.kernel.sigma2 is None else "none"
    defaults = {"kernel.name": kernel, "kernel.scale": scale, "kernel.sigma2": "auto"}
    return _with_defaults(with_value(config, "solver.refit", "ridge"), defaults)


def _with_count(
    config: TrainConfig, shape: FeatureShape, explicit: frozenset[str], room: MemoryBudget
) -> tuple[TrainConfig, list[str]]:
    centers, n = config.centers, room.n_different
    if explicit >= {"centers.count", "centers.budget"}:
        raise ConfigError("`centers.count` and `centers.budget` both say how many candidates there are; leave one out")
    if "centers.budget" in explicit or (centers.count is None and config.solver.is_least_squares):
        budget = centers.budget or DEFAULT_BUDGET
        count = min(candidates_within(fit_of(config, shape), budget * OPERATIONS_A_SECOND, room.memory_bytes), n)
        note = f"at most {count} candidates of {n} rows: what a budget of {budget:g} core seconds and the memory "
        note += "allow (`centers.budget`, `centers.count`)"
        config = with_values(config, {"centers.count": count, "centers.budget": budget})
        return config, [note] if count < n else []
    asked = CENTERS if centers.count is None else centers.count
    if asked == "all" or int(asked) <= n:
        return with_value(config, "centers.count", asked), []
    if "centers.count" in explicit:
        raise ConfigError(f"`centers.count={asked}`: {shape.dataset} has {n} training rows; ask for fewer, or all")
    note = f"{n} candidates instead of {asked}: there are no more training rows"
    return with_value(config, "centers.count", n), [note]


def _with_memory(
    config: TrainConfig, shape: FeatureShape, asked: TrainConfig, room: MemoryBudget
) -> tuple[TrainConfig, list[str]]:
    """Make room for least squares or a selection, which need the Gram of all candidates.

    If their number was not given, take as many as fit, at least those to choose, or LEAST_CENTERS. If it was, least
    squares that nobody asked for give way to a penalty.
    """
    solver, working_set = config.solver, asked.centers.working_set
    most, least = count_candidates(config, shape.n_train), solver.n_selected if solver.selects else LEAST_CENTERS
    if not (solver.is_least_squares or solver.selects):
        return config, []
    if asked.centers.count is None and working_set is None:
        sizes = [most, *(size for size in WORKING_SETS if least <= size < most)]
        count = next((size for size in sizes if room.fits(with_candidates(config, size))), sizes[-1])
        note = f"{count} candidates, not {most}: more do not fit the memory limit in every stage"
        return with_candidates(config, count), [note] if count < most else []
    if solver.selects:
        return config, []
    fits = room.fits(with_candidates(config, most)) if working_set is None else working_set >= most
    if fits or asked.solver.penalty is not None:
        return config, []
    config = with_values(config, {"solver.penalty": DEFAULT_PENALTY, "solver.refit": asked.solver.refit})
    return config, [f"penalty {DEFAULT_PENALTY}, which needs no Gram of all candidates: that does not fit"]


def with_candidates(config: TrainConfig, count: int) -> TrainConfig:
    """Return the settings with another number of candidates, and the Gram of all in memory."""
    return with_values(config, {"centers.count": count, "centers.working_set": count})


# Questions to settings that are filled in.


def kernels_of(kernel: KernelConfig) -> tuple[type[Kernel], ...]:
    """Return the kernels asked for, or tried, in the order of their names, which decides between equal ones."""
    if kernel.name == AUTO_KERNEL:
        possible = (one for one in KERNELS if one.has_metric or kernel.scale != METRIC)
        return tuple(sorted(possible, key=lambda one: one.name))
    return (kernel_named(kernel.name or "gaussian"),)


def value_dtype(config: TrainConfig, shape: FeatureShape) -> str:
    """Return the dtype of kernel values: float64 for tables, whose ridges may be so small that float32 limits them.

    Features of images are long, and their inner products nearly all the work: they stay as the rows are.
    """
    return "float64" if config.features.name == "raw" else shape.dtype


def is_chosen(kernel: KernelConfig) -> bool:
    """Return whether kernel, width or scales are chosen by held-out rows."""
    return kernel.name == AUTO_KERNEL or kernel.learns_scales or kernel.sigma2 == "auto"


def fit_of(config: TrainConfig, shape: FeatureShape) -> Fit:
    """Return the size of a fit, which decides how many candidates a budget pays for."""
    solver = config.solver
    return Fit(
        n_rows=shape.n_train,
        n_features=shape.n_features,
        n_outputs=shape.n_outputs,
        penalised=solver.is_penalised,
        chosen=solver.n_selected,
        of_classes=shape.task != "regression",
    )


def last_rung(config: TrainConfig, n_train: int, n_candidates: int) -> int:
    """Return the number of candidates that kernels are tried on last: as many as a fit uses, unless it grows."""
    if grows(config):
        return min(RUNGS[-1].n_centers, n_candidates)
    most = min(n_candidates, config.centers.working_set or n_train)
    return min(most, max(config.solver.n_selected or most, RUNGS[-2].n_centers), MOST_TRIED)


def grows(config: TrainConfig) -> bool:
    """Return whether candidates are added while the held-out error falls: in least squares with a budget."""
    centers = config.centers
    return config.solver.is_least_squares and centers.budget is not None and isinstance(centers.count, int)


def count_candidates(config: TrainConfig, n_train: int) -> int:
    """Return the number of candidates of a run with `n_train` training rows."""
    asked = config.centers.count
    assert asked is not None  # It is filled in.
    return n_train if asked == "all" else int(asked)


def is_in_rounds(config: TrainConfig, n_train: int) -> bool:
    """Return whether a working set grows: the Gram of all has no room or takes long, or candidates enter on demand.

    With 20 000 candidates of MNIST, 1900 of which get a weight, it takes four times as long as a working set.
    """
    centers, solver, n = config.centers, config.solver, count_candidates(config, n_train)
    is_long = n > MOST_AT_ONCE and centers.columns is None and solver.is_penalised and solver.penalty != "auto"
    return centers.on_demand or is_long or (centers.working_set or 0) < n


# Settings that are refused.


def refuse(faults: Iterator[str]) -> None:
    """Raise ConfigError with the first fault, if there is one."""
    for fault in faults:
        raise ConfigError(fault)


def without_effect(config: TrainConfig, explicit: frozenset[str]) -> Iterator[str]:
    """Yield the faults of settings that were asked for and have no effect on the data."""
    solver, path, usual = config.solver, Path(config.dataset), TrainConfig("")
    if config.dataset not in NAMED and not path.exists():
        return
    kinds = (is_table, is_picture_folder, is_of_arrays)
    of_table, of_pictures, of_arrays = (config.dataset not in NAMED and holds(path) for holds in kinds)
    files = [*table_files(path), *table_files(Path(config.data.test or path))] if of_table else []
    unused = {
        **{f"data.{key}": not (of_table or of_arrays) for key in ("target", "weights", "groups")},
        "data.test": not (of_table or of_pictures),
        **dict.fromkeys(("features.size", "data.skip_bad"), not of_pictures),
        **{f"data.{key}": not of_table for key in ("columns", "drop", "categorical", "categories", "missing")},
        **{f"data.{key}": of_table for key in ("copies", "deform")},
        **dict.fromkeys(("data.header", "data.decimal"), not any(map(is_csv, files))),
        "data.test_fraction": (config.dataset in NAMED and config.dataset != "digits") or config.data.test is not None,
    }
    for key in sorted(explicit & unused.keys()):
        if unused[key] and get(config, key) != get(usual, key):
            yield f"`{key}` has no effect on {config.dataset}; leave it out"
    if not solver.selects and solver.penalty != NO_PENALTY:
        return
    asked = f"`solver.select={solver.select}`" if solver.selects else f"`solver.penalty={NO_PENALTY}`"
    without = PENALISED | ({"solver.penalty"} if solver.selects else set())
    without |= {"solver.refit"} if solver.refit == "none" else set()
    for key in sorted(explicit & without):
        it = f"`{key}={get(config, key)}`"
        yield f"{it} has no effect with {asked}, whose weights are least squares without a penalty; leave it out"


def _without_sense(config: TrainConfig, shape: FeatureShape) -> Iterator[str]:
    solver, kernel, needs_rows = config.solver, config.kernel, what_needs_held_out_rows(config)
    n_candidates, n_features = count_candidates(config, shape.n_train), shape.n_features
    asked = f"`kernel.scale={kernel.scale}`"
    if kernel.scale == METRIC and n_features > MOST_OF_METRIC:
        yield f"{asked} is for at most {MOST_OF_METRIC} features, there are {n_features}: choose diagonal"
    for one in kernels_of(kernel):
        if kernel.scale == METRIC and not one.has_metric:
            yield f"{asked} cannot be learned for the {one.name} kernel; choose gaussian"
    if kernel.name == AUTO_KERNEL and kernel.sigma2 != "auto":
        yield f"`kernel.name={kernel.name}` also chooses the width; give it `kernel.sigma2=auto`"
    if solver.move_centers:
        yield from _without_moves(config)
    if solver.n_selected > n_candidates:
        yield (
            f"`solver.select={solver.select}`: there are {n_candidates} candidates; ask for fewer centers, or for more "
            "candidates with `centers.count`"
        )
    if config.data.class_weight is not None and shape.task == "regression":
        yield f"`data.class_weight={config.data.class_weight}`: {shape.dataset} is a regression; leave it out"
    if config.statistics.hold_out == 0 and needs_rows is not None:
        yield f"{needs_rows} needs held-out rows, and `statistics.hold_out=0` has none; give 0.1"


def _without_moves(config: TrainConfig) -> Iterator[str]:
    solver, asked = config.solver, f"`solver.move_centers={config.solver.move_centers}`"
    if solver.is_least_squares:
        yield (
            f"{asked} moves centers that were chosen, and with `solver.penalty=none`, given or filled in, all "
            "candidates are centers: add `solver.select=greedy:K`, or `solver.penalty=auto` and `solver.refit=ridge`"
        )
    if not solver.selects and solver.refit == "none":
        way = "add `solver.select=greedy:K` or `solver.refit=ridge`"
        yield f"{asked} refits the weights wherever the centers are: {way}"
    if not all(kernel.can_move for kernel in kernels_of(config.kernel)):
        yield f"{asked} has no gradient for `kernel.name={config.kernel.name}`; choose gaussian"


def without_room(config: TrainConfig, n_candidates: int) -> Iterator[str]:
    """Yield the faults of settings that need the Gram of all candidates, which is not in memory."""
    solver, working_set = config.solver, config.centers.working_set or 0
    if config.centers.on_demand and (not solver.is_penalised or solver.penalty == "auto"):
        yield (
            "`centers.columns=on-demand` is for one penalty: give `solver.penalty` a number or max:FRACTION, or leave "
            "it out"
        )
    if solver.selects:
        yield (
            f"`solver.select={solver.select}` needs the Gram of all {n_candidates} candidates, and "
            f"`centers.working_set={working_set}` has no room for it; leave that out"
        )
    if not solver.selects and solver.penalty in (NO_PENALTY, "auto"):
        yield (
            f"`solver.penalty={solver.penalty}` needs the Gram of all candidates, which does not fit; give a number or "
            "max:FRACTION, raise `resources.memory_limit`, or use fewer candidates (`centers.count`)"
        )
