"""Features of a block of rows, z-scored where that is asked: for the store, and on the fly."""

from collections.abc import Callable
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from features.descriptor import extract
from features.source import Part
from features.standardisation import RunningMoments, Standardisation
from features.targets import balanced_factors
from pipeline.datasets.feature_request import ITEM_CHUNKS, FeatureRequest, FeatureShape
from pipeline.datasets.open_data import open_data, release_data
from pipeline.errors import InvalidDataError
from pipeline.kernels.finite_rows import first_non_finite_row
from pipeline.runtime import stopping
from storage.zarr_arrays import row_blocks


def compute_features(
    request: FeatureRequest,
    standardisation: Standardisation | None,
    inputs: NDArray[np.generic],
    part: Part,
    start: int,
) -> NDArray[np.float32]:
    """Return the features (n, n_features) f4 of the inputs (n, *shape) of a part, whose first row is `start`.

    Raises InvalidDataError where a feature is not finite, naming part and row.
    """
    X = extract(request.features, inputs if standardisation is None else standardisation.apply(inputs))
    row = first_non_finite_row(X)
    if row is not None:
        raise InvalidDataError(f"{part} features: row {start + row} is not finite; check the input data")
    return X


def fit_standardisation(request: FeatureRequest, shape: FeatureShape) -> Standardisation:
    """Return the z-scoring of the training inputs, of the first ones where others were added; one pass over them.

    Raises StoppedError where it shall stop.
    """
    source = open_data(request.source)
    release_data()  # the chunks that are read here go with this source
    return fit_moments(partial(source.read, "train"), shape, source.weights("train"), balanced=request.balanced)


def fit_moments(
    read: Callable[[int, int], tuple[NDArray[np.generic], NDArray[np.generic]]],
    shape: FeatureShape,
    weights: NDArray[np.float64] | None,
    *,
    balanced: bool,
) -> Standardisation:
    """Return the z-scoring of training inputs with weights (n,), None for 1 each; one pass over them.

    read(start, stop) : returns inputs and targets of some rows
    balanced : every class counts as much as the others
    """
    moments: list[RunningMoments] = []
    item_rows = ITEM_CHUNKS * min(shape.chunk_rows, shape.n_first)  # as before any were added: the bits depend on it
    for block in row_blocks(shape.n_first, item_rows):
        stopping.check()
        X, y = read(block.start, block.stop)
        if not moments:
            n_inputs = int(np.prod(X.shape[1:]))
            moments = [RunningMoments.empty(n_inputs) for _ in (shape.classes if balanced else (None,))]
        of_rows = None if weights is None else weights[block.start : block.stop]
        if not balanced:
            moments = [moments[0].update(X, of_rows)]
            continue
        for k, of_class in enumerate(moments):
            rows = y == k
            moments[k] = of_class.update(X[rows], None if of_rows is None else of_rows[rows])
    return _balanced(moments).standardisation() if balanced else moments[0].standardisation()


def _balanced(moments: list[RunningMoments]) -> RunningMoments:
    """Return the moments of all classes, whose weights are made equal."""
    factors = balanced_factors(np.array([of_class.count for of_class in moments], np.float64))
    return reduce(RunningMoments.merge, map(RunningMoments.times, moments, factors.tolist()))
