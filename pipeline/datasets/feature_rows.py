"""Rows of features as the stages read them: from the store, computed on the fly, or given; times learned scales.

Which features of which data a run asks for, and what a store of them holds, is known before any is computed.

The store of a data set is zarr, built once, block by block (a half-built one is completed), and named by the digest of
its source and feature parameters. It is built when its manifest is there; chunks that are read are checked against it.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.descriptors import FeatureSpec, extract, feature_length, parameters
from features.input_files import npy_files, stamp
from features.open_source import PUBLISHED, given_folder
from features.row_draws import row_keys
from features.rows import Mapped, Rows, RunningMoments, Standardisation, keys_of_inputs, some_of
from features.source import PARTS, Part, Source, SourceSpec
from features.targets import balanced_factors
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.open_data import open_data
from pipeline.errors import ConfigError, InvalidDataError
from pipeline.kernels.kernel_functions import first_non_finite_row, scaled
from pipeline.runtime import progress, stopping
from pipeline.runtime.run_folder import digest_sources
from storage.arrays import Stored
from storage.errors import CorruptDataError
from storage.files import digest_of, make_folder, read_record, remove_file, write_record
from storage.folder_layouts import FeatureLayout
from storage.folders import FileDigest, compare, read_manifest, remove_folder, remove_stale, seal
from storage.zarr_arrays import ArraySpec, StoredArray, chunk_rows_for, create_arrays, open_arrays, row_blocks

FORMAT_VERSION = 3
ITEM_CHUNKS = 4  # One task writes this number of chunks of features.


@dataclass(frozen=True)
class FeatureRequest:
    """What is to be stored; balanced: the moments of the z-scoring count every class alike."""

    source: SourceSpec
    features: FeatureSpec
    standardise: bool
    balanced: bool = False


@dataclass(frozen=True)
class FeatureShape:
    """What a store holds, known before any feature is computed."""

    task: str
    classes: tuple[Any, ...]
    n_train: int
    n_features: int
    chunk_rows: int
    n_test: int = 0
    dataset: str = "X"
    digest: str = ""
    description: dict[str, Any] = field(default_factory=dict)
    weighted: tuple[Part, ...] = ()  # the parts whose rows have weights
    dtype: str = "float32"  # the features' type

    @property
    def store(self) -> str:
        """Name of the store: that of other data, of other features or of other code that computes them is another."""
        return f"{self.digest}-{digest_sources('features')}"

    @property
    def source_digest(self) -> str:
        return digest_of(self.description["source"])

    @property
    def n_outputs(self) -> int:
        return len(self.classes) if self.task == "multiclass" else 1

    def n_rows(self, part: Part) -> int:
        return self.n_train if part == "train" else self.n_test

    @property
    def item_rows(self) -> int:
        return ITEM_CHUNKS * self.chunk_rows

    @property
    def disk_bytes(self) -> int:
        n_weights = sum(map(self.n_rows, self.weighted))
        return (self.n_train + self.n_test) * (self.n_features * 4 + 8) + 8 * (n_weights + self.n_train)


def source_spec(config: TrainConfig) -> SourceSpec:
    """Return the description of the data, with the folder of SLKL_DATA_DIR, which workers of a cluster may not know."""
    named_alike = (each.name for each in fields(SourceSpec) if hasattr(config.data, each.name))
    alike: dict[str, Any] = {name: getattr(config.data, name) for name in named_alike}
    place = os.environ.get("SLKL_DATA_DIR")
    if config.dataset in PUBLISHED and place and given_folder(config.dataset, place) is not None:
        alike["data_dir"] = str(Path(place).absolute())
    alike["seed"] = config.seed
    alike["size"] = config.features.size
    if config.resources.stores_features:
        alike["kept"] = str(Path(config.resources.features_dir).absolute() / "tables")
    return SourceSpec(config.dataset, **alike)


def feature_spec(config: TrainConfig) -> FeatureSpec:
    """Return the features of settings that are filled in."""
    return FeatureSpec(**{each.name: getattr(config.features, each.name) for each in fields(FeatureSpec)})


def request_of(config: TrainConfig, spec: SourceSpec) -> FeatureRequest:
    """Return the request of settings whose features are filled in, of the data that `source_spec` describes."""
    standardise = bool(config.data.standardise)
    return FeatureRequest(spec, feature_spec(config), standardise, standardise and config.data.class_weight is not None)


def describe(request: FeatureRequest, source: Source | None = None) -> FeatureShape:
    """Return what the store of a request holds. Opens the source (and so checks its files) unless it is given."""
    source = source or open_data(request.source)
    name, deskew = request.features.name, request.features.deskew
    if request.standardise and (name != "raw" or deskew):
        more = f"`features.name={name}`" if name != "raw" else f"`features.deskew={deskew:g}`"
        raise ConfigError(f"`data.standardise=true` with {more}: inputs are z-scored as they are; leave one out")
    n_features = feature_length(request.features, source.input_shape)
    read_bytes = math.prod(source.input_shape) // ITEM_CHUNKS if len(source.input_shape) > 1 else 0  # large images
    description = {
        "format_version": FORMAT_VERSION,
        "source": source.identity,
        "features": parameters(request.features),
        "standardise": request.standardise,
        **({"balanced": True} if request.balanced else {}),
    }
    return FeatureShape(
        digest=digest_of(description),
        dataset=source.name,
        task=source.task,
        classes=tuple(source.classes),
        n_train=source.n_train,
        n_test=source.n_test,
        n_features=n_features,
        chunk_rows=chunk_rows_for(max(4 * n_features, read_bytes), source.n_train),
        description=description,
        weighted=tuple(part for part in PARTS if source.parts[part].weights is not None),
    )


@dataclass(frozen=True)
class LiveFeatures:
    """What a worker needs to compute any features: the request, the digest of the data, the fitted z-scoring."""

    request: FeatureRequest
    data: str  # the digest of the identity of those that were planned
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def standardisation(self) -> Standardisation | None:
        return Standardisation(np.array(self.mean), np.array(self.scale)) if self.request.standardise else None


@dataclass(frozen=True)
class ScaledFeatures:
    """What a worker needs to read features times learned scales: the features, and what has the scales."""

    features: "FeatureLayout | LiveFeatures | Rows"
    scales: Stored


# Where features are: in a store, in what computes them, times scales, or in memory.
FeatureAccess = FeatureLayout | LiveFeatures | ScaledFeatures | Rows


def open_features(access: FeatureAccess, part: Part = "train") -> Rows:
    """Return the rows of a part with their features (n, d), kept open for the tasks of this process.

    Those of a source are float32. Reading raises InvalidDataError naming a row whose features are not finite,
    CorruptDataError where the store is damaged.
    """
    if isinstance(access, Rows):
        return access
    if isinstance(access, ScaledFeatures):
        rows = open_features(access.features, part)

        def scale(X: NDArray[np.floating], numbers: NDArray[np.int64]) -> NDArray[np.floating]:
            # The scales are read with the first features: targets can be read before there are any.
            return seen(X, numbers, rows.name, scales=access.scales.read()["scales"], dtype=rows.X.dtype.type)

        return replace(rows, X=Mapped(rows.X, scale, rows.X.shape[1:], rows.X.dtype))
    # Rows of .npy files are those of the files as they were opened: of files that were written since, others are.
    files = npy_files(Path(access.request.source.dataset)) if isinstance(access, LiveFeatures) else []
    return _opened(access, tuple(stamp(file) for file in files if file.exists()))[part]


@lru_cache(maxsize=2)
def _opened(access: FeatureLayout | LiveFeatures, stamps: tuple) -> dict[Part, Rows]:
    if isinstance(access, LiveFeatures):
        source = open_data(access.request.source, access.data)
        return {part: _with_features(access, part, rows) for part, rows in source.parts.items()}
    arrays = open_store(access)
    fitted = Standardisation(*(arrays[f"standardisation/{name}"][:] for name in ("mean", "scale")))
    names = ("y", "weights", "keys", "groups")
    stored: dict[Part, Any] = {part: {name: arrays.get(f"{part}/{name}") for name in names} for part in PARTS}
    return {part: Rows(arrays[f"{part}/X"], **stored[part], standardisation=fitted) for part in PARTS}


def _with_features(access: LiveFeatures, part: Part, rows: Rows) -> Rows:
    """Return rows with features, which are computed whenever they are read."""
    shape = (feature_length(access.request.features, rows.X.shape[1:]),)
    keys = keys_of_inputs(rows.X) if rows.keys is None else rows.keys
    X = Mapped(rows.X, _computed(access, part), shape, np.float32)
    return replace(rows, X=X, keys=keys, standardisation=access.standardisation)


def _computed(access: LiveFeatures, part: Part) -> Callable[[NDArray[Any], NDArray[np.int64]], NDArray[np.floating]]:
    """Return what makes features of inputs (n, …) with numbers (n,)."""
    standardisation, features = access.standardisation, access.request.features
    return partial(seen, name=f"{part} part", standardisation=standardisation, features=features)


def seen(
    inputs: NDArray[Any],
    numbers: NDArray[np.int64] | range,
    name: str,
    standardisation: Standardisation | None = None,
    features: FeatureSpec | None = None,
    scales: NDArray[np.float32] | None = None,
    dtype: type = np.float32,
) -> NDArray[np.floating]:
    """Return inputs (n, …) as the kernel sees them, (n, d): z-scored, turned into features, times learned scales.

    This is where is asked whether what a kernel sees is finite, of stores when they are built. Raises InvalidDataError
    naming the row, one of `numbers` (n,), that is not: inputs are, so that it is too large.
    """
    X = inputs if standardisation is None else standardisation.apply(inputs, dtype)
    with np.errstate(over="ignore"):
        X = np.ascontiguousarray(X, dtype) if features is None else extract(features, X)
        X = scaled(X, scales)
    if (bad := first_non_finite_row(X)) is not None:
        raise InvalidDataError(f"{name}: row {numbers[bad]} is too large for {X.dtype} features; rescale or remove it")
    return X


def open_store(layout: FeatureLayout) -> dict[str, StoredArray]:
    """Return the arrays of a built store by name ("train/X"): every byte read is checked against the manifest."""
    files = read_manifest(layout.folder)
    metadata = {name: entry for name, entry in files.items() if name.endswith(".json")}
    if problems := compare(layout.folder, metadata, contents=True):
        raise CorruptDataError(f"{_fault(layout, problems)}; delete the folder to build it again")
    digests = {name.removeprefix(f"{layout.arrays.name}/"): entry.digest for name, entry in files.items()}
    return open_arrays(layout.arrays, digests)


def is_built(layout: FeatureLayout, warn: Callable[[str], object] = str, *, contents: bool = False) -> bool:
    """Return whether a complete store is there: manifest whole, every file with its size, and with its `contents`."""
    if not layout.manifest.exists():
        return False
    try:
        problems = compare(layout.folder, read_manifest(layout.folder), contents=False)
        for array in open_store(layout).values() if contents and not problems else ():
            for rows in row_blocks(array.shape[0], array.chunk_rows):
                array[rows]  # is checked by that
    except CorruptDataError as error:
        problems = [str(error)]
    if problems:
        warn(f"{_fault(layout, problems)}; it is made again")
    return not problems


def _fault(layout: FeatureLayout, problems: list[str]) -> str:
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"feature store {layout.folder} is damaged: {problems[0].partition(';')[0]}{more}"


def live(request: FeatureRequest, shape: FeatureShape) -> LiveFeatures:
    """Return the access to features that are computed on the fly."""
    if not request.standardise:
        return LiveFeatures(request, shape.source_digest)
    fitted = fit_moments(open_data(request.source, shape.source_digest).learned(), shape, balanced=request.balanced)
    return LiveFeatures(request, shape.source_digest, tuple(fitted.mean.tolist()), tuple(fitted.scale.tolist()))


def fit_moments(rows: Rows, shape: FeatureShape, *, balanced: bool) -> Standardisation:
    """Return the z-scoring of the inputs of rows; one pass over them. balanced: all classes count alike."""
    moments: list[RunningMoments] = []
    for some in row_blocks(len(rows), ITEM_CHUNKS * min(shape.chunk_rows, len(rows))):
        stopping.check()
        X, y = rows.X[some], rows.y[some]
        weights = some_of(rows.weights, some)
        if not moments:
            moments = [RunningMoments.begin(X)] * (len(shape.classes) if balanced else 1)
        for k, of_class in enumerate(moments):
            counted = y == k if balanced else slice(None)
            moments[k] = of_class.update(X[counted], some_of(weights, counted))
    if balanced:
        factors = balanced_factors(np.array([of_class.count for of_class in moments], np.float64))
        weighted = zip(moments, factors.tolist(), strict=True)
        moments = [replace(one, count=f * one.count, squares=f * one.squares) for one, f in weighted]
    return reduce(RunningMoments.merge, moments).standardisation()


@dataclass(frozen=True)
class FeatureItem:
    """The unit of building: one row block of one part."""

    part: Part
    rows: slice

    @property
    def name(self) -> str:
        return f"{self.part}-{self.rows.start:09d}"

    @property
    def n_rows(self) -> int:
        return self.rows.stop - self.rows.start


BlockTask = tuple[FeatureLayout, LiveFeatures]  # what a worker needs to build any item of a store


def build_item(task: BlockTask, item: FeatureItem, inputs: NDArray[Any] | None = None) -> int:
    """Compute and store the features of one row block; return its number of rows."""
    (layout, access), part, some = task, item.part, item.rows
    rows = open_data(access.request.source, access.data).parts[part]
    inputs = rows.X[some] if inputs is None else inputs
    made = {"y": rows.y[some]}
    if rows.weights is not None:
        made["weights"] = rows.weights[some]
    if part == "train":
        made["keys"] = row_keys(inputs) if rows.keys is None else rows.keys[some]
        made |= {} if rows.groups is None else {"groups": rows.groups[some]}
    arrays, files = open_arrays(layout.arrays), dict[str, str]()
    compute, of_features = _computed(access, part), arrays[f"{part}/X"]
    for chunk in row_blocks(item.n_rows, of_features.chunk_rows):
        first, stop = some.start + chunk.start, some.start + chunk.stop
        files |= of_features.write(first, compute(inputs[chunk], np.arange(first, stop)))
        progress.advance(stop - first)
    for name, values in made.items():
        files |= arrays[f"{part}/{name}"].write(some.start, values)
    write_record(layout.markers / f"{item.name}.json", {"files": files})
    return item.n_rows


def build_in_order(task: BlockTask, items: list[FeatureItem], source: Source, item_rows: int) -> Iterator[int]:
    """Store the features of all items from a source that is read front to back; yield the rows of each as it is done.

    Both parts are written as their rows come. The last item is done when the source was read to its end, where it is
    known whether these are the rows that were planned.
    """
    waiting = {(item.part, item.rows.start): item for item in items}
    held: dict[Part, list[NDArray[Any]]] = {part: [] for part in PARTS}
    begun, done = dict.fromkeys(PARTS, 0), list[int]()
    for part, start, inputs in source.in_order():
        stopping.check()
        held[part].append(inputs)
        n_rows = len(source.parts[part])
        while begun[part] < n_rows and start + len(inputs) >= (stop := min(begun[part] + item_rows, n_rows)):
            rows = held[part][0] if len(held[part]) == 1 else np.concatenate(held[part])
            yield from done
            done = [build_item(task, waiting[part, begun[part]], rows[: stop - begun[part]])]
            held[part], begun[part] = [rows[stop - begun[part] :]], stop
    yield from done


def prepare(layout: FeatureLayout, shape: FeatureShape, request: FeatureRequest) -> tuple[BlockTask, list[FeatureItem]]:
    """Create the arrays of a store, or take up a half-built or damaged one, and return what is left to build.

    The caller holds the lock. The standardisation is fitted here: one pass over the training inputs. Of a table all is
    left: an earlier run that did not read it to its end may have met another.
    """
    features = live(request, shape)
    source = open_data(request.source, features.data)
    if source.columns is not None:
        remove_folder(layout.markers)
    make_folder(layout.markers)
    remove_file(layout.manifest)  # It is there where a store is damaged.
    remove_stale(layout.folder)
    create_arrays(layout.arrays, _array_specs(shape, source), {"description": shape.description})
    arrays = open_arrays(layout.arrays)
    n_inputs = arrays["standardisation/mean"].shape[0]
    written = arrays["standardisation/mean"].write(0, np.array(features.mean or np.zeros(n_inputs)))
    written |= arrays["standardisation/scale"].write(0, np.array(features.scale or np.ones(n_inputs)))
    write_record(layout.markers / "standardisation.json", {"files": written})
    items = [FeatureItem(part, rows) for part in PARTS for rows in row_blocks(shape.n_rows(part), shape.item_rows)]
    arrays = open_arrays(layout.arrays, _digests_done(layout))
    return (layout, features), [item for item in items if not _is_done(item, arrays)]


def finish(layout: FeatureLayout) -> None:
    """Write the manifest of a store whose items are all done; from here on the store counts as built."""
    arrays, digests = open_arrays(layout.arrays), _digests_done(layout)
    sizes = {name: arrays[name.rpartition("/c/")[0]].chunk_file_bytes for name in digests}
    seal(layout.folder, {f"{layout.arrays.name}/{name}": FileDigest(sizes[name], digests[name]) for name in digests})


def _digests_done(layout: FeatureLayout) -> dict[str, str]:
    """Return the digests of the chunk files of all items that are done; one whose record is damaged is not."""
    done = dict[str, str]()
    for path in layout.markers.glob("[!.]*.json"):
        with suppress(CorruptDataError):
            done |= read_record(path)["files"]
    return done


def _is_done(item: FeatureItem, arrays: Mapping[str, StoredArray]) -> bool:
    with suppress(CorruptDataError):
        for name, array in arrays.items():
            if name.startswith(f"{item.part}/"):
                array[item.rows]  # is checked by that
        return True
    return False


def _array_specs(shape: FeatureShape, source: Source) -> list[ArraySpec]:
    target_dtype = "float64" if shape.task == "regression" else "int64"
    n_inputs = int(np.prod(source.input_shape))
    specs = [ArraySpec(f"standardisation/{name}", (n_inputs,), "float64", n_inputs) for name in ("mean", "scale")]
    for name in ("keys",) if source.train.groups is None else ("keys", "groups"):
        specs.append(ArraySpec(f"train/{name}", (shape.n_train,), "uint64", shape.item_rows))
    for part in PARTS:
        n_rows = shape.n_rows(part)
        specs.append(ArraySpec(f"{part}/X", (n_rows, shape.n_features), "float32", shape.chunk_rows))
        specs.append(ArraySpec(f"{part}/y", (n_rows,), target_dtype, shape.item_rows))
        if part in shape.weighted:
            specs.append(ArraySpec(f"{part}/weights", (n_rows,), "float64", shape.item_rows))
    return specs
