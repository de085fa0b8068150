"""kill -9 in the midst of passes over the rows, and what is taken up by other workers: little is lost, and no bit."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import dask
import psutil
import pytest

from cases import CASES, SERIAL
from faults.spied_runs import EVERY, PIECE, Note, first_pass, notes_in, spying, started, wait_for_notes
from pipeline.train import main
from pipeline.work.runner import open_executor
from runs import NIGHTLY, ROOT, loopback_cluster, model_bytes, workers_of
from storage.arrays import load
from storage.errors import CorruptDataError, MissingDataError

Key = tuple[list[str], dict[str, str]]
BUSY = 1.5  # seconds that a block and a commit may take on a machine that does other work
LONG_KILL_SECONDS = 45.0  # between two kills of the long run, on average
MOST_TIMES_UNBROKEN = 1.5
ENDLESS = 10  # times the unbroken run, after which kills as frequent as these let nothing end


def committed(run: Path) -> dict[str, set[int]]:
    """Return the pieces that are in committed sums, by the kind of their pass, as notes name it."""
    found: dict[str, set[int]] = {}
    for path in run.glob("passes/*/sums-*.npz"):
        with suppress(MissingDataError, CorruptDataError):  # gone meanwhile
            arrays = load(path).arrays
            (grid,) = arrays["grid"].tolist()
            found.setdefault(f"{grid}:{path.parent.name}", set()).update(arrays["pieces"].tolist())
    return found


def check_loss(run: Path, session: list[Note], killed: float) -> None:
    """Check that what a killed session added, and no committed sums have, was added just before."""
    added = first_pass(session[::-1])  # the one that was under way
    kept = committed(run).get(added[0].kind, set())
    lost = [killed - note.seconds for note in added if note.piece not in kept]
    print(f"lost {len(lost)} of {len(added)} pieces, all of the last {max(lost, default=0.0):.1f} s")
    assert max(lost, default=0.0) <= EVERY + BUSY


@pytest.fixture(scope="module")
def spied_cluster(tmp_path_factory: pytest.TempPathFactory, cluster_key: Key) -> Iterator[tuple[str, Path]]:
    """The address of a cluster of two workers, and the notes of its workers."""
    place, (key, variables) = tmp_path_factory.mktemp("cluster"), cluster_key
    with loopback_cluster(place, key, variables | spying(place / "notes")) as address:
        yield address, place / "notes"


@pytest.mark.alone
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.ci if case == "rounds" else pytest.mark.nightly) for case in CASES]
)
def test_kills_and_other_workers_and_limits_end_in_the_same_bytes(command, tmp_path, case, spied_cluster, cluster_key):
    """Killed in processes, on a cluster whose workers live on, and in threads; ended one item after the other."""
    (address, of_cluster), run, moments = spied_cluster, tmp_path / "run", random.Random(case)
    with started(command(tmp_path / "whole", case, *SERIAL), spying(tmp_path / "notes", 0)) as process:
        assert process.wait(240) == 0
    n_pieces = len(notes_in(tmp_path / "notes"))
    sessions = [
        ("processes", ["--workers", "2", "--memory-limit", "2GiB"]),
        (address, []),
        ("threads", ["--workers", "2", "--memory-limit", "900MiB"]),
    ]
    for scheduler, more in sessions:
        notes = of_cluster if scheduler == address else tmp_path / f"notes-{scheduler}"
        n_before, before = len(notes_in(notes)), committed(run)
        enough = n_before + moments.randrange(n_pieces // 10, n_pieces // 4)
        variables = spying(notes) | (cluster_key[1] if scheduler == address else {})
        with started(command(run, case, "--scheduler", scheduler, *more), variables) as process:
            wait_for_notes(notes, enough, process)
        killed = time.monotonic()
        session = notes_in(notes)[n_before:]
        assert [note for note in first_pass(session) if note.piece in before.get(note.kind, ())] == []
        if scheduler != address:
            check_loss(run, session, killed)
    assert main(command(run, case, *SERIAL, "--memory-limit", "1GiB")) == 0
    assert model_bytes(run) == model_bytes(tmp_path / "whole")
    assert not (run / "passes").exists()


def kill_workers(driver: subprocess.Popen[bytes], notes: Path, kills: int, pieces: int) -> dict[int, float]:
    """Kill a worker whenever so many pieces were added; return who died, and when."""
    lost: dict[int, float] = {}
    while len(lost) < kills:
        begun = len(notes_in(notes))
        wait_for_notes(notes, begun + pieces, driver)
        if at_work := {note.process for note in notes_in(notes)[begun:]} & {one.pid for one in workers_of(driver)}:
            worker = sorted(at_work)[len(lost) % len(at_work)]
            os.kill(worker, signal.SIGKILL)
            lost[worker] = time.monotonic()
    assert driver.wait(timeout=240) == 0
    return lost


@pytest.mark.ci
@pytest.mark.alone
def test_the_share_of_a_lost_worker_is_taken_up_from_its_file(command, whole, tmp_path):
    """Twice: what the lost worker had committed is not added again, and what it had not is little."""
    notes, run = tmp_path / "notes", tmp_path / "run"
    line = command(run, "one for each class", "--scheduler", "processes", "--workers", "2")
    with started(line, spying(notes, 2 * PIECE)) as driver:
        lost = kill_workers(driver, notes, 2, 5)
    added = [note for note in notes_in(notes) if note.kind.endswith(":statistics")]
    again = 0
    for piece in {note.piece for note in added}:
        first, *others = [note for note in added if note.piece == piece]
        for note in [first, *others][:-1]:
            assert note.process in lost, "nobody else's work is done again"
            assert lost[note.process] - note.seconds <= EVERY + BUSY
            again += 1
    assert again < 2 * (EVERY + BUSY) / (2 * PIECE)
    assert {note.piece for note in added} == set(range(max(note.piece for note in added) + 1))
    assert len({note.process for note in added}) > 2, "others took it up"
    assert model_bytes(run) == whole("one for each class")


@pytest.mark.nightly
@pytest.mark.parametrize(("case", "pieces"), [("rounds", 10), ("a selection", 5), ("on demand", 10)])
def test_workers_killed_in_a_loop_cost_no_byte(command, whole, tmp_path, case, pieces):
    run = tmp_path / "run"
    line = command(run, case, "--scheduler", "processes", "--workers", "2")
    with started(line, spying(tmp_path / "notes")) as driver:
        assert len(kill_workers(driver, tmp_path / "notes", 4, pieces)) == 4
    assert model_bytes(run) == whole(case)


def die_once(folder: Path, number: int) -> int:
    """Kill the process that is the first to run this item."""
    with suppress(FileExistsError):
        (folder / f"died-{number}").mkdir()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@pytest.mark.parametrize(
    "processes", [pytest.param(1, marks=pytest.mark.ci), pytest.param(2, marks=pytest.mark.nightly)]
)
def test_an_item_of_a_process_that_died_runs_in_the_one_that_takes_its_place(tmp_path, processes):
    """Also where all of them died at once, and nobody was there to take it."""
    with open_executor("processes", processes, processes, 2**30) as executor:
        items = range(processes)
        found = list(executor.run(partial(die_once, tmp_path), items))
    assert sorted(result.item for result in found) == [*items]
    assert len(list(tmp_path.iterdir())) == processes


def scheduler_of(place: Path) -> psutil.Process:
    """Return the scheduler of the cluster that was started at a place."""
    words = {str(place / "scheduler.json"), "distributed.cli.dask_scheduler"}
    (scheduler,) = [child for child in psutil.Process().children() if words.issubset(child.cmdline())]
    return scheduler


@pytest.mark.ci
def test_a_scheduler_that_dies_ends_the_run_resumably(command, whole, tmp_path, cluster_key, capsys):
    run, notes, variables = tmp_path / "run", tmp_path / "notes", cluster_key[1]
    settings = {name.removeprefix("DASK_").lower().replace("__", "."): value for name, value in variables.items()}

    def kill_scheduler() -> None:
        while len(notes_in(notes)) < 4:
            time.sleep(0.02)
        scheduler_of(tmp_path).kill()

    killing = threading.Thread(target=kill_scheduler)
    with loopback_cluster(tmp_path, cluster_key[0], variables | spying(notes, 0.5), workers=1) as address:
        killing.start()
        with dask.config.set(settings):
            assert main(command(run, "one for each class", "--scheduler", address)) == 69
        killing.join()
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: the dask scheduler was lost")
    assert told.endswith(f"--run-dir {run} --resume auto --scheduler {address})")
    assert "://" not in (run / "config.toml").read_text()  # where somebody else may listen by then
    assert main(command(run, "one for each class", *SERIAL)) == 0
    assert model_bytes(run) == whole("one for each class")


IMPATIENT = """
import sys
from pipeline.runtime import dask_executor
from pipeline.train import main
dask_executor.TOLD_SECONDS = 1
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.ci
def test_a_scheduler_that_stands_still_is_told_and_then_ends_the_run(command, tmp_path, cluster_key):
    """The process ends as well: no thread of dask's is left that Python waits for."""
    notes, (key, variables) = tmp_path / "notes", cluster_key
    with loopback_cluster(tmp_path, key, variables | spying(notes, 0.5), workers=2) as address:
        options = ["--scheduler", address, "--worker-timeout", "4s"]
        line = [sys.executable, "-c", IMPATIENT, *command(tmp_path / "run", "one for each class", *options)]
        environment = os.environ | variables
        with subprocess.Popen(line, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_for_notes(notes, 4, process)
                scheduler_of(tmp_path).suspend()
                told = process.communicate(timeout=40)[1].splitlines()
            finally:
                process.kill()
    assert process.returncode == 69
    assert "".join(told).count("warning: no answer of the scheduler for 1 s; the run waits for one") == 1
    assert told[-1].startswith("error: the dask scheduler has not answered for 4 s")


def session(line: list[str], killed_after: float | None = None) -> tuple[int, float]:
    """Train, killing all processes after some seconds; return the exit code and the seconds taken."""
    begun = time.monotonic()
    with started([*line, "-q", "--resume", "auto"], {}) as process, suppress(subprocess.TimeoutExpired):
        process.wait(killed_after)
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode, time.monotonic() - begun


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.skipif(not NIGHTLY, reason="takes an hour: set SLKL_NIGHTLY=1")
def test_kills_of_the_long_run_cost_little_and_change_nothing(data_dir, tmp_path, capsys):
    """On real MNIST, at random until it ends: all 60 000 candidates, far beyond the memory limit."""

    def command(place: Path, *data: str) -> list[str]:
        line = [*data, "--centers", "all", "--sigma2", "2", "--penalty", "1", "--memory-limit", "4GiB"]
        return [*line, "--checkpoint-every=10s", "--features-dir", f"{place}/features", "--run-dir", f"{place}/run"]

    data = ["mnist", "--config", str(ROOT / "jobs/paper/mnist.toml")]
    session(command(tmp_path / "compiles", "digits", "--set", "centers.working_set=600"))
    _, unbroken = session(command(tmp_path / "whole", *data))
    moments, seconds, code = random.Random(16), list[float](), -signal.SIGKILL
    while code == -signal.SIGKILL:
        code, took = session(command(tmp_path / "killed", *data), moments.expovariate(1 / LONG_KILL_SECONDS))
        seconds.append(took)
        assert sum(seconds) < ENDLESS * unbroken, f"{len(seconds)} sessions, and no end"
    with capsys.disabled():
        print(f"\nunbroken {unbroken:.0f} s, with {len(seconds) - 1} kills {sum(seconds):.0f} s in all")
    assert len(seconds) > 1
    assert model_bytes(tmp_path / "killed" / "run") == model_bytes(tmp_path / "whole" / "run")
    assert sum(seconds) <= MOST_TIMES_UNBROKEN * unbroken
