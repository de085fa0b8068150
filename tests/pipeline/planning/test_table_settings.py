"""What is filled in for a table: the problem, width, scales, and candidates by a budget; and what asks for another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.settings import get, load
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_rows import FeatureShape
from pipeline.datasets.open_data import Reading
from pipeline.errors import ConfigError, PlanError
from pipeline.planning.plan import prepare
from pipeline.stages.filled_settings import trial_sizes

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
    shape = FeatureShape("regression", (), 20_000, 4, 1000, 5)
    assert trial_sizes(filled(data, centers__budget="60s")[0], shape).more > 2 * trial_sizes(small, shape).more
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


def test_a_limit_too_small_for_a_model_is_refused_and_never_makes_one_of_few_centers(tmp_path):
    data = table(tmp_path, 600)
    assert filled(data, resources__memory_limit="700MiB")[0].centers.count >= 500
    with pytest.raises((PlanError, ConfigError), match=r"`resources\.memory_limit="):
        filled(data, resources__memory_limit="250MiB")


def test_a_number_from_the_budget_is_lowered_until_its_gram_fits(tmp_path):
    data = table(tmp_path, 6000, 2000)
    config, _ = filled(data, resources__memory_limit="700MiB")
    assert taken(config, SIMPLE) == SIMPLE
    assert 500 <= config.centers.count == config.centers.working_set
    fewer, _ = filled(data, resources__memory_limit="640MiB")
    assert 500 <= fewer.centers.count < config.centers.count
