"""Parameters of the estimators as the settings of a run, and what is checked of them, sizes and memory before a fit."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from features.errors import DataError, UsageError
from features.targets import outputs
from pipeline.config.parsers import NO_PENALTY, is_searched
from pipeline.config.settings import SETTINGS, with_values
from pipeline.config.train_config import TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_request import FeatureShape
from pipeline.errors import ConfigError, InvalidDataError, reworded
from pipeline.estimators.array_features import ArrayFeatures, Cells, Rows, is_sliced
from pipeline.kernels.gram_statistics import LEAST_TARGET
from pipeline.solvers.candidate_budget import MOST_TRIED, TRIAL_SIZES
from pipeline.stages.filled_settings import is_chosen

# Each parameter, the setting that it is, and what that calls None of the parameter (no entry: to be filled in).
PARAMETERS: dict[str, str] = {
    "n_centers": "centers.count",
    "budget": "centers.budget",
    "standardise": "data.standardise",
    "categorical": "data.categorical",
    "missing": "data.missing",
    "kernel": "kernel.name",
    "sigma2": "kernel.sigma2",
    "feature_scale": "kernel.scale",
    "penalty": "solver.penalty",
    "refit": "solver.refit",
    "select": "solver.select",
    "polish_centers": "solver.polish_centers",
    "fit_intercept": "solver.intercept",
    "tol": "solver.tolerance",
    "max_sweeps": "solver.max_sweeps",
    "schedule": "solver.schedule",
    "memory_limit": "resources.memory_limit",
}
MAY_BE_NONE = {"n_centers", "budget", "kernel", "sigma2", "feature_scale", "penalty", "refit", "select", "tol"}
MAY_BE_NONE |= {"memory_limit", "categorical", "missing"}
NONE_MEANS = {**dict.fromkeys(("categorical", "missing")), "feature_scale": "none", "refit": "none"}
NONE_MEANS |= {"select": "none"}
# Parameters of the penalised problem, with their defaults; any other value asks for it.
OF_A_PENALTY: dict[str, object] = {"refit": None, "tol": None, "max_sweeps": 1000, "schedule": "shrinking"}

_TRUTH = ("standardise", "fit_intercept")
_OF_DATA = ("categorical", "missing")
_WORDS = (*_OF_DATA, "kernel", "feature_scale", "refit", "select", "schedule")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{name: (lambda value: isinstance(value, bool | np.bool_), "True or False") for name in _TRUTH},
    "verbose": (lambda value: isinstance(value, bool | Integral) and int(value) >= 0, "0 or 1"),
    "callback": (lambda value: value is None or callable(value), "a function or None"),
    "tol": (lambda value: value is None or _is_positive(value), "a number above 0 or None"),
}


def _is_positive(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf


def settings_of(parameters: Mapping[str, Any]) -> tuple[TrainConfig, frozenset[str]]:
    """Return the settings that parameters ask for, and the keys of those not at their defaults. Raises ValueError."""
    usual = {"features.name": "raw", "features.power": 1.0, "resources.features_store": "none"}
    for name, (fits, expected) in _CHECKS.items():
        if not fits(parameters[name]):
            raise ValueError(f"{name} must be {expected}; found {parameters[name]!r}")
    given = {key: parsed(name, parameters[name]) for name, key in PARAMETERS.items()}
    config = with_values(TrainConfig("X"), usual | {key: value for key, value in given.items() if value is not None})
    asked = [name for name, default in OF_A_PENALTY.items() if parameters[name] != default]
    asked += [name for name in ("n_centers", "budget") if parameters[name] is not None]
    if parameters["budget"] is not None and parameters["n_centers"] is not None:
        raise ValueError("budget says how many candidates there are, and so does n_centers; leave one out")
    return config, frozenset(PARAMETERS.get(name, "solver.tolerance") for name in asked)


def parsed(name: str, value: Any) -> Any:
    """Return the setting that a parameter stands for; None where it is to be filled in. Raises ValueError."""
    if value is None and name not in MAY_BE_NONE:
        raise ValueError(f"{name} must not be None")
    if value is None or (name == "feature_scale" and value == "auto"):
        return NONE_MEANS.get(name) if value is None else None
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    wrong = isinstance(plain, bool) != (name in _TRUTH) or (name in _WORDS and not isinstance(plain, str))
    wrong |= name in NONE_MEANS and plain == "none"
    try:
        return SETTINGS[PARAMETERS[name]].parse("~" if wrong else plain)  # which no setting is
    except (ValueError, TypeError, AttributeError) as error:
        reason = str(error) if str(error).startswith("must") else "must be another: it is of the wrong kind"
    reason = reason.replace(", or all", ", all or None")
    reason = reason.replace("none", "None", 1) if name in NONE_MEANS else reason
    raise ValueError(f"{name} {reason}; found {' '.join(repr(value).split()):.200}")


def seed_of(random_state: Any) -> int:
    """Return an int as it is, and one drawn from anything else that scikit-learn takes."""
    if isinstance(random_state, Integral):
        check_random_state(random_state)
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


_NAMES = {key: name for name, key in PARAMETERS.items()}
_OTHER = rf"`(?!(?:{'|'.join(map(re.escape, _NAMES))})[=`])[a-z]+\.[a-z_0-9]+(?:=[^`]*)?`"  # a setting, no parameter
# A piece of advice that has one: in brackets, or from "; " or ", or " to the next such.
_ADVICE = re.compile(rf" \([^()]*{_OTHER}[^()]*\)|(?:; |, or )(?:(?!; |, or | \().)*?{_OTHER}(?:(?!; |, or ).)*")
_OF_TABLES = (  # what the reading of a table says
    (r" \(--set '?data\.drop=.*\)", ""),
    (r"--set 'data\.(categorical|missing)=(.*)'", r"\1='\2'"),
    (r"--set data\.(categorical|missing)=([^\s)]+)", r"\1='\2'"),
    (r"data\.(categorical|missing)", r"\1"),
    ("set data.standardise=false", "standardise=False"),
)


def in_parameters(message: str) -> str:
    """Return a message of the steps of a fit with its settings as parameters, without those that are none."""
    for pattern, instead in _OF_TABLES:
        message = re.sub(pattern, instead, message)
    return reworded(_ADVICE.sub("", message), _parameter)


def _parameter(key: str, value: str | None) -> str:
    name = _NAMES.get(key, key)
    if value is None:
        return name
    if value in ("true", "false"):
        return f"{name}={value == 'true'}"
    return f"{name}=None" if value == "none" and NONE_MEANS.get(name) == "none" else f"{name}={value!r}"


@contextmanager
def as_value_error() -> Iterator[None]:
    """Raise as ValueError what the steps of a fit say of data and settings, in the words of the parameters."""
    try:
        yield
    except (ConfigError, InvalidDataError, DataError, UsageError, LinAlgError) as error:
        raise ValueError(in_parameters(str(error))) from None


_LEAST_SQUARES_GRAMS = 7  # at once: of the fit rows, the held-out rows and all, centred, a factor, copies


def clipped_count(n_centers: int | str | None, n_different: int) -> int | str | None:
    """Return how many candidates are asked for, with a warning where no more rows than `n_different` differ."""
    if not isinstance(n_centers, Integral):
        return n_centers
    if n_centers > n_different:
        warnings.warn(
            f"n_centers={n_centers} is above the {n_different} different rows of weight above 0; all are candidates",
            UserWarning,
            stacklevel=4,
        )
    return min(int(n_centers), n_different)


def row_weights(sample_weight: ArrayLike | None, rows: Rows | Cells) -> NDArray[np.float64] | None:
    """Return the row weights (n,); None where none are given."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight) if is_sliced(sample_weight) else sample_weight
    return np.asarray(_check_sample_weight(weights, rows, dtype=np.float64, ensure_non_negative=True))


def check_size(features: ArrayFeatures, shape: FeatureShape) -> None:
    """Raise ValueError where the weighted squares of the targets leave float64, upwards or downwards."""
    signs = outputs(features.targets("train", 0, shape.n_train), shape.task, len(shape.classes))
    weights = features.weights("train", 0, shape.n_train)
    counts = np.ones(len(signs)) if weights is None else weights
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(counts @ (signs**2).sum(axis=1)) * float(counts.sum())
    if not np.isfinite(total):
        raise ValueError("y or sample_weight is too large: its sum of squares leaves float64; rescale it")
    if 0.0 < np.abs(signs).max(initial=0.0) < LEAST_TARGET:
        raise ValueError(f"y is too small: no target is above {LEAST_TARGET:g}; rescale it")


def check_memory(config: TrainConfig, shape: FeatureShape, n_candidates: int, limit: int) -> None:
    """Raise MemoryError where the Grams and the points of a fit do not fit `limit` bytes.

    Where something is chosen by held-out rows, their statistics are kept beside those of the rest and of all; with an
    intercept, a centred copy, along a path another; a factor. A greedy choice takes up to five more of the size
    (measured); least squares on all candidates, and trials of widths on the first of them, seven in all (measured).
    """
    greedy, least_squares = config.solver.select != "none", config.solver.penalty == NO_PENALTY
    searched = is_searched(config.solver.penalty) and not greedy
    chosen = config.statistics.hold_out and what_needs_held_out_rows(config)
    grams = (3 if chosen else 1) + bool(config.solver.intercept) * (2 if searched else 1)
    grams += 5 if greedy else 1
    grams = max(grams, _LEAST_SQUARES_GRAMS if least_squares and not greedy else 0)
    tries_widths = is_chosen(config.kernel)
    n_tried = min(n_candidates, MOST_TRIED) if tries_widths else 0
    linear = 16 * shape.n_features
    needed = 8 * max(grams * n_candidates**2, _LEAST_SQUARES_GRAMS * n_tried**2) + linear * n_candidates
    needed += 8 * shape.n_features * min(shape.n_train, 2 * TRIAL_SIZES[-1].n_rows) if tries_widths else 0  # the sample
    if needed > limit:
        squared = 8 * (max(grams, _LEAST_SQUARES_GRAMS) if tries_widths else grams)
        most = int((np.sqrt(linear**2 + 4.0 * squared * limit) - linear) / (2 * squared))
        raise MemoryError(
            f"{n_candidates} candidates need {needed / 2**20:.1f} MiB (Gram matrices and the points), the "
            f"memory limit is {limit / 2**20:.1f} MiB; lower n_centers to {most} or raise memory_limit, or use "
            "pipeline.train, which needs no whole Gram"
        )
