"""`GreedyNystroem`: kernel features whose landmarks are chosen, for any linear model behind it."""

from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from features.errors import DataError
from features.targets import MOST_TABLE_CLASSES, detect_task
from pipeline.config.settings import with_values
from pipeline.estimators.array_features import ArrayFeatures, Rows
from pipeline.estimators.memory_workspace import MemoryWorkspace
from pipeline.estimators.parameters import as_before_on_error, as_value_error, check_size, seed_of, settings_of
from pipeline.kernels.kernel_forms import ColumnGenerator, Kernel
from pipeline.runtime import stopping
from pipeline.runtime.memory_limits import limit_bytes
from pipeline.solvers.forward_backward_selection import inverse_root, select, statistics_of_functions
from pipeline.stages.accumulate_statistics import ALL, accumulate_statistics, name_of, statistics_of
from pipeline.stages.fit import draw_candidates

LEAST_CANDIDATES, CANDIDATES_EACH = 1000, 4  # by default as many as the first, or the second for each component
_GRAMS = 7  # of the candidates at once, while landmarks are chosen (measured)


@dataclass(eq=False, repr=False)
class GreedyNystroem(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Nyström features k(x, z) K_zz^(-1/2) of landmarks z that are chosen among the rows, instead of drawn.

    With y, those that lower the squared error of y the most (where y holds labels, of each class against all others);
    without, those that lower the error of the kernel matrix. Both by the same choice, forward and back.

    Parameters
    ----------
    n_components : int
        Number of landmarks; fewer where the rest of the candidates adds nothing.
    kernel : "gaussian", "laplace", "product-laplace", "polynomial" or "intersection"
        exp(-‖x - z‖² / (2 σ²)), exp(-‖x - z‖ / σ), exp(-Σ_j |x_j - z_j| / σ), (1 + x·z / σ²)^degree, or
        Σ_j min(x_j, z_j) of features of at least 0.
    degree : int
        Of the polynomial kernel.
    sigma2 : float or "median"
        σ², in squared units of X: 1 / (2 gamma) of scikit-learn's "rbf", 1 / gamma² of its "laplacian", which is
        product-laplace. "median": that of the squared distances between candidates, 1000 of them where there are more
        (polynomial: of the squared norms).
    n_candidates : int, "all" or None
        Number of rows drawn as candidates, without replacement. None: four for each component, at least 1000.
    memory_limit : int, str or None
        Bytes, or a size such as "2GiB", for the seven matrices of the candidates, 56·n_candidates² bytes, that the
        choice takes; blocks of rows take up to 150 MiB besides. None: three quarters of the machine's memory.
    random_state : int, RandomState or None
        Draws the candidates and, without y, the functions that landmarks are chosen for.

    Attributes
    ----------
    components_ : (k, n_features) array of the dtype of X
        The landmarks, rows of X, the most useful first.
    component_indices_ : (k,) int64
        Their rows in X.
    normalization_ : (k, k) float64
        K_zz^(-1/2), on the range of K_zz.
    sigma2_ : float
        The width in use.
    n_features_in_ : int
    feature_names_in_ : (n_features,) array
        Names of the columns, where X was a data frame with text for names.

    Notes
    -----
    X is not standardised; put a StandardScaler in front. y holds classes where it holds text, two values, or up to 26
    whole numbers, and numbers else. The rows that decide on a ridge or a width must be new to the landmarks: search
    over a pipeline with both, not over features made before.

    For n rows and M candidates a fit costs 2·M³ operations (above 2000 candidates 2·M·f², where f, a third of them, but
    2000 to 4000, are taken and dropped again), and with y 2·n·d·M + n·M² for the sums. Kernel values are float64, with
    one BLAS thread; float32 rows give float32 features.

    Test error (%, or the root of the mean square in units of the target's deviation) of a ridge on 50, 100, 200 and 400
    landmarks of 1000 candidates (digits: all 1200 rows), at one width, the ridge chosen on a tenth of the rows; means
    of 3 draws (boston: 10; letters and arm: one, at half the median). `jobs/benchmarks/landmarks.py` repeats the
    comparison.

    ========  =========================  =========================  =========================
    table     Nystroem                   without y                  with y
    ========  =========================  =========================  =========================
    digits    7.37   4.58   2.46   1.84  7.15   4.80   2.35   1.68  4.58   1.84   1.62   1.28
    letters   23.4   16.7   12.3   9.42  22.7   17.1   12.9   9.54  20.8   14.0   10.2   7.70
    arm       .521   .468   .405   .313  .535   .482   .408   .311  .483   .420   .339   .235
    boston    .399   .390   .416         .392   .375   .387         .371   .392   .386
    abalone   .664   .657   .657   .657  .662   .658   .657   .657  .660   .656   .657   .657
    ========  =========================  =========================  =========================

    Without y, the kernel matrix is better approximated (forward_backward_selection.py of the solvers has figures),
    which linear models need not gain from; choose with y where there is one.

    References
    ----------
    Williams and Seeger (2000), Using the Nyström method to speed up kernel machines, NIPS.
    """

    n_components: int = 100
    _: KW_ONLY
    kernel: str = "gaussian"
    degree: int = 2
    sigma2: float | str = "median"
    n_candidates: int | str | None = None
    memory_limit: int | str | None = None
    random_state: Any = None

    components_: NDArray[np.floating] = field(init=False)
    normalization_: NDArray[np.float64] = field(init=False)
    sigma2_: float = field(init=False)
    _roots: NDArray[np.float64] = field(init=False)

    def fit(self, X: Any, y: Any = None) -> "GreedyNystroem":
        """Choose the landmarks among the rows X (n, n_features), for y (n,) if there is one, and return self.

        Raises ValueError for parameters or data that make no sense, and kernel values that would be rounding;
        MemoryError where the choice does not fit `memory_limit`.
        """
        with as_before_on_error(self), stopping.unconcerned():
            self._fit(X, y)
        return self

    def _fit(self, X: Any, y: Any) -> None:
        config, _ = settings_of(self.get_params(deep=False))
        if not (isinstance(self.n_components, Integral) and int(self.n_components) >= 1) or self.n_components is True:
            raise ValueError(f"n_components must be a whole number of at least 1; found {self.n_components!r}")
        if isinstance(config.kernel.sigma2, tuple) or config.kernel.sigma2 in (None, "auto"):
            raise ValueError(f"sigma2 must be above 0 or 'median'; found {self.sigma2!r}")
        dtypes = [np.float64, np.float32]
        X, y = (validate_data(self, X, dtype=dtypes), None) if y is None else validate_data(self, X, y, dtype=dtypes)
        targets, task, classes = (np.zeros(len(X)), "regression", ()) if y is None else _targets(y)
        features = ArrayFeatures(Rows(X), targets)
        shape, different = features.shape(task, classes), features.first_of_equals
        n_candidates = self._count(len(different), limit_bytes(config.resources))
        check_size(features, shape)
        settings = {
            "seed": seed_of(self.random_state),
            "centers.count": n_candidates,
            "centers.working_set": n_candidates,
            "kernel.precision": "float64",
            "kernel.scale": "none",
            "statistics.hold_out": 0.0,
            "solver.intercept": y is not None,
            "data.centre_targets": y is not None and task == "regression",
        }
        if not Kernel(self.kernel).has_width:
            settings["kernel.sigma2"] = 1.0
        listed = different if n_candidates == len(different) else None
        with threadpool_limits(1, user_api="blas"), as_value_error():  # its bits depend on the number of threads
            work = MemoryWorkspace(with_values(config, settings), shape, features, listed)
            draw_candidates(work)
            self.sigma2_ = float(work.centers["sigma2"][0])
            index = work.centers["index"]
            if y is None:
                functions = np.random.default_rng([work.config.seed, 8])
                statistics = statistics_of_functions(self._kernel_matrix(features.take(index)), functions)
            else:
                accumulate_statistics(work)
                statistics = statistics_of(work, name_of(ALL))
            size = min(int(self.n_components), len(index))
            chosen = select(statistics, size, intercept=y is not None).chosen
            if not len(chosen):
                raise ValueError("no row of X is of use as a landmark: all rows are the same, or have no kernel values")
            self.components_, self.component_indices_ = features.take(index[chosen]), index[chosen]
            K = self._kernel_matrix(self.components_)
            self.normalization_, self._roots = inverse_root(K), np.sqrt(np.diagonal(K))

    def transform(self, X: Any) -> NDArray[np.floating]:
        """Return the features (n, k) of rows X (n, n_features), float32 for float32 rows, else float64, by blocks.

        Their inner products are the Nyström approximation of the kernel. Raises ValueError.
        """
        check_is_fitted(self)
        rows = Rows(validate_data(self, X, dtype=[np.float64, np.float32], reset=False))
        features: NDArray[np.floating] = np.empty((len(rows), len(self.components_)), rows.dtype)
        with as_value_error():
            generator = self._generator(self.components_)
            for span, block in rows.blocks(len(self.components_)):
                features[span] = (generator.block(block) * self._roots) @ self.normalization_
        return features

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _generator(self, points: NDArray[np.floating]) -> ColumnGenerator:
        return ColumnGenerator(points, self.sigma2_, np.float64, kernel=Kernel(self.kernel, self.degree))

    def _kernel_matrix(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the kernel matrix (m, m) of points: their columns are k(x, z) / √k(z, z)."""
        K = self._generator(points).block(points)
        K *= np.diagonal(K).copy()
        return np.asarray(0.5 * (K + K.T), np.float64)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def _count(self, n_rows: int, limit: int) -> int:
        """Return how many candidates there are. Raises MemoryError where the choice among them does not fit."""
        asked = self.n_candidates
        if asked is None:
            asked = max(LEAST_CANDIDATES, CANDIDATES_EACH * self.n_components)
        count = n_rows if asked == "all" else min(int(asked), n_rows)
        needed = 8 * _GRAMS * count**2
        if needed > limit:
            raise MemoryError(
                f"the choice among {count} candidates needs {needed / 2**20:.1f} MiB, the memory limit is "
                f"{limit / 2**20:.1f} MiB; lower n_candidates to {int((limit / (8 * _GRAMS)) ** 0.5)} or raise "
                "memory_limit"
            )
        return count


def _targets(y: NDArray[Any]) -> tuple[NDArray[Any], str, tuple[Any, ...]]:
    """Return targets as stored, their task and classes. Raises ValueError where y holds one value only."""
    values, codes = np.unique(y, return_inverse=True)
    labels, most = (y, MOST_TABLE_CLASSES) if y.dtype.kind in "biuf" else (codes, len(values))
    try:
        task = detect_task(labels, most)
    except DataError as error:
        raise ValueError(str(error)) from None
    if task == "regression":
        return y.astype(np.float64), task, ()
    return codes, task, tuple(values.tolist())
