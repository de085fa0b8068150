"""The weights that the model is made of, as the solve stage commits them and `evaluate` reads them."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime.stored_arrays import Arrays
from pipeline.solvers.ridge import Refit
from pipeline.solvers.weights import Weights
from pipeline.stages.workspace import Workspace
from storage.arrays import read_arrays
from storage.errors import ANEW
from storage.folder_layouts import RunLayout

NAME = "solutions/final.npz"
SUMMARY, POINTS = "summary", "points"


@dataclass(frozen=True)
class FinalWeights:
    """The weights of the model, on its `active` candidates, in the order of the model's centers.

    active (a,) i8; weights (a, T), intercept (T,) f8; penalised: weights before a refit (equal without one); points (a,
    d): moved centers; summary, for the report: penalty, solves, path, ridge, temperature.
    """

    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    penalised_weights: NDArray[np.float64]
    penalised_intercept: NDArray[np.float64]
    points: NDArray[np.floating] | None = None
    summary: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(active: NDArray[np.int64], weights: Weights, summary: dict[str, Any]) -> "FinalWeights":
        """Return weights of least squares, which are no refit of others."""
        of_all, intercept = weights.weights, weights.intercept
        return FinalWeights(active, of_all, intercept, of_all, intercept, summary=summary)

    def moved_up(self, by: float) -> "FinalWeights":
        """Return the weights with intercepts larger by the mean that was taken off the targets."""
        return replace(self, intercept=self.intercept + by, penalised_intercept=self.penalised_intercept + by)

    def arrays(self) -> Arrays:
        """Return all of it as arrays."""
        arrays = {name: value for name, value in vars(self).items() if value is not None}
        return arrays | {SUMMARY: np.frombuffer(json.dumps(self.summary).encode(), np.uint8)}


def final_of(work: Workspace) -> FinalWeights | None:
    """Return the committed weights; None where there are none yet."""
    found = work.committed(NAME)
    return None if found is None else _of(found)


def load(layout: RunLayout) -> FinalWeights:
    """Return the committed weights of a run. Raises CorruptDataError where they are missing or damaged."""
    return _of(read_arrays(layout.root / NAME, remedy=ANEW))


def _of(arrays: Arrays) -> FinalWeights:
    named: dict[str, Any] = dict(arrays)
    return FinalWeights(**{**named, SUMMARY: json.loads(arrays[SUMMARY].tobytes())})


def ridge_summary(refitted: Refit | None) -> dict[str, Any]:
    """Return what the report says of the ridge of a refit, and of those tried."""
    if refitted is None:
        return {"ridge": None, "ridges": None}
    return {"ridge": refitted.ridge, "ridges": [list(pair) for pair in refitted.held_out_errors]}
