"""All candidates of MNIST, far beyond the memory limit, under kill -9 at random until the run ends: `make test-long`.

SLKL_LONG_RUN is the mean number of seconds between two kills; without it the test is skipped. SLKL_LONG_ROWS are the
training rows, every one of them a candidate (default: all 60 000). With fewer, the working set is a third of them, and
what the kills cost is told but not bounded: starts would be most of it. SLKL_LONG_RUN=4 SLKL_LONG_ROWS=6000 takes
minutes.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runs import ROOT, model_bytes

ALL_ROWS = 60_000
MOST_TIMES_UNBROKEN = 1.5
ENDLESS = 10  # times the unbroken run, after which kills as frequent as these let nothing end


def command(place: Path, *arguments: str) -> list[str]:
    """The training in rounds whose run and features are in a folder of their own."""
    line = [sys.executable, "-m", "pipeline.train", *arguments, "-q", "--centers", "all", "--sigma2", "2"]
    line += ["--penalty", "1", "--memory-limit", "4GiB", "--checkpoint-every", "10s", "--resume", "auto"]
    return [*line, "--features-dir", str(place / "features"), "--run-dir", str(place / "run")]


def session(line: list[str], killed_after: float | None = None) -> tuple[int, float]:
    """Run a command, killing all of its processes after some seconds; return exit code and the seconds it took."""
    started = time.monotonic()
    with subprocess.Popen(line, cwd=ROOT, start_new_session=True) as process:
        try:
            process.wait(killed_after)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return process.returncode, time.monotonic() - started


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.skipif("SLKL_LONG_RUN" not in os.environ, reason="takes an hour: make test-long")
def test_kills_until_the_end_cost_little_and_change_nothing(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mean, rows = float(os.environ["SLKL_LONG_RUN"]), int(os.environ.get("SLKL_LONG_ROWS", ALL_ROWS))
    data = ["mnist", "--config", str(ROOT / "jobs/paper/mnist.toml"), "--data-dir", str(data_dir)]
    if rows < ALL_ROWS:
        data += ["--set", f"data.n_train={rows}", "--set", f"centers.working_set={rows // 3}"]
    code, _ = session(command(tmp_path / "compiles", "digits", "--set", "centers.working_set=600"))
    assert code == 0
    code, unbroken = session(command(tmp_path / "whole", *data))
    assert code == 0

    moments, seconds, code = random.Random(16), list[float](), -signal.SIGKILL
    while code == -signal.SIGKILL:
        code, took = session(command(tmp_path / "killed", *data), moments.expovariate(1 / mean))
        seconds.append(took)
        assert sum(seconds) < ENDLESS * unbroken, f"{len(seconds)} sessions, and no end"
    assert code == 0
    with capsys.disabled():
        print(
            f"\n{rows} rows: unbroken {unbroken:.0f} s, with {len(seconds) - 1} kills {sum(seconds):.0f} s in all, "
            f"{sum(seconds) / unbroken:.2f} times; one every {mean:g} s on average"
        )
    assert len(seconds) > 1
    assert model_bytes(tmp_path / "killed" / "run") == model_bytes(tmp_path / "whole" / "run")
    if rows == ALL_ROWS:
        assert sum(seconds) <= MOST_TIMES_UNBROKEN * unbroken
