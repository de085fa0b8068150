"""What is told of items under way: counts, words, time left; and the line of a stage, on a terminal or not."""

import io
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from numba.core import event

import runs
from pipeline.runtime import events, progress
from pipeline.runtime.events import Events, StageLine
from pipeline.runtime.memory_limits import MemoryMeter
from pipeline.runtime.open_executor import open_executor
from pipeline.runtime.progress import COMPILING, Progress, Watch, _Task
from pipeline.stages import run_workspace as run_module
from pipeline.stages.run_workspace import Run
from pipeline.train import main


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
            runs.wait_until(lambda: watch.now() == Progress(60.0, 200.0, "rows", COMPILING), 60)
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


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run tell how far it is every few milliseconds, and give whoever tells it the time after each report."""
    monkeypatch.setattr(events, "DRAW_SECONDS", 0.01)
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


pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_screen(text: str, columns: int = 80) -> list[str]:
    """Return the lines that a terminal shows of a text; fails where one is written into what others have begun."""
    lines = [""]
    for token in re.findall(r"\r\n|\n|\r +\r|\r|[^\r\n]+", text):
        if token.endswith("\n"):
            lines.append("")
        elif token.startswith("\r"):
            lines[-1] = ""
        else:
            assert not lines[-1], f"{token!r} is written behind {lines[-1]!r}"
            assert "\x1b" not in token
            lines[-1] = token
            assert len(token) < columns, "what wraps cannot be drawn again"
    assert lines[-1] == ""
    return lines[:-1]


def wait_for(words: str, stream: io.StringIO) -> None:
    runs.wait_until(lambda: words in stream.getvalue(), 30, stream.getvalue)


@pytest.mark.usefixtures("often")
def test_the_line_stays_with_its_time_below_what_is_printed(tmp_path: Path) -> None:
    stream = Terminal()
    with (
        MemoryMeter() as meter,
        Events(tmp_path / "log", tmp_path / "metrics", meter, quiet=False, stream=stream) as told,
        redirect_stderr(stream),
    ):
        with told.stage("statistics"):
            wait_for("statistics", stream)
            with told.stage("compile"):
                pass
            with told.progress("statistics", Progress(32.0, 64.0, "rows", "residuals").text):
                wait_for("residuals", stream)
                told.warn("a row is odd")
                print("of others", file=sys.stderr)
            with told.progress("statistics", lambda: "storing"):
                wait_for("storing", stream)
        with pytest.raises(OSError, match="full"), told.stage("solve"):
            raise OSError("full")
    text = stream.getvalue()
    lines = on_screen(text)
    assert len(lines) == 5
    assert re.fullmatch(r"compile +\d+\.\d s", lines[0])
    assert lines[1:3] == ["warning: a row is odd", "of others"]
    assert re.fullmatch(r"statistics +\d+\.\d s", lines[3]), "its line is back after that of the stage inside"
    assert re.fullmatch(r"solve +\d+\.\d s  stopped", lines[4])
    assert re.search(r"statistics +\d+\.\d s  50%, 32 of 64 rows, residuals, ", text)
    assert "storing, " in text
    assert sys.stderr is not stream


@pytest.mark.usefixtures("often")
def test_a_batch_log_gets_lines_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with StageLine(stream, "statistics", lambda: "half"):
        wait_for("half", stream)
    *during, last = stream.getvalue().splitlines()
    assert during
    assert all(re.fullmatch(r"statistics: half, \d+ s so far", line) for line in during)
    assert re.fullmatch(r"statistics: done, \d+\.\d s", last)
    monkeypatch.setattr(events, "LINE_SECONDS", 60.0)
    short = io.StringIO()
    with StageLine(short, "read", str, lambda: "x.csv, 9 rows"):
        pass
    assert re.fullmatch(r"read: x\.csv, 9 rows, \d+\.\d s\n", short.getvalue())


@pytest.mark.usefixtures("often")
def test_a_notebook_is_a_terminal_that_knows_no_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", sys)
    stream, words = io.StringIO(), iter(["many words", "few"])
    with StageLine(stream, "solve", lambda: next(words, "")):
        wait_for("few", stream)
    (line,) = on_screen(stream.getvalue())
    assert re.fullmatch(r"solve +\d+\.\d s", line)


def test_a_line_that_others_have_begun_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "DRAW_SECONDS", 60.0)
    stream = Terminal()
    with StageLine(stream, "solve", lambda: "under way") as line:
        for words in ("begun", " and ended\n", "begun at the end"):
            line._draw()
            line.write_above(stream, words)
            line._draw()
    assert on_screen(stream.getvalue())[:2] == ["begun and ended", "begun at the end"]
    assert stream.getvalue().count("under way") > 1


@pytest.mark.ci
@pytest.mark.parametrize("columns", [80, 40])
def test_a_run_in_a_terminal_is_a_line_a_stage(tmp_path: Path, columns: int) -> None:
    words = ["train", "digits", "--centers", "60", "--run-dir", str(tmp_path / "run")]
    words += ["--features-dir", str(tmp_path / "features")]
    code = (
        "import sys; from pipeline.runtime import events; events.DRAW_SECONDS = 0.02;"
        "from pipeline.__main__ import main; sys.exit(main())"
    )
    process, terminal = pty.fork()
    if not process:
        os.chdir(runs.ROOT)
        environment = os.environ | {"COLUMNS": str(columns)}
        os.execve(sys.executable, [sys.executable, "-c", code, *words], environment)
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:  # Linux's end of a terminal
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, shown
    progress = shown.decode().partition(f"{tmp_path / 'run'}\r\n")[2].partition("\r\n\r\n")[0] + "\r\n"
    stages = [line.split()[0] for line in on_screen(progress, columns) if not line.startswith("compil")]
    assert stages == ["features", "candidates", "statistics", "solve", "evaluate"]
    assert len(re.findall(r"\r +\r", progress)) > 3, "it was drawn"
