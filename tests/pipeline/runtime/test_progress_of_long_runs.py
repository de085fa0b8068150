"""What `status` tells of a run of a minute never stands still: every few seconds something has moved."""

import time
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby, pairwise, product
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import pytest

from faults.spied_runs import spying, started
from pipeline.reporting.run_facts import status
from storage.errors import StorageError

STILL_SECONDS = 2.5  # between two tellings that are the same: one in 2 s may be, on a machine that does other work
SILENT_SECONDS = 6.0  # between two tellings, whose file waits for the disk
SCORING = "correlations of the candidates"
MNIST = ["mnist", "--set", "data.n_train=12000", "--set", "data.n_test=1000", "--set", "features.name=raw"]
MNIST += ["--sigma2", "50", "--penalty", "30"]
SEEN = {"at once": {("statistics", "rows")}, "in rounds": {("statistics", "rows"), ("solve", SCORING)}}
# Data of a mode and how it is trained. The pieces of the small table last longer than they need.
MODES = {
    "at once": [*MNIST, "--centers", "3000"],
    "in rounds": [*MNIST, "--centers", "all", "--set", "centers.working_set=3000"],
    "few rows, in rounds": ["classes.npz", "--centers", "200", "--set", "centers.working_set=100", "--penalty", "1"],
}


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


def looks(run: Path, process: Popen[bytes]) -> Iterator[Look]:
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


@pytest.mark.alone
@pytest.mark.parametrize(
    ("scheduler", "mode"),
    [
        pytest.param("threads", "few rows, in rounds", marks=pytest.mark.ci),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in product(("threads", "processes"), SEEN)),
    ],
)
def test_something_moves_every_few_seconds(
    request: pytest.FixtureRequest,
    tables: Path,
    features: Path,
    tmp_path: Path,
    scheduler: str,
    mode: str,
) -> None:
    run, data, environment = tmp_path / "run", MODES[mode], {}
    if data[0] == "mnist":
        data = [*data, "--data-dir", str(request.getfixturevalue("data_dir"))]
    else:
        data, environment = [str(tables / data[0]), *data[1:]], spying(tmp_path / "notes", 0.5)
    line = [*data, "-q", "--features-dir", str(features), "--run-dir", str(run), "--scheduler", scheduler]
    with started(line, environment) as process:
        found = list(looks(run, process))
        assert process.poll() in (None, 0, 3)
    assert {(look.stage, look.words) for look in found if look.is_pass} >= SEEN[mode.removeprefix("few rows, ")]
    for (*told, _), group in groupby(found, lambda look: (*look[:4], look.is_pass)):
        same = list(group)
        if same[0].is_pass and 0 < told[3] < 1:
            assert (same[-1].updated - same[0].updated).total_seconds() <= STILL_SECONDS, told
    silent = [((after.updated - before.updated).total_seconds(), before) for before, after in pairwise(found)]
    assert max(silent)[0] <= SILENT_SECONDS, max(silent)
