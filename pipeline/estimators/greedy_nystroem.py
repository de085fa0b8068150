"""`GreedyNystroem`: kernel features whose landmarks are chosen, for any linear model behind it."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from pipeline.estimators.base import as_before_on_error


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
        from pipeline.estimators.landmark_choice import choose_landmarks  # slow to import

        with as_before_on_error(self):
            choose_landmarks(self, X, y)
        return self

    def transform(self, X: Any) -> NDArray[np.floating]:
        """Return the features (n, k) of rows X (n, n_features), float32 for float32 rows, else float64, by blocks.

        Their inner products are the Nyström approximation of the kernel. Raises ValueError.
        """
        check_is_fitted(self)
        from pipeline.estimators.landmark_choice import features_of  # slow to import

        return features_of(self, validate_data(self, X, dtype=[np.float64, np.float32], reset=False))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)
