"""The main command, end to end, on data that need no download."""

import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import the_error
from pipeline import predict
from pipeline import train as training
from pipeline.runtime import row_pass
from pipeline.train import main as train_main
from pipeline.work.store import CheckpointsOnDisk
from runs import TrainedRuns, files_of, keeping_statistics, model_bytes, python, report_of, train
from stopping_points import stop_amid_passes
from storage.arrays import load
from storage.folders import hold_lock

SMALL = ("--centers", "40", "--penalty", "0.01", "--scheduler", "serial")


@pytest.fixture(scope="module")
def serial(finished_run: TrainedRuns, classes: Path) -> Path:
    """A run on a table by the reference executor, which the others must match."""
    return finished_run(*SMALL, dataset=classes)


def test_the_report_holds_its_contract(images):
    report = report_of(images)
    assert set(report["stages"]) - {"compile"} == {"features", "candidates", "statistics", "solve", "evaluate"}
    for cost in report["stages"].values():
        assert set(cost) == {"wall_seconds", "cpu_seconds", "items"}
    assert [solve["output"] for solve in report["solves"]] == list(range(10))
    assert report["kernel_entries"] == report["n_train"] * 60
    assert all(solve["relative_gap"] <= 1e-3 for solve in report["solves"])
    assert report["converged"] is True
    assert report["error_rate"] < 0.05


@pytest.mark.ci
@pytest.mark.parametrize("threads", [pytest.param("1", marks=pytest.mark.nightly), "4"])
def test_blas_threads_do_not_change_the_bytes(serial, features, classes, tmp_path, threads):
    environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    words = (classes, "--run-dir", tmp_path / "run", "--features-dir", features, "-q", *SMALL)
    assert python("-m", "pipeline.train", *words, env=environment).returncode == 0
    assert model_bytes(tmp_path / "run") == model_bytes(serial)


def test_model_files_hold_no_path_or_host(images):
    (content,) = model_bytes(images).values()
    assert str(images.parent).encode() not in content
    words = re.findall(r"\w+", json.dumps(load(images / "model" / "model.npz").facts))
    assert "hog" in words
    assert socket.gethostname() not in words


def test_a_used_folder_is_refused_and_resume_answers_from_it(trained, features, classes, capsys):
    run = trained(*SMALL, dataset=classes)
    train(run, features, *SMALL, dataset=classes, code=73)
    assert "--resume auto" in the_error(capsys)
    before = files_of(run)
    train(run, features, *SMALL, "--resume", "require", dataset=classes)
    assert training.main(["--run-dir", str(run), "--resume", "auto", "-q"]) == 0, "on its own data"
    after = files_of(run)
    assert {name for name in after if after[name] != before.get(name)} <= {"run.lock"}
    assert after.keys() == before.keys()
    train(run, features, *SMALL, "--resume", "auto", "--penalty", "7", dataset=classes, code=78)
    assert "solver.penalty: 0.01 in the run, 7.0 asked" in capsys.readouterr().err


def test_missing_the_tolerance_is_never_a_silent_success(features, classes, tmp_path, capsys):
    arguments = (*SMALL, "--max-sweeps", "1", "--schedule", "uniform", "--tol", "1e-9")
    train(tmp_path / "run", features, *arguments, dataset=classes, quiet=False, code=3)
    assert report_of(tmp_path / "run")["converged"] is False
    assert "NOT CONVERGED" in capsys.readouterr().out


@pytest.mark.parametrize("name", [".tmp-", ".tmp-thesis-0123456789abcdef", ".old-thesis-0123456789abcdef", "env.json"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_run_folder_with_files_of_somebody_else_is_refused_and_kept(tmp_path, name, kind, capsys):
    """Names that begin like those that a killed run leaves."""
    run = tmp_path / "run"
    inside = run / name / "chapters" if kind == "folder" else run / name
    inside.parent.mkdir(parents=True)
    inside.write_text("mine")
    train(run, tmp_path / "features", "--resume", "auto", code=65 if name == "env.json" else 73)
    assert str(run) in capsys.readouterr().err
    assert inside.read_text() == "mine"
    assert list(run.iterdir()) == [run / name]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "symbolic link") for name in ("passes", "passes/columns", "statistics/mine", "run.lock")),
        *((name, "pipe") for name in ("log.jsonl", "lease", "passes/columns", "run.lock")),
    ],
)
def test_a_link_or_a_pipe_in_a_run_is_refused_at_the_start(serial, classes, tmp_path, capsys, name, kind):
    """What a link leads to may hold names like ours, and would lose them; a pipe keeps whoever opens it waiting."""
    run, theirs = tmp_path / "run", tmp_path / "theirs"
    if name != "run.lock" or kind == "pipe":  # else in a folder that is new but for it
        shutil.copytree(serial, run)
        (run / "report.json").unlink()
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).unlink(missing_ok=True)
    theirs.mkdir()
    (theirs / ".tmp-thesis-0123456789abcdef").write_text("mine")
    os.mkfifo(run / name) if kind == "pipe" else (run / name).symlink_to(theirs)
    before = files_of(tmp_path)
    train(run, tmp_path / "features", *SMALL, "--resume", "auto", dataset=classes, code=73)
    assert f"{run / name}: is a {kind}" in the_error(capsys)
    assert files_of(tmp_path) == before


def test_the_folder_of_a_run_is_taken_before_its_data_are_read(tmp_path, capsys):
    run, nowhere = tmp_path / "new" / "run", tmp_path / "nowhere.csv"
    train(run, tmp_path / "features", dataset=nowhere, code=66)
    assert not list(tmp_path.iterdir()), "nothing is left of a run that cannot start"
    capsys.readouterr()
    with hold_lock(run / "run.lock", "training"):
        for resume in ("auto", "never"):
            train(run, tmp_path / "features", "--resume", resume, dataset=nowhere, code=73)
            assert f"locked by process {os.getpid()}" in the_error(capsys)


OTHER = ("--centers", "40", "--penalty", "9", "--seed", "3", "--scheduler", "serial")


@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize("remove", [shutil.rmtree, lambda run: run.rename(run.with_name("moved"))])
@pytest.mark.parametrize("step", [(row_pass, "add_pieces"), (CheckpointsOnDisk, "is_due")])
def test_a_folder_that_is_moved_or_removed_under_its_run_gets_nothing_more(
    features, classes, finished_run, tmp_path, monkeypatch, capsys, step, remove, is_taken
):
    """Amid statistics, and amid a solve; another run, stopped in its statistics, has taken the name meanwhile."""
    run, other = tmp_path / "run", tmp_path / "other"
    with monkeypatch.context() as stopped:
        stop_amid_passes(stopped)
        train(other, features, *OTHER, dataset=classes, code=75)
    before, went_on, calls = files_of(other), getattr(*step), []

    def lost(*arguments: Any) -> Any:
        if not calls:
            remove(run)
            if is_taken:
                shutil.copytree(other, run)
        calls.append(1)
        return went_on(*arguments)

    monkeypatch.setattr(*step, lost)
    capsys.readouterr()
    train(run, features, *SMALL, dataset=classes, code=73)
    assert f"{run}: was moved or removed while it was used" in the_error(capsys)
    assert calls
    assert run.exists() == is_taken
    if is_taken:
        assert files_of(run) == before
        train(run, features, *OTHER, "--resume", "auto", dataset=classes)
        assert model_bytes(run) == model_bytes(finished_run(*OTHER, dataset=classes))


@pytest.mark.parametrize(("name", "code"), [("passes", 0), ("statistics", 65), ("solutions", 65)])
def test_sums_and_results_of_another_run_are_not_taken_up(
    features, classes, serial, tmp_path, monkeypatch, capsys, name, code
):
    """A late worker of it leaves them in the folder of a run that has its name now."""
    run, other = tmp_path / "run", tmp_path / "other"
    with keeping_statistics(), monkeypatch.context() as stopped:
        if name == "passes":
            stop_amid_passes(stopped)
        train(other, features, *OTHER, dataset=classes, code=75 if name == "passes" else 0)
    train(run, features, *SMALL, "--time-limit", "0.000001s", dataset=classes, code=75)
    shutil.copytree(other / name, run / name)
    train(run, features, *SMALL, "--resume", "auto", dataset=classes, code=code)
    if code:
        assert "of another run" in capsys.readouterr().err
    else:
        assert model_bytes(run) == model_bytes(serial)


def test_features_and_tables_that_are_gone_are_made_again(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.random((120, 2))
    data = tmp_path / "t.csv"
    np.savetxt(data, np.column_stack([X, X[:, 0] > 0.5]), "%g", ",", header="a,b,y", comments="")
    run, features, asked = tmp_path / "run", tmp_path / "features", ("--centers", "20", "--penalty", "1")
    train(run, features, *asked, dataset=data)
    expected = model_bytes(run)
    shutil.rmtree(features)
    assert predict.main([str(run), str(data), "--out", str(tmp_path / "labels.csv")]) == 0
    assert not features.exists()
    for stages in ((), ("candidates.npz",)):
        shutil.rmtree(features, ignore_errors=True)
        for name in ("solutions", "scores", "model"):
            shutil.rmtree(run / name)
        for name in ("report.json", *stages):
            (run / name).unlink()
        train(run, features, *asked, "--resume", "require", dataset=data)
        assert model_bytes(run) == expected


def test_a_run_of_three_rows_can_be_read_and_gone_on_with(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,b,y\n1,2.5,3\n2,1.5,4.5\n0.5,2,1.25\n4,3,0.75\n")
    line = [str(tmp_path / "t.csv"), "--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "f")]
    assert train_main(line) == 0
    assert "predicts the same for every row: by held-out rows nothing" in capsys.readouterr().out
    assert train_main([*line, "--resume", "require", "-q"]) == 0
