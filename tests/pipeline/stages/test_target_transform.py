"""Outliers among the targets: what a run makes of them, and where the transform goes on."""

from pathlib import Path

import numpy as np
import pytest

from cases import SERIAL
from commands import Capture
from pipeline.prediction.model_folder import load_model
from pipeline.prediction.predictor import load_predictor
from pipeline.report import main as report_on
from pipeline.resize import main as resize
from pipeline.stages.target_facts import facts_of
from runs import report_of, train
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

TRAIN, TEST = slice(0, 800), slice(800, 1100)


def table(n: int = 1100) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, targets of which .3 % are a thousand times too large, and clean ones."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 4))
    clean = 2 + np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n)
    return X, clean * np.where(rng.random(n) < 0.003, 1000.0, 1.0), clean


def trained(folder: Path, X: np.ndarray, y: np.ndarray, *arguments: str, name: str = "run") -> Path:
    data = folder / f"{name}.npz"
    np.savez(data, X_train=X[TRAIN], y_train=y[TRAIN], X_test=X[TEST], y_test=y[TEST])
    train(folder / name, folder / "features", "--centers", "80", *SERIAL, *arguments, dataset=data)
    return folder / name


def r2(run: Path, X: np.ndarray, y: np.ndarray) -> float:
    predicted = load_predictor(run).predict(X[TEST])
    return float(1 - np.mean((predicted - y[TEST]) ** 2) / np.var(y[TEST]))


def test_outliers_do_not_rule_the_fit(tmp_path: Path) -> None:
    """By default, without a penalty; other targets are fitted as they are, by the same bytes as with none."""
    X, y, clean = table()
    asked = ("--sigma2", "2", "--select", "greedy:40")
    plain = trained(tmp_path, X, y, *asked, "--set", "data.target_transform=none", name="plain")
    run = trained(tmp_path, X, y, *asked)
    assert r2(plain, X, clean) < 0
    assert r2(run, X, clean) > 0.9
    found = report_of(run)["target_transform"]
    assert found["kind"] == "rank"
    assert found["hold_out_errors"]["rank"] < 0.3 * found["hold_out_errors"]["none"]
    # Test errors, also those along the selection, are in the units of the targets.
    report, predicted = report_of(run), load_predictor(run).predict(X[TEST])
    assert report["mse"] == pytest.approx(np.mean((predicted - y[TEST]) ** 2))
    assert report["selection"]["curve"][-1]["test_error"] == pytest.approx(report["mse"])
    ordinary = trained(tmp_path, X, clean, *asked, name="ordinary")
    assert report_of(ordinary)["target_transform"] is None
    assert load_model(ordinary / "model").target_transform is None


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["log", "rank", "auto"])
def test_transforms_by_name_and_by_held_out_error(tmp_path: Path, kind: str) -> None:
    X, y, clean = table()
    of_kind = ("--set", f"data.target_transform={kind}")
    assert r2(trained(tmp_path, X, y, *of_kind), X, clean) > 0.8
    ordinary = trained(tmp_path, X, clean, *of_kind, name="ordinary")
    plain = trained(tmp_path, X, clean, "--set", "data.target_transform=none", name="plain")
    assert r2(ordinary, X, clean) > (0.99 if kind == "auto" else 0.95) * r2(plain, X, clean)


def test_a_smaller_model_and_the_page_know_of_the_transform(tmp_path: Path, capsys: Capture) -> None:
    X, y, clean = table()
    run = trained(tmp_path, X, y, "--sigma2", "2", "--select", "greedy:40", "--set", "data.target_transform=rank")
    whole = load_model(run / "model")
    capsys.readouterr()
    assert resize([str(run), "--size", "25", "--out", str(tmp_path / "cut")]) == 0
    assert "of transformed targets" in capsys.readouterr().out
    assert load_model(tmp_path / "cut").target_transform == whole.target_transform
    assert r2(tmp_path / "cut", X, clean) > 0.8
    assert report_on([str(run)]) == 0
    assert "targets: rank transform" in (run / "report.html").read_text()


@pytest.mark.ci
def test_rows_that_are_added_are_transformed_as_the_first(tmp_path: Path) -> None:
    X, y, _ = table()
    asked = ("--sigma2", "2", "--penalty", "0.01", "--set", "data.target_transform=log")
    run = trained(tmp_path, X, y, *asked)
    np.savez(tmp_path / "more.npz", X=X[TEST], y=1e5 * y[TEST])
    more = ("--add-rows", str(tmp_path / "more.npz"), "--init-from", str(run), *SERIAL)
    train(tmp_path / "more", tmp_path / "features", *more, dataset=tmp_path / "run.npz")
    first, second = (facts_of(read_arrays(RunLayout(tmp_path / name).centers)) for name in ("run", "more"))
    assert first.transform is not None
    assert second.transform == first.transform
    assert (second.mean, len(second.largest)) == (first.mean, 2)
    scores = first.transform.apply(y[TRAIN])
    assert first.mean == pytest.approx(scores.mean())
    assert load_predictor(tmp_path / "more").predict(X[TRAIN]).max() <= y[TRAIN].max()


def test_what_makes_no_sense_is_refused(tables: Path, tmp_path: Path, capsys: Capture) -> None:
    asked = ("--centers", "60", "--set", "data.target_transform=rank")
    train(tmp_path / "run", tmp_path / "features", *asked, dataset=tables / "classes.npz", code=2)
    assert "is no regression" in capsys.readouterr().err
    asked = ("--centers", "60", "--set", "data.target_transform=auto", "--set", "statistics.hold_out=0")
    train(tmp_path / "run", tmp_path / "features", *asked, dataset=tables / "values.npz", code=2)
    assert "needs held-out rows" in capsys.readouterr().err
