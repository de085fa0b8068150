"""The folder lock, across processes: exclusive, named, freed by any death, not inherited."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.errors import LockedError
from storage.lock import FolderLock, holder

HOLD = """
import os, subprocess, sys, time
from pathlib import Path
from storage.lock import FolderLock
with FolderLock(Path(sys.argv[1]), "test run"):
    child = 0
    if sys.argv[2] == "fork":
        ready, started = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(1)
            os.write(started, b"x")
            time.sleep(60)
        os.read(ready, 1)
    if sys.argv[2] == "exec":
        # close_fds=False: only O_CLOEXEC stands between the child and the lock
        child = subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL).pid
    print(child, flush=True)
    time.sleep(60)
"""


@contextmanager
def holding(path: Path, mode: str = "plain") -> Iterator[tuple[subprocess.Popen, int]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLD, str(path), mode]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        child = 0
        try:
            child = int(process.stdout.readline())
            yield process, child
        finally:
            process.kill()
            if child:
                os.kill(child, signal.SIGKILL)


def test_second_process_is_told_host_and_pid(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.lock"
    with holding(path) as (process, _):
        with pytest.raises(LockedError) as caught, FolderLock(path, "second"):
            pass
        assert (caught.value.pid, caught.value.host) == (process.pid, socket.gethostname())
        assert caught.value.exit_code == 73
        for fact in (str(process.pid), socket.gethostname(), "test run", str(path)):
            assert fact in str(caught.value)
        info = holder(path)
        assert info is not None
        assert (info["pid"], info["purpose"]) == (process.pid, "test run")


@pytest.mark.parametrize("mode", ["plain", "fork", "exec"])
def test_kill_9_frees_it_even_while_children_live(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "run.lock"
    with holding(path, mode) as (process, child):
        process.kill()
        process.wait()
        if child:
            os.kill(child, 0)  # still there, or the test proves nothing
        assert holder(path) is None
        with FolderLock(path, "next"):
            assert holder(path)["pid"] == os.getpid()


def test_the_file_stays_and_the_lock_can_be_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    assert holder(path) is None
    for _ in range(2):
        with FolderLock(path, "a"):
            inode = path.stat().st_ino
            assert json.loads(path.read_text())["pid"] == os.getpid()
        assert path.stat().st_ino == inode
        assert holder(path) is None


def test_two_in_one_process_exclude_each_other_and_errors_free(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with pytest.raises(RuntimeError, match="inside"), FolderLock(path, "a"):  # noqa: PT012
        with pytest.raises(LockedError), FolderLock(path, "b"):
            pass
        raise RuntimeError("inside")
    with FolderLock(path, "b"):
        pass


def test_one_object_is_not_taken_twice(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "run.lock", "a")
    with lock, pytest.raises(ValueError, match="already held"):
        lock.__enter__()


def test_waiting_ends_when_the_holder_does(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with holding(path) as (process, _):
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.6; kill -9 {process.pid}"])
        started = time.monotonic()
        with FolderLock(path, "patient", wait_seconds=30):
            assert 0.3 < time.monotonic() - started < 20
        killer.wait()


def test_waiting_gives_up(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with holding(path):
        started = time.monotonic()
        with pytest.raises(LockedError), FolderLock(path, "impatient", wait_seconds=0.5):
            pass
        assert 0.4 < time.monotonic() - started < 10


def test_asking_who_holds_it_does_not_make_a_taker_fail(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    path.touch()
    with path.open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)  # what `holder` does for an instant
        release = threading.Timer(0.1, fcntl.flock, (asking, fcntl.LOCK_UN))
        release.start()
        with FolderLock(path, "taker"):
            pass
        release.join()


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b"\xff" * 10_000])
def test_a_garbled_file_still_locks(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.lock"
    with FolderLock(path, "a"):
        path.write_bytes(content)
        with pytest.raises(LockedError), FolderLock(path, "b"):
            pass
        assert holder(path) is not None
