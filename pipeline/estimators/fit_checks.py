"""What estimators check before a fit: centers of one's own, how many candidates there are, sizes and memory."""

import warnings
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _check_sample_weight

from features.targets import outputs
from pipeline.config.parsers import NO_PENALTY
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.estimators.array_features import ArrayFeatures, Rows, is_sliced
from pipeline.kernels.gram_statistics import LEAST_TARGET
from pipeline.solvers.bandwidth_choice import MOST_CENTERS

_LEAST_SQUARES_GRAMS = 7  # at once: of the fit rows, the held-out rows and all, centred, a factor, copies


def given_centers(rows: Rows, centers: Any) -> tuple[NDArray[np.floating] | None, NDArray[np.int64] | None]:
    """Return the candidates a user names: points (m, d), or whole numbers (m,) of rows, and their rows, -1 for none.

    Raises ValueError for another shape, values that are not finite, rows that do not exist or are listed twice.
    """
    if centers is None:
        return None, None
    given = np.asarray(centers)
    if not given.size:
        raise ValueError("centers is empty; give at least one point or row")
    if given.ndim == 1 and given.dtype.kind in "iu":
        index = given.astype(np.int64)
        bad = np.flatnonzero((index < 0) | (index >= len(rows)))
        if bad.size:
            raise ValueError(f"centers: entry {bad[0]} is row {index[bad[0]]}, X has the rows 0 to {len(rows) - 1}")
        if len(np.unique(index)) < len(index):
            raise ValueError("centers lists a row twice; list each once")
        return rows.take(index), index
    if given.ndim != 2 or given.dtype.kind not in "biuf" or given.shape[1] != rows.shape[1]:
        raise ValueError(
            f"centers must be points (m, {rows.shape[1]}), or whole numbers (m,) of rows of X; found an array of "
            f"{given.dtype} {given.shape}"
        )
    points: NDArray[np.floating] = np.ascontiguousarray(given, rows.dtype)
    Rows(points, "centers").check_finite(points, np.arange(len(points)))
    return points, np.full(len(points), -1, np.int64)


def clipped_count(n_centers: int | str | None, own: NDArray[np.int64] | None, n_different: int) -> int | str | None:
    """Return how many candidates are asked for, with a warning where no more rows than `n_different` differ."""
    if own is not None or not isinstance(n_centers, Integral):
        return None if own is not None else n_centers
    if n_centers > n_different:
        warnings.warn(
            f"n_centers={n_centers} is above the {n_different} different rows of weight above 0; all are candidates",
            UserWarning,
            stacklevel=4,
        )
    return min(int(n_centers), n_different)


def row_weights(sample_weight: ArrayLike | None, rows: Rows) -> NDArray[np.float64] | None:
    """Return the row weights (n,); None where none are given."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight) if is_sliced(sample_weight) else sample_weight
    return np.asarray(_check_sample_weight(weights, rows, dtype=np.float64, ensure_non_negative=True))


def check_size(features: ArrayFeatures, shape: FeatureShape) -> None:
    """Raise ValueError where the weighted squares of the targets leave float64, upwards or downwards."""
    signs = outputs(features.targets("train", 0, shape.n_train), shape.task, len(shape.classes))
    weights = features.weights("train", 0, shape.n_train)
    counts = np.ones(len(signs)) if weights is None else weights
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(counts @ (signs**2).sum(axis=1)) * float(counts.sum())
    if not np.isfinite(total):
        raise ValueError("y or sample_weight is too large: its sum of squares leaves float64; rescale it")
    if 0.0 < np.abs(signs).max(initial=0.0) < LEAST_TARGET:
        raise ValueError(f"y is too small: no target is above {LEAST_TARGET:g}; rescale it")


def check_memory(config: TrainConfig, shape: FeatureShape, n_candidates: int, limit: int) -> None:
    """Raise MemoryError where the Grams and the points of a fit do not fit `limit` bytes.

    Statistics of held-out rows are kept beside those of the rest and of all; with an intercept, also a centred copy. A
    greedy choice takes up to six more of the size (measured); least squares on all candidates, and trials of widths on
    the first of them, seven in all (measured).
    """
    greedy, least_squares = config.solver.select != "none", config.solver.penalty == NO_PENALTY
    grams = (3 if config.statistics.hold_out else 1) + int(bool(config.solver.intercept)) + (6 if greedy else 0)
    grams = max(grams, _LEAST_SQUARES_GRAMS if least_squares and not greedy else 0)
    tries_widths = config.kernel.sigma2 == "auto"
    n_tried = min(n_candidates, MOST_CENTERS) if tries_widths else 0
    linear = 16 * shape.n_features
    needed = 8 * max(grams * n_candidates**2, _LEAST_SQUARES_GRAMS * n_tried**2) + linear * n_candidates
    if needed > limit:
        squared = 8 * (max(grams, _LEAST_SQUARES_GRAMS) if tries_widths else grams)
        most = int((np.sqrt(linear**2 + 4.0 * squared * limit) - linear) / (2 * squared))
        raise MemoryError(
            f"{n_candidates} candidates need {needed / 2**20:.1f} MiB (Gram matrices and the points), the "
            f"memory limit is {limit / 2**20:.1f} MiB; lower n_centers to {most} or raise memory_limit, or use "
            "pipeline.train, which needs no whole Gram"
        )
