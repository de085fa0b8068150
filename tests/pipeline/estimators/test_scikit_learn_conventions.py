"""Scikit-learn's own checks of the estimators, and its tools at work on them."""

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from pipeline.config.settings import with_values
from pipeline.config.train_config import TrainConfig
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.estimators.parameters import PARAMETERS, settings_of

Table = tuple[np.ndarray, np.ndarray]

CHECKED = {
    "regressor": SLKLRegressor(),
    "regressor, scales and width": SLKLRegressor(feature_scale="learned", sigma2="auto"),
    "classifier": SLKLClassifier(),
    "classifier, no intercept": SLKLClassifier(fit_intercept=False),
    "classifier, scales": SLKLClassifier(feature_scale="learned"),
    "regressor, laplace": SLKLRegressor(kernel="laplace", sigma2=4.0),
    "classifier, probabilities": SLKLClassifier(refit="ridge"),
}
# Checks of the estimators as they are by default that a quick test run makes.
QUICK = {
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_dont_overwrite_parameters",
    "check_dtype_object",
    "check_estimator_sparse_array",
    "check_estimators_nan_inf",
    "check_fit1d",
    "check_fit2d_1sample",
    "check_n_features_in",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_requires_y_none",
}


def checks() -> Iterator[Any]:
    for name, estimator in CHECKED.items():
        for copy, check in estimator_checks_generator(estimator):
            function = getattr(check, "func", check).__name__
            quick = function in QUICK and name in ("regressor", "classifier")
            yield pytest.param(copy, check, marks=() if quick else pytest.mark.ci, id=f"{name}-{function}")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # weights of 1000 and 1e-4 leave a gap
@pytest.mark.parametrize(("estimator", "check"), [*checks()])
def test_estimators_keep_the_conventions_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", [SLKLRegressor, SLKLClassifier])
def test_parameters_are_settings_with_the_same_defaults_and_described(kind: type) -> None:
    names = [*signature(kind).parameters]
    others = {"random_state", "callback", "verbose"} | ({"class_weight"} if kind is SLKLRegressor else set())
    assert set(names) | others == {*PARAMETERS, "random_state", "callback", "verbose"}
    described = f"{SLKLRegressor.__doc__}{kind.__doc__}"
    assert not [name for name in names if f"\n    {name} : " not in described]
    config, explicit = settings_of(kind())
    of_arrays = {"features.name": "raw", "features.power": 1.0, "resources.features_store": "none"}
    of_tables = {"data.standardise": True, "solver.intercept": True}
    assert (config, explicit) == (with_values(TrainConfig("X"), of_arrays | of_tables), frozenset())
    asked = settings_of(kind("all", refit="ridge", tol=1e-4, schedule="uniform", sigma2=1.0))[1]
    assert asked == {"centers.count", "solver.refit", "solver.tolerance", "solver.schedule", "kernel.sigma2"}
