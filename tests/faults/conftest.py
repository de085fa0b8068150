"""The cases of `cases.py`: how to train them where runs are broken, and the models to compare those with."""

from pathlib import Path

import pytest

from cases import CASES, SERIAL
from faults.spied_runs import EVERY, Command, Whole
from runs import TrainedRuns, model_bytes


@pytest.fixture
def whole(tables: Path, finished_run: TrainedRuns) -> Whole:
    """Return the model of a case that nothing has disturbed."""
    return lambda case: model_bytes(finished_run(*CASES[case].arguments, *SERIAL, dataset=CASES[case].dataset(tables)))


@pytest.fixture
def command(features: Path, tables: Path) -> Command:
    """Return the arguments of the main command that train a case in a folder, and go on where a run was left."""

    def words(run: Path, case: str, *more: str) -> list[str]:
        folders = ["--features-dir", str(features), "--run-dir", str(run)]
        line = [str(CASES[case].dataset(tables)), *CASES[case].arguments, "-q", "--resume", "auto", *folders]
        return [*line, "--checkpoint-every", f"{EVERY}s", *more]

    return words
