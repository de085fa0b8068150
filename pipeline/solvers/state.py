"""The state of a solve between two records, as a value, and the records themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.solvers.duality_gap import Certificate
from pipeline.solvers.shrinking import Shrinkage

STATE_FORMAT_VERSION = 1
LEAST_GAP = 1e-12  # of the primal value; a smaller difference to a dual value of other weights is rounding


@dataclass(frozen=True)
class Record:
    """Describe one iteration, a sweep or a polish round.

    Attributes
    ----------
    phase : "sweep" or "polish"
    objective : float
        F(mu), computed afresh; never above the one before.
    primal, dual, relative_gap : float or None
        Of the weights after the iteration, over all candidates; None where it was not certified.
    visited, skipped, screened, moved : int
        Coordinates of this iteration: visited; left out as shrunk; left out for good; changed. In a polish
        round the visited are the support and the admitted, and the moved those whose zero state changed.
    evaluations : int
        Scores evaluated so far, certificates included.
    drift : float
        Largest |G_rec - G_fresh| / |G_fresh| in the iteration; 0 for a polish round.
    seconds : float
        Since the start of the solve; the only entry that differs between equal runs.
    """

    iteration: int
    phase: str
    objective: float
    primal: float | None
    dual: float | None
    relative_gap: float | None
    n_active: int
    visited: int
    skipped: int
    screened: int
    moved: int
    evaluations: int
    drift: float
    seconds: float = 0.0


@dataclass(frozen=True)
class SolverState:
    """Hold all that the next iteration depends on.

    Attributes
    ----------
    phase : "sweep" or "polish"
    mu : (M,) float64
    weights : (M, T) float64
    scores : (M, T) float64
        c_m^T r at ``weights``; meaningful where ``certified``.
    support : (m0,) int64
        In the order of G and of the factorisations, on which the bits depend.
    certified : bool
        Whether ``relative_gap`` belongs to ``weights``.
    settled : bool
        Whether ``weights`` minimise the objective on their face (polish).
    best_weights : (M, T) float64
    best_primal, best_dual : float
        The certified weights of the smallest primal value so far, that value with what rounding may have taken, and
        the largest dual value so far.
    cycle_primal, cycle_gap, idle_cycles : float, float, int
        Smallest primal value and relative gap when the polish last gained something, and its sweeps since then.
    """

    phase: str
    mu: np.ndarray
    weights: np.ndarray
    scores: np.ndarray
    support: np.ndarray
    shrinkage: Shrinkage
    generator_state: Mapping[str, Any]
    objective: float
    previous_objective: float
    relative_gap: float
    certified: bool
    best_weights: np.ndarray
    best_primal: float = float("inf")
    best_dual: float = float("-inf")
    settled: bool = False
    stalled: bool = False
    cycle_objective: float = float("inf")
    cycle_primal: float = float("inf")
    cycle_gap: float = float("inf")
    idle_cycles: int = 0
    iterations: int = 0
    visits: int = 0
    evaluations: int = 0
    moves: int = 0
    records: tuple[Record, ...] = field(default=())

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return (arrays, scalars): plain numpy arrays, and scalars that json can write."""
        arrays = {name: np.array(getattr(self, name)) for name in _ARRAYS}
        arrays["shrunk"] = np.array(self.shrinkage.shrunk)
        arrays["screened"] = np.array(self.shrinkage.screened)
        scalars: dict[str, Any] = {name: getattr(self, name) for name in _SCALARS}
        # Through json and back: numpy scalars become Python's, and integers of any size survive.
        scalars["generator_state"] = json.loads(json.dumps(self.generator_state, default=_plain))
        scalars |= {name: repr(float(scalars[name])) for name in _FLOATS}
        scalars["threshold"] = repr(float(self.shrinkage.threshold))
        scalars["level"] = repr(float(self.shrinkage.level))
        scalars["records"] = [asdict(record) for record in self.records]
        scalars["state_format_version"] = STATE_FORMAT_VERSION
        return arrays, scalars

    @property
    def best_gap(self) -> float:
        """Return the relative gap of ``best_weights``: a dual value bounds the optimum whatever weights it is from."""
        if not np.isfinite(self.best_dual):
            return np.inf
        return max((self.best_primal - self.best_dual) / self.best_primal, LEAST_GAP) if self.best_primal else 0.0

    def with_proof(self, certificate: Certificate) -> SolverState:
        """Return the state with the certificate of its weights taken into account."""
        state = replace(self, certified=True, relative_gap=certificate.relative_gap)
        if not np.isfinite(certificate.gap):
            return state
        primal = certificate.primal + certificate.primal_rounding  # the dual value may be that of other weights
        if primal < self.best_primal:
            state = replace(state, best_weights=self.weights, best_primal=primal)
        return replace(state, best_dual=max(certificate.dual, self.best_dual))

    @staticmethod
    def from_arrays(arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> SolverState:
        """Return the state that `to_arrays` wrote. Raises ValueError for another format version."""
        version = scalars.get("state_format_version")
        if version != STATE_FORMAT_VERSION:
            raise ValueError(f"solver state of format {version} found, {STATE_FORMAT_VERSION} asked for; start anew")
        shrinkage = Shrinkage(
            np.array(arrays["shrunk"]),
            np.array(arrays["screened"]),
            float(scalars["threshold"]),
            float(scalars["level"]),
        )
        values: dict[str, Any] = {name: np.array(arrays.get(name, arrays["weights"])) for name in _ARRAYS}
        # A state of earlier versions knows of no best weights: the next certificate finds some.
        unknown = {"best_primal": "inf", "best_dual": "-inf", "cycle_primal": "inf", "cycle_gap": "inf"}
        scalars = {**unknown, "idle_cycles": 0, **scalars}
        values |= {name: scalars[name] for name in _SCALARS}
        values |= {name: float(scalars[name]) for name in _FLOATS}
        values["generator_state"] = scalars["generator_state"]
        records = tuple(Record(**record) for record in scalars["records"])
        return SolverState(shrinkage=shrinkage, records=records, **values)


_ARRAYS = ("mu", "weights", "scores", "support", "best_weights")
# Written with repr: infinities are no JSON, and repr gives back the same bits.
_FLOATS = (
    "objective", "previous_objective", "relative_gap", "cycle_objective", "best_primal", "best_dual", "cycle_primal",
    "cycle_gap",
)  # fmt: skip
_SCALARS = (
    *_FLOATS, "phase", "certified", "settled", "stalled", "idle_cycles", "iterations", "visits", "evaluations", "moves",
)  # fmt: skip


def _plain(value: Any) -> Any:
    """Return a numpy value as json can write it (a generator's state may hold arrays)."""
    return value.tolist()
