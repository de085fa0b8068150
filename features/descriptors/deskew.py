"""Slanted writing made upright: each image sheared along its rows by its second moments.

For an image I of H x W pixels (y downwards, x to the right), whatever its scale, bright on dark or dark on bright:

1. the ground g is the median of the border pixels, the ink m(y, x) = |I(y, x) - g|, its centre (ȳ, x̄) the mean place;
2. the slant is the slope of the regression of x on y: s = Σ m (y - ȳ)(x - x̄) / Σ m (y - ȳ)²;
3. upright is J(y, x) = I(y, x + a s (y - ȳ)), a being the strength, between neighbouring pixels of the row linearly,
   g outside the image. At a = 1 the ink of J has no covariance of x and y left, but for what the grid and the border
   take of it; ȳ and x̄ stay.

An image without ink, or with all of it in one row, stays as it is.
"""

import numpy as np

from features.descriptors.deskew_loops import deskew_rows
from features.errors import UsageError

ALGORITHM_VERSION = 1
_IMAGES_AT_ONCE = 128  # that are made float64 for the compiled loop, so that it is compiled for one type


def deskew(images: np.ndarray, strength: float) -> np.ndarray:
    """Return images made upright, each on its own.

    Parameters
    ----------
    images : numpy.ndarray
        (n, H, W), unsigned bytes or floats, on any scale.
    strength : float
        Parts of the full shear, above 0 to 1.

    Returns
    -------
    numpy.ndarray
        (n, H, W) on the same scale; float64 of float64 images, float32 of all others. About 5 µs an image of 28 x 28.

    Raises
    ------
    UsageError
        `images` is not three-dimensional.
    """
    if images.ndim != 3:
        raise UsageError(f"features.deskew needs images (n, H, W), found inputs of shape {images.shape}; leave it out")
    out = np.empty(images.shape, np.float64 if images.dtype == np.float64 else np.float32)
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        some = images[start : start + _IMAGES_AT_ONCE].astype(np.float64, order="C")
        upright = np.empty_like(some)
        deskew_rows(some, _grounds(some), float(strength), upright)
        out[start : start + len(some)] = upright
    return out


def _grounds(images: np.ndarray) -> np.ndarray:
    """Return the median of the border pixels of each image (n, H, W), (n,)."""
    border = np.ones(images.shape[1:], dtype=bool)
    border[1:-1, 1:-1] = False
    pixels = images.reshape(len(images), -1).take(np.flatnonzero(border), axis=1)
    return np.asarray(np.median(pixels, axis=1, overwrite_input=True))
