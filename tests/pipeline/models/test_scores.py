"""Scores, probabilities and their temperature: against scipy and scikit-learn on dense values, block by block."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax
from sklearn.metrics import confusion_matrix, log_loss, mean_squared_error, r2_score

from pipeline.models import scores
from pipeline.models.scores import (
    Score,
    best_temperature,
    calibrate,
    loss_slopes,
    probabilities,
    r_squared,
    score_classes,
    score_values,
)


def decisions(n: int, n_classes: int, spread: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Decision values (n, T) as machines fitted to -1 and 1 give them, and the true classes."""
    rng = np.random.default_rng([n, n_classes])
    truth = rng.integers(0, n_classes, n)
    f = -0.8 + rng.normal(0, spread, (n, n_classes))
    f[np.arange(n), truth] += 1
    return (f if n_classes > 2 else (f[:, 1:] - f[:, :1]) / 2), truth


def least_loss(f: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> float:
    """The temperature by another library: each row counts for its class, and a little for all others."""
    n, n_classes = len(f), max(f.shape[1], 2)
    doubt = 1 / (n + 2)
    labels = np.tile(np.arange(n_classes), n)
    shares = np.where(labels == np.repeat(truth, n_classes), 1 - doubt, doubt / (n_classes - 1))
    values = np.hstack([np.zeros_like(f), f]) if f.shape[1] == 1 else f

    def loss(log_temperature: float) -> float:
        p = np.repeat(softmax(values / np.exp(log_temperature), axis=1), n_classes, axis=0)
        return float(log_loss(labels, p, sample_weight=np.repeat(weights, n_classes) * shares))

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}).x))


@pytest.mark.parametrize(("n", "n_classes"), [(40, 2), (900, 2), (30, 5), (700, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_temperature_has_the_least_log_loss_and_rows_are_summed_in_parts(n, n_classes, weighted, monkeypatch):
    f, truth = decisions(n, n_classes)
    weights = np.random.default_rng(0).exponential(size=n) if weighted else np.ones(n)
    of_blocks = loss_slopes(f[:17], truth[:17], weights[:17]) + loss_slopes(f[17:], truth[17:], weights[17:])
    found = best_temperature(of_blocks)
    assert found == pytest.approx(least_loss(f, truth, weights), rel=1e-4)
    whole = loss_slopes(f, truth, weights)
    assert found == pytest.approx(best_temperature(whole), rel=1e-9)
    monkeypatch.setattr(scores, "_MOST_VALUES", 1500)
    np.testing.assert_allclose(loss_slopes(f, truth, weights).slopes, whole.slopes, rtol=1e-12)


def test_rows_that_are_all_right_leave_a_doubt():
    truth = np.arange(60) % 3
    f = np.where(truth[:, None] == np.arange(3), 1.0, -1.0)
    found = best_temperature(loss_slopes(f, truth))
    assert found is not None
    # The one of which Laplace's rule holds: a row is wrong with a probability of one in 62.
    assert probabilities(f, found).max(axis=1) == pytest.approx(61 / 62, abs=1e-6)


def test_where_there_is_nothing_to_find():
    f, truth = decisions(50, 3)
    assert best_temperature(loss_slopes(f[:0], truth[:0])) is None
    assert best_temperature(loss_slopes(f, (truth + 1) % 3)) == 32, "the least sure of all"
    assert best_temperature(loss_slopes(1e-7 * f, f.argmax(axis=1))) == 2.0**-15, "the surest of all"
    assert best_temperature(loss_slopes(np.zeros((9, 1)), truth[:9] % 2)) == 32


def test_probabilities_of_two_classes_and_of_large_values():
    f = np.array([[-3.0], [0.0], [2e8]])
    p = probabilities(f, 0.5)
    np.testing.assert_allclose(p[:, 1], expit(f[:, 0] / 0.5), rtol=1e-14)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(probabilities(f * [1, 2, 3], 2.0), softmax(f * [1, 2, 3] / 2, axis=1), rtol=1e-13)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_scores_of_probabilities_add_up(n_classes):
    f, truth = decisions(400, n_classes, spread=0.7)
    found = (calibrate(f[:150], truth[:150], 0.3) + calibrate(f[150:], truth[150:], 0.3)).numbers()
    p = probabilities(f, 0.3)
    assert found["log_loss"] == pytest.approx(log_loss(truth, p), rel=1e-12)
    assert found["brier_score"] == pytest.approx(np.mean(((p - np.eye(n_classes)[truth]) ** 2).sum(axis=1)), rel=1e-12)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == truth
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        error += abs(right[inside].sum() - confidence[inside].sum()) / 400
    assert found["calibration_error"] == pytest.approx(error, rel=1e-9)
    assert sum(one["rows"] for one in found["reliability"]) == 400
    assert sum(one["rows"] * one["accuracy"] for one in found["reliability"]) == pytest.approx(right.sum())


def test_a_probability_of_zero_has_a_finite_loss_however_large_the_values():
    assert calibrate(np.array([[1.0, -1.0]]), np.array([1]), 1e-4).numbers()["log_loss"] == pytest.approx(2e4)
    for size in (1e307, 1.7e308):
        for f in ([[size, -size]], [[-size]]):
            np.testing.assert_array_equal(probabilities(np.array(f), 0.01), [[1, 0]])
            assert np.isfinite(calibrate(np.repeat(f, 1000, axis=0), np.ones(1000, int), 0.01).numbers()["log_loss"])


def test_a_score_comes_back_as_it_was_stored():
    f, truth = decisions(30, 3)
    score = score_classes(f.argmax(axis=1), truth, 3, calibrate(f, truth, 0.2))
    assert score.calibration is not None
    stored = Score.from_stored({**vars(score), "calibration": vars(score.calibration)})
    assert (score + stored).calibration == score.calibration + score.calibration
    without = score_values(np.zeros(3), np.ones(3))
    assert Score.from_stored(vars(without)) == without


def test_blocks_of_classes_add_up():
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 4, 90), rng.integers(0, 3, 90)
    whole = score_classes(predicted[:40], truth[:40], 4) + score_classes(predicted[40:], truth[40:], 4)
    assert whole.confusion == tuple(map(tuple, confusion_matrix(truth, predicted, labels=range(4)).tolist()))
    assert whole.n_errors == np.count_nonzero(truth != predicted)
    assert whole.error_rate == whole.n_errors / 90
    assert whole.r2 is None


def test_blocks_of_values_add_up():
    rng = np.random.default_rng(1)
    truth = 1e3 + rng.normal(size=70)
    predicted = truth + 0.3 * rng.normal(size=70)
    whole = score_values(predicted[:9], truth[:9]) + score_values(predicted[9:], truth[9:])
    assert whole.mse == pytest.approx(mean_squared_error(truth, predicted), rel=1e-12)
    assert whole.rmse == pytest.approx(np.sqrt(whole.mse), rel=1e-12)
    assert whole.r2 == pytest.approx(r2_score(truth, predicted), rel=1e-9)


def test_where_all_targets_are_equal_nothing_can_be_explained():
    assert score_values(np.zeros(3), np.ones(3)).r2 is None
    assert r_squared(1.0, 0.0) is None
