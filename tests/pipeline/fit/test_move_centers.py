"""Centers that move: the gradient against differences, errors that fall, what is refused, what the model says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import SERIAL
from commands import evaluated, the_error
from pipeline.estimators import SLKLRegressor
from pipeline.fit import move_centers as stage
from pipeline.fit import workspace
from pipeline.predict import main as predict
from pipeline.prediction.trained_model import load_model
from pipeline.reporting.page import page
from runs import model_bytes, report_of, train
from storage.folder_layouts import RunLayout

ASKED = ("--centers", "200", "--select", "greedy:15", *SERIAL)
MOVED = (*ASKED, "--move-centers", "25")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables of a smooth function of 3 inputs and of noise, and runs of 15 centers that stay and move."""
    place = tmp_path_factory.mktemp("moves")
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (800, 3))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.5 * np.cos(3 * X[:, 2]) + 0.02 * rng.normal(size=800)
    noise = rng.normal(size=800)
    np.savez(place / "smooth.npz", X=X, y=y, w=rng.integers(0, 4, size=800))
    np.savez(place / "noise.npz", X=X, y=noise)
    for name, arguments in (("stay", ASKED), ("move", MOVED)):
        train(place / name, place / "features", *arguments, "--set", "seed=2", dataset=place / "smooth.npz")
    return place


@pytest.mark.parametrize(
    ("intercept", "weighted"),
    [
        (True, ("--set", "data.weights=w")),
        *(pytest.param(of, (), marks=pytest.mark.ci) for of in (False, True)),
    ],
)
def test_gradient_is_that_of_differences(place, tmp_path, intercept, weighted, monkeypatch):
    """Of the objective with the weights solved out, at a few numbers of a few centers."""
    with_gradient = stage._Mover._with_gradient
    compared = []

    def checked(mover: Any, state: Any) -> Any:
        found = with_gradient(mover, state)
        if not compared:
            for m, j in ((0, 0), (3, 1), (14, 2)):
                values = []
                for sign in (1, -1):
                    points = state.points.copy()
                    points[m, j] += sign * 2.0**-12
                    moved = points.astype(np.float32).astype(np.float64)
                    parts = mover.statistics(moved, "a test")
                    values.append((moved[m, j], mover.fitted(parts, state).objective))
                (x1, f1), (x0, f0) = values
                compared.append((found.gradient[m, j], (f1 - f0) / (x1 - x0)))
        return found

    monkeypatch.setattr(stage._Mover, "_with_gradient", checked)
    monkeypatch.setattr(workspace, "value_dtype", lambda *_: "float64")  # differences of float32 values are rounding
    more = ("--set", f"solver.intercept={str(intercept).lower()}")
    more += weighted
    train(tmp_path / "run", place / "features", *ASKED, "--move-centers", "1", *more, dataset=place / "smooth.npz")
    analytic, differences = np.array(compared).T
    assert np.abs(differences).max() > 0.05
    np.testing.assert_allclose(analytic, differences, rtol=2e-4, atol=1e-4 * np.abs(differences).max())


def test_the_error_falls_and_report_and_page_say_by_how_much(place):
    stay, move = report_of(place / "stay"), report_of(place / "move")
    assert move["mse"] < 0.4 * stay["mse"]
    assert move["penalised"]["mse"] == pytest.approx(stay["mse"], rel=1e-9)  # before the centers moved
    moves = move["moves"]
    errors = moves["held_out_errors"]
    assert moves["steps"] == len(errors) - 1 <= 25
    assert errors[moves["kept_step"]] == min(errors) < 0.5 * errors[0]
    assert moves["held_out_after"] == pytest.approx(min(errors), rel=0.05)
    assert stay["moves"] is None
    assert f"{errors[0]:.6g} to {moves['held_out_after']:.6g}" in " ".join(page(RunLayout(place / "move")).split())
    assert "Moved centers" not in page(RunLayout(place / "stay"))


def test_moved_centers_are_no_training_rows(place, tmp_path, capsys):
    stay, move = load_model(place / "stay" / "model"), load_model(place / "move" / "model")
    assert (stay.center_index >= 0).all()
    assert (move.center_index == -1).all()
    assert move.centers.shape == stay.centers.shape
    assert not (move.centers == stay.centers).any()
    assert evaluated(capsys, place / "move")["mse"] == pytest.approx(report_of(place / "move")["mse"], rel=1e-9)
    asked = ("--out", str(tmp_path / "out.csv"), "--explain", "1")
    assert predict([str(place / "move"), str(place / "smooth.npz"), *asked]) == 2
    assert "were moved" in the_error(capsys)


@pytest.mark.ci
def test_refitted_centers_move_as_well(place, tmp_path):
    asked = ("--centers", "40", "--penalty", "1e-3", "--refit", "ridge", "--set", "seed=2", *SERIAL)
    data = {"dataset": place / "smooth.npz"}
    stay = train(tmp_path / "stay", place / "features", *asked, **data)
    move = train(tmp_path / "move", place / "features", *asked, "--move-centers", "15", **data)
    assert move["mse"] < 0.7 * stay["mse"]
    assert move["penalised"]["mse"] == pytest.approx(stay["penalised"]["mse"], rel=1e-9)
    assert move["hold_out"]["ridge"] != stay["hold_out"]["ridge"]


def test_where_no_step_helps_the_model_is_that_of_the_centers_that_stay(place, tmp_path):
    """Targets are noise: what lowers the error of the fit rows raises that of the others, at first."""
    asked = ("--centers", "200", "--select", "greedy:60", "--set", "statistics.hold_out=0.4", "--set", "seed=2")
    data = {"dataset": place / "noise.npz"}
    train(tmp_path / "stay", place / "features", *asked, *SERIAL, **data)
    report = train(tmp_path / "move", place / "features", *asked, "--move-centers", "5", *SERIAL, **data)
    assert report["moves"]["kept_step"] == 0 < report["moves"]["steps"]
    assert report["penalised"] is None
    assert model_bytes(tmp_path / "move") == model_bytes(tmp_path / "stay")


@pytest.mark.parametrize("first", [0.1, 1e3, 1e30])
def test_centers_move_alike_for_targets_in_any_unit_however_long_the_first_step_is(first, monkeypatch):
    """A step after which all columns are zero, or no center is a float32 number, is too long, and no error."""
    monkeypatch.setattr(stage, "FIRST", first)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    asked = SLKLRegressor(50, select="greedy:8", move_centers=3, random_state=0)
    centers = [asked.fit(X, unit * y).centers_.copy() for unit in (1.0, 2.0**60, 1e-140)]
    assert np.array_equal(centers[1], centers[0])
    np.testing.assert_allclose(centers[2], centers[0], atol=1e-4)
