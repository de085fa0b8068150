"""Targets, weights and keys of the training rows are read once before columns are computed, whatever is fitted."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cases import CASES as CASES_OF_RUNS
from cases import SERIAL
from pipeline.estimators import SLKLClassifier, SLKLRegressor, machine_fit
from pipeline.fit.workspace import FinalWeights, Workspace
from runs import train
from storage.zarr_arrays import StoredArray

N = 1500
FEW = 400
CASES: dict[str, tuple[Any, int, tuple[str, ...]]] = {
    "a mean": (SLKLRegressor(40, kernel="gaussian", feature_scale=None), N, ("sample_weight",)),
    "a penalty": (SLKLRegressor(40, penalty=1.0), N, ()),
    "class weights": (SLKLClassifier(40, sigma2=1.0, feature_scale=None, class_weight="balanced"), N, ()),
    "few rows, in folds": (SLKLClassifier(40, sigma2="auto", feature_scale=None), FEW, ()),
    "groups": (SLKLClassifier(40, penalty="auto", refit="ridge"), N, ("groups",)),
    "growing": (SLKLRegressor(budget="1s", sigma2="auto", kernel="gaussian", feature_scale=None), N, ()),
}


class Counted:
    """An array of the rows of a fit that counts how many were read before the first block of features."""

    def __init__(self, name: str, values: Any, n_read: Counter[str]) -> None:
        self._name, self._values, self._n_read = name, values, n_read
        self.shape, self.dtype = values.shape, values.dtype

    def __getitem__(self, rows: Any) -> Any:
        found = self._values[rows]
        if self._name == "X" and isinstance(rows, slice):
            self._n_read["computes"] = 1
        elif not self._n_read["computes"] and self._name != "X":
            self._n_read[self._name] += len(found)
        return found


@pytest.mark.parametrize("case", CASES)
def test_targets_weights_and_keys_are_read_once_before_columns_are_computed(case, monkeypatch):
    machine, n, given = CASES[case]
    draw, fit, n_read = np.random.default_rng(0), machine_fit.fit, Counter[str]()
    X, of_rows = draw.random((n, 3)), {"sample_weight": draw.exponential(size=n), "groups": np.arange(n) // 3}
    y = np.sin(6 * X[:, 0]) + X[:, 1]

    def counting(work: Workspace) -> FinalWeights:
        rows: Any = work.features
        arrays = {name: getattr(rows, name) for name in ("X", "y", "weights", "keys", "groups")}
        held = {name: Counted(name, values, n_read) for name, values in arrays.items() if values is not None}
        work.features = replace(rows, **held)
        return fit(work)

    monkeypatch.setattr(machine_fit, "fit", counting)
    machine.fit(X, y if isinstance(machine, SLKLRegressor) else y > 0.9, **{name: of_rows[name] for name in given})
    expected = dict.fromkeys(["y", "keys", *("weights" if one == "sample_weight" else one for one in given)], n)
    assert n_read == expected | {"computes": 1}


@pytest.mark.parametrize("case", ["one for each class", "weights", "by a budget"])
def test_a_run_reads_them_once_from_its_store(tables, features, tmp_path, monkeypatch, case):
    read, n_read = StoredArray.__getitem__, Counter[str]()

    def counting(array: StoredArray, rows: Any) -> Any:
        found, (part, name) = read(array, rows), array.path.split("/")
        if name == "X" and isinstance(rows, slice):
            n_read["computes"] = 1
        elif part == "train" and not n_read["computes"]:
            n_read[name] += len(found)
        return found

    monkeypatch.setattr(StoredArray, "__getitem__", counting)
    report = train(
        tmp_path / "run", features, *CASES_OF_RUNS[case].arguments, *SERIAL, dataset=CASES_OF_RUNS[case].dataset(tables)
    )
    n_read.pop("X", None)  # of candidates and samples, by their numbers
    names = ["y", "keys", *(["weights"] if case == "weights" else [])]
    assert n_read == dict.fromkeys(names, report["n_train"]) | {"computes": 1}
