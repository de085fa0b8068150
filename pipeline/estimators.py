"""scikit-learn estimators: a sparse kernel machine with a certificate, fitted in memory and in one process.

They minimise ½ Σ_i s_i ‖y_i - f(x_i)‖² + √penalty ‖w‖₁ with f(x) = Σ_m w_m k(x, x_m) + b and sample weights s, the
Lasso that the paper's problem equals (mathematics.md, section 3). One pass over the rows gives the statistics; the
rest needs the Gram of the candidates alone. Runs on disk, with resumption and more candidates than have a Gram in
memory, are `pipeline.train`'s.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from features.extractors import FeatureSpec
from features.targets import labels_from_decision, outputs
from pipeline.columns import ColumnGenerator
from pipeline.equal_points import keys_of
from pipeline.estimator_data import (
    Candidates,
    Held,
    Rows,
    accumulate,
    as_value_error,
    candidate_count,
    draw_candidates,
    given_candidates,
    held_out_rows,
    is_sliced,
    median_sigma2,
    row_weights,
    seed_of,
)
from pipeline.estimator_solve import Found, Task, check_memory, checked_options, find_weights
from pipeline.model import SparseKernelModel
from pipeline.plan import default_limit_bytes
from pipeline.setting_types import byte_size

SMALL_CANDIDATES = 500  # problems of so few candidates are solved to the last digit: it costs milliseconds
SMALL_VALUES = 2_000_000  # kernel values; with no more of them they are float64 whatever the rows are


class _KernelMachine(BaseEstimator):
    """What the two estimators share; `_task` is the task of features.targets, known after `_fit`."""

    _task: str

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
        warm_start: bool = False,
        random_state: Any = None,
        callback: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.n_centers = n_centers
        self.sigma2 = sigma2
        self.penalty = penalty
        self.refit = refit
        self.select = select
        self.coupling = coupling
        self.fit_intercept = fit_intercept
        self.centers = centers
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.schedule = schedule
        self.memory_limit = memory_limit
        self.warm_start = warm_start
        self.random_state = random_state
        self.callback = callback

    def _validated(self, X: Any, y: Any, *, numeric: bool) -> tuple[Rows, NDArray[Any]]:
        """Return rows and y (n,), checked as scikit-learn does; arrays read by slices are not read yet."""
        if not is_sliced(X):
            X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=numeric)
            return Rows(X), column_or_1d(y, warn=True)
        rows = Rows(X)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if not all(rows.shape):
            raise ValueError(f"Found array with 0 sample(s) or feature(s): X has the shape {rows.shape}")
        y = column_or_1d(np.asarray(y), warn=True)
        check_consistent_length(rows, y)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        self.n_features_in_ = rows.shape[1]
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return rows, y.astype(np.float64) if numeric else y

    def _fit(self, rows: Rows, targets: NDArray[Any], task: str, weights: NDArray[np.float64]) -> None:
        """Fit targets (n,) of features.targets with row weights (n,) and store what was found."""
        options = checked_options(self.get_params(deep=False))
        seed = seed_of(self.random_state)
        eligible = np.flatnonzero(weights > 0)
        n_asked = candidate_count(len(eligible), self.n_centers, self.centers)
        apart = self.penalty == "auto" or self.refit is not None or self.select is not None
        limit = default_limit_bytes() if self.memory_limit is None else byte_size(self.memory_limit)
        greedy, given = self.select is not None, self.centers is not None
        check_memory(n_asked, rows.shape[1], limit, apart=apart, centred=self.fit_intercept, greedy=greedy)
        candidates = given_candidates(rows, self.centers) if given else draw_candidates(rows, eligible, n_asked, seed)
        n_candidates = len(candidates.index)
        signs = outputs(targets, task, len(self.classes_) if task != "regression" else 0)
        held_out = held_out_rows(seed, weights) if apart else np.zeros(len(rows), bool)
        sigma2 = median_sigma2(candidates.points) if isinstance(self.sigma2, str) else float(self.sigma2)
        small = len(rows) * n_candidates <= SMALL_VALUES
        dtype: type = np.float64 if small else rows.dtype
        with threadpool_limits(1, user_api="blas"), as_value_error():  # its bits depend on the number of threads
            generator = ColumnGenerator(candidates.points, sigma2, dtype)
            fit, hold_out = accumulate(rows, generator, signs, weights, held_out)
            asked = Task(
                task=task,
                options=options,
                penalty=self.penalty if self.penalty == "auto" else float(self.penalty),
                refit=self.refit is not None,
                select=self.select,
                shared=self.coupling == "shared",
                intercept=bool(self.fit_intercept),
                seed=seed,
                exact=n_candidates <= SMALL_CANDIDATES and self.schedule == "shrinking",
                callback=self.callback,
            )
            held = Held(rows, targets, np.where(held_out, weights, 0.0), task)

            def errors(active: NDArray[np.int64], *models: NDArray[np.float64]) -> NDArray[np.float64]:
                return held.errors(ColumnGenerator(candidates.points[active], sigma2, dtype), *models)

            found = find_weights(asked, fit, hold_out, errors, self._start(candidates, signs.shape[1]))
        self.sigma2_, self._column_dtype, self._task = sigma2, dtype, task  # not before there is a model
        self._store(candidates, found)

    def _start(self, candidates: Candidates, n_outputs: int) -> NDArray[np.float64] | None:
        """Return the weights (M, T) of the fit before, on the candidates that were among its centers."""
        before: NDArray[np.float64] | None = getattr(self, "_penalised", None)
        if not self.warm_start or before is None or before.shape[1] != n_outputs:
            return None
        dtype = candidates.points.dtype
        known = dict(zip(keys_of(self.centers_.astype(dtype)), before, strict=True))
        nothing = np.zeros(n_outputs)
        return np.stack([known.get(key, nothing) for key in keys_of(candidates.points)])

    def _store(self, candidates: Candidates, found: Found) -> None:
        """Set the fitted attributes, and warn of a tolerance that was not reached."""
        self.centers_ = candidates.points[found.active]
        self.center_index_ = candidates.index[found.active]
        self._weights, self._intercept, self._penalised = found.weights, found.intercept, found.penalised
        single = self._task == "regression"
        self.coef_ = found.weights[:, 0] if single else found.weights.T.copy()
        by_output = found.mu is not None and found.mu.ndim == 2
        self.mu_ = found.mu if found.mu is None or not by_output else found.mu[:, 0] if single else found.mu.T.copy()
        self.intercept_ = float(found.intercept[0]) if single else found.intercept
        self.penalty_, self.dual_gap_, self.n_iter_ = found.penalty, found.relative_gap, found.n_iter
        if found.interrupted:
            what = "the fit was interrupted, the weights so far are kept"
        elif found.relative_gap > self.tol:  # false for NaN, where nothing was solved
            what = "the tolerance was not reached; raise max_sweeps or tol"
        else:
            return
        numbers = f"relative duality gap {found.relative_gap:.2e}, tol={self.tol:g}, {found.n_iter} iterations"
        warnings.warn(f"{what} ({numbers})", ConvergenceWarning, stacklevel=4)

    def _decision(self, X: Any) -> NDArray[np.floating]:
        """Return the outputs (n, T) of rows X (n, d), by blocks; float32 for float32 rows."""
        check_is_fitted(self, "centers_")
        if not is_sliced(X):
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        rows = Rows(X)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input"
            )
        decision = np.tile(self._intercept, (len(rows), 1))
        with as_value_error():
            generator = ColumnGenerator(self.centers_, self.sigma2_, self._column_dtype)
            for span, block in rows.blocks(len(self.centers_)):
                decision[span] += generator.block(block, None, np.float64) @ self._weights
        return decision.astype(rows.dtype, copy=False)

    def to_model(self) -> SparseKernelModel:
        """Return the model as the commands use it, for `pipeline.model_folder.save_model`; its centers are float32."""
        check_is_fitted(self, "centers_")
        n_active = len(self.centers_)
        model = SparseKernelModel(
            task=self._task,
            labels=() if self._task == "regression" else tuple(self.classes_.tolist()),
            features=FeatureSpec("raw"),
            center_index=self.center_index_,
            centers=self.centers_.astype(np.float32),
            center_sigma2=np.full(n_active, self.sigma2_),
            weights=self._weights,
            intercept=self._intercept,
            selection_order=np.arange(n_active),
            input_shape=(self.n_features_in_,),
        )
        model.check()
        return model


class SLKLRegressor(RegressorMixin, _KernelMachine):
    """Sparse kernel regression f(x) = Σ_m w_m exp(-‖x - x_m‖² / (2 σ²)) + b with a certified duality gap.

    Parameters
    ----------
    n_centers : int, "all" or None
        Number of training rows drawn as candidates, without replacement; the penalty keeps some of them. None: 1000,
        or all where there are fewer. More than there are rows of positive weight are clipped, with a warning. The
        Gram of the candidates takes 8·n_centers² bytes.
    sigma2 : float or "median"
        σ², in squared units of X, above 0; "median": the median of the squared distances between candidates.
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
    that there is none, and KeyboardInterrupt is raised.

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
        rows, values = self._validated(X, y, numeric=True)
        weights = row_weights(sample_weight, rows)
        self._fit(rows, values.astype(np.float64), "regression", weights)
        return self

    def predict(self, X: Any) -> NDArray[np.floating]:
        """Return f(x) (n,) of rows X (n, n_features): float32 for float32 rows, else float64. Raises ValueError."""
        return self._decision(X)[:, 0]


class SLKLClassifier(ClassifierMixin, _KernelMachine):
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
        rows, labels = self._validated(X, y, numeric=False)
        check_classification_targets(labels)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        weights = row_weights(sample_weight, rows)
        if self.class_weight is not None:
            weights = weights * compute_sample_weight(self.class_weight, labels)
        n_present = len(np.unique(targets[weights > 0]))
        if n_present < 2:
            raise ValueError(f"y holds {n_present} class with rows of positive weight; at least two classes are needed")
        task = "binary" if len(self.classes_) == 2 else "multiclass"
        self._fit(rows, targets, task, weights)
        return self

    def decision_function(self, X: Any) -> NDArray[np.floating]:
        """Return decision values of rows X (n, n_features): (n, n_classes), or (n,) for two classes, as `predict`."""
        decision = self._decision(X)
        return decision[:, 0] if self._task == "binary" else decision

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the labels (n,) of rows X (n, n_features). Raises ValueError."""
        decision = self._decision(X)  # which says so where nothing is fitted
        return np.asarray(self.classes_[labels_from_decision(decision, self._task)])
