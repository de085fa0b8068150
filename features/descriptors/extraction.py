"""One name for each way from an input to a feature vector."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.descriptors import deskew, soft_hog, sphog
from features.errors import UsageError

VERSIONS = {"soft-hog": soft_hog.ALGORITHM_VERSION, "sphog": sphog.ALGORITHM_VERSION, "hog": 1, "raw": 1}


@dataclass(frozen=True)
class FeatureSpec:
    """Which features to compute; picklable.

    name : ``soft-hog`` (512 for 28 x 28), ``sphog`` (the paper's, 2172), ``hog`` (scikit-image) or ``raw`` (the values,
        flattened)
    cells, orientations : cell sizes in pixels and bins of `hog`
    deskew : parts, 0 to 1, of the shear that makes an image upright before anything else (`deskew`)
    power : exponent, above 0 to 1, of every value of a histogram: below 1, strong gradients count for less
    """

    name: str
    cells: tuple[float, ...] = (14, 7, 4)
    orientations: int = 12
    deskew: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        """Refuse an unknown name, a shear of less than nothing or more than all, a power that is no use."""
        if self.name not in VERSIONS:
            raise UsageError(f"features {self.name!r} are unknown; give one of {', '.join(VERSIONS)}")
        if not 0.0 <= self.deskew <= 1.0:
            raise UsageError(f"features.deskew is {self.deskew}; it must lie between 0 (off) and 1")
        if not 0.0 < self.power <= 1.0:
            raise UsageError(f"features.power is {self.power}; it must be above 0, and at most 1 (off)")
        if self.name == "raw" and self.power != 1.0:
            raise UsageError(f"features.power = {self.power:g} is for histograms, not for raw; leave it out")


def feature_length(spec: FeatureSpec, input_shape: tuple[int, ...]) -> int:
    """Return the number of features for inputs of a shape. Raises UsageError where they are no images, or too small."""
    needs = f"needs images (H, W), found inputs of shape {input_shape}"
    if spec.deskew and len(input_shape) != 2:
        raise UsageError(f"features.deskew = {spec.deskew:g} {needs}; leave it out")
    if spec.name == "raw":
        return math.prod(input_shape)
    if len(input_shape) != 2:
        raise UsageError(f"{spec.name} {needs}; use features = raw")
    if spec.name == "sphog":
        return sphog.sphog_length(*input_shape)
    if spec.name == "soft-hog":
        return soft_hog.SoftHog.of(*input_shape).length(*input_shape)
    return _hog_length(*input_shape, spec.cells, spec.orientations)


def extract(spec: FeatureSpec, inputs: np.ndarray) -> np.ndarray:
    """Return the features (n, d) f4 of inputs (n, *input_shape), bytes or floats; `raw` divides bytes by 255.

    Rows whose inputs are too large are not finite, without a warning. Raises UsageError as `feature_length`.
    """
    feature_length(spec, inputs.shape[1:])
    is_bytes = inputs.dtype == np.uint8
    if spec.deskew:
        inputs = deskew.deskew(inputs, spec.deskew)
    if spec.name == "raw":
        with np.errstate(over="ignore"):
            flat = np.ascontiguousarray(inputs.reshape(len(inputs), -1), dtype=np.float32)
        return flat / np.float32(255.0) if is_bytes else flat
    with np.errstate(over="ignore", invalid="ignore"):
        histograms = _histograms(spec, inputs)
        if spec.power == 0.5:
            np.sqrt(histograms, out=histograms)  # exactly rounded
        elif spec.power != 1.0:
            np.power(histograms, np.float32(spec.power), out=histograms)
    return histograms


def parameters(spec: FeatureSpec) -> dict[str, Any]:
    """Return, as JSON-able values, all that determines the features of given inputs."""
    described: dict[str, Any] = {"name": spec.name, "algorithm_version": VERSIONS[spec.name]}
    if spec.name == "hog":
        described |= {"cells": [int(cell) for cell in spec.cells], "orientations": int(spec.orientations)}
    # What is off is not named, as before it could be on: features and models without it are still the same.
    if spec.deskew:
        described |= {"deskew": float(spec.deskew), "deskew_version": deskew.ALGORITHM_VERSION}
    if spec.power != 1.0:
        described |= {"power": float(spec.power)}
    return described


def _histograms(spec: FeatureSpec, images: np.ndarray) -> np.ndarray:
    if spec.name == "soft-hog":
        return soft_hog.soft_hog(images)
    return sphog.sphog(images) if spec.name == "sphog" else _hog(images, spec.cells, spec.orientations)


def _hog_length(height: int, width: int, cells: tuple[float, ...], orientations: int) -> int:
    if orientations < 1 or not cells:
        raise UsageError(f"hog needs cell sizes and orientations, found cells {cells}, orientations {orientations}")
    for cell in cells:
        if not isinstance(cell, int) or not 2 <= cell <= min(height, width):
            raise UsageError(
                f"hog: a cell of {cell} pixels does not fit images of {height} x {width}, or is no whole one"
            )
    return sum((height // int(cell)) * (width // int(cell)) * orientations for cell in cells)


def _hog(images: np.ndarray, cells: tuple[float, ...], orientations: int) -> np.ndarray:
    """Return unsigned histograms of gradients (n, d) f4, each cell normalised on its own, cell sizes side by side."""
    # Imported here: slow to import, and no other descriptor needs it.
    from skimage.feature import hog as skimage_hog

    alike = {"orientations": orientations, "cells_per_block": (1, 1)}
    out = np.empty((len(images), _hog_length(images.shape[1], images.shape[2], cells, orientations)), dtype=np.float32)
    for i, image in enumerate(images):
        out[i] = np.concatenate([skimage_hog(image, pixels_per_cell=(cell, cell), **alike) for cell in cells])
    return out
