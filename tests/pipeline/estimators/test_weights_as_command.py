"""Row and class weights: the command and the estimators make the same of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.estimators.slkl import SLKLClassifier, SLKLRegressor
from pipeline.prediction.model_folder import load_model
from runs import train

EXACT = ("--set", "kernel.precision=float64", "--tol", "1e-11")
FIXED = {"sigma2": 0.7, "n_centers": "all"}
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "a penalty": (("--sigma2", "0.7", "--penalty", "0.05", *EXACT), FIXED | {"penalty": 0.05}),
    "rounds": (
        ("--sigma2", "0.7", "--penalty", "0.5", "--set", "centers.working_set=120", *EXACT),
        FIXED | {"penalty": 0.5},
    ),
    "a path and a refit": (
        ("--sigma2", "0.7", "--penalty", "auto", "--refit", "ridge", *EXACT[:2], "--tol", "1e-9"),
        FIXED | {"penalty": "auto", "refit": "ridge", "tol": 1e-9},
    ),
    "width, scales and ridge by held-out rows": (EXACT[:2], {}),
}


def table(*, classes: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of unlike classes, about a fifth of weight 0."""
    draw = np.random.default_rng(3)
    X = draw.random((420, 3)).astype(np.float32)
    values = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * draw.normal(size=420)
    y = np.digitize(values, np.quantile(values, [0.15, 0.8])) if classes else values
    return X, y, draw.exponential(size=420) * (draw.random(420) < 0.8)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("classes", [False, True])
def test_weights_give_the_same_model(tmp_path: Path, classes: bool, case: str) -> None:
    """In classes of unlike sizes, balanced, beside weights of the rows; equal to the rounding of the z-scores."""
    line, parameters = CASES[case]
    X, y, w = table(classes=classes)
    np.savez(tmp_path / "table.npz", X_train=X, y_train=y, w_train=w, X_test=X[:20], y_test=y[:20])
    asked = ["--set", "data.weights=w", *line, *(["--class-weight", "balanced"] if classes else [])]
    asked += ["--centers", str(np.count_nonzero(w))] if "n_centers" in parameters else []
    report = train(tmp_path / "run", tmp_path / "features", *asked, dataset=tmp_path / "table.npz")
    model = load_model(tmp_path / "run" / "model")
    if classes:
        fitted = SLKLClassifier(**parameters, class_weight="balanced", random_state=0).fit(X, y, w)
        ours = fitted.decision_function(X)
        if case != "a penalty" and case != "rounds":
            assert fitted.temperature_ == pytest.approx(model.temperature, rel=1e-4)
    else:
        fitted = SLKLRegressor(**parameters, random_state=0).fit(X, y, w)
        ours = fitted.predict(X)
    theirs = np.squeeze(model.decision_function(model.features_of(X)))
    assert report["model_n_centers"] == len(fitted.centers_)
    assert report["penalty"] == (None if fitted.penalty_ is None else pytest.approx(fitted.penalty_, rel=1e-6))
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.std(theirs))
    weightless = SLKLRegressor(**parameters, random_state=0).fit(X, y).predict(X) if not classes else None
    if weightless is not None:
        assert np.abs(weightless - theirs).max() > 1e-2 * np.std(theirs)
