"""What is told while items are under way: counts that move inside them, words, time left; in every executor."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from numba import njit
from numba.core import event

from pipeline.runtime import events, progress
from pipeline.runtime.executors import open_executor
from pipeline.runtime.progress import COMPILING, Progress, Watch, _Task
from pipeline.stages import run_workspace as run_module
from pipeline.stages.run_workspace import Run
from pipeline.train import main

DEADLINE = 60.0  # of waiting for what comes in a second, on a machine that does other work


def count_and_wait(go_on: Path, item: str) -> str:
    """Count 30 of 100 units, and end when the file is there; an item that compiles says so."""
    with event.trigger_event("numba:compile") if item == "compiles" else nullcontext():
        while not go_on.exists():
            progress.advance(30 if not go_on.with_suffix(f".{item}").exists() else 0)
            go_on.with_suffix(f".{item}").touch()
            time.sleep(0.05)
    return item.upper()


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.ci)])
def test_the_count_moves_inside_items(scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, items, values = tmp_path / "go on", ["counts", "compiles"], []
    with (
        open_executor(scheduler, 2, 2, 2**30) as executor,
        Watch(tmp_path / "progress", [100.0, 100.0], "rows") as watch,
    ):

        def drive() -> None:
            for result in executor.run(watch.reporting(partial(count_and_wait, go_on)), enumerate(items)):
                values.append(result.value)
                watch.finished(result.item[0])

        driver = threading.Thread(target=drive)
        driver.start()
        try:
            end = time.monotonic() + DEADLINE
            while watch.now() != Progress(60.0, 200.0, "rows", COMPILING):
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            go_on.touch()
            driver.join()
        assert watch.now() == Progress(200.0, 200.0, "rows", "")
    assert sorted(values) == ["COMPILES", "COUNTS"]
    assert not (tmp_path / "progress").exists()


def test_a_worker_elsewhere_writes_little_and_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "progress"

    def count(item: int) -> None:
        for _ in range(1000):
            progress.advance()

    with monkeypatch.context() as patch, Watch(folder, [2000]) as watch:
        task, item = watch.reporting(count), (0, 0)
        patch.setattr(progress, "_watched", {})  # as in another process
        task(item)
        assert not folder.exists(), "an item of less than a second writes nothing"
        patch.setattr(progress, "WRITE_SECONDS", 0.0)
        task(item)
        assert watch.now().done == 1000
        (file,) = folder.iterdir()
        for torn in ("", "[5", "5"):
            file.write_text(torn)
            assert watch.now().done == 1000, "the last report stands"
        (folder / "ffff-0.json").write_text('[7, "of a session that was killed"]')
        assert watch.now().words == ""
        shutil.rmtree(folder)
        folder.touch()
        task(item)  # what cannot be written is not told
        patch.undo()
    assert folder.is_file(), "not ours, not removed"


def test_a_compilation_is_told(tmp_path: Path) -> None:
    told: list[str] = []

    class Words(event.Listener):
        def on_start(self, _: object) -> None:
            told.append(watch.now().words)

        on_end = on_start

    with Watch(tmp_path / "progress", words="choosing") as watch:
        assert watch.now().words == "choosing"
        with event.install_listener("numba:compile", Words()):
            assert njit(lambda x: x + 1)(1) == 2
        assert told == [COMPILING, "choosing"]
        event.start_event("numba:compile")
        event.start_event("numba:compile")
        event.end_event("numba:compile")
        assert watch.now().words == COMPILING, "the outer one is still being compiled"
        event.end_event("numba:compile")
        assert watch.now().words == "choosing"


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., float | None]]:
    """Return the seconds left at some time, when so many of 1000 units are done and something is said."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Watch(tmp_path / "progress", [1000.0], "rows") as watch:

        def at(seconds: float, done: float, words: str = "") -> float | None:
            nonlocal now
            now = seconds
            watch._reports[0] = done, words
            return watch.now().seconds_left

        yield at


def test_the_time_left_falls_while_nothing_moves(left: Callable[..., float | None]) -> None:
    assert [left(10.0, 0), left(20.0, 250), left(20.0, 250), left(35.0, 250)] == [None, 60.0, 60.0, 45.0]
    assert left(1000.0, 250) == 0


def test_nothing_is_forecast_from_little_work_or_from_compiling(left: Callable[..., float | None]) -> None:
    assert left(29.0, 10, COMPILING) is None
    assert left(30.0, 10, COMPILING) is None, "1 % in 30 s would be an hour"
    assert left(34.0, 110) is None, "4 s are too few"
    assert left(36.0, 210) == pytest.approx(6.0 * 790 / 200), "the compiling and what was done in it do not count"
    assert left(40.0, 210, COMPILING) is None, "a loop that is compiled later"
    assert left(60.0, 225) is None, "1.5 % is too little"


def test_nothing_is_forecast_of_what_is_not_counted(tmp_path: Path) -> None:
    with Watch(tmp_path / "progress", unit="", words="storing") as watch:
        assert watch.now() == Progress(0.0, 0.0, "", "storing")
        assert watch.now().text() == "storing"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run tell how far it is every few milliseconds, and give whoever tells it the time after each report."""
    monkeypatch.setattr(events, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(run_module, "STATE_SECONDS", 0.01)
    tell = _Task.tell

    def slowly(task: _Task, units: float = 0.0, words: str | None = None, *, at_once: bool) -> None:
        tell(task, units, words, at_once=at_once)
        time.sleep(0.03)

    monkeypatch.setattr(_Task, "tell", slowly)


def counts(told: str, unit: str) -> list[int]:
    """Return the numbers before `unit`, in the order in which they were told."""
    return [int(line.partition(f" {unit}")[0].split()[-1]) for line in told.splitlines() if f" {unit}" in line]


@pytest.mark.ci
@pytest.mark.usefixtures("often")
def test_a_run_counts_rows_and_centers(
    tmp_path: Path, tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[dict[str, Any]] = []  # for whoever asks for the status
    save = Run.save_state

    def noted(run: Run, stage: str, progress: dict[str, Any] | None = None) -> None:
        saved.append({"stage": stage} | (progress or {}))
        save(run, stage, progress)

    monkeypatch.setattr(Run, "save_state", noted)
    options = ["--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "features"), "--centers", "100"]
    greedy = ["--select", "greedy:20", "--sigma2", "auto", "--scheduler", "serial"]
    assert main([str(tables / "classes.npz"), *options, *greedy]) == 0
    told = capsys.readouterr().err
    statistics = "\n".join(line for line in told.splitlines() if line.startswith("statistics"))
    for counted in (counts(statistics, "of 675 rows"), counts(told, "of 100 centers chosen on the fit rows")):
        inside = [number for number in counted if 0 < number < max(counted)]
        assert inside, "it moves while the one item is under way"
        assert all(before <= after for before, after in pairwise(counted))
    assert "gaussian kernel on 100 candidates" in told
    assert "dropping those that are missed least" in told
    assert "storing the sums of all rows" in told
    of_rows = [state for state in saved if state["stage"] == "statistics" and state.get("unit") == "rows"]
    assert any(0 < state["done"] < state["total"] == 675 for state in of_rows)
    assert any(state.get("words", "").endswith("centers chosen on all rows") for state in saved)
    assert not (tmp_path / "run" / "progress").exists()


@pytest.mark.ci
@pytest.mark.usefixtures("often")
def test_a_path_counts_penalties(tmp_path: Path, tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "features"), "--centers", "40"]
    path = ["--penalty", "path:5:0.5:5", "--scheduler", "serial"]
    assert main([str(tables / "classes.npz"), *options, *path]) == 0
    told = capsys.readouterr().err
    found = counts(told, "of 15 penalties")
    assert any(number % 5 for number in found), "inside an output too"
    assert " of 3 solves" in told
