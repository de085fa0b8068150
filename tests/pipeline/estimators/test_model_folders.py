"""Models that estimators save, as the commands take them."""

import numpy as np
import pytest

from commands import predicted
from pipeline import evaluate
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.prediction.predictor import load_predictor
from pipeline.prediction.trained_model import load_model
from runs import files_of, report_of, train_beside
from storage.arrays import commit
from storage.errors import CannotWriteError

RNG = np.random.default_rng(3)
X = RNG.standard_normal((300, 4)) * [1, 20, 0.1, 5] + [0, 3, -1, 100]
WORDS = np.array(["low", "mid", "high"])[np.digitize(X[:, 0], [-0.4, 0.4])]


@pytest.mark.parametrize(
    "asked",
    [
        {"penalty": "max:1e-4", "standardise": False, "sigma2": 100.0},
        {"select": "greedy:10", "feature_scale": "learned", "move_centers": 2},
        {"kernel": "product-laplace", "class_weight": {"low": 2.0, "mid": 1.0, "high": 1.0}},
    ],
)
def test_commands_take_what_an_estimator_saves(asked, tmp_path):
    machine = SLKLClassifier(50, random_state=0, **asked).fit(X[:200], WORDS[:200])
    machine.save(tmp_path / "model")
    told = predicted(tmp_path / "model", X[200:], tmp_path)
    assert told["label"].tolist() == machine.predict(X[200:]).tolist()
    decision = machine.decision_function(X[200:])
    np.testing.assert_allclose(told.filter(like="decision"), decision, rtol=1e-3, atol=1e-3)
    before = files_of(tmp_path / "model")
    machine.save(str(tmp_path / "model"))  # in its own place
    assert files_of(tmp_path / "model") == before


ONE = "--penalty 1e-3"


@pytest.mark.parametrize("asked", ["--penalty none", ONE, f"{ONE} --refit ridge", "--select greedy:9"])
def test_predictions_of_least_squares_stay_near_the_targets(asked, tmp_path):
    """Within the range of those of positive weight, widened by a third, whoever predicts."""
    draw = np.random.default_rng(0)
    X, X_test = draw.uniform(-1, 1, (200, 2)), draw.uniform(-4, 4, (300, 2))
    y, y_test = X.sum(axis=1), X_test.sum(axis=1)
    data = {"X_train": X, "y_train": np.append(y[:199], 9), "w_train": np.append(np.ones(199), 0)}
    np.savez(tmp_path / "data.npz", **data, X_test=X_test, y_test=y_test)
    line = ["--centers=50", "--sigma2=200", "--set=data.weights=w"]
    run = train_beside(tmp_path, "run", tmp_path / "data.npz", *line, *asked.split())
    report, model, least, most = report_of(run), load_model(run / "model"), y[:199].min(), y[:199].max()
    expected = (model.columns(model.features_of(X_test)) @ model.weights + model.intercept)[:, 0]
    limits = least - (most - least) / 3, most + (most - least) / 3
    assert (expected > limits[1]).any()
    if asked != ONE:
        expected = expected.clip(*limits)
    assert report["n_at_limit"] == (
        0 if asked == ONE else np.count_nonzero((expected <= limits[0]) | (expected >= limits[1]))
    )
    np.testing.assert_allclose(predicted(run, X_test, tmp_path)["label"], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(load_predictor(run).predict(X_test), expected, rtol=0, atol=1e-12)
    assert report["mse"] == pytest.approx(np.mean((expected - y_test) ** 2))
    assert not report["selection"] or report["selection"]["curve"][-1]["test_error"] == pytest.approx(report["mse"])


def test_what_is_no_model_is_neither_opened_nor_replaced(tmp_path):
    machine = SLKLRegressor(sigma2=1.0, random_state=0).fit(X[:60], X[:60, 0])
    for name in ("work", "alike", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("mine")
    np.savez(tmp_path / "alike" / "model.npz", of="another program")
    commit(tmp_path / "other" / "model.npz", {"x": X}, {"task": "ours, but no model"})
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    theirs = files_of(tmp_path)
    for name in ("work", "alike", "other", "file", "link"):
        with pytest.raises(CannotWriteError, match="is no model"):
            machine.save(tmp_path / name)
    assert files_of(tmp_path) == theirs
    for name in ("empty", "killed"):
        (tmp_path / name).mkdir()
    (tmp_path / "killed" / ".tmp-model.npz-0123456789abcdef").write_text("of a model that was under way")
    for name in ("empty", "killed"):
        machine.save(tmp_path / name)
    machine.save(tmp_path / "model")
    assert load_predictor(tmp_path / "model").model.n_centers == len(machine.centers_)
    assert evaluate.main([str(tmp_path / "model")]) == 2  # a model alone knows no data
