"""Row grids: how `n_rows` rows are cut into blocks and spans. Integers only."""

from __future__ import annotations

from dataclasses import dataclass


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
    _check(n_rows, block_rows)
    starts = range(0, n_rows, block_rows)
    return tuple(Block(index, start, min(start + block_rows, n_rows)) for index, start in enumerate(starts))


def spans(n_rows: int, block_rows: int, n_spans: int) -> tuple[Block, ...]:
    """Group whole blocks into at most `n_spans` contiguous ranges of almost equal size.

    Every span starts on a multiple of `block_rows`; the numbers of blocks in two spans differ by at most one,
    the larger ones first. There are fewer than `n_spans` spans when there are fewer blocks.

    Raises
    ------
    ValueError
        If `n_rows` is negative, or `block_rows` or `n_spans` is not positive.
    """
    _check(n_rows, block_rows)
    if n_spans < 1:
        raise ValueError(f"spans: n_spans must be at least 1, found {n_spans}")
    n_blocks = -(-n_rows // block_rows)
    count = min(n_spans, n_blocks)
    if count == 0:
        return ()
    base, larger = divmod(n_blocks, count)
    edges = [index * base + min(index, larger) for index in range(count + 1)]
    return tuple(
        Block(index, edges[index] * block_rows, min(edges[index + 1] * block_rows, n_rows)) for index in range(count)
    )


def _check(n_rows: int, block_rows: int) -> None:
    if n_rows < 0:
        raise ValueError(f"row grid: n_rows must not be negative, found {n_rows}")
    if block_rows < 1:
        raise ValueError(f"row grid: block_rows must be at least 1, found {block_rows}")
