"""What the estimators share: parameters, predictions, and the model as the commands use it.

What computes is imported at the first use, so that `import pipeline.estimators` takes as long as scikit-learn itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags

if TYPE_CHECKING:
    from pipeline.prediction.trained_model import SparseKernelModel


@contextmanager
def as_before_on_error(estimator: Any) -> Iterator[None]:
    """Take back what a fit has set where it fails: the last model stays usable."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__ = before
        raise


@dataclass(eq=False, repr=False)  # its __init__ stores each parameter as it is, as scikit-learn's conventions ask
class KernelMachine(BaseEstimator):
    """What the two estimators share."""

    n_centers: int | str | None = None
    _: KW_ONLY
    budget: float | str | None = None
    standardise: bool = True
    categorical: str | None = None
    missing: str | None = None
    kernel: str | None = None
    sigma2: float | str | None = None
    feature_scale: str | None = "auto"
    penalty: float | str | None = None
    refit: str | None = None
    select: str | None = None
    polish_centers: int = 0
    fit_intercept: bool = True
    tol: float | None = None
    max_sweeps: int = 1000
    schedule: str = "shrinking"
    memory_limit: int | str | None = None
    random_state: Any = None
    callback: Callable[[dict[str, Any]], Any] | None = None
    verbose: int = 0

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan, tags.input_tags.string = self.missing is not None, self.categorical is not None
        return tags

    def _decision(self, X: Any) -> NDArray[np.floating]:
        """Return the outputs (n, T) of rows X (n, d), by blocks; float32 for float32 rows."""
        from pipeline.estimators.machine_fit import decision_of  # slow to import

        return decision_of(self, X)

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """The share of each feature in squared distances, (n_features,), after a fit with learned scales."""
        scales = getattr(self, "feature_scales_", None)
        if scales is None:
            raise AttributeError("feature_importances_ is there after a fit with feature_scale='learned'")
        from pipeline.solvers.kernel_trials import importances  # there since the fit

        return importances(scales)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model folder that `pipeline.predict`, `evaluate` and `export` take, replacing one there.

        Raises as `to_model`; CannotWriteError, also where anything but a model is there.
        """
        from pipeline.prediction.model_folder import save_model  # slow to import

        save_model(Path(folder), self.to_model())

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Self:
        """Return an estimator that predicts with the model of a run, of a model folder or of `save`.

        X is a DataFrame with the columns of the model, or has images as flat rows, and categories encoded
        (`feature_names_in_` are their names). Parameters are the defaults; `centers_` are features, z-scored and
        scaled. Raises ValueError for a model of the other kind of task, MissingRunError, CorruptDataError or
        ModelFormatError.
        """
        from pipeline.estimators.machine_fit import load_into  # slow to import

        machine = cls()
        load_into(machine, Path(folder))
        return machine

    def to_model(self) -> "SparseKernelModel":
        """Return the model as the commands use it, with float32 centers.

        Raises ValueError where that moves a center by more than a thousandth of the kernel's width, ModelFormatError
        for labels that are neither numbers nor text.
        """
        from pipeline.estimators.machine_fit import model_of  # slow to import

        return model_of(self)
