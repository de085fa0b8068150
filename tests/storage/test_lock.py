"""The folder lock, across processes: exclusive, named, freed by any death, not inherited."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.other_machines import ELSEWHERE, touching, without_flock
from storage import lock as locks
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


def test_two_in_one_process_exclude_each_other_and_errors_free(tmp_path: Path) -> None:
    """The file stays, and the lock can be taken again."""
    path = tmp_path / "run.lock"
    assert holder(path) is None
    lock = FolderLock(path, "a")
    with pytest.raises(RuntimeError, match="inside"), lock:  # noqa: PT012
        inode = path.stat().st_ino
        with pytest.raises(LockedError), FolderLock(path, "b"):
            pass
        with pytest.raises(ValueError, match="already held"):
            lock.__enter__()
        raise RuntimeError("inside")
    assert holder(path) is None
    with FolderLock(path, "b"):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert path.stat().st_ino == inode


def test_waiting_ends_when_the_holder_does(tmp_path: Path) -> None:
    path, waited = tmp_path / "run.lock", []

    def kill() -> None:
        waited.append(process.pid)
        process.kill()

    with holding(path) as (process, _), FolderLock(path, "patient", wait_seconds=60, on_wait=kill):
        assert waited


def test_waiting_gives_up_after_its_time_or_when_it_is_told(tmp_path: Path) -> None:
    def stop() -> None:
        raise RuntimeError("enough")

    path = tmp_path / "run.lock"
    with FolderLock(path, "a"):
        started = time.monotonic()
        with pytest.raises(LockedError), FolderLock(path, "impatient", wait_seconds=0.3):
            pass
        assert time.monotonic() - started > 0.25
        with pytest.raises(RuntimeError, match="enough"), FolderLock(path, "b", wait_seconds=60, on_wait=stop):
            pass


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


@pytest.fixture
def left_text(tmp_path: Path) -> Path:
    path = tmp_path / "run.lock"
    path.write_text(json.dumps(ELSEWHERE))
    return path


@pytest.mark.parametrize("age", [0, 3600])
def test_a_holder_on_another_machine_that_is_silent_is_replaced_with_a_word(
    left_text: Path, monkeypatch: pytest.MonkeyPatch, age: int
) -> None:
    monkeypatch.setattr(locks, "SILENT_SECONDS", 1.0)
    os.utime(left_text, (time.time() - age,) * 2)
    assert (holder(left_text) is None) == bool(age)
    said: list[str] = []
    started = time.monotonic()
    with FolderLock(left_text, "next", warn=said.append):
        assert json.loads(left_text.read_text())["pid"] == os.getpid()
    assert (time.monotonic() - started > 0.7) == (not age)
    assert "process 7 on elsewhere was more than 1 s ago; taken over" in said[-1]


def test_its_clock_does_not_matter(left_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages are told by the clock of the file system, and a life by a change; what it wrote is not overwritten."""
    monkeypatch.setattr(time, "time", lambda: 2e9 + 1e6)
    said: list[str] = []
    with touching(left_text), pytest.raises(LockedError), FolderLock(left_text, "second", warn=said.append):
        pass
    assert len(said) == 1
    assert json.loads(left_text.read_text()) == ELSEWHERE


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come often, and nobody waits long for those of others."""
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(locks, "_SETTLE_SECONDS", 0.3)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_without_flock_signs_of_life_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    without_flock(monkeypatch, number)
    path = tmp_path / "run.lock"
    assert holder(path) is None
    said: list[str] = []
    with FolderLock(path, "first", warn=said.append):
        assert "offers no locks" in said[-1]
        with pytest.raises(LockedError, match="first"), FolderLock(path, "second"):
            pass
        assert holder(path)["purpose"] == "first"
    assert holder(path) is None
    path.write_text(json.dumps(ELSEWHERE | {"host": socket.gethostname()}))  # killed
    monkeypatch.setattr(locks, "SILENT_SECONDS", 0.5)
    with FolderLock(path, "next"):
        assert holder(path)["purpose"] == "next"


@pytest.mark.usefixtures("quickly")
def test_without_flock_one_of_many_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_flock(monkeypatch)
    path, got, refused = tmp_path / "run.lock", [], []
    ready = threading.Barrier(8)

    def take(number: int) -> None:
        ready.wait()
        try:
            with FolderLock(path, "x" * number):  # texts of any length, one over the other
                got.append(number)
                time.sleep(2)
        except LockedError:
            refused.append(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(8)))
    assert len(got) == 1  # the last to write; no thread here is held up for as long as they settle
    assert len(got) + len(refused) == 8


def within_seconds(happened: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("left", [json.dumps(ELSEWHERE).encode().ljust(512), b"", b"garbage".ljust(512)])
def test_a_holder_whose_lock_is_taken_learns_it(tmp_path: Path, left: bytes) -> None:
    """By another process that still has it, or that has freed it again."""
    path, losses = tmp_path / "run.lock", []
    with FolderLock(path, "first", on_loss=losses.append):
        beats = path.stat().st_mtime_ns
        within_seconds(lambda: path.stat().st_mtime_ns > beats)
        assert not losses
        with path.open("r+b") as stream:  # in one step: a moment between emptying and writing may be long
            stream.write(left)
            if not left:
                stream.truncate()
        within_seconds(lambda: losses)
        time.sleep(0.15)
    assert len(losses) == 1
    assert ("process 7 on elsewhere" if b"pid" in left else "another process, which took over") in losses[0]
    assert path.read_bytes() == left


@pytest.mark.usefixtures("quickly")
def test_a_lock_file_that_cannot_be_read_is_no_loss(tmp_path: Path) -> None:
    path, losses = tmp_path / "run.lock", []
    with FolderLock(path, "first", on_loss=losses.append):
        path.rename(tmp_path / "away")
        time.sleep(0.3)
    assert not losses
