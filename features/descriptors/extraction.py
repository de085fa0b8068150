"""One name for each way from an input to a feature vector."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.descriptors import deskew, soft_hog, sphog
from features.errors import UsageError

VERSIONS = {"soft-hog": soft_hog.ALGORITHM_VERSION, "sphog": sphog.ALGORITHM_VERSION, "raw": 1}


@dataclass(frozen=True)
class FeatureSpec:
    """Which features to compute; picklable."""

    name: str  # soft-hog (512 for 28 x 28), sphog (the paper's, 2172) or raw (the values, flattened)
    deskew: float = 0.0  # parts, 0 to 1, of the shear that makes an image upright before anything else
    power: float = 1.0  # exponent, above 0 to 1, of histogram values: below 1, strong gradients count for less
    brightness: float = 0.0  # weight of the mean brightness of each cell of soft-hog, of each channel

    def __post_init__(self) -> None:
        if self.name == "raw" and self.power != 1.0:
            raise UsageError(f"features.power = {self.power:g} is for histograms, not for raw; leave it out")
        if self.name != "soft-hog" and self.brightness:
            raise UsageError(f"features.brightness = {self.brightness:g} is for soft-hog, not for {self.name}")


def feature_length(spec: FeatureSpec, input_shape: tuple[int, ...]) -> int:
    """Return the number of features for inputs of a shape. Raises UsageError where they are no images, or too small."""
    needs = f"needs grey images (H, W), found inputs of shape {input_shape}"
    if spec.deskew and len(input_shape) != 2:
        raise UsageError(f"features.deskew = {spec.deskew:g} {needs}; leave it out")
    if spec.name == "raw":
        return math.prod(input_shape)
    is_colour = input_shape[2:] == (3,)
    if len(input_shape) != 2 and (spec.name == "sphog" or not is_colour):
        raise UsageError(f"{spec.name} {needs}; use features = {'soft-hog' if is_colour else 'raw'}")
    if spec.name == "sphog":
        return sphog.sphog_length(*input_shape)
    height, width, *channels = input_shape
    n_features = soft_hog.SoftHog.of(height, width).length(height, width)
    n_means = math.prod(channels) * n_features // soft_hog.ORIENTATIONS
    return n_features + (n_means if spec.brightness else 0)


def extract(spec: FeatureSpec, inputs: np.ndarray) -> np.ndarray:
    """Return the features (n, d) f4 of inputs (n, *input_shape), bytes or floats; `raw` divides bytes by 255.

    Rows of `raw` inputs that are too large are not finite, without a warning. Raises UsageError as `feature_length`.
    """
    feature_length(spec, inputs.shape[1:])
    is_bytes = inputs.dtype == np.uint8
    if spec.deskew:
        inputs = deskew.deskew(inputs, spec.deskew)
    if spec.name == "raw":
        with np.errstate(over="ignore"):
            flat = np.ascontiguousarray(inputs.reshape(len(inputs), -1), dtype=np.float32)
        return flat / np.float32(255.0) if is_bytes else flat
    histograms = sphog.sphog(inputs) if spec.name == "sphog" else soft_hog.soft_hog(inputs)
    if spec.power == 0.5:
        np.sqrt(histograms, out=histograms)  # exactly rounded
    elif spec.power != 1.0:
        np.power(histograms, np.float32(spec.power), out=histograms)
    if not spec.brightness:
        return histograms
    means = soft_hog.cell_means(inputs) * np.float32(spec.brightness / (255.0 if is_bytes else 1.0))
    return np.hstack([histograms, means / np.float32(math.sqrt(means.shape[1]))])


def parameters(spec: FeatureSpec) -> dict[str, Any]:
    """Return, as JSON-able values, all that determines the features of given inputs."""
    described: dict[str, Any] = {"name": spec.name, "algorithm_version": VERSIONS[spec.name]}
    # What is off is not named, as before it could be on: features and models without it are still the same.
    if spec.deskew:
        described |= {"deskew": float(spec.deskew), "deskew_version": deskew.ALGORITHM_VERSION}
    if spec.power != 1.0:
        described |= {"power": float(spec.power)}
    if spec.brightness:
        described |= {"brightness": float(spec.brightness)}
    return described
