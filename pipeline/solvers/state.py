"""How to solve, the state of a solve between two iterations, as a value, and the record of each iteration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from pipeline.solvers.problem import Certificate

LEAST_GAP = 1e-12  # of the primal value; a smaller difference to a dual value of other weights is rounding


@dataclass(frozen=True)
class SolverOptions:
    """How to solve. λ is 1: only λν matters (mathematics.md, eq. 19)."""

    tolerance: float = 1e-3  # relative duality gap over all candidates to stop at
    max_sweeps: int = 1000  # limit on iterations, which are sweeps or Newton rounds
    # newton: a short sweep, then Newton rounds, each on the support and the worst violators; shrinking: sweeps that
    # leave out coordinates at zero (`left_out`); uniform: sweeps of M coordinates drawn with replacement;
    # paper: the same with Newton steps, where these do not lower a weight, and the paper's stopping rule, its sign
    # corrected (mathematics.md, eq. 35).
    schedule: str = "newton"


@dataclass(frozen=True)
class Record:
    """One iteration, a sweep or a Newton round."""

    iteration: int
    phase: str
    objective: float  # F(mu), computed afresh; never above the one before
    primal: float | None  # as the next two: of the weights after it, over all candidates; None where not certified
    dual: float | None
    relative_gap: float | None
    n_active: int
    visits: int  # coordinates visited, with repetitions; of a Newton round: in the support or admitted to it
    skipped_as_shrunk: int  # coordinates left out until all are looked at again
    skipped_as_screened: int  # left out for good
    not_drawn: int  # the other coordinates, which a sweep did not draw, or a Newton round did not admit
    moved: int  # coordinates changed, with repetitions; of a Newton round: to zero or from it
    evaluations: int  # scores evaluated so far, certificates included
    seconds: float = 0.0  # since the start of the solve; the only entry that differs between equal runs


class Counts(NamedTuple):
    """The counts of a record, which add up over records."""

    visits: int
    skipped_as_shrunk: int
    skipped_as_screened: int
    not_drawn: int
    moved: int


@dataclass(frozen=True)
class SolverState:
    """All that the next iteration depends on: arrays of length M, but for the support."""

    mu: np.ndarray
    weights: np.ndarray
    best_weights: np.ndarray  # the certified weights of the smallest primal value so far
    scores: np.ndarray  # c_m^T r at ``weights``, meaningful where ``certified``
    support: np.ndarray  # (m0,) i8, in the order of G and of the factorisations, on which the bits depend
    left_out: np.ndarray  # bool: coordinates that no sweep visits until all are looked at again
    screened: np.ndarray  # bool: zero in every solution by the Gap Safe test, for good at this penalty
    phase: str = "sweep"  # or "newton"
    largest_violation: float = float("inf")  # of all candidates, when they were last looked at
    sweeps_since: int = 0  # sweeps since that look
    generator_state: Mapping[str, Any] = field(default_factory=dict)
    objective: float = float("inf")
    previous_objective: float = float("inf")
    relative_gap: float = float("inf")
    certified: bool = False  # whether ``relative_gap`` belongs to ``weights``
    best_primal: float = float("inf")  # their primal value, with what rounding may have taken
    best_dual: float = float("-inf")  # the largest dual value so far
    settled: bool = False  # whether ``weights`` minimise the objective on their face (Newton)
    stalled: bool = False
    cycle_objective: float = float("inf")  # as the next: at the end of the last Newton rounds that gained nothing more
    cycle_gap: float = float("inf")
    evaluations: int = 0
    records: tuple[Record, ...] = ()

    @property
    def iterations(self) -> int:
        return len(self.records)

    @property
    def totals(self) -> dict[str, int]:
        return {name: sum(getattr(record, name) for record in self.records) for name in Counts._fields}

    @property
    def best_gap(self) -> float:
        """Return the relative gap of ``best_weights``: a dual value bounds the optimum whatever weights it is from."""
        if not np.isfinite(self.best_dual):
            return np.inf
        return max((self.best_primal - self.best_dual) / self.best_primal, LEAST_GAP) if self.best_primal else 0.0

    def with_proof(self, certificate: Certificate) -> SolverState:
        state = replace(self, certified=True, relative_gap=certificate.relative_gap)
        if not np.isfinite(certificate.gap):
            return state
        primal = certificate.primal + certificate.primal_rounding  # the dual value may be that of other weights
        if primal < self.best_primal:
            state = replace(state, best_weights=self.weights, best_primal=primal)
        return replace(state, best_dual=max(certificate.dual, self.best_dual))

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return (arrays, scalars): plain numpy arrays, and scalars that json can write."""
        arrays = {name: np.array(getattr(self, name)) for name in _ARRAYS}
        arrays["floats"] = np.array([getattr(self, name) for name in _FLOATS])  # infinities are no JSON
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*_ARRAYS, *_FLOATS)}
        others["generator_state"] = json.loads(json.dumps(self.generator_state, default=lambda value: value.tolist()))
        return arrays, others | {"records": [asdict(record) for record in self.records]}

    @staticmethod
    def from_arrays(arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> SolverState:
        values: dict[str, Any] = {name: np.array(arrays[name]) for name in _ARRAYS}
        values |= dict(zip(_FLOATS, arrays["floats"].tolist(), strict=True))
        records = tuple(Record(**record) for record in scalars["records"])
        return SolverState(**{**values, **scalars, "records": records})


_ARRAYS = [field.name for field in fields(SolverState) if field.type == "np.ndarray"]
_FLOATS = [field.name for field in fields(SolverState) if field.type == "float"]


def warm_state(weights: np.ndarray) -> SolverState:
    """Return a state to start from ``weights``, (M,): at another penalty, or in another working set."""
    copied, support = np.array(weights, dtype=np.float64), np.flatnonzero(weights)
    zeros, nothing = np.zeros(len(weights)), np.zeros(len(weights), bool)
    return SolverState(zeros, copied, copied, zeros, support, nothing, nothing)
