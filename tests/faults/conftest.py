"""The models of the cases, to compare those of broken runs with."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cases import CASES, SERIAL
from runs import TrainedRuns, model_bytes


@pytest.fixture
def whole(tables: Path, finished_run: TrainedRuns) -> Callable[[str], dict[str, bytes]]:
    """Return the model of a case that nothing has disturbed."""
    return lambda case: model_bytes(finished_run(*CASES[case].arguments, *SERIAL, dataset=CASES[case].dataset(tables)))
