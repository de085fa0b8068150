"""The line of a stage: drawn again in place on a terminal, below what is printed meanwhile; few lines elsewhere."""

import io
import os
import re
import sys
import threading
from contextlib import redirect_stderr
from pathlib import Path

import pytest

import runs
from pipeline.runtime import events
from pipeline.runtime.events import Events, StageLine
from pipeline.runtime.memory_limits import MemoryMeter
from pipeline.runtime.progress import Progress, repeating

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


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "DRAW_SECONDS", 0.01)
    monkeypatch.setattr(events, "LINE_SECONDS", 0.01)


@pytest.mark.usefixtures("often")
def test_the_line_stays_with_its_time_below_what_is_printed(tmp_path: Path) -> None:
    stream = Terminal()
    with (
        MemoryMeter() as meter,
        Events(tmp_path / "log", tmp_path / "metrics", meter, quiet=False, stream=stream) as told,
        redirect_stderr(stream),
    ):
        with told.stage("statistics"):
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
        line._draw()
        line.write_above(stream, "begun")
        before = stream.getvalue()
        line._draw()
        assert stream.getvalue() == before
        line.write_above(stream, " and ended\n")
        line._draw()
        line.write_above(stream, "begun at the end")
    assert "begun and ended\n" in stream.getvalue()
    assert stream.getvalue().count("under way") == 2
    assert re.search(r"begun at the end\nsolve +\d+\.\d s\n$", stream.getvalue())


def test_an_error_does_not_end_what_is_repeated() -> None:
    calls, again = [], threading.Event()

    def fail() -> None:
        calls.append(1)
        if len(calls) > 1:
            again.set()
        raise KeyError("gone meanwhile")

    with repeating(0.01, fail):
        assert again.wait(30)


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
    stages = [line.split()[0] for line in on_screen(progress, columns) if not line.startswith("compiling")]
    assert [name for name in stages if name != "compile"] == ["features", "centers", "statistics", "solve", "evaluate"]
    assert len(re.findall(r"\r +\r", progress)) > 3, "it was drawn"
