"""Kept columns: each is made once, read ever after, and made again, to the same bits, where its file is gone."""

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cases import SERIAL
from pipeline.kernels.exact_sums import serially
from pipeline.kernels.kernel_functions import GaussianKernel, Kernel
from pipeline.stages.fit import correlations, working_set
from pipeline.stages.fit.working_set import (
    FOLDER,
    NO_COLUMNS,
    NOTHING,
    ColumnFiles,
    KeptColumns,
    open_columns,
)
from pipeline.stages.run_workspace import Run
from pipeline.stages.training_rows import RowGrid
from runs import model_bytes
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
    monkeypatch.setattr(working_set, "LEAST_ROWS", 64)


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
@pytest.mark.parametrize("disk", ["without room", "with room for one file", "that is full later on"])
def test_a_disk_without_room_keeps_none_and_changes_nothing(
    train_classes: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    n = train_classes("kept", *MODES["rounds"])["n_train"]
    free = 8 * (working_set.FREE_GRAMS * 120**2 + working_set.FREE_VALUES * n * 4)
    free += 8 * 64 * 60 if disk == "with room for one file" else 0  # of the 60 that are drawn first
    usage = namedtuple("usage", "free")(free)
    write, found = working_set.write_arrays, list[int]()

    def full(path: Path, *rest: Any, **named: Any) -> None:
        if path.name.startswith("block-"):
            raise CannotWriteError(f"{path}: no space left")
        write(path, *rest, **named)

    if disk == "that is full later on":
        monkeypatch.setattr(working_set, "write_arrays", full)
    else:
        monkeypatch.setattr(working_set.shutil, "disk_usage", lambda _: usage)
    after_growth(monkeypatch, lambda run, _: found.append(len(files_of(run))))
    train_classes("other", *MODES["rounds"])
    assert (found[0] > 0) == (disk == "with room for one file")
    assert model_bytes(tmp_path / "other") == model_bytes(tmp_path / "kept")


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


def test_groups_do_not_mix_and_a_late_worker_brings_none_back(tmp_path: Path) -> None:
    """A growth was cut off, and goes on, or goes another way; a worker of the first one writes when it is gone."""
    X = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)
    rows: Any = SimpleNamespace(precision="float32", generator=lambda names: GaussianKernel(X[names], 1.0, np.float32))
    files = ColumnFiles(rows, RowGrid("train", ROWS, ROWS), tmp_path / FOLDER, free_bytes=0)
    first, other = (NO_COLUMNS.grown(NOTHING, np.array(names)) for names in ([3, 4], [5, 6]))
    late, now = (open_columns(files, columns) for columns in (first, other))
    files.make_folders(first)
    late(0, serially, X)
    files.make_folders(first)
    assert len(list(files.of_group(first.members).iterdir())) == 1, "a growth that goes on finds its files"
    files.make_folders(other)
    late(0, serially, X)
    assert not files.of_group(first.members).exists()
    expected = GaussianKernel(X[[5, 6]], 1.0, np.float32).block(X, out_dtype=np.float32)
    for _ in range(2):  # made, and read
        assert np.array_equal(now(0, serially, X), expected)
    assert len(list(files.of_group(other.members).iterdir())) == 1


def test_columns_keep_their_places_as_others_leave_until_most_have_left() -> None:
    def groups(columns: KeptColumns) -> list[tuple[list[int], list[int], list[int]]]:
        n = len(columns.members)
        return [(a.tolist(), np.arange(n)[b].tolist(), np.arange(len(a))[c].tolist()) for a, b, c in columns.by_group()]

    columns = NO_COLUMNS.grown(NOTHING, np.array([5, 9, 2, 8])).grown(np.array([0, 2]), np.array([7]))
    assert columns.members.tolist() == [5, 2, 7]
    assert groups(columns) == [([5, 9, 2, 8], [0, 1], [0, 2]), ([7], [2], [0])]
    assert columns.last_group.tolist() == [7]
    columns = columns.grown(np.array([1, 2]), np.array([6, 3]))  # one of four is left of the first group
    assert columns.members.tolist() == [2, 7, 6, 3]
    assert groups(columns) == [([7], [1], [0]), ([2, 6, 3], [0, 2, 3], [0, 1, 2])]
    assert columns.last_group.tolist() == [2, 6, 3]
    assert groups(columns.cut(np.array([1]))) == [([7], [0], [0])]
    again = columns.grown(np.array([1, 2, 3]), np.array([5, 2]))  # both were here before
    assert groups(again) == [([7], [0], [0]), ([2, 6, 3], [1, 2], [1, 2]), ([5, 2], [3, 4], [0, 1])]
