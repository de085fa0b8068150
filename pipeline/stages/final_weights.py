"""The weights that the model is made of, as the solve stage commits them and `evaluate` reads them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage.commit import read_arrays, write_arrays
from storage.layout import RunLayout

NAME = "final"


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


def save(layout: RunLayout, final: FinalWeights) -> None:
    """Commit the weights."""
    write_arrays(layout.solution(f"{NAME}.npz"), vars(final))


def load(layout: RunLayout) -> FinalWeights:
    """Return the committed weights."""
    return FinalWeights(**read_arrays(layout.solution(f"{NAME}.npz")))
