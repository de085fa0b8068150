"""Weights of rows and of classes in a run, what they mean in every stage; rows of one group are held out together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

from cases import SERIAL
from commands import evaluated, predicted
from features.row_draws import draw_held_out, group_keys, held_out_limit
from features.source import SourceSpec
from pipeline.datasets.open_data import open_data
from pipeline.estimators import SLKLClassifier
from pipeline.evaluate import main as evaluate
from pipeline.prediction.trained_model import load_model
from pipeline.reporting.run_facts import table
from runs import keeping_statistics, model_bytes, train
from sources import write_npy
from storage.arrays import load
from storage.folder_layouts import RunLayout

WEIGHTED = ("--set", "data.weights=w")
BALANCED = ("--class-weight", "balanced")
ROUNDS = ("--centers", "all", "--set", "centers.working_set=90")
Arrays = dict[str, Any]


def rows_of(n: int, *, classes: bool, seed: int = 0) -> Arrays:
    """Rows with weights 0 to 3; the classes are of unlike sizes."""
    draw = np.random.default_rng(seed)
    X = draw.random((n, 3))
    values = np.sin(6 * X[:, 0]) + X[:, 1] + 0.2 * draw.normal(size=n)
    y = np.digitize(values, np.quantile(values, [0.1, 0.7])) if classes else values
    return {"X": X, "y": y, "w": draw.integers(0, 4, size=n).astype(float)}


def save(path: Path, train_rows: Arrays, test_rows: Arrays) -> Path:
    parts = {"train": train_rows, "test": test_rows}
    np.savez(path, **{f"{name}_{part}": values for part, rows in parts.items() for name, values in rows.items()})
    return path


def cut(rows: Arrays, chosen: Any) -> Arrays:
    return {name: values[chosen] for name, values in rows.items()}


def decisions(run: Path, X: np.ndarray) -> np.ndarray:
    model = load_model(run / "model")
    return model.decision_function(model.features_of(X))


CASES = {
    "one for each class": ("--centers", "60", "--penalty", "max:0.01", *BALANCED),
    "a path": ("--centers", "60", "--penalty", "auto", "--refit", "ridge"),
    "rounds": (*ROUNDS, "--penalty", "max:0.05", "--refit", "ridge"),
    "a selection, regression": ("--centers", "all", "--select", "greedy:15"),
    "moved centers, regression": ("--centers", "100", "--select", "greedy:10", "--move-centers", "3"),
    "defaults": BALANCED,
    "defaults, regression": (),
}
MARKS = dict.fromkeys(("one for each class", "a selection, regression", "defaults"), pytest.mark.ci)


@pytest.mark.parametrize("case", [pytest.param(case, marks=MARKS.get(case, pytest.mark.nightly)) for case in CASES])
def test_a_row_of_weight_0_is_as_if_it_were_not_there(tmp_path, case):
    """Not a candidate, not drawn, held out or counted: the same bytes, also on the fly."""
    rows, test_rows = (rows_of(n, classes="regression" not in case, seed=n) for n in (420, 90))
    train_weights, test_weights = rows["w"] > 0, test_rows["w"] > 0
    rows["y"][~train_weights] = 7  # another class; too large a value
    save(tmp_path / "all.npz", rows, test_rows)
    save(tmp_path / "cut.npz", cut(rows, train_weights), cut(test_rows, test_weights))
    reports = [
        train(tmp_path / name, tmp_path / "f", *CASES[case], *WEIGHTED, *more, dataset=tmp_path / f"{name}.npz")
        for name, more in (("all", ()), ("cut", ("--features-dir", "none")))
    ]
    assert model_bytes(tmp_path / "all") == model_bytes(tmp_path / "cut")
    assert reports[0]["n_train"] == reports[1]["n_train"] == np.count_nonzero(train_weights)
    assert reports[0]["n_test"] == np.count_nonzero(test_weights)
    score = "mse" if "regression" in case else "error_rate"
    assert reports[0][score] == reports[1][score]


def test_test_errors_are_weighted_by_the_file_and_not_by_class(tmp_path, capsys):
    rows, test_rows = (rows_of(n, classes=True, seed=n) for n in (400, 200))
    data = save(tmp_path / "table.npz", rows, test_rows)
    asked = ("--centers", "40", "--select", "greedy:20", *WEIGHTED, *BALANCED)
    report = train(tmp_path / "run", tmp_path / "f", *asked, dataset=data)
    counted = cut(test_rows, test_rows["w"] > 0)
    wrong = decisions(tmp_path / "run", counted["X"]).argmax(axis=1) != counted["y"]
    assert 0 < wrong.sum() == report["n_errors"]
    assert report["error_rate"] == pytest.approx(np.average(wrong, weights=counted["w"]))
    assert report["error_rate"] != pytest.approx(wrong.mean())
    model = load_model(tmp_path / "run" / "model")
    p = model.probabilities_of(model.decision_function(model.features_of(counted["X"])))
    assert report["probabilities"]["log_loss"] == pytest.approx(log_loss(counted["y"], p, sample_weight=counted["w"]))
    shares = np.average(p, axis=0, weights=counted["w"])
    np.testing.assert_allclose(shares, np.bincount(counted["y"], counted["w"]) / counted["w"].sum(), atol=0.1)
    assert report["selection"]["curve"][-1]["test_error"] == pytest.approx(report["error_rate"])
    assert "test error by weight" in "\n".join(table(report))
    assert (report["weighting"]["test_weighted"], report["weighting"]["class_weight"]) == (True, "balanced")
    capsys.readouterr()
    assert evaluated(capsys, tmp_path / "run")["error_rate"] == report["error_rate"]


def test_weights_of_a_csv_are_a_column_by_name_or_place(tmp_path, capsys):
    """Left out of the inputs, also by a model of it, which takes files with the column and without it."""
    rows = rows_of(300, classes=False)
    columns = np.column_stack([rows["X"][:, 0], rows["w"], rows["X"][:, 1:], rows["y"]])
    np.savetxt(tmp_path / "named.csv", columns, delimiter=",", header="a,w,b,c,y", comments="")
    np.savetxt(tmp_path / "bare.csv", columns, delimiter=",")
    np.savetxt(tmp_path / "new.csv", np.delete(columns, 1, axis=1), delimiter=",", header="a,b,c,y", comments="")
    np.savetxt(tmp_path / "last.csv", columns[:, [0, 2, 3, 4, 1]], delimiter=",", header="a,b,c,d,w", comments="")
    asked = ("--centers", "50", "--penalty", "max:0.05")
    for name, weights in (("named", "w"), ("bare", "1"), ("last", "w"), ("bare", "-4")):
        run, file = tmp_path / f"{name}{weights}", tmp_path / f"{name}.csv"
        settings = ("--set", f"data.weights={weights}", *(("--set", "data.header=false") if name == "bare" else ()))
        assert train(run, tmp_path / "f", *asked, *settings, dataset=file)["n_features"] == 3
        np.testing.assert_array_equal(decisions(run, rows["X"]), decisions(tmp_path / "namedw", rows["X"]), strict=True)
        for data in (file, *([tmp_path / "new.csv"] if name == "named" else [])):
            predicted(run, data, tmp_path)
        assert evaluate([str(run), str(file), "--part", "all"]) == 0
        assert "by their weights" in capsys.readouterr().out


def test_no_group_is_split(tmp_path):
    """Of 40 groups of unlike size, in two classes that a plane separates."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 40, 500) ** 2 // 40
    X = rng.normal(size=(40, 3))[groups] + 0.3 * rng.normal(size=(500, 3))
    y = (X[:, 0] + 0.2 * rng.normal(size=500) > 0).astype(int)
    data = tmp_path / "grouped"
    write_npy(data, X=X, y=y, g=groups)
    with keeping_statistics():
        asked = ("--centers", "30", "--penalty", "auto", *SERIAL, "--set", "data.groups=g")
        report = train(tmp_path / "run", tmp_path / "features", *asked, dataset=data)
    source = open_data(SourceSpec(str(data), groups="g"))
    fitted, tested = (groups[source.parts[part].numbers] for part in ("train", "test"))
    assert not np.intersect1d(fitted, tested).size
    assert len(tested) == report["n_test"] == pytest.approx(125, abs=20), "a quarter, but for groups"
    held_out = draw_held_out(0, held_out_limit(0, 0.1, [group_keys(fitted)]), group_keys(fitted))
    n_held_out = report["hold_out"]["n_rows"]
    assert 0 < n_held_out == np.count_nonzero(held_out) < report["n_train"]
    folder = RunLayout(tmp_path / "run").statistics
    parts = [load(folder / f"{part}.npz").arrays["weight_sum"] for part in ("fit", "hold_out")]
    assert [round(float(part)) for part in parts] == [report["n_train"] - n_held_out, n_held_out]


def test_copies_of_rows_change_no_choice():
    """Neither as rows nor as weights, of all rows or of one class, in whatever order."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(130, 2))
    y = (X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=130) > 0).astype(int)
    repeats = np.where(y == 1, 5, 1)
    order = rng.permutation(repeats.sum())
    machine = SLKLClassifier(random_state=0).fit(X, y, sample_weight=repeats)
    copied = SLKLClassifier(random_state=0).fit(np.repeat(X, repeats, 0)[order], np.repeat(y, repeats)[order])
    fresh = rng.normal(size=(500, 2))
    np.testing.assert_allclose(copied.predict_proba(fresh), machine.predict_proba(fresh), atol=1e-5)
    assert copied.sigma2_ == pytest.approx(machine.sigma2_)
