"""A console that is closed, full, gone or was never there: work goes on, and a run ends by its result."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import runs
from pipeline import status
from pipeline.runtime.console import Console
from runs import TrainedRuns

SCRIPT = "import sys; from pipeline.train import main; sys.exit(main(sys.argv[1:]))"


def test_text_that_a_stream_does_not_take_is_dropped() -> None:
    closed = io.StringIO()
    closed.close()
    with Path("/dev/full").open("w") as full:
        for stream in (None, closed, full):
            console = Console(stream)
            print("lost", file=console, flush=True)
            assert (console.lost is None, console.isatty()) == (stream is None, False)
        console.give_up()
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print("ä", file=Console(plain), flush=True)
    assert plain.buffer.getvalue() == b"\\xe4\n"


def test_a_full_standard_output_is_an_error_of_what_is_told_there(
    finished_run: TrainedRuns, tables: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("--centers", "20", dataset=tables / "values.npz")
    with Path("/dev/full").open("w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert status.main([str(run)]) == 73
    assert "error: standard output: [Errno 28] No space left on device" in capsys.readouterr().err


def leave_pipe(process: "subprocess.Popen[bytes]", master: int) -> None:
    process.stderr.readline()
    process.stderr.close()


def leave_terminal(process: "subprocess.Popen[bytes]", master: int) -> None:
    os.read(master, 1)
    os.close(master)


def own_terminal(hangup: Any) -> Callable[[], None]:
    def prepare() -> None:
        import fcntl
        import termios

        signal.signal(signal.SIGHUP, hangup)
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return prepare


@pytest.mark.ci
@pytest.mark.parametrize(
    ("way", "code"),
    [
        *((way, 0) for way in ("pipe", "<&- >&- 2>&-", ">/dev/full 2>&1", "terminal of others")),
        ("terminal", 75),
        ("terminal, nohup", 0),
        *(pytest.param(way, 0, marks=pytest.mark.nightly) for way in (">&-", "2>&-")),
    ],
)
def test_a_run_goes_on_without_a_console(tables: Path, tmp_path: Path, way: str, code: int) -> None:
    run, log = tmp_path / "run", tmp_path / "run" / "log.jsonl"
    words = [sys.executable, "-c", SCRIPT, str(tables / "classes.npz"), "--run-dir", str(run), "--centers", "300"]
    words += ["--kernel", "gaussian", "--features-dir", str(tmp_path / "f")]
    command = words if not way.startswith((">", "2", "<")) else ["sh", "-c", f'"$@" {way}', "sh", *words]
    master, slave = os.openpty()
    options: dict[str, Any] = {"cwd": runs.ROOT}
    if way == "pipe":
        options |= {"stderr": subprocess.PIPE}
    elif way.startswith("terminal"):
        options |= dict.fromkeys(("stdin", "stdout", "stderr"), slave)
    if way in ("terminal", "terminal, nohup"):
        options["preexec_fn"] = own_terminal(signal.SIG_DFL if code else signal.SIG_IGN)
    with subprocess.Popen(command, **options) as process:
        os.close(slave)
        runs.wait_until(log.exists, 60)
        leave = {"p": leave_pipe, "t": leave_terminal}.get(way[0])
        if leave is not None:
            leave(process, master)
        assert process.wait(120) == code
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert (run / "report.json").exists() == (code == 0)
    assert [line.get("error") for line in told if line["event"] == "error"] == ["StoppedError"] * (code == 75)


@pytest.mark.ci
def test_nothing_is_told_beside_an_error(tmp_path: Path) -> None:
    """Of some hundred chunks that zarr reads at once, many are unread when the first error ends the command."""
    group = zarr.open_group(str(tmp_path / "d.zarr"), mode="w")
    for name, chunks in (("X", (500, 5)), ("y", (60_000,))):
        shape = (60_000, 20)[: len(chunks)]
        group.create_array(name, data=np.random.default_rng(0).normal(size=shape), chunks=chunks)
    for chunk in (tmp_path / "d.zarr" / "X" / "c").glob("*/1"):
        chunk.write_bytes(b"no chunk")
    done = runs.python("-c", SCRIPT, tmp_path / "d.zarr", "--run-dir", tmp_path / "r", "--features-dir", tmp_path / "f")
    assert done.returncode == 65
    assert re.fullmatch("error: .*cannot be decoded.*\n", done.stderr)
