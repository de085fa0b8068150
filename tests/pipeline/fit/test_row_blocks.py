"""How the rows are cut into blocks, by the data alone."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.fit import row_blocks as rows


@given(n_rows=st.integers(0, 10**7), n_columns=st.integers(1, 10**6), sums_bytes=st.integers(0, 2**36))
def test_blocks_cover_each_row_once_and_are_bounded(n_rows, n_columns, sums_bytes):
    grid = rows.row_grid("train", n_rows, n_columns, sums_bytes)
    assert grid.block_rows % 32 == 0
    assert 32 <= grid.block_rows <= rows.MOST_ROWS
    assert grid.block_rows == 32 or grid.block_rows * n_columns <= rows.MOST_VALUES
    assert (grid.n_blocks - 1) * grid.block_rows < max(n_rows, 1) <= max(grid.n_blocks * grid.block_rows, 1)
    if grid.n_blocks:
        assert sum(grid.size(block) for block in (0, grid.n_blocks - 1)) <= 2 * grid.block_rows
        assert grid.rows(range(grid.n_blocks)) == slice(0, n_rows)
        last = grid.n_blocks - 1
        assert grid.rows(range(last, grid.n_blocks)).stop - last * grid.block_rows == grid.size(last)
