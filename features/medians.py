"""Medians of the columns of a table that is read in blocks: exact, with memory that does not grow with the rows."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Blocks = Callable[[], Iterable[NDArray[np.float64]]]
_DIGIT_BITS = 16
_SIGN = np.uint64(1 << 63)
COLUMNS_TOGETHER = 64  # whose counts, 1 MiB each, are in memory


def medians(blocks: Blocks, n_columns: int) -> NDArray[np.float64]:
    """Return the median (n_columns,) of the numbers of each column of blocks (rows, n_columns); NaN where it has none.

    NaN are left out. The values in the middle are found digit by digit of their bits, four passes for 64 columns.
    """
    groups = [range(k, min(k + COLUMNS_TOGETHER, n_columns)) for k in range(0, n_columns, COLUMNS_TOGETHER)]
    return np.concatenate([_of_some(blocks, group) for group in groups]) if groups else np.empty(0)


def _of_some(blocks: Blocks, group: range) -> NDArray[np.float64]:
    columns = slice(group.start, group.stop)
    ranks: NDArray[np.int64] | None = None  # (2, columns) of the lower and the upper value in the middle
    found = np.zeros((2, len(group)), np.uint64)
    counted = np.zeros(len(group), np.int64)
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts = np.zeros((2, len(group), 1 << _DIGIT_BITS), np.int64)
        for block in blocks():
            keys, present = _sortable(block[:, columns]), ~np.isnan(block[:, columns])
            for k in range(len(group)):
                column = keys[present[:, k], k]
                for of in (0, 1) if ranks is not None else (0,):
                    begun = column
                    if ranks is not None:
                        head = np.uint64(shift + _DIGIT_BITS)
                        begun = column[column >> head == found[of, k] >> head]
                    digits = (begun >> np.uint64(shift)) & np.uint64((1 << _DIGIT_BITS) - 1)
                    counts[of, k] += np.bincount(digits.astype(np.int64), minlength=1 << _DIGIT_BITS)
        if ranks is None:
            counts[1] = counts[0]
            counted = counts[0].sum(axis=1)
            ranks = np.stack([(counted - 1) // 2, counted // 2])
        below = counts.cumsum(axis=2)
        for of in (0, 1):
            for k in np.flatnonzero(counted).tolist():
                digit = int(np.searchsorted(below[of, k], ranks[of, k], side="right"))
                ranks[of, k] -= below[of, k, digit - 1] if digit else 0
                found[of, k] |= np.uint64(digit) << np.uint64(shift)
    low, high = _numbers(found)
    return np.where(counted > 0, np.where(low == high, low, (low + high) / 2), np.nan)


def _sortable(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return whole numbers in the order of numbers that are not NaN."""
    bits = (values + 0.0).view(np.uint64)  # -0.0 equals 0.0
    return np.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _numbers(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the numbers of which `_sortable` made keys."""
    return np.where(keys >= _SIGN, keys ^ _SIGN, ~keys).view(np.float64)
