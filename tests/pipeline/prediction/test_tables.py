"""Own tables from the commands: columns by name, words and gaps, test files, rows and models far from right."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from commands import evaluated, predicted
from features.errors import DataError
from pipeline import evaluate, predict, report
from pipeline import train as training
from pipeline.config.settings import worded
from pipeline.prediction.predictor import load_predictor
from pipeline.prediction.trained_model import load_model, save_model
from runs import TrainedRuns, report_of, train_beside

N = 120
X = np.random.default_rng(0).standard_normal((N, 3)) * [1, 10, 100] + [0, 5, -300]
TABLE = pandas.DataFrame(X, columns=["alpha", "beta", "2019"]).assign(price=3 * X[:, 0] + X[:, 1])
OPTIONS = ("--penalty", "100", "--centers", "40", "--scheduler", "serial")


def write(path: Path, rows: pandas.DataFrame, **options: Any) -> Path:
    rows.to_csv(path, index=False, **options)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a header, one of whose names is a number."""
    return write(tmp_path_factory.mktemp("table") / "prices.csv", TABLE)


@pytest.fixture
def prices(data: Path, finished_run: TrainedRuns) -> Path:
    return finished_run("--target", "price", *OPTIONS, dataset=data)


def test_inputs_are_matched_by_name(data, prices, tmp_path, capsys):
    """A column that the model does not know may be there."""
    expected = evaluated(capsys, prices / "model", data)
    assert expected["r2"] > 0.5
    for order in ([1, 0, 2, 3], [3, 2, 1, 0]):
        assert evaluated(capsys, prices / "model", write(tmp_path / "other.csv", TABLE.iloc[:, order])) == expected
    other_target = TABLE.rename(columns={"price": "cost"}).iloc[:, [3, 1, 0, 2]]
    path = write(tmp_path / "cost.csv", other_target)
    assert evaluated(capsys, prices / "model", path, "--target", "cost") == expected
    other_target.to_parquet(tmp_path / "cost.parquet")
    without = write(tmp_path / "without.csv", TABLE.iloc[:, [2, 0, 1]])
    told = [predicted(prices, path, tmp_path) for path in (data, without, tmp_path / "cost.parquet")]
    assert [one.equals(told[0]) for one in told] == [True] * 3
    assert len(told[0]) == N


def test_a_table_without_a_header_is_read_so_again(tmp_path, capsys):
    """No row is lost, and the target is found again where it was in training."""
    rows = TABLE.iloc[:, [3, 0, 1, 2]].set_axis(["f0", "f1", "f2", "f3"], axis=1)
    data = write(tmp_path / "data.csv", rows, header=False)
    no_header = ("--set", "data.header=false", "--target", "0")
    assert training.main([str(data), "--run-dir", str(tmp_path / "refused")]) == 65
    assert "train with --set data.header=false" in capsys.readouterr().err
    run = train_beside(tmp_path, "run", data, *no_header, *OPTIONS, quiet=False)
    assert "target: f0" in capsys.readouterr().err
    found = report_of(run)
    assert (found["n_train"] + found["n_test"], found["n_features"]) == (N, 3)
    expected = evaluated(capsys, run / "model", data)
    assert expected["r2"] > 0.5
    assert expected["n_rows"] == N
    rows[["f2", "f0", "f1", "f3"]].to_parquet(tmp_path / "data.parquet")
    found = evaluated(capsys, run / "model", tmp_path / "data.parquet")
    assert (found["r2"], found["n_rows"]) == (expected["r2"], N)


@pytest.mark.parametrize("intercept", [0.0, 2.5])
def test_rows_far_from_every_center_are_told_of(data, prices, tmp_path, capsys, intercept):
    """Other units: almost every row is far, and gets nothing but the intercept."""
    run = load_model(prices / "model")
    save_model(tmp_path / "model", replace(run, intercept=np.array([intercept])))
    far = write(tmp_path / "far.csv", TABLE.assign(alpha=X[:, 0] * np.where(np.arange(N) < 100, 1e3, 1.0)))
    found = {}
    for name, rows in (("near", data), ("far", far)):
        found[name] = evaluated(capsys, tmp_path / "model", rows)
        assert evaluate.main([str(tmp_path / "model"), str(rows)]) == 0
        assert ("warning: " in capsys.readouterr().err) == (name == "far")
        for out in ("-", str(tmp_path / f"{name}-out.csv")):
            assert predict.main([str(tmp_path / "model"), str(rows), "--out", out]) == 0
            assert ("warning: " in capsys.readouterr().err) == (name == "far")
    n_far = found["far"]["n_far"]
    assert found["near"]["n_far"] < 10
    assert found["near"]["warnings"] == []
    assert 95 <= n_far <= 110
    (line,) = found["far"]["warnings"]
    assert f"{n_far} of {N} rows are far from every center" in line
    assert ("the intercept" in line) == (intercept != 0)
    decision = pandas.read_csv(tmp_path / "far-out.csv")["decision"]
    assert np.count_nonzero(np.abs(decision - intercept) < 0.1) >= n_far


def test_a_model_without_centers_is_told_of(data, tmp_path, capsys):
    """Its problem is solved to the last digit, and it is of no use."""
    options = ("--target", "price", "--centers", "20", "--penalty", "1e9", "--scheduler", "serial")
    run = train_beside(tmp_path, "empty", data, *options)
    assert capsys.readouterr().err.startswith("WARNING: the model has no centers")
    found = report_of(run)
    assert (found["converged"], found["model_n_centers"], len(found["warnings"])) == (True, 0, 1)
    assert "the model has no centers" in report.write(run, None).read_text()
    assert training.main([str(data), "--run-dir", str(run), "--resume", "auto"]) == 0
    assert "WARNING: the model has no centers" in capsys.readouterr().out
    assert predict.main([str(run), str(data), "--out", "-"]) == 0
    assert "every row gets the same, the intercept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "words"),
    [("regression", "no better on the test part than its mean (R2 -"), ("multiclass", "than 0 for every row (")],
)
def test_a_model_no_better_than_a_constant_is_told_of(tmp_path, capsys, task, words):
    """Targets that the inputs say nothing about, fitted exactly; two classes in three are one."""
    rng = np.random.default_rng(3)
    kinds = np.where(rng.random(N) < 0.8, 0, rng.integers(1, 3, N))
    data = write(tmp_path / "noise.csv", TABLE.assign(price=kinds))
    options = ("--sigma2", "0.05", "--centers", "all", "--penalty", "1e-6", "--set", f"data.task={task}")
    run = train_beside(tmp_path, "noise", data, *options, "--scheduler", "serial")
    found = report_of(run)
    assert found["converged"]
    assert found["n_centers"] == found["n_train"]
    (line,) = found["warnings"]
    assert words in line
    assert line.endswith("try `kernel.sigma2=auto`, `solver.penalty=auto`")
    assert f"WARNING: {worded(line)}" in capsys.readouterr().err
    if task == "multiclass":
        counts = np.sum(found["confusion"], axis=1)
        assert found["n_errors"] >= counts.sum() - counts.max()
    assert evaluated(capsys, run)["error_rate"] == found["error_rate"]


def test_where_a_rare_class_is_never_predicted_weights_and_the_area_under_the_curve_are_named(tmp_path):
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(600, 2))
    rare = np.where(Z[:, 0] + 2 * rng.normal(size=600) > 4.4, "yes", "no")
    data = write(tmp_path / "rare.csv", pandas.DataFrame(Z, columns=["a", "b"]).assign(y=rare))
    found = report_of(train_beside(tmp_path, "rare", data, "--sigma2", "8", "--centers", "20"))
    (line,) = found["warnings"]
    assert found["roc_auc"] > 0.6
    assert "no better on the test part than 'no' for every row (" in line
    assert f"its ROC AUC is {found['roc_auc']:.3g}" in line
    assert "`data.class_weight=balanced`" in line


CELLS = ["color", "age", "size"]
DRAW = np.random.default_rng(5)
PEOPLE = pandas.DataFrame({"id": np.arange(500), "color": DRAW.choice(["red", "green", "blue, dark"], 500)})
PEOPLE["age"], PEOPLE["size"] = DRAW.normal(40, 10, 500).round(2), DRAW.choice(list("SML"), 500)
PEOPLE["ok"] = np.where((PEOPLE["color"] == "red") != (PEOPLE["age"] > 40), "yes", "no")
PEOPLE.loc[DRAW.random(500) < 0.1, "age"] = np.nan
ENCODED = ("--set", "data.categorical=onehot", "--set", "data.missing=median", "--set", "data.drop=id")
SERIAL = ("--centers", "100", "--penalty", "1", "--scheduler", "serial")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 400 training rows, and 100 test rows whose columns are in another order, between semicolons."""
    folder = tmp_path_factory.mktemp("encoded")
    write(folder / "train.csv", PEOPLE[:400])
    write(folder / "test.csv", PEOPLE.iloc[400:, ::-1], sep=";")
    return folder


@pytest.fixture
def run(place: Path, finished_run: TrainedRuns) -> Path:
    return finished_run(*ENCODED, *SERIAL, "--test", str(place / "test.csv"), dataset=place / "train.csv")


def test_a_test_file_is_the_test_part(place, run, tmp_path, capsys):
    found = report_of(run)
    assert (found["n_train"], found["n_test"]) == (400, 100)
    assert found["error_rate"] < 0.15
    fewer = write(tmp_path / "t.csv", PEOPLE[400:][["size", "age", "ok", "color"]])
    for data in ([], [place / "test.csv"], [fewer]):
        assert evaluated(capsys, run, *data)["error_rate"] == found["error_rate"]
    assert report.main([str(run), "--out", str(tmp_path / "report.html")]) == 0


def test_what_no_training_row_had(run, tmp_path, capsys):
    rows = [["1", "purple", "30", "S", "yes"], ["2", "red", "?", "XL", "no"], ["3", "", "NaN", "L", "no"]]
    new = write(tmp_path / "new.csv", pandas.DataFrame(rows, columns=[*PEOPLE]))
    table = predicted(run, new, tmp_path)
    assert "categories" not in capsys.readouterr().out
    told = evaluated(capsys, run, new)["warnings"]
    assert "cells with a category that no training row has: color (1), size (1); they count as none" in told
    model = load_model(run / "model")
    median = model.table_columns.encoding.columns[1].fill
    assert model.table_columns.input_names == (
        *("color=blue, dark", "color=green", "color=red", "age", "age is missing"),
        *("size=L", "size=M", "size=S"),
    )
    inputs = np.array([[0, 0, 0, 30, 0, 0, 0, 1], [0, 0, 1, median, 1, 0, 0, 0], [0, 0, 0, median, 1, 1, 0, 0]])
    decision = model.decision_function(model.features_of(inputs.astype(np.float64)))[:, 0]
    assert table["decision"].tolist() == pytest.approx(decision.tolist(), rel=1e-12)
    for cell in ("old", "inf"):
        bad = write(tmp_path / "bad.csv", pandas.DataFrame([["red", cell, "S"]], columns=CELLS))
        assert predict.main([str(run), str(bad), "--out", str(tmp_path / "bad-out.csv")]) == 65
        assert f"column age is '{cell}'; a finite number is needed\n" in capsys.readouterr().err


def test_the_model_in_python_takes_numbers_alone(run, prices):
    rows = pandas.DataFrame({"color": ["red"], "age": [40.0], "size": ["S"]})
    for cells in (rows, rows.to_numpy(), np.zeros((2, 8))):
        with pytest.raises(DataError, match=r"words or missing cells; write the rows to a \.parquet or"):
            load_predictor(run).predict(cells)
    with pytest.raises(DataError, match=r"X: inputs have shape \(4,\) each, the model wants \(3,\)"):
        load_predictor(prices).predict(np.zeros((2, 4)))
