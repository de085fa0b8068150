"""Tables of words, gaps and columns that are not wanted, from the commands; test files of their own."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest

from features.errors import DataError
from pipeline import evaluate, export, predict, report, verify
from pipeline import train as training
from pipeline.estimators import SLKLClassifier
from pipeline.prediction.model_folder import load_model, save_model
from pipeline.prediction.onnx_graph import input_name
from pipeline.prediction.predictor import load_predictor
from pipeline.prediction.trained_model import ModelFormatError
from runs import TrainedRuns, report_of

NAMES = ["id", "color", "age", "size", "ok"]
RNG = np.random.default_rng(5)
ENCODED = ("--set", "data.categorical=onehot", "--set", "data.missing=median", "--set", "data.drop=id")
SERIAL = ("--centers", "100", "--penalty", "1", "--intercept", "--scheduler", "serial")


def example(k: int) -> list[str]:
    color, age = str(RNG.choice(["red", "green", "blue, dark"])), RNG.normal(40, 10)
    ok = "yes" if (color == "red") != (age > 40) else "no"
    gap = RNG.random() < 0.1
    return [str(k), color, "" if gap else f"{age:.2f}", str(RNG.choice(list("SML"))), ok]


ROWS = [example(k) for k in range(500)]


def write(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], separator: str = ",") -> Path:
    """Write some columns of rows, in their order there."""
    places = [NAMES.index(name) for name in names]
    with path.open("w", newline="") as stream:
        csv.writer(stream, delimiter=separator).writerows([names, *([row[k] for k in places] for row in rows)])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 400 training rows, and 100 test rows whose columns are in another order, between semicolons."""
    folder = tmp_path_factory.mktemp("encoded")
    write(folder / "train.csv", NAMES, ROWS[:400])
    write(folder / "test.csv", NAMES[::-1], ROWS[400:], ";")
    return folder


@pytest.fixture
def run(place: Path, finished_run: TrainedRuns) -> Path:
    return finished_run(*ENCODED, *SERIAL, "--test", str(place / "test.csv"), dataset=place / "train.csv")


def predicted(model: Path, data: Path, out: Path) -> list[list[str]]:
    assert predict.main([str(model), str(data), "--out", str(out), "--force", "-q"]) == 0
    with out.open(newline="") as stream:
        return list(csv.reader(stream))


def test_a_test_file_is_the_test_part(place, run, tmp_path, capsys):
    found = report_of(run)
    assert (found["n_train"], found["n_test"]) == (400, 100)
    assert found["error_rate"] < 0.15
    errors = []
    for data in ([], [place / "test.csv"], [write(tmp_path / "t.csv", ["size", "age", "ok", "color"], ROWS[400:])]):
        assert evaluate.main([str(run), *map(str, data), "--json"]) == 0
        errors.append(json.loads(capsys.readouterr().out)["error_rate"])
    assert errors == [found["error_rate"]] * 3
    told = [predicted(run, path, tmp_path / "out.csv") for path in (place / "test.csv", tmp_path / "t.csv")]
    assert told[0] == told[1]
    assert verify.main([str(run)]) == 0
    assert report.main([str(run), "--out", str(tmp_path / "report.html")]) == 0


def test_what_no_training_row_had(run, tmp_path, capsys):
    rows = [["1", "purple", "30", "S", "yes"], ["2", "red", "?", "XL", "no"], ["3", "", "NaN", "L", "no"]]
    table = predicted(run, write(tmp_path / "new.csv", NAMES, rows), tmp_path / "out.csv")
    assert len(table) == 4
    assert "categories" not in capsys.readouterr().out
    assert evaluate.main([str(run), str(tmp_path / "new.csv"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["warnings"]
    assert "cells with a category that no training row has: color (1), size (1); they count as none" in told
    model = load_model(run / "model")
    median = model.table_columns.encoding.columns[1].fill
    assert model.table_columns.input_names == (
        *("color=blue, dark", "color=green", "color=red", "age", "age is missing"),
        *("size=L", "size=M", "size=S"),
    )
    inputs = np.array([[0, 0, 0, 30, 0, 0, 0, 1], [0, 0, 1, median, 1, 0, 0, 0], [0, 0, 0, median, 1, 1, 0, 0]])
    decision = model.decision_function(model.features_of(inputs.astype(np.float64)))[:, 0]
    assert [float(row[2]) for row in table[1:]] == pytest.approx(decision.tolist(), rel=1e-12)
    for cell in ("old", "inf"):
        bad = write(tmp_path / "bad.csv", ["color", "age", "size"], [["0", "red", cell, "S", "yes"]])
        assert predict.main([str(run), str(bad), "--out", str(tmp_path / "bad-out.csv")]) == 65
        assert f"column age is '{cell}'; a finite number is needed\n" in capsys.readouterr().err


def test_the_model_in_python_takes_the_cells_of_the_file(place, run, tmp_path):
    model, gap = load_predictor(run), {"": None, "NaN": float("nan")}
    table = predicted(run, place / "test.csv", tmp_path / "out.csv")
    rows = [[row[1], gap[row[2]] if row[2] in gap else np.float64(row[2]), row[3]] for row in ROWS[400:]]
    assert any(row[1] is None for row in rows)
    assert model.decision_function(rows)[:, 0].tolist() == [float(row[2]) for row in table[1:]]
    as_text = [[color, age or None, size] for _, color, age, size, _ in ROWS[400:]]
    as_floats = [[color, float(age) if age else np.nan, size] for color, age, size in as_text]
    for cells in (rows, np.array(rows, dtype=object), as_text, np.array(as_floats, dtype=object)):
        assert model.predict(cells).tolist() == [row[1] for row in table[1:]]
    assert model.predict(np.zeros((0, 3))).shape == (0,)
    with pytest.warns(UserWarning, match=r"no training row has: color \(2\)"):
        model.predict([["pink", 40, "S"], ["", 40, "S"], ["pink", "", "L"]])
    for width in (7, 8):
        with pytest.raises(DataError, match="the model wants cells of its columns: color, age, size"):
            model.predict(np.zeros((2, width)))
    frame = pandas.DataFrame(rows, columns=["color", "age", "size"])
    assert model.predict(frame.assign(id=0)[["size", "id", "age", "color"]]).tolist() == model.predict(rows).tolist()
    assert model.predict(frame.rename(columns=" {} ".format)).tolist() == model.predict(rows).tolist()
    assert model.predict(frame.iloc[:0]).shape == (0,)
    mixed = frame.assign(size=[5 if k == 0 else size for k, size in enumerate(frame["size"])]).astype(object)
    with pytest.warns(UserWarning, match=r"no training row has: size \(1\)"):
        assert model.predict(mixed).tolist()[1:] == model.predict(rows).tolist()[1:]


def test_an_estimator_and_a_graph_start_from_encoded_numbers(run, tmp_path, capsys):
    onnx, reference = pytest.importorskip("onnx"), pytest.importorskip("onnx.reference")
    assert export.main([str(run), "--out", str(tmp_path / "model.onnx")]) == 0
    names = ", ".join(load_model(run / "model").table_columns.input_names)  # type: ignore[union-attr]
    assert capsys.readouterr().out.splitlines()[1] == f"takes cells that are encoded, as numbers: {names}"
    graph = reference.ReferenceEvaluator(onnx.load(tmp_path / "model.onnx"))
    inputs = np.array([[0, 0, 1, 30.0, 0, 1, 0, 0], [0, 1, 0, 45.0, 1, 0, 0, 1]])
    assert input_name(load_model(run / "model")) == "encoded"
    decision = graph.run(["decision"], {"encoded": inputs})[0]
    loaded = SLKLClassifier.load(run)
    assert ", ".join(loaded.feature_names_in_) == names
    with pytest.warns(UserWarning, match="valid feature names"):
        assert loaded.decision_function(inputs) == pytest.approx(decision[:, 0], rel=1e-5, abs=1e-6)


def test_a_damaged_encoding_is_refused(run, tmp_path):
    model = load_model(run / "model")
    with pytest.raises(ModelFormatError, match="its columns make 8 inputs, the model has 5"):
        save_model(tmp_path / "bad", replace(model, input_shape=(5,)))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["sinc", "--test", "x.csv"], 2, "--test has no effect on sinc"),
        (["sinc", "--set", "data.missing=median"], 2, "data.missing has no effect on sinc"),
        (["TABLE", *ENCODED, "--test", "none.csv"], 66, "none.csv: no such file"),
        (["TABLE", *ENCODED, "--test", "model.npz"], 2, "file type not known"),
        (["TABLE", *ENCODED, "--test", "TABLE", "--set", "data.test_fraction=0.5"], 2, "test_fraction has no effect"),
        (["TABLE", "--set", "data.columns=a,a"], 2, "must be names of columns, each once"),
    ],
)
def test_settings_that_make_no_sense_are_refused(place, capsys, arguments, code, words):
    typed = [str(place / "train.csv") if word == "TABLE" else word for word in arguments]
    assert training.main([*typed, "--dry-run"]) == code
    assert words in capsys.readouterr().err
