"""What is told of items under way: counts, words, time left; and the line of a stage, on a terminal or not."""

import io
import re
import threading
import time
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

import pytest

import runs
from pipeline.runtime import console, progress
from pipeline.runtime.memory_limits import MemoryMeter
from pipeline.runtime.progress import Watch
from pipeline.work.events import Events
from pipeline.work.runner import open_executor
from storage.folder_layouts import RunLayout


def count_and_wait(go_on: Path, item: str) -> None:
    """Count 30 of 100 units, and end when the file is there."""
    progress.advance(30, "counting")
    while not go_on.exists():
        progress.advance(0)
        time.sleep(0.05)


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.ci)])
def test_the_count_moves_inside_items(scheduler, tmp_path):
    go_on = tmp_path / "go on"
    with (
        open_executor(scheduler, 2, 2, 2**30) as executor,
        Watch(tmp_path / "progress", [100.0, 100.0], "rows") as watch,
    ):
        items = executor.run(watch.reporting(partial(count_and_wait, go_on)), enumerate("ab"))
        driver = threading.Thread(target=list, args=[items])
        driver.start()
        try:
            runs.wait_until(lambda: (watch.now().done, watch.now().words) == (60.0, "counting"), 60)
        finally:
            go_on.touch()
            driver.join()
    assert not (tmp_path / "progress").exists()


def test_the_time_left_falls_while_nothing_moves(tmp_path, monkeypatch):
    now, left = 0.0, list[float | None]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Watch(tmp_path / "progress", [1000.0], "rows") as watch:

        def work(item: int) -> None:
            nonlocal now
            for now, units in ((3.0, 100), (10.0, 0), (20.0, 150), (35.0, 0), (1000.0, 0)):  # noqa: B007
                progress.advance(units)
                left.append(watch.now().seconds_left)

        watch.reporting(work)((0, 0))
    assert left == [None, None, 60.0, 45.0, 0.0], "nothing is forecast from a moment's work"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run tell how far it is every few milliseconds."""
    monkeypatch.setattr(console, "DRAW_SECONDS", 0.01)
    monkeypatch.setattr(console, "LINE_SECONDS", 0.01)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tell(folder: Path, stream: io.StringIO) -> None:
    """Tell of two stages, the second of which fails."""
    with (
        redirect_stderr(stream),
        MemoryMeter() as meter,
        Events(RunLayout(folder), {}, meter, quiet=False) as told,
    ):
        with told.stage("statistics"):
            with told.watching([32.0, 32.0], "rows", "residuals") as watch:
                watch.finished(0)
                runs.wait_until(lambda: "50%" in stream.getvalue(), 30, stream.getvalue)
                told.warn("a row is odd")
            with told.watching([1.0], "", "") as watch:
                assert watch.now().text() == "step 2,  0%", "counted anew"
        with pytest.raises(OSError, match="full"), told.stage("solve"):
            raise OSError("full")


@pytest.mark.usefixtures("often")
def test_the_line_stays_on_a_terminal_with_its_time_below_what_is_printed(tmp_path):
    tell(tmp_path, stream := Terminal())
    shown = [line.rpartition("\r")[2] for line in stream.getvalue().split("\n")]
    assert shown[0] == "warning: a row is odd"
    assert re.fullmatch(r"statistics +\d+\.\d s", shown[1])
    assert re.fullmatch(r"solve +\d+\.\d s  stopped", shown[2])
    assert re.search(r"statistics +\d+\.\d s  50%, 32 of 64 rows, residuals, ", stream.getvalue())


@pytest.mark.usefixtures("often")
def test_a_batch_log_gets_lines_and_one_at_the_end(tmp_path):
    tell(tmp_path, stream := io.StringIO())
    lines = stream.getvalue().splitlines()
    assert any(re.match(r"statistics: 50%, 32 of 64 rows, residuals, .*, \d+ s so far", line) for line in lines)
    ended = [line for line in lines if not line.endswith("so far")]
    assert re.fullmatch(r"statistics: done, \d+\.\d s", ended[-2])
    assert re.fullmatch(r"solve: stopped, \d+\.\d s", ended[-1])
