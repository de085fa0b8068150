"""One name for each way from an input to a feature vector; and slanted writing made upright before.

To be upright, an image is sheared along its rows by its second moments.

For an image I of H x W pixels (y downwards, x to the right), whatever its scale, bright on dark or dark on bright:

1. the ground g is the median of the border pixels, the ink m(y, x) = |I(y, x) - g|, its centre (ȳ, x̄) the mean place;
2. the slant is the slope of the regression of x on y: s = Σ m (y - ȳ)(x - x̄) / Σ m (y - ȳ)²;
3. upright is J(y, x) = I(y, x + a s (y - ȳ)), a being the strength, between neighbouring pixels of the row linearly,
   g outside the image. At a = 1 the ink of J has no covariance of x and y left, but for what the grid and the border
   take of it; ȳ and x̄ stay.

An image without ink, or with all of it in one row, stays as it is.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from features.errors import UsageError
from features.histograms import (
    ORIENTATIONS,
    SOFT_HOG_VERSION,
    SPHOG_VERSION,
    SoftHog,
    cell_means,
    soft_hog,
    sphog,
    sphog_length,
)

VERSIONS = {"soft-hog": SOFT_HOG_VERSION, "sphog": SPHOG_VERSION, "raw": 1}
DESKEW_VERSION = 1
FLAT = 1e-12  # squared pixels: a vertical spread below is the rounding of an image whose ink is in one row
_IMAGES_AT_ONCE = 128  # that are made float64 for the compiled loop, so that it is compiled for one type


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
        return sphog_length(*input_shape)
    height, width, *channels = input_shape
    n_features = SoftHog.of(height, width).length(height, width)
    n_means = math.prod(channels) * n_features // ORIENTATIONS
    return n_features + (n_means if spec.brightness else 0)


def extract(spec: FeatureSpec, inputs: np.ndarray) -> np.ndarray:
    """Return the features (n, d) f4 of inputs (n, *input_shape), bytes or floats; `raw` divides bytes by 255.

    Rows of `raw` inputs that are too large are not finite, without a warning. Raises UsageError as `feature_length`.
    """
    feature_length(spec, inputs.shape[1:])
    is_bytes = inputs.dtype == np.uint8
    if spec.deskew:
        inputs = deskewed(inputs, spec.deskew)
    if spec.name == "raw":
        with np.errstate(over="ignore"):
            flat = np.ascontiguousarray(inputs.reshape(len(inputs), -1), dtype=np.float32)
        return flat / np.float32(255.0) if is_bytes else flat
    histograms = sphog(inputs) if spec.name == "sphog" else soft_hog(inputs)
    if spec.power == 0.5:
        np.sqrt(histograms, out=histograms)  # exactly rounded
    elif spec.power != 1.0:
        np.power(histograms, np.float32(spec.power), out=histograms)
    if not spec.brightness:
        return histograms
    means = cell_means(inputs) * np.float32(spec.brightness / (255.0 if is_bytes else 1.0))
    return np.hstack([histograms, means / np.float32(math.sqrt(means.shape[1]))])


def parameters(spec: FeatureSpec) -> dict[str, Any]:
    """Return, as JSON-able values, all that determines the features of given inputs."""
    described: dict[str, Any] = {"name": spec.name, "algorithm_version": VERSIONS[spec.name]}
    # What is off is not named, as before it could be on: features and models without it are still the same.
    if spec.deskew:
        described |= {"deskew": float(spec.deskew), "deskew_version": DESKEW_VERSION}
    if spec.power != 1.0:
        described |= {"power": float(spec.power)}
    if spec.brightness:
        described |= {"brightness": float(spec.brightness)}
    return described


def deskewed(images: np.ndarray, strength: float) -> np.ndarray:
    """Return images (n, H, W), bytes or floats, made upright by parts, above 0 to 1, of the full shear; 5 µs each.

    They are on the same scale; float64 of float64 images, float32 of all others.
    """
    out = np.empty(images.shape, np.float64 if images.dtype == np.float64 else np.float32)
    border = np.ones(images.shape[1:], dtype=bool)
    border[1:-1, 1:-1] = False
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        some = images[start : start + _IMAGES_AT_ONCE].astype(np.float64, order="C")
        pixels = some.reshape(len(some), -1).take(np.flatnonzero(border), axis=1)
        sheared = np.empty_like(some)
        deskew_rows(some, np.median(pixels, axis=1, overwrite_input=True), float(strength), sheared)
        out[start : start + len(some)] = sheared
    return out


@njit(nogil=True)
def _slant(image: np.ndarray, ground: float) -> tuple[float, float]:
    """Return slant and centre row of the ink |image - ground| (H, W); the slant is 0 where there is none to see."""
    height, width = image.shape
    mass = row_sum = column_sum = 0.0
    for y in range(height):
        for x in range(width):
            ink = abs(image[y, x] - ground)
            mass += ink
            row_sum += ink * y
            column_sum += ink * x
    if not 0.0 < mass < math.inf:
        return 0.0, 0.0
    centre_row, centre_column = row_sum / mass, column_sum / mass
    spread = covariance = 0.0
    for y in range(height):
        for x in range(width):
            share = abs(image[y, x] - ground) / mass
            spread += share * (y - centre_row) ** 2
            covariance += share * (y - centre_row) * (x - centre_column)
    if not (spread > FLAT and math.isfinite(centre_row) and math.isfinite(covariance)):
        return 0.0, 0.0
    return covariance / spread, centre_row


@njit(cache=True, nogil=True)
def deskew_rows(images: np.ndarray, grounds: np.ndarray, strength: float, out: np.ndarray) -> None:
    """Write images (n, H, W) f8, sheared by `strength` parts of their slant, to `out`; grounds (n,): values outside."""
    n, height, width = images.shape
    for i in range(n):
        image, ground = images[i], grounds[i]
        slant, centre_row = _slant(image, ground)
        for y in range(height):
            shift = min(max(strength * slant * (y - centre_row), -width), width)
            whole = math.floor(shift)
            part = shift - whole
            for x in range(width):
                left, right = x + whole, x + whole + 1
                low = image[y, left] if 0 <= left < width else ground
                high = image[y, right] if 0 <= right < width else ground
                out[i, y, x] = low + part * (high - low)  # of equals exactly that, so that flat regions stay flat
