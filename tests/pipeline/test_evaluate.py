"""The evaluate command: the same errors as the run's report, on any labelled data, for people and for programs."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from commands import FEWER, TARGETS, X, evaluated, the_error
from pipeline.evaluate import main
from pipeline.prediction import predictor as prediction
from pipeline.prediction import ranking
from pipeline.prediction.trained_model import load_model
from runs import TrainedRuns, report_of, train_beside
from sources import write_npy

N = len(X)


@pytest.fixture(scope="module")
def digits(finished_run: TrainedRuns) -> Path:
    """A run on some of the digits, ten classes."""
    return finished_run("--centers", "40", "--sigma2", "2", "--penalty", "0.1", *FEWER, dataset="digits")


def test_a_run_agrees_with_its_report(digits, rings, capsys):
    for run in (digits, *rings.values()):
        found, report = evaluated(capsys, run), report_of(run)
        assert (found["part"], found["n_rows"]) == ("test", report["n_test"])
        for key in ("task", "error_rate", "n_errors", "confusion", "baseline", "by_class"):
            assert found[key] == report[key]
        assert found["n_centers"] == report["model_n_centers"]
        if report["probabilities"]:
            for key in ("log_loss", "brier_score", "calibration_error"):
                assert found["probabilities"][key] == pytest.approx(report["probabilities"][key], rel=1e-3)
        else:
            assert found["probabilities"] is None
        for key in ("roc_auc", "average_precision"):
            assert found[key] == (None if report[key] is None else pytest.approx(report[key], abs=1e-3))
        assert (found["roc_auc"] is None) == (found["task"] == "regression")
        for key in ("mse", "rmse", "mae", "r2"):
            assert found[key] == (None if report[key] is None else pytest.approx(report[key], rel=1e-5))


def test_of_many_rows_some_tell_the_ranking(rings, ring_data, capsys, monkeypatch):
    """Those that are drawn by their numbers, in blocks of any size."""
    monkeypatch.setattr(ranking, "MOST_KEPT", 240)
    monkeypatch.setattr(prediction, "MOST_BLOCK_ROWS", 11)
    folder = rings["binary"] / "model"
    found, model = evaluated(capsys, folder, ring_data["binary"]), load_model(folder)
    kept = ranking.kept_rows(240 / (3 * N), 0, N)
    assert 0.3 * N < np.count_nonzero(kept) < 0.7 * N
    decision = model.decision_function(model.features_of(X[kept]))[:, 0]
    assert found["roc_auc"] == pytest.approx(roc_auc_score(TARGETS["binary"][kept], decision), abs=1e-6)
    assert found["n_rows"] == N


def test_the_own_data_by_name_are_split_as_the_run_split_them(digits, rings, ring_data, capsys):
    """Another seed would split other rows."""
    assert evaluated(capsys, digits, "digits")["confusion"] == report_of(digits)["confusion"]
    own = ring_data["words"]
    assert evaluated(capsys, rings["words"], own)["confusion"] == report_of(rings["words"])["confusion"]
    for part, size in {"train": 120, "test": 40, "all": N}.items():
        assert evaluated(capsys, rings["words"], own, "--part", part)["n_rows"] == size
    assert evaluated(capsys, digits / "model", "digits", *FEWER)["n_errors"] == report_of(digits)["n_errors"]


def test_labels_written_in_another_way_are_the_same(rings, tmp_path, capsys):
    """Numbers as text or as floats, and data in which a class is missing."""
    y = TARGETS["binary"]
    write_npy(tmp_path / "int", X=X, y=y)
    expected = evaluated(capsys, rings["binary"], tmp_path / "int")["confusion"]
    for kind in (str, float, bool):
        np.savez(tmp_path / "other.npz", X=X, y=y.astype(kind)[:, None])
        assert evaluated(capsys, rings["binary"], tmp_path / "other.npz")["confusion"] == expected
    np.savez(tmp_path / "one.npz", X=X[y == 1], y=y[y == 1])
    found = evaluated(capsys, rings["binary"], tmp_path / "one.npz")
    assert found["confusion"] == [[0, 0], expected[1]]


def test_data_that_have_changed_since_the_run_are_told(tmp_path, capsys):
    np.savez(tmp_path / "own.npz", X=X, y=TARGETS["binary"])
    run = train_beside(tmp_path, "run", str(tmp_path / "own.npz"), "--centers", "20", "--sigma2", "0.3")
    np.savez(tmp_path / "own.npz", X=X + 1, y=TARGETS["binary"])
    assert main([str(run)]) == 78
    assert "no longer the data" in the_error(capsys)
