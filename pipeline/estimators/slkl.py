"""scikit-learn estimators: a sparse kernel machine with a certificate, fitted in memory and in one process.

They run the steps of `pipeline.train`: the same float32 rows, settings and seed give the same model bytes. Minimised is
½ Σ_i s_i ‖y_i - f(x_i)‖² + √penalty ‖w‖₁ with f(x) = Σ_m w_m k(x, x_m) + b and sample weights s, the Lasso that the
paper's problem equals (mathematics.md, eqs. 36 and 37). Runs on disk, which can be resumed, are `pipeline.train`'s.

What computes is imported at the first use, so that `import pipeline.estimators` takes as long as scikit-learn itself.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from features.targets import labels_from_decision

if TYPE_CHECKING:
    from pipeline.prediction.trained_model import SparseKernelModel


@dataclass(eq=False, repr=False)  # Its __init__ stores each parameter as it is, as scikit-learn asks.
class KernelMachine(BaseEstimator):
    """The base of both estimators; `config.settings.PARAMETERS` has the setting of each parameter."""

    n_centers: int | str | None = None
    _: KW_ONLY
    budget: float | str | None = None
    columns: str | None = None
    standardise: bool = True
    features: str = "auto"
    deskew: float = 0.0
    copies: int = 1
    deform: str | None = None
    kernel: str | None = None
    sigma2: float | str | None = None
    feature_scale: str | None = "auto"
    penalty: float | str | None = None
    refit: str | None = None
    select: str | None = None
    move_centers: int = 0
    fit_intercept: bool = True
    tol: float | None = None
    max_sweeps: int = 1000
    schedule: str = "newton"
    memory_limit: int | str | None = None
    random_state: Any = None
    callback: Callable[[dict[str, Any]], Any] | None = None
    verbose: int = 0

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Fit X (n, n_features) to y (n,), numbers or labels, with row weights (n,) ≥ 0, and return self.

        groups (n,), numbers or text: rows of one group are held out together, or not at all, as equal rows are.

        Raises ValueError for parameters or data that make no sense, kernel values that overflow, and fewer
        than two classes with rows of positive weight; MemoryError where the Grams do not fit `memory_limit`.
        """
        from pipeline.estimators.machine_fit import fit_machine

        fit_machine(self, X, y, sample_weight, groups)
        return self

    def _decision(self, X: Any) -> NDArray[np.floating]:
        from pipeline.estimators.machine_fit import decision_of

        return decision_of(self, X)

    def explain(self, X: Any, n: int = 3) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the centers that speak most for the predictions of rows X: which rows they were, and what each adds.

        Both are (rows of X, n), with n at most the number of centers: rows of the X of `fit`, as in `center_index_`,
        and what each adds to the decision value of the predicted label, the largest first, or to the predicted number,
        the largest in absolute value first. All centers and the intercept add up to it. Where weights cancel, as in
        wide kernels, few centers explain little. Raises ValueError, also for a model without centers.
        """
        from pipeline.estimators.machine_fit import explanations_of

        return explanations_of(self, X, n)

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """The share of each column of X in squared distances, (n_features,), after a fit with learned scales."""
        scales = getattr(self, "feature_scales_", None)
        if scales is None:
            raise AttributeError("importances are there after a fit with feature_scale='learned'")
        from pipeline.solvers.kernel_trials import importances  # The fit has imported it.

        return importances(scales)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model folder that `pipeline.predict` and `evaluate` take, replacing one there.

        Raises as `to_model`; CannotWriteError, also where anything but a model is there.
        """
        from pipeline.prediction.trained_model import save_model

        save_model(Path(folder), self.to_model())

    def to_model(self) -> "SparseKernelModel":
        """Return the model as the commands use it, with float32 centers.

        Their rounding changes predictions of float64 fits by 1e-3 or so where weights are large (wide kernels). Raises
        ValueError where it moves a center by more than a thousandth of the kernel's width, ModelFormatError for labels
        that are neither numbers nor text.
        """
        from pipeline.estimators.machine_fit import model_of

        return model_of(self)


@dataclass(eq=False, repr=False, kw_only=True)
class SLKLRegressor(RegressorMixin, KernelMachine):
    """Sparse kernel regression f(x) = Σ_m w_m k(x, x_m) + b with a certified duality gap.

    Parameters
    ----------
    n_centers : int, "all" or None
        Number of training rows drawn as candidates; more than there are different rows of positive weight are clipped.
        None: as many as lower the held-out error within `budget`; 1000 with a penalty or `select`. The Gram of m
        columns takes 8·m² bytes.
    budget : float, str or None
        Core seconds (or "2m") that a fit may take, at a nominal rate that is the same on every machine, in place of
        `n_centers`. None: 30, where `n_centers` is None too.
    columns : None, "at-once" or "on-demand"
        Which candidates get a kernel column and a row of the Gram: "at-once": all, or a working set that grows, where
        they do not fit `memory_limit`; "on-demand": those whose weight would become non-zero, found by their
        correlations with the residuals, of which no column is kept. Both prove the same gap over all candidates, at one
        penalty. None: "at-once", or a working set for more than 8000 candidates at one penalty.
    standardise : bool
        Subtract from each column its (weighted) mean and divide by its deviation, in fit and predictions.
    features : "auto", "soft-hog", "sphog" or "raw"
        Features of images X (n, H, W), or (n, H, W, 3) in colour, as in the command. "auto": "soft-hog", histograms of
        gradients, which are not standardised. Rows (n, n_features) are taken as they are.
    deskew : float
        Parts, 0 to 1, of the shear that makes slanted writing in grey images upright.
    copies : int
        Rows that each image becomes: itself, and deformed copies of it, which `random_state` draws. Row r of the fit is
        copy r % copies of image r // copies; copies count, and are held out, as their image is.
    deform : str or None
        How strongly, at most: None is "rotation:8,scale:0.08,shear:0.08,shift:0.03,smooth:0.03"; "flip" mirrors half.
    kernel : None, "gaussian", "product-laplace" or "auto"
        exp(-‖x - z‖² / (2 σ²)); exp(-Σ_j |x_j - z_j| / σ); "auto": the one with the lower held-out error. None:
        "auto" where all candidates are fitted by least squares and `sigma2` is no number, else "gaussian".
    sigma2 : float, "median", "auto" or None
        σ² > 0, in squared units of X (standardised, where it is); "median": of the squared distances between
        candidates; "auto": the width with the lowest held-out error (log loss for classes). None: "auto" where all
        candidates are fitted by least squares, "median" with a penalty or `select`. scikit-learn's gamma is 1/(2 σ²)
        for "rbf", 1/σ for "laplacian" ("product-laplace").
    feature_scale : None, "learned", "diagonal", "metric" or "auto"
        Factors of the features, found by held-out rows: "diagonal": one for each; "metric": a matrix; "learned": the
        simplest that these rows support. The certificate is of the problem with these factors. "auto": "learned"
        with least squares on all candidates and `sigma2` None, else None.
    penalty : float, "max:F", "auto", "none" or None
        λν > 0, whose root is the l1 penalty of the Lasso above, not divided by the number of rows; "max:1e-7": this
        fraction of the smallest at which all weights are zero; "auto": the one with the lowest held-out error. None:
        "none", least squares on all candidates, or "max:1e-7" (see the notes).
    refit : None or "ridge"
        "ridge": least squares on the centers that the penalty kept, with a small ridge chosen on held-out rows; "none":
        no refit. None: "ridge" for images without a `penalty` of yours, else "none".
    select : None or "greedy:K"
        Choose K of the candidates by how much each lowers the squared error, instead of by a penalty. The weights are
        least squares, and the Gram of all candidates has to fit `memory_limit`. `penalty`, `refit` and `tol` are not
        used then.
    move_centers : int
        Steps, at most, that move the chosen centers while the held-out error falls; 0: none. Needs `select`, or a
        penalty with `refit`, and a Gaussian kernel.
    fit_intercept : bool
        Fit b, without a penalty.
    tol : float or None
        Relative duality gap to reach. None: 1e-3; 0: as far as float64 allows, and 1e-3 at least.
    max_sweeps : int
        Iterations (sweeps or Newton rounds) of a solve before it gives up, at least 1.
    schedule : "newton", "shrinking", "uniform" or "paper"
        "newton" solves for all weights of the active set at once. The others visit one coordinate after another:
        "shrinking" those that do not stay at zero, "uniform" random ones, "paper" these with the paper's steps and
        stopping rule.
    memory_limit : int, str or None
        Bytes, or a size such as "2GiB", that a fit may take besides the process and X, of which blocks of up to
        150 MiB are copied. None: three quarters of the machine's memory.
    random_state : int, RandomState or None
        Draws candidates, held-out rows and the order of visits. An int draws what `--seed` does.
    callback : callable or None
        Called with a dictionary once per iteration of a penalised solve (`output`, `penalty` and the fields of
        `solvers.Record`) and per center of a greedy choice (`phase`, `rows`, `iteration`, `n_active`). An error that
        it raises ends the fit. Least squares on all candidates never calls it.
    verbose : int
        1: print what is chosen, and a line for each iteration of a penalised solve, each number of candidates that is
        tried, and each hundred centers of a greedy choice.

    Attributes
    ----------
    centers_ : (m, n_features) float32 or float64
        The chosen centers, those whose weight is not zero: rows of X as they are, or features of images; once moved,
        points as the kernel sees them, standardised and scaled.
    center_index_ : (m,) int64
        Rows of the centers in X (see `copies`), -1 for moved ones.
    dual_coef_ : (m,) float64
        The weights w of the centers, as in KernelRidge; (T, m) in the classifier, with one row for two classes, as in
        SVC.
    intercept_ : float
        b; (T,) in the classifier.
    mu_ : (m,) float64 or None
        The conical weights μ_m = |w_m| / √penalty of the paper before a refit, shaped as `dual_coef_`;
        None after a greedy choice or without a penalty.
    dual_gap_ : float
        Relative duality gap (P - D) / P over all candidates, the largest of the outputs; NaN after a greedy choice
        or without a penalty.
    columns_ : dict or None
        Numbers of candidates that were priced on the fly, got a column, never had one, and have a weight, after a fit
        with columns on demand or a working set; else None.
    n_iter_ : int
        Iterations of the longest solve, or centers chosen greedily.
    penalty_ : float or None
        The penalty in use; None after a greedy choice or without one.
    sigma2_ : float
        The width in use.
    kernel_ : str
        The name of the kernel in use.
    feature_scales_ : (n_features,) or (n_features, n_features) float32, or None
        The learned factors, or the symmetric root of a metric, by which the (standardised) rows are multiplied. All 1
        where the held-out rows gained nothing, None where none were to be learned.
    feature_importances_ : (n_features,) float64
        Squares of the factors, or the diagonal of the metric, over their sum: shares of the columns of X in squared
        distances, if X is standardised. Only after a fit that learned scales.
    n_features_in_ : int
    feature_names_in_ : (n_features,) array
        Names of the columns, where X was a data frame with text for names.

    Notes
    -----
    Parameters mean what the settings of the command mean; the guide has more on penalties, kernels, scales, and
    selections. penalty=None stands for "max:1e-7" with n_centers="all", `refit`, or a `tol`, `max_sweeps` or
    `schedule` other than the default.

    X is an array of numbers, which may be a memory map, or a DataFrame of numbers. Encode words before, and fill in
    missing values: by a pipeline with OneHotEncoder and SimpleImputer, or train from a file with the command.

    float32 rows give float32 predictions. Kernel values of a fit are float64, those of predictions as precise as they
    must be. A fit costs 2·n·d·M + n·M² operations and a few times 8·M² bytes, with one BLAS thread.

    A fit that raises, also KeyboardInterrupt on Ctrl-C, leaves the estimator as it was.

    References
    ----------
    Machart, Peel, Anthoine, Ralaivola, Glotin (2011), Stochastic Low-Rank Kernel Learning for Regression, ICML.
    """

    def predict(self, X: Any) -> NDArray[np.floating]:
        """Return f(x) (n,) of rows X (n, n_features): float32 for float32 rows, else float64. Raises ValueError."""
        return self._decision(X)[:, 0]

    def predict_interval(self, X: Any, level: float = 0.9) -> NDArray[np.float64]:
        """Return bounds (n, 2) for rows X (n, n_features) that hold the truth of new rows at a level.

        At least that share of new rows like those of the fit (or of groups, where it had these) is within its bounds
        (mathematics.md, eq. 100). Raises ValueError where no rows were held out, weights have seen them, or they are
        too few.
        """
        from pipeline.estimators.machine_fit import as_value_error

        decision = np.asarray(self._decision(X), np.float64)
        with as_value_error():
            return self._model.intervals_of(decision, level)


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
        the cost of precision. Weights change labels and decision values; probabilities stay those of the given rows.
    others
        As in `SLKLRegressor`. On held-out rows, penalty="auto" counts misclassified ones, the choice of kernel, width
        and scales takes the log loss, and all else the squared error.

    Attributes
    ----------
    classes_ : (n_classes,) array
        The labels, sorted.
    temperature_ : float or None
        Probabilities are the softmax of the decision values divided by it. It is found on the held-out rows, with
        weights that were fitted without them where there are such; least squares on fewer than 10 000 rows, without
        groups, finds it on all, each predicted without itself. None where no rows are held out.
    calibration_ : object or None
        The temperature and `offsets` of the classes, which undo `class_weight`; two classes have another offset where
        held-out rows gain by it. With offsets labels are not always the likeliest.
    others
        As in `SLKLRegressor`.

    Notes
    -----
    Where a class is rare, `score` tells little: a model that never predicts a class of 1 % of the rows is right on
    99 %. `sklearn.metrics.classification_report(y, model.predict(X))` has recall and precision of each class.

    See `SLKLRegressor`, also for the source.
    """

    class_weight: Any = None

    def decision_function(self, X: Any) -> NDArray[np.floating]:
        """Return decision values of rows X (n, n_features): (n, n_classes), or (n,) for two classes, as `predict`."""
        decision = self._decision(X)
        return decision[:, 0] if self._model.task == "binary" else decision

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the labels (n,) of rows X (n, n_features). Raises ValueError."""
        decision = self._decision(X)  # It refuses an estimator that is not fitted.
        return np.asarray(self.classes_[labels_from_decision(decision, self._model.task)])

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class (n, n_classes) for rows X (n, n_features) (mathematics.md, eq. 76)."""
        decision = self._decision(X)  # It refuses an estimator that is not fitted.
        return self._model.probabilities_of(decision)

    def predict_set(self, X: Any, level: float = 0.95) -> NDArray[np.bool_]:
        """Return whether labels (n, n_classes) are in the sets of rows X (n, n_features); the likeliest always is.

        The sets of new rows hold their labels at a level, see `SLKLRegressor.predict_interval`.
        """
        from pipeline.estimators.machine_fit import as_value_error

        decision = self._decision(X)
        with as_value_error():
            return self._model.sets_of(decision, level)

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithms of `predict_proba`, all finite: (n, n_classes)."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))
