"""The choice of landmarks, and the features of rows: `GreedyNystroem` imports this at the first use."""

from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from threadpoolctl import threadpool_limits

from features.errors import DataError
from features.targets import MOST_TABLE_CLASSES, detect_task
from pipeline.config.settings import with_values
from pipeline.estimators.array_features import ArrayFeatures, Rows
from pipeline.estimators.memory_workspace import MemoryWorkspace
from pipeline.estimators.parameters import as_value_error, check_size, seed_of, settings_of
from pipeline.kernels.kernel_forms import ColumnGenerator, Kernel
from pipeline.runtime import stopping
from pipeline.runtime.memory_limits import limit_bytes
from pipeline.solvers.forward_backward_selection import inverse_root, select, statistics_of_functions
from pipeline.stages.accumulate_statistics import ALL, accumulate_statistics, name_of, statistics_of
from pipeline.stages.fit import draw_candidates

LEAST_CANDIDATES, CANDIDATES_EACH = 1000, 4  # by default as many as the first, or the second for each component
_GRAMS = 7  # of the candidates at once, while landmarks are chosen (measured)


def choose_landmarks(transformer: Any, X: Any, y: Any) -> None:
    """Choose the landmarks of a `GreedyNystroem` and set its attributes. Raises as its `fit`."""
    config, _ = settings_of(transformer.get_params(deep=False))
    size = transformer.n_components
    if not (isinstance(size, Integral) and int(size) >= 1) or size is True:
        raise ValueError(f"n_components must be a whole number of at least 1; found {size!r}")
    if isinstance(config.kernel.sigma2, tuple) or config.kernel.sigma2 in (None, "auto"):
        raise ValueError(f"sigma2 must be above 0 or 'median'; found {transformer.sigma2!r}")
    checked = partial(validate_data, transformer, X, dtype=[np.float64, np.float32])
    X, y = (checked(), None) if y is None else checked(y=y)
    targets, task, classes = (np.zeros(len(X)), "regression", ()) if y is None else _targets(y)
    features = ArrayFeatures(Rows(X), targets)
    shape, different = features.shape(task, classes), features.first_of_equals
    n_candidates = _count(transformer, len(different), limit_bytes(config.resources))
    check_size(features, shape)
    settings = {
        "seed": seed_of(transformer.random_state),
        "centers.count": n_candidates,
        "centers.working_set": n_candidates,
        "kernel.precision": "float64",
        "kernel.scale": "none",
        "statistics.hold_out": 0.0,
        "solver.intercept": y is not None,
        "data.centre_targets": y is not None and task == "regression",
    }
    if not Kernel(transformer.kernel).has_width:
        settings["kernel.sigma2"] = 1.0
    listed = different if n_candidates == len(different) else None
    with (
        threadpool_limits(1, user_api="blas"),  # the bits depend on the number of threads
        stopping.unconcerned(),
        as_value_error(),
    ):
        work = MemoryWorkspace(with_values(config, settings), shape, features, listed)
        draw_candidates(work)
        transformer.sigma2_ = float(work.centers["sigma2"][0])
        index = work.centers["index"]
        if y is None:
            functions = np.random.default_rng([work.config.seed, 8])
            statistics = statistics_of_functions(_kernel_matrix(transformer, features.take(index)), functions)
        else:
            accumulate_statistics(work)
            statistics = statistics_of(work, name_of(ALL))
        chosen = select(statistics, min(int(size), len(index)), intercept=y is not None).chosen
        if not len(chosen):
            raise ValueError("no row of X is of use as a landmark: all rows are the same, or have no kernel values")
        transformer.components_, transformer.component_indices_ = features.take(index[chosen]), index[chosen]
        K = _kernel_matrix(transformer, transformer.components_)
        transformer.normalization_, transformer._roots = inverse_root(K), np.sqrt(np.diagonal(K))


def features_of(transformer: Any, X: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the features (n, k) of rows X (n, n_features) by blocks. Raises as `GreedyNystroem.transform`."""
    rows = Rows(X)
    features: NDArray[np.floating] = np.empty((len(rows), len(transformer.components_)), rows.dtype)
    with as_value_error():
        generator = _generator(transformer, transformer.components_)
        for span, block in rows.blocks(len(transformer.components_)):
            features[span] = (generator.block(block) * transformer._roots) @ transformer.normalization_
    return features


def _generator(transformer: Any, points: NDArray[np.floating]) -> ColumnGenerator:
    return ColumnGenerator(
        points, transformer.sigma2_, np.float64, kernel=Kernel(transformer.kernel, transformer.degree)
    )


def _kernel_matrix(transformer: Any, points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the kernel matrix (m, m) of points: their columns are k(x, z) / √k(z, z)."""
    K = _generator(transformer, points).block(points)
    K *= np.diagonal(K).copy()
    return np.asarray(0.5 * (K + K.T), np.float64)


def _count(transformer: Any, n_rows: int, limit: int) -> int:
    """Return how many candidates there are. Raises MemoryError where the choice among them does not fit."""
    asked = transformer.n_candidates
    if asked is None:
        asked = max(LEAST_CANDIDATES, CANDIDATES_EACH * transformer.n_components)
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
