"""The temperature of a run: from held-out rows and weights that have not seen them, against dense arithmetic."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from cases import SERIAL
from pipeline.evaluate import main as evaluate
from pipeline.prediction.model_folder import load_model
from pipeline.prediction.scores import best_temperature, loss_slopes
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.report import main as write_report
from pipeline.reporting.result_table import table
from pipeline.stages import fit_model
from runs import TrainedRuns, report_of
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

COMMON = ("--centers", "60", "--intercept", "--sigma2", "4", *SERIAL)
Train = Callable[..., tuple[Path, SparseKernelModel, Any]]


@pytest.fixture
def train(finished_run: TrainedRuns, tables: Path, rows_of: Callable[[Path], Any]) -> Train:
    """Return a run on the table of three classes, its model, and the rows that it was trained on."""

    def trained(*arguments: str) -> tuple[Path, SparseKernelModel, Any]:
        run = finished_run(*COMMON, *arguments, dataset=tables / "classes.npz")
        return run, load_model(run / "model"), rows_of(run)

    return trained


def told(run: Path) -> dict[str, Any]:
    return dict(report_of(run)["probabilities"])


def unseen_temperature(run: Path, model: SparseKernelModel, rows: Any, centers: np.ndarray) -> float | None:
    """The temperature that all rows want, each with dense least squares on the others that are not held out.

    centers: training rows.
    """
    Y = np.where(rows.y[:, None] == np.arange(3), 1.0, -1.0)
    squares = np.sum(model.columns(rows.X) ** 2) / model.n_centers
    K = model.kernel(rows.X[centers], 4.0).block(rows.X, out_dtype=np.float64)
    # The ridge is a fraction of the mean square of the columns, of all rows in the model and of the others here.
    ridge = report_of(run)["hold_out"]["ridge"] / squares * np.sum(K[~rows.held_out] ** 2) / len(centers)
    decision = np.empty_like(Y)
    for row in range(len(Y)):
        used = ~rows.held_out & (np.arange(len(Y)) != row)
        A, B = K[used] - K[used].mean(axis=0), Y[used] - Y[used].mean(axis=0)
        weights = np.linalg.solve(A.T @ A + ridge * np.eye(len(centers)), A.T @ B)
        decision[row] = (K[row] - K[used].mean(axis=0)) @ weights + Y[used].mean(axis=0)
    return best_temperature(loss_slopes(decision, rows.y))


def seen_temperature(model: SparseKernelModel, rows: Any) -> float | None:
    return best_temperature(loss_slopes(model.decision_function(rows.X[rows.held_out]), rows.y[rows.held_out]))


def test_after_a_refit_it_is_that_of_least_squares_on_the_other_rows(train: Train) -> None:
    run, model, rows = train("--penalty", "1", "--refit", "ridge")
    assert model.temperature == pytest.approx(unseen_temperature(run, model, rows, model.center_index), rel=1e-4)
    assert model.temperature > 1.01 * seen_temperature(model, rows), "weights that have seen the rows are too sure"
    assert (told(run)["n_rows"], told(run)["seen"]) == (len(rows.y), False)


@pytest.mark.parametrize("rounds", [(), ("--set", "centers.working_set=35")], ids=["at once", "in rounds"])
def test_of_a_selection_it_is_that_of_what_was_chosen_on_the_other_rows(
    train: Train, tables: Path, features: Path, tmp_path: Path, rounds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, rows = train("--penalty", "1")
    find, seen = fit_model.find_temperature, list[np.ndarray]()
    monkeypatch.setattr(
        fit_model, "find_temperature", lambda work, it: (seen.append(it.weights.columns), find(work, it))[1]
    )
    run, asked = tmp_path / "run", (*COMMON, "--select", "greedy:20", *rounds)
    runs.train(run, features, *asked, dataset=tables / "classes.npz")
    (tried,), model = seen, load_model(run / "model")
    assert rounds or set(tried) != set(model.center_index)  # few finalists may be the same centers
    assert model.temperature == pytest.approx(unseen_temperature(run, model, rows, tried), rel=1e-4)
    assert told(run)["seen"] is False


def test_a_penalised_fit_has_but_weights_that_have_seen_the_rows_and_says_so(train: Train) -> None:
    run, model, rows = train("--penalty", "1")
    assert model.temperature == pytest.approx(seen_temperature(model, rows), rel=1e-6)  # a model predicts in float32
    assert told(run)["seen"] is True
    assert "probabilities may be too sure: the temperature was found on rows" in "\n".join(table(report_of(run)))


@pytest.mark.ci
def test_of_a_penalty_that_was_searched_it_is_that_of_the_solution_of_the_other_rows(train: Train) -> None:
    run, model, (X, y, *_, held_out) = train("--penalty", "auto")
    layout, points = RunLayout(run), report_of(run)["path"]
    best = [point["penalty"] for point in points].index(report_of(run)["penalty"])
    decision = np.zeros((len(X), 3))
    for output in range(3):
        solution = read_arrays(layout.solution(f"fit-centred-penalty-{best:02d}-output-{output:04d}.npz"))
        rows = read_arrays(layout.candidates)["index"][solution["active"]]
        f = model.kernel(X[rows], 4.0).block(X, out_dtype=np.float64) @ solution["weights"]
        decision[:, output] = f + np.mean(np.where(y == output, 1, -1)[~held_out] - f[~held_out])
    found = best_temperature(loss_slopes(decision[held_out], y[held_out]))
    assert model.temperature == pytest.approx(found, rel=1e-4)
    assert told(run)["seen"] is False


@pytest.mark.parametrize(("data", "more"), [("values", ()), ("classes", ("--set", "statistics.hold_out=0"))])
def test_there_is_none_of_values_or_without_held_out_rows(
    trained: Callable[..., Path], tables: Path, data: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(*COMMON, "--penalty", "1", *more, dataset=tables / f"{data}.npz")
    assert report_of(run)["probabilities"] is None
    assert "temperature" not in json.loads((run / "model" / "model.json").read_text())
    assert evaluate([str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["probabilities"] is None
    assert write_report([str(run)]) == 0
    assert "Probabilities" not in (run / "report.html").read_text()
