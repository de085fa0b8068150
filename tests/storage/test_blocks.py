"""Row grids cover every row once, in order, on block boundaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.blocks import Block, row_blocks, spans

N_ROWS = st.integers(0, 5000)
BLOCK_ROWS = st.integers(1, 700)


@given(N_ROWS, BLOCK_ROWS)
def test_blocks_cover_each_row_once(n_rows: int, block_rows: int) -> None:
    blocks = row_blocks(n_rows, block_rows)
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(n_rows))
    assert [block.index for block in blocks] == list(range(len(blocks)))
    assert all(block.n_rows == block_rows for block in blocks[:-1])
    assert all(1 <= block.n_rows <= block_rows for block in blocks)


@given(N_ROWS, BLOCK_ROWS, st.integers(1, 40))
def test_spans_are_even_groups_of_whole_blocks(n_rows: int, block_rows: int, n_spans: int) -> None:
    groups = spans(n_rows, block_rows, n_spans)
    n_blocks = len(row_blocks(n_rows, block_rows))
    assert len(groups) == min(n_spans, n_blocks)
    edges = [0, *(group.stop for group in groups)]
    assert edges[-1] == n_rows
    assert [group.start for group in groups] == edges[:-1]
    assert all(group.start % block_rows == 0 for group in groups)
    sizes = [len(row_blocks(group.n_rows, block_rows)) for group in groups]
    assert sum(sizes) == n_blocks
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_known_grid() -> None:
    assert row_blocks(5, 2) == (Block(0, 0, 2), Block(1, 2, 4), Block(2, 4, 5))
    assert spans(5, 2, 2) == (Block(0, 0, 4), Block(1, 4, 5))
    assert row_blocks(0, 3) == spans(0, 3, 2) == ()


@pytest.mark.parametrize("arguments", [(-1, 2, 1), (3, 0, 1), (3, 1, 0)])
def test_impossible_grids_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        spans(*arguments)
