"""Scores of candidates: tiles cover every pair once, sums are those of dense columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runs
from pipeline.datasets.feature_rows import open_features
from pipeline.kernels.exact_sums import ExactSum
from pipeline.kernels.kernel_functions import GaussianKernel
from pipeline.stages.fit import correlations
from pipeline.stages.fit.correlations import Correlations, Tiles


@given(n=st.integers(1, 9000), share=st.floats(0.01, 1.0))
def test_tiles_cover_each_pair_of_row_and_candidate_once(n: int, share: float) -> None:
    for n_candidates, symmetric in ((n, True), (n, False), (int(share * n), False)):
        tiles, entries = Tiles(n, n_candidates, symmetric), 0
        for piece in range(tiles.n_tiles):
            candidates, rows = tiles.tile(piece)
            assert max(candidates.n_rows, rows.n_rows) <= correlations.TILE_ROWS
            assert tiles.size(piece) == candidates.n_rows * rows.n_rows
            entries += tiles.size(piece) * (2 if symmetric and candidates.index != rows.index else 1)
        assert entries == n * n_candidates


def test_scores_are_those_of_dense_columns(
    tables: Path, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all candidates, half of the tiles, and of some of them, in any order."""
    monkeypatch.setattr(correlations, "TILE_ROWS", 64)
    monkeypatch.setattr(correlations, "LINE_ROWS", 48)
    real, make, entries, errors = correlations.correlate, ExactSum.__init__, [], []

    def recorded(self: ExactSum, *arguments: Any) -> None:
        make(self, *arguments)
        errors.append(np.atleast_1d(self.error)[:-1])

    monkeypatch.setattr(ExactSum, "__init__", recorded)

    def compared(run: Any, name: str, residuals: np.ndarray, candidates: np.ndarray) -> Any:
        n = run.shape.n_train
        X = open_features(run.features).read("train", 0, n)
        errors.clear()
        some = np.random.default_rng(1).permutation(candidates)[: len(candidates) // 3]
        for number, members in enumerate((some, candidates)):
            values, square_bounds, kernel_entries = real(run, f"{name}-{number}", residuals, members)
            K = GaussianKernel(X[members], 4.0, np.float64).block(X)
            assert np.allclose(values, K.T @ residuals, rtol=1e-5, atol=1e-3)
            assert np.allclose(square_bounds, K.sum(axis=0), rtol=1e-5)
            entries.append(kernel_entries)
        assert np.array_equal(np.max(errors, axis=0), correlations.correlation_errors(run, residuals))
        assert entries[0] == n * len(some)
        assert entries[1] < 0.65 * n * len(candidates)
        raise KeyboardInterrupt

    monkeypatch.setattr(correlations, "correlate", compared)
    arguments = ("--centers", "all", "--sigma2", "4", "--set", "centers.working_set=60")
    runs.train(tmp_path / "run", features, *arguments, "--penalty", "3", dataset=tables / "classes.npz", code=75)
    assert len(entries) == 2


@given(seed=st.integers(0, 10**6), scale=st.floats(0.0, 1.0))
def test_what_is_not_evaluated_cannot_violate(seed: int, scale: float) -> None:
    """|c_mᵀr_new| ≤ τ for every candidate the bound skips, whatever the columns are."""
    rng = np.random.default_rng(seed)
    C, old = rng.normal(size=(30, 20)), rng.normal(size=(30, 3))
    new = old + scale * rng.normal(size=(30, 3))
    bounds = np.linalg.norm(C, axis=0) * rng.uniform(1, 1.1, 20)
    tau = float(np.median(np.abs(C.T @ old)))
    before = Correlations(C.T @ old, bounds, old, np.zeros((20, 3)), np.zeros(20, bool), 20, 0)
    between = before.moved_to((old + new) / 2)
    found = between.moved_to(new)
    assert (np.abs(C.T @ new).max(axis=1)[found.bounded(tau)] <= tau * (1 + 1e-12)).all()
    known = found.with_values(np.arange(5), C.T[:5] @ new)
    assert known.exact[:5].all()
    assert (known.bounded(tau)[:5] == (np.abs(C.T[:5] @ new).max(axis=1) <= tau)).all()
