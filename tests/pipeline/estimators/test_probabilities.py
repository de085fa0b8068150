"""Probabilities of the classifier, as scikit-learn uses them; their temperature against dense arithmetic."""

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss

from features.row_draws import draw_held_out, held_out_limit, row_keys
from pipeline.estimators.slkl import SLKLClassifier, SLKLRegressor
from pipeline.kernels.kernel_functions import GaussianKernel
from pipeline.models.scores import best_temperature, loss_slopes, probabilities


def noisy() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(900, 5, n_informative=4, n_redundant=0, n_classes=3, flip_y=0.15, random_state=0)
    return X, np.array(["left", "middle", "right"])[y]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_temperature_is_that_of_dense_least_squares_on_other_rows(weighted: bool) -> None:
    X, y = noisy()
    weights = np.random.default_rng(1).exponential(size=len(y)) * (np.arange(len(y)) % 7 > 0) if weighted else None
    machine = SLKLClassifier(40, refit="ridge", standardise=False, random_state=0).fit(X, y, weights)
    s = np.ones(len(y)) if weights is None else weights
    keys, truth = row_keys(X), np.searchsorted(machine.classes_, y)
    held_out = draw_held_out(0, held_out_limit(0, 0.1, [keys[s > 0]]), keys) & (s > 0)
    K = GaussianKernel(machine.centers_, machine.sigma2_, np.float64).block(X)
    Y, fit = np.where(truth[:, None] == np.arange(3), 1.0, -1.0), np.where(held_out, 0.0, s)[:, None]

    def fitted(ridge: float, fit: np.ndarray) -> np.ndarray:
        A, B = K - (fit * K).sum(axis=0) / fit.sum(), Y - (fit * Y).sum(axis=0) / fit.sum()
        return Y - B + A @ np.linalg.solve(A.T @ (fit * A) + ridge * np.eye(K.shape[1]), A.T @ (fit * B))

    def error(ridge: float) -> float:
        return float((np.where(held_out, s, 0.0)[:, None] * (Y - fitted(ridge, fit)) ** 2).sum())

    ridge = min(10.0 ** np.arange(-13, 0) * np.mean((fit * K**2).sum(axis=0)), key=error)
    decision, counted = fitted(ridge, fit), s > 0
    for row in np.flatnonzero(fit):
        decision[row] = fitted(ridge, np.where(np.arange(len(y)) == row, 0.0, fit[:, 0])[:, None])[row]
    slopes = loss_slopes(decision[counted], truth[counted], s[counted])
    assert machine.temperature_ == pytest.approx(best_temperature(slopes), rel=1e-4)
    p = machine.predict_proba(X.astype(np.float32))
    assert p.dtype == np.float64
    np.testing.assert_allclose(p, probabilities(machine.decision_function(X), machine.temperature_), atol=1e-5)
    assert machine.to_model().temperature == machine.temperature_


@pytest.mark.ci
def test_rows_that_tell_nothing_get_probabilities_that_promise_nothing() -> None:
    losses = []
    for seed in range(8):  # 25 held-out rows that have chosen width and ridge would make it .73
        rng = np.random.default_rng(1000 + seed)
        machine = SLKLClassifier(random_state=seed).fit(rng.normal(size=(250, 10)), rng.integers(0, 2, 250))
        losses.append(log_loss(rng.integers(0, 2, 4000), machine.predict_proba(rng.normal(size=(4000, 10)))))
    assert np.mean(losses) < 0.705, losses  # ln 2 is .693


def test_there_are_none_where_no_rows_can_be_held_out() -> None:
    X, y = noisy()
    machine = SLKLClassifier(30, penalty=1.0, random_state=0)
    assert hasattr(machine, "predict_proba")
    np.testing.assert_allclose(machine.fit(X, y).predict_proba(X).sum(axis=1), 1)
    machine.set_params(n_centers=1).fit(np.ones((20, 5)), y[:20])
    assert machine.temperature_ is None
    assert not hasattr(machine, "predict_proba")
    assert not hasattr(SLKLRegressor(refit="ridge"), "predict_proba")
    assert not hasattr(SLKLRegressor(30, refit="ridge").fit(X, X[:, 0]), "temperature_")


def test_weights_that_have_seen_all_rows_are_tried_on_the_held_out_ones() -> None:
    """On all rows, temperatures of so few would be too low: log loss 1.9 for 1.2 on new rows (60 rows)."""
    X, y = noisy()
    machine = SLKLClassifier(random_state=0).fit(X[:90], y[:90])
    assert machine.penalty_ is not None, "else the ridge has a fit of its own"
    keys = row_keys(X[:90])
    held_out = draw_held_out(0, held_out_limit(0, 0.1, [keys]), keys)
    decision, truth = machine.decision_function(X[:90]), np.searchsorted(machine.classes_, y[:90])
    expected = best_temperature(loss_slopes(decision[held_out], truth[held_out]))
    assert machine.temperature_ == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(machine.predict_proba(X[90:]).sum(axis=1), 1)
