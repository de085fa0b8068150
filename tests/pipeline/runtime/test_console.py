"""A console whose reader leaves: work goes on, and a run ends by its result.

What a command answers with: one line and a code for an error, a traceback where nothing else tells of a bug.
"""

import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path
from unittest.mock import Mock

import pytest

import runs
from features.errors import DataError
from pipeline import status
from pipeline.errors import PlanError, StoppedError
from pipeline.runtime.console import Console, answered, describe

SCRIPT = "import sys; from pipeline.train import main; sys.exit(main(sys.argv[1:]))"


def test_letters_that_an_encoding_lacks_are_escaped():
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print("ä", file=Console(plain), flush=True)
    assert plain.buffer.getvalue() == b"\\xe4\n"


def test_a_full_standard_output_is_an_error(finished_run, tables, monkeypatch, capsys):
    run = finished_run("--centers", "20", dataset=tables / "values.npz")
    with Path("/dev/full").open("w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert status.main([str(run)]) == 73
    assert "No space left on device" in capsys.readouterr().err


def hang_up_terminal() -> None:
    """Make standard input the terminal of this process, which then gets SIGHUP when it closes."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.ci
@pytest.mark.parametrize(("way", "code"), [("pipe", 0), ("terminal of others", 0), ("own terminal", 75)])
def test_a_run_goes_on_when_nobody_reads_and_stops_with_its_terminal(tables, tmp_path, way, code):
    run, log = tmp_path / "run", tmp_path / "run" / "log.jsonl"
    words = [sys.executable, "-c", SCRIPT, str(tables / "classes.npz"), "--run-dir", str(run), "--centers", "300"]
    words += ["--kernel", "gaussian", "--features-dir", str(tmp_path / "f")]
    reading, writing = os.pipe() if way == "pipe" else os.openpty()
    streams = {"stderr": writing} if way == "pipe" else dict.fromkeys(("stdin", "stdout", "stderr"), writing)
    prepare = hang_up_terminal if way == "own terminal" else None
    with subprocess.Popen(words, cwd=runs.ROOT, preexec_fn=prepare, **streams) as process:  # type: ignore[call-overload]
        os.close(writing)
        runs.wait_until(log.exists, 60)
        os.read(reading, 1)
        os.close(reading)
        assert process.wait(120) == code
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert (run / "report.json").exists() == (code == 0)
    assert [line.get("error") for line in told if line["event"] == "error"] == ["StoppedError"] * (code == 75)


def caused_by(cause: Exception) -> Exception:
    error = OSError("cannot load a library")
    error.__cause__ = cause
    return error


CASES: list[tuple[BaseException, int, str]] = [
    (PlanError("the plan\n  needs more"), 71, "the plan needs more"),
    (OSError(errno.ENOSPC, "No space left on device", "/full/file"), 73, "free some space"),
    (OSError(errno.EFBIG, "File too large", "/large/file"), 73, "allow larger files (ulimit -f)"),
    (OSError(errno.EMFILE, "Too many open files", "/one/more"), 69, "allow more open files (ulimit -n)"),
    (OSError(errno.EIO, "Input/output error", "/data"), 69, "see whether the disk is whole"),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 71, "(ulimit -u, ulimit -v)"),
    (RuntimeError("can't start new thread"), 71, "(ulimit -u, ulimit -v)"),
    (RuntimeError("cannot cache function 'f': no locator available"), 73, "set NUMBA_CACHE_DIR"),
    (PermissionError(errno.EACCES, "denied", "/closed/file"), 73, "/closed/file: permission denied"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2, "the name is too long"),
    (OSError(errno.ELOOP, "Too many levels of symbolic links", "/loop"), 73, "links that lead to each other"),
    (RuntimeError("Symlink loop from '/loop'"), 73, "links that lead to each other"),
    (MemoryError("8 GiB"), 71, "out of memory: 8 GiB"),
    (KeyboardInterrupt(), 75, "interrupted"),
    (DataError("/a/\x1b[2J\u202e: damaged"), 65, "/a/\\x1b[2J\\u202e: damaged"),
    (caused_by(ImportError("a.so: failed to map segment from shared object")), 71, "out of memory"),
    (ZeroDivisionError("division by zero"), 70, "ZeroDivisionError: division by zero"),
    (RuntimeError(), 70, "RuntimeError"),
]


@pytest.mark.parametrize(("error", "code", "words"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_is_one_line_and_a_code(error, code, words, capsys):
    number, line = describe(error)
    assert number == code
    assert words in line
    assert "\n" not in line
    assert answered(Mock(side_effect=error)) == code
    assert capsys.readouterr().err.endswith(f"error: {line}\n")


def test_a_stop_is_no_error_of_what_can_go_on(capsys):
    for error in (StoppedError("stopped"), KeyboardInterrupt()):
        assert answered(Mock(side_effect=error), is_run=True) == 75
    assert capsys.readouterr().err == "stopped\ninterrupted\n"


def test_a_bug_comes_with_its_traceback_unless_a_log_has_it(capsys):
    bug = RuntimeError("never")
    assert answered(Mock(side_effect=bug)) == 70
    assert capsys.readouterr().err.startswith("Traceback")
    bug.add_note("(traceback in log.jsonl)")
    assert answered(Mock(side_effect=bug)) == 70
    assert capsys.readouterr().err == "error: RuntimeError: never (traceback in log.jsonl)\n"
