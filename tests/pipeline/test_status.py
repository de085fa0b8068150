"""`python -m pipeline.status` on runs that work, ended well, were stopped, failed, and were killed."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.reporting.run_facts import lines, status
from pipeline.stages.out_of_core.working_set_rounds import PassRecord
from pipeline.status import main
from pipeline.train import main as train
from runs import LONG_SOLVE, ROOT, python
from storage.done_markers import write_marker
from storage.folder_layouts import RunLayout
from storage.lock import FolderLock
from storage.records import write_record

PATIENCE_SECONDS = 120  # with all compilation


@pytest.fixture(scope="module")
def finished(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "finished"
    arguments = ["digits", "--run-dir", str(run), "--features-dir", str(features), "--centers", "60", "-q"]
    assert train(arguments) == 0
    return run


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> RunLayout:
    """A copy without its report: what a kill just before the end leaves."""
    shutil.copytree(finished, tmp_path / "run")
    layout = RunLayout(tmp_path / "run")
    layout.report.unlink()
    return layout


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in files}


def test_a_finished_run_tells_what_its_report_tells(finished: Path) -> None:
    before = contents(finished)
    facts, report = status(finished), json.loads((finished / "report.json").read_text())
    assert facts["state"] == "finished"
    assert facts["dataset"] == "digits"
    assert facts["held_by"] is None
    assert facts["stage"] is None
    assert facts["resume"] is None
    assert facts["damaged"] == []
    assert facts["error_rate"] == report["error_rate"]
    assert facts["converged"] is True
    assert 2**20 < facts["peak_rss_bytes"] <= report["peak_rss_bytes"]
    worst = max(one["relative_gap"] for one in report["solves"])
    assert f"{worst:.1e}" in facts["solve"]
    assert f"{sum(one['objective'] for one in report['solves']):.6g}" in facts["solve"]
    text = "\n".join(lines(facts))
    assert f"test error: {100 * report['error_rate']:.2f} %" in text
    assert "continue with" not in text
    assert contents(finished) == before, "reads only"


def test_the_json_form_is_one_object(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(finished), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    ages = ("checkpoint_age_seconds", "last_commit_age_seconds")
    expected = json.loads(json.dumps(status(finished)))
    assert {key: printed[key] for key in printed if key not in ages} == {
        key: expected[key] for key in expected if key not in ages
    }


def test_no_such_run_exits_66(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        assert main([str(folder)]) == 66
        assert capsys.readouterr().err == f"error: {folder} holds no run; name the folder of one\n"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def live(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A run in a process of its own that is in the middle of a solve; ended by force."""
    run = tmp_path_factory.mktemp("runs") / "live"
    line = [sys.executable, "-m", "pipeline.train", "digits", "--run-dir", str(run), "--features-dir", str(features)]
    process = subprocess.Popen([*line, *LONG_SOLVE, "--checkpoint-every", "0.1s"], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        yield process, run
    finally:
        process.kill()
        process.wait()


def until_it_solves(process: subprocess.Popen[bytes], run: Path) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended before a solve was seen"
        if (run / "config.toml").exists():
            facts = status(run)
            if facts["stage"] == "solve" and facts["solve"] and facts["checkpoint_age_seconds"] is not None:
                return facts
        time.sleep(0.02)
    raise AssertionError("no solve was seen in time")


def test_a_live_run_and_then_a_killed_one(live: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, run = live
    facts = until_it_solves(process, run)
    assert facts["state"] == "running"
    assert facts["held_by"]["pid"] == process.pid
    assert facts["held_by"]["host"] == socket.gethostname()
    assert facts["solve"].startswith("output 0,1,2,3,4,5,6,7,8,9: objective ")
    assert " gap " in facts["solve"]
    assert 0 <= facts["checkpoint_age_seconds"] < 60
    assert facts["resume"] is None
    assert facts["damaged"] == []
    text = "\n".join(lines(facts))
    assert f"running by process {process.pid} on {socket.gethostname()} since 20" in text
    assert "stage: solve" in text
    assert "last checkpoint inside a solve: " in text

    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    facts = status(run)
    assert facts["state"] == "killed"
    assert facts["held_by"] is None
    assert facts["stage"] == "solve"
    assert facts["solve"].endswith("when it ended")
    assert facts["resume"] == f"python -m pipeline.train digits --run-dir {run} --resume auto"
    done = python("-m", "pipeline.status", run)
    assert done.returncode == 0, done.stderr
    assert f"continue with: {facts['resume']}\n" in done.stdout


def test_it_answers_from_small_files_without_what_training_needs(
    live: tuple[subprocess.Popen[bytes], Path], finished: Path
) -> None:
    """The records of a solve are the most that it reads: no array, no image and no cluster."""
    code = (
        "import sys; from pipeline import status\n"
        "assert status.main(sys.argv[1:]) == 0\n"
        "heavy = {'dask', 'distributed', 'sklearn', 'skimage', 'zarr'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for run in (live[1], finished):
        done = python("-c", code, run, "--json")
        assert done.returncode == 0, done.stderr


def test_a_run_that_was_stopped_says_so(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    arguments = ["digits", "--run-dir", str(run), "--features-dir", str(features), *LONG_SOLVE, "--time-limit", "0.5s"]
    assert train(arguments) == 75
    facts = status(run)
    assert facts["state"] == "stopped"
    assert facts["last_error"] is None
    assert facts["resume"] in capsys.readouterr().err, "the same command as the run itself gave"


def test_a_run_that_failed_names_the_error(unfinished: RunLayout) -> None:
    assert status(unfinished.root)["state"] == "killed"
    with unfinished.log.open("a") as log:
        log.write(json.dumps({"time": "now", "event": "error", "error": "CannotWriteError", "traceback": "x" * 5000}))
    facts = status(unfinished.root)
    assert facts["state"] == "failed"
    assert "last error: CannotWriteError" in lines(facts)


def test_progress_and_time_left(unfinished: RunLayout) -> None:
    updated = datetime.now(UTC)
    progress = {
        "done": 50,
        "total": 150,
        "unit": "rows",
        "words": "residuals",
        "share": 1 / 3,
        "started": (updated - timedelta(seconds=100)).isoformat(),
        "updated": updated.isoformat(),
    }
    facts = {"stage": "statistics", "pid": 1, "stages": {}, "peak_rss_bytes": 3 * 2**20, "progress": progress}
    write_record(unfinished.state, facts)
    assert status(unfinished.root)["progress"] is None, "of a run that no longer works, it says nothing"
    with FolderLock(unfinished.lock, "training"):
        found = status(unfinished.root)
        assert found["progress"] == progress
        assert found["seconds_left"] == pytest.approx(200, abs=20)
        text = "\n".join(lines(found))
        assert "stage: statistics, 50 of 150 rows, residuals, 3 min left" in text
        assert "peak memory: 3 MiB" in text
        write_record(unfinished.state, {**facts, "progress": {**progress, "done": 0, "share": 0.0}})
        assert status(unfinished.root)["seconds_left"] is None


def test_the_last_pass_of_a_working_set(unfinished: RunLayout) -> None:
    for number, gap in ((0, 0.5), (1, 0.002)):
        record = PassRecord(number, 200, 90, (gap, gap / 2), 7, 7, 0, 500, 0, 0, 1000)
        write_marker(unfinished.markers("passes"), f"round-{number:03d}", asdict(record))
    found = status(unfinished.root)["last_pass"]
    assert found == "1: gap 2.0e-03 over all candidates, 90 active, 7 violators"


@pytest.mark.parametrize("name", ["STATE.json", "report.json", "config.toml", "log.jsonl"])
@pytest.mark.parametrize("damage", [b"", b'{"stage": "sol', b"\xff\xfe\x00", b"[1, 2]\n"])
def test_damaged_and_torn_files_do_not_stop_it(
    unfinished: RunLayout, name: str, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unfinished.root / name
    path.write_bytes(damage)
    facts = status(unfinished.root)
    assert facts["state"] == ("finished" if name == "report.json" else "killed")
    assert [str(path) in line for line in facts["damaged"]] == ([] if name == "log.jsonl" else [True])
    assert main([str(unfinished.root)]) == 0
    assert (f"damaged: {path}" in capsys.readouterr().out) == (name != "log.jsonl")


def test_missing_files_do_not_stop_it(unfinished: RunLayout) -> None:
    for path in (unfinished.state, unfinished.log, unfinished.lock, unfinished.environment):
        path.unlink()
    shutil.rmtree(unfinished.root / "markers")
    facts = status(unfinished.root)
    assert facts["state"] == "killed"
    assert facts["stage"] is None
    assert facts["damaged"] == []
    assert lines(facts)
