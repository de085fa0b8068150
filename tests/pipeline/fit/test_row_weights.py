"""Weights of rows and of classes in a run: what they mean, in every stage, and where they may not be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

from pipeline.evaluate import main as evaluate
from pipeline.predict import main as predict
from pipeline.prediction.trained_model import load_model
from pipeline.reporting.run_facts import table
from runs import model_bytes, train

WEIGHTED = ("--set", "data.weights=w")
BALANCED = ("--class-weight", "balanced")
EXACT = ("--tol", "1e-10", "--sigma2", "0.5", "--set", "statistics.hold_out=0")
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


@pytest.mark.ci
@pytest.mark.parametrize(
    ("classes", "kernel", "rounds"),
    [(True, "gaussian", True), (False, "gaussian", False), (True, "product-laplace", False)],
)
def test_a_row_of_weight_3_is_three_rows(tmp_path, classes, kernel, rounds):
    """With the same candidates: objectives, certificates, weights, and errors on the test part."""
    rows, test_rows = (rows_of(n, classes=classes, seed=n) for n in (300, 80))
    rows = cut(rows, rows["w"] > 0)
    again = [np.repeat(np.arange(len(one["w"])), one["w"].astype(int)) for one in (rows, test_rows)]
    first = np.unique(again[0], return_index=True)[1]
    order = np.concatenate([first, np.delete(np.arange(len(again[0])), first)])  # the rows themselves, then the others
    once = save(tmp_path / "once.npz", rows, test_rows)
    repeated = [cut(one, places) for one, places in zip((rows, test_rows), again, strict=True)]
    for one in repeated:
        del one["w"]
    many = save(tmp_path / "many.npz", cut(repeated[0], order), repeated[1])
    n = len(rows["w"])
    asked = ["--centers", str(n), *EXACT, "--kernel", kernel]
    asked += [*(BALANCED if classes else ()), "--penalty", "0.3" if classes else "0.05"]
    asked += ["--set", "centers.working_set=100"] if rounds else []
    weighted = train(tmp_path / "weighted", tmp_path / "f", *asked, *WEIGHTED, dataset=once)
    plain = train(tmp_path / "plain", tmp_path / "f", *asked, dataset=many)
    assert (weighted["n_train"], plain["n_train"]) == (n, rows["w"].sum())
    for ours, theirs in zip(weighted["solves"], plain["solves"], strict=True):
        assert ours["objective"] == pytest.approx(theirs["objective"], rel=1e-6)
        assert ours["relative_gap"] <= 1e-10
    np.testing.assert_allclose(*(decisions(tmp_path / name, rows["X"]) for name in ("weighted", "plain")), atol=1e-3)
    for score in ("error_rate",) if classes else ("mse", "r2"):
        assert weighted[score] == pytest.approx(plain[score], rel=1e-3)
    if classes:
        factors = weighted["weighting"]["class_factors"]
        assert factors == pytest.approx(plain["weighting"]["class_factors"], rel=1e-12)
        counts = np.bincount(rows["y"], rows["w"])
        np.testing.assert_allclose(factors * counts, counts.sum() / len(counts))


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
    assert evaluate([str(tmp_path / "run"), "--json"]) == 0
    assert f'"error_rate": {report["error_rate"]!r}' in capsys.readouterr().out
    del test_rows["w"]
    data = save(tmp_path / "half.npz", rows, test_rows)
    report = train(tmp_path / "half", tmp_path / "f", *asked, dataset=data)
    wrong = decisions(tmp_path / "half", test_rows["X"]).argmax(axis=1) != test_rows["y"]
    assert report["error_rate"] == pytest.approx(wrong.mean())
    assert "test error by weight" not in "\n".join(table(report))


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
        run = tmp_path / f"{name}{weights}"
        settings = ("--set", f"data.weights={weights}", *(("--set", "data.header=false") if name == "bare" else ()))
        report = train(run, tmp_path / "f", *asked, *settings, dataset=tmp_path / f"{name}.csv")
        assert report["n_features"] == 3
        np.testing.assert_array_equal(decisions(run, rows["X"]), decisions(tmp_path / "namedw", rows["X"]), strict=True)
        for file in (f"{name}.csv", *(["new.csv"] if name == "named" else [])):
            capsys.readouterr()
            assert predict([str(run), str(tmp_path / file), "--out", str(tmp_path / f"of-{weights}-{file}")]) == 0, file
        assert evaluate([str(run), str(tmp_path / f"{name}.csv"), "--part", "all"]) == 0
        assert "by their weights" in capsys.readouterr().out
