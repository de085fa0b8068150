"""The plan of a run: within its limit, of sizes that no worker changes, and of what a disk still lacks.

That a run needs no more than its plan says is measured: `tests/faults/test_memory.py`.
"""

import math
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from features.source import SourceMemory
from pipeline.config.settings import with_values
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_rows import FeatureShape
from pipeline.errors import PlanError
from pipeline.planning.plan import Plan, check_disk, make_plan
from storage.errors import CannotWriteError
from storage.folder_layouts import FeatureLayout

MIB = 2**20


def shape_of(n_train: int, n_features: int) -> FeatureShape:
    chunk_rows = min(2 ** round(math.log2(4 * MIB / (4 * n_features))), n_train)
    return FeatureShape("multiclass", tuple(range(10)), n_train, n_features, chunk_rows, 1000, "mnist", "0" * 64)


def planned(shape: FeatureShape, workers: int = 2, **settings: Any) -> tuple[TrainConfig, Plan]:
    """The plan for all training rows as candidates; settings are named section__key."""
    asked = {"centers.count": "all", "resources.scheduler": "threads", "resources.memory_limit": 64 * 2**30}
    asked |= {name.replace("__", "."): value for name, value in settings.items()}
    return make_plan(with_values(TrainConfig(dataset="mnist"), asked), shape, workers, SourceMemory())


@pytest.mark.parametrize("limit", [600, 1000, 1100, 2000, 4000])
@pytest.mark.parametrize(
    "settings",
    [{}, {"solver__select": "greedy:500"}, {"centers__count": 10_000, "centers__columns": "on-demand"}],
    ids=["in rounds", "a selection", "on demand"],
)
def test_a_plan_keeps_its_limit_and_no_worker_changes_a_size(limit, settings):
    """The model's bytes depend on sizes."""
    sizes, asked = set(), {"resources__memory_limit": limit * MIB} | settings
    for scheduler, workers in (("serial", 1), ("threads", 1), ("threads", 2), ("threads", 16)):
        config, plan = planned(shape_of(60_000, 512), workers, **asked, resources__scheduler=scheduler)
        assert plan.memory_bytes <= limit * MIB
        assert plan.workers.threads <= workers
        sizes.add(config.centers.working_set)
    assert len(sizes) == 1
    _, of_processes = planned(shape_of(60_000, 512), 2, **asked, resources__scheduler="processes")
    assert of_processes.memory_bytes <= limit * MIB


def test_more_memory_never_means_less_and_what_does_not_fit_is_refused_with_what_would_do():
    shape, sizes = shape_of(60_000, 512), []
    with pytest.raises(PlanError, match=r"`resources\.memory_limit=.*MiB` or more") as error:
        planned(shape, 2, resources__memory_limit=100 * MIB)
    least = int(str(error.value).split("memory_limit=")[1].split("MiB")[0])
    for limit in (least, 600, 1000, 2000, 4000, 64_000):
        config, plan = planned(shape, 2, resources__memory_limit=limit * MIB)
        sizes.append((config.centers.working_set, plan.workers.threads))
    assert sizes == sorted(sizes)
    assert sizes[-1] == (60_000, 2)


def test_processes_of_a_large_gram_are_fewer_than_workers():
    for n_centers, processes in ((12_000, 1), (500, 16)):
        settings = {"resources__scheduler": "processes", "centers__count": n_centers}
        _, plan = planned(shape_of(60_000, 2172), 16, **settings)
        assert (plan.workers.threads, plan.workers.processes) == (16, processes)


def test_what_is_written_already_needs_no_space_again(tmp_path, monkeypatch):
    shape = replace(shape_of(9000, 64), digest="features")
    _, plan = planned(shape, centers__working_set=2000)
    store, run = FeatureLayout(tmp_path / "features", shape.store), tmp_path / "run"
    planned_bytes = sum(of_stage.disk for _, of_stage in plan.stages)  # of the run and of the store

    def needs(n_bytes: int) -> None:
        for free in (n_bytes, n_bytes - 1):
            monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
            with nullcontext() if free == n_bytes else pytest.raises(CannotWriteError, match="needs"):
                check_disk(plan, run, store, shape, stored=True)

    needs(planned_bytes)
    for folder, n_bytes in ((run / "statistics", 5 * MIB), (store.folder / "arrays.zarr", MIB)):
        folder.mkdir(parents=True)
        (folder / "some").write_bytes(bytes(n_bytes))
    needs(planned_bytes - 6 * MIB)
    # More than was planned, of logs say, leaves nothing to ask for; and it is no help for the store.
    os.truncate(run / "statistics" / "some", planned_bytes + MIB)
    needs(shape.disk_bytes - MIB)
