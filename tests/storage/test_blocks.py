"""Row grids cover every row once, in order, on block boundaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.blocks import row_blocks

N_ROWS = st.integers(0, 5000)
BLOCK_ROWS = st.integers(1, 700)


@given(N_ROWS, BLOCK_ROWS)
def test_blocks_cover_each_row_once(n_rows: int, block_rows: int) -> None:
    blocks = row_blocks(n_rows, block_rows)
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(n_rows))
    assert [block.index for block in blocks] == list(range(len(blocks)))
    assert all(block.n_rows == block_rows for block in blocks[:-1])
    assert all(1 <= block.n_rows <= block_rows for block in blocks)


@pytest.mark.parametrize("arguments", [(-1, 2), (3, 0)])
def test_impossible_grids_are_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        row_blocks(*arguments)
