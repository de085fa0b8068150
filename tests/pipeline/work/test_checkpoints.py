"""Checkpoints: the last one counts, a damaged one is told, and that of another run is passed over."""

from pathlib import Path

import numpy as np
import pytest

from commands import flip
from pipeline.work.store import CheckpointsOnDisk, ColumnsOnDisk
from storage.errors import CannotWriteError, CorruptDataError


def checkpoints_in(folder: Path, run: str = "this run") -> CheckpointsOnDisk:
    return CheckpointsOnDisk(folder / "kept.npz", run, 60.0)


def test_the_last_one_of_a_run_counts_and_a_damaged_one_is_told(tmp_path):
    assert checkpoints_in(tmp_path).load() is None
    for step in (1, 2, 10):
        checkpoints_in(tmp_path).save({"state": np.arange(step)}, {"of": step})
        found = checkpoints_in(tmp_path).load()
        assert found is not None
        assert (found.facts["of"], len(found.arrays["state"])) == (step, step)
    assert checkpoints_in(tmp_path, "another run").load() is None
    flip(tmp_path / "kept.npz")
    with pytest.raises(CorruptDataError, match=r"kept\.npz: damaged arrays"):
        checkpoints_in(tmp_path).load()


def test_a_folder_that_is_gone_is_not_made_anew_and_columns_of_another_run_are_none(tmp_path):
    with pytest.raises(CannotWriteError):
        CheckpointsOnDisk(tmp_path / "gone" / "checkpoints" / "kept.npz", "", 60.0).save({}, {})
    assert not (tmp_path / "gone").exists()
    ours, others = (ColumnsOnDisk(tmp_path, run, 0) for run in ("this run", "another run"))
    ours.keep({"group-0"})
    ours.put("group-0", 0, np.ones((3, 2)))
    assert ours.get("group-0", 0) is not None
    assert others.get("group-0", 0) is None
