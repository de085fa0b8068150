"""The scikit-learn API: `SLKLClassifier` and `SLKLRegressor`."""

from pipeline.estimators.slkl import SLKLClassifier, SLKLRegressor

__all__ = ["SLKLClassifier", "SLKLRegressor"]
