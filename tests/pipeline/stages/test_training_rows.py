"""How the rows are cut into blocks, by the data alone, and read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import SERIAL
from pipeline.kernels.gram_statistics import StatisticsSums
from pipeline.runtime import stopping
from pipeline.stages import training_rows as rows
from pipeline.stages.training_rows import row_grid
from runs import train


@given(n_rows=st.integers(0, 10**7), n_columns=st.integers(1, 10**6), sums_bytes=st.integers(0, 2**36))
def test_blocks_cover_each_row_once_and_are_bounded(n_rows: int, n_columns: int, sums_bytes: int) -> None:
    grid = row_grid("train", n_rows, n_columns, sums_bytes)
    assert grid.block_rows % 32 == 0
    assert 32 <= grid.block_rows <= rows.MOST_ROWS
    assert grid.block_rows == 32 or grid.block_rows * n_columns <= rows.MOST_VALUES
    assert (grid.n_blocks - 1) * grid.block_rows < max(n_rows, 1) <= max(grid.n_blocks * grid.block_rows, 1)
    if grid.n_blocks:
        assert sum(grid.size(block) for block in (0, grid.n_blocks - 1)) <= 2 * grid.block_rows
        assert grid.rows(range(grid.n_blocks)) == slice(0, n_rows)
        last = grid.n_blocks - 1
        assert grid.rows(range(last, grid.n_blocks)).stop - last * grid.block_rows == grid.size(last)


def test_a_pass_ends_between_two_blocks_that_were_read_together(
    tables: Path, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, added = StatisticsSums.add, list[int]()

    def stopped(sums: StatisticsSums, columns: np.ndarray, *arguments: Any) -> None:
        stopping.request("a test")
        added.append(len(columns))
        add(sums, columns, *arguments)

    monkeypatch.setattr(StatisticsSums, "add", stopped)
    arguments = ("--centers", "40", "--penalty", "1", *SERIAL)
    train(tmp_path / "run", features, *arguments, dataset=tables / "classes.npz", code=75)
    assert len(added) == 2, "fit rows and held-out rows of the first block"
