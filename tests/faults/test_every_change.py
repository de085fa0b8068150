"""kill -9, a full disk and a failing one, at every change of the disk that a toy run makes: never another model.

A sample of the changes by default; `make test-faults` breaks at every one of them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from runs import ROOT

COUNT = int(os.environ.get("SLKL_BREAKS", "12"))  # of each case; 0: at every call
RUNS = {
    "ordinary": ["--centers", "40", "--refit", "ridge"],
    "in rounds": ["--centers", "all", "--set", "centers.working_set=400", "--penalty", "3", "--refit", "ridge"],
    "on demand": ["--centers", "all", "--set", "centers.columns=on-demand", "--penalty", "30"],
    "checkpoints": [
        "--centers",
        "100",
        "--coupling",
        "shared",
        "--schedule",
        "uniform",
        "--checkpoint-every",
        "0.001s",
    ],
    "a selection": ["--centers", "300", "--select", "greedy:20"],
    "a selection in rounds": ["--centers", "all", "--set", "centers.working_set=300", "--select", "greedy:20"],
    "widths from the data": ["--centers", "40", "--sigma2", "auto"],
    "two widths": ["--centers", "all", "--sigma2", "1,4", "--penalty", "30", "--set", "centers.working_set=300"],
    "a path in rounds": [
        *("--centers", "all", "--penalty", "path:max:3:4", "--intercept"),
        *("--set", "centers.working_set=400"),
    ],
    "a path": ["--centers", "40", "--penalty", "path:max:0.1:4", "--intercept"],
}


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["kill", "ENOSPC", "EIO"])
@pytest.mark.parametrize("kind", RUNS)
def test_a_break_at_any_change_of_the_disk_costs_no_byte(tmp_path: Path, kind: str, how: str) -> None:
    program = Path(__file__).with_name("break_everywhere.py")
    arguments = ["digits", "--scheduler", "serial", "--features-dir", str(tmp_path / "features"), *RUNS[kind]]
    command = [sys.executable, str(program), str(tmp_path), how, str(COUNT), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert found["breaks"] >= min(COUNT or 100, 5)  # some calls fail without harm: what is left is swept later
    assert found["calls"] > 300


def model_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "model").iterdir())}


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, which CI installs")
@pytest.mark.parametrize("fault", ["signal=SIGKILL", "error=ENOSPC", "error=EIO"])
def test_strace_is_the_independent_witness(tmp_path: Path, fault: str) -> None:
    """The kernel's own view: no call of ours is wrapped, and no function that forgets the wrappers escapes."""
    command = [sys.executable, "-m", "pipeline.train", "digits", "--scheduler", "serial", "--centers", "40", "-q"]
    command += ["--features-dir", str(tmp_path / "features"), "--resume", "auto", "--run-dir"]
    log = tmp_path / "calls"
    watch = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=fsync,rename"]
    subprocess.run([*command, str(tmp_path / "first")], cwd=ROOT, check=True)  # builds the features
    subprocess.run([*watch, *command, str(tmp_path / "whole")], cwd=ROOT, check=True)
    calls = log.read_text()
    for call in ("fsync", "rename"):
        callers = Counter(re.findall(rf"^(\d+) +{call}\(", calls, re.MULTILINE))
        n_calls = callers.most_common(1)[0][1]  # of the main thread: strace counts threads and calls apart
        assert n_calls > 50
        run = tmp_path / call
        inject = ["-e", f"inject={call}:{fault}:when={n_calls // 2}"]
        line = [*watch, *inject, *command, str(run)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        if fault == "signal=SIGKILL":
            assert done.returncode in (-9, 137)
        else:
            assert done.returncode == 73, done.stderr
            assert str(tmp_path) in done.stderr
        subprocess.run([*command, str(run)], cwd=ROOT, check=True)
        assert model_of(run) == model_of(tmp_path / "whole")


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A tmpfs of 24 MiB: the run ends with 73 and goes on when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        command = [sys.executable, "-m", "pipeline.train", "digits", "--centers", "300", "-q", "--resume", "auto"]
        command += ["--features-dir", str(tmp_path / "features"), "--run-dir"]
        subprocess.run([*command, str(tmp_path / "whole")], cwd=ROOT, check=True)
        filler = disk / "filler"
        for free_bytes in (2**20, 5 * 2**20):
            filler.unlink(missing_ok=True)
            taken = shutil.disk_usage(disk).free - free_bytes
            with filler.open("wb") as stream:
                stream.write(b"x" * taken)
            done = subprocess.run([*command, str(disk / "run")], cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 73, done.stderr
            assert re.fullmatch(rf"error: {disk}\S*: (needs|cannot write) \d+ (bytes|MiB).*; .*\n", done.stderr)
        filler.unlink()
        subprocess.run([*command, str(disk / "run")], cwd=ROOT, check=True)
        assert model_of(disk / "run") == model_of(tmp_path / "whole")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
