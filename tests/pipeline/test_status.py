"""`pipeline.status`: of a finished, a stopped, a killed and a live run, for people and for programs."""

import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline import status
from pipeline.train import main as train

ROOT = Path(__file__).resolve().parents[2]
LONG = ["--centers", "500", "--coupling", "shared", "--schedule", "uniform", "--tol", "1e-9", "--penalty", "0.001"]
LONG += ["--sigma2", "8", "-q", "--checkpoint-every", "0.2s"]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


def facts_of(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert status.main([str(run), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_finished_run(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(["digits", "-q", "--centers", "60", "--run-dir", str(run), "--features-dir", str(features)]) == 0
    facts = facts_of(run, capsys)
    report = json.loads((run / "report.json").read_text())
    assert (facts["state"], facts["held_by"], facts["resume"]) == ("finished", None, None)
    assert facts["error_rate"] == report["error_rate"]
    assert status.main([str(run)]) == 0
    text = capsys.readouterr().out
    assert f"test error: {100 * report['error_rate']:.2f} %" in text
    assert "10 done, the largest relative gap" in text


def test_a_run_under_way_and_after_its_death(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "pipeline.train", "digits", "--run-dir", str(run), "--features-dir", str(features)]
    process = subprocess.Popen([*command, *LONG], cwd=ROOT)
    try:
        while not list(run.glob("checkpoints/*/step-*/MANIFEST.json")):
            assert process.poll() is None
            time.sleep(0.01)
        facts = facts_of(run, capsys)
        assert facts["state"] == "running"
        assert facts["held_by"]["pid"] == process.pid
        assert facts["stage"] == "solve"
        assert "objective" in facts["solve"]
        assert "gap" in facts["solve"]
        assert 0 <= facts["checkpoint_age_seconds"] < 60
        assert facts["resume"] is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    facts = facts_of(run, capsys)
    assert (facts["state"], facts["held_by"], facts["last_error"]) == ("stopped", None, None)
    assert facts["resume"].endswith(f"--run-dir {run} --resume auto")
    assert train([*command[3:], *LONG, "--resume", "auto", "--time-limit", "0.3s"]) == 75
    assert facts_of(run, capsys)["last_error"] == "StoppedError"


def test_time_left_is_at_the_rate_of_the_items_done() -> None:
    now = datetime.now(UTC)
    progress = {
        "done": 10,
        "total": 30,
        "started": (now - timedelta(seconds=20)).isoformat(),
        "updated": now.isoformat(),
    }
    assert status._seconds_left(progress) == pytest.approx(40, abs=2)
    assert status._seconds_left(progress | {"done": 0}) is None
    assert status._seconds_left(None) is None
    facts = {"progress": progress, "seconds_left": 40.0}
    assert status._progress_words(facts) == ", item 10 of 30, 40 s left"


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_what_cannot_be_read_is_left_out(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    run = tmp_path / "run"
    assert train(["digits", "-q", "--centers", "60", "--run-dir", str(run), "--features-dir", str(features)]) == 0
    for name in ("STATE.json", "log.jsonl", "report.json"):
        if damage == "torn":
            (run / name).write_bytes((run / name).read_bytes()[:-20])
        else:
            (run / name).unlink()
    facts = facts_of(run, capsys)
    assert (facts["state"], facts["stage"], facts["error_rate"]) == ("stopped", None, None)


def test_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main([str(tmp_path)]) == 66
    assert "holds no run" in capsys.readouterr().err
