"""Checkpoints: the newest whole step counts, damage is passed over and told, and steps never push out whole ones.

Of a solve that runs, what a stage shows comes from records that others write and take away.
"""

from pathlib import Path

import numpy as np
import pytest

from commands import flip
from pipeline.work.runner import latest_note
from pipeline.work.store import CheckpointsOnDisk
from storage.errors import CorruptDataError

LINE = '{"output": 3, "objective": 12.5, "relative_gap": 0.25, "penalty": 2.0, "which": ""}'


def checkpoints_in(folder: Path) -> CheckpointsOnDisk:
    return CheckpointsOnDisk(folder, folder / "records.jsonl", 60.0)


def write(folder: Path, step: int) -> None:
    arrays = {"weights": np.full((3, 2), step / 7), "state": np.arange(step)}
    checkpoints_in(folder).save(step, arrays, {"step": step})


def assert_step(folder: Path, step: int, n_damaged: int = 0) -> None:
    found = (checkpoints := checkpoints_in(folder)).load()
    assert found is not None
    assert (found.step, found.facts) == (step, {"step": step})
    assert (found.arrays["weights"] == step / 7).all()
    assert found.arrays["state"].tolist() == list(range(step))
    assert len(checkpoints.warnings) == n_damaged


def steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in folder.iterdir())


def test_the_newest_counts_and_older_ones_are_pruned_but_for_two(tmp_path):
    for step in (1, 2, 10, 11, 100):
        write(tmp_path, step)
        assert_step(tmp_path, step)
    assert steps(tmp_path) == [11, 100]


def test_all_damaged_is_an_error_that_says_what_to_do(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step)
        flip(tmp_path / f"step-{step:09d}.npz")
    with pytest.raises(CorruptDataError, match=r"step-000000003\.npz.*delete the folder") as caught:
        checkpoints_in(tmp_path).load()
    assert caught.value.exit_code == 65
    assert str(caught.value).startswith(f"{tmp_path}: no checkpoint is whole")


def test_damaged_steps_do_not_push_out_whole_ones(tmp_path):
    """Taken up at an earlier step, a run saves steps of lower numbers than the damaged one."""
    for step in (58, 61):
        write(tmp_path, step)
    flip(tmp_path / "step-000000061.npz")
    assert_step(tmp_path, 58, n_damaged=1)
    for _ in range(2):  # a step that is there is replaced
        write(tmp_path, 59)
        assert steps(tmp_path) == [58, 59]
        assert_step(tmp_path, 59)
        flip(tmp_path / "step-000000059.npz")


@pytest.mark.parametrize("written", ["", LINE[:-5], '{"a": {"b": 1}', "gone", "gone after a look"])
def test_what_is_half_written_or_taken_away_is_not_shown(tmp_path, written, monkeypatch):
    """The driver takes the records of a finished solve between two looks of the progress thread, or amid one."""
    (path := tmp_path / "0.jsonl").write_text(f"{LINE}\n")
    assert "12.5" in latest_note([path])
    path.write_text(written)
    if written == "gone":
        path.unlink()
    elif written == "gone after a look":
        monkeypatch.setattr(Path, "read_text", lambda path, **_: (path.unlink(), path.read_bytes()))
    assert latest_note([path]) == ""
