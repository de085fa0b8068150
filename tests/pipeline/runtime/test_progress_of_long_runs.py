"""What `status` tells of a run of a minute never stands still: every few seconds something has moved."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.reporting.run_facts import status
from runs import ROOT, loopback_cluster
from storage.errors import StorageError

pytestmark = [pytest.mark.nightly, pytest.mark.alone]

STILL_SECONDS = 2.5  # between two tellings that are the same: one in 2 s may be, on a machine that does other work
SILENT_SECONDS = 6.0  # between two tellings, whose file waits for the disk
SCORING = "scoring the candidates"
MNIST = ["--set", "data.n_train=12000", "--set", "data.n_test=1000", "--set", "features.name=raw", "--sigma2", "50"]
MODES = {
    "at once": ["--centers", "3000", "--penalty", "30"],
    "in rounds": ["--centers", "all", "--set", "centers.working_set=3000", "--penalty", "30"],
}
SEEN = {"at once": {("statistics", "rows")}, "in rounds": {("statistics", "rows"), ("solve", SCORING)}}


class Look(NamedTuple):
    """What `status` told: the stage, what it does, how much of it is done, and when that was so."""

    stage: str
    words: str
    done: float
    share: float | None
    updated: datetime

    @property
    def is_pass(self) -> bool:
        """Whether it tells of a pass over the rows, and not of solves, or of what cannot be counted."""
        return self.share is not None and (self.stage == "statistics" or self.words in ("rows", "residuals", SCORING))


def looks(run: Path, process: subprocess.Popen[bytes]) -> Iterator[Look]:
    """Look again and again until the process has ended, or a minute is over."""
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
        if not (run / "STATE.json").exists():
            continue
        try:
            facts = status(run)
        except StorageError:  # the run is about to be there
            continue
        if told := facts["progress"]:
            updated = datetime.fromisoformat(told["updated"])
            yield Look(facts["stage"], told["words"] or told["unit"], told["done"], told["share"], updated)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scheduler", ["threads", "cluster"])
def test_something_moves_every_few_seconds(
    data_dir: Path,
    features: Path,
    tmp_path: Path,
    cluster_key: tuple[list[str], dict[str, str]],
    scheduler: str,
    mode: str,
) -> None:
    run, (key, variables) = tmp_path / "run", cluster_key
    line = [sys.executable, "-m", "pipeline.train", "mnist", "--data-dir", str(data_dir), *MNIST, *MODES[mode], "-q"]
    line += ["--features-dir", str(features), "--run-dir", str(run), "--scheduler"]
    with ExitStack() as stack:
        address, environment = scheduler, dict(os.environ)
        if scheduler == "cluster":
            address = stack.enter_context(loopback_cluster(tmp_path, key, variables))
            environment |= variables
        with subprocess.Popen([*line, address], cwd=ROOT, env=environment) as process:
            found = list(looks(run, process))
            assert process.poll() in (None, 0, 3)
            process.kill()
    assert {(look.stage, look.words) for look in found if look.is_pass} >= SEEN[mode]
    for (*told, _), group in groupby(found, lambda look: (*look[:4], look.is_pass)):
        same = list(group)
        if same[0].is_pass and 0 < told[3] < 1:
            assert (same[-1].updated - same[0].updated).total_seconds() <= STILL_SECONDS, told
    silent = [((after.updated - before.updated).total_seconds(), before) for before, after in pairwise(found)]
    assert max(silent)[0] <= SILENT_SECONDS, max(silent)
