"""Runs that tests of several commands read."""

from pathlib import Path

import pytest

from commands import IMAGES, runs_on_rings
from runs import TrainedRuns


@pytest.fixture(scope="session")
def images(finished_run: TrainedRuns) -> Path:
    """A run on images of digits."""
    return finished_run(*IMAGES)


@pytest.fixture(scope="session")
def rings(shared_folder: Path, finished_run: TrainedRuns) -> dict[str, Path]:
    """Runs on standardised tables: a regression, a binary task, three classes with text labels."""
    return runs_on_rings(shared_folder / "rings", finished_run)


@pytest.fixture(scope="session")
def ring_data(rings: dict[str, Path], shared_folder: Path) -> dict[str, Path]:
    """The files that those runs have read."""
    return {task: shared_folder / "rings" / f"{task}.npz" for task in rings}


@pytest.fixture(scope="session")
def classes(tables: Path) -> Path:
    """The table of three classes."""
    return tables / "classes.npz"
