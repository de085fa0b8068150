"""Sparse kernel regression on arrays, and what its certificate means: checked here by hand, in six lines of numpy.

COMMAND: python jobs/examples/regression_sinc.py

sin‖x‖/‖x‖ in the plane from 1000 noisy points, as in the paper. Nothing is written.
"""

# %%
import sys
from pathlib import Path

import numpy as np
from sklearn.metrics.pairwise import rbf_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout

from pipeline.estimators.slkl import SLKLRegressor

generator = np.random.default_rng(0)


def sinc(X: np.ndarray) -> np.ndarray:
    return np.sinc(np.linalg.norm(X, axis=1) / np.pi)


X, X_test = generator.uniform(-10, 10, (1000, 2)), generator.uniform(-10, 10, (1000, 2))
y = sinc(X) + generator.normal(0, np.sqrt(0.1), len(X))

# %% 500 of the points are candidates. The penalty, √penalty·‖w‖₁, keeps those that are worth their weight.

as_it_is = {"sigma2": 1.0, "standardise": False, "random_state": 0}  # σ² in squared units of X, not standardised
model = SLKLRegressor(500, penalty=1.0, fit_intercept=False, **as_it_is).fit(X, y)
mse = np.mean((model.predict(X_test) - sinc(X_test)) ** 2)
print(f"{len(model.centers_)} of 500 candidates have a weight; test mse {mse:.4f}")
print(f"relative duality gap {model.dual_gap_:.1e} after {model.n_iter_} iterations")

# %% What that gap is. The fit minimises P(w) = ½‖y - Kw‖² + τ‖w‖₁, τ = √penalty. Any v with |Kᵀv| ≤ τ in every
# entry gives a lower bound D(v) = ½‖y‖² - ½‖y - v‖² of all values of P; the scaled residual is such a v. The true
# minimum lies between D and P, whatever way the weights were found.

candidates = X[np.random.default_rng([0, 1]).permutation(len(X))[:500]]  # as random_state=0 draws them
K, tau = rbf_kernel(X, candidates, gamma=0.5), 1.0  # gamma = 1 / (2 σ²)
residual = y - rbf_kernel(X, model.centers_, gamma=0.5) @ model.dual_coef_
primal = residual @ residual / 2 + tau * np.abs(model.dual_coef_).sum()
v = residual * min(1.0, tau / np.abs(K.T @ residual).max())
dual = y @ y / 2 - (y - v) @ (y - v) / 2
print(f"by hand: P = {primal:.9f}, D = {dual:.9f}, relative gap {(primal - dual) / primal:.1e}")

# %% The l1 penalty also shrinks the weights that it keeps. `refit="ridge"` fits them again without it, which pays where
# the noise is small; here it is not. `penalty="auto"` takes that of the lowest error on a tenth of the rows, held out.

for name, way in {"refitted": {"penalty": 1.0, "refit": "ridge"}, "auto": {"penalty": "auto"}}.items():
    model = SLKLRegressor(500, **as_it_is, **way).fit(X, y)
    mse = np.mean((model.predict(X_test) - sinc(X_test)) ** 2)
    print(f"{name}: penalty {model.penalty_:.3g}, {len(model.centers_)} centers, test mse {mse:.4f}")

# %% The function along the first axis, beside the truth.

line = np.column_stack([np.linspace(-10, 10, 11), np.zeros(11)])
for x, value, truth in zip(line[:, 0], model.predict(line), sinc(line), strict=True):
    print(f"x = {x:5.1f}   f(x) = {value:7.3f}   sinc = {truth:7.3f}   {' ' * round(20 + 30 * value)}●")
