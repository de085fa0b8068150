"""Own tables from the command: header and target, columns by name, rows and models that are far from right."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import evaluate, predict, report
from pipeline import train as training
from pipeline.prediction.model_folder import load_model, save_model
from pipeline.prediction.trained_model import ModelFormatError
from runs import TrainedRuns, report_of, train_beside

NAMES = ["alpha", "beta", "2019", "price"]
N = 120
X = np.random.default_rng(0).standard_normal((N, 3)) * [1, 10, 100] + [0, 5, -300]
ROWS = [[*map(repr, row), repr(y)] for row, y in zip(X.tolist(), (3 * X[:, 0] + X[:, 1]).tolist(), strict=True)]


def write(path: Path, rows: list[list[str]], order: list[int] | None = None) -> Path:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([[row[k] for k in order or range(len(row))] for row in rows])
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a header, one of whose names is a number."""
    return write(tmp_path_factory.mktemp("table") / "prices.csv", [NAMES, *ROWS])


@pytest.fixture
def prices(data: Path, finished_run: TrainedRuns) -> Path:
    options = ("--target", "price", "--penalty", "100", "--centers", "40", "--scheduler", "serial")
    return finished_run(*options, dataset=data)


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert evaluate.main([*map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {key: value for key, value in found.items() if key not in ("data", "seconds", "rows_per_second")}


def test_inputs_are_matched_by_name(data, prices, tmp_path, capsys):
    table = [NAMES, *ROWS]
    expected = evaluated(capsys, prices / "model", data)
    assert expected["r2"] > 0.5
    for order in ([1, 0, 2, 3], [3, 2, 1, 0]):
        assert evaluated(capsys, prices / "model", write(tmp_path / "other.csv", table, order)) == expected
    other_target = [["alpha", "beta", "2019", "cost"], *ROWS]
    path = write(tmp_path / "cost.csv", other_target, [3, 1, 0, 2])
    assert evaluated(capsys, prices / "model", path, "--target", "cost") == expected
    predictions = []
    for k, (rows, order) in enumerate([(table, [0, 1, 2, 3]), (table, [2, 0, 1]), (ROWS, [0, 1, 2]), (ROWS, None)]):
        one, out = write(tmp_path / f"{k}.csv", rows, order), tmp_path / f"{k}-out.csv"
        assert predict.main([str(prices / "model"), str(one), "--out", str(out), "-q"]) == 0
        predictions.append(out.read_bytes())
    assert len(set(predictions)) == 1


def renamed(**names: str) -> list[list[str]]:
    return [[names.get(name, name) for name in NAMES], *ROWS]


BAD: dict[str, tuple[list[list[str]], list[int] | None, str]] = {
    "missing": (renamed(), [0, 2, 3], "lacks the column 'beta';"),
    "another": (renamed(beta="gamma"), None, "lacks the column 'beta' and has the column 'gamma', which the model"),
    "more": ([[*row, "1"] for row in renamed()], None, "has the column '1', which the model does not know;"),
    "another target": (renamed(price="cost"), None, "has the column 'cost', which the model does not know (--target c"),
    "twice": ([[*row, row[0]] for row in renamed()], None, "names repeat"),
    "too wide without names": ([[*row, "1"] for row in ROWS], None, "has 5 columns"),
    "too narrow without names": (ROWS, [0, 1], "has 2 columns"),
}


@pytest.mark.parametrize("case", BAD)
def test_columns_that_do_not_fit_are_refused_by_name(case, prices, tmp_path, capsys):
    rows, order, words = BAD[case]
    data = write(tmp_path / "data.csv", rows, order)
    assert predict.main([str(prices / "model"), str(data), "--out", str(tmp_path / "out.csv")]) == 65
    assert evaluate.main([str(prices / "model"), str(data)]) == 65
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(words in line for line in told)


def rewritten(place: Path, folder: Path, **columns: Any) -> Path:
    """The model of prices with other columns, as a run on another header would have them."""
    model = load_model(place / "model")
    save_model(folder, replace(model, table_columns=replace(model.table_columns, **columns)))
    return folder


def test_a_model_without_names_takes_columns_as_they_stand(prices, tmp_path, capsys):
    """Models that were written before they held names."""
    description = json.loads((prices / "model" / "model.json").read_text())
    assert description["columns"] == {"inputs": NAMES[:3], "target": "price", "target_index": 3}
    save_model(tmp_path / "old", replace(load_model(prices / "model"), table_columns=None))
    assert "columns" not in json.loads((tmp_path / "old" / "model.json").read_text())
    header = [["a", "b", "c", "y"]]
    straight = write(tmp_path / "straight.csv", header + ROWS)
    swapped = write(tmp_path / "swapped.csv", header + ROWS, [1, 0, 2, 3])
    bare = write(tmp_path / "bare.csv", ROWS)
    same = evaluated(capsys, prices / "model", bare)["r2"]
    assert evaluated(capsys, tmp_path / "old", straight)["r2"] == same
    assert evaluated(capsys, tmp_path / "old", swapped)["r2"] < 0.1
    for change in ({"inputs": ("a",)}, {"target_index": 4}):
        with pytest.raises(ModelFormatError, match="columns are"):
            rewritten(prices, tmp_path / "bad", **change)


@pytest.mark.parametrize(
    ("header", "named", "words"),
    [
        ("2019,2020,2021,price", True, "lacks"),
        ("1,2,3,y", True, "lacks"),
        ("1,2,3,cost", True, "--target cost"),
        ("2019,2020,2021,price", False, "price"),
        ("1,2,3,y", False, None),  # a name of a target
        ("1,2,3,cost", False, "cost"),
    ],
)
def test_a_header_of_years_is_no_row(header, named, words, prices, tmp_path, capsys):
    """Nor where the model was trained without a header."""
    model = prices / "model" if named else rewritten(prices, tmp_path / "model", inputs=(), target=None)
    data = write(tmp_path / "data.csv", [header.split(","), *ROWS])
    for extra in ([], ["-q"]):
        assert predict.main([str(model), str(data), "--out", "-", *extra]) == (0 if words is None else 65)
        told = capsys.readouterr()
        assert len(told.err.splitlines()) == (0 if words is None and extra else 1)
        assert ("header: yes" in told.err) == (words is None and not extra)
        assert words is None or words in told.err
        assert words is not None or len(told.out.splitlines()) == N + 1


def test_a_row_of_numbers_is_no_header_in_another_order(prices, tmp_path, capsys):
    """The names of the inputs are 0, 1 and 2."""
    model = rewritten(prices, tmp_path / "model", inputs=("0", "1", "2"), target="y")
    for first, header in (
        (["1", "0", "2"], False),
        (["0", "1", "2"], True),
        (["1", "0", "2", "5"], False),
        (["0", "1", "2", "y"], True),
        (["y", "2", "1", "0"], True),
    ):
        data = write(tmp_path / "data.csv", [first, *(row[: len(first)] for row in ROWS)])
        assert predict.main([str(model), str(data), "--out", str(tmp_path / "out.csv"), "--force"]) == 0
        said = f"{N + (not header)} rows of data.csv, header: {'yes' if header else 'no'};"
        assert said in capsys.readouterr().out
    data = write(tmp_path / "data.csv", [["1", "0", "2", "5"], *ROWS])
    assert evaluated(capsys, model, data)["header"] is False
    assert evaluate.main([str(model), str(data)]) == 0
    assert f"{N + 1} rows, header: no, " in capsys.readouterr().out


def test_a_label_that_is_called_like_the_target_is_a_row(tmp_path, capsys):
    """As a class, or as a word that stands for one where one class is set against the rest."""
    rows = [[*row[:3], "ny"[k % 2]] for k, row in enumerate(ROWS)][1:]
    data = write(tmp_path / "letters-y.csv", rows)
    for name, more in (("words", ()), ("positive", ("--set", "data.positive=y"))):
        run = train_beside(tmp_path, name, data, "--centers", "20", "--penalty", "1", "--scheduler", "serial", *more)
        assert predict.main([str(run / "model"), str(data), "--out", str(tmp_path / f"{name}.csv")]) == 0
        assert f"{N - 1} rows of letters-y.csv, header: no;" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("header", "order", "target", "words"),
    [
        (["a", "y", "c", "c"], [0, 1, 2, 3], "3", "names repeat in the header"),
        (None, [3, 0, 1, 2], "0", "header: no, target: column 0 of 0 to 3"),
    ],
)
def test_columns_without_names_are_matched_by_position(header, order, target, words, tmp_path, capsys):
    """No row is lost, and the target is found again where it was in training."""
    rows = [[row[k] for k in order] for row in ROWS]
    data = write(tmp_path / "data.csv", [header, *rows] if header else rows)
    options = ("--target", target, "--penalty", "100", "--centers", "40", "--scheduler", "serial")
    run = train_beside(tmp_path, "run", data, *options, quiet=False)
    assert words in capsys.readouterr().err
    found = report_of(run)
    assert (found["n_train"] + found["n_test"], found["n_features"]) == (N, 3)
    expected = evaluated(capsys, run / "model", data)
    assert expected["r2"] > 0.5
    assert (expected["n_rows"], expected["header"]) == (N, header is not None)
    assert evaluated(capsys, run / "model", write(tmp_path / "bare.csv", rows)) == expected | {"header": False}


@pytest.mark.parametrize("intercept", [0.0, 2.5])
def test_rows_far_from_every_center_are_told_of(prices, tmp_path, capsys, intercept):
    """Other units: almost every row is far, and gets nothing but the intercept."""
    run = load_model(prices / "model")
    save_model(tmp_path / "model", replace(run, intercept=np.array([intercept])))
    near = write(tmp_path / "near.csv", ROWS)
    far = write(tmp_path / "far.csv", [[f"{row[0]}e3", *row[1:]] for row in ROWS[:100]] + ROWS[100:])
    found = {}
    for name, data in (("near", near), ("far", far)):
        found[name] = evaluated(capsys, tmp_path / "model", data)
        assert evaluate.main([str(tmp_path / "model"), str(data)]) == 0
        assert ("warning: " in capsys.readouterr().err) == (name == "far")
        for out in ("-", str(tmp_path / f"{name}-out.csv")):
            assert predict.main([str(tmp_path / "model"), str(data), "--out", out]) == 0
            assert ("warning: " in capsys.readouterr().err) == (name == "far")
    n_far = found["far"]["n_far"]
    assert found["near"]["n_far"] < 10
    assert found["near"]["warnings"] == []
    assert 95 <= n_far <= 110
    (line,) = found["far"]["warnings"]
    assert f"{n_far} of {N} rows are far from every center" in line
    assert ("the intercept" in line, "--intercept" in line) == (intercept != 0, intercept == 0)
    decision = np.array([float(row.split(",")[2]) for row in (tmp_path / "far-out.csv").read_text().splitlines()[1:]])
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
    data = write(tmp_path / "noise.csv", [[*row[:3], str(k)] for row, k in zip(ROWS, kinds.tolist(), strict=True)])
    options = ("--sigma2", "0.05", "--centers", "all", "--penalty", "1e-6", "--set", f"data.task={task}")
    run = train_beside(tmp_path, "noise", data, *options, "--scheduler", "serial")
    found = report_of(run)
    assert found["converged"]
    assert found["n_centers"] == found["n_train"]
    (line,) = found["warnings"]
    assert words in line
    assert line.endswith("try --sigma2 auto, --penalty auto")
    assert f"WARNING: {line}" in capsys.readouterr().err
    if task == "multiclass":
        counts = np.sum(found["confusion"], axis=1)
        assert found["n_errors"] >= counts.sum() - counts.max()
    assert evaluated(capsys, run)["error_rate"] == found["error_rate"]
