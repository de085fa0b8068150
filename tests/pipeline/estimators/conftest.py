"""Tables of scikit-learn, and estimators that are fitted once a test session."""

from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.preprocessing import StandardScaler

Table = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="session")
def diabetes() -> Table:
    """442 standardised rows of ten features, and standardised targets."""
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X), (y - y.mean()) / y.std()


@pytest.fixture(scope="session")
def digits() -> Table:
    """1797 images of 8 x 8 pixels in [0, 1], float32, and their ten labels."""
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y


@pytest.fixture(scope="session")
def fitted() -> Callable[..., Any]:
    """Return a function that fits an estimator, once for the same parameters and data. What it returns is read only."""
    machines: dict[str, Any] = {}

    def fit(machine: Any, X: Any, y: Any, weights: Any = None) -> Any:
        key = joblib.hash((type(machine).__name__, machine.get_params(), X, y, weights))
        if key not in machines:
            machines[key] = machine.fit(X, y) if weights is None else machine.fit(X, y, weights)
        return machines[key]

    return fit
