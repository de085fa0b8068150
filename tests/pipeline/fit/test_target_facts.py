"""Targets, weights and keys of the training rows are read once before columns are computed, whatever is fitted.

How the rows are cut into blocks, by the data alone.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import SERIAL
from pipeline.fit import row_blocks as rows
from pipeline.fit import target_facts
from runs import train
from storage.zarr_arrays import StoredArray

GAUSSIAN = "--kernel gaussian --scale none"
# A table, words, what is read beside targets and keys, and from how many rows on none are in folds.
CASES = {
    "a mean": ("values", f"--centers 40 --set data.weights=w {GAUSSIAN}", ("weights",), 600),
    "a penalty": ("values", "--centers 40 --penalty 1", (), 600),
    "class weights": ("classes", f"--centers 40 --sigma2 1 --class-weight balanced {GAUSSIAN}", (), 600),
    "few rows, in folds": ("classes", "--centers 40 --sigma2 auto --scale none", (), 1000),
    "groups": ("classes", "--centers 40 --penalty auto --refit ridge --set data.groups=w", ("groups",), 600),
    "growing": ("values", f"--budget 1s --sigma2 auto {GAUSSIAN}", (), 600),
}


@pytest.mark.parametrize("case", CASES)
def test_targets_weights_and_keys_are_read_once_before_columns_are_computed(
    tables, features, tmp_path, monkeypatch, case
):
    table, words, more, folded = CASES[case]
    read, n_read = StoredArray.__getitem__, Counter[str]()

    def counting(array: StoredArray, rows: Any) -> Any:
        found, (part, name) = read(array, rows), array.path.split("/")
        if name == "X" and isinstance(rows, slice):
            n_read["computes"] = 1
        elif part == "train" and not n_read["computes"]:
            n_read[name] += len(found)
        return found

    monkeypatch.setattr(StoredArray, "__getitem__", counting)
    monkeypatch.setattr(target_facts, "FOLDED_ROWS", folded)
    report = train(tmp_path / "run", features, *words.split(), *SERIAL, dataset=tables / f"{table}.npz")
    n_read.pop("X", None)  # of candidates and samples, by their numbers
    assert n_read == dict.fromkeys(["y", "keys", *more], report["n_train"]) | {"computes": 1}


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
