"""Coarse scores: what they leave out, and runs that grow by them against dense ones; proofs count what they miss."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from cases import SERIAL
from pipeline.kernels.gram_statistics import Rounding
from pipeline.kernels.kernel_forms import ColumnGenerator
from pipeline.prediction.model_folder import load_model
from pipeline.solvers import duality_gap
from pipeline.stages.accumulate_statistics import load_statistics
from pipeline.stages.out_of_core import coarse_features, correlations, pricing, tiles
from pipeline.stages.out_of_core.correlations import Correlations, SolvedSet
from stopping_points import STOPS, stop_at_commits, until_done
from storage.folder_layouts import RunLayout

ARGUMENTS = ("--penalty", "1", "--centers", "all", "--coupling", "shared", "--sigma2", "10")
ARGUMENTS += ("--set", "data.standardise=false", "--set", "solver.intercept=false", "--set", "kernel.precision=float64")
ROUNDS = (*ARGUMENTS, "--set", "centers.working_set=200")


@pytest.fixture(autouse=True)
def few_axes_and_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coarse_features, "AXES", 12)
    monkeypatch.setattr(tiles, "TILE_ROWS", 128)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 1000 rows of three classes, most of its 40 inputs nearly constant."""
    X, file = points(1000, 40, 3e-4), tmp_path_factory.mktemp("data") / "classes.npz"
    values = np.sin(X[:, 0] - 5) + 0.3 * X[:, 1] + 0.3 * np.random.default_rng(0).normal(size=1000)
    np.savez(file, X=X, y=np.digitize(values, np.quantile(values, [1 / 3, 2 / 3])))
    return file


@pytest.fixture
def train(data: Path, features: Path, tmp_path: Path) -> Any:
    """Train in two threads at a name; return the report."""

    def trained(name: str, *arguments: str) -> dict[str, Any]:
        threads = ("--scheduler", "threads", "--workers", "2")
        return runs.train(tmp_path / name, features, *arguments, *threads, dataset=data)

    return trained


def points(n: int = 50, d: int = 12, least: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(3)
    return (rng.normal(size=(n, d)) * np.geomspace(3, least, d) + 5).astype(np.float32)


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


def column_norms(X: np.ndarray, count: int, sigma2: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the norms of c - c̃ of all columns, as the generator has them, and their bounds."""
    weights = np.random.default_rng(0).exponential(size=len(X))
    coarse = coarse_features.project(X, *coarse_features.principal_axes(X, count))
    exact = ColumnGenerator(X, sigma2).block(X).astype(float)
    found = ColumnGenerator(coarse_features.as_centers(coarse), sigma2).block(coarse_features.as_rows(coarse))
    norms = np.sqrt((weights[:, None] * (exact - found) ** 2).sum(axis=0))
    return norms, coarse_features.deviations(*coarse_features._sizes(coarse), sigma2, weights)


@pytest.mark.parametrize("sigma2", [0.01, 2.0, 20.0])
def test_columns_deviate_by_no_more_than_their_bounds_which_are_of_use(sigma2: float) -> None:
    norms, bounds = column_norms(points(200), 8, sigma2)
    assert (norms <= bounds).all()
    assert np.isfinite(bounds).all()
    assert np.median(bounds) < 20 * np.median(norms) or sigma2 < 20, "where little lies outside the axes"


@pytest.mark.parametrize("length", [20.0, 50.0])
def test_the_bounds_count_what_float32_rounds(length: float) -> None:
    """Rows in a few narrow clusters, far apart, all in the span of the axes."""
    rng = np.random.default_rng(1)
    X = (length * rng.normal(size=(4, 12)))[rng.integers(0, 4, 300)] + rng.normal(scale=0.5, size=(300, 12))
    norms, bounds = column_norms(X.astype(np.float32), 12, 1.0)
    assert norms.max() > 1e-5
    assert (norms <= bounds).all()


def test_a_bound_that_overflows_is_none() -> None:
    before = Correlations(np.zeros((2, 1)), np.ones(2), np.zeros((3, 1)), np.zeros((2, 1)), np.zeros(2, bool), 2, 0, 0)
    moved = before.moved_to(np.ones((3, 1)), np.array([np.inf, 1.0]))
    assert moved.exact.tolist() == [False, False]


@pytest.mark.ci
@pytest.mark.parametrize("coupling", ["shared", "one-vs-all"])
def test_a_run_that_grows_by_coarse_scores_ends_with_a_proof(coupling: str, train: Any, tmp_path: Path) -> None:
    """The gaps are those that the Gram of all candidates gives for the same weights."""
    asked = ("--coupling", coupling, "--tol", "1e-4")
    report = train("run", *ROUNDS, *asked)
    passes = report["passes"]
    exact = [record["exact"] for record in passes]
    assert not exact[0]
    assert exact == sorted(exact)
    assert exact[-1]
    first = passes[exact.index(True)]
    assert first["evaluated"] == report["n_train"]  # nothing bounds them before
    assert all(record["coarse_entries"] > 0 for record in passes if not record["exact"])
    assert passes[-1]["relative_gaps"] == [solve["relative_gap"] for solve in report["solves"]]

    train("dense", *ARGUMENTS, *asked)
    statistics = load_statistics(RunLayout(tmp_path / "dense"), "all")
    model = load_model(tmp_path / "run" / "model")
    W = np.zeros((report["n_train"], 3))
    W[model.center_index] = model.weights
    scores, tau = statistics.kty - statistics.gram @ W, 1.0
    for outputs in [[t] for t in range(3)] if coupling == "one-vs-all" else [list(range(3))]:
        largest = float(np.linalg.norm(scores[:, outputs], axis=1).max())
        of_outputs = (W[:, outputs], scores[:, outputs], statistics.kty[:, outputs])
        proof = duality_gap.certify_support(
            *of_outputs, float(statistics.yty[outputs].sum()), tau, largest, Rounding(0.0)
        )
        reported = report["solves"][outputs[0]]["relative_gap"]
        assert proof.relative_gap <= 1e-4
        assert reported == pytest.approx(proof.relative_gap, rel=1e-3, abs=1e-9)


def test_after_the_first_exact_pass_few_are_evaluated_and_the_others_lie_within_their_errors(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "FEW_VIOLATORS", 0.5)
    real, compared = SolvedSet._next_pass, []

    def checked(solved: SolvedSet, residuals: np.ndarray, before: Correlations) -> Correlations:
        found = real(solved, residuals, before)
        exact = correlations.correlate(solved.run, "check", residuals, solved.candidates).values
        assert (np.abs(exact - found.values) <= found.errors + 1e-6).all()
        compared.append(np.abs(exact - found.values).max() / found.errors.max())
        return found

    monkeypatch.setattr(SolvedSet, "_next_pass", checked)
    passes = train("run", *ROUNDS, "--tol", "1e-4")["passes"]
    first = [record["exact"] for record in passes].index(True)
    assert passes[first]["coarse_entries"] == 0  # the round before had found few violators
    later = passes[first + 1 :]
    assert any(record["coarse_entries"] > 0 and record["skipped"] > 100 for record in later)
    assert compared


@pytest.mark.ci
def test_scores_that_are_too_coarse_give_way_to_exact_ones(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coarse_features, "AXES", 2)
    passes = train("run", *ROUNDS)["passes"]
    assert [record["exact"] for record in passes] == [True] * len(passes)
    assert [record["coarse_entries"] > 0 for record in passes] == [True] + [False] * (len(passes) - 1)


@pytest.mark.ci
def test_coarse_scores_are_exact_in_the_working_set_and_corrected_once_they_were(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[np.ndarray, np.ndarray]] = []
    real = SolvedSet.coarse_correlations

    def spied(solved: SolvedSet, earlier: str | None) -> Any:
        result, current = real(solved, earlier), solved.working_set
        stored = solved.run.stored(f"scores/{current.name}-coarse.npz").read()
        found.append((np.array(current.candidates), stored["corrections"]))
        return result

    monkeypatch.setattr(SolvedSet, "coarse_correlations", spied)
    train("run", *ROUNDS)
    (before, first), (members, second) = found[:2]
    outside = np.setdiff1d(before, members)
    assert len(outside)
    assert first[before].any(axis=1).all()
    assert not np.delete(first, before, axis=0).any()
    assert np.array_equal(second[outside], first[outside])
    assert not np.array_equal(second[members], first[members])


@pytest.mark.ci
def test_a_run_on_images_that_is_stopped_and_gone_on_with_by_processes_ends_with_the_same_bytes(
    finished_run: runs.TrainedRuns, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many axes and as large tiles as everybody has."""
    monkeypatch.undo()
    asked = ("--penalty", "1", "--centers", "all", "--coupling", "shared", "--set", "centers.working_set=600")
    whole, run = finished_run(*asked, *SERIAL), tmp_path / "run"
    stop_at_commits(monkeypatch, run, STOPS)
    ways = (SERIAL, ("--scheduler", "processes", "--workers", "2"), ("--scheduler", "threads", "--workers", "3"))
    assert until_done(["digits", "--run-dir", run, "--features-dir", features, *asked], ways) > 5
    exact = [[record["exact"] for record in runs.report_of(each)["passes"]] for each in (whole, run)]
    assert exact[0] == exact[1]
    assert (exact[1][0], exact[1][-1]) == (False, True)
    assert runs.model_bytes(run) == runs.model_bytes(whole)
