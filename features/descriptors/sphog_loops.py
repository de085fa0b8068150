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
def _gradients(padded: np.ndarray, along_x: np.ndarray, along_y: np.ndarray, gx: np.ndarray, gy: np.ndarray) -> None:
    """Gradient of one image (H, W), which has two more pixels on every side, as have the work arrays.

    The slope comes first and as a difference of equals, so flat regions give an exact 0 and are skipped
    later.
    """
    height, width = padded.shape[0] - 4, padded.shape[1] - 4
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
def sphog_rows(
    padded: np.ndarray,
    cell_start: np.ndarray,
    weights: np.ndarray,
    space: np.ndarray,
    histograms: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the features of images to `out` (n, d) float32; `weights` (d,) are their factors.

    padded (n, H + 4, W + 4) float64: the images, with two pixels of 0 on every side. space (4, H + 4, W + 4) and
    histograms (d + N_BINS,) float64 are work arrays.
    """
    along_x, along_y, gx, gy = space[0], space[1], space[2], space[3]
    for i in range(padded.shape[0]):
        _gradients(padded[i], along_x, along_y, gx, gy)
        for j in range(histograms.size):
            histograms[j] = 0.0
        factor = 1.0 / (_vote(gx, gy, cell_start, histograms) + FLOOR)
        for j in range(weights.size):
            out[i, j] = histograms[j] * weights[j] * factor


SIGNATURES = {"sphog_rows": "(f8[:, :, ::1], i4[:, :, ::1], f8[::1], f8[:, :, ::1], f8[::1], f4[:, ::1])"}
