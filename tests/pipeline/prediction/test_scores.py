"""Scores and probabilities: against scipy and scikit-learn on dense values, block by block."""

from functools import reduce

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn import metrics

from pipeline.prediction import ranking, scores
from pipeline.prediction.scores import Calibration, probabilities
from pipeline.reporting.run_facts import class_lines


def test_probabilities_are_the_softmax_of_shifted_values():
    f = np.array([[-3.0], [0.0], [2e8]])
    p = probabilities(f, Calibration(0.5, (0.0, -1.5)))
    np.testing.assert_allclose(p[:, 1], expit(f[:, 0] / 0.5 - 1.5), rtol=1e-14)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-15)
    np.testing.assert_allclose(probabilities(f, Calibration(0.5))[:, 1], expit(f[:, 0] / 0.5), rtol=1e-14)
    found = probabilities(f * [1, 2, 3], Calibration(2.0, (0.0, 1.0, 700.0)))
    np.testing.assert_allclose(found, softmax(f * [1, 2, 3] / 2 + [0, 1, 700], axis=1), rtol=1e-13)


def scored(f, truth, labels, calibration=None, weights=None, ends=(0, 40)):
    """The numbers of rows that come in two blocks."""
    parts = [slice(*ends), slice(ends[1], len(f))]
    of = [(f[rows], truth[rows], None if weights is None else weights[rows]) for rows in parts]
    sums = (scores.score_sums(f, y, len(labels), calibration, s) for f, y, s in of)
    return scores.score_numbers(reduce(scores.add_sums, sums), labels)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_scores_of_probabilities_add_up(n_classes):
    rng = np.random.default_rng(n_classes)
    truth = rng.integers(0, n_classes, 400)
    f = 0.5 * rng.normal(size=(400, n_classes if n_classes > 2 else 1))
    found = scored(f, truth, tuple("abcd")[:n_classes], Calibration(0.3))["probabilities"]
    p = probabilities(f, Calibration(0.3))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(truth, p), rel=1e-12)
    assert found["brier_score"] == pytest.approx(metrics.brier_score_loss(truth, p, labels=range(n_classes)), rel=1e-12)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == truth
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence >= low) & (confidence < low + 1 / 15)
        error += abs(right[inside].sum() - confidence[inside].sum()) / 400
    assert found["calibration_error"] == pytest.approx(error, rel=1e-9)
    assert sum(one["rows"] for one in found["reliability"]) == 400
    assert sum(one["rows"] * one["accuracy"] for one in found["reliability"]) == pytest.approx(right.sum())


def test_a_probability_of_zero_has_a_finite_loss_however_large_the_values():
    def log_loss_of(f):
        numbers = scored(np.array(f), np.ones(len(f), int), (0, 1), Calibration(1e-4), ends=(0, 1))
        return numbers["probabilities"]["log_loss"]

    assert log_loss_of([[-1.0], [-1.0]]) == pytest.approx(1e4)
    for size in (1e307, 1.7e308):
        for f in ([[size, -size]], [[-size]]):
            np.testing.assert_array_equal(probabilities(np.array(f), Calibration(0.01)), [[1, 0]])
            assert np.isfinite(log_loss_of(f * 1000))


@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_classes_add_up_to_what_scikit_learn_says(weighted):
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 4, 90), rng.integers(0, 3, 90)
    s = rng.exponential(size=90) if weighted else None
    found = scored(np.eye(5)[predicted], truth, tuple("abcde"), weights=s)
    assert found["confusion"] == metrics.confusion_matrix(truth, predicted, labels=range(5)).tolist()
    assert found["n_errors"] == np.count_nonzero(truth != predicted)
    assert found["error_rate"] == pytest.approx(np.average(truth != predicted, weights=s), rel=1e-12)
    assert found["r2"] is None
    precision, recall, _, _ = metrics.precision_recall_fscore_support(
        truth, predicted, labels=range(5), sample_weight=s, zero_division=np.nan
    )
    for name, expected in (("recall", recall), ("precision", precision)):
        of_classes = [np.nan if one[name] is None else one[name] for one in found["by_class"]]
        np.testing.assert_allclose(of_classes, expected, rtol=1e-12)
    assert [one["rows"] for one in found["by_class"]] == np.bincount(truth, minlength=5).tolist()
    constants = [np.average(truth != k, weights=s) for k in range(5)]
    assert found["baseline"]["error_rate"] == pytest.approx(min(constants), rel=1e-12)
    assert found["baseline"]["label"] == "abcde"[int(np.argmin(constants))]
    lines = class_lines(found, few=False)
    assert lines[4].startswith("class d: recall   0.00 %, never predicted (")
    assert lines[5] == "class e: no rows"


@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_values_add_up(weighted):
    rng = np.random.default_rng(1)
    truth = 1e3 + rng.normal(size=70)
    predicted = truth + 0.3 * rng.normal(size=70)
    s = rng.exponential(size=70) if weighted else None
    whole = scored(predicted[:, None], truth, (), weights=s, ends=(0, 9))
    assert whole["mse"] == pytest.approx(metrics.mean_squared_error(truth, predicted, sample_weight=s), rel=1e-12)
    assert whole["rmse"] == pytest.approx(np.sqrt(whole["mse"]), rel=1e-12)
    assert whole["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted, sample_weight=s), rel=1e-12)
    assert whole["r2"] == pytest.approx(metrics.r2_score(truth, predicted, sample_weight=s), rel=1e-9)
    equal = scores.score_sums(np.zeros((3, 1)), np.ones(3), 0)
    assert scores.error_numbers(equal)["r2"] is None


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_rankings_are_those_of_scikit_learn(n_classes, weighted):
    """Of values many of which are equal; of several classes the means, without one that no row is of."""
    rng = np.random.default_rng(n_classes)
    truth, s = rng.integers(0, n_classes, 300), rng.exponential(size=300) if weighted else np.ones(300)
    f = np.round(rng.normal(size=(300, n_classes + 1 if n_classes > 2 else 1)) + 0.5 * (truth == 1)[:, None], 1)
    found = ranking.ranking_numbers(f, truth, s)
    values = {1: f[:, 0]} if n_classes == 2 else dict(enumerate(f.T[:n_classes]))
    for name, score in (("roc_auc", metrics.roc_auc_score), ("average_precision", metrics.average_precision_score)):
        expected = np.mean([score(truth == k, of_class, sample_weight=s) for k, of_class in values.items()])
        assert found[name] == pytest.approx(expected, rel=1e-12)


def test_rankings_of_one_class_or_of_many_classes_are_not_told():
    assert ranking.ranking_numbers(np.zeros((5, 1)), np.zeros(5, int), np.ones(5)) == ranking.NO_RANKING
    many = ranking.MOST_RANKED + 1
    assert ranking.ranking_numbers(np.eye(many), np.arange(many), np.ones(many)) == ranking.NO_RANKING
