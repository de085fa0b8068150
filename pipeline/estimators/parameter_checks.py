"""Parameters of the estimators that make no sense, or ask for more memory than there is: refused before a fit."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from pipeline.config.parsers import PENALTIES, byte_size, duration, selection
from pipeline.config.parsers import penalty as penalty_setting
from pipeline.estimators.filled_parameters import widths_of
from pipeline.kernels.kernel_forms import KERNELS, Kernel
from pipeline.solvers.bandwidth_choice import MOST_CENTERS
from pipeline.solvers.options import SolverOptions

TOLERANCE = 1e-3  # where nothing is asked for
_LEAST_SQUARES_GRAMS = 7  # at once: of the fit rows, the held-out rows and all, centred, a factor, copies


def check_memory(
    n_candidates: int,
    n_features: int,
    limit: int,
    *,
    holds_out: bool,
    centred: bool,
    greedy: bool,
    least_squares: bool,
    tries_widths: bool,
) -> None:
    """Raise MemoryError where the Grams and the points of a fit do not fit `limit` bytes.

    `holds_out`: statistics of held-out rows are kept beside those of the rest and of all; `centred`: an intercept is
    fitted on a copy; `greedy`: centers are chosen, which takes up to six more of the size (measured); `least_squares`:
    on all candidates, `tries_widths`: on the first of them: seven in all (measured).
    """
    grams = (3 if holds_out else 1) + int(centred) + (6 if greedy else 0)
    grams = max(grams, _LEAST_SQUARES_GRAMS if least_squares else 0)
    n_tried = min(n_candidates, MOST_CENTERS) if tries_widths else 0
    linear = 16 * n_features
    needed = 8 * max(grams * n_candidates**2, _LEAST_SQUARES_GRAMS * n_tried**2) + linear * n_candidates
    if needed > limit:
        squared = 8 * (max(grams, _LEAST_SQUARES_GRAMS) if tries_widths else grams)
        most = int((np.sqrt(linear**2 + 4.0 * squared * limit) - linear) / (2 * squared))
        raise MemoryError(
            f"{n_candidates} candidates need {needed / 2**20:.1f} MiB (Gram matrices and the points), the "
            f"memory limit is {limit / 2**20:.1f} MiB; lower n_centers to {most} or raise memory_limit, or use "
            "pipeline.train, which needs no whole Gram"
        )


def checked_options(parameters: Mapping[str, Any]) -> SolverOptions:
    """Return the solver's options; raise ValueError naming the first parameter that makes no sense."""
    _check(parameters, _PARAMETERS)
    if parameters["budget"] is not None and (parameters["n_centers"] is not None or parameters["centers"] is not None):
        raise ValueError("budget says how many candidates there are, and so do n_centers and centers; leave one out")
    _check_kernel(parameters)
    return SolverOptions(
        tolerance=TOLERANCE if parameters["tol"] is None else float(parameters["tol"]),
        max_sweeps=int(parameters["max_sweeps"]),
        schedule=parameters["schedule"],
    )


def check_landmarks(parameters: Mapping[str, Any]) -> None:
    """Raise ValueError naming the first parameter of a choice of landmarks that makes no sense."""
    _check(parameters, _LANDMARKS)
    _check_width(Kernel(parameters["kernel"]), parameters["sigma2"] != "median")


def _check(parameters: Mapping[str, Any], expectations: "_Expectations") -> None:
    for name, (fits, expected) in expectations.items():
        if not fits(parameters[name]):
            raise ValueError(f"{name} must be {expected}; found {parameters[name]!r}")


def _check_kernel(parameters: Mapping[str, Any]) -> None:
    """Raise ValueError for widths and scales that the kernel does not know."""
    kernel, sigma2 = Kernel(parameters["kernel"]), widths_of(parameters["sigma2"])
    _check_width(kernel, sigma2 is not None)
    if parameters["feature_scale"] not in (None, "auto"):
        if not kernel.is_bounded:
            raise ValueError(f"feature_scale: scales are learned for the gaussian kernel, not the {kernel.name} one")
        if isinstance(sigma2, tuple):
            raise ValueError(f"feature_scale is for one width, sigma2 lists {len(sigma2)}; leave one of them out")


def _check_width(kernel: Kernel, is_given: bool) -> None:
    if is_given and not kernel.has_width:
        raise ValueError(f"sigma2 has no effect on the {kernel.name} kernel; leave it out")


def _positive(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf


def _is_truth(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _at_least_one(value: object) -> bool:
    return _is_whole(value) and int(value) >= 1  # type: ignore[call-overload]


def _is_selection(value: object) -> bool:
    try:
        return value is None or (isinstance(value, str) and selection(value) != "none")
    except ValueError:
        return False


def _is_budget(value: object) -> bool:
    try:
        return value is None or (not isinstance(value, bool) and duration(value) > 0)
    except ValueError:
        return False


def _is_limit(value: object) -> bool:
    try:
        return value is None or (not isinstance(value, bool) and byte_size(value) > 0)
    except ValueError:
        return False


def _is_penalty(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(penalty_setting(value))
    except ValueError:
        return False


def _is_width(value: object) -> bool:
    try:
        return not isinstance(value, bool) and bool(widths_of(value))
    except ValueError:
        return False


def _one_of(*allowed: str | None) -> tuple[Callable[[object], bool], str]:
    return lambda value: any(value is one or (isinstance(value, str) and value == one) for one in allowed), " or ".join(
        repr(one) for one in allowed
    )


_Expectations = dict[str, tuple[Callable[[object], bool], str]]

_COUNT: tuple[Callable[[object], bool], str] = (
    lambda value: value is None or (isinstance(value, str) and value == "all") or _at_least_one(value),
    "a whole number of at least 1, 'all' or None",
)

# Of whatever computes kernel columns.
_OF_COLUMNS: _Expectations = {
    "kernel": _one_of(*KERNELS),
    "degree": (lambda value: _at_least_one(value) and int(value) <= 20, "a whole number of 1 to 20"),  # type: ignore[call-overload]
    "memory_limit": (_is_limit, "a size such as 2GiB, a number of bytes above 0 or None"),
}

_LANDMARKS: _Expectations = _OF_COLUMNS | {
    "n_components": (_at_least_one, "a whole number of at least 1"),
    "sigma2": (lambda value: _positive(value) or (isinstance(value, str) and value == "median"), "above 0 or 'median'"),
    "n_candidates": _COUNT,
}

_PARAMETERS: _Expectations = _OF_COLUMNS | {
    "n_centers": _COUNT,
    "budget": (_is_budget, "a number of core seconds or a time such as '2m', and n_centers None, or None"),
    "patience": (lambda value: _is_whole(value), "a whole number of at least 0"),
    "verbose": (lambda value: _is_truth(value) or _is_whole(value), "0 or 1"),
    "standardise": (_is_truth, "True or False"),
    "sigma2": (
        lambda value: value is None or _is_width(value),
        "above 0, several such numbers, 'median', 'auto' or None",
    ),
    "feature_scale": _one_of(None, "learned", "diagonal", "metric", "auto"),
    "penalty": (
        lambda value: value is None or _positive(value) or _is_penalty(value),
        f"None, or {PENALTIES.removeprefix('must be ')}",
    ),
    "refit": _one_of(None, "ridge"),
    "select": (_is_selection, "'greedy:K' with a number of centers K, 'greedy:auto' or None"),
    "coupling": _one_of("one-vs-all", "shared"),
    "fit_intercept": (_is_truth, "True or False"),
    "warm_start": (_is_truth, "True or False"),
    "callback": (lambda value: value is None or callable(value), "a function or None"),
    "tol": (lambda value: value is None or _positive(value), "a number above 0 or None"),
    "max_sweeps": (_at_least_one, "a whole number of at least 1"),
    "schedule": _one_of("shrinking", "uniform"),
}
