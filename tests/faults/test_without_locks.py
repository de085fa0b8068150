"""Runs on a file system that offers no locks: warned of, and always looked at."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from pipeline import status, verify
from pipeline.train import main
from storage.lock import hold_lock


@pytest.mark.parametrize(
    "number", [errno.ENOLCK, *(pytest.param(number, marks=pytest.mark.ci) for number in (errno.ENOTSUP, errno.ENOSYS))]
)
def test_without_locks_a_run_warns_and_can_be_looked_at(
    tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def flock(descriptor: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    folders = ["--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "features")]
    assert main([str(tables / "values.npz"), *folders, "--centers", "20", "--scheduler", "serial", "-q"]) == 0
    error = capsys.readouterr().err
    assert error.count("its file system offers no locks") == 2  # of the run and of the feature store
    assert all(line.startswith("warning: ") for line in error.splitlines())
    assert status.main([str(tmp_path / "run")]) == 0
    assert verify.main([str(tmp_path / "run")]) == 0
    with hold_lock(tmp_path / "run" / "run.lock", "training"):
        assert status.main([str(tmp_path / "run")]) == 0
        assert "running by process" in capsys.readouterr().out
