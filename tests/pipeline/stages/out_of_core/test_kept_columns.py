"""Kept columns: each is made once, read ever after, and made again, to the same bits, where its file is gone."""

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import SERIAL
from pipeline.kernels.exact_sums import serially
from pipeline.kernels.kernel_functions import GaussianKernel, Kernel
from pipeline.stages.out_of_core import correlations, kept_columns, working_set
from pipeline.stages.out_of_core.kept_columns import (
    FOLDER,
    KeptColumns,
    KeptFiles,
    OpenedColumns,
    kept_blocks,
    nothing_kept,
)
from pipeline.stages.run_workspace import Run
from runs import model_bytes, task_for
from storage.arrays import write_arrays
from storage.errors import CannotWriteError

COMMON = ("--centers", "300", "--sigma2", "1", *SERIAL)
MODES = {
    "rounds": ("--set", "centers.working_set=120", "--penalty", "1"),
    "a path": ("--set", "centers.working_set=150", "--penalty", "path:max:1:3"),
    "on demand": ("--set", "centers.columns=on-demand", "--penalty", "1"),
}
ROWS = 400
Train = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks."""
    monkeypatch.setattr(kept_columns, "LEAST_ROWS", 64)


def after_growth(monkeypatch: pytest.MonkeyPatch, function: Callable[[Run, KeptColumns], None]) -> None:
    """Call a function whenever columns have come in, with those that there are then."""
    add = working_set.add_columns

    def added(run: Run, *rest: Any) -> Any:
        found = add(run, *rest)
        function(run, found[0])
        return found

    monkeypatch.setattr(working_set, "add_columns", added)


def files_of(run: Run) -> list[Path]:
    return sorted((run.layout.passes / FOLDER).glob("*/block-*.npz"))


@pytest.mark.parametrize("mode", ["rounds", "a path", "on demand"])
@pytest.mark.ci
def test_files_that_are_lost_or_damaged_are_made_again(
    train_classes: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    train_classes("whole", *MODES[mode])
    counts = {"removed": 0, "cut": 0}

    def lose(run: Run, _: KeptColumns) -> None:
        for number, file in enumerate(files_of(run)):
            if number % 3 == 0:
                file.unlink()
                counts["removed"] += 1
            elif number % 3 == 1:
                file.write_bytes(file.read_bytes()[:-50])
                counts["cut"] += 1

    after_growth(monkeypatch, lose)
    train_classes("losing", *MODES[mode])
    assert min(counts.values()) > 5
    assert model_bytes(tmp_path / "losing") == model_bytes(tmp_path / "whole")


@pytest.mark.ci
def test_a_disk_without_room_keeps_none_and_changes_nothing(
    train_classes: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    after_growth(monkeypatch, lambda run, _: found.append(len(files_of(run))))
    n = train_classes("kept", *MODES["rounds"])["n_train"]
    assert min(found) > 0
    found.clear()
    room = 8 * (kept_columns.ROOM_GRAMS * 120**2 + kept_columns.ROOM_VALUES * n * 4) + 8 * n * 60  # 60 are drawn first
    for free, kept in ((room - 1, False), (room, True)):
        usage = namedtuple("usage", "free")(free)
        monkeypatch.setattr(kept_columns.shutil, "disk_usage", lambda _, usage=usage: usage)
        train_classes(str(free), *MODES["rounds"])
        assert (found[0] > 0) == kept
        assert model_bytes(tmp_path / str(free)) == model_bytes(tmp_path / "kept")
        found.clear()


@pytest.mark.ci
def test_a_disk_that_is_full_later_on_changes_nothing(
    train_classes: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_classes("kept", *MODES["rounds"])
    write = kept_columns.write_arrays

    def full(path: Path, *rest: Any, **named: Any) -> None:
        if path.name.startswith("block-"):
            raise CannotWriteError(f"{path}: no space left")
        write(path, *rest, **named)

    monkeypatch.setattr(kept_columns, "write_arrays", full)
    train_classes("full", *MODES["rounds"])
    assert model_bytes(tmp_path / "full") == model_bytes(tmp_path / "kept")


@pytest.mark.parametrize("mode", ["rounds", "on demand"])
def test_a_column_is_made_when_it_comes_in_and_read_after(
    train_classes: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    made = [0]
    block, add, compute = Kernel.block, working_set.add_columns, correlations.compute_residuals

    def counted(self: Kernel, *rest: Any, **named: Any) -> Any:
        values = block(self, *rest, **named)
        made[0] += values.size
        return values

    def counts(function: Callable[..., Any], found: list[tuple[int, Any]]) -> Callable[..., Any]:
        def wrapped(run: Run, *rest: Any, **named: Any) -> Any:
            before = made[0]
            value = function(run, *rest, **named)
            found.append((made[0] - before, value))
            return value

        return wrapped

    growths: list[tuple[int, Any]] = []
    residuals: list[tuple[int, Any]] = []
    monkeypatch.setattr(Kernel, "block", counted)
    monkeypatch.setattr(working_set, "add_columns", counts(add, growths))
    monkeypatch.setattr(correlations, "compute_residuals", counts(compute, residuals))
    n = train_classes("run", *MODES[mode])["n_train"]
    assert len(growths) > 1
    assert [values for values, _ in growths] == [n * len(columns.last_group) for _, (columns, _) in growths]
    assert len(residuals) > 1
    assert not any(values for values, _ in residuals)


def test_a_group_of_other_columns_is_not_taken_for_one_of_the_same_number(tmp_path: Path) -> None:
    """A growth was cut off, and goes on, or goes another way."""
    files = KeptFiles(task_for(ROWS, 4, None), kept_blocks(ROWS, 20), tmp_path / FOLDER, room=0)
    files.begin(1, np.array([11, 12]))
    block = files.group(1) / "block-000000.npz"
    write_arrays(block, {"columns": np.zeros((64, 2), np.float32)})
    files.begin(1, np.array([11, 12]))
    assert block.exists()
    files.begin(1, np.array([11]))
    assert not block.exists()
    files.begin(0, np.array([3]))
    files.begin(2, np.array([4]))
    write_arrays(block, {"columns": np.zeros((64, 1), np.float32)})
    (files.group(1) / "members.npz").write_bytes(b"cut")
    files.begin(1, np.array([11]))
    assert not block.exists(), "whose columns those were is not known"
    columns = nothing_kept().grown(np.empty(0, np.int64), np.array([3])).grown(np.arange(0), np.array([11]))
    files.remove_unused(columns)
    assert [files.group(number).exists() for number in range(3)] == [False, True, True], "2 may be under way"


def test_a_worker_that_writes_late_leaves_no_columns_of_a_group_that_is_gone(tmp_path: Path) -> None:
    """It was stopped for so long that its item ran elsewhere, and the group has other columns since."""
    files = KeptFiles(task_for(ROWS, 4, None), kept_blocks(ROWS, 20), tmp_path / FOLDER, room=0)
    X = np.random.default_rng(0).standard_normal((int(files.blocks.size(0)), 4)).astype(np.float32)
    late, now = (
        OpenedColumns(files, nothing_kept().grown(np.arange(0), np.array(names))) for names in ([3, 4], [5, 6])
    )
    for columns, names in ((late, [3, 4]), (now, [5, 6])):
        files.begin(0, np.array(names))
        assert columns._group(0)["members"].tolist() == names
        columns._generators[0] = GaussianKernel(X[names], 1.0, np.float32)
    late.block(0, serially, X)
    for _ in range(2):  # made, and read
        assert np.array_equal(
            now.block(0, serially, X), now._generators[0].block(X, out_dtype=np.float32, each=serially)
        )


def test_columns_keep_their_places_as_others_leave_until_most_have_left() -> None:
    columns = nothing_kept().grown(np.empty(0, np.int64), np.array([5, 9, 2, 8]))
    columns = columns.grown(np.array([0, 2]), np.array([7]))
    assert columns.members.tolist() == [5, 2, 7]
    assert columns.groups.tolist() == [0, 0, 1]
    assert columns.places.tolist() == [0, 2, 0]
    assert columns.sizes.tolist() == [4, 4, 1]
    assert columns.last_group.tolist() == [7]
    columns = columns.grown(np.array([1, 2]), np.array([6, 3]))  # one of four is left of the first group
    assert columns.members.tolist() == [2, 7, 6, 3]
    assert columns.groups.tolist() == [2, 1, 2, 2]
    assert columns.places.tolist() == [0, 0, 1, 2]
    assert columns.sizes.tolist() == [3, 1, 3, 3]
    assert columns.last_group.tolist() == [2, 6, 3]
    assert columns.cut(np.array([1])).members.tolist() == [7]
