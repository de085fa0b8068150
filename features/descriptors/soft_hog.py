"""Histograms of oriented gradients over overlapping cells: every pixel votes for all cells around it.

After Dalal and Triggs (2005), who share out votes between neighbouring cells; here cells may overlap further, as those
of DAISY (Tola, Lepetit and Fua 2010). For an image of any size:

1. gradient by derivatives of a Gaussian of `scale` pixels, the pixels of the border repeated outside the image; of
   channels of colour, each pixel takes the strongest, as Dalal and Triggs do;
2. signed angle in 8 bins, the magnitude split linearly between the two nearest bin centres;
3. the centres of the cells form a square lattice in the middle of the image, 0.7 cells apart; a pixel that is v rows
   and u columns from a centre adds (1 - |v| / cell) (1 - |u| / cell) of its magnitude, nothing from `cell` pixels on;
4. divided by the sum of all features (+ 1e-10): a vector of their square roots has norm 1.

Order of the vector: cell row, cell column, bin.
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from features.errors import UsageError

ALGORITHM_VERSION = 1
SIDE = 28  # pixels of images; held-out rows of MNIST chose the defaults for it (docs/pictures.md)
ORIENTATIONS, CELL, STRIDE, SCALE = 8, 5.0, 0.7, 0.8
LEAST_CELL, SMALL_SIDE = 4.0, 14  # pixels, of images down to that side; of smaller ones all shrinks with the image
LEAST_SCALE, MOST_SCALE = 0.3, 45.0  # pixels; beyond, a gradient is of nothing, or of all
FLOOR = 1e-10
MOST_FEATURES = 1_000_000
_IMAGES_AT_ONCE = 64  # that are made float64 for the compiled loop, so that it is compiled for one type
_GAUSSIAN_ENDS = 2.5  # standard deviations from its middle
_ROUNDING = 1e-9  # of a quotient that is a whole number but for its last digits


@dataclass(frozen=True)
class SoftHog:
    """Parameters: the size of the cells, and the scale of the gradient, both in pixels."""

    cell: float
    scale: float

    @classmethod
    def of(cls, height: int, width: int) -> "SoftHog":
        """Return what suits images of a size: in proportion to the smaller side, but from 14 to 28 pixels."""
        side = min(height, width)
        share = min(side / SMALL_SIDE, 1.0)
        cell, scale = max(CELL * side / SIDE, LEAST_CELL * share, 1.0), SCALE * max(side / SIDE, share)
        return cls(round(cell, 2), round(min(max(scale, LEAST_SCALE), MOST_SCALE), 2))

    def length(self, height: int, width: int) -> int:
        """Return the number of features of an image. Raises UsageError where they are too many."""
        n_cells = math.prod(len(self._centres(side)) for side in (height, width))
        if n_cells * ORIENTATIONS > MOST_FEATURES:
            raise UsageError(f"soft-hog: {n_cells} cells in images of {height} x {width} are too many; cut the images")
        return n_cells * ORIENTATIONS

    def _centres(self, side: int) -> np.ndarray:
        step = self.cell * STRIDE
        n = math.floor((side - 1) / step + _ROUNDING) + 1
        return (side - 1) / 2 + step * (np.arange(n) - (n - 1) / 2)

    def votes(self, side: int) -> np.ndarray:
        """Return the shares of pixels along a side in cells along it, (pixels, cells) f8."""
        return np.maximum(1.0 - np.abs(np.arange(side)[:, None] - self._centres(side)) / self.cell, 0.0)

    def gaussian(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a Gaussian and its derivative, but for the sign, from their middle on: (r + 1,) f8 each."""
        at = np.arange(max(1, math.ceil(_GAUSSIAN_ENDS * self.scale)) + 1)
        bell = np.exp(-0.5 * (at / self.scale) ** 2)
        return bell, at * bell


def soft_hog(images: np.ndarray, parameters: SoftHog | None = None) -> np.ndarray:
    """Return the features (n, d) f4 of images (n, H, W) or (n, H, W, 3), bytes or floats; d = `SoftHog.length(H, W)`.

    parameters: None: those of `SoftHog.of`. About 15 µs an image of 28 x 28. Raises UsageError as `SoftHog.length`.
    """
    height, width = images.shape[1:3]
    parameters = parameters or SoftHog.of(height, width)
    out = np.empty((len(images), parameters.length(height, width)), dtype=np.float32)
    bell, slope = parameters.gaussian()
    around = len(bell) - 1
    votes = parameters.votes(height), parameters.votes(width)
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        some = _channels(images[start : start + _IMAGES_AT_ONCE])
        padded = np.pad(some, ((0, 0), (0, 0), (around, around), (around, around)), mode="edge")
        soft_hog_rows(padded, bell, slope, *votes, ORIENTATIONS, out[start : start + len(some)])
    return out


def cell_means(images: np.ndarray) -> np.ndarray:
    """Return the mean brightness (n, channels · cells) f4 of the cells of images (n, H, W) or (n, H, W, channels)."""
    votes = map(SoftHog.of(*images.shape[1:3]).votes, images.shape[1:3])
    rows, columns = (of_side / of_side.sum(axis=0) for of_side in votes)
    n_channels = images.shape[3] if images.ndim > 3 else 1
    out = np.empty((len(images), n_channels, rows.shape[1], columns.shape[1]), np.float32)
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        mean_rows(_channels(images[start : start + _IMAGES_AT_ONCE]), rows, columns, out[start:])
    return out.reshape(len(images), -1)


def _channels(images: np.ndarray) -> np.ndarray:
    """Return images (n, H, W) or (n, H, W, channels) as (n, channels, H, W) f8."""
    every = images[..., None] if images.ndim == 3 else images
    return np.ascontiguousarray(np.moveaxis(every, 3, 1), np.float64)


@njit(nogil=True)
def _gradient(padded: np.ndarray, bell: np.ndarray, slope: np.ndarray, space: np.ndarray) -> None:
    """Write the gradient of one padded image along columns and rows to space[0] and space[1]; the others are for work.

    The slope comes first, as a difference of equals, so that flat regions give an exact 0 and are skipped later.
    """
    around = bell.size - 1
    height, width = padded.shape[0] - 2 * around, padded.shape[1] - 2 * around
    along_x, along_y = space[2], space[3]
    space[:] = 0.0
    for t in range(1, around + 1):
        for y in range(height + 2 * around):
            for x in range(width):
                along_x[y, x] += slope[t] * (padded[y, x + around + t] - padded[y, x + around - t])
        for y in range(height):
            for x in range(width + 2 * around):
                along_y[y, x] += slope[t] * (padded[y + around + t, x] - padded[y + around - t, x])
    for t in range(-around, around + 1):
        factor = bell[abs(t)]
        for y in range(height):
            for x in range(width):
                space[0, y, x] += factor * along_x[y + around + t, x]
                space[1, y, x] += factor * along_y[y, x + around + t]


@njit(nogil=True)
def _vote(
    shares: np.ndarray, lower: np.ndarray, row_votes: np.ndarray, column_votes: np.ndarray, n_bins: int, out: np.ndarray
) -> None:
    """Add up the votes of one image.

    shares (2, H, W): of each pixel's magnitude, in its bin `lower` (H, W) and in the next one; out (rows of cells,
    columns of cells, bins). The votes of a row of pixels are added up for all columns before they go to rows of cells.
    """
    height, width = lower.shape
    n_rows, n_columns = out.shape[0], out.shape[1]
    of_row = np.empty((n_columns, n_bins))
    out[:] = 0.0
    for y in range(height):
        of_row[:] = 0.0
        empty = True
        for x in range(width):
            if shares[0, y, x] == 0.0 and shares[1, y, x] == 0.0:
                continue
            empty = False
            first = lower[y, x]
            second = first + 1 if first + 1 < n_bins else 0
            for column in range(n_columns):
                vote = column_votes[x, column]
                if vote > 0.0:
                    of_row[column, first] += vote * shares[0, y, x]
                    of_row[column, second] += vote * shares[1, y, x]
        if empty:
            continue
        for row in range(n_rows):
            vote = row_votes[y, row]
            if vote > 0.0:
                for column in range(n_columns):
                    for k in range(n_bins):
                        out[row, column, k] += vote * of_row[column, k]


@njit(cache=True, nogil=True)
def soft_hog_rows(
    padded: np.ndarray,
    bell: np.ndarray,
    slope: np.ndarray,
    row_votes: np.ndarray,
    column_votes: np.ndarray,
    n_bins: int,
    out: np.ndarray,
) -> None:
    """Write the features of padded images (n, channels, H + 2r, W + 2r) f8 to `out` (n, d) f4; r + 1 = len(bell)."""
    around = bell.size - 1
    height, width = padded.shape[2] - 2 * around, padded.shape[3] - 2 * around
    space, other = np.empty((2, 4, padded.shape[2], padded.shape[3]))
    shares, lower = np.zeros((2, height, width)), np.zeros((height, width), np.int64)
    histograms = np.empty(out.shape[1])
    cells = histograms.reshape(row_votes.shape[1], column_votes.shape[1], n_bins)
    for i in range(padded.shape[0]):
        _gradient(padded[i, 0], bell, slope, space)
        for channel in range(1, padded.shape[1]):  # the strongest gradient counts
            _gradient(padded[i, channel], bell, slope, other)
            for y in range(height):
                for x in range(width):
                    dx, dy = other[0, y, x], other[1, y, x]
                    if dx * dx + dy * dy > space[0, y, x] ** 2 + space[1, y, x] ** 2:
                        space[0, y, x], space[1, y, x] = dx, dy
        for y in range(height):
            for x in range(width):
                dx, dy = space[0, y, x], space[1, y, x]
                shares[0, y, x] = shares[1, y, x] = 0.0
                if dx == 0.0 and dy == 0.0:
                    continue
                magnitude = math.sqrt(dx * dx + dy * dy)
                position = math.atan2(dy, dx) * (n_bins / (2.0 * math.pi)) + n_bins  # in bins
                whole = int(position)
                shares[1, y, x] = magnitude * (position - whole)
                shares[0, y, x] = magnitude - shares[1, y, x]
                lower[y, x] = whole % n_bins
        _vote(shares, lower, row_votes, column_votes, n_bins, cells)
        out[i] = histograms / (histograms.sum() + FLOOR)


@njit(cache=True, nogil=True)
def mean_rows(images: np.ndarray, rows: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Write Σ rows[y, r] columns[x, s] image[y, x] of images (n, channels, H, W) f8 to `out` (n, channels, …) f4."""
    height, width = images.shape[2:]
    n_rows, n_columns = rows.shape[1], columns.shape[1]
    cells, of_row = np.empty((n_rows, n_columns)), np.empty(n_columns)
    for i in range(images.shape[0]):
        for channel in range(images.shape[1]):
            cells[:] = 0.0
            for y in range(height):
                of_row[:] = 0.0
                for x in range(width):
                    for s in range(n_columns):
                        of_row[s] += columns[x, s] * images[i, channel, y, x]
                for r in range(n_rows):
                    for s in range(n_columns):
                        cells[r, s] += rows[y, r] * of_row[s]
            out[i, channel] = cells
