"""What killed writers of predictions leave beside their output, and who removes it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr

from runs import ROOT
from storage import files as disk
from storage import output_files as outputs
from storage.errors import CannotWriteError
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


@contextmanager
def half_written(paths: list[Path]) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", WRITER, *paths]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "half\n"
            yield process
        finally:
            process.kill()


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
    with half_written(paths):
        pass  # killed
    for path in paths:
        sweep_output(path)
    left = set(tmp_path.glob("*/*")) - others
    assert {one.parent for one in left} == {path.parent for path in paths}  # they might have been begun this moment
    with half_written(paths) as live:
        settle(monkeypatch)
        for path in paths:
            sweep_output(path)
            assert len(list(path.parent.iterdir())) == 3 + 1  # the one of the live writer
        assert not any(one.exists() for one in left)
        live.send_signal(signal.SIGTERM)
        live.wait()
    for path in paths:
        sweep_output(path)
    assert set(tmp_path.glob("*/*")) == others


def test_a_store_whose_replacement_never_arrived_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.zarr"
    with writing(path, SPEC) as write:
        write(np.zeros(10, int), np.zeros((10, 1)))
    path.rename(disk.replaced_path(path))
    settle(monkeypatch)
    sweep_output(path)
    sweep_output(tmp_path / "none" / "out.csv")  # no folder, nothing to sweep
    assert [one.name for one in tmp_path.iterdir()] == ["out.zarr"]


def test_a_store_is_replaced_where_it_is_one_of_predictions_and_nothing_else(tmp_path: Path) -> None:
    """Somebody's own store, or a file of theirs in ours, is neither replaced by --force nor touched."""
    path, mine = tmp_path / "out.zarr", tmp_path / "mine.zarr"
    for replace in (False, True):
        with writing(path, SPEC, replace=replace) as write:
            write(np.zeros(10, int), np.zeros((10, 1)))
    zarr.create_group(mine, zarr_format=3).create_array("measured", data=np.arange(3))
    alike = zarr.create_group(tmp_path / "alike.zarr", zarr_format=3, attributes={"title": "mine"})
    for name in ("label", "decision"):
        alike.create_array(name, data=np.arange(3))
    with (
        pytest.raises(CannotWriteError, match="is no zarr store"),
        writing(tmp_path / "alike.zarr", SPEC, replace=True),
    ):
        pass
    with pytest.raises(CannotWriteError, match="is no zarr store of predictions"), writing(mine, SPEC, replace=True):
        pass
    with pytest.raises(CannotWriteError, match="holds label/notes"), writing(path, SPEC, replace=True) as write:  # noqa: PT012
        write(np.zeros(10, int), np.zeros((10, 1)))
        (path / "label" / "notes").write_text("mine")  # while we were at work
    assert (path / "label" / "notes").read_text() == "mine"
    assert (mine / "measured" / "c" / "0").exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["alike.zarr", "mine.zarr", "out.zarr"]
