"""Command and estimators give the same model bytes, whatever is asked for: they are the same fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import SERIAL
from pipeline.config.settings import PARAMETERS
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.fit import rounds, target_facts
from pipeline.prediction.trained_model import load_model
from pipeline.solvers import candidate_budget
from runs import train

ROWS = 450
PICTURES, CLASSES = ("images", "pictures", "colours"), ("halves", "thirds")


def table_of(kind: str, tables: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets: pictures, or four inputs, of which two matter, or two sums."""
    with np.load(tables / f"{'images' if kind in PICTURES else 'values'}.npz") as file:
        X, y = file["X"], file["y"]
    if kind in PICTURES:
        return {"images": X.reshape(-1, 64) / 240, "colours": np.stack([X, X[:, ::-1], 255 - X], 3)}.get(kind, X), y
    X, sums = 6 * X - 3, 3 * X @ [[1, 1], [1, 0], [1, 1], [1, 0]]
    return {
        "waves": (X, y + 5),
        "halves": (X, np.digitize(y, [np.median(y)])),
        "thirds": (X, np.digitize(y, np.quantile(y, [0.15, 0.8]))),  # of unlike sizes
        "unlike": (X * (1e-3, 1.0, 1e4, 10.0) + (0.0, 5.0, -1e4, 0.0), y),  # spread, and far from the origin
        "sums": (X, np.sin(sums[:, 0]) + sums[:, 1]),
    }[kind]


PRECISE = {"tol": 1e-10, "sigma2": 3.0}
ROUNDS = {**PRECISE, "n_centers": "all", "penalty": 2.0}
ON_DEMAND = {"columns": "on-demand", "refit": "ridge"}
DEFORMED = {"copies": 3, "deform": "rotation:20,flip"}
BALANCED = {"class_weight": "balanced"}
# For each case: a table, and what is asked; "weighted": rows count as much as they are drawn to, a fifth not at all.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "copies, weighted": ("pictures", {"penalty": "auto", "refit": "ridge", **DEFORMED}),
    "upright pictures, weighted": ("pictures", {"deskew": 1.0}),
    "colours": ("colours", {"select": "greedy:20", "move_centers": 5}),
    "auto refitted": ("waves", {"sigma2": 3.0, "penalty": "auto", "refit": "ridge"}),
    "search": ("images", {**PRECISE, "penalty": "auto", "refit": "ridge"}),
    "paper": ("waves", {"sigma2": 3.0, "penalty": "max:1e-2", "schedule": "paper"}),
    "shrinking": ("waves", {"sigma2": 3.0, "penalty": "max:1e-4", "schedule": "shrinking", "tol": 1e-6}),
    "no intercept": ("images", {**PRECISE, "penalty": "max:1e-4", "fit_intercept": False}),
    "greedy, two classes": ("halves", {"sigma2": "median", "select": "greedy:40"}),
    "moved centers": ("images", {"sigma2": 3.0, "select": "greedy:12", "move_centers": 5}),
    "budget": ("waves", {"sigma2": 8.0, "budget": 0.09, "kernel": "gaussian"}),
    "scales": ("waves", {"penalty": "none", "sigma2": "auto", "feature_scale": "learned"}),
    "scales of classes": ("thirds", {"sigma2": "auto", "feature_scale": "learned", "refit": "ridge"}),
    "fraction refitted": ("waves", {"tol": 1e-9, "sigma2": 8.0, "penalty": "max:1e-4", "refit": "ridge"}),
    "product-laplace": ("waves", {"kernel": "product-laplace", "sigma2": "auto"}),
    "metric": ("sums", {"sigma2": "median", "feature_scale": "metric", "select": "greedy:20"}),
    "greedy, edges, weighted": ("waves", {"kernel": "product-laplace", "sigma2": "auto", "select": "greedy:20"}),
    "greedy in a metric, weighted": ("sums", {"sigma2": "auto", "feature_scale": "learned", "select": "greedy:25"}),
    "rounds, weighted": ("waves", {**ROUNDS, "working_set": 120}),
    "rounds of balanced classes, weighted": ("thirds", {**ROUNDS, **BALANCED, "working_set": 150, "standardise": True}),
    "on demand, weighted": ("waves", {**ROUNDS, **ON_DEMAND}),
    "on demand, balanced classes, refitted": ("thirds", {**ROUNDS, **BALANCED, **ON_DEMAND, "penalty": "max:1e-3"}),
    "path of balanced classes, weighted": ("thirds", {**BALANCED, **PRECISE, "penalty": "auto", "refit": "ridge"}),
    "defaults, weighted": ("unlike", {"standardise": True}),
    "defaults of balanced classes, weighted": ("thirds", {**BALANCED, "standardise": True}),
}
QUICK = {"auto refitted", "fraction refitted", "budget", "product-laplace", "moved centers"}
QUICK |= {"greedy, edges, weighted", "rounds of balanced classes, weighted", "on demand, weighted"}


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.ci) for c in CASES])
def test_command_and_estimator_give_the_same_bytes(case, tables, tmp_path, monkeypatch):
    """For float32 rows; rows of weight 0 are as if they were not there. By a budget, candidates grow in steps."""
    monkeypatch.setattr(candidate_budget, "LEAST_CENTERS", 40)
    monkeypatch.setattr(rounds, "LEAST_BLOCK", 32)
    monkeypatch.setattr(target_facts, "FOLDED_ROWS", 600)
    kind, asked = CASES[case]
    X, y = (part[: None if "budget" in asked else ROWS] for part in table_of(kind, tables))
    X, n, draw = X if X.ndim > 2 else X.astype(np.float32), len(X), np.random.default_rng(3)
    row_weights = draw.exponential(size=n) * (draw.random(n) < 0.8) if "weighted" in case else None
    usual = {} if "budget" in asked or "defaults" in case else {"n_centers": 90}
    asked = {"standardise": False, "fit_intercept": True} | usual | asked
    of_rows = {} if row_weights is None else {"w_train": row_weights}
    np.savez(tmp_path / "table.npz", X_train=X, y_train=y, X_test=X[:9], y_test=y[:9], **of_rows)
    keys = {name: key for key, name in PARAMETERS.items()} | {"working_set": "centers.working_set"}
    settings = [f"--set={keys[name]}={str(value).lower()}" for name, value in asked.items()]
    line = ["--seed", "5", *settings, *SERIAL, *(["--set", "data.weights=w"] if of_rows else [])]
    report = train(tmp_path / "run", tmp_path / "features", *line, dataset=tmp_path / "table.npz")
    model = load_model(tmp_path / "run" / "model")
    given = {name: value for name, value in asked.items() if name != "working_set"}
    estimator = SLKLClassifier if kind in PICTURES + CLASSES else SLKLRegressor
    machine = estimator(**given, random_state=5).fit(X, y, row_weights)
    ours = machine.to_model()
    assert machine.penalty_ == report["penalty"]
    assert case != "budget" or 40 < model.n_centers < n, "they grow, and not to all that are paid for"
    index = np.arange(n) if row_weights is None else np.flatnonzero(row_weights)  # others are not trained on
    if "copies" in asked:  # each has a number of its own
        index = (3 * index[:, None] + np.arange(3)).ravel()
    index = np.append(index, -1)  # of moved centers
    assert machine.center_index_.tolist() == index[model.center_index].tolist()
    if "working_set" in asked:  # the same optimum, of another Gram
        np.testing.assert_allclose(ours.weights, model.weights, rtol=1e-6, atol=1e-6 * np.abs(model.weights).max())
        return
    assert ("columns" in asked) == (machine.columns_ is not None)
    assert machine.columns_ == report["columns"]
    assert ours.calibration == model.calibration
    assert (ours.features, ours.input_shape, ours.image_scale) == (model.features, model.input_shape, model.image_scale)
    for name in ("centers", "sigma2", "weights", "intercept", "feature_scales", "limits"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(model, name), err_msg=name)
    if model.standardisation is not None:
        np.testing.assert_array_equal(ours.standardisation.mean, model.standardisation.mean)
        np.testing.assert_array_equal(ours.standardisation.scale, model.standardisation.scale)
    if model.feature_scales is not None:
        assert (model.feature_scales.ndim == 2) == ("metric" in case), "a metric where only sums matter"
