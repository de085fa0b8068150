"""kill -9 in the midst of passes over the rows, and what is taken up by other workers: little is lost, and no bit.

The pieces of each pass last longer than they need (see spy/sitecustomize.py), so that kills hit passes.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from pipeline.runtime.committed_sums import signature, take_over
from pipeline.runtime.row_pass import session_name
from runs import ROOT, loopback_cluster, model_bytes, workers_of
from storage.atomic_writes import read_arrays, write_arrays
from storage.errors import CorruptDataError, MissingDataError

SPY = Path(__file__).parent / "spy"
EVERY = 0.5  # seconds of --checkpoint-every
BUSY = 1.5  # seconds that a block and a commit may take on a machine that does other work
PIECE = 0.2  # seconds that a piece lasts at least
MODES = {
    "ordinary": ["--centers", "40", "--refit", "ridge"],
    "class weights": ["--centers", "40", "--class-weight", "balanced"],
    "shared": ["--centers", "40", "--coupling", "shared"],
    "a path": ["--centers", "40", "--penalty", "path:max:0.1:3"],
    "a selection": ["--centers", "60", "--select", "greedy:20"],
    "learned scales": ["--centers", "40", "--scale", "learned", "--set", "kernel.scale_rounds=1"],
    "in rounds": ["--centers", "300", "--set", "centers.working_set=120", "--penalty", "3", "--refit", "ridge"],
    "a path in rounds": ["--centers", "300", "--set", "centers.working_set=150", "--penalty", "path:max:3:3"],
    "on demand": ["--centers", "600", "--set", "centers.columns=on-demand", "--penalty", "3"],
    "a selection in rounds": ["--centers", "300", "--set", "centers.working_set=120", "--select", "greedy:20"],
}


class Note(NamedTuple):
    """A piece that was added: when, by which process, of what pass, its number."""

    seconds: float
    process: int
    kind: str
    piece: int

    @property
    def grid(self) -> str:
        return re.sub(r"^[A-Za-z]+", "", self.kind)


def notes_in(path: Path) -> list[Note]:
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split() for line in lines if len(line.split()) == 4]
    return [Note(float(seconds), int(process), kind, int(piece)) for seconds, process, kind, piece in words]


def spying(notes: Path, seconds: float) -> dict[str, str]:
    path = f"{SPY}{os.pathsep}{ROOT}"
    return {"SLKL_SPY": str(notes), "SLKL_SPY_SECONDS": str(seconds), "PYTHONPATH": path}


def command(run: Path, features: Path, *arguments: str) -> list[str]:
    line = [sys.executable, "-m", "pipeline.train", "digits", "-q", "--sigma2", "8", "--resume", "auto"]
    line += ["--checkpoint-every", f"{EVERY}s", "--features-dir", str(features), "--run-dir", str(run)]
    return [*line, *arguments]


@contextmanager
def started(line: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command with a session of its own, and kill all of its processes at the end."""
    with subprocess.Popen(line, cwd=ROOT, env=os.environ | variables, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(found: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Wait until something is so, or the process has ended; return whether it lives."""
    until = time.monotonic() + 240
    while not found():
        if process.poll() is not None:
            return False
        assert time.monotonic() < until
        time.sleep(0.02)
    return True


def committed(run: Path) -> dict[str, set[int]]:
    """Return the pieces that are in committed sums, by the grid of their pass, as notes name it."""
    found: dict[str, set[int]] = {}
    for path in run.glob("passes/*/sums-*.npz"):
        with suppress(MissingDataError, CorruptDataError):  # gone meanwhile
            arrays = read_arrays(path)
            grid = "-".join(map(str, arrays["grid"].tolist()))
            found.setdefault(grid, set()).update(arrays["pieces"].tolist())
    return found


def first_pass(session: list[Note]) -> list[Note]:
    """Return the notes of the pass that the first one is of."""
    return list(takewhile(lambda note: note.kind == session[0].kind, session))


def check_loss(run: Path, session: list[Note], killed: float) -> None:
    """Check that what a killed session added, and no committed sums have, was added just before."""
    added = first_pass(session[::-1])  # the one that was under way
    kept = committed(run).get(added[0].grid, set())
    lost = [killed - note.seconds for note in added if note.piece not in kept]
    print(f"lost {len(lost)} of {len(added)} pieces, all of the last {max(lost, default=0.0):.1f} s")
    assert max(lost, default=0.0) <= EVERY + BUSY


def check_files(run: Path, processes: int) -> None:
    """Check that a pass has no more files than processes, and one; for a moment there may be more."""
    for folder in run.glob("passes/*"):
        count = len(list(folder.glob("sums-*.npz")))
        if count > processes + 1:
            time.sleep(0.5)
            count = len(list(folder.glob("sums-*.npz")))
        assert count <= processes + 1, folder


@pytest.fixture(scope="module")
def spied_cluster(
    tmp_path_factory: pytest.TempPathFactory, cluster_key: tuple[list[str], dict[str, str]]
) -> Iterator[tuple[str, dict[str, str], Path]]:
    """The address of a cluster of two workers, the variables of its drivers, and the notes of its workers."""
    place, (key, variables) = tmp_path_factory.mktemp("cluster"), cluster_key
    notes = place / "notes"
    with loopback_cluster(place, key, variables | spying(notes, PIECE)) as address:
        yield address, variables, notes


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.parametrize("mode", MODES)
def test_kills_and_other_workers_and_limits_end_in_the_same_bytes(
    features: Path, tmp_path: Path, mode: str, spied_cluster: tuple[str, dict[str, str], Path]
) -> None:
    """Killed in processes, on a cluster whose workers live on, and in threads; ended one item after the other."""
    address, key, of_cluster = spied_cluster
    whole, run, moments = tmp_path / "whole", tmp_path / "run", random.Random(mode)
    undisturbed = command(whole, features, *MODES[mode], "--scheduler", "serial")
    environment = os.environ | spying(tmp_path / "notes", 0)
    subprocess.run(undisturbed, cwd=ROOT, check=True, env=environment)
    n_pieces = len(notes_in(tmp_path / "notes"))
    sessions = [
        ("processes", ["--workers", "2", "--memory-limit", "2GiB"]),
        (address, []),
        ("threads", ["--workers", "2", "--memory-limit", "900MiB"]),
    ]
    kills = 0
    for scheduler, more in sessions:
        notes = of_cluster if scheduler == address else tmp_path / f"notes-{scheduler}"
        n_before, before = len(notes_in(notes)), committed(run)
        line = command(run, features, *MODES[mode], "--scheduler", scheduler, *more)
        enough = n_before + moments.randrange(n_pieces // 10, n_pieces // 4)
        with started(line, spying(notes, PIECE) | (key if scheduler == address else {})) as process:
            lives = wait_until(lambda notes=notes, enough=enough: len(notes_in(notes)) >= enough, process)
            assert process.poll() in (None, 0)
            check_files(run, 2)
        killed, kills = time.monotonic(), kills + lives
        session = notes_in(notes)[n_before:]
        assert [note for note in first_pass(session) if note.piece in before.get(note.grid, ())] == []
        if scheduler != address and lives:
            check_loss(run, session, killed)
    assert kills == len(sessions)
    line = command(run, features, *MODES[mode], "--scheduler", "serial", "--memory-limit", "1GiB")
    subprocess.run(line, cwd=ROOT, check=True)
    assert model_bytes(run) == model_bytes(whole)
    assert not (run / "passes").exists()


@pytest.mark.nightly
@pytest.mark.alone
def test_the_share_of_a_lost_worker_is_taken_up_from_its_file(features: Path, tmp_path: Path) -> None:
    """Twice: what the lost worker had committed is not added again, and what it had not is little."""
    notes, run = tmp_path / "notes", tmp_path / "run"
    mode = ["--centers", "41"]
    subprocess.run(command(tmp_path / "whole", features, *mode, "--scheduler", "serial"), cwd=ROOT, check=True)
    lost: dict[int, float] = {}
    with started(
        command(run, features, *mode, "--scheduler", "processes", "--workers", "2"), spying(notes, PIECE)
    ) as driver:
        for kill in range(2):
            begun = len(notes_in(notes))
            assert wait_until(lambda begun=begun: len(notes_in(notes)) >= begun + 10, driver)
            at_work = {note.process for note in notes_in(notes)[begun:]} & {one.pid for one in workers_of(driver)}
            worker = sorted(at_work)[kill % len(at_work)]
            os.kill(worker, signal.SIGKILL)
            lost[worker] = time.monotonic()
        assert driver.wait(timeout=240) == 0
    added = [note for note in notes_in(notes) if note.kind.startswith("Statistics")]
    again = 0
    for piece in {note.piece for note in added}:
        first, *others = [note for note in added if note.piece == piece]
        for note in [first, *others][:-1]:
            assert note.process in lost, "nobody else's work is done again"
            assert lost[note.process] - note.seconds <= EVERY + BUSY
            again += 1
    assert again < 2 * (EVERY + BUSY) / PIECE
    assert {note.piece for note in added} == set(range(max(note.piece for note in added) + 1))
    assert len({note.process for note in added}) > 2, "others took it up"
    assert model_bytes(run) == model_bytes(tmp_path / "whole")


GRID = (7,)


def write(path: Path, pieces: list[int]) -> None:
    arrays = {"sums.x": np.array([float(sum(pieces))]), "pieces": np.array(pieces), "grid": signature(GRID)}
    write_arrays(path, arrays, durable=False)


def test_sums_that_are_taken_over_change_no_more(tmp_path: Path) -> None:
    """A worker of a killed session that writes once more writes beside them, and what it writes is removed later."""
    late = tmp_path / "sums-00-0000.npz"
    write(late, [0, 1, 2])
    write(tmp_path / "sums-00-0001.npz", [10, 11])
    (tmp_path / "sums-00-0002.npz").write_bytes(b"damaged")
    earlier = take_over(tmp_path, GRID, session_name())
    assert sorted(map(sorted, earlier.values())) == [[0, 1, 2], [10, 11]]
    write(late, [0, 1, 2, 3, 4, 5, 6])
    assert [sorted(read_arrays(path)["pieces"].tolist()) for path in sorted(earlier)] == [[0, 1, 2], [10, 11]]
    again = take_over(tmp_path, GRID, session_name())
    assert sorted(map(sorted, again.values())) == [[0, 1, 2, 3, 4, 5, 6], [10, 11]], (
        "each piece once, as many as can be"
    )
    assert set(tmp_path.iterdir()) == set(again)
