"""Rows of features: learned scales or a metric, and the check for infinities."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

TILE_ROWS = 32  # blocks of rows begin at multiples of it


def scaled(X: NDArray[np.floating], scales: NDArray[np.float32] | None) -> NDArray[np.floating]:
    """Return rows X (rows, d) times the scales (d,) f4 of the features, of the dtype of X; as they are without any.

    mathematics.md, eqs. 81 and 90. Scales (d, d) are the root of a metric. Costs 2·rows·d² operations then; a row
    does not depend on how many are beside it.
    """
    if scales is None:
        return X
    return X * scales if scales.ndim == 1 else _product(X, scales.astype(X.dtype, copy=False))


def lengths(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how far apart scales (d,) or (d, d) bring two rows that differ by one in a single feature, (d,) f4."""
    return scales if scales.ndim == 1 else np.sqrt(np.square(scales).sum(axis=1))


def _product(X: NDArray[np.floating], root: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return X root, in products of TILE_ROWS rows in order: BLAS rounds by their number and order in memory."""
    X = np.ascontiguousarray(X)
    out, whole = np.empty_like(X), len(X) - len(X) % TILE_ROWS
    tiles = (-1, TILE_ROWS, X.shape[1])
    np.matmul(X[:whole].reshape(tiles), root, out=out[:whole].reshape(tiles))
    last = np.zeros((TILE_ROWS, X.shape[1]), X.dtype)
    last[: len(X) - whole] = X[whole:]
    out[whole:] = (last @ root)[: len(X) - whole]
    return out


def first_non_finite_row(rows: ArrayLike) -> int | None:
    """Return the number of the first row of (n, …) that holds an infinity or nan, None where all are finite."""
    rows = np.asarray(rows)
    finite = np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))
    return None if finite.all() else int(np.argmin(finite))
