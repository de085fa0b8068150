"""Features as the stages read them: from the store, or computed on the fly where the disk has no room for them.

Both give the same numbers. Computed features cost their extraction in every pass (20 µs an image for sphog), which
one pass of a thousand columns outweighs by far; scattered rows cost one read of the source for each run of rows.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.extractors import extract
from features.sources import Part
from features.transforms import Standardisation
from pipeline import feature_store
from pipeline.errors import InvalidDataError
from pipeline.feature_store import DataIdentity, FeatureRequest, FeatureShape, FeatureStore, open_data, open_store
from storage.layout import FeatureLayout

TAKE_ROWS = 2048  # rows of the source read at once while scattered rows are gathered


@dataclass(frozen=True)
class LiveFeatures:
    """What a worker needs to compute any features: the request, the fitted z-scoring, the identity of zarr data."""

    request: FeatureRequest
    n_train: int
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    data: DataIdentity | None = None


FeatureAccess = FeatureLayout | LiveFeatures


class LiveStore:
    """Features computed when they are read; the same interface as `FeatureStore`."""

    def __init__(self, access: LiveFeatures) -> None:
        self._access = access
        self._source = open_data(access.request.source, access.data)

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.float32]:
        """Return features (stop - start, n_features) f4. Raises InvalidDataError naming a row that is not finite."""
        inputs = self._source.read(part, start, stop)[0]
        if self._access.request.standardise:
            inputs = self.standardisation().apply(inputs)
        X = extract(self._access.request.features, inputs)
        bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
        if len(bad):
            raise InvalidDataError(f"{part} features: row {start + bad[0]} is not finite; check the input data")
        return X

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """Return targets (stop - start,): int64 class indices, or float64 values."""
        return self._source.read(part, start, stop)[1]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the features of some training rows, (len(rows), n_features) f4."""
        order = np.argsort(rows, kind="stable")
        pieces, first = [], 0
        while first < len(rows):
            start = int(rows[order[first]])
            last = int(np.searchsorted(rows[order], start + TAKE_ROWS, side="left"))
            block = self.read("train", start, min(int(rows[order[last - 1]]) + 1, self._access.n_train))
            pieces.append(block[rows[order[first:last]] - start])
            first = last
        gathered = np.concatenate(pieces) if pieces else self.read("train", 0, 0)
        out = np.empty_like(gathered)
        out[order] = gathered
        return out

    def standardisation(self) -> Standardisation:
        """Return the z-scoring of the inputs."""
        return Standardisation(np.array(self._access.mean), np.array(self._access.scale))


def live(request: FeatureRequest, shape: FeatureShape) -> LiveFeatures:
    """Return the access to features that are computed on the fly; fits the z-scoring, one pass, where it is asked."""
    data = feature_store.identity_of(request)
    if not request.standardise:
        return LiveFeatures(request, shape.n_train, data=data)
    fitted = feature_store.fit_standardisation(request, shape)
    return LiveFeatures(request, shape.n_train, tuple(fitted.mean.tolist()), tuple(fitted.scale.tolist()), data)


def open_features(access: FeatureAccess) -> FeatureStore | LiveStore:
    """Return the features to read, kept open for the tasks of this process."""
    return _live_store(access) if isinstance(access, LiveFeatures) else open_store(access)


@lru_cache(maxsize=2)
def _live_store(access: LiveFeatures) -> LiveStore:
    return LiveStore(access)
