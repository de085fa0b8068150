"""Runs that tests of several commands read."""

from pathlib import Path

import pytest

from commands import IMAGES, TABLE_RUN, TARGETS, X
from runs import TrainedRuns, save_once


@pytest.fixture(scope="session")
def images(finished_run: TrainedRuns) -> Path:
    """A run on images of digits."""
    return finished_run(*IMAGES)


@pytest.fixture(scope="session")
def rings(shared_folder: Path, finished_run: TrainedRuns) -> dict[str, Path]:
    """Runs by their tasks, on rings/TASK.npz: a regression, a binary task, three classes with text labels."""
    folder = shared_folder / "rings"
    folder.mkdir(exist_ok=True)
    for task, y in TARGETS.items():
        save_once(folder / f"{task}.npz", X=X, y=y)
    return {task: finished_run(*TABLE_RUN, dataset=folder / f"{task}.npz") for task in TARGETS}


@pytest.fixture(scope="session")
def ring_data(rings: dict[str, Path], shared_folder: Path) -> dict[str, Path]:
    """The files that those runs have read."""
    return {task: shared_folder / "rings" / f"{task}.npz" for task in rings}


@pytest.fixture(scope="session")
def classes(tables: Path) -> Path:
    """The table of three classes."""
    return tables / "classes.npz"
