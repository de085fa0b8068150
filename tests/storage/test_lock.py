"""The folder lock, across processes: exclusive, named, freed by any death, not inherited."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runs import held_python
from storage.errors import LockedError
from storage.folders import hold_lock, holder

HOLD = """
import os, subprocess, sys, time
from pathlib import Path
from storage.folders import hold_lock
with hold_lock(Path(sys.argv[1]), "test run"):
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
    with held_python(HOLD, path, mode) as process:
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


def test_second_process_is_told_host_and_pid(tmp_path):
    path = tmp_path / "new" / "run.lock"
    with holding(path) as (process, _):
        with pytest.raises(LockedError) as caught, hold_lock(path, "second"):
            pass
        assert caught.value.exit_code == 73
        for fact in (str(process.pid), socket.gethostname(), "test run", str(path)):
            assert fact in str(caught.value)
        info = holder(path)
        assert info is not None
        assert (info["pid"], info["purpose"]) == (process.pid, "test run")


@pytest.mark.parametrize("mode", ["plain", "fork", "exec"])
def test_kill_9_frees_it_even_while_children_live(tmp_path, mode):
    path = tmp_path / "run.lock"
    with holding(path, mode) as (process, child):
        process.kill()
        process.wait()
        if child:
            os.kill(child, 0)  # still there, or the test proves nothing
        assert holder(path) is None
        with hold_lock(path, "next"):
            assert holder(path)["pid"] == os.getpid()


def test_two_in_one_process_exclude_each_other_and_errors_free(tmp_path):
    """The file stays, and the lock can be taken again."""
    path = tmp_path / "run.lock"
    assert holder(path) is None
    with pytest.raises(RuntimeError, match="inside"), hold_lock(path, "a"):  # noqa: PT012
        inode = path.stat().st_ino
        with pytest.raises(LockedError), hold_lock(path, "b"):
            pass
        raise RuntimeError("inside")
    assert holder(path) is None
    with hold_lock(path, "b"):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert path.stat().st_ino == inode


def test_waiting_ends_when_the_holder_does(tmp_path):
    path, waited = tmp_path / "run.lock", []

    def kill() -> None:
        waited.append(process.pid)
        process.kill()

    with holding(path) as (process, _), hold_lock(path, "patient", wait_seconds=60, on_wait=kill):
        assert waited


def test_waiting_gives_up_after_its_time_or_when_it_is_told(tmp_path):
    def stop() -> None:
        raise RuntimeError("enough")

    path = tmp_path / "run.lock"
    with hold_lock(path, "a"):
        started = time.monotonic()
        with pytest.raises(LockedError), hold_lock(path, "impatient", wait_seconds=0.3):
            pass
        assert time.monotonic() - started > 0.25
        with pytest.raises(RuntimeError, match="enough"), hold_lock(path, "b", wait_seconds=60, on_wait=stop):
            pass


def test_asking_who_holds_it_does_not_make_a_taker_fail(tmp_path):
    path = tmp_path / "run.lock"
    path.touch()
    with path.open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)  # what `holder` does for an instant
        release = threading.Timer(0.1, fcntl.flock, (asking, fcntl.LOCK_UN))
        release.start()
        with hold_lock(path, "taker"):
            pass
        release.join()


def test_a_folder_that_is_removed_and_made_again_is_locked_anew(tmp_path):
    """By whoever waits for the first one, too: two would hold two files of one name."""
    path = tmp_path / "run" / "run.lock"

    def remove() -> None:
        shutil.rmtree(path.parent)
        path.parent.mkdir()

    with holding(path):
        with hold_lock(path, "patient", wait_seconds=60, on_wait=remove):
            with pytest.raises(LockedError, match="patient"), hold_lock(path, "third"):
                pass
            path.unlink()
        assert not path.exists()
        assert holder(path) is None
