"""One name for each way from an input to a feature vector."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from features import hog, sphog
from features.errors import UsageError

NAMES = ("sphog", "hog", "raw")
RAW_VERSION = 1


@dataclass(frozen=True)
class FeatureSpec:
    """Which features to compute; picklable.

    Parameters
    ----------
    name : str
        ``sphog`` (the paper's, 2172 for 28 x 28), ``hog`` (scikit-image), ``raw`` (the values, flattened).
    cells : tuple of int
        Cell sizes of `hog`, in pixels; not used by the others.
    orientations : int
        Bins of `hog`; not used by the others.
    """

    name: str
    cells: tuple[int, ...] = (14, 7, 4)
    orientations: int = 12

    def __post_init__(self) -> None:
        """Refuse an unknown name."""
        if self.name not in NAMES:
            raise UsageError(f"features {self.name!r} are unknown; give one of {', '.join(NAMES)}")


def feature_length(spec: FeatureSpec, input_shape: tuple[int, ...]) -> int:
    """Return the number of features for inputs of `input_shape`.

    Raises
    ------
    UsageError
        `sphog` or `hog` of inputs that are no images, or of images that are too small.
    """
    if spec.name == "raw":
        return math.prod(input_shape)
    if len(input_shape) != 2:
        raise UsageError(f"{spec.name} needs images (H, W), found inputs of shape {input_shape}; use features = raw")
    if spec.name == "sphog":
        return sphog.sphog_length(*input_shape)
    return hog.hog_length(*input_shape, spec.cells, spec.orientations)


def extract(spec: FeatureSpec, inputs: np.ndarray) -> np.ndarray:
    """Compute the features of a block.

    Parameters
    ----------
    spec : FeatureSpec
        Which features.
    inputs : numpy.ndarray
        (n, *input_shape), bytes or floats. `raw` divides bytes by 255.

    Returns
    -------
    numpy.ndarray
        (n, d) float32, C-contiguous; not finite in rows whose inputs are too large, without a warning: whoever
        stores features refuses such a row by its number.

    Raises
    ------
    UsageError
        As `feature_length`.
    """
    feature_length(spec, inputs.shape[1:])
    if spec.name == "sphog":
        return sphog.sphog(inputs)
    if spec.name == "hog":
        with np.errstate(over="ignore", invalid="ignore"):
            return hog.hog(inputs, spec.cells, spec.orientations)
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(inputs.reshape(len(inputs), -1), dtype=np.float32)
    return flat / np.float32(255.0) if inputs.dtype == np.uint8 else flat


def parameters(spec: FeatureSpec) -> dict[str, Any]:
    """Return, as JSON-able values, all that determines the features of given inputs."""
    if spec.name == "hog":
        return {
            "name": "hog",
            "algorithm_version": hog.ALGORITHM_VERSION,
            "cells": list(spec.cells),
            "orientations": spec.orientations,
        }
    version = sphog.ALGORITHM_VERSION if spec.name == "sphog" else RAW_VERSION
    return {"name": spec.name, "algorithm_version": version}
