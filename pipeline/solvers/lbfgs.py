"""L-BFGS, a step at a time: its state is a value, so that a resumed minimisation repeats the bits of another.

Values are cheaper here than gradients: a step asks for values alone until one is low enough.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAIRS = 8  # The curvature keeps this number of steps and changes of the gradient.
SUFFICIENT = 1e-4  # A step achieves at least this share of the decrease that its slope promises (Armijo).
MOST_TRIALS = 10  # A step is given up after this number of shorter and shorter trials.
_ROUNDING = 1e-12  # A decrease below this share of the value cannot be told from rounding.
_LEAST_CURVATURE = 1e-10  # A pair below this share of |step| |change| tells nothing.
NUMBER_BYTES = 8 * 6 + 4 * (2 * PAIRS + 4)  # A descent holds these for each number: points, gradients, curvature.
Value = Callable[[NDArray[np.float64]], float]


@dataclass(frozen=True)
class Curvature:
    """The last steps and the changes of the gradient along them, (k, n) f4, oldest first."""

    steps: NDArray[np.float32]
    changes: NDArray[np.float32]

    @classmethod
    def nothing(cls, size: int) -> "Curvature":
        return cls(np.empty((0, size), np.float32), np.empty((0, size), np.float32))

    def with_pair(self, step: NDArray[np.float64], change: NDArray[np.float64]) -> "Curvature":
        if step @ change <= _LEAST_CURVATURE * np.linalg.norm(step) * np.linalg.norm(change):
            return self
        steps, changes = (
            np.concatenate([pairs[-PAIRS + 1 :], last.astype(np.float32)[None]])
            for pairs, last in ((self.steps, step), (self.changes, change))
        )
        return Curvature(steps, changes)


def direction(gradient: NDArray[np.float64], curvature: Curvature) -> NDArray[np.float64]:
    """Return the quasi-Newton direction -H g, (n,): the two-loop recursion (Nocedal 1980; mathematics.md, eq. 89)."""
    q, factors = -gradient, []
    for s, y in zip(curvature.steps[::-1], curvature.changes[::-1], strict=True):
        factors.append(np.dot(s, q) / np.dot(s, y))
        q -= factors[-1] * y
    if len(curvature.steps):
        s, y = curvature.steps[-1], curvature.changes[-1]
        q *= np.dot(s, y) / np.dot(y, y)
    for s, y, factor in zip(curvature.steps, curvature.changes, factors[::-1], strict=True):
        q += (factor - np.dot(y, q) / np.dot(s, y)) * s
    return q


def next_point(
    x: NDArray[np.float64], value: float, gradient: NDArray[np.float64], curvature: Curvature, first: float, at: Value
) -> NDArray[np.float64] | None:
    """Return a point at which the value is lower by enough, evaluated by `at` last; None where there is none.

    first : the largest change of a number in the first step, which knows no curvature
    """
    toward = direction(gradient, curvature)
    slope = float(gradient @ toward)
    if not slope < 0:
        return None
    length = 1.0 if len(curvature.steps) else first / float(np.abs(toward).max())
    for _ in range(MOST_TRIALS):
        point = x + length * toward
        new = at(point)
        if new <= value + SUFFICIENT * length * slope and new < value - _ROUNDING * abs(value):
            return point
        bend = new - value - length * slope  # the parabola through both values, along the slope
        shorter = -slope * length**2 / (2 * bend) if np.isfinite(bend) and bend > 0 else 0.0
        length = min(max(shorter, 0.1 * length), 0.5 * length)
    return None
