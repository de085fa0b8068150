"""Scores of candidates at several widths: tiles of points cover every pair once, sums are those of dense columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runs
from pipeline.datasets.feature_rows import open_features
from pipeline.kernels.exact_sums import ExactSum
from pipeline.kernels.kernel_forms import ColumnGenerator
from pipeline.stages import block_pass
from pipeline.stages.out_of_core import correlation_pass, correlations
from pipeline.stages.out_of_core import tiles as module
from pipeline.stages.out_of_core.tiles import Tiles, grouped_by_point


@given(n=st.integers(1, 9000), n_widths=st.integers(1, 3), share=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_tiles_cover_each_pair_of_row_and_candidate_once(n: int, n_widths: int, share: float, seed: int) -> None:
    everyone = np.arange(n * n_widths)
    some = everyone[np.random.default_rng(seed).random(len(everyone)) < share]
    for candidates, symmetric in ((everyone, True), (everyone, False), (some, False)):
        order, starts = grouped_by_point(candidates, n)
        assert np.array_equal(np.sort(order), np.arange(len(candidates)))
        tiles, points = Tiles(n, starts, symmetric), candidates[order] % n
        entries = 0
        for piece in range(tiles.n_tiles):
            of, rows = tiles.tile(piece)
            entries += of.n_rows * rows.n_rows
            assert len(np.unique(points[of.start : of.stop])) <= module.TILE_ROWS
            for columns, first in tiles.mirrored(of, rows):
                names = candidates[order][of.start : of.stop][columns]
                assert np.array_equal(names % n, np.arange(n)[tiles.points(of)]), "all its points, at one width"
                mirrored = candidates[order][first : first + rows.n_rows]
                assert np.array_equal(mirrored, names[0] // n * n + np.arange(rows.start, rows.stop))
                entries += len(mirrored) * len(names)
        assert entries == n * len(candidates)


@pytest.mark.parametrize("widths", [(4.0,), (2.0, 4.0, 9.0)])
def test_scores_are_those_of_dense_columns(
    tables: Path, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, widths: tuple[float, ...]
) -> None:
    """Of all candidates, half of the tiles, and of some of them; both share inner products among widths."""
    monkeypatch.setattr(module, "TILE_ROWS", 64)
    monkeypatch.setattr(module, "LINE_ROWS", 256)
    real, entries, errors = correlations.correlate, [], []

    class Recorded(ExactSum):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            errors.append(self.error[:-1])

    monkeypatch.setattr(block_pass, "ExactSum", Recorded)

    def compared(run: Any, name: str, residuals: np.ndarray, candidates: np.ndarray) -> Any:
        n = run.shape.n_train
        X = open_features(run.features).read("train", 0, n)
        some = candidates[np.random.default_rng(1).random(len(candidates)) < 0.3]
        for number, names in enumerate((some, candidates)):
            found = real(run, f"{name}-{number}", residuals, names)
            K = ColumnGenerator(X[names % n], np.array(widths)[names // n], np.float64).block(X)
            assert np.allclose(found.values, K.T @ residuals, rtol=1e-5, atol=1e-3)
            assert np.allclose(found.square_bounds, K.sum(axis=0), rtol=1e-5)
            entries.append(found.kernel_entries)
        assert np.array_equal(np.max(errors, axis=0), correlation_pass.correlation_errors(run, residuals))
        assert entries[0] == n * len(some)
        assert entries[1] < 0.65 * n * len(candidates)
        raise KeyboardInterrupt

    monkeypatch.setattr(correlations, "correlate", compared)
    arguments = ("--centers", "all", "--sigma2", ",".join(map(str, widths)), "--set", "centers.working_set=60")
    runs.train(tmp_path / "run", features, *arguments, "--penalty", "3", dataset=tables / "classes.npz", code=75)
    assert len(entries) == 2
