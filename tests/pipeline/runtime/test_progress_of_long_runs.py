"""What `status` tells of a run whose pieces take long never stands still: every few seconds something has moved."""

import time
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import pytest

from faults.spied_runs import spying, started
from pipeline.reporting.run_facts import status

STILL_SECONDS = 2.5  # between two tellings that are the same: one in 2 s may be, on a machine that does other work
SILENT_SECONDS = 6.0  # between two tellings, whose file waits for the disk
SCORING = "correlations of the candidates"
ROUNDS = ["--centers", "200", "--set", "centers.working_set=100", "--penalty", "1", "--scheduler", "threads"]


class Look(NamedTuple):
    """What `status` told: the stage, what it does, how much of it is done, and when that was so."""

    stage: str
    words: str
    done: float
    share: float | None
    updated: float

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
        updated, facts = (run / "STATE.json").stat().st_mtime, status(run)
        if told := facts["progress"]:
            share = told["done"] / told["total"] if told["total"] else None
            yield Look(facts["stage"], told["words"] or told["unit"], told["done"], share, updated)


@pytest.mark.alone
@pytest.mark.ci
def test_something_moves_every_few_seconds(tables: Path, features: Path, tmp_path: Path) -> None:
    """In rounds, on a small table whose pieces last longer than they need."""
    run = tmp_path / "run"
    line = [str(tables / "classes.npz"), *ROUNDS, "-q", "--features-dir", str(features), "--run-dir", str(run)]
    with started(line, spying(tmp_path / "notes", 0.5)) as process:
        found = list(looks(run, process))
        assert process.poll() in (None, 0, 3)
    seen = {(look.stage, look.words) for look in found if look.is_pass}
    assert seen >= {("statistics", "rows"), ("solve", SCORING)}
    for (*told, _), group in groupby(found, lambda look: (*look[:4], look.is_pass)):
        same = list(group)
        if same[0].is_pass and 0 < told[3] < 1:
            assert same[-1].updated - same[0].updated <= STILL_SECONDS, told
    silent = [(after.updated - before.updated, before) for before, after in pairwise(found)]
    assert max(silent)[0] <= SILENT_SECONDS, max(silent)
