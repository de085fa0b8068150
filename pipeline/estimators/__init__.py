"""The scikit-learn API: `SLKLClassifier` and `SLKLRegressor`, and the transformer `GreedyNystroem`."""

from pipeline.estimators.greedy_nystroem import GreedyNystroem
from pipeline.estimators.slkl import SLKLClassifier, SLKLRegressor

__all__ = ["GreedyNystroem", "SLKLClassifier", "SLKLRegressor"]
