"""The plan of a run: within its limit, and of sizes that no worker changes.

What is filled in for a table: the problem, width, scales, and candidates by a budget; and what asks for another. That a
run needs no more than its plan says is measured: `tests/faults/test_memory.py`. The forecast of its time is within a
factor of two of what runs took in processor seconds.
"""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from features.source import SourceMemory
from pipeline import plan as planning
from pipeline import train
from pipeline.config.settings import get, load, with_values
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_rows import FeatureShape
from pipeline.datasets.open_data import Reading
from pipeline.errors import ConfigError, PlanError
from pipeline.plan import START_SECONDS, Plan, forecast, make_plan, prepare
from sources import write_npy

MIB = 2**20


def shape_of(n_train: int, n_features: int) -> FeatureShape:
    chunk_rows = min(2 ** round(math.log2(4 * MIB / (4 * n_features))), n_train)
    return FeatureShape("multiclass", tuple(range(10)), n_train, n_features, chunk_rows, 1000, "mnist", "0" * 64)


def planned(shape: FeatureShape, workers: int = 2, **settings: Any) -> tuple[TrainConfig, Plan]:
    """The plan for all training rows as candidates; settings are named section__key."""
    asked = {"centers.count": "all", "resources.scheduler": "threads", "resources.memory_limit": 64 * 2**30}
    asked |= {name.replace("__", "."): value for name, value in settings.items()}
    return make_plan(with_values(TrainConfig(dataset="mnist"), asked), shape, workers, SourceMemory())


SELECTION = {"centers__count": 1200, "solver__select": "greedy:500"}


@pytest.mark.parametrize("limit", [700, 1000, 1100, 2000, 4000])
@pytest.mark.parametrize(
    "settings",
    [{}, SELECTION, {"centers__count": 10_000, "centers__columns": "on-demand"}],
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


SIMPLE = {"solver.penalty": "none", "solver.refit": "ridge", "kernel.sigma2": "auto", "kernel.scale": "learned"}
PENALISED = {"solver.penalty": "max:1e-7", "solver.refit": "none", "kernel.sigma2": "median", "kernel.scale": "none"}


def table(folder: Path, n: int, d: int = 4) -> str:
    X = np.random.default_rng(0).normal(size=(n, d))
    np.savez(folder / "table.npz", X_train=X, y_train=X.sum(axis=1), X_test=X[:5], y_test=X[:5].sum(axis=1))
    return str(folder / "table.npz")


def filled(dataset: str, **asked: Any) -> tuple[TrainConfig, tuple[str, ...]]:
    asked = {"resources.memory_limit": "8GiB"} | {key.replace("__", "."): value for key, value in asked.items()}
    loaded = load(dataset, None, {key: (value, key) for key, value in asked.items()})
    prepared = prepare(loaded.config, loaded.explicit, Reading(), frozen=False)
    return prepared.config, prepared.notes


def taken(config: TrainConfig, keys: dict[str, Any]) -> dict[str, Any]:
    return {key: get(config, key) for key in keys}


# What is asked for, and what is filled in for a table of 700 rows.
FILLED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, SIMPLE | {"centers.count": 700, "kernel.name": "auto"}),
    ({"centers.budget": "0.1s"}, SIMPLE | {"kernel.name": "auto"}),
    ({"centers.budget": "60s"}, SIMPLE | {"kernel.name": "auto"}),
    ({"kernel.name": "product-laplace"}, SIMPLE | {"kernel.name": "product-laplace"}),
    ({"kernel.scale": "metric"}, SIMPLE | {"kernel.scale": "metric", "kernel.name": "auto"}),
    ({"kernel.sigma2": 2.0}, SIMPLE | {"kernel.sigma2": 2.0, "kernel.scale": "none", "kernel.name": "gaussian"}),
    ({"solver.select": "greedy:9"}, {"kernel.name": "gaussian"}),
    ({"solver.penalty": 1.0}, {"kernel.name": "gaussian"}),
    ({"solver.penalty": "max:1e-7"}, PENALISED),
    ({"solver.tolerance": 1e-4}, PENALISED),
    ({"solver.refit": "ridge"}, PENALISED | {"solver.refit": "ridge"}),
    ({"solver.refit": "none"}, PENALISED),
    ({"centers.count": "all"}, PENALISED),
    ({"statistics.hold_out": 0.0}, PENALISED),
]


@pytest.mark.parametrize(("asked", "expected"), FILLED, ids=range(len(FILLED)))
def test_least_squares_on_all_rows_unless_something_of_another_problem_is_asked_for(tmp_path, asked, expected):
    config, _ = filled(table(tmp_path, 700), **asked)
    assert taken(config, expected) == expected


def test_a_budget_says_how_many_and_how_large_the_trials_are_and_so_does_a_number(tmp_path):
    data = table(tmp_path, 5000)
    small, notes = filled(data, centers__budget="4s")
    larger, _ = filled(data, centers__budget="8s")
    assert 500 <= small.centers.count < larger.centers.count < 5000
    assert any("budget of 4 core seconds" in note for note in notes)
    assert filled(data, centers__count=321)[0].centers.count == 321
    assert filled(data, solver__penalty=1.0)[0].centers.count == 1000
    assert filled(data, centers__budget="8s", solver__select="greedy:50")[0].centers.count < larger.centers.count


def test_without_room_for_a_gram_of_all_there_is_a_penalty(tmp_path):
    data = table(tmp_path, 9000)
    config, notes = filled(data, centers__count=9000, resources__memory_limit="1500MiB")
    assert config.solver.penalty == "max:1e-7"
    assert any("does not fit" in note for note in notes)
    by_budget, _ = filled(data, resources__memory_limit="1500MiB", centers__budget="1h")
    assert by_budget.solver.penalty == "none"
    assert by_budget.centers.working_set == by_budget.centers.count
    with pytest.raises(ConfigError, match=r"`solver.penalty=none` needs the Gram of all"):
        filled(data, centers__count=9000, solver__penalty="none", resources__memory_limit="1500MiB")


@pytest.mark.parametrize(
    ("n", "asked", "limits"),
    [(3000, {"solver.select": "greedy:300"}, ("490MiB", "470MiB")), (6000, SIMPLE, ("830MiB", "770MiB"))],
)
def test_candidates_that_were_not_counted_are_as_many_as_fit(tmp_path, n, asked, limits):
    data = table(tmp_path, n, 2000)
    more, less = (filled(data, resources__memory_limit=limit, **asked)[0] for limit in limits)
    assert taken(more, asked) == asked
    assert 300 <= less.centers.count < more.centers.count == more.centers.working_set
    with pytest.raises((PlanError, ConfigError), match=r"fewer .*`centers\.count`"):
        filled(data, resources__memory_limit=limits[1], centers__count=more.centers.count, **asked)


IMAGE = {"features.name": "soft-hog", "kernel.sigma2": 0.25, "solver.penalty": 0.01, "solver.refit": "ridge"}
TABLE = {"features.name": "raw", "kernel.sigma2": "auto", "solver.penalty": "none", "centers.budget": 30.0}


class Taken(NamedTuple):
    """A run that was measured, on cores of an AMD EPYC server processor: rows, features, settings, core seconds."""

    n_train: int
    n_test: int
    n_features: int
    settings: dict[str, Any]
    seconds: float


MNIST = (60_000, 10_000, 512)
MEASURED = {
    "digits": Taken(1348, 449, 576, IMAGE | {"centers.count": 1000}, 1.0),
    "usps": Taken(7291, 2007, 288, IMAGE | {"centers.count": 1000}, 2.0),
    "usps, all": Taken(7291, 2007, 288, IMAGE | {"centers.count": "all"}, 16.2),
    "mnist": Taken(*MNIST, IMAGE | {"centers.count": 1000}, 8.1),
    "mnist, chosen": Taken(*MNIST, IMAGE | {"centers.count": 2000, "solver.select": "greedy:400"}, 18.1),
    "a table": Taken(15_000, 5000, 12, TABLE | {"centers.count": 4000}, 13.0),
}


def told(taken: Taken, cores: int = 1, **more: Any) -> str:
    settings = {"centers.working_set": taken.n_train} | taken.settings | more
    outputs = (
        {"n_outputs": 1, "task": "regression"} if taken.n_features < 20 else {"n_outputs": 10, "task": "multiclass"}
    )
    rows = {"n_train": taken.n_train, "n_test": taken.n_test, "n_features": taken.n_features}
    shape: Any = SimpleNamespace(**rows, **outputs)
    return forecast(with_values(TrainConfig("data"), settings), shape, cores, built=False)


@pytest.mark.parametrize("name", MEASURED)
def test_it_is_within_a_factor_of_two(name):
    words = told(MEASURED[name]).split()
    number, unit, core = words[-5], words[-4], words[-1]
    taken = START_SECONDS + MEASURED[name].seconds
    assert (unit, core) == ("seconds", "core")
    assert taken / 2 < float(number) < 2 * taken


def test_what_it_cannot_know_and_how_it_counts():
    all_rows = told(MEASURED["mnist"], **{"centers.count": "all", "centers.working_set": 1000})
    assert all_rows.startswith("time unknown: candidates come in by rounds")
    hours = told(MEASURED["a table"], cores=2, **{"centers.budget": 36_000.0})
    assert hours == "at most about 3 hours on 2 cores"


def test_the_command_tells_it(capsys):
    assert train.main(["digits", "--dry-run", "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("seconds on 1 core")


@pytest.mark.parametrize(("name", "too_little"), [("d.npz", "370MiB"), ("d", "340MiB")])  # which do for few rows
def test_arrays_that_do_not_fit_are_refused_before_they_are_read(tmp_path, capsys, monkeypatch, name, too_little):
    X = np.random.default_rng(0).random((60_000, 120))  # 55 MiB, which only those of .npz need
    write = np.savez if name == "d.npz" else write_npy
    write(tmp_path / name, X=X, y=np.sin(X[:, 0]))
    line = [str(tmp_path / name), "--centers", "50", "--features-dir", str(tmp_path / "f")]
    with monkeypatch.context() as during:
        during.setattr(planning, "open_data", lambda *_, **__: pytest.fail("the inputs were read"))
        assert train.main([*line, "--memory-limit", too_little]) == 71
    smallest = capsys.readouterr().err.split("--memory-limit ")[1].split()[0]
    assert train.main([*line, "--memory-limit", smallest, "--dry-run"]) == 0
