"""Compiled loop of the paper's features; `features.descriptors.sphog` says what is computed and prepares the tables."""

import math

import numpy as np
from numba import njit

SMOOTH_0, SMOOTH_1, SMOOTH_2 = 1.0, 0.878, 0.594
SLOPE_1, SLOPE_2 = 1.0, 0.100
N_BINS = 12
BINS_PER_RADIAN = N_BINS / (2.0 * math.pi)
FLOOR = 1e-10


@njit(cache=True, nogil=True)
def _gradients(
    image: np.ndarray, padded: np.ndarray, along_x: np.ndarray, along_y: np.ndarray, gx: np.ndarray, gy: np.ndarray
) -> None:
    """Gradient of one image (H, W), zero outside; work arrays have two more pixels on every side.

    The slope comes first and as a difference of equals, so flat regions give an exact 0 and are skipped
    later.
    """
    height, width = image.shape
    for y in range(height):
        for x in range(width):
            padded[y + 2, x + 2] = image[y, x]
    for y in range(height + 4):
        row = padded[y]
        for x in range(width):
            along_x[y, x] = SLOPE_1 * (row[x + 3] - row[x + 1]) + SLOPE_2 * (row[x + 4] - row[x])
    for y in range(height):
        for x in range(width + 4):
            along_y[y, x] = SLOPE_1 * (padded[y + 3, x] - padded[y + 1, x]) + SLOPE_2 * (
                padded[y + 4, x] - padded[y, x]
            )
    for y in range(height):
        for x in range(width):
            gx[y, x] = (
                SMOOTH_0 * along_x[y + 2, x]
                + SMOOTH_1 * (along_x[y + 1, x] + along_x[y + 3, x])
                + SMOOTH_2 * (along_x[y, x] + along_x[y + 4, x])
            )
            gy[y, x] = (
                SMOOTH_0 * along_y[y, x + 2]
                + SMOOTH_1 * (along_y[y, x + 1] + along_y[y, x + 3])
                + SMOOTH_2 * (along_y[y, x] + along_y[y, x + 4])
            )


@njit(cache=True, nogil=True)
def _vote(gx: np.ndarray, gy: np.ndarray, cell_start: np.ndarray, histograms: np.ndarray) -> float:
    """Add each pixel's magnitude to its cells' two nearest angle bins; return the sum of magnitudes.

    `cell_start` (H, W, n_grids) holds the first bin of the pixel's cell in each grid. A pixel that no whole
    cell of a grid covers points at spare bins past the end, which saves a branch.
    """
    height, width, n_grids = cell_start.shape
    total = 0.0
    for y in range(height):
        for x in range(width):
            dx, dy = gx[y, x], gy[y, x]
            if dx == 0.0 and dy == 0.0:
                continue
            magnitude = math.sqrt(dx * dx + dy * dy)
            total += magnitude
            position = math.atan2(dy, dx) * BINS_PER_RADIAN + (N_BINS - 0.5)  # in bins, from bin 0's centre
            whole = int(position)
            upper_share = magnitude * (position - whole)
            lower_share = magnitude - upper_share
            lower = whole % N_BINS
            upper = (whole + 1) % N_BINS
            for grid in range(n_grids):
                start = cell_start[y, x, grid]
                histograms[start + lower] += lower_share
                histograms[start + upper] += upper_share
    return total


@njit(cache=True, nogil=True)
def sphog_rows(images: np.ndarray, cell_start: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Write the features of `images` (n, H, W) to `out` (n, d) float32; `weights` (d,) are their factors."""
    n, height, width = images.shape
    n_features = weights.shape[0]
    padded = np.zeros((height + 4, width + 4))
    along_x = np.empty((height + 4, width))
    along_y = np.empty((height, width + 4))
    gx = np.empty((height, width))
    gy = np.empty((height, width))
    histograms = np.empty(n_features + N_BINS)
    for i in range(n):
        _gradients(images[i], padded, along_x, along_y, gx, gy)
        histograms[:] = 0.0
        factor = 1.0 / (_vote(gx, gy, cell_start, histograms) + FLOOR)
        for j in range(n_features):
            out[i, j] = histograms[j] * weights[j] * factor
