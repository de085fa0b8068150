"""The plan of a run against the bytes that its stages take: exact sums, and what is left of them on a disk."""

import math
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import TrainConfig, with_value
from pipeline.feature_store import FeatureShape
from pipeline.plan import DRIVER_BYTES, Plan, StagePlan, check_disk, make_plan
from pipeline.stages.grown_gram import BLOCK_BYTES, N_SPANS, rows_at_once
from pipeline.train import main
from storage.errors import CannotWriteError
from storage.layout import FeatureLayout

MIB = 2**20
SPHOG = 2172  # features of an image of 28 x 28


def shape_of(n_train: int, n_features: int, n_classes: int = 10) -> FeatureShape:
    chunk_rows = min(2 ** round(math.log2(4 * MIB / (4 * n_features))), n_train)
    classes = tuple(range(n_classes))
    return FeatureShape("0" * 64, "synthetic", "multiclass", classes, n_train, 1000, n_features, chunk_rows, {})


def planned(shape: FeatureShape, workers: int = 2, **settings: Any) -> tuple[TrainConfig, Plan]:
    """The plan for all training rows as candidates; settings are named section__key."""
    config = with_value(TrainConfig(dataset="synthetic"), "centers.count", "all")
    config = with_value(with_value(config, "resources.scheduler", "threads"), "resources.memory_limit", 64 * 2**30)
    for name, value in settings.items():
        config = with_value(config, name.replace("__", "."), value)
    return make_plan(config, shape, workers, 0)


def stage(plan: Plan, name: str) -> StagePlan:
    return next(stage for stage in plan.stages if stage.name == name)


@pytest.mark.parametrize("n_features", [3, 64, 784, SPHOG, 10**6])
def test_a_block_is_bounded_by_its_columns_and_by_its_features(n_features: int) -> None:
    for n_members in (1, 100, 1000, 6000, 40_000):
        rows = rows_at_once(n_members, n_features)
        largest = max(8 * n_members, 4 * n_features)
        assert rows == 64 or BLOCK_BYTES / 2 < rows * largest <= BLOCK_BYTES
        assert rows >= 64
        assert rows & (rows - 1) == 0
    # Where a row has fewer bytes of features than of columns, blocks are what they were when models were made.
    assert rows_at_once(6000, SPHOG) == 2 ** int(np.log2(BLOCK_BYTES / (8 * 6000)))


@pytest.mark.parametrize("block_rows", [128, 4096])
@pytest.mark.parametrize("working_set", [100, 500, 3000, 12_000])
@pytest.mark.parametrize("n_features", [64, 784, SPHOG])
def test_growing_counts_columns_and_features_of_every_round(working_set: int, n_features: int, block_rows: int) -> None:
    """Whatever the last round kept: new Gram rows, a block of columns (f4 and f8) and what is read for it, each."""
    shape = shape_of(131_072, n_features)
    _, plan = planned(shape, centers__working_set=working_set, statistics__block_rows=block_rows)
    for members in {working_set, *range(10, working_set, 10)}:
        rows = rows_at_once(members, n_features)
        read = min(max(rows, shape.chunk_rows), shape.n_train)
        item = 6 * members**2 + 12 * members * min(rows, shape.n_train) + 4 * n_features * (read + members)
        assert stage(plan, "statistics").memory_bytes >= DRIVER_BYTES + plan.workers * item


def test_features_that_bound_the_blocks_need_no_more_than_is_there() -> None:
    """100 columns of 131072 images: once a worker read 65536 rows at a time, 543 MiB."""
    _, plan = planned(shape_of(131_072, SPHOG), centers__working_set=100, resources__memory_limit=720 * MIB)
    assert plan.workers == 2
    assert stage(plan, "statistics").memory_bytes < DRIVER_BYTES + 2 * (2 * BLOCK_BYTES + 16 * MIB)


@pytest.mark.parametrize("working_set", [6000, 9000])
@pytest.mark.parametrize(("select", "centred"), [("none", 1), ("greedy:50", 0)])
def test_the_plan_counts_the_centred_gram_of_an_intercept(working_set: int, select: str, centred: int) -> None:
    """In rounds and at once; a selection centres row by row."""
    settings: dict[str, Any] = {"centers__working_set": working_set, "solver__select": select}
    plans = [planned(shape_of(9000, 64), **settings, solver__intercept=asked)[1] for asked in (False, True)]
    before, after = (stage(plan, "solve").memory_bytes for plan in plans)
    assert after == before + centred * 8 * working_set**2


@pytest.mark.parametrize(
    ("intercept", "select", "grams"), [(False, "none", 3), (True, "none", 4), (False, "greedy:50", 8)]
)
def test_the_disk_of_rounds_holds_the_shares_and_the_centred_gram(intercept: bool, select: str, grams: int) -> None:
    """Old and new Gram, the spans' shares of the new rows (half of the columns; all in a selection), and more."""
    settings = {"centers__working_set": 2000, "solver__intercept": intercept, "solver__select": select}
    _, plan = planned(shape_of(9000, 64), **settings)
    assert stage(plan, "statistics").disk_bytes == grams * 8 * 2000**2
    assert N_SPANS == 2


Usage = namedtuple("Usage", "total used free")


def disk_with(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40 - free, free))


def test_what_is_written_already_needs_no_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(shape_of(9000, 64), digest="features")
    _, plan = planned(shape, centers__working_set=2000)
    store, run = FeatureLayout(tmp_path / "features", shape.digest), tmp_path / "run"
    planned_bytes = sum(stage.disk_bytes for stage in plan.stages)  # of the run and of the store
    disk_with(monkeypatch, planned_bytes - 1)
    with pytest.raises(CannotWriteError, match="needs"):
        check_disk(plan, run, store, shape, stored=True)
    for folder, n_bytes in ((run / "statistics", 5 * MIB), (store.folder / "arrays.zarr", MIB)):
        folder.mkdir(parents=True)
        (folder / "some").write_bytes(bytes(n_bytes))
    disk_with(monkeypatch, planned_bytes - 6 * MIB)
    check_disk(plan, run, store, shape, stored=True)
    disk_with(monkeypatch, planned_bytes - 6 * MIB - 1)
    with pytest.raises(CannotWriteError, match="needs"):
        check_disk(plan, run, store, shape, stored=True)
    # More than was planned, of logs say, leaves nothing to ask for; and it is no help for the store.
    os.truncate(run / "statistics" / "some", sum(stage.disk_bytes for stage in plan.stages) + MIB)
    disk_with(monkeypatch, shape.disk_bytes - MIB)
    check_disk(plan, run, store, shape, stored=True)
    disk_with(monkeypatch, shape.disk_bytes - MIB - 1)
    with pytest.raises(CannotWriteError, match="needs"):
        check_disk(plan, run, store, shape, stored=True)


def test_a_run_stopped_by_a_full_disk_goes_on_with_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.stages import solve

    run = tmp_path / "run"
    line = ["digits", "-q", "--centers", "500", "--penalty", "10", "--run-dir", str(run)]
    line += ["--features-dir", str(tmp_path / "features")]

    def full(*_: Any) -> None:
        raise CannotWriteError("disk full")

    with monkeypatch.context() as during:
        during.setattr(solve, "run", full)
        assert main(line) == 73
    written = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    assert written > 5 * MIB
    disk_with(monkeypatch, 9 * MIB)
    assert main([*line, "--resume", "auto", "--dry-run"]) == 0
    assert main([*line, "--run-dir", str(tmp_path / "another"), "--dry-run"]) == 73
