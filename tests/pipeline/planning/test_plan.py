"""The plan of a run against the bytes that its stages take: exact sums, and what is left of them on a disk."""

import math
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from typing import Any

import pytest

from features.source import SourceMemory
from pipeline.config.settings import with_value, with_values
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.planning import plan as plans
from pipeline.planning.plan import COMPILING_BYTES, Plan, StagePlan, check_disk, make_plan, rows_bytes
from pipeline.runtime.memory_limits import DRIVER_BYTES
from pipeline.runtime.row_pass import OWN_SUMS_BYTES
from pipeline.stages import fit_model
from pipeline.stages.filled_settings import is_in_rounds
from pipeline.train import main
from storage.errors import CannotWriteError
from storage.folder_layouts import FeatureLayout

MIB = 2**20
SPHOG = 2172  # features of an image of 28 x 28


def shape_of(n_train: int, n_features: int, n_classes: int = 10) -> FeatureShape:
    chunk_rows = min(2 ** round(math.log2(4 * MIB / (4 * n_features))), n_train)
    classes = tuple(range(n_classes))
    return FeatureShape("0" * 64, "mnist", "multiclass", classes, n_train, 1000, n_features, chunk_rows, {})


def planned(shape: FeatureShape, workers: int = 2, **settings: Any) -> tuple[TrainConfig, Plan]:
    """The plan for all training rows as candidates; settings are named section__key."""
    config = with_value(TrainConfig(dataset="mnist"), "centers.count", "all")
    config = with_value(with_value(config, "resources.scheduler", "threads"), "resources.memory_limit", 64 * 2**30)
    for name, value in settings.items():
        config = with_value(config, name.replace("__", "."), value)
    return make_plan(config, shape, workers, SourceMemory())


def stage(plan: Plan, name: str) -> StagePlan:
    return next(stage for stage in plan.stages if stage.name == name)


COMPILED = DRIVER_BYTES + COMPILING_BYTES  # of a process whose loops may not be compiled yet


def test_features_that_bound_the_blocks_need_no_more_than_is_there():
    """100 columns of 131072 images: once a worker read 65536 rows at a time, 543 MiB."""
    _, plan = planned(shape_of(131_072, SPHOG), centers__working_set=100, resources__memory_limit=COMPILED + 320 * MIB)
    assert plan.workers.threads == 2
    assert stage(plan, "statistics").memory_bytes < COMPILED + 160 * MIB


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
@pytest.mark.parametrize("select", ["none", "greedy:50"])
def test_the_compiler_is_charged_once_in_every_stage(monkeypatch, scheduler, select):
    def memory(missing: list[str]) -> list[int]:
        monkeypatch.setattr(plans, "are_kept", lambda: not missing)
        settings = {"resources__scheduler": scheduler, "solver__select": select, "centers__count": 500}
        _, plan = planned(shape_of(60_000, 64), 8, **settings)
        assert plan.workers.processes == (8 if scheduler == "processes" else 1)
        return [stage.memory_bytes for stage in plan.stages]

    assert [cold - warm for cold, warm in zip(memory(["a loop"]), memory([]), strict=True)] == [COMPILING_BYTES] * 5


@pytest.mark.parametrize(
    "settings",
    [{"centers__count": count, "centers__columns": "at-once"} for count in (1000, 3000, 12_000)]
    + [{"centers__working_set": 6000}, {"centers__working_set": 3000, "solver__select": "greedy:500"}],
)
def test_64_workers_find_work_in_every_pass(settings):
    shape = replace(shape_of(60_000, SPHOG), n_test=10_000)
    _, plan = planned(shape, 64, **settings)
    assert plan.workers.threads == 64
    assert stage(plan, "statistics").pieces >= 2 * 64
    assert stage(plan, "evaluate").pieces >= 64
    if "solver__select" in settings:
        assert stage(plan, "solve").pieces == 1, "threads share a choice"
    elif "centers__working_set" in settings:
        assert stage(plan, "solve").pieces >= 4 * 64, "tiles of the scores, where half of them are enough"
    else:
        assert stage(plan, "solve").pieces == 10
    assert "64 workers" in plan.lines(shape, built=True)[-1]


@pytest.mark.parametrize("n_centers", [1000, 3000, 12_000])
def test_a_large_gram_takes_as_much_memory_for_any_number_of_threads(n_centers):
    """Threads share sums of more than 256 MiB: their own are blocks and tiles, and smaller sums."""
    shape, settings = shape_of(60_000, SPHOG), {"centers__count": n_centers, "centers__columns": "at-once"}
    few, many = (stage(planned(shape, n, **settings)[1], "statistics").memory_bytes for n in (1, 64))
    sums = 2 * 8 * n_centers**2
    assert few >= sums
    assert many - few < 64 * 150 * MIB + (64 * sums if sums <= OWN_SUMS_BYTES else 0)
    assert n_centers < 12_000 or many - few < 4 * sums


def test_fewer_threads_have_sums_of_their_own_before_there_are_fewer_threads():
    shape, settings = shape_of(60_000, 64), {"centers__count": 1000}
    _, ample = planned(shape, 16, **settings)
    assert ample.workers.groups(2 * 8 * 1000**2, 268) == 16
    others = max(each.memory_bytes for each in ample.stages if each.name != "statistics")
    limit = others + (stage(ample, "statistics").memory_bytes - others) // 2
    assert others < limit
    _, scarce = planned(shape, 16, **settings, resources__memory_limit=limit)
    assert scarce.workers.threads == 16
    assert scarce.workers.groups(2 * 8 * 1000**2, 268) < 16
    assert scarce.memory_bytes <= limit


@pytest.mark.parametrize(("limit", "size", "together"), [(1000, 5000, 1), (1100, 4500, 2), (2000, 8500, 2)])
def test_a_working_set_is_smaller_by_a_fifth_at_most_so_that_two_workers_fit(limit, size, together):
    def sized(scheduler: str, workers: int) -> tuple[int | None, int]:
        options = {"resources__memory_limit": limit * MIB, "resources__scheduler": scheduler}
        config, plan = planned(shape_of(60_000, 512), workers, **options)
        return config.centers.working_set, plan.workers.threads

    assert sized("threads", 2) == (size, together)
    assert sized("serial", 2) == sized("threads", 1) == (size, 1)


@pytest.mark.parametrize(
    ("options", "many"),
    [
        ({"solver.penalty": 1.0}, True),
        ({"solver.penalty": "max:1e-3"}, True),
        ({"solver.penalty": "auto"}, False),
        ({"solver.penalty": "none"}, False),
        ({"solver.select": "greedy:50"}, False),
        ({"centers.columns": "at-once"}, False),
    ],
)
def test_of_many_candidates_some_come_in_at_one_penalty(options, many):
    for count, expected in ((8000, False), (8001, many)):
        asked = {"centers.count": count, "centers.working_set": count} | options
        assert is_in_rounds(with_values(TrainConfig(dataset="mnist"), asked), 60_000) == expected


def test_processes_of_a_large_gram_are_fewer_than_workers():
    shape, settings = shape_of(60_000, SPHOG), {"resources__scheduler": "processes", "centers__count": 12_000}
    _, plan = planned(shape, 16, **settings)
    assert (plan.workers.threads, plan.workers.processes) == (16, 1)
    _, small = planned(shape, 16, resources__scheduler="processes", centers__count=500)
    assert (small.workers.threads, small.workers.processes) == (16, 16)


@pytest.mark.parametrize("working_set", [2000, 9000])
@pytest.mark.parametrize(("select", "centred"), [("none", 1), ("greedy:50", 0)])
def test_the_plan_counts_the_centred_gram_of_an_intercept(working_set, select, centred):
    """In rounds, where it is on the disk too, and at once; a selection centres row by row."""
    settings: dict[str, Any] = {"centers__working_set": working_set, "solver__select": select}
    settings |= {"centers__columns": "at-once"}
    plans = [planned(shape_of(9000, 64), **settings, solver__intercept=asked)[1] for asked in (False, True)]
    before, after = (stage(plan, "solve").memory_bytes for plan in plans)
    assert after == before + centred * 8 * working_set**2
    if working_set == 2000 and centred:  # old and new Gram, the sums of new rows (half of the columns), and more
        assert [stage(plan, "statistics").disk_bytes for plan in plans] == [grams * 8 * 2000**2 for grams in (3, 4)]


Usage = namedtuple("Usage", "total used free")


def disk_with(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40 - free, free))


def test_what_is_written_already_needs_no_space_again(tmp_path, monkeypatch):
    shape = replace(shape_of(9000, 64), digest="features")
    _, plan = planned(shape, centers__working_set=2000)
    store, run = FeatureLayout(tmp_path / "features", shape.store), tmp_path / "run"
    planned_bytes = sum(stage.disk_bytes for stage in plan.stages)  # of the run and of the store

    def needs(n_bytes: int) -> None:
        disk_with(monkeypatch, n_bytes)
        check_disk(plan, run, store, shape, stored=True)
        disk_with(monkeypatch, n_bytes - 1)
        with pytest.raises(CannotWriteError, match="needs"):
            check_disk(plan, run, store, shape, stored=True)

    needs(planned_bytes)
    for folder, n_bytes in ((run / "statistics", 5 * MIB), (store.folder / "arrays.zarr", MIB)):
        folder.mkdir(parents=True)
        (folder / "some").write_bytes(bytes(n_bytes))
    needs(planned_bytes - 6 * MIB)
    # More than was planned, of logs say, leaves nothing to ask for; and it is no help for the store.
    os.truncate(run / "statistics" / "some", planned_bytes + MIB)
    needs(shape.disk_bytes - MIB)


def test_a_run_stopped_by_a_full_disk_goes_on_with_what_it_lacks(tables, features, tmp_path, monkeypatch):
    line = [str(tables / "classes.npz"), "-q", "--centers", "all", "--penalty", "10", "--scheduler", "serial"]
    line += ["--refit", "ridge", "--features-dir", str(features)]

    def full(*_: Any) -> None:
        raise CannotWriteError("disk full")

    with monkeypatch.context() as during:
        during.setattr(fit_model, "find_weights", full)
        assert main([*line, "--run-dir", str(tmp_path / "run")]) == 73
    written = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert written > 5 * MIB
    disk_with(monkeypatch, 16 * MIB)
    assert main([*line, "--run-dir", str(tmp_path / "run"), "--resume", "auto", "--dry-run"]) == 0
    assert main([*line, "--run-dir", str(tmp_path / "another"), "--dry-run"]) == 73


def test_columns_on_demand_have_room_in_memory():
    """As many may be kept as the limit allows: all, or those whose Gram fits."""
    shape, settings = shape_of(60_000, SPHOG), {"centers__count": 10_000, "centers__columns": "on-demand"}
    config, _ = planned(shape, 2, **settings, resources__memory_limit=16 * 2**30)
    assert config.centers.working_set == 10_000
    smaller, scarce = planned(shape, 2, **settings, resources__memory_limit=2**30)
    assert 1000 < (smaller.centers.working_set or 0) < 10_000
    assert scarce.memory_bytes <= 2**30
    for workers in (1, 16):
        again, _ = planned(shape, workers, **settings, resources__memory_limit=2**30)
        assert again.centers == smaller.centers
    # All violators of a block may enter at once, where there is room: their Gram rows are as large as the whole Gram.
    settings |= {"centers__working_set": 6000, "solver__penalty": 1.0}
    half, whole = (
        stage(planned(shape_of(60_000, 64), 1, **settings | {"centers__columns": columns})[1], "statistics")
        for columns in ("at-once", "on-demand")
    )
    assert whole.memory_bytes >= half.memory_bytes + 8 * 6000**2 // 2


@pytest.mark.parametrize("columns", ["at-once", "on-demand"])
def test_the_residuals_of_many_rows_count_where_few_are_candidates(columns):
    settings = {"centers__count": 20_000, "centers__working_set": 2000, "centers__columns": columns}
    few, many = (
        stage(planned(shape_of(n, 64), 1, **settings, solver__penalty=1.0)[1], "solve") for n in (10**5, 10**6)
    )
    assert many.memory_bytes - few.memory_bytes >= 5 * 8 * 900_000 * 10
    assert many.disk_bytes - few.disk_bytes >= 4 * 8 * 900_000 * 10


def test_blocks_of_few_sampled_rows_are_never_read_whole():
    """Of ten million rows 16 000 are sampled: 786 432 rows have as many in a block as 1398 rows have otherwise."""
    settings: dict[str, Any] = {"centers__count": 4000, "solver__select": "greedy:500"}
    sizes = []
    for shape in (shape_of(10_000_000, 784), shape_of(60_000, 784)):
        plan = planned(shape, 1, **settings)[1]
        sizes.append(stage(plan, "statistics").memory_bytes - rows_bytes(shape.n_train + shape.n_test))
    assert sizes[0] < sizes[1] + 64 * MIB
