"""scikit-learn estimators: a sparse kernel machine with a certificate, fitted in memory and in one process.

They minimise ½ Σ_i s_i ‖y_i - f(x_i)‖² + √penalty ‖w‖₁ with f(x) = Σ_m w_m k(x, x_m) + b and sample weights s, the
Lasso that the paper's problem equals (mathematics.md, section 3). One pass over the rows gives the statistics; the
rest needs the Gram of the candidates alone. Runs on disk, with resumption and more candidates than have a Gram in
memory, are `pipeline.train`'s.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from features.targets import labels_from_decision
from pipeline.estimator_base import KernelMachine
from pipeline.estimator_data import row_weights


class SLKLRegressor(RegressorMixin, KernelMachine):
    """Sparse kernel regression f(x) = Σ_m w_m exp(-‖x - x_m‖² / (2 σ²)) + b with a certified duality gap.

    Parameters
    ----------
    n_centers : int, "all" or None
        Number of training rows drawn as candidates, without replacement; the penalty keeps some of them. None: 1000,
        or all where there are fewer. More than there are rows of positive weight are clipped, with a warning. The
        Gram of the candidates takes 8·n_centers² bytes.
    sigma2 : float or "median"
        σ², in squared units of X, above 0; "median": the median of the squared distances between
        candidates, 1000 of them where there are more.
    penalty : float or "auto"
        λν, above 0: √penalty is the l1 penalty of the Lasso ½ Σ_i s_i (y_i - f(x_i))² + √penalty ‖w‖₁, not divided by
        the number of rows. "auto": that of the lowest error on a tenth of the rows, held out, then fitted on all.
    refit : None or "ridge"
        "ridge": least squares on the centers that the penalty kept, with a small ridge chosen on held-out rows.
    select : None, "greedy:K" or "greedy:auto"
        Choose K centers (or as many as lower the held-out error) by how much each lowers the squared error, instead
        of by a penalty; the weights are least squares. `penalty`, `refit`, `tol` and `warm_start` are not used then.
    coupling : "one-vs-all" or "shared"
        "shared": one kernel, and so the same centers, for all classes of a classifier.
    fit_intercept : bool
        Fit b, without a penalty.
    centers : None or array
        Candidates of one's own instead of a draw: points (m, n_features), or whole numbers (m,) of rows of X.
    tol : float
        Relative duality gap to reach, above 0. Up to 500 candidates are solved to rounding (not if "uniform").
    max_sweeps : int
        Iterations (sweeps or Newton rounds) of a solve before it gives up, at least 1.
    schedule : "shrinking" or "uniform"
        "uniform": the paper's random order, without Newton rounds.
    memory_limit : int, str or None
        Bytes, or a size such as "2GiB", for the Grams and candidates; blocks of rows take some 64 MiB besides. None:
        three quarters of the machine's memory.
    warm_start : bool
        Start from the weights of the last fit, on those of its centers that are candidates again: with `centers`, or
        with a `random_state` that draws the same.
    random_state : int, RandomState or None
        Draws candidates, held-out rows and the order of visits. An int draws what `--seed` does.
    callback : callable or None
        Called once per iteration with a dictionary: `outputs`, `penalty` and the fields of `solvers.Record` (in a
        greedy choice `phase`, `iteration`, `n_active`). Raise KeyboardInterrupt in it to stop with what there is.

    Attributes
    ----------
    centers_ : (m, n_features) float32 or float64
        The chosen centers, those whose weight is not zero; of the dtype of X.
    center_index_ : (m,) int64
        Their rows in X, -1 for points of one's own.
    coef_ : (m,) float64
        The weights w; (T, m) in the classifier, with one row for two classes.
    intercept_ : float
        b; (T,) in the classifier.
    mu_ : (m,) float64 or None
        The conical weights μ_m = |w_m| / √penalty of the paper before a refit, shaped as `coef_`; (m,) with a shared
        kernel, None after a greedy choice.
    dual_gap_ : float
        Relative duality gap (P - D) / P over all candidates, the largest of the outputs; NaN after a greedy choice.
    n_iter_ : int
        Iterations of the longest solve, or centers chosen greedily.
    penalty_, sigma2_ : float
        Those in use; `penalty_` is None after a greedy choice.
    n_features_in_ : int

    Notes
    -----
    X is an array, or anything with shape, dtype and slices of rows: a memory map, a dask or zarr array. Those are read
    once by row blocks (and once more where candidates are drawn, or a penalty of a classifier compared), never whole.
    float32 rows give float32 kernel values and predictions; up to two million kernel values are float64.
    A fit costs 2·n·d·M + n·M² operations and a few times 8·M² bytes, with one BLAS thread.

    Ctrl-C while centers and weights are computed keeps those so far, with a ConvergenceWarning: a usable model. Before
    that there is none, and KeyboardInterrupt is raised. A fit that raises leaves the estimator as it was.

    References
    ----------
    Machart, Peel, Anthoine, Ralaivola, Glotin (2011), Stochastic Low-Rank Kernel Learning for Regression, ICML.
    """

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> "SLKLRegressor":
        """Fit X (n, n_features) to y (n,) numbers with row weights (n,) ≥ 0, and return self.

        Raises
        ------
        ValueError
            For parameters or data that make no sense, and kernel values that would be rounding.
        MemoryError
            The Grams do not fit `memory_limit`.
        """
        with self._as_before_on_error():
            rows, values = self._validated(X, y, numeric=True)
            weights = row_weights(sample_weight, rows)
            self._fit(rows, values.astype(np.float64), "regression", weights)
        return self

    def predict(self, X: Any) -> NDArray[np.floating]:
        """Return f(x) (n,) of rows X (n, n_features): float32 for float32 rows, else float64. Raises ValueError."""
        return self._decision(X)[:, 0]


class SLKLClassifier(ClassifierMixin, KernelMachine):
    """Sparse kernel machine for two or more classes: one-vs-all least squares with a certified duality gap.

    Each class is fitted by +1 for its rows and -1 for all others; the largest decision value wins. Two classes are one
    problem, +1 for the second.

    Parameters
    ----------
    n_centers, sigma2, penalty, refit, select, coupling, fit_intercept, centers, tol, max_sweeps, schedule,
    memory_limit, warm_start, random_state, callback
        As in `SLKLRegressor`; "auto" and "greedy:auto" look at held-out rows, "auto" at how many are misclassified.
    class_weight : None, "balanced" or dict
        Factors of the row weights by class, as everywhere in scikit-learn.

    Attributes
    ----------
    classes_ : (n_classes,) array
        The labels, sorted.
    centers_, center_index_, coef_, intercept_, mu_, dual_gap_, n_iter_, penalty_, sigma2_, n_features_in_
        As in `SLKLRegressor`.

    Notes
    -----
    See `SLKLRegressor`, also for the source.
    """

    def __init__(
        self,
        n_centers: int | str | None = None,
        *,
        sigma2: float | str = "median",
        penalty: float | str = 0.01,
        refit: str | None = None,
        select: str | None = None,
        coupling: str = "one-vs-all",
        fit_intercept: bool = True,
        centers: ArrayLike | None = None,
        tol: float = 1e-3,
        max_sweeps: int = 1000,
        schedule: str = "shrinking",
        memory_limit: int | str | None = None,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        callback: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "class_weight", "__class__")}
        super().__init__(**given)
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> "SLKLClassifier":
        """Fit X (n, n_features) to labels y (n,) with row weights (n,) ≥ 0, and return self.

        Raises
        ------
        ValueError
            As in `SLKLRegressor.fit`, and for labels of fewer than two classes with rows of positive weight.
        MemoryError
            The Grams do not fit `memory_limit`.
        """
        with self._as_before_on_error():
            rows, labels = self._validated(X, y, numeric=False)
            check_classification_targets(labels)
            self.classes_, targets = np.unique(labels, return_inverse=True)
            weights = row_weights(sample_weight, rows)
            if self.class_weight is not None:
                weights = weights * self._class_factors(labels)
            n_present = len(np.unique(targets[weights > 0]))
            if n_present < 2:
                raise ValueError(
                    f"y holds {n_present} class with rows of positive weight; at least two classes are needed"
                )
            task = "binary" if len(self.classes_) == 2 else "multiclass"
            self._fit(rows, targets, task, weights)
        return self

    def _class_factors(self, labels: NDArray[Any]) -> NDArray[np.float64]:
        factors: NDArray[np.float64] = compute_sample_weight(self.class_weight, labels)
        if not (np.isfinite(factors).all() and factors.min() >= 0):
            raise ValueError(f"class_weight must hold finite numbers of at least 0; found {self.class_weight!r}")
        return factors

    def decision_function(self, X: Any) -> NDArray[np.floating]:
        """Return decision values of rows X (n, n_features): (n, n_classes), or (n,) for two classes, as `predict`."""
        decision = self._decision(X)
        return decision[:, 0] if self._task == "binary" else decision

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the labels (n,) of rows X (n, n_features). Raises ValueError."""
        decision = self._decision(X)  # which says so where nothing is fitted
        return np.asarray(self.classes_[labels_from_decision(decision, self._task)])
