"""Which columns of a table follow the order of its rows: those that number the rows, and others.

Numbers of rows and times of entry rise or fall from row to row of a file, with gaps or without. Of n rows in a random
order, a column does that by chance once in n!/2, so that 10 rows are enough for one column, and 13 for a thousand of
them (`CHANCE`). Some steps back are rows that were swapped, or put behind the others. What is in the order of the rows
alone helps to predict no row that is not among them. Columns that follow it less strictly may be inputs by which the
rows were sorted: these are used, with a warning.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.cell_text import names_text, setting, shown
from features.tables.encoding import Words

CHANCE = 1e-6  # that a column of a table whose rows are in a random order is taken for one that they follow
STEPS_BACK = 2  # of rows that were swapped or added; more are
BACK_SHARE = 0.01  # of all steps
LEAST_DIFFERENT = 2 / 3  # of the values of a column that numbers the rows
MOST_REPEATED = 20  # Columns of which a warning repeats all names.
LEAST_UNLIKE = 0.1  # of the values that are different in a column that follows the rows
LEAST_CORRELATION = 0.9  # of ranks and rows, or the least share of steps in one direction, of such a column
LEAST_CORRELATED, MOST_CORRELATED = 20, 10_000  # Rows, of which ranks are compared.
COUNTERS = re.compile(
    r"(Unnamed: .*|index|row_nr|id)?", re.IGNORECASE
)  # as programs call a column that counts the rows


@dataclass(frozen=True)
class RowOrder:
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
        numbering, counting, following = list[int](), list[int](), list[int]()
        for k, name in enumerate(names):
            if words[k] is not None or name in named:
                continue
            files = [values[~np.isnan(values)] for values in np.split(codes[:, k], starts[1:])]
            values = np.concatenate(files)
            if not len(values):
                continue
            back, is_count = _steps_back(files, len(names)), _is_count(values)
            if is_count and COUNTERS.fullmatch(name):
                counting.append(k)
            elif back is not None and _share_different(files) >= LEAST_DIFFERENT:
                numbering.append(k)
            elif back == 0 or _follows(files, is_count=is_count):
                following.append(k)
        found = sorted(counting + numbering)
        left_out = found if len(found) < len(names) else counting if len(counting) < len(names) else []
        kept = [k for k in found if k not in left_out]
        return cls(tuple(names), tuple(left_out), tuple(kept), tuple(following))

    def warnings(self, titles: Sequence[str]) -> Iterator[str]:
        """Yield what a user should know of them; titles: what each of `names` is called for people."""
        left_out, kept, following = (
            shown(titles[k] for k in places) for places in (self.left_out, self.kept, self.following)
        )
        if left_out:
            few = len(self.names) <= MOST_REPEATED
            remedy = setting("data.columns", names_text(self.names)) if few else "`data.columns` with all inputs"
            use = f"use one by which the table is only sorted with {remedy}"
            yield f"left out, as they number the rows: {left_out}; {use}"
        if kept:
            use = "they are used, as there are no others; if they only number the rows, nothing is learned"
            yield f"inputs that may number the rows: {kept}; {use}"
        if following:
            use = "leave out one that only tells when or where a row was written"
            yield f"inputs that follow the order of the rows: {following}; {use}"


def array_warnings(X: NDArray[Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return what a user of arrays X (n, d) should know of the columns that number its rows, by the first rows."""
    codes = np.asarray(X[:MOST_CORRELATED], np.float64)
    found = RowOrder.of(names, [None] * len(names), codes, np.zeros(1, np.int64)).left_out
    told = f"columns of X that number its rows: {shown(names[k] for k in found)}; leave them out"
    return (told,) if found else ()


def _signs(values: NDArray[np.float64]) -> tuple[int, int]:
    """Return how many values rise above the one before, and how many fall below it."""
    return int(np.count_nonzero(values[1:] > values[:-1])), int(np.count_nonzero(values[1:] < values[:-1]))


def _steps_back(files: Sequence[NDArray[np.float64]], n_columns: int) -> int | None:
    """Return how many steps go back where nearly all go in one direction, and so many do not by chance; else None.

    (k + 1)^n bounds the number of orders of n values that have k steps back at most; n! is that of all orders.
    """
    signs = np.array([_signs(values) for values in files])
    back = signs[:, signs.sum(axis=0).argmin()]
    n_steps = signs.sum(axis=1)
    if back.sum() > max(STEPS_BACK, BACK_SHARE * n_steps.sum()):
        return None
    log_chance = sum(
        (n + 1) * math.log(k + 1) - math.lgamma(n + 2) for n, k in zip(n_steps.tolist(), back.tolist(), strict=True)
    )
    return int(back.sum()) if math.log(2 * n_columns) + log_chance < math.log(CHANCE) else None


def _is_count(values: NDArray[np.float64]) -> bool:
    """Return whether values are the whole numbers from 0 or 1 on, each once, in any order."""
    first, last = values.min(), values.min() + len(values) - 1
    return first in (0, 1) and values.max() == last and np.array_equal(np.sort(values), np.arange(first, last + 1))


def _share_different(files: Sequence[NDArray[np.float64]]) -> float:
    return sum(len(np.unique(values)) for values in files) / sum(map(len, files))


def _follows(files: Sequence[NDArray[np.float64]], *, is_count: bool) -> bool:
    """Return whether values are a count, many go in one direction, or ranks in the largest file go with the rows."""
    steps, largest = np.sum([_signs(values) for values in files], axis=0), max(files, key=len)
    if len(largest) < LEAST_CORRELATED or is_count:
        return is_count and len(largest) >= LEAST_CORRELATED
    some = largest[np.linspace(0, len(largest) - 1, min(len(largest), MOST_CORRELATED)).astype(np.int64)]
    ranks = np.unique(some, return_inverse=True)[1]
    correlation = np.corrcoef(ranks, np.arange(len(some)))[0, 1] if ranks.any() else 0.0
    is_along = steps.max() >= LEAST_CORRELATION * max(steps.sum(), 1) or abs(correlation) >= LEAST_CORRELATION
    return bool(is_along) and _share_different(files) >= LEAST_UNLIKE
