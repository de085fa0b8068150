"""`--init-from MODEL`: the same optimum in fewer iterations, resumed without the model, refused where it cannot fit."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from cases import SERIAL
from pipeline.kernels.scaled_rows import digests_of
from pipeline.prediction.model_folder import load_model, save_model
from pipeline.stages.initial_weights import InitialWeights, _assigned
from runs import TrainedRuns, model_bytes, report_of
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

COMMON = ("--centers", "60", "--penalty", "1", "--sigma2", "2", *SERIAL)


@pytest.fixture(scope="module")
def cold(finished_run: TrainedRuns, tables: Path) -> Path:
    """A run that starts from zero."""
    return finished_run(*COMMON, dataset=tables / "classes.npz")


def sweeps(report: dict[str, Any]) -> int:
    return sum(solve["sweeps"] for solve in report["solves"])


def objective(report: dict[str, Any]) -> float:
    return sum(solve["objective"] for solve in report["solves"])


def test_another_penalty_takes_fewer_sweeps_to_the_same_optimum(train_classes: Any, cold: Path, tmp_path: Path) -> None:
    from_zero = train_classes("zero", "--penalty", "0.8", "--tol", "1e-5")
    warm = train_classes("warm", "--penalty", "0.8", "--tol", "1e-5", "--init-from", str(cold))
    assert sweeps(warm) < sweeps(from_zero) / 2
    assert objective(warm) == pytest.approx(objective(from_zero), rel=1e-4)
    assert "init" not in {path.stem.partition("-")[0] for path in (tmp_path / "zero").rglob("*")}
    train_classes("ridge", "--refit", "ridge")
    again = train_classes("again", "--init-from", str(tmp_path / "ridge"))
    assert sweeps(again) < sweeps(report_of(cold)) / 2, "a refitted run gives the weights before its refit"


def test_more_candidates_start_from_the_centers_that_are_candidates_again(
    train_classes: Any, cold: Path, tmp_path: Path
) -> None:
    # The draw of 60 is the beginning of the draw of 80.
    warm = train_classes("warm", "--centers", "80", "--init-from", str(cold / "model"))
    start = read_arrays(RunLayout(tmp_path / "warm").solution("all-start.npz"))["weights"]
    model = load_model(cold / "model")
    index = read_arrays(RunLayout(tmp_path / "warm").centers)["index"]
    expected = np.zeros((80, 3))
    for row, weights in zip(model.center_index, model.weights, strict=True):
        expected[np.flatnonzero(index == row)] = weights
    np.testing.assert_array_equal(start, expected)
    assert warm["converged"] is True


@pytest.mark.ci
def test_the_first_working_set_holds_the_model(train_classes: Any, tmp_path: Path) -> None:
    """Which half of the working set, as many as start from zero, would not hold."""
    asked = ("--centers", "300")
    rounds = (*asked, "--set", "centers.working_set=60")
    at_once, from_zero = train_classes("at-once", *asked), train_classes("zero", *rounds)
    warm = train_classes("warm", *rounds, "--init-from", str(tmp_path / "at-once"))
    assert warm["passes"][0]["working_set"] >= at_once["model_n_centers"] > 30
    assert len(warm["passes"]) < len(from_zero["passes"])
    assert objective(warm) == pytest.approx(objective(at_once), rel=1e-3)


@pytest.mark.parametrize("rounds", [(), ("--set", "centers.working_set=50", "--features-store", "none")])
def test_a_resumed_run_ends_with_the_same_bytes_without_the_model(
    rounds: tuple[str, ...], tables: Path, features: Path, train_classes: Any, cold: Path, tmp_path: Path
) -> None:
    model, whole, begun = tmp_path / "model", tmp_path / "whole", tmp_path / "begun"
    shutil.copytree(cold / "model", model)
    train_classes("whole", "--penalty", "1.5", "--init-from", str(model), *rounds)
    shutil.rmtree(model)
    begun.mkdir()  # as a kill leaves it that comes right after the start
    for name in ("config.toml", "env.json", "init-model.npz"):
        shutil.copy(whole / name, begun / name)
    data = {"dataset": tables / "classes.npz"}
    runs.train(begun, features, "--resume", "require", **data)
    assert model_bytes(begun) == model_bytes(whole)
    for name in ("statistics", "solutions", "scores", "markers", "model"):  # what the advice for damage deletes
        shutil.rmtree(begun / name, ignore_errors=True)
    (begun / "report.json").unlink()
    runs.train(begun, features, "--resume", "require", **data)
    assert model_bytes(begun) == model_bytes(whole)


def test_a_model_with_no_center_among_the_candidates_is_told_of(
    train_classes: Any, cold: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_classes("other", "--sigma2", "3", "--init-from", str(cold))
    assert "is a candidate with the same features and width; the solves start from zero" in capsys.readouterr().err
    train_classes("zero", "--sigma2", "3")
    assert model_bytes(tmp_path / "other") == model_bytes(tmp_path / "zero")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--penalty", "auto"), "no effect with --penalty auto"),
        (("--penalty", "path:1:0.1:3"), "no effect with --penalty path:1:0.1:3"),
        (("--set", "data.standardise=false"), "z-scored inputs: the model has True, this run False"),
        (("--kernel", "polynomial"), "kernel: the model has gaussian, this run polynomial of degree 2"),
        (("--set", "data.positive=1"), "task: the model has multiclass, this run binary"),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_is_made(
    arguments: tuple[str, ...],
    words: str,
    train_classes: Any,
    cold: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_classes("run", "--init-from", str(cold), *arguments, code=2)
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_selection_and_other_features_are_refused(
    tables: Path, features: Path, cold: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(tables / "classes.npz") as table:
        np.savez(tmp_path / "narrow.npz", X=table["X"][:, :3], y=table["y"])
    for file, *asked in ((tables / "classes.npz", "--select", "greedy:5"), (tmp_path / "narrow.npz", "--penalty", "1")):
        runs.train(tmp_path / "run", features, "--init-from", str(cold), *asked, dataset=file, code=2)
    lines = capsys.readouterr().err.splitlines()
    words = ["no effect with --select greedy:5", "number of features: the model has 4, this run 3"]
    assert [word in line for word, line in zip(words, lines, strict=True)] == [True] * 2
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_missing_damaged_or_of_other_labels_is_refused(
    train_classes: Any, cold: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_classes("run", "--init-from", str(tmp_path / "nothing"), code=66)
    shutil.copytree(cold / "model", tmp_path / "damaged")
    with (tmp_path / "damaged" / "arrays.npz").open("ab") as stream:
        stream.write(b"x")
    train_classes("run", "--init-from", str(tmp_path / "damaged"), code=65)
    model = load_model(cold / "model")
    object.__setattr__(model, "labels", tuple("abc"))
    save_model(tmp_path / "letters", model)
    train_classes("run", "--init-from", str(tmp_path / "letters"), code=2)
    lines = capsys.readouterr().err.splitlines()
    words = ["nothing: no such folder", "damaged", "labels: the model has ['a'"]
    assert [word in line for word, line in zip(words, lines, strict=True)] == [True] * 3
    assert not (tmp_path / "run").exists()


def test_another_model_cannot_be_given_to_a_run_that_was_started(
    train_classes: Any, cold: Path, tmp_path: Path
) -> None:
    train_classes("run", "--init-from", str(cold))
    train_classes("run", "--resume", "auto", "--init-from", str(tmp_path), code=78)
    train_classes("run", "--resume", "auto", "--init-from", str(cold))


def test_equal_rows_share_the_weights_of_equal_centers() -> None:
    model = {
        "centers": np.array([[1.0], [1.0], [2.0], [1.0]], np.float32),
        "sigma2": np.array([4.0, 4.0, 4.0, 8.0]),
        "weights": np.array([[10.0], [20.0], [30.0], [40.0]]),
    }
    one, two = digests_of(np.array([[1.0], [2.0]], np.float32))
    found = _assigned([(5, one), (3, two), (2, one), (1, one)], np.array([4.0, 8.0]), 100, model)
    assert isinstance(found, InitialWeights)
    assert dict(zip(found.candidates.tolist(), found.weights[:, 0], strict=True)) == {5: 10, 2: 20, 3: 30, 105: 40}
