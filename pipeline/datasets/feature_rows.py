"""Features as the stages read them: from the store, or computed on the fly, times learned scales where there are any.

The store of a data set is zarr, built once (`build_feature_store`), named by the digest of its source and feature
parameters, and built only when its manifest is there; every read checks the digests of that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from features.descriptors.extraction import extract, feature_length
from features.row_draws import RowKeys, row_keys
from features.source import Part
from features.standardisation import RunningMoments, Standardisation
from features.targets import balanced_factors
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import ITEM_CHUNKS, FeatureRequest, FeatureShape
from pipeline.datasets.open_data import PlannedData, open_data, planned, release_data
from pipeline.errors import InvalidDataError
from pipeline.kernels.jit import read_only
from pipeline.kernels.scaled_rows import first_non_finite_row, scaled
from pipeline.runtime import stopping
from storage.arrays import Stored
from storage.errors import CorruptDataError
from storage.folder_layouts import FeatureLayout
from storage.folders import compare, read_manifest
from storage.folders import verify as verify_manifest
from storage.zarr_arrays import gather_rows, open_arrays, row_blocks
from storage.zarr_metadata import NODE_FILE

TAKE_ROWS = 2048  # rows of the source read at once while scattered rows are gathered
TAKE_SLOW_ROWS = 16  # the same of rows that are made when they are read: deformed copies, pictures
TAKE_BYTES = 2**20  # of the inputs and features of scattered rows that are computed at once: of one row at least


@dataclass(frozen=True)
class LiveFeatures:
    """What a worker needs to compute any features: the request, the data that were planned, the fitted z-scoring."""

    request: FeatureRequest
    data: PlannedData
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()


@dataclass(frozen=True)
class ScaledFeatures:
    """What a worker needs to read features times learned scales: the features, and what has the scales."""

    features: "FeatureLayout | LiveFeatures | FeatureRows"
    scales: Stored


class FeatureRows(Protocol):
    """Features and what goes with them, read by rows; those of a source are float32."""

    dtype: type  # of the features

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.floating]:
        """Return features (stop - start, n_features)."""

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """Return targets (stop - start,): int64 class indices, or float64 values."""

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        """Return the weights of rows (stop - start,) f8; None where each counts 1."""

    def keys(self, start: int, stop: int) -> tuple[RowKeys, RowKeys]:
        """Return the keys of training rows and of their groups, each (stop - start,) u8; a row may be its own group."""

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        """Return the features of some training rows, (len(rows), n_features)."""

    def standardisation(self) -> Standardisation:
        """Return the z-scoring of the inputs."""


# Returns inputs and targets of the rows from a first one to before another.
RowReader = Callable[[int, int], tuple[NDArray[Any], NDArray[Any]]]
FeatureAccess = FeatureLayout | LiveFeatures | ScaledFeatures | FeatureRows


def store_of(config: TrainConfig, shape: FeatureShape) -> FeatureLayout:
    """Return where the features of a run are stored, whether they are there yet or not."""
    return FeatureLayout(Path(config.resources.features_dir).absolute(), shape.store)


class _Store:
    """A built store, opened for reading; every byte read is checked against the manifest."""

    dtype: type = np.float32

    def __init__(self, layout: FeatureLayout, _version: tuple[int, ...]) -> None:
        files = read_manifest(layout.folder).files
        self._digests = {name.removeprefix(f"{layout.arrays.name}/"): entry.sha256 for name, entry in files.items()}
        metadata = {name: entry for name, entry in files.items() if name.endswith(NODE_FILE)}
        problems = compare(layout.folder, metadata, contents=True)
        if problems:
            raise CorruptDataError(f"{_fault(layout, problems)}; delete the folder to build it again")
        self._arrays = open_arrays(layout.arrays)

    def _stored(self, name: str, start: int, stop: int) -> NDArray[Any]:
        return self._arrays[name].read(start, stop, self._digests)

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.float32]:
        return self._stored(f"{part}/X", start, stop)

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        return self._stored(f"{part}/y", start, stop)

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        name = f"{part}/weights"
        return self._stored(name, start, stop) if name in self._arrays else None

    def keys(self, start: int, stop: int) -> tuple[RowKeys, RowKeys]:
        keys = self._stored("train/keys", start, stop)
        return keys, self._stored("train/groups", start, stop) if "train/groups" in self._arrays else keys

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._arrays["train/X"].take(rows, self._digests)

    def standardisation(self) -> Standardisation:
        n_inputs = self._arrays["standardisation/mean"].n_rows
        return Standardisation(*(self._stored(f"standardisation/{name}", 0, n_inputs) for name in ("mean", "scale")))


_opened_store = lru_cache(maxsize=4)(_Store)


def open_store(layout: FeatureLayout) -> FeatureRows:
    """Return an opened store, kept open for the tasks of this process until its manifest is another file."""
    try:
        status = layout.manifest.stat()
        version: tuple[int, ...] = (status.st_mtime_ns, status.st_size, status.st_ino)
    except OSError:
        version = ()  # opening it says what is wrong
    return _opened_store(layout, version)


def is_built(layout: FeatureLayout, warn: Callable[[str], object] = str, *, contents: bool = False) -> bool:
    """Return whether a complete store is there: manifest whole, every file with its size, and with its `contents`."""
    if not layout.manifest.exists():
        return False
    problems = verify_manifest(layout.folder, contents=contents)
    if problems:
        warn(f"{_fault(layout, problems)}; it is made again")
    return not problems


def _fault(layout: FeatureLayout, problems: list[str]) -> str:
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"feature store {layout.folder} is damaged: {problems[0].partition(';')[0]}{more}"


class _LiveRows:
    dtype: type = np.float32

    def __init__(self, access: LiveFeatures) -> None:
        self._access, self._request = access, access.request
        self.source = open_data(access.request.source, access.data)
        self._last_keys: tuple[tuple[int, int], RowKeys] | None = None  # several steps ask for those of all rows

    def features(self, part: Part, rows: Sequence[int], inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        if self._request.standardise:
            inputs = self.standardisation().apply(inputs)
        X = extract(self._request.features, inputs)
        bad = first_non_finite_row(X)
        if bad is not None:
            raise InvalidDataError(f"{part} features: row {rows[bad]} is not finite; check the input data")
        return X

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.float32]:
        return self.features(part, range(start, stop), self.source.read(part, start, stop)[0])

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        return self.source.targets[part][start:stop].copy()

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        weights = self.source.weights[part]
        return None if weights is None else weights[start:stop]

    def keys(self, start: int, stop: int) -> tuple[RowKeys, RowKeys]:
        groups, found = self.source.groups, self._last_keys
        if self.source.row_keys is not None:
            found = (start, stop), self.source.row_keys(start, stop)
        elif found is None or found[0] != (start, stop):
            self._last_keys = found = (start, stop), read_only(row_keys(self.source.read("train", start, stop)[0]))
        return found[1], found[1] if groups is None else groups[start:stop]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        source, order = self.source, np.argsort(rows, kind="stable")
        out = np.empty((len(rows), feature_length(self._request.features, source.input_shape)), np.float32)
        block_rows = TAKE_ROWS if source.row_keys is None else TAKE_SLOW_ROWS
        step = max(1, TAKE_BYTES // (4 * out.shape[1] + np.empty(source.input_shape, source.input_dtype).nbytes))
        for some in (order[start : start + step] for start in range(0, len(rows), step)):
            inputs = np.empty((len(some), *source.input_shape), source.input_dtype)
            gather_rows(rows[some], block_rows, partial(source.read_rows, "train"), inputs)
            out[some] = self.features("train", rows[some].tolist(), inputs)
        return out

    def standardisation(self) -> Standardisation:
        return Standardisation(np.array(self._access.mean), np.array(self._access.scale))


_live_rows = lru_cache(maxsize=2)(_LiveRows)


def computed_block(
    access: LiveFeatures, part: Part, start: int, stop: int, inputs: NDArray[np.generic] | None = None
) -> dict[str, NDArray[Any]]:
    """Return all that a store has of some rows, by name: X, y, weights, and of training rows keys and groups."""
    rows = _LiveRows(access)
    inputs = rows.source.read(part, start, stop)[0] if inputs is None else inputs
    targets = rows.source.targets[part][start:stop]
    arrays = {"X": rows.features(part, range(start, stop), inputs), "y": targets}
    weights, groups = rows.weights(part, start, stop), rows.source.groups
    if weights is not None:
        arrays["weights"] = weights
    if part == "train":
        known = rows.source.row_keys
        arrays["keys"] = row_keys(inputs) if known is None else known(start, stop)
        arrays |= {} if groups is None else {"groups": groups[start:stop]}
    return arrays


class _ScaledRows:
    """Rows times scales, which are read with the first features: targets can be read before there are scales."""

    def __init__(self, rows: FeatureRows, scales: Stored) -> None:
        self._rows, self._scales, self.dtype = rows, scales, rows.dtype
        self.targets, self.weights, self.keys = rows.targets, rows.weights, rows.keys
        self.standardisation = rows.standardisation

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.floating]:
        return scaled(self._rows.read(part, start, stop), self._scales.read()["scales"])

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.floating]:
        return scaled(self._rows.take(rows), self._scales.read()["scales"])


def live(request: FeatureRequest, shape: FeatureShape, place: Path | None = None) -> LiveFeatures:
    """Return the access to features that are computed on the fly; `place`: see `open_data.planned`."""
    data = planned(request.source, shape.description["source"], place)
    if not request.standardise:
        return LiveFeatures(request, data)
    source = open_data(request.source, data)
    release_data()  # the chunks that are read here go with this source
    read: RowReader = partial(source.read, "train")
    weights, n_rows = source.weights["train"], source.n_train
    if source.learned is not None:
        inputs, rows = source.learned()
        targets = source.targets["train"][rows]
        read, n_rows = (lambda start, stop: (inputs[start:stop], targets[start:stop])), len(rows)
        weights = None if weights is None else weights[rows]
    fitted = fit_moments(read, replace(shape, n_train=n_rows), weights, balanced=request.balanced)
    return LiveFeatures(request, data, tuple(fitted.mean.tolist()), tuple(fitted.scale.tolist()))


def open_features(access: FeatureAccess) -> FeatureRows:
    """Return the features to read, kept open for the tasks of this process."""
    if isinstance(access, ScaledFeatures):
        return _ScaledRows(open_features(access.features), access.scales)
    if isinstance(access, LiveFeatures):
        return _live_rows(access)
    return open_store(access) if isinstance(access, FeatureLayout) else access


def fit_moments(
    read: RowReader,
    shape: FeatureShape,
    weights: NDArray[np.float64] | None,
    *,
    balanced: bool,
) -> Standardisation:
    """Return the z-scoring of training inputs with weights (n,), None for 1 each; one pass over them.

    read(start, stop): returns inputs and targets of some rows; balanced: every class counts as much as the others.
    """
    moments: list[RunningMoments] = []
    item_rows = ITEM_CHUNKS * min(shape.chunk_rows, shape.n_train)
    for block in row_blocks(shape.n_train, item_rows):
        stopping.check()
        X, y = read(block.start, block.stop)
        if not moments:
            moments = [RunningMoments.begin(X)] * (len(shape.classes) if balanced else 1)
        of_rows = None if weights is None else weights[block.start : block.stop]
        for k, of_class in enumerate(moments):
            rows = y == k if balanced else slice(None)
            moments[k] = of_class.update(X[rows], None if of_rows is None else of_rows[rows])
    if balanced:
        factors = balanced_factors(np.array([of_class.count for of_class in moments], np.float64))
        weighted = zip(moments, factors.tolist(), strict=True)
        moments = [replace(one, count=f * one.count, squares=f * one.squares) for one, f in weighted]
    return reduce(RunningMoments.merge, moments).standardisation()
