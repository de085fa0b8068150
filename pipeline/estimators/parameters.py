"""Parameters of the estimators as the settings of a run: parsed, filled in and checked as those are."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from sklearn.utils import check_random_state

from features.errors import DataError
from pipeline.config.settings import SETTINGS, with_value
from pipeline.config.train_config import TrainConfig
from pipeline.errors import ConfigError, InvalidDataError
from pipeline.kernels.kernel_forms import Kernel

# Each parameter, the setting that it is, and what that calls None of the parameter (no entry: to be filled in).
PARAMETERS: dict[str, str] = {
    "n_centers": "centers.count",
    "budget": "centers.budget",
    "standardise": "data.standardise",
    "kernel": "kernel.name",
    "degree": "kernel.degree",
    "sigma2": "kernel.sigma2",
    "feature_scale": "kernel.scale",
    "penalty": "solver.penalty",
    "patience": "solver.patience",
    "refit": "solver.refit",
    "select": "solver.select",
    "polish_centers": "solver.polish_centers",
    "coupling": "solver.coupling",
    "fit_intercept": "solver.intercept",
    "tol": "solver.tolerance",
    "max_sweeps": "solver.max_sweeps",
    "schedule": "solver.schedule",
    "memory_limit": "resources.memory_limit",
    "n_candidates": "centers.count",
}
NONE_MEANS = {"feature_scale": "none", "refit": "none", "select": "none"}
# Parameters of the penalised problem, with their defaults; any other value asks for it.
OF_A_PENALTY: dict[str, object] = {"refit": None, "coupling": "one-vs-all", "tol": None, "max_sweeps": 1000}
OF_A_PENALTY |= {"schedule": "shrinking", "warm_start": False}

_TRUTH = ("standardise", "fit_intercept", "warm_start")
_WORDS = ("kernel", "feature_scale", "refit", "select", "coupling", "schedule")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{name: (lambda value: isinstance(value, bool | np.bool_), "True or False") for name in _TRUTH},
    "verbose": (lambda value: isinstance(value, bool | Integral) and int(value) >= 0, "0 or 1"),
    "callback": (lambda value: value is None or callable(value), "a function or None"),
    "tol": (lambda value: value is None or _is_positive(value), "a number above 0 or None"),
}


def _is_positive(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf


def settings_of(parameters: Mapping[str, Any]) -> tuple[TrainConfig, frozenset[str]]:
    """Return the settings that parameters ask for, and the keys of those that are not at their defaults.

    Raises ValueError naming the first parameter that makes no sense.
    """
    config, explicit = TrainConfig("X"), set[str]()
    config = with_value(config, "features.name", "raw")
    config = with_value(with_value(config, "features.power", 1.0), "resources.features_store", "none")
    for name, (fits, expected) in _CHECKS.items():
        if name in parameters and not fits(parameters[name]):
            raise ValueError(f"{name} must be {expected}; found {parameters[name]!r}")
    for name, key in PARAMETERS.items():
        if name not in parameters:
            continue
        value = parsed(name, parameters[name])
        if value is not None:
            config = with_value(config, key, value)
    for name, default in OF_A_PENALTY.items():
        if name in parameters and parameters[name] != default:
            explicit.add(PARAMETERS.get(name, "solver.tolerance"))
    explicit |= {PARAMETERS[name] for name in ("n_centers", "budget") if parameters.get(name) is not None}
    if parameters.get("budget") is not None and any(parameters.get(n) is not None for n in ("n_centers", "centers")):
        raise ValueError("budget says how many candidates there are, and so do n_centers and centers; leave one out")
    kernel = Kernel(config.kernel.name)
    if config.kernel.sigma2 not in (None, "median") and not kernel.has_width:
        raise ValueError(f"sigma2 has no effect on the {kernel.name} kernel; leave it out")
    return config, frozenset(explicit)


def parsed(name: str, value: Any) -> Any:
    """Return the setting that a parameter stands for; None where it is to be filled in. Raises ValueError."""
    if value is None or (name == "feature_scale" and value == "auto"):
        return NONE_MEANS.get(name) if value is None else None
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    wrong = isinstance(plain, bool) != (name in _TRUTH) or (name in _WORDS and not isinstance(plain, str))
    wrong |= name in NONE_MEANS and plain == "none"
    try:
        if not wrong:
            return SETTINGS[PARAMETERS[name]].parse(plain)
        reason = "is of the wrong kind"
    except (ValueError, TypeError, AttributeError) as error:
        reason = str(error)
    reason = reason if reason.startswith("must") else "must be another: it is of the wrong kind"
    raise ValueError(f"{name} {reason.replace(', or all', ', all or None')}; found {value!r}")


def seed_of(random_state: Any) -> int:
    """Return an int as it is, and one drawn from anything else that scikit-learn takes."""
    if isinstance(random_state, Integral):
        check_random_state(random_state)
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


_FLAGS = {  # of the command, and what the estimators call it
    "--centers": "n_centers",
    "--center-list": "centers",
    "--scale": "feature_scale",
    "--tol": "tol",
    "--intercept": "fit_intercept",
    "--init-from": "warm_start",
    "kernel.scale_rounds": "feature_scale",
}
_PHRASES = {
    " (--set data.standardise=true)": "",
    "set data.standardise=false": "standardise=False",
    "; set statistics.hold_out to 0.1": "",
    "set statistics.hold_out to 0.1, or ": "",
}


@contextmanager
def as_value_error() -> Iterator[None]:
    """Raise as ValueError what the steps of a fit say of data and settings, in the words of the parameters."""
    try:
        yield
    except (ConfigError, InvalidDataError, DataError, LinAlgError) as error:
        words = re.sub(r", or hold out none \(--set [^)]*\)", "", str(error))
        words = re.sub(r"all (\d+) training rows", r"all \1 samples", words)
        for phrase, instead in _PHRASES.items():
            words = words.replace(phrase, instead)
        words = re.sub(r"(--(?:[a-z0-9]+-?)+) (learned|diagonal|metric|ridge|auto|none|greedy:\w+)", r"\1='\2'", words)
        for flag, name in _FLAGS.items():
            words = words.replace(flag, name)
        words = re.sub(r"--([a-z0-9]+(?:-[a-z0-9]+)*)", lambda flag: flag[1].replace("-", "_"), words)
        raise ValueError(words) from None
