"""Checkpoints: the last one counts, a damaged one is told, and that of another run is passed over.

Of a solve that runs, what a stage shows comes from records that others write and take away.
"""

from pathlib import Path

import numpy as np
import pytest

from commands import flip
from pipeline.work.runner import latest_note
from pipeline.work.store import CheckpointsOnDisk, ColumnsOnDisk
from storage.errors import CannotWriteError, CorruptDataError

LINE = '{"output": 3, "objective": 12.5, "relative_gap": 0.25, "penalty": 2.0, "which": ""}'


def checkpoints_in(folder: Path, run: str = "this run") -> CheckpointsOnDisk:
    return CheckpointsOnDisk(folder / "kept.npz", run, folder / "records.jsonl", 60.0)


def test_the_last_one_of_a_run_counts_and_a_damaged_one_is_told(tmp_path):
    assert checkpoints_in(tmp_path).load() is None
    for step in (1, 2, 10):
        checkpoints_in(tmp_path).save(step, {"state": np.arange(step)}, {"of": step})
        found = checkpoints_in(tmp_path).load()
        assert found is not None
        assert (found.step, found.facts, len(found.arrays["state"])) == (step, {"of": step}, step)
    assert checkpoints_in(tmp_path, "another run").load() is None
    flip(tmp_path / "kept.npz")
    with pytest.raises(CorruptDataError, match=r"kept\.npz: damaged arrays"):
        checkpoints_in(tmp_path).load()


def test_a_folder_that_is_gone_is_not_made_anew_and_columns_of_another_run_are_none(tmp_path):
    with pytest.raises(CannotWriteError):
        CheckpointsOnDisk(tmp_path / "gone" / "checkpoints" / "kept.npz", "", tmp_path / "r", 60.0).save(1, {}, {})
    assert not (tmp_path / "gone").exists()
    ours, others = (ColumnsOnDisk(tmp_path, run, 0) for run in ("this run", "another run"))
    ours.keep({"group-0"})
    ours.put("group-0", 0, np.ones((3, 2)))
    assert ours.get("group-0", 0) is not None
    assert others.get("group-0", 0) is None


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
