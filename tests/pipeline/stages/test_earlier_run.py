"""`--add-rows NEW --init-from RUN`: sums that are taken make the same bytes as sums that are made again."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import cases
from cases import RAW, SERIAL, classes, values
from commands import flip
from pipeline import train as training
from pipeline.prediction.model_folder import load_model
from pipeline.stages.accumulate_statistics import load_statistics
from runs import files_of, model_bytes, report_of, train_beside
from stopping_points import stop_amid_passes, until_done
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

OLD, NEW, NEXT, TEST = slice(0, 500), slice(500, 620), slice(620, 700), slice(700, 800)
FLOAT64 = ("--set", "kernel.precision=float64")
SHARED = ("one for each class", "one kernel", "several widths", "least squares", "a search")
SHARED += ("a selection", "a refit, moved", "learned scales")
CASES = {name: cases.CASES[name] for name in SHARED} | {
    "one label": classes("--centers", "60", "--penalty", "0.5", "--set", "data.positive=1"),
    "polynomial": values("--centers", "60", "--kernel", "polynomial", "--sigma2", "4", "--features-store=none"),
    "intersection": values("--centers", "60", "--kernel", "intersection", *RAW),
}
QUICK = ("a selection", "polynomial")


@pytest.fixture(scope="module")
def place(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of both tables in pieces, and all of them in one file."""
    folder = tmp_path_factory.mktemp("added")
    for name in ("classes", "values"):
        with np.load(tables / f"{name}.npz") as table:
            X, y = table["X"], table["y"]
        test = {"X_test": X[TEST], "y_test": y[TEST]}
        np.savez(folder / f"{name}.npz", X_train=X[OLD], y_train=y[OLD], **test)
        np.savez(folder / f"{name}-all.npz", X_train=X[:700], y_train=y[:700], **test)
        for rows, more in ((NEW, "new"), (NEXT, "next")):
            np.savez(folder / f"{name}-{more}.npz", X=X[rows], y=y[rows])
    return folder


def trained(place: Path, name: str, table: str, *arguments: str) -> Path:
    return train_beside(place, name, place / f"{table}.npz", *SERIAL, "--resume", "auto", *arguments)


def first_run(place: Path, case: str) -> Path:
    run = place / f"{case}, old"
    return run if run.exists() else trained(place, run.name, CASES[case].table, *CASES[case].arguments)


def added(place: Path, name: str, table: str, to: Path, more: str = "new") -> Path:
    if (place / name).exists():
        return place / name
    return trained(place, name, table, "--add-rows", str(place / f"{table}-{more}.npz"), "--init-from", str(to))


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.ci) for case in CASES]
)
def test_sums_that_are_taken_make_the_bytes_of_sums_made_again(
    place: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Again: from a run whose statistics are damaged, which is told."""
    old = first_run(place, case)
    before = files_of(old)
    run = added(place, f"{case}, more", CASES[case].table, old)
    assert files_of(old) == before
    assert "no longer there whole" not in capsys.readouterr().err
    damaged = shutil.copytree(old, tmp_path / "old")
    flip(damaged / "statistics" / "fit" / "gram.npy")
    again = added(place, f"{case}, again", CASES[case].table, damaged)
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
    assert names - names_before <= {"largest-terms-500.npz"}


@pytest.mark.parametrize("table", [pytest.param("classes", marks=pytest.mark.ci), "values"])
def test_the_model_is_that_of_all_rows_in_one_file(place: Path, tmp_path: Path, table: str) -> None:
    """To rounding: blocks of rows, and so the roundings of their kernel values and products, are others."""
    settings = (*RAW, "--sigma2", "0.5", "--select", "greedy:15", "--set", "data.centre_targets=false", *FLOAT64)
    old = train_beside(tmp_path, "old", place / f"{table}.npz", "--centers", "60", *settings)
    more = added(place, f"{table}, more", table, old)
    run = added(place, f"{table}, most", table, more, "next")
    assert report_of(run)["added_rows"] == [120, 80]
    index = read_arrays(RunLayout(old).centers)["index"]
    (tmp_path / "rows.txt").write_text(" ".join(map(str, index.tolist())))
    asked = ("--center-list", str(tmp_path / "rows.txt"), *settings)
    whole = train_beside(tmp_path, "whole", place / f"{table}-all.npz", *asked)
    for part in ("fit", "hold_out", "all"):
        one, other = (vars(load_statistics(RunLayout(root), part)) for root in (run, whole))
        for name, sums in one.items():
            np.testing.assert_allclose(sums, other[name], rtol=1e-14, atol=1e-11, err_msg=f"{part} {name}")
    one, other = (load_model(root / "model") for root in (run, whole))
    np.testing.assert_array_equal(one.center_index, other.center_index)
    X = np.random.default_rng(1).random((50, 4), np.float32)
    np.testing.assert_allclose(one.decision_function(X), other.decision_function(X), atol=1e-6)


def test_solves_start_from_the_weights_of_the_run_before(place: Path) -> None:
    old = first_run(place, "one for each class")
    layout = RunLayout(added(place, "one for each class, more", "classes", old))
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
    case, table = "polynomial", "values"
    old = shutil.copytree(first_run(place, case), tmp_path / "old")
    expected = model_bytes(added(place, f"{case}, more", table, first_run(place, case)))
    stop_amid_passes(monkeypatch)
    data, run = place / f"{table}.npz", tmp_path / "run"
    line = [data, "--run-dir", run, "--features-dir", place / "features", *SERIAL, "-q"]
    first = [*line, "--add-rows", place / f"{table}-new.npz", "--init-from", old]
    assert training.main([str(word) for word in first]) == 75
    if lost != "nothing":
        shutil.rmtree(old / "statistics" if lost == "statistics" else old)
    assert until_done(line) > 1
    assert model_bytes(run) == expected
    assert ("its statistics are no longer there whole" in capsys.readouterr().err) == (lost != "nothing")
