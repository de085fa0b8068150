"""Targets, weights and keys of the training rows are read once before columns are computed, whatever is fitted."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from pipeline.estimators import SLKLClassifier, SLKLRegressor, machine_fit
from pipeline.stages.workspace import FinalWeights, Workspace

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


class CountedRows:
    """The rows of a fit, and how many targets, weights and keys were read before the first block of features."""

    def __init__(self, rows: Any) -> None:
        self._rows, self.n_read, self._computes = rows, Counter[str](), False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rows, name)
        self._computes |= name == "read"
        if self._computes or name not in ("targets", "weights", "keys"):
            return found

        def counted(*asked: Any) -> Any:
            self.n_read[name] += asked[-1] - asked[-2]
            return found(*asked)

        return counted


@pytest.mark.parametrize("case", CASES)
def test_targets_weights_and_keys_are_read_once_before_columns_are_computed(case, monkeypatch):
    machine, n, given = CASES[case]
    draw, fit, counted = np.random.default_rng(0), machine_fit.fit, list[CountedRows]()
    X, of_rows = draw.random((n, 3)), {"sample_weight": draw.exponential(size=n), "groups": np.arange(n) // 3}
    y = np.sin(6 * X[:, 0]) + X[:, 1]

    def counting(work: Workspace) -> FinalWeights:
        counted.append(CountedRows(work.features))
        work.features = counted[0]  # type: ignore[assignment]
        return fit(work)

    monkeypatch.setattr(machine_fit, "fit", counting)
    machine.fit(X, y if isinstance(machine, SLKLRegressor) else y > 0.9, **{name: of_rows[name] for name in given})
    assert dict(counted[0].n_read) == {"targets": n, "weights": n, "keys": n}
