"""Parameters of the estimators that the data decide: filled in as the command fills in its settings for a table."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.config.parsers import NO_PENALTY, duration, is_searched, selection_size, widths
from pipeline.config.parsers import penalty as parsed_penalty
from pipeline.kernels.kernel_forms import Kernel
from pipeline.solvers.candidate_budget import CENTERS, DEFAULT_BUDGET, LEAST_ROWS, Fit, candidates_within
from pipeline.solvers.feature_scales import MOST_ROUNDS
from pipeline.solvers.regularization_path import DEFAULT_PENALTY

# Parameters of the penalised problem, with their defaults; any other value asks for it.
_OF_A_PENALTY: dict[str, object] = {"refit": None, "coupling": "one-vs-all", "tol": None, "max_sweeps": 1000}
_OF_A_PENALTY |= {"schedule": "shrinking", "warm_start": False}


@dataclass(frozen=True)
class Filled:
    """What a fit goes by; no penalty: least squares, on all candidates or on those chosen.

    n_candidates: where their number was left open; scale: which scales of the features are learned, None for none, in
    how many rounds at most.
    """

    penalty: float | str | None
    sigma2: float | str | tuple[float, ...]
    scale: str | None
    scale_rounds: int
    n_candidates: int

    @property
    def tries_distances(self) -> bool:
        """Whether widths or scales are compared on held-out rows."""
        return self.sigma2 == "auto" or self.scale is not None

    @property
    def holds_out(self) -> bool:
        """Whether something is chosen by held-out rows, refit and selection apart."""
        return self.penalty is None or is_searched(self.penalty) or self.tries_distances


def fill_in(
    parameters: Mapping[str, Any], n_different: int, n_rows: int, n_features: int, n_outputs: int, memory_bytes: int
) -> Filled:
    """Return what the parameters of an estimator, checked, come to for a fit of this size.

    n_different: of the rows, which are that many if equal ones count once.
    """
    selected = parameters["select"] is not None
    penalty = None if selected else _penalty_of(parameters, n_different)
    simple = penalty is None and not selected
    kernel, scale = Kernel(parameters["kernel"]), parameters["feature_scale"]
    sigma2 = widths_of(parameters["sigma2"]) if kernel.has_width else 1.0
    budget = DEFAULT_BUDGET if parameters["budget"] is None else duration(parameters["budget"])
    fit = Fit(
        n_rows=n_rows,
        n_features=n_features,
        n_outputs=n_outputs,
        penalised=penalty is not None,
        chosen=(selection_size(parameters["select"]) or 0) if selected else None,
        scaled=scale not in (None, "auto"),
    )
    rounds = MOST_ROUNDS
    if scale == "auto":
        learns = simple and kernel.is_bounded and sigma2 is None
        rounds = min(fit.rounds_within(budget), MOST_ROUNDS) if learns else 0
        scale = "learned" if rounds else None
        fit = replace(fit, scaled=scale is not None)
    by_budget = simple or parameters["budget"] is not None
    return Filled(
        penalty=penalty,
        sigma2=sigma2 if sigma2 is not None else "auto" if simple else "median",
        scale=scale,
        scale_rounds=rounds,
        n_candidates=candidates_within(fit, budget, memory_bytes) if by_budget else CENTERS,
    )


def _penalty_of(parameters: Mapping[str, Any], n_rows: int) -> float | str | None:
    """Return the penalty of a fit to so many rows: that asked for, or the default of the command on a table.

    That is none, but where something asks for the penalised problem, or the rows are too few to choose a ridge by.
    """
    penalty = parameters["penalty"]
    if penalty is not None:
        return None if penalty == NO_PENALTY else parsed_penalty(penalty)
    asked = any(parameters[name] != default for name, default in _OF_A_PENALTY.items())
    asked = asked or isinstance(widths_of(parameters["sigma2"]), tuple)
    return DEFAULT_PENALTY if asked or parameters["n_centers"] == "all" or n_rows < LEAST_ROWS else None


def widths_of(sigma2: Any) -> float | str | tuple[float, ...] | None:
    """Return the width that an estimator was given, or several. Raises ValueError where they are none."""
    return None if sigma2 is None else widths(sigma2.tolist() if isinstance(sigma2, np.ndarray) else sigma2)
