"""What killed writers of predictions leave beside their output, and who removes it."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runs import held_python
from storage import output_files as outputs
from storage.output_files import SUFFIXES, sweep_output

WRITER = """
import contextlib, signal, sys
from pathlib import Path
import numpy as np
from storage.folders import new_folder
from storage.output_files import OutputSpec, writing
with contextlib.ExitStack() as stack:
    for path in map(Path, sys.argv[1:]):
        spec = OutputSpec(10, np.dtype("int64"), ("decision",))
        if path.suffix:
            stack.enter_context(writing(path, spec, replace=True))(np.zeros(5, int), np.zeros((5, 1)))
        else:
            stack.enter_context(new_folder(path))
    print("half", flush=True)
    signal.pause()
"""


@contextmanager
def half_written(paths: list[Path]) -> Iterator["subprocess.Popen[str]"]:
    with held_python(WRITER, *paths) as process:
        assert process.stdout.readline() == "half\n"
        yield process


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what was just written count as old."""
    now = time.time
    monkeypatch.setattr(outputs.time, "time", lambda: now() + 2 * outputs._SETTLED_SECONDS)


def test_what_a_killed_writer_left_goes_and_a_live_one_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, others = [tmp_path / f"of{suffix}" / f"out{suffix}" for suffix in (*SUFFIXES, "")], set()
    for path in paths:
        path.parent.mkdir()
        for name in (f".tmp-{path.name}", f".tmp-{path.name}-thesis", f".tmp-x{path.suffix}-{'0' * 16}"):
            other = path.with_name(name)
            other.write_text("mine") if path.suffix else other.mkdir()
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
