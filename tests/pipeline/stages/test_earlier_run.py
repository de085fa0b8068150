"""`--add-rows NEW --init-from RUN`: sums that are taken make the same bytes as sums that are made again."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from commands import flip
from pipeline import train as training
from pipeline.prediction.model_folder import load_model
from pipeline.stages.accumulate_statistics import load_statistics
from runs import files_of, model_bytes, report_of, train_beside
from stopping_points import stop_amid_passes, until_done
from storage.atomic_writes import read_arrays
from storage.folder_layouts import RunLayout

OLD, NEW, NEXT, TEST = slice(0, 500), slice(500, 620), slice(620, 700), slice(700, 800)
RAW = ("--set", "data.standardise=false")  # the intersection kernel takes no negative features
FLOAT64 = ("--set", "kernel.precision=float64")
CASES = {
    "one for each class": ("--centers", "60", "--penalty", "0.5"),
    "least squares, learned scales": ("--centers", "60", "--scale", "learned", "--set", "kernel.scale_rounds=2"),
    "a selection": ("--centers", "200", "--select", "greedy:20", "--sigma2", "median"),
    "one kernel": ("--centers", "60", "--penalty", "0.5", "--coupling", "shared", "--intercept"),
    "several widths": ("--centers", "40", "--sigma2", "0.5,2", "--penalty", "0.5"),
    "a path": ("--centers", "60", "--penalty", "auto", "--refit", "ridge"),
    "moved centers": ("--centers", "60", "--penalty", "0.5", "--refit", "ridge", "--polish-centers", "3"),
    "one label": ("--centers", "60", "--penalty", "0.5", "--set", "data.positive=1"),
    "regression": ("--centers", "60", "--sigma2", "auto"),
    "regression, polynomial": ("--centers", "60", "--kernel", "polynomial", "--sigma2", "4", "--features-store=none"),
    "regression, intersection": ("--centers", "60", "--kernel", "intersection", *RAW),
}
QUICK = ("a selection", "regression, polynomial")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows in pieces, and all of them in one file, once with classes and once with values."""
    folder = tmp_path_factory.mktemp("added")
    rng = np.random.default_rng(0)
    X = rng.random((800, 4))
    values = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=800)
    for name, y in (("regression", values), ("classes", np.digitize(values, np.quantile(values, [1 / 3, 2 / 3])))):
        test = {"X_test": X[TEST], "y_test": y[TEST]}
        np.savez(folder / f"{name}.npz", X_train=X[OLD], y_train=y[OLD], **test)
        np.savez(folder / f"{name}-all.npz", X_train=X[:700], y_train=y[:700], **test)
        for rows, more in ((NEW, "new"), (NEXT, "next")):
            np.savez(folder / f"{name}-{more}.npz", X=X[rows], y=y[rows])
    return folder


def data_of(case: str) -> str:
    return "regression" if case.startswith("regression") else "classes"


def trained(place: Path, name: str, case: str, *arguments: str) -> Path:
    line = ("--scheduler", "serial", "--resume", "auto", *arguments)
    return train_beside(place, name, place / f"{data_of(case)}.npz", *line)


def first_run(place: Path, case: str) -> Path:
    run = place / f"{case}, old"
    return run if run.exists() else trained(place, run.name, case, *CASES[case])


def added(place: Path, name: str, case: str, to: Path, more: str = "new") -> Path:
    if (place / name).exists():
        return place / name
    return trained(place, name, case, "--add-rows", str(place / f"{data_of(case)}-{more}.npz"), "--init-from", str(to))


def with_damage(run: Path, copy: Path) -> Path:
    shutil.copytree(run, copy)
    flip(copy / "statistics" / "fit" / "gram.npy")
    return copy


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.ci) for case in CASES]
)
def test_sums_that_are_taken_make_the_bytes_of_sums_made_again(
    place: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Again: from a run whose statistics are damaged, which is told."""
    old = first_run(place, case)
    before = files_of(old)
    run = added(place, f"{case}, more", case, old)
    assert files_of(old) == before
    assert "no longer there whole" not in capsys.readouterr().err
    again = added(place, f"{case}, again", case, with_damage(old, tmp_path / "old"))
    assert "its statistics are no longer there whole" in capsys.readouterr().err
    assert model_bytes(run) == model_bytes(again) != model_bytes(old)
    for part in ("fit", "hold_out", "all"):
        assert files_of(run / "statistics" / part) == files_of(again / "statistics" / part)
    report = report_of(run)
    assert (report["n_train"], report["added_rows"]) == (620, [120])
    # Blocks have 32 rows; a Gaussian's sums are bounded without a pass.
    items = {path: report_of(path)["stages"]["statistics"]["items"] for path in (old, run)}
    assert items[run] / items[old] == pytest.approx(4 / 16)
    names, names_before = ({path.name for path in (root / "statistics").iterdir()} for root in (run, old))
    assert names - names_before <= {"largest-values-500.npz"}


@pytest.mark.parametrize("case", [pytest.param("a selection", marks=pytest.mark.ci), "regression"])
def test_the_model_is_that_of_all_rows_in_one_file(place: Path, tmp_path: Path, case: str) -> None:
    """To rounding: blocks of rows, and so the roundings of their kernel values and products, are others."""
    settings = (*RAW, "--sigma2", "0.5", "--select", "greedy:15", "--set", "data.centre_targets=false", *FLOAT64)
    old = train_beside(tmp_path, "old", place / f"{data_of(case)}.npz", "--centers", "60", *settings)
    more = added(place, f"{case}, raw", case, old)
    run = added(place, f"{case}, rawer", case, more, "next")
    assert report_of(run)["added_rows"] == [120, 80]
    index = read_arrays(RunLayout(old).centers)["index"]
    (tmp_path / "rows.txt").write_text(" ".join(map(str, index.tolist())))
    asked = ("--center-list", str(tmp_path / "rows.txt"), *settings)
    whole = train_beside(tmp_path, "whole", place / f"{data_of(case)}-all.npz", *asked)
    for part in ("fit", "hold_out", "all"):
        one, other = (vars(load_statistics(RunLayout(root), part)) for root in (run, whole))
        for name, values in one.items():
            np.testing.assert_allclose(values, other[name], rtol=1e-14, atol=1e-11, err_msg=f"{part} {name}")
    one, other = (load_model(root / "model") for root in (run, whole))
    np.testing.assert_array_equal(one.center_index, other.center_index)
    X = np.random.default_rng(1).random((50, 4), np.float32)
    np.testing.assert_allclose(one.decision_function(X), other.decision_function(X), atol=1e-6)


def test_solves_start_from_the_weights_of_the_run_before(place: Path) -> None:
    old = first_run(place, "one for each class")
    layout = RunLayout(added(place, "one for each class, more", "one for each class", old))
    start = read_arrays(layout.solution("all-start.npz"))["weights"]
    final = read_arrays(RunLayout(old).solution("final.npz"))
    expected = np.zeros_like(start)
    expected[final["active"]] = final["penalised_weights"]
    np.testing.assert_array_equal(start, expected)
    assert start.any()


@pytest.mark.parametrize(
    "lost", ["statistics", *(pytest.param(lost, marks=pytest.mark.ci) for lost in ("nothing", "the run"))]
)
def test_a_run_that_is_stopped_ends_with_the_same_bytes(
    place: Path, tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever becomes of the run before: what is not there is made again."""
    case = "regression, polynomial"
    old = shutil.copytree(first_run(place, case), tmp_path / "old")
    expected = model_bytes(added(place, f"{case}, more", case, first_run(place, case)))
    stop_amid_passes(monkeypatch)
    data, run = place / "regression.npz", tmp_path / "run"
    line = [data, "--run-dir", run, "--features-dir", place / "features", "--scheduler", "serial", "-q"]
    first = [*line, "--add-rows", place / "regression-new.npz", "--init-from", old]
    assert training.main([str(word) for word in first]) == 75
    if lost != "nothing":
        shutil.rmtree(old / "statistics" if lost == "statistics" else old)
    assert until_done(line) > 1
    assert model_bytes(run) == expected
    assert ("its statistics are no longer there whole" in capsys.readouterr().err) == (lost != "nothing")
