"""Which columns of a table number its rows: found in one reading, by batches of any size, in one file or several.

Numbers of rows, with gaps or without, and times of entry differ in all rows of a file, and rise or fall from row to
row. Of n rows in a random order, a column without ties does that by chance once in n!/2, so that 10 rows are enough
for one column, and 13 for a thousand of them (`CHANCE`). Times and positions by which a table was sorted look the same.
Nothing that is in the order of the rows alone helps to predict rows that are in none.
"""

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from features.tables.encoding import Words

CHANCE = 1e-6  # that a column of a table whose rows are in a random order is taken for one that numbers them
COUNTERS = re.compile(r"(Unnamed: .*|index|row_nr)?")  # as pandas and polars call a column that counts the rows


class RowNumbers:
    """What is known of each column so far: those that are `named` are none; missing cells are passed over."""

    def __init__(self, names: Sequence[str], named: Collection[str] = ()) -> None:
        self._names = names
        self._rises = np.array([name not in named for name in names])
        self._falls = self._rises.copy()
        self._counts = np.array([name not in named and bool(COUNTERS.fullmatch(name)) for name in names])
        self._log_orders = np.zeros(len(names))  # of as many values in each file
        self._last, self._n_values = np.full(len(names), np.nan), np.zeros(len(names), np.int64)  # of the file
        self._path: Path | None = None

    def add(self, path: Path, codes: NDArray[np.float64]) -> None:
        """See the codes (rows, columns) of a batch of a file, which follows those of the last one."""
        if self._path is None:
            self._counts &= np.isin(codes[0], (0, 1))
        if self._path != path:
            self._path, self._last[:], self._n_values[:] = path, np.nan, 0
        for k in np.flatnonzero(self._rises | self._falls).tolist():
            values = codes[~np.isnan(codes[:, k]), k]
            if not len(values):
                continue
            n_before, n_values = int(self._n_values[k]), int(self._n_values[k]) + len(values)
            before = np.append(self._last[k] if n_before else values[:0], values[:-1])
            after = values[len(values) - len(before) :]
            self._rises[k] &= (after > before).all()
            self._falls[k] &= (after < before).all()
            self._counts[k] &= (after == before + 1).all()
            self._log_orders[k] += math.lgamma(n_values + 1) - math.lgamma(n_before + 1)
            self._last[k], self._n_values[k] = values[-1], n_values

    def found(self, words: Words) -> list[int]:
        """Return the columns that number the rows; words: those of each column, None for numbers, which alone do."""
        least = math.log(2 * len(self._names) / CHANCE)
        likely = (self._rises | self._falls) & (self._counts | (self._log_orders > least))
        return [k for k in np.flatnonzero(likely).tolist() if words[k] is None]

    def left_out(self, words: Words) -> tuple[int, ...]:
        """Return those of them that are no inputs: all, or where nothing else is left, those that count the rows."""
        found = self.found(words)
        left_out = found if len(found) < len(self._names) else [k for k in found if self._counts[k]]
        return tuple(left_out) if len(left_out) < len(self._names) else ()
