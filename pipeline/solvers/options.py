"""How to solve: the options and their checks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.solvers.coordinate_descent import STEPS


class InvalidOptionsError(ValueError):
    """Raised for solver options that make no sense, alone or together."""


@dataclass(frozen=True)
class SolverOptions:
    """State how to solve.

    Attributes
    ----------
    tolerance : float
        Relative duality gap over all candidates to stop at.
    max_sweeps : int
        Limit on iterations. One iteration is one sweep or one polish round, whatever it visits. A sweep visits M
        coordinates (uniform), or those neither shrunk nor screened (shrinking; the one before a polish at most
        ``opening_visits``). A polish round admits the worst violators and minimises on the faces it meets, or is
        one Newton step on mu where several outputs share a kernel; it visits no coordinate. Each iteration makes
        one `Record`, and `Solution.sweeps` counts them all.
    schedule : "shrinking" or "uniform"
    step : "exact", "newton" (safeguarded) or "newton-unguarded" (Algorithm 2 with its factor 2 restored)
    lam : float
        lambda; only lambda * nu matters (mathematics.md, eq. 20), and the pipeline keeps 1.
    refactor_every : int
        Visits between two factorisations of G (mathematics.md, eq. 28).
    polish : bool
        Whether the shrinking schedule goes on to Newton steps; `uniform` never does.
    opening_visits : int
        Coordinates visited by the one sweep before the polish. Few: a first sweep from zero admits far more
        coordinates than the optimum keeps, and each costs m0^2.
    stop : "gap" or "paper"
        The paper's rule, its sign corrected (mathematics.md, eq. 36).
    """

    tolerance: float = 1e-3
    max_sweeps: int = 1000
    schedule: str = "shrinking"
    step: str = "exact"
    lam: float = 1.0
    refactor_every: int = 200
    polish: bool = True
    opening_visits: int = 200
    stop: str = "gap"
    paper_epsilon: float = 1e-4

    def validate(self) -> SolverOptions:
        """Return self, or raise InvalidOptionsError."""
        if not (np.isfinite(self.tolerance) and self.tolerance > 0):
            raise InvalidOptionsError(f"the tolerance must be above 0, found {self.tolerance}")
        if self.max_sweeps < 1 or self.refactor_every < 1 or self.opening_visits < 0:
            raise InvalidOptionsError(
                f"max_sweeps and refactor_every must be at least 1 and opening_visits at least 0, found"
                f" {self.max_sweeps}, {self.refactor_every}, {self.opening_visits}"
            )
        if self.schedule not in ("shrinking", "uniform"):
            raise InvalidOptionsError(f"schedule must be shrinking or uniform, found {self.schedule!r}")
        if self.step not in STEPS:
            raise InvalidOptionsError(f"step must be one of {', '.join(STEPS)}, found {self.step!r}")
        if self.stop not in ("gap", "paper"):
            raise InvalidOptionsError(f"stop must be gap or paper, found {self.stop!r}")
        if self.stop == "paper" and self.schedule != "uniform":
            raise InvalidOptionsError("stop = paper needs schedule = uniform; choose both or neither")
        if not (np.isfinite(self.lam) and self.lam > 0):
            raise InvalidOptionsError(f"lambda must be above 0, found {self.lam}")
        return self
