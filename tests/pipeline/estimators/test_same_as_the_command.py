"""Command and estimators find the same weights, to rounding, whatever is asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pipeline.estimators import SLKLClassifier, SLKLRegressor, fit_distances
from pipeline.prediction.model_folder import load_model, save_model
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.solvers import forward_backward_selection
from pipeline.solvers.bandwidth_choice import held_out_errors
from pipeline.stages import choose_bandwidth
from runs import report_of, train

Table = tuple[np.ndarray, np.ndarray]
N_CENTERS = 300


def images(n: int) -> Table:
    X, y = load_digits(return_X_y=True)
    return (X[:n] / 16).astype(np.float32), y[:n]


def waves(n: int) -> Table:
    """Four inputs, of which three matter, and noise."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(n, 4)).astype(np.float32)
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * draw.normal(size=n) + 5


def halves(n: int) -> Table:
    X, y = waves(n)
    return X, (y > 5).astype(int)


def sums(n: int) -> Table:
    """Six inputs, of which only two sums matter, and noise."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(n, 6)).astype(np.float32)
    return X, np.sin(X.sum(axis=1)) + X[:, ::2].sum(axis=1) + 0.1 * draw.normal(size=n)


def weights_of_rows(n: int) -> np.ndarray:
    return np.random.default_rng(1).exponential(size=n)


FLAGS = {
    "n_centers": "--centers",
    "penalty": "--penalty",
    "coupling": "--coupling",
    "select": "--select",
    "refit": "--refit",
    "kernel": "--kernel",
    "sigma2": "--sigma2",
    "tol": "--tol",
    "schedule": "--schedule",
    "feature_scale": "--scale",
    "budget": "--budget",
    "degree": "kernel.degree",
    "patience": "solver.patience",
    "fit_intercept": "solver.intercept",
}


def line_of(asked: dict[str, Any]) -> list[str]:
    """Return the flags of the command that parameters of an estimator stand for."""
    line: list[str] = []
    for name, value in asked.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
        line += [FLAGS[name], text] if FLAGS[name].startswith("--") else ["--set", f"{FLAGS[name]}={text}"]
    return line


PRECISE = {"tol": 1e-11, "sigma2": 3.0}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "penalty": (images, {**PRECISE, "penalty": 0.5}),
    "fraction": (waves, {**PRECISE, "penalty": "max:1e-4"}),
    "auto": (images, {"sigma2": 3.0, "penalty": "auto"}),
    "auto refitted": (waves, {"sigma2": 3.0, "penalty": "auto", "refit": "ridge", "patience": 2}),
    "path": (images, {**PRECISE, "penalty": "path:max:0.1:4", "refit": "ridge"}),
    "shared": (images, {"sigma2": 3.0, "penalty": "auto", "coupling": "shared"}),
    "shared refitted": (images, {"sigma2": 3.0, "penalty": "max:1e-3", "coupling": "shared", "refit": "ridge"}),
    "uniform": (waves, {"sigma2": 3.0, "penalty": "max:1e-2", "schedule": "uniform"}),
    "no intercept": (images, {**PRECISE, "penalty": "max:1e-4", "fit_intercept": False}),
    "greedy": (images, {"sigma2": 3.0, "select": "greedy:60"}),
    "greedy, two classes": (halves, {"sigma2": "median", "select": "greedy:40"}),
    "greedy auto": (waves, {"sigma2": 0.5, "select": "greedy:auto"}),
    "least squares": (images, {"penalty": "none", "sigma2": 3.0}),
    "budget": (waves, {"sigma2": 0.5, "budget": 1}),
    "scales": (waves, {"penalty": "none", "sigma2": "auto", "feature_scale": "learned"}),
    "widths": (waves, {"tol": 1e-11, "sigma2": (1.0, 8.0), "penalty": "max:1e-4", "refit": "ridge"}),
    "greedy of widths": (waves, {"sigma2": (2.0, 0.5), "select": "greedy:50"}),
    "polynomial": (waves, {"kernel": "polynomial", "degree": 3, "sigma2": "auto", "select": "greedy:30"}),
    "intersection": (images, {"kernel": "intersection", "penalty": "max:1e-4", "refit": "ridge"}),
    "metric": (sums, {"sigma2": "median", "feature_scale": "metric", "select": "greedy:30"}),
    "greedy, weighted": (images, {"sigma2": 3.0, "select": "greedy:60"}),
    "greedy auto, weighted": (waves, {"sigma2": 0.5, "select": "greedy:auto"}),
    "greedy of widths, weighted": (waves, {"sigma2": (2.0, 0.5), "select": "greedy:50"}),
    "polynomial, weighted": (waves, {"kernel": "polynomial", "degree": 3, "sigma2": "auto", "select": "greedy:30"}),
    "greedy in a metric, weighted": (sums, {"sigma2": "auto", "feature_scale": "learned", "select": "greedy:40"}),
}


# Many centers of columns that are alike: on some processors the last bits of their sums decide which ones.
CHOSEN_BY_ROUNDING = {"greedy of widths", "greedy of widths, weighted", "metric", "greedy in a metric, weighted"}


def fitted(model: SparseKernelModel, X: np.ndarray) -> np.ndarray:
    return np.squeeze(model.decision_function(model.features_of(X)))


@pytest.mark.parametrize("case", CASES)
def test_command_and_estimator_find_the_same_weights(case: str, tmp_path: Path) -> None:
    make, asked = CASES[case]
    (X, y), row_weights = make(1000), weights_of_rows(1000) if "weighted" in case else None
    of_rows = {} if row_weights is None else {"w_train": row_weights}
    np.savez(tmp_path / "table.npz", X_train=X, y_train=y, X_test=X[:9], y_test=y[:9], **of_rows)
    line = ["--features", "raw", "--set", "kernel.precision=float64", "--set", "data.standardise=false", "--seed", "5"]
    line += line_of(asked if "budget" in asked else {"n_centers": N_CENTERS} | asked)
    line += ["--set", "data.weights=w"] if of_rows else []
    train(tmp_path / "run", tmp_path / "features", *line, dataset=tmp_path / "table.npz")
    report, model = report_of(tmp_path / "run"), load_model(tmp_path / "run" / "model")
    kind = SLKLClassifier if make in (images, halves) else SLKLRegressor
    given = asked if "budget" in asked else {"n_centers": N_CENTERS, "tol": 1e-3} | asked
    machine = kind(**given, standardise=False, random_state=5).fit(X, y, row_weights)
    assert machine.penalty_ == (report["penalty"] and pytest.approx(report["penalty"], rel=1e-12))
    if case in CHOSEN_BY_ROUNDING and machine.center_index_.tolist() != model.center_index.tolist():
        errors = [np.average((y - found) ** 2, weights=row_weights) for found in (machine.predict(X), fitted(model, X))]
        assert errors[0] == pytest.approx(errors[1], rel=0.3)
        assert max(errors) < 0.3 * np.var(y)
        return
    assert (machine.center_index_.tolist(), len(machine.centers_)) == (model.center_index.tolist(), model.n_centers)
    np.testing.assert_array_equal(np.broadcast_to(machine.sigma2_, model.n_centers), model.center_sigma2)
    weights = machine.coef_.T if kind is SLKLClassifier else machine.coef_[:, None]
    # Scaled rows are float32, and the rounds have next to no ridge: directions of a metric agree to some 1e-4.
    close = 1e-6 if model.feature_scales is None or model.feature_scales.ndim == 1 else 3e-2
    assert (close > 1e-6) == ("metric" in case)
    np.testing.assert_allclose(weights, model.weights, rtol=close, atol=close * np.abs(model.weights).max())
    np.testing.assert_allclose(machine.intercept_, np.squeeze(model.intercept), rtol=close, atol=0.1 * close)
    if model.feature_scales is not None:
        np.testing.assert_allclose(machine.feature_scales_, model.feature_scales, rtol=0, atol=1e-3)


def test_a_metric_is_confirmed_on_as_many_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is chosen of them."""
    seen: dict[str, set[int]] = {}
    for place in (choose_bandwidth, fit_distances):

        def errors(points: Any, *rest: Any, name: str = place.__name__, **more: Any) -> Any:
            seen.setdefault(name, set()).add(len(points))
            return held_out_errors(points, *rest, **more)

        monkeypatch.setattr(place, "held_out_errors", errors)
    X, y = sums(900)
    np.savez(tmp_path / "table.npz", X_train=X, y_train=y, X_test=X[:9], y_test=y[:9])
    asked = {"n_centers": 700, "sigma2": "median", "feature_scale": "metric", "select": "greedy:20"}
    line = [*line_of(asked), "--set", "kernel.scale_rounds=2", "--scheduler", "serial"]
    train(tmp_path / "run", tmp_path / "features", *line, dataset=tmp_path / "table.npz")
    SLKLRegressor(**asked, random_state=0).fit(X, y)
    assert seen == {choose_bandwidth.__name__: {700}, fit_distances.__name__: {700}}


def test_a_choice_of_as_many_as_are_enough_ends_early_and_is_made_again_on_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at from 60 chosen on, in place of 2000, whose weights would hang on rounding."""
    monkeypatch.setattr(forward_backward_selection, "BACK_LEAST", 60)
    monkeypatch.setattr(forward_backward_selection, "BACK_MOST", 60)
    X, y = waves(1000)
    np.savez(tmp_path / "table.npz", X_train=X, y_train=y, X_test=X[:9], y_test=y[:9])
    line = ["--set", "kernel.precision=float64", "--set", "data.standardise=false", "--centers", "400"]
    line += ["--sigma2", "2", "--select", "greedy:auto", "--scheduler", "serial"]
    train(tmp_path / "run", tmp_path / "features", *line, dataset=tmp_path / "table.npz")
    model, seen = load_model(tmp_path / "run" / "model"), dict.fromkeys(("fit", "all"), 0)

    def count(record: dict[str, Any]) -> None:
        seen[record["rows"]] = record["iteration"]

    machine = SLKLRegressor(400, sigma2=2.0, select="greedy:auto", standardise=False, random_state=0, callback=count)
    machine.fit(X, y)
    assert 60 <= seen["fit"] < 400, "not ended early"
    assert seen["all"] >= len(machine.centers_) > 10
    assert machine.center_index_.tolist() == model.center_index.tolist()
    np.testing.assert_allclose(
        machine.coef_[:, None], model.weights, rtol=1e-6, atol=1e-6 * np.abs(model.weights).max()
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_finalists_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    """Of a sample that both draw by themselves; rows of weight 0 are as if they were not there."""
    monkeypatch.setattr(forward_backward_selection, "BACK_LEAST", 60)
    monkeypatch.setattr(forward_backward_selection, "BACK_MOST", 60)
    X, y = waves(1000)
    weights = np.where(np.arange(1000) % 9 == 4, 0.0, 1.0 + np.arange(1000) % 3) if weighted else np.ones(1000)
    counted = weights > 0
    arrays = {
        "X_train": X[counted],
        "y_train": y[counted],
        "X_test": X[:9],
        "y_test": y[:9],
        "w_train": weights[counted],
    }
    np.savez(tmp_path / "table.npz", **arrays)
    line = ["--set", "kernel.precision=float64", "--set", "data.standardise=false", "--centers", "400"]
    line += ["--sigma2", "2", "--select", "greedy:30", "--scheduler", "serial", "--set", "data.weights=w"]
    train(tmp_path / "run", tmp_path / "features", *line, dataset=tmp_path / "table.npz")
    model, phases = load_model(tmp_path / "run" / "model"), set[str]()
    machine = SLKLRegressor(
        400,
        sigma2=2.0,
        select="greedy:30",
        standardise=False,
        random_state=0,
        callback=lambda record: phases.add(record["rows"]),
    )
    machine.fit(X, y, sample_weight=weights)
    assert phases == {"sample"}, "both ways back begin with the finalists"
    assert np.flatnonzero(counted)[model.center_index].tolist() == machine.center_index_.tolist()
    np.testing.assert_allclose(
        machine.coef_[:, None], model.weights, rtol=1e-6, atol=1e-6 * np.abs(model.weights).max()
    )


def test_verbose_says_what_the_command_shows(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = waves(250)
    SLKLRegressor(120, penalty="path:max:1:3", sigma2=1.0, random_state=0, verbose=1).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("penalty 2 of 3 ("), "at the first all weights are zero"
    assert all(" output 0: objective " in f" {line}" and " gap " in line for line in lines)
    SLKLRegressor(120, select="greedy:20", sigma2=1.0, random_state=0, verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"100 of 120 centers chosen on {rows}" for rows in ("the fit rows", "all rows")]
    SLKLRegressor(120, random_state=0).fit(X, y)
    assert not capsys.readouterr().out


def test_what_a_kernel_does_not_know_is_refused() -> None:
    X, y = waves(60)
    for asked, words in (
        ({"kernel": "intersection", "sigma2": 2.0}, "sigma2 has no effect on the intersection kernel"),
        ({"kernel": "intersection"}, "features of at least 0: do not standardise them .standardise=False."),
        ({"kernel": "polynomial", "feature_scale": "learned"}, "for the gaussian kernel, not the polynomial one"),
        ({"sigma2": (1.0, 2.0), "feature_scale": "learned"}, "sigma2 lists 2"),
    ):
        with pytest.raises(ValueError, match=words):
            SLKLRegressor(**asked).fit(X, y)


@pytest.mark.parametrize("asked", [{"kernel": "polynomial"}, {"sigma2": [0.5, 4.0], "penalty": "max:1e-4"}], ids=str)
def test_models_of_other_kernels_and_of_widths_are_saved_and_started_from(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    X, y = waves(300)
    machine = SLKLRegressor(100, **asked, standardise=False, random_state=0, warm_start=True).fit(X, y)
    save_model(tmp_path / "model", machine.to_model())
    model = load_model(tmp_path / "model")
    np.testing.assert_allclose(model.decision_function(X)[:, 0], machine.predict(X), atol=1e-3)
    first = machine.n_iter_
    again = machine.fit(X, y)
    assert again.n_iter_ < first or again.n_iter_ <= 2
    np.testing.assert_allclose(model.decision_function(X)[:, 0], again.predict(X), atol=1e-3)
