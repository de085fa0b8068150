"""The temperature of a run: from held-out rows and weights that have not seen them, against dense arithmetic."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

import runs
from cases import SERIAL
from commands import evaluated, predicted
from pipeline.evaluate import main as evaluate
from pipeline.fit import calibrate, fit_model
from pipeline.prediction.scores import Calibration, probabilities
from pipeline.prediction.trained_model import SparseKernelModel, load_model
from pipeline.reporting.run_facts import table
from storage.arrays import load
from storage.folder_layouts import RunLayout

COMMON = ("--centers", "60", "--sigma2", "4", *SERIAL)


def best(f: np.ndarray, truth: np.ndarray, weights: Any = 1.0, offsets: Any = 0.0) -> Calibration:
    offsets = offsets + np.zeros(max(f.shape[1], 2))
    return calibrate.best_calibration((f, truth, weights * np.ones(len(f))), len(f), offsets)


@pytest.mark.parametrize(("n", "n_classes", "chance"), [(40, 2, np.inf), (900, 2, 0.0), (30, 5, 0.0), (700, 3, 0.0)])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_calibration_nearby_has_a_lower_log_loss(n, n_classes, chance, weighted, monkeypatch):
    """Each row counts for its class, and a little for all others; for two classes, without an offset or with one."""
    monkeypatch.setattr(calibrate, "CHANCE", chance)
    rng = np.random.default_rng([n, n_classes])
    truth, s = rng.integers(0, n_classes, n), rng.exponential(size=n) if weighted else np.ones(n)
    f = rng.normal(-0.8, 0.4, (n, n_classes)) + np.eye(n_classes)[truth]
    f, offsets = f if n_classes > 2 else (f[:, 1:] - f[:, :1]) / 2, np.linspace(0, -1, n_classes)
    shares = np.where(np.arange(n_classes) == truth[:, None], 1 - 1 / (n + 2), 1 / (n + 2) / (n_classes - 1))

    def loss(calibration: Calibration) -> float:
        return float(-s @ (shares * np.log(probabilities(f, calibration))).sum(axis=1))

    found = best(f, truth, s, offsets)
    assert (found.offsets == tuple(offsets)) == (n != 900)
    nearby = [replace(found, temperature=found.temperature * by) for by in (0.999, 1.001)]
    if chance == 0.0 and n_classes == 2:
        nearby += [replace(found, offsets=(0.0, found.offsets[1] + by)) for by in (-0.001, 0.001)]
    assert loss(found) < min(map(loss, nearby))
    assert best(f, truth, 1e-90 * s, offsets).temperature == pytest.approx(found.temperature, rel=1e-6)


def test_two_classes_get_an_offset_where_it_is_true():
    """Of a rare class, and not of one whose values are right as they are."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=(4000, 1))
    p = expit(2.5 * f[:, 0] - 4)
    found = best(f, (rng.random(4000) < p).astype(int))
    assert (1 / found.temperature, found.offsets) == (pytest.approx(2.5, rel=0.1), (0.0, pytest.approx(-4, rel=0.1)))
    assert probabilities(f, found)[:, 1].mean() == pytest.approx(p.mean(), rel=0.1)
    assert best(f, (rng.random(4000) < expit(2.5 * f[:, 0])).astype(int)).offsets == ()


def test_rows_that_are_all_right_leave_a_doubt():
    truth = np.arange(60) % 3
    f = np.where(truth[:, None] == np.arange(3), 1.0, -1.0)
    # That of which Laplace's rule holds: a row is wrong with a probability of one in 62.
    assert probabilities(f, best(f, truth)).max(axis=1) == pytest.approx(61 / 62, abs=1e-6)


def test_where_there_is_nothing_to_find():
    truth = np.arange(51) % 3
    f = np.random.default_rng(0).normal(-0.8, 0.4, (51, 3)) + np.eye(3)[truth]
    assert best(f, (truth + 1) % 3) == Calibration(32.0), "the least sure of all"
    assert best(1e-7 * f, f.argmax(axis=1)).temperature == pytest.approx(2.0**-15), "the surest of all"
    assert best(np.zeros((9, 1)), np.arange(9) % 2) == Calibration(32.0)
    assert best(f, truth, np.zeros(51)) == Calibration(32.0), "no row counts"


def unseen_temperature(report: dict[str, Any], model: SparseKernelModel, rows: Any, centers: np.ndarray) -> float:
    """The temperature that all rows want, each with dense least squares on the others that are not held out.

    centers: training rows.
    """
    squares = np.sum(model.columns(rows.X) ** 2) / model.n_centers
    K = model.kernel(rows.X[centers], 4.0).block(rows.X, out_dtype=np.float64)
    # The ridge is a fraction of the mean square of the columns, of all rows in the model and of the others here.
    ridge = report["hold_out"]["ridge"] / squares * np.sum(K[~rows.held_out] ** 2) / len(centers)
    return left_out_temperature(K, rows.y, ~rows.held_out, ridge)


def left_out_temperature(K: np.ndarray, y: np.ndarray, fitted: Any, ridge: float) -> float:
    Y = np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    decision = np.empty_like(Y)
    for row in range(len(Y)):
        used = fitted & (np.arange(len(Y)) != row)
        A, B = K[used] - K[used].mean(axis=0), Y[used] - Y[used].mean(axis=0)
        weights = np.linalg.solve(A.T @ A + ridge * np.eye(K.shape[1]), A.T @ B)
        decision[row] = (K[row] - K[used].mean(axis=0)) @ weights + Y[used].mean(axis=0)
    return best(decision, y).temperature


def seen_temperature(model: SparseKernelModel, rows: Any) -> float:
    return best(model.decision_function(rows.X[rows.held_out]), rows.y[rows.held_out]).temperature


def test_after_a_refit_it_is_that_of_least_squares_on_the_other_rows(finished):
    _, report, model, rows = finished("--penalty", "1", "--refit", "ridge")
    told = report["probabilities"]
    assert told["temperature"] == pytest.approx(unseen_temperature(report, model, rows, model.center_index), rel=1e-4)
    assert told["temperature"] > 1.01 * seen_temperature(model, rows), "weights that have seen the rows are too sure"
    assert (told["n_rows"], told["seen"]) == (len(rows.y), False)


@pytest.mark.parametrize("table", ["classes", "values"])
def test_rows_and_classes_with_weights_have_the_coverage_the_ranking_and_the_quantile_of_dense_numbers(
    finished, tables, tmp_path, capsys, table
):
    """Fits count rows and classes, quantiles the held-out rows by their own weights; so do scores of the test part."""
    asked = ("--penalty", "1", "--refit", "ridge", "--set", "data.weights=w")
    asked += ("--class-weight", "balanced") if table == "classes" else ()
    run, report, model, rows = finished(*asked, table=table)
    w, w_test, used = rows.w, rows.w_test, ~rows.held_out
    K = model.kernel(rows.X[model.center_index], 4.0).block(rows.X, out_dtype=np.float64)
    if table == "classes":
        Y, of_classes = np.where(rows.y[:, None] == np.arange(3), 1.0, -1.0), np.bincount(rows.y, w)
        s = w * (w.sum() / (3 * of_classes))[rows.y]
    else:
        Y, s = rows.y[:, None], w
    means = [np.average(of[used], axis=0, weights=s[used]) for of in (K, Y)]
    root = np.sqrt(s[used, None])
    A, B = (root * (of[used] - mean) for of, mean in zip((K, Y), means, strict=True))
    ridge = report["hold_out"]["ridge"] / np.sum(s @ K**2) * np.sum(s[used] @ K[used] ** 2)
    f = (K - means[0]) @ np.linalg.solve(A.T @ A + ridge * np.eye(K.shape[1]), A.T @ B) + means[1]

    def scores_of(decision: np.ndarray, y: np.ndarray) -> np.ndarray:
        if table == "values":
            return np.abs(np.clip(decision[:, 0], *model.limits) - y)
        return 1 - probabilities(decision, model.calibration)[np.arange(len(y)), y]

    scores, u = scores_of(f[rows.held_out], rows.y[rows.held_out]), w[rows.held_out]
    n, level = u.sum() ** 2 / (u @ u), 0.95 if table == "classes" else 0.9
    assert model.conformal.n_units == pytest.approx(n)
    reached = np.array([u[scores <= score].sum() for score in scores])
    quantile = scores[reached >= level * (1 + 1 / n) * u.sum()].min()
    assert model.conformal.quantile(level) == pytest.approx(quantile, rel=1e-3)

    decision, y = model.decision_function(rows.X_test), rows.y_test
    held = scores_of(decision, y) <= model.conformal.quantile(level)
    if table == "classes":
        p = probabilities(decision, model.calibration)
        held |= p[np.arange(len(y)), y] == p.max(axis=1)
        areas = [roc_auc_score(y == k, decision[:, k], sample_weight=w_test) for k in range(3)]
    for told in (report, evaluated(capsys, run)):
        assert told["coverage"]["reached"] == pytest.approx(np.average(held, weights=w_test), rel=1e-6)
        assert told["roc_auc"] == (pytest.approx(np.mean(areas)) if table == "classes" else None)
    assert evaluate([str(run)]) == 0
    assert f"hold {100 * report['coverage']['reached']:.2f} % of the rows" in capsys.readouterr().out
    kept, option = pandas.read_csv(run / "predictions.csv"), "--labels" if table == "classes" else "--interval"
    np.testing.assert_allclose(kept["weight"], w_test)
    found = predicted(run, tables / f"{table}.npz", tmp_path, "--part", "test", option, str(level))
    if table == "classes":
        covered = found[[f"set_{k}" for k in range(3)]].to_numpy()[np.arange(len(y)), y] == 1
    else:
        covered = (found["lower"] <= y) & (y <= found["upper"])
    np.testing.assert_array_equal(covered, held)


def test_of_a_selection_it_is_that_of_what_was_chosen_on_the_other_rows(
    finished, tables, features, tmp_path, monkeypatch
):
    *_, rows = finished("--penalty", "1")
    find, seen = fit_model.calibrate, list[np.ndarray]()
    monkeypatch.setattr(fit_model, "calibrate", lambda work, it: (seen.append(it.weights.columns), find(work, it))[1])
    run, asked = tmp_path / "run", (*COMMON, "--select", "greedy:20")
    report = runs.train(run, features, *asked, dataset=tables / "classes.npz")
    (tried,), model = seen, load_model(run / "model")
    assert set(tried) != set(model.center_index)
    told = report["probabilities"]
    assert told["temperature"] == pytest.approx(unseen_temperature(report, model, rows, tried), rel=1e-4)
    assert told["seen"] is False


def test_a_penalised_fit_has_but_weights_that_have_seen_the_rows_and_says_so(finished):
    _, report, model, rows = finished("--penalty", "1")
    told = report["probabilities"]
    assert told["temperature"] == pytest.approx(seen_temperature(model, rows), rel=1e-6)  # a model predicts in float32
    assert told["seen"] is True
    assert "probabilities may be too sure: the temperature was found on rows" in "\n".join(table(report))


def test_where_a_penalised_fit_has_seen_few_held_out_rows_all_rows_tell_by_least_squares_without_them(finished):
    _, report, model, rows = finished("--penalty", "1", "--set", "statistics.hold_out=0.05")
    told = report["probabilities"]
    K = model.kernel(rows.X[model.center_index], 4.0).block(rows.X, out_dtype=np.float64)
    ridge = 1e-5 * np.sum(K**2) / model.n_centers
    assert told["temperature"] == pytest.approx(left_out_temperature(K, rows.y, True, ridge), rel=1e-4)
    assert (told["n_rows"], told["seen"]) == (len(rows.y), False)
    assert f"; by {len(rows.y)} training rows: temperature" in "\n".join(table(report))


@pytest.mark.ci
def test_of_a_penalty_that_was_searched_it_is_that_of_the_solution_of_the_other_rows(finished):
    run, report, model, (X, y, *_, held_out) = finished("--penalty", "auto")
    layout, told = RunLayout(run), report["probabilities"]
    chosen = [point["penalty"] for point in report["path"]].index(report["penalty"])
    decision = np.zeros((len(X), 3))
    for output in range(3):
        solution = load(layout.solutions / f"fit-centred-penalty-{chosen:02d}-output-{output:04d}.npz").arrays
        rows = load(layout.candidates).arrays["index"][solution["active"]]
        f = model.kernel(X[rows], 4.0).block(X, out_dtype=np.float64) @ solution["weights"]
        decision[:, output] = f + np.mean(np.where(y == output, 1, -1)[~held_out] - f[~held_out])
    assert told["temperature"] == pytest.approx(best(decision[held_out], y[held_out]).temperature, rel=1e-4)
    assert told["seen"] is False


@pytest.mark.parametrize("scale", [1250.0, 1e6])
def test_two_classes_get_an_offset_where_all_probabilities_are_saturated(scale):
    """At the highest temperature all rows are still sure of the second class."""
    truth, decision = np.arange(200) % 2, scale * np.linspace(1.0, 1.2, 200)
    found = best(decision[:, None], truth)
    assert found.offsets[1] == pytest.approx(-1.1 * scale / found.temperature, rel=0.1)
