"""Candidates beyond memory: rules against their definitions, the streamed run against the dense one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runs
from cases import SERIAL
from pipeline.prediction.model_folder import load_model
from pipeline.solvers import working_set_rules as rules
from pipeline.stages.out_of_core.correlations import Correlations
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout


def scores_of(seed: int, m: int = 40, t: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(m, t))


@given(seed=st.integers(0, 10**6), per_solve=st.integers(1, 50), room=st.integers(0, 60))
def test_the_largest_beside_the_active_ones_come_in(seed: int, per_solve: int, room: int) -> None:
    sizes = rules.violations(scores_of(seed), 0.8)
    active = np.random.default_rng(seed + 1).random(40) < 0.3
    new = rules.nearest(sizes, active, per_solve, room)
    assert len(new) == len(set(new.tolist())) <= min(room, 3 * per_solve)
    assert not active[new].any()
    assert (sizes[new].max(axis=1, initial=0) > rules.MARGIN).all()
    for column in range(3):
        near = np.flatnonzero(~active & (sizes[:, column] > rules.MARGIN))
        if len(near) and room:
            assert near[np.argmax(sizes[near, column])] in new or room < 3
        if room >= 3 * per_solve and len(near) <= per_solve:
            assert set(near.tolist()) <= set(new.tolist())


def test_sizes_are_relative_to_tau() -> None:
    scores = np.array([[3.0, -4.0], [0.0, 1.0]])
    assert rules.violations(scores, 2.0).tolist() == [[1.5, 2.0], [0.0, 0.5]]


@given(seed=st.integers(0, 10**6), scale=st.floats(0.0, 1.0))
def test_what_is_not_evaluated_cannot_violate(seed: int, scale: float) -> None:
    """|c_mᵀr_new| ≤ τ for every candidate the bound skips, whatever the columns are."""
    rng = np.random.default_rng(seed)
    C, old = rng.normal(size=(30, 20)), rng.normal(size=(30, 3))
    new = old + scale * rng.normal(size=(30, 3))
    bounds = np.linalg.norm(C, axis=0) * rng.uniform(1, 1.1, 20)
    tau = float(np.median(np.abs(C.T @ old)))
    before = Correlations(C.T @ old, bounds, old, np.zeros((20, 3)), np.zeros(20, bool), 20, 0, 0)
    between = before.moved_to((old + new) / 2)
    found = between.moved_to(new)
    skipped = rules.cannot_be_active(found.values, found.errors, tau)
    assert (np.abs(C.T @ new).max(axis=1)[skipped] <= tau * (1 + 1e-12)).all()


def test_a_score_that_its_error_keeps_below_the_threshold_is_skipped() -> None:
    scores = np.array([[0.1, 0.2], [0.9, 0.1]])
    assert rules.cannot_be_active(scores, np.full((2, 2), 0.01), 0.5).tolist() == [True, False]


COMMON = ("--penalty", "1", "--sigma2", "2", *SERIAL)
ROUNDS = ("--set", "centers.working_set=150")
CASES = {
    "all candidates": ["--centers", "all"],
    "some candidates": ["--centers", "300", "--refit", "ridge"],
    "an intercept": ["--centers", "300", "--intercept"],
}


@pytest.mark.parametrize(
    "case", [case if case == "some candidates" else pytest.param(case, marks=pytest.mark.ci) for case in CASES]
)
def test_streamed_and_dense_meet_in_objective_and_support(case: str, train_classes: Any, tmp_path: Path) -> None:
    """Float64 columns: float32 ones round otherwise in tiles of another shape."""
    arguments = [*CASES[case], "--set", "kernel.precision=float64", "--tol", "1e-9"]
    dense = train_classes("dense", *arguments)
    with runs.keeping_statistics():
        streamed = train_classes("streamed", *arguments, *ROUNDS)
    for one, other in zip(dense["solves"], streamed["solves"], strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-9)
        assert other["relative_gap"] <= 1e-9
    models = [load_model(tmp_path / name / "model") for name in ("dense", "streamed")]
    assert set(models[0].center_index) == set(models[1].center_index)
    if "--refit" in arguments:  # which needs no held-out Gram
        assert streamed["hold_out"]["n_rows"] == dense["hold_out"]["n_rows"]
        assert streamed["hold_out"]["ridge"] == pytest.approx(dense["hold_out"]["ridge"], rel=1e-6)
        assert streamed["n_errors"] == dense["n_errors"]
    passes = streamed["passes"]
    assert len(passes) > 1
    assert dense["passes"] is None
    assert all(record["working_set"] <= 150 for record in passes)
    assert passes[-1]["violators"] == 0
    if case == "all candidates":  # not on MNIST, whose columns are nearly alike
        assert any(record["skipped"] + record["screened"] > 0 for record in passes)
    assert passes[-1]["relative_gaps"] == [solve["relative_gap"] for solve in streamed["solves"]]
    counts = ("evaluated", "skipped", "screened", "working_set")
    assert all(sum(record[name] for name in counts) >= dense["n_centers"] for record in passes)
    assert streamed["kernel_entries"] == sum(record["kernel_entries"] for record in passes)
    final = read_arrays(RunLayout(tmp_path / "streamed").solution("final.npz"))
    assert np.array_equal(final["active"], np.unique(final["active"]))
    statistics = tmp_path / "streamed" / "statistics"
    assert list(statistics.iterdir())
    assert not list(statistics.glob("round-000"))


def test_too_small_a_working_set_is_said(train_classes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    report = train_classes("run", "--centers", "all", "--set", "centers.working_set=20", code=3)
    assert report["converged"] is False
    assert "--memory-limit" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--set", "centers.columns=on-demand"), ("--penalty", "path:max:30:3")], ids=str)
def test_a_tolerance_of_zero_is_met_at_rounding(train_classes: Any, more: tuple[str, ...]) -> None:
    words = ("--centers", "200", "--set", "centers.working_set=120", "--tol", "0", *more)
    report = train_classes("zero", *words)
    assert report["converged"]
    assert 0 < max(solve["relative_gap"] for solve in report["solves"]) < 1e-8
    assert all(point["converged"] for point in (report["path"] or [])[1:])


@pytest.mark.nightly
def test_the_plan_chooses_the_largest_working_set_that_fits_and_keeps_the_limit(features: Path, tmp_path: Path) -> None:
    run, limit = tmp_path / "run", 640  # enough beside a compiler, where no loops are compiled yet
    X = np.random.default_rng(0).normal(size=(5000, 8))
    np.savez(tmp_path / "many.npz", X=X, y=np.digitize(X[:, 0] + np.sin(3 * X[:, 1]), [-0.5, 0.5]))
    words = [tmp_path / "many.npz", "-q", "--run-dir", run, "--features-dir", features, "--penalty", "1"]
    words += ["--centers", "all", "--workers", "1", "--memory-limit", f"{limit}MiB"]
    assert runs.python("-m", "pipeline.train", *words).returncode in (0, 3)
    (line,) = [line for line in (run / "config.toml").read_text().splitlines() if line.startswith("working_set")]
    report = runs.report_of(run)
    assert 200 < int(line.split("=")[1]) < report["n_train"]
    assert report["peak_rss_bytes"] < limit * 2**20
