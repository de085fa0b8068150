"""The forecast of the time of a run, within a factor of two of what runs took in processor seconds."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import train
from pipeline.config.settings import with_values
from pipeline.config.train_config import TrainConfig
from pipeline.plan import START_SECONDS, forecast

IMAGE = {"features.name": "soft-hog", "kernel.sigma2": 0.25, "solver.penalty": 0.01, "solver.refit": "ridge"}
TABLE = {"features.name": "raw", "kernel.sigma2": "auto", "solver.penalty": "none", "centers.budget": 30.0}


@dataclass(frozen=True)
class Taken:
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
    assert "6e+04 x 6e+04 kernel values" in all_rows
    assert told(MEASURED["usps"], **{"solver.penalty": "auto"}).startswith("time unknown")
    hours = told(MEASURED["a table"], cores=2, **{"centers.budget": 36_000.0})
    assert hours == "at most about 3 hours on 2 cores"


def test_the_command_tells_it(capsys):
    assert train.main(["digits", "--dry-run", "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("seconds on 1 core")
