"""Compiled loops that shear images upright; `features.descriptors.deskew` says what is computed."""

import math

import numpy as np
from numba import njit

FLAT = 1e-12  # squared pixels: a vertical spread below is the rounding of an image whose ink is in one row


@njit(cache=True, nogil=True)
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
    """Write the images (n, H, W), sheared by `strength` parts of their slant, to `out` (n, H, W).

    All float64; grounds (n,) are the values outside of each image.
    """
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


SIGNATURES = {"deskew_rows": "(f8[:, :, ::1], f8[::1], f8, f8[:, :, ::1])"}
