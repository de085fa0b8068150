"""Which columns of a table follow the order of its rows: those that number the rows, and others.

Numbers of rows and times of entry rise or fall in all rows, with gaps or without. Of n rows in a random order, a column
does that by chance once in n!/2, so that 10 rows are enough for one column, and 13 for a thousand of them (`CHANCE`).
What is in the order of the rows alone helps to predict no row that is not among them. Columns that follow it less
strictly may be inputs by which the rows were sorted, or numbers that restart: these are used, with a warning.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.cell_text import names_text, setting, shown
from features.tables.encoding import Words

CHANCE = 1e-6  # that a column of a table whose rows are in a random order is taken for one that they follow
BACK_SHARE = 0.02  # of the steps of a count: rows that were swapped, or put behind the others
LEAST_FILLED = 0.9  # of the whole numbers from the least to the largest of a count
LEAST_DIFFERENT = 0.1  # of the values of a column that follows the rows
LEAST_CORRELATION = 0.9  # of ranks and rows, or the least share of steps in one direction, of such a column
LEAST_ROWS, MOST_ROWS = 20, 1000  # of which ranks are compared
MOST_REPEATED = 20  # Columns of which a warning repeats all names.
COUNTERS = re.compile(r"(Unnamed: .*|index|row_nr|id)?", re.IGNORECASE)  # Names of columns that count the rows.


class RowOrder(NamedTuple):
    """The columns that the rows are in the order of, by their places among `names`."""

    names: Sequence[str]
    left_out: tuple[int, ...] = ()  # those that number the rows, which are no inputs
    kept: tuple[int, ...] = ()  # such ones that are, as there are no others
    following: tuple[int, ...] = ()  # those that follow the rows less strictly

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        words: Words,
        codes: NDArray[np.float64],
        starts: NDArray[np.int64],
        named: Collection[str] = (),
    ) -> "RowOrder":
        """Return what codes (n, columns) of rows show, which are in their order, in one file or several.

        words: those of each column, None for numbers, which alone number rows; starts: the first row of each file;
        named: columns that were asked for, which are inputs whatever they hold.
        """
        numbering, counting, following, others = list[int](), list[int](), list[int](), list[int]()
        for k, name in enumerate(names):
            files = [values[np.isfinite(values)] for values in np.split(codes[:, k], starts[1:])]
            values = np.concatenate(files)
            varies = words[k] is not None or (len(values) > 0 and values.min() < values.max())
            if words[k] is not None or name in named or not varies:
                others += [k] if varies else []
            elif COUNTERS.fullmatch(name) and all(map(_is_count, filter(len, files))):
                counting.append(k)
            elif _is_in_order(values, len(names)):
                numbering.append(k)
            else:
                others.append(k)
                following += [k] if _follows(values) else []
        found = sorted(counting + numbering)
        left_out = found if others else counting if numbering else []
        kept = [k for k in found if k not in left_out]
        return cls(tuple(names), tuple(left_out), tuple(kept), tuple(following))

    def warnings(self, titles: Sequence[str], *, drops: bool) -> Iterator[str]:
        """Yield what a user should know of them; titles: what `names` are called for people; drops: by a setting."""
        left_out, kept, following = (shown(titles[k] for k in places) for places in self[1:])
        if left_out:
            remedy = "by naming it in `data.columns`"
            if len(self.names) <= MOST_REPEATED:
                remedy = f"with {setting('data.columns', names_text(self.names))}"
            remedy += " in place of `data.drop`" if drops else ""
            yield f"left out, as they number the rows: {left_out}; use one by which the table is only sorted {remedy}"
        if kept:
            use = "they are used, as there are no others; if they only number the rows, nothing is learned"
            yield f"inputs that may number the rows: {kept}; {use}"
        if following:
            use = "leave out one that only tells which row it is, or when it was written"
            yield f"inputs that may number the rows: {following}; {use}"


def array_warnings(X: NDArray[Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return what a user of arrays X (n, d) should know of the columns that number its rows, by the first rows."""
    codes = np.asarray(X[:MOST_ROWS], np.float64)
    found = RowOrder.of(names, [None] * len(names), codes, np.zeros(1, np.int64)).left_out
    told = f"columns of X that rise or fall from row to row: {shown(names[k] for k in found)}"
    return (f"{told}; leave out those that only number the rows",) if found else ()


def _signs(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return how many values rise above the one before, and how many fall below it."""
    return int(np.count_nonzero(values[1:] > values[:-1])), int(np.count_nonzero(values[1:] < values[:-1]))


def _is_in_order(values: NDArray[np.float64], n_columns: int) -> bool:
    """Return whether all steps of values go in one direction, of a count nearly all, and so many not by chance.

    (k + 1)^n bounds the number of orders of n values that have k steps back at most; n! is that of all orders.
    """
    n, (rises, falls) = len(values), _signs(values)
    back = n - 1 - max(rises, falls)
    if back and (back > BACK_SHARE * n + 1 or not _is_count(values)):
        return False
    return bool(math.log(2 * n_columns) + n * math.log(back + 1) - math.lgamma(n + 1) < math.log(CHANCE))


def _is_count(values: NDArray[np.float64]) -> bool:
    """Return whether values are different whole numbers that leave few out, in any order."""
    if (values % 1).any() or len(values) < LEAST_FILLED * (values.max() - values.min() + 1):
        return False
    return len(np.unique(values)) == len(values)


def _follows(values: NDArray[np.float64]) -> bool:
    """Return whether values never fall, or never rise; are a count; or go mostly with the rows, and most differ."""
    n, (rises, falls) = len(values), _signs(values)
    if n < LEAST_ROWS or max(rises, falls) < math.log(n):  # as of two or three values, sorted
        return False
    if not min(rises, falls) or (values.min() in (0, 1) and _is_count(values)):
        return True
    some = values[np.linspace(0, n - 1, min(n, MOST_ROWS)).astype(np.int64)]
    correlation = np.corrcoef(np.unique(some, return_inverse=True)[1], np.arange(len(some)))[0, 1]
    share = max(rises, falls) / (rises + falls)
    return max(share, abs(correlation)) >= LEAST_CORRELATION and len(np.unique(values)) >= LEAST_DIFFERENT * n
