"""The memory limit is a promise: kept by the whole process tree, and what breaks it ends with 71 and advice."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
CGROUPS = Path("/sys/fs/cgroup/memory")
HUNGRY = """\
import os
if os.environ.get("SLKL_HUNGRY"):
    from pipeline.stages import statistics
    real = statistics.accumulate_span
    def accumulate_span(task, span):
        bytearray(os.urandom(2**20)) * 4000
        return real(task, span)
    accumulate_span.__module__, accumulate_span.__qualname__ = real.__module__, real.__qualname__
    statistics.accumulate_span = accumulate_span
"""


def command(run: Path, *arguments: str) -> list[str]:
    line = [sys.executable, "-m", "pipeline.train", "synthetic", "--set", "data.n_train=9000", "--set"]
    line += ["data.n_test=300", "--penalty", "30", "-q", "--run-dir", str(run), "--features-dir"]
    return [*line, str(run.parent / "features"), *arguments]


@contextmanager
def cgroup(limit_bytes: int) -> Iterator[Path | None]:
    """Yield a control group of this limit, or None where none can be made."""
    folder = CGROUPS / f"slkl-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        folder.rmdir()


def largest_tree_bytes(process: subprocess.Popen[bytes], stop: threading.Event, found: list[int]) -> None:
    """Sample the proportional memory of a process and all below it."""
    while not stop.wait(0.1):
        try:
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            found.append(sum(one.memory_full_info().pss for one in tree))
        except psutil.Error:
            continue


CASES = {
    "ordinary": (["--centers", "1500", "--scheduler", "threads"], 900),
    "processes": (["--centers", "600", "--scheduler", "processes", "--workers", "2"], 1600),
    "in rounds": (["--centers", "all", "--scheduler", "threads"], 700),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_process_tree_stays_below_the_limit(tmp_path: Path, case: str) -> None:
    arguments, limit_mib = CASES[case]
    line = command(tmp_path / "run", *arguments, "--memory-limit", f"{limit_mib}MiB")
    with cgroup(limit_mib * 2**20) as group:
        if group is not None:  # a shell that enters the group and then becomes the run
            line = ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *line]
        process, stop, samples = subprocess.Popen(line, cwd=ROOT), threading.Event(), list[int]()
        sampler = threading.Thread(target=largest_tree_bytes, args=(process, stop, samples))
        sampler.start()
        try:
            assert process.wait(timeout=300) in (0, 3)
        finally:
            stop.set()
            sampler.join()
            process.kill()
        if group is not None:
            assert "oom_kill 0" in (group / "memory.oom_control").read_text()
    assert 100 * 2**20 < max(samples) < limit_mib * 2**20
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["passes"] is not None) == (case == "in rounds")


@pytest.mark.slow
def test_a_worker_over_its_memory_ends_the_run_with_advice(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HUNGRY)
    path = f"{tmp_path / 'site'}{os.pathsep}{ROOT}"
    line = command(tmp_path / "run", "--centers", "100", "--scheduler", "processes", "--workers", "1")
    line += ["--memory-limit", "1GiB"]
    started = time.monotonic()
    done = subprocess.run(
        line,
        cwd=ROOT,
        env={**os.environ, "SLKL_HUNGRY": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 71, done.stderr
    assert "memory" in done.stderr
    assert "--memory-limit" in done.stderr
    assert time.monotonic() - started < 240
    assert subprocess.run([*line, "--resume", "auto"], cwd=ROOT, check=False).returncode in (0, 3)


def test_a_limit_too_small_names_the_smallest_that_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.train import main

    arguments = command(tmp_path / "run", "--centers", "all", "--memory-limit", "300MiB")[3:]
    assert main(arguments) == 71
    error = capsys.readouterr().err
    assert "use --memory-limit" in error
    smallest = error.split("--memory-limit ")[1].split("MiB")[0]
    assert not (tmp_path / "run").exists()
    assert main([*arguments, "--memory-limit", f"{smallest}MiB", "--dry-run"]) == 0
