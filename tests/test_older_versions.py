"""Runs and their feature stores as an early 0.1.0 wrote them: every command goes on reading them.

The finished one is `sinc` with 60 training rows and 20 candidates. Two of 200 rows were killed amid a pass over the
rows, before passes had a folder of their own: the statistics of 20 candidates, and the scores of the first round of
all. The folders that their settings name do not exist any more.
"""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from commands import Capture
from pipeline import evaluate, predict, report, resize, status, train, verify
from runs import report_of

STORED = Path(__file__).parent / "data" / "run_0.1.0.tar.gz"
KILLED = STORED.with_name("killed_runs_0.1.0.tar.gz")
MODEL_SHA256 = "96ed3b776552a941e4bc3fdd3716df98ea20f0241b28f3b4b53b31c2337d5b03"
MSE = 0.058427245890960856


def unpacked(path: Path, folder: Path) -> Path:
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return unpacked(STORED, tmp_path) / "run"


def resume(run: Path) -> int:
    return train.main(
        ["sinc", "--run-dir", str(run), "--resume", "auto", "--features-dir", str(run.parent / "features")]
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("statistics", {"statistics/parts", "markers/statistics"}),
        pytest.param(
            "rounds",
            {"scores/round-000", "scores/round-000-part-0000.npz", "scores/round-000-weights.npz"},
            marks=pytest.mark.ci,
        ),
    ],
)
def test_one_that_was_killed_goes_on_and_leaves_none_of_its_parts(
    tmp_path: Path, name: str, parts: set[str], capsys: Capture
) -> None:
    run = unpacked(KILLED, tmp_path) / name
    assert all((run / part).exists() for part in parts)
    assert resume(run) == 0
    assert list(run.rglob("*part*")) == []
    assert not any((run / part).exists() for part in parts)
    assert verify.verify_run(run).damaged == []
    settings = ["--penalty", "1", "--set", "data.n_train=200", "--set", "data.n_test=40", "--features-dir"]
    settings += [str(tmp_path / "features"), "--run-dir", str(tmp_path / "new"), "-q"]
    of_kind = ["--centers", "200", "--set", "centers.working_set=60"] if name == "rounds" else ["--centers", "20"]
    assert train.main(["sinc", *settings, *of_kind]) == 0
    assert report_of(run)["mse"] == pytest.approx(report_of(tmp_path / "new")["mse"], rel=1e-3)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert [line for line in warnings if "the run was started with" not in line] == []  # on another processor


def test_it_is_resumed_without_work_whole_and_told_of(run: Path, capsys: Capture) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert resume(run) == 0
    assert "15 centers" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert verify.main([str(run)]) == 0
    assert f"{run}: whole; 41 files" in capsys.readouterr().out
    assert status.main([str(run), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["state"], facts["dataset"], facts["mse"], facts["damaged"]) == ("finished", "sinc", MSE, [])
    assert report.main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "finished" in page
    assert "--centers 20" in page, "the command of its start"


def test_its_model_predicts_also_with_fewer_centers(run: Path, tmp_path: Path, capsys: Capture) -> None:
    assert evaluate.main([str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mse"] == pytest.approx(MSE, rel=1e-6)
    assert predict.main([str(run), "sinc", "--set", "data.n_test=30", "--out", str(tmp_path / "labels.npz")]) == 0
    with np.load(tmp_path / "labels.npz") as predicted:
        assert predicted["label"].shape == (30,)
    assert resize.main([str(run), "--size", "5", "--out", str(tmp_path / "smaller")]) == 0
    assert predict.main([str(tmp_path / "smaller"), "sinc", "--out", str(tmp_path / "labels.csv"), "--quiet"]) == 0


def test_it_is_solved_again_from_its_statistics(run: Path) -> None:
    """To the same weights; to the same bytes where BLAS computes on the same type of core."""
    model = run / "model" / "arrays.npz"
    with np.load(model) as arrays:
        before = dict(arrays)
    assert hashlib.sha256(model.read_bytes()).hexdigest() == MODEL_SHA256
    for name in ("model", "solutions", "markers/solve", "markers/solve-all", "markers/evaluate"):
        shutil.rmtree(run / name)
    (run / "report.json").unlink()
    assert resume(run) == 0
    with np.load(model) as again:
        assert again.keys() == before.keys()
        for name, values in before.items():
            np.testing.assert_allclose(again[name], values, rtol=1e-6, atol=1e-9, err_msg=name)
    items = report_of(run)["stages"]
    assert (items["features"]["items"], items["statistics"]["items"]) == (2, 1), "those were not done again"
    recorded = {pool["architecture"] for pool in json.loads((run / "env.json").read_text())["blas"]}
    if {pool["architecture"] for pool in threadpool_info() if pool["user_api"] == "blas"} == recorded:
        assert hashlib.sha256(model.read_bytes()).hexdigest() == MODEL_SHA256
