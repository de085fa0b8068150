"""The temperature of a run: from held-out rows and weights that have not seen them, against dense arithmetic."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.evaluate import main as evaluate
from pipeline.models.scores import best_temperature, loss_slopes
from pipeline.prediction.model_folder import load_model
from pipeline.report import main as write_report
from pipeline.stages import fit_model
from runs import held_out_of, report_of, train
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

N_TRAIN = 600
COMMON = ("--centers", "60", "--intercept", "--sigma2", "4", "--set", "seed=6")
PENALISED, REFITTED = ("--penalty", "1"), ("--penalty", "1", "--refit", "ridge")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A noisy table of three classes, and runs on it: penalised, refitted."""
    place = tmp_path_factory.mktemp("temperature")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_TRAIN + 400, 3))
    y = np.digitize(X[:, 0] + 0.5 * rng.normal(size=len(X)), [-0.5, 0.5])
    parts = {"X_train": X[:N_TRAIN], "X_test": X[N_TRAIN:]}
    np.savez(place / "three.npz", y_train=y[:N_TRAIN], y_test=y[N_TRAIN:], **parts)
    np.savez(place / "values.npz", y_train=X[:N_TRAIN, 0] ** 2, y_test=X[N_TRAIN:, 0] ** 2, **parts)
    trained(place, "penalised", *PENALISED)
    trained(place, "refitted", *REFITTED)
    return place


def trained(place: Path, name: str, *arguments: str, data: str = "three.npz") -> Path:
    train(place / name, place / "features", *COMMON, *arguments, dataset=place / data)
    return place / name


def rows_of(place: Path, run: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features and classes of the training rows, and which are held out."""
    with np.load(place / "three.npz") as data:
        X = load_model(run / "model").features_of(data["X_train"])
        return X, data["y_train"], held_out_of(data["X_train"], seed=6)


def told(run: Path) -> dict[str, Any]:
    return dict(report_of(run)["probabilities"])


def unseen_temperature(place: Path, run: Path, centers: np.ndarray) -> float | None:
    """The temperature that all rows want, each with dense least squares on the others that are not held out.

    centers: training rows.
    """
    X, y, held_out = rows_of(place, run)
    model, Y = load_model(run / "model"), np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    squares = np.sum(model.columns(X) ** 2) / model.n_centers
    K = model.kernel(X[centers], 4.0).block(X, out_dtype=np.float64)
    # The ridge is a fraction of the mean square of the columns, of all rows in the model and of the others here.
    ridge = report_of(run)["hold_out"]["ridge"] / squares * np.sum(K[~held_out] ** 2) / len(centers)
    decision = np.empty_like(Y)
    for row in range(len(X)):
        used = ~held_out & (np.arange(len(X)) != row)
        A, B = K[used] - K[used].mean(axis=0), Y[used] - Y[used].mean(axis=0)
        weights = np.linalg.solve(A.T @ A + ridge * np.eye(len(centers)), A.T @ B)
        decision[row] = (K[row] - K[used].mean(axis=0)) @ weights + Y[used].mean(axis=0)
    return best_temperature(loss_slopes(decision, y))


def test_after_a_refit_it_is_that_of_least_squares_on_the_other_rows(place: Path) -> None:
    run = place / "refitted"
    model, (X, y, held_out) = load_model(run / "model"), rows_of(place, run)
    assert model.temperature == pytest.approx(unseen_temperature(place, run, model.center_index), rel=1e-4)
    seen = best_temperature(loss_slopes(model.decision_function(X[held_out]), y[held_out]))
    assert model.temperature > 1.01 * seen, "weights that have seen the rows are too sure"
    assert (told(run)["n_rows"], told(run)["seen"]) == (N_TRAIN, False)


@pytest.mark.parametrize("rounds", [(), ("--set", "centers.working_set=35")], ids=["at once", "in rounds"])
def test_of_a_selection_it_is_that_of_what_was_chosen_on_the_other_rows(
    place: Path, rounds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    find, seen = fit_model.find_temperature, list[np.ndarray]()
    monkeypatch.setattr(
        fit_model, "find_temperature", lambda work, it: (seen.append(it.weights.columns), find(work, it))[1]
    )
    run = trained(place, f"selected-{len(rounds)}", "--select", "greedy:20", *rounds)
    (tried,), model = seen, load_model(run / "model")
    assert rounds or set(tried) != set(model.center_index)  # few finalists may be the same centers
    assert model.temperature == pytest.approx(unseen_temperature(place, run, tried), rel=1e-4)
    assert told(run)["seen"] is False


def test_a_penalised_fit_has_but_weights_that_have_seen_the_rows_and_says_so(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "penalised"
    model, (X, y, held_out) = load_model(run / "model"), rows_of(place, run)
    of_model = best_temperature(loss_slopes(model.decision_function(X[held_out]), y[held_out]))
    assert model.temperature == pytest.approx(of_model, rel=1e-6)  # a model predicts in float32
    assert told(run)["seen"] is True
    asked = (*COMMON, *PENALISED, "--resume", "auto")
    train(run, place / "features", *asked, dataset=place / "three.npz", quiet=False)
    assert "found with weights that had seen the held-out rows" in capsys.readouterr().out


@pytest.mark.parametrize("penalty", [pytest.param("auto", marks=pytest.mark.ci), "path:30:1:2"])
def test_along_a_path_it_is_that_of_the_solution_of_the_other_rows(place: Path, penalty: str) -> None:
    run = trained(place, penalty.replace(":", "-"), "--penalty", penalty)
    (X, y, held_out), layout, model = rows_of(place, run), RunLayout(run), load_model(run / "model")
    points = report_of(run)["path"]
    best = [point["penalty"] for point in points].index(report_of(run)["penalty"])
    number, place_of = (f"-penalty-{best:02d}", 0) if penalty == "auto" else ("", best)
    decision = np.zeros((len(X), 3))
    for output in range(3):
        solution = read_arrays(layout.solution(f"fit-centred{number}-output-{output:04d}.npz"))
        rows = read_arrays(layout.centers)["index"][solution["active"]]
        generator = model.kernel(X[rows], 4.0)
        f = generator.block(X, out_dtype=np.float64) @ solution["weights"][place_of]
        decision[:, output] = f + np.mean(np.where(y == output, 1, -1)[~held_out] - f[~held_out])
    found = best_temperature(loss_slopes(decision[held_out], y[held_out]))
    assert model.temperature == pytest.approx(found, rel=1e-4)
    assert told(run)["seen"] is False


@pytest.mark.parametrize(("data", "more"), [("values.npz", ()), ("three.npz", ("--set", "statistics.hold_out=0"))])
def test_there_is_none_of_values_or_without_held_out_rows(
    place: Path, tmp_path: Path, data: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(place / data, tmp_path)
    run = trained(tmp_path, "run", "--penalty", "1", *more, data=data)
    assert report_of(run)["probabilities"] is None
    assert "temperature" not in json.loads((run / "model" / "model.json").read_text())
    assert evaluate([str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["probabilities"] is None
    assert write_report([str(run)]) == 0
    assert "Probabilities" not in (run / "report.html").read_text()
