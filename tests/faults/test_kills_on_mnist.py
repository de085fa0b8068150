"""A long run on real MNIST under kill -9 at random, until it ends: in the same bytes, and it is told what they cost."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runs import NIGHTLY, ROOT, model_bytes

pytestmark = [pytest.mark.nightly, pytest.mark.alone]

LONG_KILL_SECONDS = 45.0  # between two kills of the long run, on average
MOST_TIMES_UNBROKEN = 1.5
ENDLESS = 10  # times the unbroken run, after which kills as frequent as these let nothing end


def session(line: list[str], killed_after: float | None = None) -> tuple[int, float]:
    """Run the main command, killing all of its processes after some seconds; return exit code and the seconds taken."""
    started, command = time.monotonic(), [sys.executable, "-m", "pipeline.train", *line, "-q", "--resume", "auto"]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            process.wait(killed_after)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode, time.monotonic() - started


@pytest.mark.skipif(not NIGHTLY, reason="takes an hour: set SLKL_NIGHTLY=1")
def test_kills_of_the_long_run_cost_little_and_change_nothing(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All 60 000 candidates, far beyond the memory limit."""

    def command(place: Path, *data: str) -> list[str]:
        line = [*data, "--centers", "all", "--sigma2", "2", "--penalty", "1", "--memory-limit", "4GiB"]
        return [*line, "--checkpoint-every=10s", "--features-dir", f"{place}/features", "--run-dir", f"{place}/run"]

    data = ["mnist", "--config", str(ROOT / "jobs/paper/mnist.toml"), "--data-dir", str(data_dir)]
    session(command(tmp_path / "compiles", "digits", "--set", "centers.working_set=600"))
    _, unbroken = session(command(tmp_path / "whole", *data))
    moments, seconds, code = random.Random(16), list[float](), -signal.SIGKILL
    while code == -signal.SIGKILL:
        code, took = session(command(tmp_path / "killed", *data), moments.expovariate(1 / LONG_KILL_SECONDS))
        seconds.append(took)
        assert sum(seconds) < ENDLESS * unbroken, f"{len(seconds)} sessions, and no end"
    with capsys.disabled():
        print(f"\nunbroken {unbroken:.0f} s, with {len(seconds) - 1} kills {sum(seconds):.0f} s in all")
    assert len(seconds) > 1
    assert model_bytes(tmp_path / "killed" / "run") == model_bytes(tmp_path / "whole" / "run")
    assert sum(seconds) <= MOST_TIMES_UNBROKEN * unbroken
