"""Coarse scores: what they leave out, and runs that grow by them against dense ones; the proof is always exact."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from pipeline.prediction.model_folder import load_model
from pipeline.solvers import duality_gap
from pipeline.stages.accumulate_statistics import load_statistics
from pipeline.stages.out_of_core import candidate_scores, coarse_features, grown_gram, score_tiles
from pipeline.train import main
from storage.folder_layouts import RunLayout

ARGUMENTS = ("--penalty", "1", "--centers", "all", "--coupling", "shared")
ROUNDS = (*ARGUMENTS, "--set", "centers.working_set=600")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_tiles, "TILE_ROWS", 512)


def points(n: int = 50, d: int = 12) -> np.ndarray:
    rng = np.random.default_rng(3)
    return (rng.normal(size=(n, d)) * np.geomspace(3, 0.3, d) + 5).astype(np.float32)


def squared_distances(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    return np.asarray(((rows[:, None].astype(float) - centers[None]) ** 2).sum(axis=2))


@pytest.mark.parametrize("count", [4, 12])
def test_coarse_distances_leave_out_what_lies_outside_the_axes(count: int) -> None:
    X = points()
    mean, axes = coarse_features.principal_axes(X, count)
    coarse = coarse_features.project(X, mean, axes)
    found = squared_distances(coarse_features.as_rows(coarse), coarse_features.as_centers(coarse))
    outside = (X - mean) - (X - mean) @ axes @ axes.T
    exact = squared_distances(X, X)
    assert np.allclose(found, exact + 2 * outside @ outside.T, atol=1e-3)
    assert np.allclose(found, found.T, atol=1e-4)  # what a symmetric pass relies on


@pytest.mark.parametrize("sigma2", [2.0, 20.0])
def test_columns_deviate_by_no_more_than_their_bounds(sigma2: float) -> None:
    X, weights = points(200), np.random.default_rng(0).exponential(size=200)
    mean, axes = coarse_features.principal_axes(X, 8)
    coarse = coarse_features.project(X, mean, axes)
    found = squared_distances(coarse_features.as_rows(coarse), coarse_features.as_centers(coarse))
    difference = np.exp(-squared_distances(X, X) / (2 * sigma2)) - np.exp(-found / (2 * sigma2))
    norms = np.sqrt((weights[:, None] * difference**2).sum(axis=0))
    bounds = coarse_features.deviations(coarse[:, -1].astype(float), sigma2, weights)
    assert (norms <= bounds).all()
    whole = np.sqrt((weights[:, None] * np.exp(-squared_distances(X, X) / sigma2)).sum(axis=0))
    assert np.median(bounds / whole) < (0.5 if sigma2 == 20 else np.inf)  # else nothing is gained


def test_the_axes_are_orthonormal_and_near_the_best() -> None:
    X = points(400, 30)
    mean, axes = coarse_features.principal_axes(X, 6)
    assert np.allclose(axes.T @ axes, np.eye(6), atol=1e-5)
    centred = X - X.mean(axis=0)
    best = np.linalg.svd(centred, compute_uv=False)[:6]
    assert (((X - mean) @ axes) ** 2).sum() >= 0.95 * (best**2).sum()


def train(run: Path, features: Path, *arguments: str) -> dict[str, Any]:
    return runs.train(run, features, *arguments, "--scheduler", "threads", "--workers", "2")


@pytest.mark.parametrize("coupling", ["shared", pytest.param("one-vs-all", marks=pytest.mark.slow)])
def test_a_run_that_grows_by_coarse_scores_ends_with_a_proof(coupling: str, features: Path, tmp_path: Path) -> None:
    """The gaps are those that the Gram of all candidates gives for the same weights."""
    asked = ("--coupling", coupling, "--tol", "1e-4", "--set", "kernel.precision=float64")
    report = train(tmp_path / "run", features, *ROUNDS, *asked)
    passes = report["passes"]
    exact = [record["exact"] for record in passes]
    assert not exact[0]
    assert exact == sorted(exact)
    assert exact[-1]
    first = passes[exact.index(True)]
    assert first["evaluated"] == report["n_train"]  # nothing bounds them before
    assert all(record["coarse_entries"] > 0 for record in passes if not record["exact"])
    assert passes[-1]["relative_gaps"] == [solve["relative_gap"] for solve in report["solves"]]

    train(tmp_path / "dense", features, *ARGUMENTS, *asked)
    statistics = load_statistics(RunLayout(tmp_path / "dense"), "all")
    model = load_model(tmp_path / "run" / "model")
    W = np.zeros((report["n_train"], 10))
    W[model.center_index] = model.weights
    scores, tau = statistics.kty - statistics.gram @ W, 1.0
    for outputs in [[t] for t in range(10)] if coupling == "one-vs-all" else [list(range(10))]:
        largest = float(np.linalg.norm(scores[:, outputs], axis=1).max())
        of_outputs = (W[:, outputs], scores[:, outputs], statistics.kty[:, outputs])
        proof = duality_gap.certify_support(*of_outputs, float(statistics.yty[outputs].sum()), tau, largest)
        reported = report["solves"][outputs[0]]["relative_gap"]
        assert proof.relative_gap <= 1e-4
        assert reported == pytest.approx(proof.relative_gap, rel=1e-3, abs=1e-9)


def test_scores_that_are_too_coarse_give_way_to_exact_ones(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coarse_features, "AXES", 2)
    passes = train(tmp_path / "run", features, *ROUNDS)["passes"]
    assert [record["exact"] for record in passes] == [True] * len(passes)
    assert [record["coarse_entries"] > 0 for record in passes] == [True] + [False] * (len(passes) - 1)


@pytest.mark.slow
def test_coarse_scores_are_exact_in_the_working_set_and_corrected_once_they_were(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[np.ndarray, Any]] = []
    real = candidate_scores.coarse_scores

    def spied(run: Any, current: Any, *rest: Any) -> Any:
        found.append((np.array(current.candidates), real(run, current, *rest)))
        return found[-1][1]

    monkeypatch.setattr("pipeline.stages.out_of_core.working_set_rounds.coarse_scores", spied)
    train(tmp_path / "run", features, *ROUNDS)
    (before, first), (members, second) = found[:2]
    outside = np.setdiff1d(before, members)
    assert len(outside)
    assert first.corrections[before].any(axis=1).all()
    assert not np.delete(first.corrections, before, axis=0).any()
    assert np.array_equal(second.corrections[outside], first.corrections[outside])
    assert not np.array_equal(second.corrections[members], first.corrections[members])


def model_bytes(run: Path) -> list[bytes]:
    return [(run / "model" / name).read_bytes() for name in ("model.json", "arrays.npz")]


@pytest.mark.slow
def test_workers_and_schedulers_give_the_same_bytes(features: Path, tmp_path: Path) -> None:
    cases = {"serial": "1", "threads": "3"}
    for scheduler, workers in cases.items():
        runs.train(tmp_path / scheduler, features, *ROUNDS, "--scheduler", scheduler, "--workers", workers)
    assert model_bytes(tmp_path / "serial") == model_bytes(tmp_path / "threads")


@pytest.mark.slow
@pytest.mark.parametrize("where", [(grown_gram, "grow"), (candidate_scores, "score_candidates")])
def test_a_run_cut_off_within_or_between_rounds_ends_with_the_same_bytes(
    where: tuple[Any, str], features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = train(tmp_path / "whole", features, *ROUNDS)
    real, calls = getattr(*where), []

    def cut(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        value = real(*arguments, **named)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return value

    monkeypatch.setattr(*where, cut)
    command = ["digits", "-q", "--run-dir", str(tmp_path / "cut"), "--features-dir", str(features), "--resume", "auto"]
    codes = []
    for _ in range(2 * len(report["passes"]) + 2):
        calls.clear()
        codes.append(main([*command, *ROUNDS, "--scheduler", "threads", "--workers", "2"]))
        if codes[-1] == 0:
            break
    assert len(codes) > 1
    assert model_bytes(tmp_path / "cut") == model_bytes(tmp_path / "whole")
    again = runs.report_of(tmp_path / "cut")
    assert [record["exact"] for record in again["passes"]] == [record["exact"] for record in report["passes"]]
