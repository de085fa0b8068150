"""The paper's 2172 features: spatial pyramid of histograms of oriented gradients (Maji & Malik 2009).

For an image of any size with at least one whole cell:

1. gradient by a separable 5x5 derivative of a Gaussian, zero outside the image: (0.594, 0.878, 1, 0.878, 0.594)
   across, (0.100, 1, 0, -1, -0.100) along, as a convolution (a brightening to the right has angle 0);
2. signed angle in 12 bins of 30°, the magnitude split linearly between the two nearest bin centres;
3. cells of 14, 7 and 4 pixels, each on three grids of whole cells, at offsets (0, 0), (0, h), (h, 0) with
   h = b/2 rounded half up;
4. divided by the total gradient magnitude of the image (+ 1e-10) and weighted 1, 2, 4 for b = 14, 7, 4.

Order of the vector: cell size, grid, cell row, cell column, bin.
"""

import functools
import math

import numpy as np
from numba import njit

from features.errors import UsageError

ALGORITHM_VERSION = 1
_IMAGES_AT_ONCE = 64  # that are made float64 for the compiled loop, so that it is compiled for one type
SMOOTH_0, SMOOTH_1, SMOOTH_2 = 1.0, 0.878, 0.594
SLOPE_1, SLOPE_2 = 1.0, 0.100
N_BINS = 12
BINS_PER_RADIAN = N_BINS / (2.0 * math.pi)
FLOOR = 1e-10
CELL_WEIGHTS = {14: 1.0, 7: 2.0, 4: 4.0}


def sphog_length(height: int, width: int) -> int:
    """Return the number of features of an image, 2172 for 28 x 28. Raises UsageError where it has no whole cell."""
    return len(_tables(height, width)[1])


def sphog(images: np.ndarray) -> np.ndarray:
    """Return the features (n, d) f4 of images (n, H, W), unsigned bytes or floats; about 20 µs an image of 28 x 28."""
    height, width = images.shape[1:]
    cell_start, weights = _tables(height, width)
    out = np.empty((len(images), len(weights)), dtype=np.float32)
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        some = images[start : start + _IMAGES_AT_ONCE].astype(np.float64, order="C")
        padded = np.pad(some, ((0, 0), (2, 2), (2, 2)))
        sphog_rows(padded, cell_start, weights, out[start : start + len(some)])
    return out


@functools.lru_cache(maxsize=8)
def _tables(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each pixel votes, int32 (H, W, 9), and each feature's weight, float64 (d,)."""
    halves = {cell: (cell + 1) // 2 for cell in CELL_WEIGHTS}
    grids = [(cell, *at) for cell, half in halves.items() for at in ((0, 0), (0, half), (half, 0))]
    cell_start = np.full((height, width, len(grids)), -1, dtype=np.int32)
    weights: list[float] = []
    for k, (cell, top, left) in enumerate(grids):
        n_rows, n_columns = max(0, (height - top) // cell), max(0, (width - left) // cell)
        starts = len(weights) + N_BINS * np.arange(n_rows * n_columns).reshape(n_rows, n_columns)
        inside = np.s_[top : top + n_rows * cell, left : left + n_columns * cell, k]
        cell_start[inside] = starts.repeat(cell, axis=0).repeat(cell, axis=1)
        weights += [CELL_WEIGHTS[cell]] * (n_rows * n_columns * N_BINS)
    if not weights:
        raise UsageError(f"sphog needs images of at least 4 x 4 pixels, found {height} x {width}; use features = raw")
    cell_start[cell_start < 0] = len(weights)
    return cell_start, np.array(weights)


@njit(nogil=True)
def _gradients(padded: np.ndarray, along_x: np.ndarray, along_y: np.ndarray, gx: np.ndarray, gy: np.ndarray) -> None:
    """Gradient of one image (H, W), which has two more pixels on every side, as have the work arrays."""
    height, width = padded.shape[0] - 4, padded.shape[1] - 4
    for y in range(height + 4):
        row = padded[y]
        for x in range(width):
            along_x[y, x] = SLOPE_1 * (row[x + 3] - row[x + 1]) + SLOPE_2 * (row[x + 4] - row[x])
    for y in range(height):
        for x in range(width + 4):
            far = SLOPE_2 * (padded[y + 4, x] - padded[y, x])
            along_y[y, x] = SLOPE_1 * (padded[y + 3, x] - padded[y + 1, x]) + far
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


@njit(nogil=True)
def _vote(gx: np.ndarray, gy: np.ndarray, cell_start: np.ndarray, histograms: np.ndarray) -> float:
    """Add each pixel's magnitude to its cells' two nearest angle bins; return the sum of magnitudes.

    `cell_start` (H, W, n_grids) holds the first bin of the pixel's cell in each grid; spare bins where it has none.
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
            lower, upper = whole % N_BINS, (whole + 1) % N_BINS
            for grid in range(n_grids):
                start = cell_start[y, x, grid]
                histograms[start + lower] += lower_share
                histograms[start + upper] += upper_share
    return total


@njit(cache=True, nogil=True)
def sphog_rows(padded: np.ndarray, cell_start: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Write the features of images (n, H + 4, W + 4) f8, with two pixels of 0 on every side, to `out` (n, d) f4."""
    space, histograms = np.empty((4, padded.shape[1], padded.shape[2])), np.empty(weights.size + N_BINS)
    along_x, along_y, gx, gy = space[0], space[1], space[2], space[3]
    for i in range(padded.shape[0]):
        _gradients(padded[i], along_x, along_y, gx, gy)
        histograms[:] = 0.0
        factor = 1.0 / (_vote(gx, gy, cell_start, histograms) + FLOOR)
        out[i] = histograms[: weights.size] * weights * factor
