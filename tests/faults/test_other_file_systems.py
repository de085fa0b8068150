"""File systems without locks, and those where a file that is removed while it is open keeps another name (NFS, FUSE).

bindfs shows a folder through FUSE, which does so: an open or mapped file becomes `.fuse_hidden...`, and its folder
cannot be removed until it is closed.
"""

import errno
import fcntl
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cases import SERIAL
from pipeline import status
from pipeline.train import main
from runs import model_bytes
from storage.arrays import commit, load
from storage.folders import hold_lock, remove_folder, remove_stale


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that keeps removed files while they are open."""
    program, behind, shown = shutil.which("bindfs"), tmp_path / "behind", tmp_path / "shown"
    behind.mkdir()
    shown.mkdir()
    if program is None:
        pytest.skip("needs bindfs, which CI installs")
    mounted = subprocess.run([program, behind, shown], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"FUSE cannot be used here: {mounted.stderr.strip()}")
    yield shown
    for _ in range(50):  # the file system hears of the last close a moment later
        if not subprocess.run(["umount", shown], capture_output=True, check=False).returncode:
            return
        time.sleep(0.1)
    pytest.fail(f"{shown} is still in use")


def test_what_is_still_mapped_goes_at_the_next_sweep(keeping):
    for name in ("a", "b"):
        (keeping / name).mkdir()
        commit(keeping / name / "x.npz", {"x": np.ones(100)})
        commit(keeping / name / "y.npz", {"y": np.ones(3)})
    mapped = load(keeping / "a" / "x.npz", mapped=True).arrays
    remove_folder(keeping / "a", durable=False)
    (left,) = keeping.glob(".tmp-a-*")
    assert [path.name[:12] for path in left.iterdir()] == [".fuse_hidden"]  # and all else is gone
    (keeping / "a").mkdir()
    remove_folder(keeping / "b")
    remove_stale(keeping)
    assert left.exists()
    del mapped
    until = time.monotonic() + 5
    while list(left.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    remove_stale(keeping)
    assert [path.name for path in keeping.iterdir()] == ["a"]


@pytest.mark.ci
def test_a_file_that_somebody_else_holds_open_costs_nothing(keeping, command, whole, capsys):
    """A backup, or another host, has a file of the first round open until the run is over."""
    run, ended, held = keeping / "run", threading.Event(), list[int]()

    def hold() -> None:
        while not held and not ended.is_set():
            held.extend(os.open(path, os.O_RDONLY) for path in run.glob("statistics/round-000*.npz"))

    holding = threading.Thread(target=hold)
    holding.start()
    assert main(command(run, "rounds", *SERIAL)) == 0
    ended.set()
    holding.join()
    assert held
    assert capsys.readouterr().err == ""
    assert model_bytes(run) == whole("rounds")
    for descriptor in held:
        os.close(descriptor)


@pytest.mark.parametrize(
    "number", [errno.ENOLCK, *(pytest.param(number, marks=pytest.mark.ci) for number in (errno.ENOTSUP, errno.ENOSYS))]
)
def test_without_locks_a_run_warns_and_can_be_looked_at(tmp_path, tables, monkeypatch, capsys, number):
    def no_flock(descriptor: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_flock)
    folders = ["--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "features")]
    assert main([str(tables / "values.npz"), *folders, "--centers", "20", "--sigma2", "1", *SERIAL, "-q"]) == 0
    error = capsys.readouterr().err
    assert error.count("its file system offers no locks") == 2  # of the run and of the feature store
    assert all(line.startswith("warning: ") for line in error.splitlines())
    assert status.main([str(tmp_path / "run")]) == 0
    with hold_lock(tmp_path / "run" / "run.lock", "training"):
        assert status.main([str(tmp_path / "run")]) == 0
        assert "running by process" in capsys.readouterr().out
