"""What killed writers of predictions leave beside their output, and who removes it."""

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
import signal, sys
from pathlib import Path
import numpy as np
from storage.output_files import OutputSpec, writing
with writing(Path(sys.argv[1]), OutputSpec(10, np.dtype("int64"), ("decision",)), replace=True) as write:
    write(np.zeros(5, int), np.zeros((5, 1)))
    print("half", flush=True)
    signal.pause()
"""


def half_written(path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", WRITER, path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    return process


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what was just written count as old."""
    now = time.time
    monkeypatch.setattr(outputs.time, "time", lambda: now() + 2 * outputs._SETTLED_SECONDS)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_a_killed_writer_left_goes_and_a_live_one_keeps_its_own(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"out{suffix}"
    others = [
        tmp_path / name for name in (f".tmp-{path.name}", f".tmp-{path.name}-thesis", f".tmp-x{suffix}-{'0' * 16}")
    ]
    for other in others:
        other.mkdir() if suffix == ".zarr" else other.write_text("mine")
    with half_written(path) as live, half_written(path) as killed:
        killed.kill()
        killed.wait()
        (left,) = (one for one in tmp_path.iterdir() if one not in others and not _is_locked(one))
        sweep_output(path)
        assert left.exists()  # it might have been begun this moment
        settle(monkeypatch)
        sweep_output(path)
        assert not left.exists()
        assert len(list(tmp_path.iterdir())) == len(others) + 1  # the one of the live writer
        live.send_signal(signal.SIGTERM)
        live.wait()
    sweep_output(path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def _is_locked(path: Path) -> bool:
    import fcntl

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
    assert [one.name for one in tmp_path.iterdir()] == ["out.zarr"]


def test_a_folder_that_is_not_there_is_fine(tmp_path: Path) -> None:
    sweep_output(tmp_path / "none" / "out.csv")
