"""Columns on demand: the weights of the Gram of all candidates, from few of its columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.prediction.model_folder import load_model
from pipeline.stages.out_of_core import kept_columns, pricing
from pipeline.stages.out_of_core.correlations import Correlations
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

COMMON, WIDTH = ("--centers", "400"), ("--sigma2", "1")
ON_DEMAND = ("--set", "centers.columns=on-demand")
EXACT = ("--set", "kernel.precision=float64", "--tol", "1e-9", "--scheduler", "serial")
CASES = {
    "classes": ("--penalty", "1", *WIDTH),
    "intercept": ("--penalty", "1", "--intercept", *WIDTH),
    "weights": ("--penalty", "1", "--set", "data.weights=w", "--class-weight", "balanced", "--intercept", *WIDTH),
    "laplace": ("--penalty", "3", "--kernel", "laplace", "--sigma2", "3"),
    "a fraction": ("--penalty", "max:1e-3", *WIDTH),
}
MARKS = {"weights": (), "laplace": pytest.mark.ci}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks of few candidates, and of few rows."""
    monkeypatch.setattr(pricing, "LEAST_BLOCK", 32)
    monkeypatch.setattr(pricing, "BLOCKS", 4)
    monkeypatch.setattr(kept_columns, "LEAST_ROWS", 64)


@pytest.mark.parametrize("case", [pytest.param(case, marks=MARKS.get(case, pytest.mark.nightly)) for case in CASES])
def test_the_weights_are_those_of_the_gram_of_all_candidates(case: str, train_classes: Any, tmp_path: Path) -> None:
    asked = (*CASES[case], *EXACT)
    report = train_classes("on-demand", *asked, *ON_DEMAND)
    dense = train_classes("dense", *asked)
    for one, other in zip(dense["solves"], report["solves"], strict=True):
        assert other["objective"] == pytest.approx(one["objective"], rel=1e-8)
        assert other["relative_gap"] <= 1e-9
    names = ("dense", "on-demand")
    weights = [read_arrays(RunLayout(tmp_path / name).solution("final.npz")) for name in names]
    assert np.array_equal(weights[0]["active"], weights[1]["active"])
    np.testing.assert_allclose(weights[1]["weights"], weights[0]["weights"], rtol=1e-3, atol=1e-4)
    assert len(load_model(tmp_path / "on-demand" / "model").center_index) == report["model_n_centers"]
    assert dense["columns"] is None
    columns, passes = report["columns"], report["passes"]
    assert columns["active"] == report["model_n_centers"] <= columns["materialised"] < 0.7 * columns["candidates"]
    assert columns["on_the_fly"] == sum(one["evaluated"] for one in passes)
    assert report["kernel_entries"] == report["n_train"] * (columns["on_the_fly"] + columns["materialised"])
    seen = passes[-1]["evaluated"] + passes[-1]["skipped"] + passes[-1]["screened"] + passes[-1]["working_set"]
    assert seen >= columns["candidates"] == report["n_centers"], "the last certificate is over all candidates"
    assert all(one["violators"] >= one["admitted"] > 0 for one in passes[:-1])
    assert all(one["relative_gaps"] <= [1.0] * len(report["solves"]) for one in passes)


@pytest.mark.ci
def test_little_room_drops_what_is_at_zero_or_says_so(train_classes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    whole = train_classes("whole", *CASES["classes"], *ON_DEMAND)
    room = whole["model_n_centers"] + 20
    assert room < whole["columns"]["materialised"]
    little = train_classes("little", *CASES["classes"], *ON_DEMAND, "--set", f"centers.working_set={room}")
    assert max(one["working_set"] for one in little["passes"]) <= room
    assert any(one["dropped"] for one in little["passes"])
    for one, other in zip(whole["solves"], little["solves"], strict=True):
        assert other["objective"] == pytest.approx(one["objective"], rel=2e-3)
    capsys.readouterr()
    least = train_classes("least", *CASES["classes"], *ON_DEMAND, "--set", "centers.working_set=9", code=3)
    assert least["converged"] is False
    assert all(one["relative_gap"] == 1.0 for one in least["solves"] if not one["converged"])
    assert "no room" in capsys.readouterr().err


def test_a_penalty_above_the_largest_leaves_nothing_active(train_classes: Any) -> None:
    report = train_classes("run", "--penalty", "1e9", *ON_DEMAND)
    assert report["columns"]["materialised"] == 1
    assert report["model_n_centers"] == 0


@pytest.mark.parametrize("asked", [("--penalty", "auto"), ("--select", "greedy:20"), ("--penalty", "none")])
def test_what_needs_all_columns_is_refused(
    train_classes: Any, asked: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    train_classes("run", *asked, *ON_DEMAND, code=2)
    assert "on-demand is for one penalty" in capsys.readouterr().err


def correlations_of(values: list[float], errors: list[float]) -> Correlations:
    n = len(values)
    column, none = np.array(values)[:, None], np.zeros(n, bool)
    return Correlations(column, np.ones(n), np.zeros((1, 1)), np.array(errors)[:, None], none, 0, 0, 0)


def test_new_candidates_come_first_then_those_of_the_largest_scores() -> None:
    found = correlations_of([0.1, -0.9, 0.0, 0.5, 0.0], [1.0, 1.0, np.inf, 1.0, np.inf])
    waiting = np.arange(5)
    assert pricing.next_block(found, waiting, 4, seed=0).tolist() == [2, 4]
    assert len(pricing.next_block(found, waiting, 1, seed=0)) == 1
    assert pricing.next_block(found, np.array([0, 1, 3]), 2, seed=0).tolist() == [1, 3]
