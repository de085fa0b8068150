"""The feature store: features of a data set in zarr, built once by row blocks and shared by all runs.

A store is named by the digest of its source and feature parameters. It holds train and test features
(float32), targets, and the standardisation fitted on the training part. It counts as built only when its
manifest is there; every read checks the digests the manifest records.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features import targets as target_coding
from features.extractors import FeatureSpec, extract, feature_length, parameters
from features.sources import Part, Source, SourceSpec, open_source
from features.tables import digest_arrays
from features.transforms import RunningMoments, Standardisation
from pipeline.errors import ConfigError, InvalidDataError
from storage.arrays import ArraySpec, chunk_rows_for, create_arrays, open_arrays, open_user_arrays
from storage.blocks import Block, row_blocks
from storage.commit import make_folder, remove_stale, seal
from storage.errors import CorruptDataError
from storage.layout import FeatureLayout
from storage.lock import FolderLock
from storage.manifest import FileDigest, digest_of
from storage.manifest import read as read_manifest
from storage.manifest import verify as verify_manifest
from storage.markers import read_markers, write_marker

FORMAT_VERSION = 1
ITEM_CHUNKS = 4  # chunks of features that one task writes
PARTS: tuple[Part, ...] = ("train", "test")


@dataclass(frozen=True)
class FeatureRequest:
    """What is to be stored: source, features, whether inputs are z-scored. Small and picklable."""

    source: SourceSpec
    features: FeatureSpec
    standardise: bool


@dataclass(frozen=True)
class FeatureShape:
    """What a store holds, known before any feature is computed."""

    digest: str
    dataset: str
    task: str
    classes: tuple[Any, ...]
    n_train: int
    n_test: int
    n_features: int
    chunk_rows: int
    description: dict[str, Any]

    @property
    def n_outputs(self) -> int:
        """Number of columns of the targets: one for each class, or one."""
        return len(self.classes) if self.task == "multiclass" else 1

    def n_rows(self, part: Part) -> int:
        """Return the number of rows of a part."""
        return self.n_train if part == "train" else self.n_test

    @property
    def disk_bytes(self) -> int:
        """Bytes of the store on disk, to within the metadata."""
        return (self.n_train + self.n_test) * (self.n_features * 4 + 8)


@dataclass(frozen=True)
class FeatureItem:
    """The unit of building: one row block of one part."""

    part: Part
    block: Block

    @property
    def name(self) -> str:
        """Name of the item's done-marker."""
        return f"{self.part}-{self.block.index:06d}"


@dataclass(frozen=True)
class DataIdentity:
    """What the driver knows of zarr data, so that no task reads all of it again: picklable, and the key of caches.

    stamp: digest of the names, sizes and time stamps of its files; digests: sha256 of each array.
    """

    stamp: str
    digests: tuple[tuple[str, str], ...]


def open_data(spec: SourceSpec, known: DataIdentity | None = None) -> Source:
    """Open any source; zarr data are opened by `storage` and handed to `features` as array-likes.

    Zarr data are digested once in this process for as long as their files do not change, and not at all where their
    identity is `known`. What reads as damaged raises CorruptDataError.
    """
    if not _is_zarr(spec):
        return open_source(spec)
    return _open_zarr(spec, known or identify(spec))


def identify(spec: SourceSpec) -> DataIdentity:
    """Return the identity of zarr data: one pass over their bytes, or over their files' stamps if seen before."""
    return _identity(spec.dataset, _stamp_of_files(Path(spec.dataset)))


def identity_of(request: FeatureRequest) -> DataIdentity | None:
    """Return the identity of zarr data, so that no task digests them again; None for other data."""
    return identify(request.source) if _is_zarr(request.source) else None


def _is_zarr(spec: SourceSpec) -> bool:
    return spec.dataset.rstrip("/").endswith(".zarr")


@lru_cache(maxsize=2)
def _open_zarr(spec: SourceSpec, known: DataIdentity) -> Source:
    return open_source(spec, open_user_arrays(Path(spec.dataset)), dict(known.digests))


@lru_cache(maxsize=4)
def _identity(dataset: str, stamp: str) -> DataIdentity:
    digests = digest_arrays(SourceSpec(dataset), open_user_arrays(Path(dataset)))
    return DataIdentity(stamp, tuple(digests.items()))


def _stamp_of_files(folder: Path) -> str:
    """Return a digest of names, sizes and modification times below a folder; no file is opened."""
    stamps = []
    for path in sorted(folder.rglob("*")):
        try:
            status = path.stat()
        except OSError:
            continue  # a dangling link; whoever needs it will say so
        stamps.append([path.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns])
    return digest_of(stamps)


def describe(request: FeatureRequest) -> FeatureShape:
    """Return what the store of a request holds. Opens the source (and so checks its files)."""
    source = open_data(request.source)
    if request.standardise and request.features.name != "raw":
        raise ConfigError(
            f"data.standardise = true with features.name = {request.features.name!r}: z-scoring is for raw features; "
            "use --features raw"
        )
    n_features = feature_length(request.features, source.input_shape)
    description = {
        "format_version": FORMAT_VERSION,
        "source": source.fingerprint(),
        "features": parameters(request.features),
        "standardise": request.standardise,
    }
    return FeatureShape(
        digest=digest_of(description),
        dataset=source.name,
        task=source.task,
        classes=tuple(source.classes),
        n_train=source.n_train,
        n_test=source.n_test,
        n_features=n_features,
        chunk_rows=chunk_rows_for(4 * n_features, source.n_train),
        description=description,
    )


class FeatureStore:
    """A built store, opened for reading; every byte read is checked against the manifest."""

    def __init__(self, layout: FeatureLayout) -> None:
        self.layout = layout
        prefix = f"{layout.arrays.name}/"
        files = read_manifest(layout.folder).files
        self._digests = {name.removeprefix(prefix): entry.sha256 for name, entry in files.items()}
        self._arrays = open_arrays(layout.arrays)

    def read(self, part: Part, start: int, stop: int) -> NDArray[np.float32]:
        """Return features (stop - start, n_features) f4. Raises CorruptDataError naming array, rows and file."""
        return self._arrays[f"{part}/X"].read(start, stop, self._digests)

    def targets(self, part: Part, start: int, stop: int) -> NDArray[Any]:
        """Return targets (stop - start,): int64 class indices, or float64 values."""
        return self._arrays[f"{part}/y"].read(start, stop, self._digests)

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


@dataclass(frozen=True)
class BlockTask:
    """What a worker needs to build any item of a store."""

    layout: FeatureLayout
    request: FeatureRequest
    standardisation: Standardisation | None
    data: DataIdentity | None = None  # of zarr data


def build_item(task: BlockTask, item: FeatureItem) -> int:
    """Compute and store the features of one row block; return its number of rows.

    Raises InvalidDataError where a feature is not finite, naming part and row.
    """
    rows, block = item.block.n_rows, item.block
    inputs, targets = open_data(task.request.source, task.data).read(item.part, block.start, block.stop)
    if task.standardisation is not None:
        inputs = task.standardisation.apply(inputs)
    X = extract(task.request.features, inputs)
    bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
    if len(bad):
        raise InvalidDataError(f"{item.part} features: row {block.start + bad[0]} is not finite; check the input data")
    arrays = open_arrays(task.layout.arrays)
    files = arrays[f"{item.part}/X"].write(block.start, X)
    files |= arrays[f"{item.part}/y"].write(block.start, targets)
    write_marker(task.layout.markers, item.name, {"rows": rows, "files": files})
    return rows


def is_built(layout: FeatureLayout) -> bool:
    """Tell whether a complete store is there: manifest whole, every file present with its size."""
    if not layout.manifest.exists():
        return False
    problems = verify_manifest(layout.folder, contents=False)
    if problems:
        raise CorruptDataError(
            f"feature store {layout.folder} is damaged: {problems[0]}"
            f"{f' and {len(problems) - 1} more' if len(problems) > 1 else ''}; delete the folder to build it again"
        )
    return True


@contextmanager
def building(layout: FeatureLayout, wait_seconds: float) -> Iterator[None]:
    """Hold the store's lock while it is built; another process that builds the same store waits here."""
    with FolderLock(layout.lock, "building features", wait_seconds=wait_seconds):
        yield


def prepare(layout: FeatureLayout, shape: FeatureShape, request: FeatureRequest) -> tuple[BlockTask, list[FeatureItem]]:
    """Create the arrays of a store (or take up a half-built one) and return what is left to build.

    The caller holds the lock. The standardisation is fitted here: one pass over the training inputs.
    """
    if not (layout.arrays / "zarr.json").exists():
        make_folder(layout.folder)
        remove_stale(layout.folder, recursive=True)
        create_arrays(layout.arrays, _array_specs(shape, open_data(request.source)), {"description": shape.description})
    standardisation = fit_standardisation(request, shape) if request.standardise else None
    _store_standardisation(layout, standardisation)
    items = [
        FeatureItem(part, block)
        for part in PARTS
        for block in row_blocks(shape.n_rows(part), ITEM_CHUNKS * shape.chunk_rows)
    ]
    done = read_markers(layout.markers)
    return BlockTask(layout, request, standardisation, identity_of(request)), [
        item for item in items if item.name not in done
    ]


def build_function(task: BlockTask) -> partial[int]:
    """Return the function of one item that an executor runs."""
    return partial(build_item, task)


def finish(layout: FeatureLayout, shape: FeatureShape) -> None:
    """Write the manifest of a store whose items are all done; from here on the store counts as built."""
    metadata: dict[str, Any] = {"dataset": shape.dataset, "task": shape.task, "classes": list(shape.classes)}
    metadata |= {"n_train": shape.n_train, "n_test": shape.n_test, "n_features": shape.n_features}
    known = {}
    for marker in read_markers(layout.markers).values():
        for name, sha256 in marker["files"].items():
            size = (layout.arrays / name).stat().st_size
            known[f"{layout.arrays.name}/{name}"] = FileDigest(size, sha256)
    seal(layout.folder, kind="features", metadata=metadata, known=known)


def encoded_targets(targets: NDArray[Any], shape: FeatureShape) -> NDArray[np.float64]:
    """Return the targets that the solver sees, (rows, n_outputs) f8: ±1 for each class, or the values."""
    return target_coding.outputs(targets, shape.task, len(shape.classes))


def _array_specs(shape: FeatureShape, source: Source) -> list[ArraySpec]:
    target_dtype = "float64" if shape.task == "regression" else "int64"
    item_rows = ITEM_CHUNKS * shape.chunk_rows
    n_inputs = int(np.prod(source.input_shape))
    specs = [ArraySpec(f"standardisation/{name}", (n_inputs,), "float64", n_inputs) for name in ("mean", "scale")]
    for part in PARTS:
        n_rows = shape.n_rows(part)
        specs.append(ArraySpec(f"{part}/X", (n_rows, shape.n_features), "float32", shape.chunk_rows))
        specs.append(ArraySpec(f"{part}/y", (n_rows,), target_dtype, item_rows))
    return specs


def fit_standardisation(request: FeatureRequest, shape: FeatureShape) -> Standardisation:
    """Return the z-scoring of the training inputs; one pass over them."""
    source = open_data(request.source)
    moments = RunningMoments.empty(int(np.prod(source.input_shape)))
    for block in row_blocks(shape.n_train, ITEM_CHUNKS * shape.chunk_rows):
        moments = moments.update(source.read("train", block.start, block.stop)[0])
    return moments.standardisation()


def _store_standardisation(layout: FeatureLayout, standardisation: Standardisation | None) -> None:
    arrays = open_arrays(layout.arrays)
    n_inputs = arrays["standardisation/mean"].n_rows
    chosen = standardisation or Standardisation(np.zeros(n_inputs), np.ones(n_inputs))
    arrays["standardisation/mean"].write(0, chosen.mean)
    arrays["standardisation/scale"].write(0, chosen.scale)
