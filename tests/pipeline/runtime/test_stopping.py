"""Stopping on request: a flag that the work looks at, exit code 75, and the same bytes after going on."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from features.descriptors.descriptor import FeatureSpec
from features.source import SourceSpec
from features.standardisation import RunningMoments
from pipeline.config.settings import load
from pipeline.config.stored_settings import resumed
from pipeline.config.train_config import Resources, TrainConfig
from pipeline.datasets import compute_features, feature_request
from pipeline.datasets.feature_request import FeatureRequest
from pipeline.errors import StoppedError
from pipeline.runtime import stopping
from pipeline.runtime.stopping import Turn
from pipeline.train import main
from runs import LONG_SOLVE, ROOT
from storage.lock import FolderLock


def interrupt(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(1)


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_ends_idle_code_and_only_flags_work(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopping.listening(), pytest.raises(StoppedError, match=number.name):
        interrupt(number)
    with stopping.listening(), stopping.working():
        assert stopping.requested() is None
        stopping.check()
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        assert stopping.requested() == number.name
        with pytest.raises(StoppedError, match=number.name):
            stopping.check()
    assert signal.getsignal(number) is before
    assert stopping.requested() is None


def test_a_signal_that_was_held_back_until_somebody_listens_is_taken() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stopping.SIGNALS)
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # another thread might not hold it back
        with pytest.raises(StoppedError, match="SIGUSR1"), stopping.listening():
            time.sleep(1)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= set(stopping.SIGNALS)
    finally:
        signal.sigtimedwait(stopping.SIGNALS, 0)  # one that was not taken would end the tests
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_second_signal_leaves_a_command_that_is_ending_alone() -> None:
    with stopping.listening():
        with pytest.raises(StoppedError, match="SIGUSR1"):
            interrupt(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert stopping.requested() == "SIGUSR1"


def test_a_task_stops_once_its_turn_is_over_and_for_nothing_stale(tmp_path: Path) -> None:
    file = tmp_path / "turn"
    killed, ours = Turn.next(file), Turn.next(file)  # a cluster may still run tasks of a session that was killed
    with stopping.obeying(killed), pytest.raises(StoppedError):
        stopping.check()
    with stopping.obeying(ours):
        for stale in (b"2\n", b"1\n", b"", b"\0\0"):
            file.write_bytes(stale)
            time.sleep(stopping.LOOK_SECONDS)
            assert stopping.requested() is None
        file.unlink()
        time.sleep(stopping.LOOK_SECONDS)
        assert stopping.requested() is None
        file.write_bytes(b"3\n")
        time.sleep(stopping.LOOK_SECONDS)
        assert stopping.requested() is not None
        seen: list[str | None] = []
        other = threading.Thread(target=lambda: seen.append(stopping.requested()))
        other.start()
        other.join()
    assert seen == [None]  # a thread beside it runs a task of another run
    assert stopping.requested() is None


def test_looking_costs_a_solver_nothing(tmp_path: Path) -> None:
    def seconds(function: Callable[[], object]) -> float:
        started = time.thread_time()
        for _ in range(5000):
            function()
        return time.thread_time() - started

    turn = Turn.next(tmp_path / "turn")
    with stopping.obeying(turn):
        assert seconds(stopping.check) < seconds(turn.is_over) / 4


def test_the_time_limit_asks_once_it_is_over() -> None:
    with stopping.listening(), stopping.working(0.05):
        stopping.check()
        time.sleep(0.06)
        with pytest.raises(StoppedError, match="time limit"):
            stopping.check()


def test_the_moments_of_a_table_are_not_taken_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "table.npz", X=np.ones((400_000, 40), np.float32), y=np.arange(400_000) % 2)
    request = FeatureRequest(SourceSpec(str(tmp_path / "table.npz")), FeatureSpec("raw"), standardise=True)
    shape = feature_request.describe(request)
    blocks = []
    real = RunningMoments.update

    def update(moments: RunningMoments, block: np.ndarray, weights: np.ndarray | None = None) -> RunningMoments:
        blocks.append(len(block))
        os.kill(os.getpid(), signal.SIGTERM)
        return real(moments, block, weights)

    monkeypatch.setattr(RunningMoments, "update", update)
    with stopping.listening(), stopping.working(), pytest.raises(StoppedError, match="SIGTERM"):
        compute_features.fit_standardisation(request, shape)
    assert len(blocks) == 1
    assert blocks[0] < shape.n_train


@pytest.mark.parametrize("ends", ["time limit", "SIGTERM"])
def test_waiting_for_a_feature_store_ends_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ends: str
) -> None:
    command = ["digits", "--features-dir", str(tmp_path / "features"), "--centers", "20", "--run-dir"]
    assert main([*command, str(tmp_path / "first"), "-q"]) == 0
    (store,) = (path for path in (tmp_path / "features").iterdir() if path.suffix == "" and path.is_dir())
    store.rename(tmp_path / "away")
    waiting = tmp_path / "waiting"
    lock = FolderLock(store.with_name(f"{store.name}.lock"), "building features")
    lock.__enter__()
    release = threading.Timer(120, lock.__exit__, (None, None, None))  # it waits for as long as the other builds
    release.start()

    def ask() -> None:
        while not (waiting / "STATE.json").exists():
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    if ends == "SIGTERM":
        asking.start()
    started = time.monotonic()
    assert main([*command, str(waiting), *(["--time-limit", "1s"] if ends == "time limit" else [])]) == 75
    assert time.monotonic() - started < 20
    release.cancel()
    release.join()
    lock.__exit__(None, None, None)
    error = capsys.readouterr().err
    assert f"waiting for process {os.getpid()}" in error
    assert re.search(rf"stopped by (the )?{ends}; continue with: .* --resume auto", error)


@pytest.fixture(scope="module")
def whole(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["digits", "--run-dir", str(run), "--features-dir", str(features), *LONG_SOLVE]) in (0, 3)
    return run


def same_model(one: Path, other: Path) -> bool:
    names = ("model.json", "arrays.npz", "MANIFEST.json")
    return all((one / "model" / name).read_bytes() == (other / "model" / name).read_bytes() for name in names)


@pytest.mark.parametrize("scheduler", [pytest.param("serial", marks=pytest.mark.nightly), "threads"])
def test_a_solve_goes_on_from_its_checkpoint(
    features: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str
) -> None:
    """Every session is stopped by its time limit; the one solve ends all the same, with the same bytes."""
    run = tmp_path / "with space"
    command = ["digits", "--run-dir", str(run), "--features-dir", str(features), *LONG_SOLVE, "--scheduler", scheduler]
    steps = []
    for session in range(60):  # ever longer ones, for a machine that has other work
        code = main([*command, "--resume", "auto", "--time-limit", f"{0.7 + session / 20:.2f}s"])
        if code != 75:
            break
        error = capsys.readouterr().err.strip()
        assert error == (
            f"stopped by the time limit; continue with: python -m pipeline.train digits --run-dir '{run}' --resume auto"
        )
        found = sorted(path.name for path in (run / "checkpoints").glob("*/step-*"))
        assert len(found) <= 2
        steps += found[-1:]  # none where the solve was done before the session ended
    assert code in (0, 3)
    assert len(set(steps)) >= 2  # it got further in each session, inside one solve
    assert steps == sorted(steps)
    assert same_model(run, whole)
    assert not list((run / "checkpoints").glob("*/step-*"))


@pytest.mark.parametrize(
    "number", [stopping.SIGNALS[0], *(pytest.param(one, marks=pytest.mark.nightly) for one in stopping.SIGNALS[1:])]
)
def test_a_signal_stops_the_command_in_time_and_loses_nothing(
    features: Path, whole: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "pipeline.train", "digits", "--run-dir", str(run), "--features-dir", str(features)]
    command += [*LONG_SOLVE, "--resume", "auto"]
    moments = [run / "config.toml", run / "solutions"]  # the second one is in the middle of the solve
    for moment in moments:
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        while not moment.exists():
            assert process.poll() is None
            time.sleep(0.01)
        started = time.monotonic()
        process.send_signal(number)
        error = process.communicate(timeout=25)[1]
        assert process.returncode == 75, error
        assert f"stopped by {number.name}" in error
        assert time.monotonic() - started < 25
    assert main([*command[3:]]) in (0, 3)
    assert same_model(run, whole)


@pytest.mark.parametrize(("name", "run"), [("with space.npz", "run"), ("-x.npz", "run"), ("-x.npz", "-run")])
def test_the_command_it_prints_continues_and_stops_no_more(
    tmp_path: Path, name: str, run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_time_limit_that_an_older_version_froze_stops_no_session(tmp_path: Path) -> None:
    stored = replace(Resources(), time_limit=0.000001)
    config = TrainConfig("digits", resources=stored)
    assert resumed(config, load("digits", None, {})).resources.time_limit is None
    asked = load("digits", None, {"resources.time_limit": ("5m", "--time-limit")})
    assert resumed(config, asked).resources.time_limit == 300.0
