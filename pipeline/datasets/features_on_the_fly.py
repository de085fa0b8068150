"""Features as the stages read them: from the store, or computed on the fly where the disk has no room for them.

Both give the same numbers, and either may be multiplied by learned scales as they are read. Computed features cost
their extraction in every pass (20 µs an image for sphog), which one pass of a thousand columns outweighs by far;
scattered rows cost one read of the source for each run of rows.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from features.descriptor import feature_length
from features.row_draws import Keys, row_keys
from features.source import Part
from features.standardisation import Standardisation
from pipeline.datasets.compute_features import compute_features, fit_standardisation
from pipeline.datasets.feature_request import FeatureRequest, FeatureShape
from pipeline.datasets.feature_store import open_store
from pipeline.datasets.open_data import DataIdentity, identify, open_data
from pipeline.kernels.scaled_features import scaled
from pipeline.runtime.stored_arrays import Stored
from storage.folder_layouts import FeatureLayout
from storage.zarr_arrays import gather_rows

TAKE_ROWS = 2048  # rows of the source read at once while scattered rows are gathered


@dataclass(frozen=True)
class LiveFeatures:
    """What a worker needs to compute any features: the request, the fitted z-scoring, the identity of zarr data."""

    request: FeatureRequest
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    data: DataIdentity | None = None


@dataclass(frozen=True)
class ScaledFeatures:
    """What a worker needs to read features times learned scales: the features, and what has the scales."""

    features: "FeatureLayout | LiveFeatures | FeatureRows"
    scales: Stored


class FeatureRows(Protocol):
    """Features and what goes with them, read by rows."""

    dtype: type  # of the features

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.floating]:
        """Return features (stop - start, n_features)."""

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """Return targets (stop - start,): int64 class indices, or float64 values."""

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        """Return the weights of rows (stop - start,) f8; None where each counts 1."""

    def keys(self, start: int, stop: int) -> tuple[Keys, Keys]:
        """Return the keys of training rows and of their groups, each (stop - start,) u8."""

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return the features of some training rows, (len(rows), n_features)."""

    def standardisation(self) -> Standardisation:
        """Return the z-scoring of the inputs."""


FeatureAccess = FeatureLayout | LiveFeatures | ScaledFeatures | FeatureRows


class LiveStore:
    """Features computed when they are read; the same interface as `FeatureStore`."""

    dtype: type = np.float32

    def __init__(self, access: LiveFeatures) -> None:
        self._access = access
        self._source = open_data(access.request.source, access.data)

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.float32]:
        """Return features (stop - start, n_features) f4. Raises InvalidDataError naming a row that is not finite."""
        request = self._access.request
        standardisation = self.standardisation() if request.standardise else None
        return compute_features(request, standardisation, self._source.read(part, start, stop)[0], part, start)

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """Return targets (stop - start,): int64 class indices, or float64 values."""
        return self._source.read(part, start, stop)[1]

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        """Return the weights of rows (stop - start,) f8; None where each counts 1."""
        weights = self._source.weights(part)
        return None if weights is None else weights[start:stop]

    def keys(self, start: int, stop: int) -> tuple[Keys, Keys]:
        """Return the keys of training rows and of their groups, each (stop - start,) u8."""
        keys, groups = row_keys(self._source.read("train", start, stop)[0]), self._source.groups
        return keys, keys if groups is None else groups[start:stop]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the features of some training rows, (len(rows), n_features) f4."""
        n_features = feature_length(self._access.request.features, self._source.input_shape)
        out = np.empty((len(rows), n_features), np.float32)
        gather_rows(rows, TAKE_ROWS, partial(self.read, "train"), out)
        return out

    def standardisation(self) -> Standardisation:
        """Return the z-scoring of the inputs."""
        return Standardisation(np.array(self._access.mean), np.array(self._access.scale))


class ScaledStore:
    """Features times scales; the same interface as `FeatureStore`. Targets can be read before there are scales."""

    def __init__(self, store: FeatureRows, scales: Stored) -> None:
        self._store, self._scales, self.dtype = store, scales, store.dtype

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.floating]:
        """Return scaled features (stop - start, n_features)."""
        return self._scaled(self._store.read(part, start, stop))

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """Return targets (stop - start,)."""
        return self._store.targets(part, start, stop)

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        """Return the weights of rows (stop - start,); None where each counts 1."""
        return self._store.weights(part, start, stop)

    def keys(self, start: int, stop: int) -> tuple[Keys, Keys]:
        """Return the keys of training rows and of their groups, each (stop - start,) u8, which scales do not change."""
        return self._store.keys(start, stop)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return the scaled features of some training rows, (len(rows), n_features)."""
        return self._scaled(self._store.take(rows))

    def standardisation(self) -> Standardisation:
        """Return the z-scoring of the inputs, which comes before the scales."""
        return self._store.standardisation()

    def _scaled(self, X: NDArray[np.floating]) -> NDArray[np.floating]:
        return scaled(X, self._scales.read()["scales"])


def live(request: FeatureRequest, shape: FeatureShape) -> LiveFeatures:
    """Return the access to features that are computed on the fly; fits the z-scoring, one pass, where it is asked."""
    data = identify(request.source)
    if not request.standardise:
        return LiveFeatures(request, data=data)
    fitted = fit_standardisation(request, shape)
    return LiveFeatures(request, tuple(fitted.mean.tolist()), tuple(fitted.scale.tolist()), data)


def open_features(access: FeatureAccess) -> FeatureRows:
    """Return the features to read, kept open for the tasks of this process."""
    if isinstance(access, ScaledFeatures):
        return ScaledStore(open_features(access.features), access.scales)
    if isinstance(access, LiveFeatures):
        return _live_store(access)
    return open_store(access) if isinstance(access, FeatureLayout) else access


@lru_cache(maxsize=2)
def _live_store(access: LiveFeatures) -> LiveStore:
    return LiveStore(access)
