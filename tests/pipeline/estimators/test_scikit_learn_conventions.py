"""Scikit-learn's own checks of the estimators, and its tools at work on them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from pipeline.estimators import SLKLClassifier, SLKLRegressor

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
