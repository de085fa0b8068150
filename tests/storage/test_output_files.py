"""What killed writers of predictions leave beside their output, and who removes it."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from runs import ROOT
from storage import disk_writes as disk
from storage import output_files as outputs
from storage.output_files import SUFFIXES, OutputSpec, sweep_output, writing

SPEC = OutputSpec(10, np.dtype("int64"), ("decision",))
WRITER = """
import contextlib, signal, sys
from pathlib import Path
import numpy as np
from storage.output_files import OutputSpec, writing
with contextlib.ExitStack() as stack:
    for path in sys.argv[1:]:
        spec = OutputSpec(10, np.dtype("int64"), ("decision",))
        stack.enter_context(writing(Path(path), spec, replace=True))(np.zeros(5, int), np.zeros((5, 1)))
    print("half", flush=True)
    signal.pause()
"""


def half_written(paths: list[Path]) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", WRITER, *paths], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    return process


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what was just written count as old."""
    now = time.time
    monkeypatch.setattr(outputs.time, "time", lambda: now() + 2 * outputs._SETTLED_SECONDS)


def test_what_a_killed_writer_left_goes_and_a_live_one_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, others = [tmp_path / suffix / f"out{suffix}" for suffix in SUFFIXES], set()
    for path in paths:
        path.parent.mkdir()
        for name in (f".tmp-{path.name}", f".tmp-{path.name}-thesis", f".tmp-x{path.suffix}-{'0' * 16}"):
            other = path.with_name(name)
            other.mkdir() if path.suffix == ".zarr" else other.write_text("mine")
            others.add(other)
    with half_written(paths) as live, half_written(paths) as killed:
        killed.kill()
        killed.wait()
        left = {one for path in paths for one in path.parent.iterdir() if one not in others and not _is_locked(one)}
        assert {one.parent for one in left} == {path.parent for path in paths}
        for path in paths:
            sweep_output(path)
        assert all(one.exists() for one in left)  # they might have been begun this moment
        settle(monkeypatch)
        for path in paths:
            sweep_output(path)
            assert len(list(path.parent.iterdir())) == 3 + 1  # the one of the live writer
        assert not any(one.exists() for one in left)
        live.send_signal(signal.SIGTERM)
        live.wait()
    for path in paths:
        sweep_output(path)
    assert {one for path in paths for one in path.parent.iterdir()} == others


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_store_whose_replacement_never_arrived_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.zarr"
    with writing(path, SPEC) as write:
        write(np.zeros(10, int), np.zeros((10, 1)))
    path.rename(disk.replaced_path(path))
    settle(monkeypatch)
    sweep_output(path)
    sweep_output(tmp_path / "none" / "out.csv")  # no folder, nothing to sweep
    assert [one.name for one in tmp_path.iterdir()] == ["out.zarr"]
