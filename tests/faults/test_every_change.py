"""kill -9, a full disk and a failing one, at changes of the disk that a small run makes: never another model.

Continuous integration breaks a sample of the changes, a nightly run every one of them.
"""

import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cases import CASES, SERIAL
from pipeline.train import main
from runs import NIGHTLY, ROOT, model_bytes, python
from storage import files as disk

KINDS = ("least squares", "one for each class", "plain steps", "a search", "a selection", "learned scales", "rounds")
KINDS += ("rounds, a selection", "on demand")
WAYS = [f"kill,{error}" for error in ("ENOSPC", "EIO")]


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        *(pytest.param(*each, marks=pytest.mark.ci) for each in zip(KINDS, itertools.cycle(WAYS), strict=False)),
        *(pytest.param(kind, "kill,ENOSPC,EIO", marks=pytest.mark.nightly) for kind in CASES if kind not in KINDS),
    ],
)
def test_a_break_at_any_change_of_the_disk_costs_no_byte(tmp_path, tables, kind, ways):
    count = 12
    if kind in KINDS:
        ways, count = ("kill,ENOSPC,EIO", 0) if NIGHTLY else (ways, 2)
    line = [CASES[kind].dataset(tables), "--features-dir", tmp_path / "features", *CASES[kind].arguments, *SERIAL]
    program, path = Path(__file__).with_name("break_everywhere.py"), f"{ROOT}{os.pathsep}{ROOT / 'tests'}"
    done = python(program, tmp_path, ways, str(count), *line, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["calls"] > 300
    for how in ways.split(","):
        assert found[how]["wrong"] == []
        # Some errors end nothing: what could not be removed is swept later. On a busy machine the counted run was once
        # seen to make a call more than the others, which then do not reach the last call to break.
        assert found[how]["ended"] >= (found[how]["tried"] - 1 if how == "kill" else 1)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, which CI installs")
@pytest.mark.parametrize(
    ("call", "fault"),
    [
        pytest.param(
            call, fault, marks=pytest.mark.ci if (call, fault) == ("fsync", "error=EIO") else pytest.mark.nightly
        )
        for call, fault in itertools.product(("fsync", "rename"), ("signal=SIGKILL", "error=ENOSPC", "error=EIO"))
    ],
)
def test_strace_is_the_independent_witness(tmp_path, command, whole, call, fault):
    """The kernel's own view: no call of ours is wrapped, and no function that forgets the wrappers escapes."""
    run, log, expected = tmp_path / "run", tmp_path / "calls", whole("one for each class")  # its features are stored

    def strace(run: Path, *options: str) -> subprocess.CompletedProcess[str]:
        line = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}", *options]
        line += [sys.executable, "-m", "pipeline.train", *command(run, "one for each class", *SERIAL)]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)

    assert strace(tmp_path / "whole").returncode == 0
    by_thread = [line.split()[0] for line in log.read_text().splitlines() if re.match(rf"\d+ +{call}\(", line)]
    n_calls = max(map(by_thread.count, set(by_thread)))  # of the main thread: strace counts threads apart
    assert n_calls > 50
    done = strace(run, "-e", f"inject={call}:{fault}:when={n_calls // 2}")
    if fault == "signal=SIGKILL":
        assert done.returncode in (-9, 137)
    else:
        assert done.returncode == 73, done.stderr
        assert str(tmp_path) in done.stderr
    assert main(command(run, "one for each class", *SERIAL)) == 0
    assert model_bytes(run) == expected


@pytest.mark.ci
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_disk_that_is_really_full(tmp_path, command, whole, capsys):
    """A tmpfs of 24 MiB: the run ends with 73 and goes on when there is room."""
    small, expected = tmp_path / "small", whole("one for each class")  # its features are stored
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        line, filler = command(small / "run", "one for each class", *SERIAL), small / "filler"
        for free_bytes, told in ((2**14, "needs"), (13 * 2**14, "cannot write")):
            filler.unlink(missing_ok=True)
            filler.write_bytes(b"x" * (shutil.disk_usage(small).free - free_bytes))
            assert main(line) == 73
            error = capsys.readouterr().err
            assert re.fullmatch(rf"error: {small}\S*: {told} \d+ (bytes|KiB|MiB).*; .*\n", error)
        filler.unlink()
        assert main(line) == 0
        assert model_bytes(small / "run") == expected
    finally:
        subprocess.run(["umount", str(small)], check=True)


def full_from(patch: pytest.MonkeyPatch, first: str) -> list[Path]:
    """Let every write fail from the first to a file of this name on, those of the log too; return what failed."""
    failed: list[Path] = []
    low_write, append = disk.low_write, disk.LineFile.append

    def write(descriptor: int, path: Path, data: Any) -> int:
        if failed or first in path.name:
            failed.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return low_write(descriptor, path, data)

    def line(self: disk.LineFile, text: str) -> None:
        with disk.write_errors(self.path, len(text)):
            if failed:
                raise OSError(errno.ENOSPC, "")
            append(self, text)

    patch.setattr(disk, "low_write", write)
    patch.setattr(disk.LineFile, "append", line)
    return failed


@pytest.mark.parametrize("name", ["all.npz", "candidates.npz", "final.npz"])
def test_the_first_file_that_found_no_room_is_the_one_that_is_told(tmp_path, name, capsys):
    """Whatever else finds none while the run ends."""
    arguments = ["sinc", "--set", "data.n_train=60", "--centers", "20", "--scheduler=serial", "-q", "--resume=auto"]
    arguments += ["--features-dir", str(tmp_path / "features"), "--run-dir", str(tmp_path / "run")]
    with pytest.MonkeyPatch.context() as patch:
        failed = full_from(patch, name)
        assert main(arguments) == 73
    assert len(failed) > 1  # others failed too
    told = capsys.readouterr().err
    assert re.fullmatch(rf"error: \S+{re.escape(name)}: cannot write \d+ bytes: disk full; .*\n", told)
    assert main(arguments) == 0
