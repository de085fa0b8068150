"""Runs where locks do not reach another machine, or do not exist: refused, warned of, and always looked at."""

import errno
import json
import os
from pathlib import Path

import pytest

from faults.other_machines import ELSEWHERE, touching, without_flock
from pipeline import status, verify
from pipeline.train import main
from storage.lock import FolderLock


@pytest.fixture
def command(tables: Path, tmp_path: Path) -> list[str]:
    folders = ["--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "features")]
    return [str(tables / "values.npz"), *folders, "--centers", "20", "--scheduler", "serial", "-q"]


def test_a_run_that_lives_on_another_machine_is_left_alone(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    (tmp_path / "run" / "report.json").unlink()
    lock = tmp_path / "run" / "run.lock"
    lock.write_text(json.dumps(ELSEWHERE))
    with touching(lock):
        assert main([*command, "--resume", "auto"]) == 73
        error = capsys.readouterr().err
        assert "locked by process 7 on elsewhere" in error
        assert "last sign of life of process 7 on elsewhere was 0 s ago" in error
        assert json.loads(lock.read_text()) == ELSEWHERE
        assert status.main([str(tmp_path / "run")]) == 0
        shown = capsys.readouterr().out
        assert "running by process 7 on elsewhere" in shown
        assert "the last sign of life 0 s ago" in shown
    os.utime(lock, (1e9, 1e9))
    assert main([*command, "--resume", "auto"]) == 0
    assert "more than 60 s ago; taken over" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOLCK, pytest.param(errno.ENOSYS, marks=pytest.mark.ci)])
@pytest.mark.ci
def test_without_locks_a_run_warns_and_can_be_looked_at(
    tmp_path: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    without_flock(monkeypatch, number)
    assert main(command) == 0
    error = capsys.readouterr().err
    assert error.count("its file system offers no locks") == 2  # of the run and of the feature store
    assert all(line.startswith("warning: ") for line in error.splitlines())
    assert status.main([str(tmp_path / "run")]) == 0
    assert verify.main([str(tmp_path / "run")]) == 0
    with FolderLock(tmp_path / "run" / "run.lock", "training"):
        assert status.main([str(tmp_path / "run")]) == 0
        assert "running by process" in capsys.readouterr().out
