"""What the estimators share: parameters, the fit, predictions, the model as the commands use it."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from features.descriptors.descriptor import FeatureSpec
from features.row_draws import draw_sample
from features.source import Columns
from features.targets import outputs
from pipeline.config.parsers import NO_PENALTY, byte_size, is_searched, selection_size
from pipeline.estimators import model_folders
from pipeline.estimators.filled_parameters import fill_in
from pipeline.estimators.finalists import find_finalists
from pipeline.estimators.fit_data import (
    HELD_OUT,
    Candidates,
    Rows,
    accumulate,
    as_value_error,
    candidate_count,
    check_size,
    draw_candidates,
    first_of_equals,
    given_candidates,
    held_out_rows,
    is_sliced,
    keys_of,
    moments_of,
    seed_of,
    standardised_points,
)
from pipeline.estimators.fit_distances import Trials, find_distances
from pipeline.estimators.fit_weights import FittedWeights, Parts, Task, find_weights
from pipeline.estimators.held_out_scores import HeldOutRows
from pipeline.estimators.kernel_columns import KernelColumns
from pipeline.estimators.parameter_checks import check_memory, checked_options
from pipeline.estimators.penalised_solves import Solves
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.equal_points import digests_of
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.jit import compile_loops
from pipeline.kernels.kernel_forms import Kernel
from pipeline.kernels.scaled_features import scaled
from pipeline.models.kernel_expansion import KernelExpansion
from pipeline.prediction.model_folder import save_model
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.runtime.memory_limits import default_limit_bytes
from pipeline.solvers.feature_scales import importances
from pipeline.solvers.loops_of_training import needed_loops
from pipeline.solvers.options import SolverOptions
from pipeline.solvers.preselection import preselection

SMALL_CANDIDATES = 500  # problems of so few candidates are solved to the last digit: it costs milliseconds
MOST_MOVED = 1e-3  # by the float32 of a model's centers, in kernel widths: kernel values change by no more
SMALL_VALUES = 2_000_000  # kernel values; with no more of them they are float64 whatever the rows are


class KernelMachine(BaseEstimator):
    """What the two estimators share; `_task` is the task of features.targets, known after `_fit`."""

    _task: str
    _loaded: SparseKernelModel | None = None  # what predicts, after `load` and until the next fit
    temperature_: float | None

    def __init__(
        self,
        n_centers: int | str | None = None,
        *,
        budget: float | str | None = None,
        standardise: bool = True,
        kernel: str = "gaussian",
        degree: int = 2,
        sigma2: float | str | Sequence[float] | None = None,
        feature_scale: str | None = "auto",
        penalty: float | str | None = None,
        patience: int = 3,
        refit: str | None = None,
        select: str | None = None,
        coupling: str = "one-vs-all",
        fit_intercept: bool = True,
        centers: ArrayLike | None = None,
        tol: float | None = None,
        max_sweeps: int = 1000,
        schedule: str = "shrinking",
        memory_limit: int | str | None = None,
        warm_start: bool = False,
        random_state: Any = None,
        callback: Callable[[dict[str, Any]], Any] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_centers = n_centers
        self.budget = budget
        self.standardise = standardise
        self.kernel = kernel
        self.degree = degree
        self.sigma2 = sigma2
        self.feature_scale = feature_scale
        self.penalty = penalty
        self.patience = patience
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
        self.verbose = verbose

    def _has_temperature(self) -> bool:
        """Tell whether a fit has weights that its held-out rows are new to, or is the default and has too few rows."""
        chosen = self.penalty is None or self.penalty == NO_PENALTY or is_searched(self.penalty)
        return chosen or self.refit is not None or self.select is not None

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

    def _fit(
        self, rows: Rows, targets: NDArray[Any], task: str, weights: NDArray[np.float64], groups: ArrayLike | None
    ) -> None:
        """Fit targets (n,) of features.targets with row weights (n,) and groups (n,), and store the result."""
        options, seed = checked_options(self.get_params(deep=False)), seed_of(self.random_state)
        (keys, of_groups), counted = keys_of(rows, groups), np.flatnonzero(weights > 0)
        eligible = first_of_equals(keys, counted)
        signs = outputs(targets, task, len(self.classes_) if task != "regression" else 0)
        check_size(signs, weights)
        limit = default_limit_bytes() if self.memory_limit is None else byte_size(self.memory_limit)
        filled = fill_in(self.get_params(deep=False), len(eligible), len(counted), rows.shape[1], signs.shape[1], limit)
        n_asked = candidate_count(len(eligible), self.n_centers, self.centers, filled.n_candidates)
        holds_out = filled.holds_out or self.refit is not None or self.select is not None
        greedy, given = self.select is not None, self.centers is not None
        n_widths = len(filled.sigma2) if isinstance(filled.sigma2, tuple) else 1
        check_memory(
            n_asked * n_widths,
            rows.shape[1],
            limit,
            holds_out=holds_out,
            centred=self.fit_intercept,
            greedy=greedy,
            least_squares=filled.penalty is None and not greedy,
            tries_widths=filled.sigma2 == "auto",
        )
        candidates = given_candidates(rows, self.centers) if given else draw_candidates(rows, eligible, n_asked, seed)
        n_candidates = len(candidates.index) * n_widths
        standardisation = moments_of(rows, weights) if self.standardise else None
        rows = rows.standardised(standardisation)
        points = standardised_points(candidates.points, standardisation)
        # Without an intercept, centred targets would be another problem; with one they spare float64 a large mean.
        centre = task == "regression" and self.fit_intercept and len(eligible) > 0
        mean = float(np.average(signs[:, 0], weights=weights)) if centre else 0.0
        signs -= mean
        grouped = None if groups is None or task == "regression" else targets
        mask = held_out_rows(seed, of_groups, weights, grouped) if holds_out else np.zeros(len(rows), bool)
        solved = options if not greedy and filled.penalty is not None else None
        small = len(rows) * n_candidates <= SMALL_VALUES
        dtype: type = np.float64 if small or solved is not None else rows.dtype  # that of the certificate's columns
        with threadpool_limits(1, user_api="blas"), as_value_error():  # its bits depend on the number of threads
            ordered = points[np.argsort(candidates.index, kind="stable")]  # whatever they were drawn in
            kernel = Kernel(self.kernel, int(self.degree))
            dtypes = {np.dtype(dtype).name} | ({"float32"} if filled.tries_distances else set())
            compile_loops(needed_loops(kernel, dtypes, solved, signs.shape[1] if self.coupling == "shared" else 1))
            trials = Trials(rows, ordered, signs, weights, keys, mask, seed, dtype, bool(self.fit_intercept), kernel)
            size = None if self.select is None else selection_size(self.select)
            scales, widths = find_distances(trials, filled, size)
            rows, columns = rows.scaled(scales), KernelColumns(kernel, scaled(points, scales), widths, dtype)
            bounds = columns.bounds(rows, weights)
            asked = self._task_of(task, options, filled.penalty, seed, exact=n_candidates <= SMALL_CANDIDATES)

            def sample(share: float) -> GramStatistics:
                sampled = np.where(draw_sample(seed, share, keys) & ~mask, weights, 0.0)
                return accumulate(rows, columns.generator(), signs, sampled, np.zeros_like(mask), bounds)[0]

            before = preselection(len(counted) * (1 - HELD_OUT), n_candidates, n_candidates, size) if greedy else None
            finalists = find_finalists(asked, before, sample)
            generator = columns.generator(None if finalists is None else finalists.columns)
            fit, held_out = accumulate(rows, generator, signs, weights, mask, bounds)
            held = HeldOutRows(rows, targets, np.where(mask, weights, 0.0), keys, task)

            def errors(active: NDArray[np.int64], *models: NDArray[np.float64]) -> NDArray[np.float64]:
                return held.errors(columns.generator(active), *models)

            everything = fit + held_out if held_out.n_centers else fit
            parts = Parts(fit, held_out, everything, errors, None if finalists is None else finalists.n_back)
            fitted = find_weights(asked, parts, self._start(candidates, widths, signs.shape[1]))
            fitted = fitted if finalists is None else finalists.named(fitted)
            unseen, temperature = fitted.unseen if groups is None else replace(fitted.unseen, fit=None), None
            if unseen.seen and not holds_out:  # rows too few for a choice by held-out ones, or none was needed
                held = HeldOutRows(rows, targets, weights, keys, task)
            if task != "regression" and not (unseen.seen and (fitted.interrupted or not self._has_temperature())):
                try:
                    fitted_rows = np.where(mask, 0.0, weights)
                    temperature = held.temperature(columns.generator(unseen.active), unseen, fitted_rows)
                except KeyboardInterrupt:
                    fitted = replace(fitted, interrupted=True)
        if task != "regression":
            self.temperature_ = temperature
        self.feature_scales_ = scales
        self._column_dtype, self._kernel, self._task = dtype, kernel, task  # not before there is a model
        self._standardisation, self._loaded = standardisation, None
        self.sigma2_ = float(widths[0]) if len(widths) == 1 else columns.sigma2[fitted.active]
        taken = columns.place[fitted.active]
        centers = Candidates(candidates.points[taken], candidates.index[taken])
        self._store(centers, replace(fitted, intercept=fitted.intercept + mean), options.tolerance)

    def _task_of(
        self, task: str, options: SolverOptions, penalty: float | str | None, seed: int, *, exact: bool
    ) -> Task:
        """Return what is asked of the solvers; exact: if no tolerance was asked for, to the last digit."""
        solves = Solves(
            options=options,
            shared=self.coupling == "shared",
            seed=seed,
            exact=exact and self.tol is None and self.schedule == "shrinking",
            on_record=_nothing if self.callback is None else self.callback,
            say=print if self.verbose else _nothing,
        )
        return Task(
            task=task,
            solves=solves,
            penalty=penalty,
            patience=int(self.patience),
            refit=self.refit is not None,
            select=self.select,
            intercept=bool(self.fit_intercept),
        )

    def _start(self, candidates: Candidates, widths: NDArray[np.float64], n_outputs: int) -> NDArray[np.float64] | None:
        """Return the weights (M, T) of the fit before, on candidates that were among its centers, at their width."""
        before: NDArray[np.float64] | None = getattr(self, "_penalised", None)
        if not self.warm_start or before is None or before.shape[1] != n_outputs:
            return None
        dtype = candidates.points.dtype
        known = defaultdict(list)  # of equal candidates, as many as there were centers
        sigma2 = np.broadcast_to(self.sigma2_, len(before)).tolist()
        for key, width, weights in zip(digests_of(self.centers_.astype(dtype)), sigma2, before, strict=True):
            known[key, width].append(weights)
        keys, nothing = digests_of(candidates.points), np.zeros(n_outputs)
        waiting = (known[key, width] for width in widths.tolist() for key in keys)
        return np.stack([weights.pop(0) if weights else nothing for weights in waiting])

    def _store(self, centers: Candidates, fitted: FittedWeights, tolerance: float) -> None:
        """Set the fitted attributes, and warn of a tolerance that was not reached."""
        self.centers_, self.center_index_ = centers.points, centers.index
        self._weights, self._intercept, self._penalised = fitted.weights, fitted.intercept, fitted.penalised
        single = self._task == "regression"
        self.coef_ = fitted.weights[:, 0] if single else fitted.weights.T.copy()
        self.mu_ = fitted.mu
        if fitted.mu is not None and fitted.mu.ndim == 2:  # by output
            self.mu_ = fitted.mu[:, 0] if single else fitted.mu.T.copy()
        self.intercept_ = float(fitted.intercept[0]) if single else fitted.intercept
        self.penalty_, self.dual_gap_, self.n_iter_ = fitted.penalty, fitted.relative_gap, fitted.n_iter
        stalled = self.tol is None and fitted.n_iter < self.max_sweeps  # nothing lowers the objective in float64
        if fitted.interrupted:
            what = "the fit was interrupted, the weights so far are kept"
        elif fitted.relative_gap > tolerance and not stalled:  # false for NaN, where nothing was solved
            what = "the tolerance was not reached; raise max_sweeps or tol"
        else:
            return
        numbers = f"relative duality gap {fitted.relative_gap:.2e}, tol={tolerance:g}, {fitted.n_iter} iterations"
        warnings.warn(f"{what} ({numbers})", ConvergenceWarning, stacklevel=4)

    def _decision(self, X: Any) -> NDArray[np.floating]:
        """Return the outputs (n, T) of rows X (n, d), by blocks; float32 for float32 rows."""
        check_is_fitted(self, "centers_")
        if not is_sliced(X):
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        rows = Rows(X) if self._loaded is not None else Rows(X).standardised(self._standardisation)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input"
            )
        if self._loaded is not None:
            return model_folders.decide(self._loaded, rows).astype(rows.dtype, copy=False)
        decision = np.tile(self._intercept, (len(rows), 1))
        with as_value_error():
            generator = ColumnGenerator(self._points(), self.sigma2_, self._column_dtype, kernel=self._kernel)
            for span, block in rows.scaled(self.feature_scales_).blocks(len(self.centers_)):
                decision[span] += generator.block(block, None, np.float64) @ self._weights
        return decision.astype(rows.dtype, copy=False)

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """The share of each feature in squared distances, (n_features,), after a fit with learned scales."""
        scales = getattr(self, "feature_scales_", None)
        if scales is None:
            raise AttributeError("feature_importances_ is there after a fit with feature_scale='learned'")
        return importances(scales)

    def _points(self) -> NDArray[np.floating]:
        """Return the centers (m, d) as the kernel sees them."""
        return scaled(standardised_points(self.centers_, self._standardisation), self.feature_scales_)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model folder that `pipeline.predict`, `evaluate` and `export` take, in the place of one there.

        Raises as `to_model`; CannotWriteError, also where anything but a model is there.
        """
        save_model(Path(folder), self.to_model())

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Self:
        """Return an estimator that predicts with the model of a run, of a model folder or of `save`.

        Its rows are what the model's file of examples holds: images flat, cells of categories encoded (their names are
        `feature_names_in_`). Its parameters are the defaults, its `centers_` features, z-scored and scaled; a fit
        begins anew. Raises ValueError for a model of the other kind of task, MissingRunError where there is none,
        CorruptDataError or ModelFormatError for a damaged one.
        """
        machine = cls()
        model = model_folders.read(Path(folder), classifies=is_classifier(machine))
        machine.__dict__ |= model_folders.attributes_of(model)
        return machine

    def to_model(self) -> SparseKernelModel:
        """Return the model as the commands use it.

        Its centers are float32. Raises ValueError where that moves a center by more than a thousandth of the kernel's
        width, ModelFormatError for labels that are neither numbers nor text.
        """
        check_is_fitted(self, "centers_")
        if self._loaded is not None:
            return self._loaded
        n_active = len(self.centers_)
        points = self._points()
        with np.errstate(over="ignore", invalid="ignore"):
            centers = points.astype(np.float32)
            sizes = np.sqrt(self.sigma2_) if self._kernel.is_bounded else 1e-300 + np.linalg.norm(points, axis=1)
            moved = (np.linalg.norm(centers - points, axis=1) / sizes).max(initial=0.0)
        if not moved <= MOST_MOVED:
            raise ValueError(
                f"a model's centers are float32, which moves one of these by {moved:.1g} kernel widths; standardise X "
                "(standardise=True) and fit again"
            )
        names = getattr(self, "feature_names_in_", None)
        model = SparseKernelModel(
            task=self._task,
            labels=() if self._task == "regression" else tuple(self.classes_.tolist()),
            features=FeatureSpec("raw"),
            expansion=KernelExpansion(
                self._kernel, centers, np.broadcast_to(self.sigma2_, n_active).copy(), self._weights, self._intercept
            ),
            center_index=self.center_index_,
            selection_order=np.arange(n_active),
            standardisation=self._standardisation,
            input_shape=(self.n_features_in_,),
            table_columns=None if names is None else Columns(tuple(names.tolist()), None, len(names)),
            temperature=getattr(self, "temperature_", None),
            feature_scales=self.feature_scales_,
        )
        model.check()
        return model


def _nothing(_: Any) -> None:
    return None
