"""Slanted writing made upright: each image sheared along its rows by its second moments.

For an image I of H x W pixels (y downwards, x to the right), whatever its scale, bright on dark or dark on bright:

1. the ground g is the median of the border pixels, the ink m(y, x) = |I(y, x) - g|, its centre (ȳ, x̄) the mean place;
2. the slant is the slope of the regression of x on y: s = Σ m (y - ȳ)(x - x̄) / Σ m (y - ȳ)²;
3. upright is J(y, x) = I(y, x + a s (y - ȳ)), a being the strength, between neighbouring pixels of the row linearly,
   g outside the image. At a = 1 the ink of J has no covariance of x and y left, but for what the grid and the border
   take of it; ȳ and x̄ stay.

An image without ink, or with all of it in one row, stays as it is.
"""

import math

import numpy as np
from numba import njit

ALGORITHM_VERSION = 1
FLAT = 1e-12  # squared pixels: a vertical spread below is the rounding of an image whose ink is in one row
_IMAGES_AT_ONCE = 128  # that are made float64 for the compiled loop, so that it is compiled for one type


def deskew(images: np.ndarray, strength: float) -> np.ndarray:
    """Return images (n, H, W), bytes or floats, made upright by parts, above 0 to 1, of the full shear; 5 µs each.

    They are on the same scale; float64 of float64 images, float32 of all others.
    """
    out = np.empty(images.shape, np.float64 if images.dtype == np.float64 else np.float32)
    border = np.ones(images.shape[1:], dtype=bool)
    border[1:-1, 1:-1] = False
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        some = images[start : start + _IMAGES_AT_ONCE].astype(np.float64, order="C")
        pixels = some.reshape(len(some), -1).take(np.flatnonzero(border), axis=1)
        upright = np.empty_like(some)
        deskew_rows(some, np.median(pixels, axis=1, overwrite_input=True), float(strength), upright)
        out[start : start + len(some)] = upright
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
