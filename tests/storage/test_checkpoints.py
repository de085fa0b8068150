"""Checkpoints: the newest whole step counts, damage is passed over and told, and steps never push out whole ones."""

from pathlib import Path

import numpy as np
import pytest

from commands import flip
from storage import checkpoints
from storage.checkpoints import load, save
from storage.errors import CorruptDataError


def write(folder: Path, step: int) -> None:
    save(folder, step, {"weights": np.full((3, 2), step / 7), "state": np.arange(step)}, {"step": step})


def assert_step(folder: Path, step: int, n_damaged: int = 0) -> checkpoints.Checkpoint:
    found = load(folder)
    assert found is not None
    assert (found.step, found.metadata) == (step, {"step": step})
    assert (found.arrays["weights"] == step / 7).all()
    assert found.arrays["state"].tolist() == list(range(step))
    assert len(found.warnings) == n_damaged
    return found


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


def test_the_newest_counts_and_older_ones_are_pruned_but_for_two(tmp_path):
    for step in (1, 2, 10, 11, 100):
        write(tmp_path, step)
        assert_step(tmp_path, step)
    assert steps(tmp_path) == [11, 100]


def test_all_damaged_is_an_error_that_says_what_to_do(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step)
        flip(tmp_path / f"step-{step:09d}" / "weights.npy")
    with pytest.raises(CorruptDataError, match=r"weights\.npy.*delete the folder") as caught:
        load(tmp_path)
    assert caught.value.exit_code == 65
    assert str(caught.value).startswith(f"{tmp_path}: no checkpoint is whole")


def test_damaged_steps_do_not_push_out_whole_ones(tmp_path):
    """Taken up at an earlier step, a run saves steps of lower numbers than the damaged one."""
    for step in (58, 61):
        write(tmp_path, step)
    flip(tmp_path / "step-000000061" / "weights.npy")
    assert_step(tmp_path, 58, n_damaged=1)
    for _ in range(2):  # a step that is there is replaced
        write(tmp_path, 59)
        assert steps(tmp_path) == [58, 59]
        assert_step(tmp_path, 59)
        flip(tmp_path / "step-000000059" / "state.npy")
