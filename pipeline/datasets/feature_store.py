"""The feature store: features of a data set in zarr, built once by row blocks and shared by all runs.

A store is named by the digest of its source and feature parameters. It holds train and test features
(float32), targets, weights of the rows where the data have them, keys of the training rows and of their groups
(`features.row_draws`), and the standardisation fitted on the training part.
It counts as built only when its manifest is there; every read checks the digests the manifest records.
`build_feature_store` builds one.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.row_draws import Keys
from features.source import Part
from features.standardisation import Standardisation
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from storage.errors import CorruptDataError
from storage.folder_layouts import FeatureLayout
from storage.folders import compare, read_manifest
from storage.folders import verify as verify_manifest
from storage.zarr_arrays import open_arrays
from storage.zarr_metadata import NODE_FILE


def store_of(config: TrainConfig, shape: FeatureShape) -> FeatureLayout:
    """Return where the features of a run are stored, whether they are there yet or not."""
    return FeatureLayout(Path(config.resources.features_dir).absolute(), shape.digest)


class FeatureStore:
    """A built store, opened for reading; every byte read is checked against the manifest."""

    dtype: type = np.float32

    def __init__(self, layout: FeatureLayout) -> None:
        self.layout = layout
        prefix = f"{layout.arrays.name}/"
        files = read_manifest(layout.folder).files
        self._digests = {name.removeprefix(prefix): entry.sha256 for name, entry in files.items()}
        metadata = {name: entry for name, entry in files.items() if name.endswith(NODE_FILE)}
        _refuse(layout, compare(layout.folder, metadata, contents=True))
        self._arrays = open_arrays(layout.arrays)

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.float32]:
        """Return features (stop - start, n_features) f4. Raises CorruptDataError naming array, rows and file."""
        return self._arrays[f"{part}/X"].read(start, stop, self._digests)

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """Return targets (stop - start,): int64 class indices, or float64 values."""
        return self._arrays[f"{part}/y"].read(start, stop, self._digests)

    def weights(self, part: Part, start: int, stop: int) -> NDArray[np.float64] | None:
        """Return the weights of rows (stop - start,) f8; None where each counts 1."""
        stored = self._arrays.get(f"{part}/weights")
        return None if stored is None else stored.read(start, stop, self._digests)

    def keys(self, start: int, stop: int) -> tuple[Keys, Keys]:
        """Return the keys of training rows and of their groups, each (stop - start,) u8: equal for equal rows.

        Without groups, each row is its own.
        """
        keys = self._arrays["train/keys"].read(start, stop, self._digests)
        groups = self._arrays.get("train/groups")
        return keys, keys if groups is None else groups.read(start, stop, self._digests)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the features of some training rows, (len(rows), n_features) f4, reading each chunk once."""
        return self._arrays["train/X"].take(rows, self._digests)

    def standardisation(self) -> Standardisation:
        """Return the z-scoring of the inputs (mean 0, scale 1 where the store has none)."""
        n_inputs = self._arrays["standardisation/mean"].n_rows
        mean = self._arrays["standardisation/mean"].read(0, n_inputs, self._digests)
        return Standardisation(mean, self._arrays["standardisation/scale"].read(0, n_inputs, self._digests))


def open_store(layout: FeatureLayout) -> FeatureStore:
    """Return an opened store, kept open for the tasks of this process until its manifest is another file."""
    try:
        status = layout.manifest.stat()
        version: tuple[int, ...] = (status.st_mtime_ns, status.st_size, status.st_ino)
    except OSError:
        version = ()  # opening it says what is wrong
    return _open_version(layout, version)


@lru_cache(maxsize=4)
def _open_version(layout: FeatureLayout, version: tuple[int, ...]) -> FeatureStore:
    return FeatureStore(layout)


def is_built(layout: FeatureLayout) -> bool:
    """Return whether a complete store is there: manifest whole, every file present with its size."""
    if not layout.manifest.exists():
        return False
    _refuse(layout, verify_manifest(layout.folder, contents=False))
    return True


def _refuse(layout: FeatureLayout, problems: list[str]) -> None:
    """Raise CorruptDataError where there are problems of a store."""
    if problems:
        raise CorruptDataError(
            f"feature store {layout.folder} is damaged: {problems[0]}"
            f"{f' and {len(problems) - 1} more' if len(problems) > 1 else ''}; delete the folder to build it again"
        )
