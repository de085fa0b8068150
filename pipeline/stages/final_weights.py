"""The weights that the model is made of, as the solve stage commits them and `evaluate` reads them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.run_state import SOLVE
from storage.arrays import read_arrays, read_dataclass, write_arrays, write_dataclass
from storage.errors import AGAIN, ANEW, CorruptDataError
from storage.folder_layouts import RunLayout
from storage.records import read_markers

NAME = "final"
MOVED = "moved-centers.npz"


@dataclass(frozen=True)
class FinalWeights:
    """The weights the model is made of, on its `active` candidates, in the order of the model's centers.

    active (a,) i8; weights (a, T), intercept (T,) f8; penalised: the same before a refit (equal without one).
    """

    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    penalised_weights: NDArray[np.float64]
    penalised_intercept: NDArray[np.float64]

    def moved_up(self, by: float) -> "FinalWeights":
        """Return the weights with intercepts larger by the mean that was taken off the targets."""
        return replace(self, intercept=self.intercept + by, penalised_intercept=self.penalised_intercept + by)


def save(layout: RunLayout, final: FinalWeights) -> None:
    """Commit the weights."""
    write_dataclass(layout.solution(f"{NAME}.npz"), final)


def load(layout: RunLayout) -> FinalWeights:
    """Return the committed weights."""
    return read_dataclass(layout.solution(f"{NAME}.npz"), FinalWeights)


def save_moved(layout: RunLayout, centers: NDArray[np.float32]) -> None:
    """Commit where the centers (a, d) are, of weights whose centers are no training rows any more."""
    write_arrays(layout.solution(MOVED), {"centers": centers})


def read_moved(layout: RunLayout) -> NDArray[np.float32]:
    """Return where the centers (a, d) were moved. Raises CorruptDataError where that is missing or damaged."""
    return read_arrays(layout.solution(MOVED), remedy=ANEW)["centers"]


def load_moved(layout: RunLayout) -> NDArray[np.float32] | None:
    """Return where the centers (a, d) of the committed weights were moved; None where they are the candidates.

    Raises CorruptDataError where the positions, or the summary that tells of them, are missing or damaged.
    """
    return read_moved(layout) if were_moved(layout) else None


def were_moved(layout: RunLayout) -> bool:
    """Tell whether the centers of the committed weights are no candidates any more. Raises CorruptDataError."""
    polish = load_summary(layout).get("polish")  # none in runs that were solved before centers could move
    return bool(polish and polish["kept_step"])


def load_summary(layout: RunLayout) -> dict[str, Any]:
    """Return the committed summary: penalty, solves, path, ridge, temperature (which runs once were without).

    Raises CorruptDataError where it is missing or damaged.
    """
    folder = layout.markers(SOLVE)
    markers = read_markers(folder)
    if NAME not in markers:
        raise CorruptDataError(f"{folder}: the marker of the weights is damaged or missing; {AGAIN}", file=str(folder))
    return dict(markers[NAME])


def is_done(layout: RunLayout) -> bool:
    """Tell whether the weights are committed, with the summary of the solves."""
    return NAME in read_markers(layout.markers(SOLVE))
