"""kill -9, a full disk and a failing one, at changes of the disk that a small run makes: never another model.

Continuous integration breaks a sample of the changes, a nightly run every one of them.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cases import CASES, SERIAL
from pipeline.train import main
from runs import NIGHTLY, ROOT, model_bytes, python

KINDS = ("least squares", "one for each class", "plain steps", "a search", "a selection", "learned scales", "rounds")
KINDS += ("on demand",)
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
    """A tmpfs of 24 MiB: the run ends with 73 and goes on when there is room.

    The first file that found none is the one that is told, not the log, which finds none either while the run ends.
    """
    small, expected = tmp_path / "small", whole("one for each class")  # its features are stored
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        line, filler = command(small / "run", "one for each class", *SERIAL), small / "filler"
        filler.write_bytes(b"x" * (shutil.disk_usage(small).free - 13 * 2**14))
        assert main(line) == 73
        error = capsys.readouterr().err
        assert re.fullmatch(rf"error: {small}\S*(?<!\.jsonl): cannot write \d+ (bytes|KiB|MiB).*; .*\n", error)
        filler.unlink()
        assert main(line) == 0
        assert model_bytes(small / "run") == expected
    finally:
        subprocess.run(["umount", str(small)], check=True)
