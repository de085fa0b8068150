"""scikit-learn estimators: a sparse kernel machine with a certificate, fitted in memory and in one process.

They run the steps of `pipeline.train`: the same float32 rows, settings and seed give the same model bytes. Minimised is
½ Σ_i s_i ‖y_i - f(x_i)‖² + √penalty ‖w‖₁ with f(x) = Σ_m w_m k(x, x_m) + b and sample weights s, the Lasso that the
paper's problem equals (mathematics.md, eqs. 37 and 38). Runs on disk, with resumption and more candidates than have a
Gram in memory, are `pipeline.train`'s.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from features.targets import labels_from_decision
from pipeline.estimators.base import KernelMachine, as_before_on_error
from pipeline.models.scores import probabilities


@dataclass(eq=False, repr=False, kw_only=True)
class SLKLRegressor(RegressorMixin, KernelMachine):
    """Sparse kernel regression f(x) = Σ_m w_m k(x, x_m) + b with a certified duality gap.

    Parameters
    ----------
    n_centers : int, "all" or None
        Number of training rows drawn as candidates, without replacement; a penalty keeps some of them. None: 500, and
        twice as many again and again, as long as held-out rows gain and `budget` pays for them; 1000 with a penalty or
        `select`, or all where there are fewer. More than there are rows of positive weight are clipped, with a
        warning. The Gram of the candidates takes 8·n_centers² bytes.
    budget : float, str or None
        Core seconds (or "2m") that a fit may take, at a nominal rate that is the same on every machine, in place of
        `n_centers`; two fifths of them, at most, go into the choice of kernel, width and scales. None: 60, where
        `n_centers` is None too.
    standardise : bool
        Fit to columns less their mean, over their deviation; predictions do the same. Both of weighted rows.
    categorical : None, "auto", "onehot" or "ordinal"
        Words are categories: "onehot": an input for each; "ordinal": their place in the alphabet; "auto": one-hot up to
        32. "onehot:A,B": the columns A and B too, though they hold numbers. None: words are refused.
    missing : None or "median"
        "median": missing cells are filled in, and an input for each such column marks them. None: they are refused.
    kernel : None, "gaussian", "laplace", "product-laplace" or "auto"
        exp(-‖x - z‖² / (2 σ²)); exp(-‖x - z‖ / σ); exp(-Σ_j |x_j - z_j| / σ), for targets with edges along the axes.
        "auto": that of the lowest error on held-out rows. None: "auto" where all candidates are fitted by least squares
        and `sigma2` is no number, else "gaussian".
    sigma2 : float, "median", "auto" or None
        σ², in squared units of X (standardised, where it is), above 0; "median": the median of the squared distances
        between candidates (product-laplace: of squared sums of absolute differences), 1000 of them where there are
        more; "auto": that of the lowest error on held-out rows (of classes: log loss), by least squares on a sample of
        at most 10 000 rows and up to 2000 of the candidates. None: "auto" where all candidates are fitted by least
        squares, "median" with a penalty or `select`.
    feature_scale : None, "learned", "diagonal", "metric" or "auto"
        "diagonal": a factor for each feature, found in rounds of fits to such a sample by how steep they are along it,
        and kept as far as held-out rows gain; for tables of which some columns matter little. "metric": directions of
        all features, likewise, for tables of which some sums of columns matter. "learned": the first, then, up to 200
        features and with rows enough, the second where it gains more; or one common scale in place of standardised
        columns. The certificate is that of the problem with these factors. "auto": "learned" with least squares on all
        candidates, and `sigma2` None, else None.
    penalty : float, "max:F", "auto", "path:FROM:TO:N", "none" or None
        None: least squares on all candidates, with a ridge chosen on a tenth of the rows, held out. Else λν, above 0:
        √penalty is the l1 penalty of the Lasso ½ Σ_i s_i (y_i - f(x_i))² + √penalty ‖w‖₁, not divided by the number of
        rows, in squared units of y. "max:1e-7": this fraction of the smallest penalty at which all weights are zero,
        and what None stands for below 200 rows, and with n_centers="all", `refit`, or a `tol`,
        `max_sweeps` or `schedule` other than the default. "auto": that of the lowest error on a tenth of the rows, held
        out, then fitted on all; a warning says where it is at an edge of those tried. "path:FROM:TO:N": N penalties
        down to TO, each solve started from the last; FROM may be max. "none": least squares whatever else is asked for.
    refit : None or "ridge"
        "ridge": least squares on the centers that the penalty kept, with a small ridge chosen on held-out rows.
    select : None, "greedy:K" or "greedy:auto"
        Choose K centers (or as many as lower the held-out error) by how much each lowers the squared error, instead
        of by a penalty: tried on the rows that are not held out, then chosen on all. The weights are least squares.
        `penalty`, `refit` and `tol` are not used then.
    polish_centers : int
        Steps, at most, that move the chosen centers while the held-out error falls; 0: none. Needs `select`, or a
        penalty with `refit`, and a Gaussian kernel.
    fit_intercept : bool
        Fit b, without a penalty.
    tol : float or None
        Relative duality gap to reach, above 0. None: 1e-3, and up to 500 candidates to rounding (not if "uniform").
    max_sweeps : int
        Iterations (sweeps or Newton rounds) of a solve before it gives up, at least 1.
    schedule : "shrinking" or "uniform"
        "uniform": the paper's random order, without Newton rounds.
    memory_limit : int, str or None
        Bytes, or a size such as "2GiB", for the Grams and candidates; blocks of rows take up to 150 MiB besides, and
        the choice of a kernel twice its sample of rows. None: three quarters of the machine's memory.
    random_state : int, RandomState or None
        Draws candidates, held-out rows and the order of visits. An int draws what `--seed` does.
    callback : callable or None
        Called once per iteration of a penalised solve with a dictionary: `output`, `penalty` and the fields of
        `solvers.Record`; in a greedy choice once per center, with `phase`, `rows` ("fit" or "all"), `iteration`,
        `n_active`. An error that it raises ends the fit. Never called by least squares on all candidates.
    verbose : int
        1: print what is chosen, and a line for each iteration of a penalised solve, each number of candidates that is
        tried, and each hundred centers of a greedy choice.

    Attributes
    ----------
    centers_ : (m, n_features) float32 or float64
        The chosen centers, those whose weight is not zero: rows of X, as they are there; once moved, points as the
        kernel sees them, standardised and scaled.
    center_index_ : (m,) int64
        Their rows in X, -1 for moved ones.
    coef_ : (m,) float64
        The weights w; (T, m) in the classifier, with one row for two classes.
    intercept_ : float
        b; (T,) in the classifier.
    mu_ : (m,) float64 or None
        The conical weights μ_m = |w_m| / √penalty of the paper before a refit, shaped as `coef_`;
        None after a greedy choice or without a penalty.
    dual_gap_ : float
        Relative duality gap (P - D) / P over all candidates, the largest of the outputs; NaN after a greedy choice
        or without a penalty.
    n_iter_ : int
        Iterations of the longest solve, or centers chosen greedily.
    penalty_ : float or None
        That in use; None after a greedy choice or without one.
    sigma2_ : float
        The width in use.
    kernel_ : str
        The name of the kernel in use.
    feature_scales_ : (n_features,) or (n_features, n_features) float32, or None
        The learned factors of the (standardised) columns of X, which leave the median distance what it was, or those
        that put them on one common scale: rows are multiplied by them, or by the matrix, the symmetric root of a
        metric. All 1 where the held-out rows gained nothing, None where none were to be learned.
    feature_importances_ : (n_features,) float64
        Their squares, or the diagonal of the metric, over the sum: the shares of the features in squared distances, if
        X is standardised. Only after a fit that learned scales.
    n_features_in_ : int
    feature_names_in_ : (n_features,) array
        Names of the columns, where X was a data frame with text for names.

    Notes
    -----
    A DataFrame of numbers (pandas, polars, Arrow) is an array with names. One with words or dates, and any X where
    `categorical` or `missing` is given, is read as the command reads a table, by blocks of rows, and gives the same
    model: dates are days since 1970, truth values 1 and 0, features float32. Predictions find its columns by name,
    whatever their order, and warn of words that no row of the fit has. `centers_`, `feature_scales_` and
    `feature_importances_` are then of the inputs that cells become: `to_model().table_columns.input_names`.
    X is an array, or anything with shape, dtype and slices of rows: a memory map, a dask or zarr array. Those are read
    by row blocks, once for each thing that is found (equal rows, moments, candidates, a sample to choose on, statistics
    of each number of candidates, a temperature), never whole.
    float32 rows give float32 predictions. Kernel values of a penalised fit are float64, so that the certificate holds
    for them; those of other fits have the precision of the rows.
    A fit costs 2·n·d·M + n·M² operations and a few times 8·M² bytes, with one BLAS thread.

    A fit that raises, also KeyboardInterrupt on Ctrl-C, leaves the estimator as it was.

    References
    ----------
    Machart, Peel, Anthoine, Ralaivola, Glotin (2011), Stochastic Low-Rank Kernel Learning for Regression, ICML.
    """

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> "SLKLRegressor":
        """Fit X (n, n_features) to y (n,) numbers with row weights (n,) ≥ 0, and return self.

        groups (n,), numbers or text: rows of one group are held out together, or not at all, as equal rows are.

        Raises ValueError for parameters or data that make no sense, and kernel values that would be rounding;
        MemoryError where the Grams do not fit `memory_limit`.
        """
        from pipeline.estimators import machine_fit, parameters  # slow to import

        with as_before_on_error(self):
            rows, values = machine_fit.validated(self, X, y, numeric=True)
            weights = parameters.row_weights(sample_weight, rows)
            machine_fit.fit_machine(self, rows, values.astype(np.float64), weights, groups, "regression")
        return self

    def predict(self, X: Any) -> NDArray[np.floating]:
        """Return f(x) (n,) of rows X (n, n_features): float32 for float32 rows, else float64. Raises ValueError."""
        return self._decision(X)[:, 0]


def _has_probabilities(machine: KernelMachine) -> bool:
    """Raise AttributeError where the fit of the model held no rows out to find a temperature on."""
    if getattr(machine, "temperature_", 0.0) is None:
        raise AttributeError("no temperature was found: the fit of the model held no rows out")
    return True


@dataclass(eq=False, repr=False, kw_only=True)
class SLKLClassifier(ClassifierMixin, KernelMachine):
    """Sparse kernel machine for two or more classes: one-vs-all least squares with a certified duality gap.

    Each class is fitted by +1 for its rows and -1 for all others; the largest decision value wins. Two classes are one
    problem, +1 for the second.

    Parameters
    ----------
    class_weight : None, "balanced" or dict
        Factors of the row weights by class, as everywhere in scikit-learn. "balanced" finds more of a rare class, at
        the cost of precision.
    others
        As in `SLKLRegressor`. Of held-out rows, penalty="auto" counts those that are misclassified, the choice of
        kernel, width and scales takes the log loss, and all else the squared error.

    Attributes
    ----------
    classes_ : (n_classes,) array
        The labels, sorted.
    temperature_ : float or None
        Of the probabilities: the softmax of the decision values divided by it. Found on the held-out rows, with weights
        that were fitted without them where there are such; least squares on fewer than 10 000 rows, without groups,
        finds it on all, each predicted without itself. None where no rows are held out.
    others
        As in `SLKLRegressor`.

    Notes
    -----
    Where a class is rare, `score` tells little: a model that never predicts a class of 1 % of the rows is right on
    99 %. `sklearn.metrics.classification_report(y, model.predict(X))` has recall and precision of each class.

    See `SLKLRegressor`, also for the source.
    """

    class_weight: Any = None

    def fit(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> "SLKLClassifier":
        """Fit X (n, n_features) to labels y (n,), with weights and groups as in `SLKLRegressor.fit`, and return self.

        Raises ValueError and MemoryError as there, also for fewer than two classes with rows of positive weight.
        """
        from pipeline.estimators import machine_fit, parameters  # slow to import

        with as_before_on_error(self):
            rows, labels = machine_fit.validated(self, X, y, numeric=False)
            check_classification_targets(labels)
            self.classes_, targets = np.unique(labels, return_inverse=True)
            weights, balanced, factors = (
                parameters.row_weights(sample_weight, rows),
                False,
                self.class_weight,
            )
            if isinstance(factors, str) and factors == "balanced":
                balanced = True
            elif factors is not None:
                of_rows: NDArray[np.float64] = compute_sample_weight(factors, labels)
                if not (np.isfinite(of_rows).all() and of_rows.min() >= 0):
                    raise ValueError(f"class_weight must hold finite numbers of at least 0; found {factors!r}")
                weights = of_rows if weights is None else weights * of_rows
            n_present = len(np.unique(targets if weights is None else targets[weights > 0]))
            if n_present < 2:
                raise ValueError(
                    f"y holds {n_present} class with rows of positive weight; at least two classes are needed"
                )
            task, classes = "binary" if len(self.classes_) == 2 else "multiclass", tuple(self.classes_.tolist())
            machine_fit.fit_machine(self, rows, targets, weights, groups, task, classes, balanced=balanced)
        return self

    def decision_function(self, X: Any) -> NDArray[np.floating]:
        """Return decision values of rows X (n, n_features): (n, n_classes), or (n,) for two classes, as `predict`."""
        decision = self._decision(X)
        return decision[:, 0] if self._model.task == "binary" else decision

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the labels (n,) of rows X (n, n_features). Raises ValueError."""
        decision = self._decision(X)  # which says so where nothing is fitted
        return np.asarray(self.classes_[labels_from_decision(decision, self._model.task)])

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class (n, n_classes) for rows X (n, n_features) (mathematics.md, eq. 75)."""
        decision = self._decision(X)  # which says so where nothing is fitted
        assert self.temperature_ is not None  # or this method were not there
        return probabilities(decision, self.temperature_)
