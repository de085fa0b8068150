"""Row grids: how `n_rows` rows are cut into blocks, and scattered rows gathered block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, order=True)
class Block:
    """A half-open range of rows, `start <= row < stop`, and its number in the grid it came from."""

    index: int
    start: int
    stop: int

    @property
    def n_rows(self) -> int:
        """Return the number of rows in the block."""
        return self.stop - self.start


def row_blocks(n_rows: int, block_rows: int) -> tuple[Block, ...]:
    """Cut rows 0..n_rows into blocks of `block_rows` rows; the last one may be shorter.

    Raises
    ------
    ValueError
        If `n_rows` is negative or `block_rows` is not positive.
    """
    if n_rows < 0:
        raise ValueError(f"row grid: n_rows must not be negative, found {n_rows}")
    if block_rows < 1:
        raise ValueError(f"row grid: block_rows must be at least 1, found {block_rows}")
    starts = range(0, n_rows, block_rows)
    return tuple(Block(index, start, min(start + block_rows, n_rows)) for index, start in enumerate(starts))


def gather_rows(
    rows: NDArray[np.int64], block_rows: int, read: Callable[[int, int], NDArray[Any]], out: NDArray[Any]
) -> None:
    """Fill `out` (m, …) with some rows, in the order given, repeats allowed.

    `read(start, stop)` is called once for each block of the grid that has any of them, in order, with the first and the
    last of them (plus one); what it returned is not used after the next call.
    """
    if not len(rows):
        return
    order = np.argsort(rows, kind="stable")
    firsts = np.unique(rows[order] // block_rows, return_index=True)[1]
    for positions in np.split(order, firsts[1:]):
        start = int(rows[positions[0]])
        out[positions] = read(start, int(rows[positions[-1]]) + 1)[rows[positions] - start]
