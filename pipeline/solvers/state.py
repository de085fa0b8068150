"""The state of a solve between two records, as a value, and the records themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pipeline.solvers.scheduler import Shrinkage

STATE_FORMAT_VERSION = 1


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
    settled: bool = False
    stalled: bool = False
    cycle_objective: float = float("inf")
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

    @staticmethod
    def from_arrays(arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> SolverState:
        """Return the state that `to_arrays` wrote. Raises ValueError for another format version."""
        found = scalars.get("state_format_version")
        if found != STATE_FORMAT_VERSION:
            raise ValueError(f"solver state of format {found} found, {STATE_FORMAT_VERSION} asked for; start anew")
        shrinkage = Shrinkage(
            np.array(arrays["shrunk"]),
            np.array(arrays["screened"]),
            float(scalars["threshold"]),
            float(scalars["level"]),
        )
        values: dict[str, Any] = {name: np.array(arrays[name]) for name in _ARRAYS}
        values |= {name: scalars[name] for name in _SCALARS}
        values |= {name: float(scalars[name]) for name in _FLOATS}
        values["generator_state"] = scalars["generator_state"]
        records = tuple(Record(**record) for record in scalars["records"])
        return SolverState(shrinkage=shrinkage, records=records, **values)


_ARRAYS = ("mu", "weights", "scores", "support")
# Written with repr: infinities are no JSON, and repr gives back the same bits.
_FLOATS = ("objective", "previous_objective", "relative_gap", "cycle_objective")
_SCALARS = (
    *_FLOATS, "phase", "certified", "settled", "stalled", "iterations", "visits", "evaluations", "moves",
)  # fmt: skip


def _plain(value: Any) -> Any:
    """Return a numpy value as json can write it (a generator's state may hold arrays)."""
    return value.tolist()
