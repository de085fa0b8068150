"""Stopping on request: a flag that the work looks at, exit code 75, and the same bytes after going on."""

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from cases import SERIAL
from features.rows import RunningMoments
from pipeline.errors import StoppedError
from pipeline.runtime import stopping
from pipeline.runtime.stopping import SIGNALS, Lease, Stop
from pipeline.train import main
from pipeline.work.runner import _compute_item
from pipeline.work.store import CheckpointsOnDisk
from runs import ENDLESS_SOLVE, ROOT, train, wait_until
from storage.errors import UnavailableStoreError
from storage.files import read_record
from storage.folders import hold_lock


def interrupt(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(1)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_idle_code_and_only_flags_work(number):
    before = signal.signal(number, signal.SIG_DFL)  # nohup has SIGHUP ignored
    with stopping.listening(), pytest.raises(StoppedError, match=number.name):
        interrupt(number)
    with stopping.listening() as stop, stop.working():
        assert stop.requested() is None
        stopping.check()
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        assert stop.requested() == number.name
        with pytest.raises(StoppedError, match=number.name):
            stopping.check()
    assert signal.signal(number, before) == signal.SIG_DFL
    stopping.check()


def test_a_signal_that_was_held_back_until_somebody_listens_is_taken():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # another thread might not hold it back
        with pytest.raises(StoppedError, match="SIGUSR1"), stopping.listening():
            time.sleep(1)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= set(SIGNALS)
    finally:
        signal.sigtimedwait(SIGNALS, 0)  # one that was not taken would end the tests
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.ci
@pytest.mark.parametrize("command", [("-m", "pipeline.train"), ("-m", "pipeline", "train")])
def test_signals_until_the_process_has_ended_leave_its_exit_code(tables, features, tmp_path, command):
    """As those of a batch system that asks again and again."""
    words = (tables / "classes.npz", "--run-dir", tmp_path / "run", "--features-dir", features, *ENDLESS_SOLVE)
    with subprocess.Popen([sys.executable, *command, *map(str, words)], cwd=ROOT, stderr=subprocess.PIPE) as process:
        state = tmp_path / "run" / "STATE.json"
        wait_until(lambda: state.exists() and read_record(state)["stage"] == "solve", 60)
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        assert process.returncode == 75
        assert process.stderr.read().startswith(b"stopped by SIGTERM")


def test_a_task_stops_once_its_turn_is_over_and_for_nothing_stale(tmp_path):
    file = tmp_path / "lease"
    killed, ours = Lease.next(file), Lease.next(file)  # a cluster may still run tasks of a session that was killed
    with stopping.obeying(Stop(killed)), pytest.raises(StoppedError):
        stopping.check()
    with stopping.obeying(Stop(ours)):
        latest = ours.number
        for stale in (b"%d\n" % latest, b"%d\n" % killed.number, b"", b"\0\0", None):
            file.unlink() if stale is None else file.write_bytes(stale)
            time.sleep(stopping.LOOK_SECONDS)
            assert stopping.current().requested() is None
        file.write_bytes(b"%d\n" % (latest + 1))
        time.sleep(stopping.LOOK_SECONDS)
        assert stopping.current().requested() is not None
        seen: list[str | None] = []
        other = threading.Thread(target=lambda: seen.append(stopping.current().requested()))
        other.start()
        other.join()
    assert seen == [None]  # a thread beside it runs a task of another run
    assert stopping.current().requested() is None


def test_a_run_that_takes_an_emptied_folder_ends_the_tasks_of_the_one_before(tmp_path):
    before = Lease.next(tmp_path / "lease")
    before.path.unlink()
    Lease.next(tmp_path / "lease")
    assert before.is_over()
    path = tmp_path / "result.npz"
    checkpoints = CheckpointsOnDisk(tmp_path / "kept.npz", "", 60.0)
    with stopping.obeying(Stop(before)), pytest.raises(StoppedError):
        _compute_item(lambda item, kept: {"of": np.zeros(item)}, "a run", (path, 1, checkpoints))
    assert not path.exists()


def test_a_lease_that_cannot_be_read_is_neither_over_nor_followed_by_a_lower_one(tmp_path, monkeypatch):
    lease = Lease.next(tmp_path / "lease")
    monkeypatch.setattr(stopping, "read_plain", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    assert not lease.is_over()
    with pytest.raises(UnavailableStoreError, match="lease: cannot be read"):
        Lease.next(tmp_path / "lease")


def test_the_moments_of_a_table_are_not_taken_to_the_end(tmp_path, monkeypatch):
    np.savez(tmp_path / "table.npz", X=np.ones((400_000, 40), np.float32), y=np.arange(400_000) % 2)
    blocks, update = list[int](), RunningMoments.update

    def interrupted(moments: RunningMoments, block: np.ndarray, weights: np.ndarray | None = None) -> RunningMoments:
        blocks.append(len(block))
        os.kill(os.getpid(), signal.SIGTERM)
        return update(moments, block, weights)

    monkeypatch.setattr(RunningMoments, "update", interrupted)
    asked = ("--centers", "20", *SERIAL)
    train(tmp_path / "run", tmp_path / "features", *asked, dataset=tmp_path / "table.npz", code=75)
    assert len(blocks) == 1
    assert blocks[0] < 300_000


@pytest.mark.timeout(60)  # else it waits for itself
def test_waiting_for_a_feature_store_ends_on_request(tmp_path, tables, capsys):
    features, asked = tmp_path / "features", ("--centers", "20", "--sigma2", "1", *SERIAL)
    train(tmp_path / "first", features, *asked, dataset=tables / "values.npz")
    (store,) = (path for path in features.iterdir() if path.suffix == "" and path.is_dir())
    store.rename(tmp_path / "away")
    with hold_lock(store.with_name(f"{store.name}.lock"), "building features"):
        asked += ("--time-limit", "1s")
        train(tmp_path / "waiting", features, *asked, dataset=tables / "values.npz", quiet=False, code=75)
    error = capsys.readouterr().err
    assert f"waiting for process {os.getpid()}" in error
    assert re.search("stopped by the time limit; continue with: .* --resume auto", error)


@pytest.mark.parametrize(("name", "run"), [("with space.npz", "run"), ("-x.npz", "run"), ("-x.npz", "-run")])
def test_the_command_it_prints_continues_and_stops_no_more(tmp_path, name, run, capsys, monkeypatch):
    """A time limit holds for the session that was given it."""
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(60, 2))
    np.savez(name, X=X, y=X[:, 0])
    options = [f"--run-dir={run}", "--features-dir", "features", "--centers", "20", "-q"]
    assert main([*options, "--time-limit", "0.000001s", "--", name]) == 75
    assert "time_limit" not in Path(run, "config.toml").read_text()
    command = capsys.readouterr().err.strip().partition("continue with: ")[2]
    assert command.startswith("python -m pipeline.train ")
    assert main(shlex.split(command)[3:]) == 0
