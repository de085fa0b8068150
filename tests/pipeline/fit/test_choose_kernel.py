"""Kernels and learned scales from training to prediction: what is chosen, told, and taken up again after a kill."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from cases import SERIAL
from commands import evaluated, predicted
from features.row_draws import draw_held_out, held_out_limit, row_keys
from pipeline.fit import choose_kernel, target_facts
from pipeline.fit.target_facts import Labels, TargetFacts
from pipeline.fit.workspace import Workspace
from pipeline.kernels.kernel_functions import GaussianKernel, lengths, scaled
from pipeline.prediction.trained_model import load_model
from pipeline.report import write
from pipeline.reporting.run_facts import table
from pipeline.solvers.kernel_trials import PLAIN, Sample, Trial, try_kernel
from runs import TrainedRuns, choice_of, report_of, save_once, train
from storage.arrays import Arrays, load
from storage.folder_layouts import RunLayout

GREEDY = ("--centers", "150", "--select", "greedy:60", *SERIAL)
LEARNED = (*GREEDY, "--scale", "learned")
METRIC = (*GREEDY, "--scale", "metric")


@pytest.fixture(scope="module")
def data(shared_folder: Path) -> Path:
    """Twelve inputs of which two matter, on scales of their own."""
    path = shared_folder / "scales.csv"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1600, 12)) * np.geomspace(1e-3, 1e3, 12)
    y = np.sin(2 * X[:, 4] / X[:, 4].std()) * X[:, 9] / X[:, 9].std() + 0.05 * rng.normal(size=1600)
    names = ",".join([f"input {j}" for j in range(12)] + ["y"])
    aside = path.with_suffix(f".{os.getpid()}")  # another process may read or write at this moment
    np.savetxt(aside, np.column_stack([X, y]), delimiter=",", header=names, comments="")
    return aside.replace(path)


@pytest.fixture(scope="module", params=[LEARNED, METRIC], ids=["a scale for each", "a metric"])
def line(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture
def learned(finished_run: TrainedRuns, data: Path, line: tuple[str, ...]) -> Path:
    return finished_run(*line, dataset=data)


def test_files_are_predicted_as_the_run_scored_them(data, learned, tmp_path, capsys):
    model, report = load_model(learned / "model"), report_of(learned)
    assert evaluated(capsys, learned)["rmse"] == pytest.approx(report["rmse"], rel=1e-4)
    table = np.loadtxt(data, delimiter=",", skiprows=1)
    X = scaled(model.standardisation.apply(table[:, :12]).astype(np.float32), model.feature_scales)
    distances = ((X[:, None].astype(float) - model.centers) ** 2).sum(axis=2)
    expected = np.exp(-distances / (2 * model.sigma2)) @ model.weights + model.intercept
    written = predicted(learned, data, tmp_path)["decision"]
    rounding = 16 * np.finfo(np.float32).eps * np.abs(model.weights).sum()  # of columns and distances
    np.testing.assert_allclose(written, expected[:, 0], atol=rounding)


def test_the_report_tells_which_inputs_matter(learned, line, tmp_path):
    told = report_of(learned)["feature_scales"]
    assert told["names"] == [f"input {j}" for j in range(12)]
    assert told["kind"] == ("metric" if line == METRIC else "diagonal")
    assert told["scales"] == lengths(load_model(learned / "model").feature_scales).tolist()
    assert sum(told["importances"]) == pytest.approx(1.0)
    assert told["hold_out_error"] < told["hold_out_error_without"] / 9
    (words,) = [words for words in table(report_of(learned)) if words.startswith("feature ")]
    assert words.startswith("feature metric" if line == METRIC else "feature scales")
    page = write(learned, tmp_path / "page.html").read_text()
    cells = page[page.index('id="importances"') :].split("</table>")[0]
    order = [name.split("<")[0] for name in cells.split('<td class="label">')[1:]]
    assert len(order) == sum(share >= 0.001 for share in told["importances"])
    assert set(order[:2]) == {"input 4", "input 9"}
    assert all(f"{name} " in words for name in order[:2])


def test_scales_without_gain_are_not_taken(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1200, 3))
    np.savez(tmp_path / "ball.npz", X=X, y=np.linalg.norm(X, axis=1) + 0.3 * rng.normal(size=1200))
    report = train(tmp_path / "run", tmp_path / "features", *LEARNED, dataset=tmp_path / "ball.npz")
    assert report["feature_scales"]["kind"] == PLAIN
    np.testing.assert_array_equal(load_model(tmp_path / "run" / "model").feature_scales, np.ones(3))
    plain = train(tmp_path / "plain", tmp_path / "features", *GREEDY, dataset=tmp_path / "ball.npz")
    assert report["rmse"] == plain["rmse"]
    assert "gained nothing" in write(tmp_path / "run", None).read_text()
    assert "Which features matter" not in write(tmp_path / "plain", None).read_text()


@pytest.fixture(scope="module")
def chosen(shared_folder: Path, finished_run: TrainedRuns) -> dict[str, Path]:
    """Runs whose kernel was chosen, on a table with steps along the inputs and on a smooth one."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (1200, 3))
    targets = {
        "steps": np.sign(X[:, 0]) + np.sign(X[:, 1] - 0.3) * (X[:, 2] > 0),
        "smooth": np.sin(2 * X.sum(axis=1)) + X[:, 0] * X[:, 1],
    }
    runs = {}
    for name, y in targets.items():
        save_once(shared_folder / f"{name}.npz", X=X, y=y + 0.02 * rng.normal(size=1200))
        line = ("--centers", "120", *SERIAL)
        runs[name] = finished_run(*line, dataset=shared_folder / f"{name}.npz")
    return runs


@pytest.mark.parametrize(("name", "kernel"), [("steps", "product-laplace"), ("smooth", "gaussian")])
def test_the_kernel_is_that_of_the_lowest_held_out_error(chosen, name, kernel, tmp_path):
    report = report_of(chosen[name])
    assert report["kernel"] == load_model(chosen[name] / "model").kernel.name == kernel
    tried = report["kernels_tried"]
    assert {one["kernel"] for one in tried} == {"gaussian", "product-laplace"}
    best = min(one["hold_out_error"] for one in tried if one["kernel"] == kernel)
    assert best < 0.8 * min(one["hold_out_error"] for one in tried if one["kernel"] != kernel)
    assert [one["kernel"] for one in tried if one["chosen"]] == [kernel]
    page = write(chosen[name], tmp_path / "page.html").read_text()
    assert all(f"<td>{one['hold_out_error']:.6g}</td>" in page for one in tried)


def sample_of(
    place: Path, monkeypatch: pytest.MonkeyPatch, X: np.ndarray, **arrays: np.ndarray
) -> tuple[Arrays, dict[str, Any]]:
    """Return the sample of a run on some rows as they are, and its report."""
    np.savez(place / "rows.npz", X_train=X, X_test=X[:9], **arrays)
    samples = list[Arrays]()
    read = choose_kernel.read_sample

    def kept(work: Workspace, points: np.ndarray, labels: Labels, facts: TargetFacts) -> Arrays:
        samples.append(read(work, points, labels, facts))
        return samples[-1]

    monkeypatch.setattr(choose_kernel, "read_sample", kept)
    line = ("--centers", "40", "--sigma2", "auto", "--kernel", "gaussian", "--set", "data.standardise=false", *SERIAL)
    line += ("--set", "data.groups=g") if "g_train" in arrays else ()
    report = train(place / "run", place / "features", *line, dataset=place / "rows.npz")
    (sample,) = samples
    return sample, report


def test_rows_that_a_run_holds_out_are_held_out_where_kernels_are_tried(tmp_path, monkeypatch):
    """With rows equal to them; of few rows more than these are."""
    monkeypatch.setattr(target_facts, "FOLDED_ROWS", 0)
    X = np.random.default_rng(0).random((500, 3)).astype(np.float32)
    X = np.concatenate([X, X[:120], X[:60]])
    sample, _ = sample_of(tmp_path, monkeypatch, X, y_train=X.sum(axis=1), y_test=X[:9].sum(axis=1))
    held_out = sample["folds"] == 0
    kept = {row.tobytes(): one for row, one in zip(sample["X"], held_out, strict=True)}
    assert len(sample["X"]) == len(X)
    assert [kept[row.tobytes()] for row in sample["X"]] == held_out.tolist(), "equal rows are together"
    keys = row_keys(X)
    of_run = draw_held_out(0, held_out_limit(0, 0.1, [keys]), keys)
    assert 30 < of_run.sum() < 110
    assert all(kept[row.tobytes()] for row in X[of_run])
    assert sample["n_held_out"] == sum(kept.values())
    assert 0.28 < sum(kept.values()) / 500 < 0.38
    np.testing.assert_allclose(sample["targets"][:, 0] - sample["X"].sum(axis=1), -X.sum(axis=1).mean(), atol=1e-5)


def test_groups_are_together_and_the_width_of_the_lowest_error_is_taken(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X, groups = rng.random((600, 3)).astype(np.float32), rng.integers(0, 40, 600)
    y = {"y_train": X.sum(axis=1), "y_test": X[:9].sum(axis=1), "g_train": groups, "g_test": groups[:9]}
    sample, report = sample_of(tmp_path, monkeypatch, X, **y)
    group_of = {row.tobytes(): group for row, group in zip(X, groups, strict=True)}
    folds = {(group_of[row.tobytes()], int(one)) for row, one in zip(sample["X"], sample["folds"], strict=True)}
    assert np.bincount([fold for _, fold in folds]).tolist() == [8] * 5, "of 40 groups"
    choices = load(RunLayout(tmp_path / "run").candidates).arrays
    np.testing.assert_array_equal(*(np.unique(points, axis=0) for points in (sample["points"], X[choices["index"]])))
    tried = choice_of(tmp_path / "run")["tried"]
    tried = {trial["sigma2"]: trial["error"] for trial in tried if trial["n_centers"] == 40}
    ones = np.ones(3, np.float32)
    with threadpool_limits(1):  # as in a run; products of few rows are slower by more
        again = [try_kernel(Sample(**sample), Trial(GaussianKernel, PLAIN, ones, width, 40)).error for width in tried]
    np.testing.assert_allclose(again, list(tried.values()), rtol=1e-3)
    np.testing.assert_allclose(np.diff(np.log2(sorted(tried))), 1.0)
    assert min(tried) < report["sigma2"] == min(tried, key=tried.__getitem__) < max(tried)
