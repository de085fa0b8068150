"""Estimators and commands on one model: saved by either, opened by the other."""

import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from pipeline import evaluate, predict
from pipeline.errors import MissingRunError
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.prediction.model_folder import load_model, save_model
from pipeline.prediction.predictor import load_predictor
from pipeline.prediction.trained_model import ModelFormatError
from runs import files_of, report_of, train_beside
from storage import files as disk
from storage import output_files
from storage.errors import CannotWriteError, CorruptDataError

RNG = np.random.default_rng(3)
X = RNG.standard_normal((300, 4)) * [1, 20, 0.1, 5] + [0, 3, -1, 100]
WORDS = np.array(["low", "mid", "high"])[np.digitize(X[:, 0], [-0.4, 0.4])]


def predicted(model: Path, rows: np.ndarray, folder: Path) -> np.lib.npyio.NpzFile:
    np.savez(folder / "rows.npz", X=rows)
    assert predict.main([str(model), str(folder / "rows.npz"), "--out", str(folder / "out.npz"), "--force", "-q"]) == 0
    return np.load(folder / "out.npz")


@pytest.mark.parametrize(
    "machine",
    [
        SLKLClassifier(random_state=0),
        SLKLClassifier(penalty="max:1e-4", standardise=False, sigma2=100.0, random_state=0),
        SLKLClassifier(50, select="greedy:10", feature_scale="learned", move_centers=2, random_state=0),
        SLKLClassifier(60, kernel="laplace", class_weight={"low": 2.0, "mid": 1.0, "high": 1.0}, random_state=0),
    ],
)
def test_commands_take_what_an_estimator_saves_and_it_takes_it_back(machine: SLKLClassifier, tmp_path: Path) -> None:
    machine = clone(machine).fit(X[:200], WORDS[:200])
    machine.save(tmp_path / "model")
    told = predicted(tmp_path / "model", X[200:], tmp_path)
    assert told["label"].tolist() == machine.predict(X[200:]).tolist()
    assert told["decision"] == pytest.approx(machine.decision_function(X[200:]), rel=1e-3, abs=1e-3)
    loaded = SLKLClassifier.load(tmp_path / "model")
    assert loaded.get_params() == machine.get_params()
    assert np.allclose(loaded.decision_function(X[200:]), told["decision"], rtol=0, atol=1e-12)
    assert loaded.classes_.tolist() == machine.classes_.tolist()
    assert loaded.score(X[200:], WORDS[200:]) == machine.score(X[200:], WORDS[200:])
    assert hasattr(loaded, "predict_proba") == hasattr(machine, "predict_proba")
    loaded.save(str(tmp_path / "again"))
    assert files_of(tmp_path / "again") == files_of(tmp_path / "model")
    machine.save(tmp_path / "model")  # in its own place
    loaded.set_params(class_weight=None)
    assert loaded.fit(X[:100], X[:100, 0] > 0).classes_.tolist() == [False, True]
    assert loaded.predict(X[:3]).tolist() == (X[:3, 0] > 0).tolist()


@pytest.mark.parametrize("asked", ["--sigma2 8 --penalty max:1e-3", "--budget 0.2", "--select greedy:9 --centers 80"])
def test_a_run_is_opened_as_a_regressor_that_fits_the_same(asked: str, tmp_path: Path) -> None:
    rows, y = X.astype(np.float32), X[:, 0] * 3 + np.cos(X[:, 3])
    np.savetxt(tmp_path / "table.csv", np.column_stack([rows, y]), delimiter=",", header="a,b,c,d,y", comments="")
    run = train_beside(tmp_path, "run", tmp_path / "table.csv", "--test", str(tmp_path / "table.csv"), *asked.split())
    loaded = SLKLRegressor.load(run)
    assert loaded.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    with pytest.warns(UserWarning, match="valid feature names"):
        values = loaded.predict(X)
    assert values == pytest.approx(predicted(run, X, tmp_path)["label"], rel=0, abs=1e-12)
    with pytest.raises(ValueError, match="load it with SLKLRegressor"):
        SLKLClassifier.load(run)
    again = clone(loaded).fit(rows, y)
    np.testing.assert_array_equal(again.dual_coef_, loaded.dual_coef_)


ONE = "--penalty 1e-3"


@pytest.mark.parametrize("asked", ["--penalty none", ONE, f"{ONE} --refit ridge", "--select greedy:9"])
@pytest.mark.parametrize("clip", ["true", "false"])
def test_predictions_of_least_squares_stay_near_the_targets(asked: str, clip: str, tmp_path: Path) -> None:
    """Within the range of those of positive weight, widened by a tenth, whoever predicts."""
    draw = np.random.default_rng(0)
    X, X_test = draw.uniform(-1, 1, (200, 2)), draw.uniform(-2, 2, (300, 2))
    y, y_test = X.sum(axis=1), X_test.sum(axis=1)
    data = {"X_train": X, "y_train": np.append(y[:199], 9), "w_train": np.append(np.ones(199), 0)}
    np.savez(tmp_path / "data.npz", **data, X_test=X_test, y_test=y_test)
    line = ["--centers=50", "--sigma2=20", "--set=data.weights=w", f"--set=data.clip={clip}"]
    run = train_beside(tmp_path, "run", tmp_path / "data.npz", *line, *asked.split())
    report, model, least, most = report_of(run), load_model(run / "model"), y[:199].min(), y[:199].max()
    expected = (model.columns(model.features_of(X_test)) @ model.weights + model.intercept)[:, 0]
    limits = least - 0.1 * (most - least), most + 0.1 * (most - least)
    assert (expected > limits[1]).any()
    if clip == "true" and asked != ONE:
        expected = expected.clip(*limits)
    np.testing.assert_allclose(predicted(run, X_test, tmp_path)["label"], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(SLKLRegressor.load(run).predict(X_test), expected, rtol=0, atol=1e-12)
    assert report["mse"] == pytest.approx(np.mean((expected - y_test) ** 2))
    assert not report["selection"] or report["selection"]["curve"][-1]["test_error"] == pytest.approx(report["mse"])


def test_what_is_no_model_is_neither_opened_nor_replaced(tmp_path: Path) -> None:
    machine = SLKLRegressor(random_state=0).fit(X[:60], X[:60, 0])
    for name in ("work", "link", "noted", "alike"):
        machine.save(tmp_path / name)
    (tmp_path / "alike" / "MANIFEST.json").write_text('{"files": "of another program"}')
    for name in ("arrays.npz", "MANIFEST.json"):
        (tmp_path / "work" / name).unlink()
    (tmp_path / "work" / "thesis.tex").write_text("mine")
    (tmp_path / "noted" / "data").mkdir()
    (tmp_path / "link").rename(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    theirs = files_of(tmp_path)
    refused = dict.fromkeys(("work", "link", "alike"), "is no model") | {"noted": "holds data, which is no part"}
    for name, why in refused.items():
        with pytest.raises(CannotWriteError, match=why):
            machine.save(tmp_path / name)
    assert files_of(tmp_path) == theirs
    refusal = r"damaged manifest \(it has no digests of its values\); train again or restore it$"
    with pytest.raises(CorruptDataError, match=refusal):
        SLKLRegressor.load(tmp_path / "alike")
    assert (tmp_path / "noted" / "data").is_dir()
    with pytest.raises(MissingRunError):
        SLKLRegressor.load(tmp_path / "none")
    save_model(tmp_path / "odd", machine.to_model(), metadata={"sigma2": [1], "of a later version": 2})
    with pytest.raises(ModelFormatError, match="odd: the parameters in its manifest are damaged"):
        SLKLRegressor.load(tmp_path / "odd")
    machine.save(tmp_path / "model")
    assert load_predictor(tmp_path / "model").model.n_centers == len(machine.centers_)
    assert evaluate.main([str(tmp_path / "model")]) == 2  # a model alone knows no data


def test_a_model_that_a_killed_save_moved_aside_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SLKLRegressor(20, random_state=0).fit(X[:60], X[:60, 0])
    machine.save(tmp_path / "model")
    disk.low_rename(tmp_path / "model", disk.replaced_path(tmp_path / "model"))
    now = time.time
    monkeypatch.setattr(output_files.time, "time", lambda: now() + 60)  # what was left is not of this moment
    assert SLKLRegressor.load(tmp_path / "model").dual_coef_.tolist() == machine.dual_coef_.tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
