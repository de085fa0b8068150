"""A console whose reader leaves: work goes on, and a run ends by its result."""

import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
import zarr

import runs
from pipeline import status
from pipeline.runtime.console import Console

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


@pytest.mark.ci
def test_nothing_is_told_beside_an_error(tmp_path):
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
