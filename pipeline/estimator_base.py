"""What the estimators share: parameters, the fit, predictions, the model as the commands use it."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from features.extractors import FeatureSpec
from features.targets import outputs
from pipeline.columns import GAUSSIAN, ColumnGenerator
from pipeline.equal_points import keys_of
from pipeline.estimator_data import (
    Candidates,
    Held,
    Rows,
    accumulate,
    as_value_error,
    candidate_count,
    check_size,
    draw_candidates,
    given_candidates,
    held_out_rows,
    is_sliced,
    seed_of,
)
from pipeline.estimator_solve import Found, Task, check_memory, checked_options, find_weights
from pipeline.model import SparseKernelModel
from pipeline.plan import default_limit_bytes
from pipeline.setting_types import byte_size
from pipeline.widths import typical_sigma2

SMALL_CANDIDATES = 500  # problems of so few candidates are solved to the last digit: it costs milliseconds
MOST_MOVED = 1e-3  # by the float32 of a model's centers, in kernel widths: kernel values change by no more
SMALL_VALUES = 2_000_000  # kernel values; with no more of them they are float64 whatever the rows are


class KernelMachine(BaseEstimator):
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

    @contextmanager
    def _as_before_on_error(self) -> Iterator[None]:
        """Take back what a fit has set where it fails: the last model stays usable."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

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
        check_size(signs, weights)
        held_out = held_out_rows(seed, weights) if apart else np.zeros(len(rows), bool)
        sigma2 = typical_sigma2(candidates.points, GAUSSIAN) if isinstance(self.sigma2, str) else float(self.sigma2)
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
        known = defaultdict(list)  # of equal candidates, as many as there were centers
        for key, weights in zip(keys_of(self.centers_.astype(dtype)), before, strict=True):
            known[key].append(weights)
        nothing = np.zeros(n_outputs)
        return np.stack([known[key].pop(0) if known[key] else nothing for key in keys_of(candidates.points)])

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
        """Return the model as the commands use it, for `pipeline.model_folder.save_model`; its centers are float32.

        Raises ValueError where float32 moves a center by more than a thousandth of the kernel's width, ModelFormatError
        for labels that are neither numbers nor text.
        """
        check_is_fitted(self, "centers_")
        n_active = len(self.centers_)
        with np.errstate(over="ignore", invalid="ignore"):
            centers = self.centers_.astype(np.float32)
            moved = np.linalg.norm(centers - self.centers_, axis=1).max(initial=0.0) / np.sqrt(self.sigma2_)
        if not moved <= MOST_MOVED:
            raise ValueError(
                f"a model's centers are float32, which moves one of these by {moved:.1g} kernel widths; standardise X "
                "and fit again"
            )
        model = SparseKernelModel(
            task=self._task,
            labels=() if self._task == "regression" else tuple(self.classes_.tolist()),
            features=FeatureSpec("raw"),
            center_index=self.center_index_,
            centers=centers,
            center_sigma2=np.full(n_active, self.sigma2_),
            weights=self._weights,
            intercept=self._intercept,
            selection_order=np.arange(n_active),
            input_shape=(self.n_features_in_,),
        )
        model.check()
        return model
