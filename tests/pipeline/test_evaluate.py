"""The evaluate command: the same errors as the run's report, on any labelled data, for people and for programs."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from sklearn.metrics import confusion_matrix, mean_absolute_error, mean_squared_error, r2_score

from features.open_source import open_source
from features.source import SourceSpec
from pipeline.evaluate import main
from pipeline.prediction import streamed_prediction as prediction
from pipeline.prediction.model_folder import load_model
from runs import report_of, train_beside

WORDS = ("far", "middle", "near")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs and their features; they are read only."""
    return tmp_path_factory.mktemp("evaluate")


SETTINGS = ("--set", "data.n_train=300", "--set", "data.n_test=200", "--set", "seed=3")


@pytest.fixture(scope="module")
def images(place: Path) -> Path:
    """A run on rendered digits, ten classes."""
    return train_beside(place, "images", "synthetic", "--centers", "60", "--sigma2", "2", *SETTINGS)


N = 160
X = np.random.default_rng(0).uniform(-5, 5, (N, 2))
RADIUS = np.linalg.norm(X, axis=1)
TARGETS = {
    "regression": np.sin(RADIUS) / RADIUS,
    "binary": (RADIUS < 3).astype(int),
    "words": np.array(WORDS)[(RADIUS < 4).astype(int) + (RADIUS < 2)],
}


@pytest.fixture(scope="module")
def tables(place: Path) -> dict[str, Path]:
    """Runs on tables: a regression, a binary task, three classes with text labels."""
    runs = {}
    for name, y in TARGETS.items():
        np.savez(place / f"{name}.npz", X=X, y=y)
        runs[name] = train_beside(place, name, str(place / f"{name}.npz"), "--centers", "40", "--sigma2", "0.3")
    return runs


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """What the command prints as JSON."""
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


KEYS = {
    *("model", "data", "part", "task", "n_centers", "n_rows", "error_rate", "n_errors", "labels", "confusion"),
    *("mse", "rmse", "mae", "r2", "n_far", "warnings", "seconds", "rows_per_second", "header", "probabilities"),
    "weighted",
}


def test_a_run_agrees_with_its_report(
    images: Path, tables: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for run in (images, *tables.values()):
        found, report = evaluated(capsys, run), report_of(run)
        assert set(found) == KEYS
        assert (found["part"], found["n_rows"]) == ("test", report["n_test"])
        for key in ("task", "error_rate", "n_errors", "confusion"):
            assert found[key] == report[key]
        assert found["n_centers"] == report["model_n_centers"]
        assert found["mse"] == pytest.approx(report["mse"], rel=1e-5) if report["mse"] else found["mse"] is None
        assert found["rows_per_second"] == pytest.approx(found["n_rows"] / found["seconds"])


def test_the_own_data_by_name_are_split_as_the_run_split_them(
    images: Path, tables: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another seed would render, or split, other rows."""
    assert evaluated(capsys, images, "synthetic")["confusion"] == report_of(images)["confusion"]
    own = tables["words"].parent / "words.npz"
    assert evaluated(capsys, tables["words"], own)["confusion"] == report_of(tables["words"])["confusion"]
    assert evaluated(capsys, tables["words"], own, "--part", "all")["n_rows"] == N
    assert evaluated(capsys, images / "model", "synthetic", *SETTINGS)["n_errors"] == report_of(images)["n_errors"]


def test_a_model_in_another_folder(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(images / "model", tmp_path / "copy")
    source = open_source(SourceSpec("synthetic", n_train=300, n_test=200, seed=3))
    inputs, truth = source.read("test", 0, source.n_test)
    np.savez(tmp_path / "images.npz", X=inputs, y=truth)
    found = evaluated(capsys, tmp_path / "copy", tmp_path / "images.npz")
    assert found["confusion"] == report_of(images)["confusion"]
    assert (found["part"], found["labels"]) == (None, list(range(10)))


@pytest.mark.parametrize("task", TARGETS)
def test_the_numbers_are_those_of_scikit_learn_in_every_form(
    tables: dict[str, Path],
    task: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prediction, "MOST_BLOCK_ROWS", 50)
    y, model = TARGETS[task], load_model(tables[task] / "model")
    predicted = model.predict_targets(model.features_of(X))
    np.savez(tmp_path / "data.npz", X=X, t=y)
    lines = [f"{a!r},{label},{b!r}" for (a, b), label in zip(X.tolist(), y.tolist(), strict=True)]
    (tmp_path / "data.csv").write_text("a,t,b\n" + "\n".join(lines) + "\n")
    data = [tmp_path / "data.npz", tmp_path / "data.csv"]
    if task != "words":
        group = zarr.open_group(tmp_path / "data.zarr", mode="w", zarr_format=3)
        for name, values in {"X": X, "t": y}.items():
            array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(64, *values.shape[1:]))
            array[...] = values
        # zarr leaves out chunks that are all zeros; here there are none.
        data.append(tmp_path / "data.zarr")
    for path in data:
        found = evaluated(capsys, tables[task], path, "--target", "t")
        if task == "regression":
            assert found["mse"] == pytest.approx(mean_squared_error(y, predicted), rel=1e-4)
            assert found["mae"] == pytest.approx(mean_absolute_error(y, predicted), rel=1e-4)
            assert found["r2"] == pytest.approx(r2_score(y, predicted), rel=1e-4)
            assert (found["confusion"], found["labels"], found["n_errors"]) == (None, None, None)
        else:
            expected = confusion_matrix(y, np.array(model.labels)[predicted], labels=list(model.labels))
            assert found["confusion"] == expected.tolist()
            assert found["n_errors"] == N - int(expected.trace())
            assert found["error_rate"] == found["n_errors"] / N
            assert (found["mse"], found["r2"]) == (None, None)


def test_labels_written_in_another_way_are_the_same(
    tables: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers as text or as floats, and data in which a class is missing."""
    y = TARGETS["binary"]
    np.savez(tmp_path / "int.npz", X=X, y=y)
    expected = evaluated(capsys, tables["binary"], tmp_path / "int.npz")["confusion"]
    for kind in (str, float, bool):
        np.savez(tmp_path / "other.npz", X=X, y=y.astype(kind)[:, None])
        assert evaluated(capsys, tables["binary"], tmp_path / "other.npz")["confusion"] == expected
    np.savez(tmp_path / "one.npz", X=X[y == 1], y=y[y == 1])
    found = evaluated(capsys, tables["binary"], tmp_path / "one.npz")
    assert found["confusion"] == [[0, 0], expected[1]]


def test_values_that_are_all_equal_have_no_r2(
    tables: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", X=X, y=np.ones(N))
    assert evaluated(capsys, tables["regression"], tmp_path / "data.npz")["r2"] is None


def test_the_table_for_people(images: Path, tables: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(images)]) == 0
    shown, report = capsys.readouterr().out, report_of(images)
    assert f"error: {100 * report['error_rate']:.2f} % ({report['n_errors']} of 200)" in shown
    for label, row in enumerate(report["confusion"]):
        starts = [line.split() for line in shown.splitlines() if line.startswith(f"{label} ")]
        assert starts[0][:3] == [str(label), str(sum(row)), str(sum(row) - row[label])]
        assert starts[1] == [str(label), *map(str, row)]
    assert main([str(tables["regression"])]) == 0
    shown = capsys.readouterr().out
    assert f"mean squared error: {report_of(tables['regression'])['mse']:.4g}"[:-1] in shown
    assert "R2 " in shown
    assert main([str(tables["words"])]) == 0
    assert all(word in capsys.readouterr().out for word in WORDS[:1])


BAD: dict[str, tuple[str, str, dict[str, Any], list[str], int, str]] = {
    "an unknown label": ("words", "npz", {"X": X[:3], "y": ["far", "near", "out"]}, [], 65, "row 2 has label 'out'"),
    "numbers for words": ("words", "npz", {"X": X[:2], "y": [1, 2]}, [], 65, "row 0 has label 1"),
    "a word for numbers": ("binary", "npz", {"X": X[:3], "y": ["1", "0", "a"]}, [], 65, "row 2 has label 'a'"),
    "words for values": ("regression", "npz", {"X": X[:2], "y": ["1.5", "a"]}, [], 65, "row 1 has the target 'a'"),
    "a value that is NaN": ("regression", "npz", {"X": X[:2], "y": [1.0, np.nan]}, [], 65, "row 1"),
    "no labels": ("words", "npz", {"X": X}, [], 65, "no array y"),
    "no labels by that name": ("words", "npz", {"X": X, "y": X[:, 0]}, ["--target", "z"], 65, "no array z"),
    "fewer labels": ("words", "npz", {"X": X[:3], "y": ["far", "near"]}, [], 65, "3 rows"),
    "other inputs": ("words", "npz", {"X": X[:2, :1], "y": ["far", "near"]}, [], 65, "(1,)"),
    "a csv without labels": ("words", "csv", {"text": "a,b\n1,2\n"}, [], 65, "2 columns"),
    "a csv with an empty label": ("words", "csv", {"text": "a,b,y\n1,2,far\n1,2,\n"}, [], 65, "row 1 (line 3)"),
    "an unknown label late": ("words", "csv", {"text": "a,b,y\n" + "1,2,far\n" * 60 + "1,2,x\n"}, [], 65, "row 60"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_give_one_line_and_the_exit_code(
    case: str, tables: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    task, kind, content, options, code, words = BAD[case]
    monkeypatch.setattr(prediction, "MOST_BLOCK_ROWS", 50)
    data = tmp_path / f"data.{kind}"
    if kind == "csv":
        data.write_text(content["text"])
    else:
        np.savez(data, **content)
    assert main([str(tables[task]), str(data), "--json", *options]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert words in told.err


def test_what_is_missing_has_its_code(
    images: Path, tables: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing to evaluate, no data, settings without data, and data that have changed since the run."""
    np.savez(tmp_path / "own.npz", X=X, y=TARGETS["binary"])
    run = train_beside(tmp_path, "run", str(tmp_path / "own.npz"), "--centers", "20", "--sigma2", "0.3")
    np.savez(tmp_path / "own.npz", X=X + 1, y=TARGETS["binary"])
    cases: list[tuple[list[Any], int, str]] = [
        ([tmp_path / "absent"], 66, "no such folder"),
        ([tmp_path / "run" / "centers"], 66, "holds no model"),
        ([images / "model"], 2, "DATA is missing"),
        ([images, "--set", "seed=1"], 2, "DATA"),
        ([images, "nonesuch"], 2, "nonesuch"),
        ([images, tmp_path / "absent.npz"], 66, "no such file"),
        ([tables["words"], "synthetic", *SETTINGS], 65, "(28, 28)"),
        ([run], 78, "no longer the data"),
    ]
    for arguments, code, words in cases:
        assert main([*map(str, arguments)]) == code, words
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert words in error


def test_a_damaged_run_is_never_evaluated(
    tables: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, code in (("model/arrays.npz", 65), ("model/model.json", 65), ("config.toml", 65), ("env.json", 65)):
        run = tmp_path / name.replace("/", "-")
        shutil.copytree(tables["words"], run)
        path = run / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
        assert main([str(run)]) == code
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert Path(name).name in error
