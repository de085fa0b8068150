"""Candidates beyond memory, priced at once or on demand: the weights of the Gram of all, from few of its columns."""

from typing import Any

import numpy as np
import pytest

import runs
from cases import SERIAL
from pipeline.fit import kept_columns
from pipeline.fit import rounds as generation
from pipeline.prediction.trained_model import load_model
from storage.arrays import load
from storage.folder_layouts import RunLayout

COMMON = SERIAL
WIDTH = ("--sigma2", "1")
ON_DEMAND = ("--set", "centers.columns=on-demand")
AT_ONCE = ("--set", "centers.working_set=150")
ORIGIN = ("--set", "solver.intercept=false")
EXACT = ("--tol", "1e-9")
MANY = ("--centers", "400")
CASES = {
    "all candidates": (*AT_ONCE, "--centers", "all", "--penalty", "1", "--sigma2", "2"),
    "some candidates": (*AT_ONCE, "--centers", "300", "--penalty", "1", "--sigma2", "2", "--refit", "ridge"),
    "no intercept": (*AT_ONCE, "--centers", "300", "--penalty", "1", "--sigma2", "2", *ORIGIN),
    "on demand": (*ON_DEMAND, *MANY, "--penalty", "1", *WIDTH),
    "on demand, no intercept": (*ON_DEMAND, *MANY, "--penalty", "1", *ORIGIN, *WIDTH),
    "on demand, weights": (
        *(*ON_DEMAND, *MANY, "--penalty", "1", *WIDTH),
        *("--set", "data.weights=w", "--class-weight", "balanced"),
    ),
    "on demand, edges": (*ON_DEMAND, *MANY, "--penalty", "3", "--kernel", "product-laplace", "--sigma2", "8"),
    "on demand, a fraction": (*ON_DEMAND, *MANY, "--penalty", "max:1e-3", *WIDTH),
}
MARKS: dict[str, Any] = dict.fromkeys(("all candidates", "no intercept", "on demand, edges"), pytest.mark.ci)
MARKS |= dict.fromkeys(("on demand", "on demand, no intercept", "on demand, a fraction"), pytest.mark.nightly)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks of few candidates, and of few rows."""
    monkeypatch.setattr(generation, "LEAST_BLOCK", 32)
    monkeypatch.setattr(generation, "BLOCKS", 4)
    monkeypatch.setattr(kept_columns, "LEAST_ROWS", 64)


@pytest.mark.parametrize("case", [pytest.param(case, marks=MARKS.get(case, ())) for case in CASES])
def test_the_weights_are_those_of_the_gram_of_all_candidates(case, train_classes, tmp_path, monkeypatch):
    dense, made = train_classes("dense", *CASES[case][2:], *EXACT), set[int]()

    def grow(*arguments: Any) -> kept_columns.WorkingSet:
        grown = kept_columns.grow(*arguments)
        made.update(grown.candidates.tolist())
        return grown

    monkeypatch.setattr(generation, "grow", grow)
    with runs.keeping_statistics():
        report = train_classes("streamed", *CASES[case], *EXACT)
    for one, other in zip(dense["solves"], report["solves"], strict=True):
        assert other["objective"] == pytest.approx(one["objective"], rel=1e-8)
        assert other["relative_gap"] <= 1e-9
    weights = [load(RunLayout(tmp_path / name).solutions / "final.npz").arrays for name in ("dense", "streamed")]
    assert np.array_equal(weights[0]["active"], weights[1]["active"])
    np.testing.assert_allclose(weights[1]["weights"], weights[0]["weights"], rtol=1e-3, atol=1e-4)
    assert len(load_model(tmp_path / "streamed" / "model").center_index) == report["model_n_centers"]
    if "--refit" in CASES[case]:  # which needs no held-out Gram
        assert report["hold_out"]["n_rows"] == dense["hold_out"]["n_rows"]
        assert report["hold_out"]["ridge"] == pytest.approx(dense["hold_out"]["ridge"], rel=1e-6)
        assert report["n_errors"] == dense["n_errors"]
    rounds, columns = report["rounds"], report["columns"]
    assert len(rounds) > 1
    assert dense["rounds"] is dense["columns"] is None
    assert report["kernel_entries"] == sum(one["kernel_entries"] for one in rounds)
    assert rounds[-1]["relative_gaps"] == [solve["relative_gap"] for solve in report["solves"]]
    assert rounds[-1]["violators"] == rounds[-1]["admitted"] == 0
    counts = ("evaluated", "skipped_by_bound", "skipped_as_screened", "working_set")
    seen = [sum(one[name] for name in counts) for one in rounds]
    assert seen[-1] >= report["n_centers"], "the last certificate is over all candidates"
    assert columns["materialised"] == len(made)
    assert columns["columns_never_made"] == rounds[-1]["columns_never_made"] == report["n_centers"] - len(made) > 0
    assert columns["active"] == report["model_n_centers"] <= columns["materialised"] < 0.7 * columns["candidates"]
    if "on demand" not in case:
        assert all(one["working_set"] <= 150 for one in rounds)
        assert min(seen) >= report["n_centers"]
    else:
        assert report["kernel_entries"] == report["n_train"] * (columns["on_the_fly"] + columns["materialised"])
    if case == "all candidates":  # not on MNIST, whose columns are nearly alike
        assert any(one["skipped_by_bound"] + one["skipped_as_screened"] > 0 for one in rounds)
    assert not list((tmp_path / "streamed" / "statistics").glob("round-000"))


@pytest.mark.ci
def test_little_room_drops_what_is_at_zero_or_says_so(train_classes, capsys):
    whole = train_classes("whole", *CASES["on demand"])
    room = whole["model_n_centers"] + 20
    assert room < whole["columns"]["materialised"]
    little = train_classes("little", *CASES["on demand"], "--set", f"centers.working_set={room}")
    assert max(one["working_set"] for one in little["rounds"]) <= room
    assert any(one["dropped"] for one in little["rounds"])
    for one, other in zip(whole["solves"], little["solves"], strict=True):
        assert other["objective"] == pytest.approx(one["objective"], rel=2e-3)
    capsys.readouterr()
    least = train_classes("least", *CASES["on demand"], "--set", "centers.working_set=9", code=3)
    assert least["converged"] is False
    assert all(one["relative_gap"] == 1.0 for one in least["solves"] if not one["converged"])
    assert "no room" in capsys.readouterr().err


def test_a_penalty_above_the_largest_leaves_nothing_active(train_classes):
    report = train_classes("run", *MANY, "--penalty", "1e9", *ON_DEMAND)
    assert report["columns"]["materialised"] == 1
    assert report["model_n_centers"] == 0


@pytest.mark.parametrize("seed", ["0", "1"])
def test_a_first_column_without_a_weight_lets_others_come_in(train_classes, seed):
    words = ("--centers", "15", "--set", "centers.working_set=10", "--penalty", "max:0.6", "--sigma2", "1")
    report = train_classes("few", *words, "--seed", seed)
    assert report["rounds"][0]["working_set"] == 1
    assert report["converged"]
    assert report["model_n_centers"] > 0


@pytest.mark.parametrize("more", [pytest.param((), marks=pytest.mark.ci), ON_DEMAND])
def test_a_tolerance_of_zero_is_met_at_rounding(train_classes, more):
    words = ("--centers", "200", "--sigma2", "2", "--set", "centers.working_set=120", "--tol=0", "--penalty=1", *more)
    report = train_classes("zero", *words)
    assert report["converged"]
    assert 0 < max(solve["relative_gap"] for solve in report["solves"]) < 1e-8
