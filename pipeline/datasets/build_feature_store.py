"""Building a feature store block by block; a half-built one is completed."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.source import PARTS, Part, Source
from pipeline.datasets.feature_request import FeatureRequest, FeatureShape
from pipeline.datasets.feature_rows import LiveFeatures, computed_block, live
from pipeline.datasets.open_data import open_data
from pipeline.runtime import stopping
from storage.errors import CorruptDataError, MissingDataError
from storage.files import make_folder, read_markers, remove_file, write_marker
from storage.folder_layouts import FeatureLayout
from storage.folders import FileDigest, remove_folder, remove_stale, seal
from storage.folders import compare as compare_files
from storage.zarr_arrays import ArraySpec, Block, StoredArray, create_arrays, open_arrays, row_blocks


@dataclass(frozen=True)
class FeatureItem:
    """The unit of building: one row block of one part."""

    part: Part
    block: Block

    @property
    def name(self) -> str:
        return f"{self.part}-{self.block.index:06d}"


BlockTask = tuple[FeatureLayout, LiveFeatures]  # what a worker needs to build any item of a store


def build_item(task: BlockTask, item: FeatureItem, inputs: NDArray[Any] | None = None) -> int:
    """Compute and store the features of one row block; return its number of rows."""
    (layout, features), part, block = task, item.part, item.block
    arrays, files = open_arrays(layout.arrays), dict[str, str]()
    for name, values in computed_block(features, part, block.start, block.stop, inputs).items():
        files |= arrays[f"{part}/{name}"].write(block.start, values)
    write_marker(layout.markers, item.name, {"rows": block.n_rows, "files": files})
    return block.n_rows


def build_in_order(task: BlockTask, items: list[FeatureItem], source: Source, item_rows: int) -> Iterator[int]:
    """Store the features of all items from a source that is read front to back; yield the rows of each as it is done.

    Both parts are written as their rows come. The last item is done when the source was read to its end, where it is
    known whether these are the rows that were planned.
    """
    assert source.in_order is not None
    waiting = {(item.part, item.block.start): item for item in items}
    held: dict[Part, list[NDArray[Any]]] = {part: [] for part in PARTS}
    begun, done = dict.fromkeys(PARTS, 0), list[int]()
    for part, start, inputs in source.in_order():
        stopping.check()
        held[part].append(inputs)
        n_rows = source.n_train if part == "train" else source.n_test
        while begun[part] < n_rows and start + len(inputs) >= (stop := min(begun[part] + item_rows, n_rows)):
            rows = held[part][0] if len(held[part]) == 1 else np.concatenate(held[part])
            yield from done
            done = [build_item(task, waiting[part, begun[part]], rows[: stop - begun[part]])]
            held[part], begun[part] = [rows[stop - begun[part] :]], stop
    yield from done


def prepare(
    layout: FeatureLayout, shape: FeatureShape, request: FeatureRequest, place: Path | None = None
) -> tuple[BlockTask, list[FeatureItem]]:
    """Create the arrays of a store, or take up a half-built or damaged one, and return what is left to build.

    The caller holds the lock. The standardisation is fitted here: one pass over the training inputs. `place`: see
    `open_data.planned`. Of a table all is left: an earlier run that did not read it to its end may have met another.
    """
    features = live(request, shape, place)
    source = open_data(request.source, features.data)
    if source.columns is not None:
        remove_folder(layout.markers)
    arrays = _begun_arrays(layout, _array_specs(shape, source), shape)
    n_inputs = arrays["standardisation/mean"].n_rows
    arrays["standardisation/mean"].write(0, np.array(features.mean or np.zeros(n_inputs)))
    arrays["standardisation/scale"].write(0, np.array(features.scale or np.ones(n_inputs)))
    items = [FeatureItem(part, block) for part in PARTS for block in row_blocks(shape.n_rows(part), shape.item_rows)]
    done = {
        name
        for name, marker in read_markers(layout.markers).items()
        if not compare_files(layout.arrays, _digests(arrays, [marker]), contents=True)
    }
    return (layout, features), [item for item in items if item.name not in done]


def finish(layout: FeatureLayout, shape: FeatureShape) -> None:
    """Write the manifest of a store whose items are all done; from here on the store counts as built."""
    metadata: dict[str, Any] = {"dataset": shape.dataset, "task": shape.task, "classes": list(shape.classes)}
    metadata |= {"n_train": shape.n_train, "n_test": shape.n_test, "n_features": shape.n_features}
    digests = _digests(open_arrays(layout.arrays), read_markers(layout.markers).values())
    known = {f"{layout.arrays.name}/{name}": digest for name, digest in digests.items()}
    seal(layout.folder, kind="features", metadata=metadata, known=known)


def _begun_arrays(layout: FeatureLayout, specs: list[ArraySpec], shape: FeatureShape) -> dict[str, StoredArray]:
    """Return the arrays of a half-built store, or new ones where there are none, or not in their form any more."""
    with suppress(MissingDataError, CorruptDataError):
        arrays = open_arrays(layout.arrays)
        forms = {path: (array.shape, array.chunk_rows) for path, array in arrays.items()}
        if forms == {spec.path: (spec.shape, spec.chunk_rows) for spec in specs}:
            create_arrays(layout.arrays, specs, {"description": shape.description})  # what is damaged but has a form
            return arrays
    make_folder(layout.folder)
    remove_file(layout.manifest)  # of a store that is damaged
    remove_folder(layout.markers)  # first: they describe the arrays
    remove_folder(layout.arrays)
    remove_stale(layout.folder)
    create_arrays(layout.arrays, specs, {"description": shape.description})
    return open_arrays(layout.arrays)


def _digests(arrays: Mapping[str, StoredArray], markers: Iterable[Mapping[str, Any]]) -> dict[str, FileDigest]:
    files = (file for marker in markers for file in marker["files"].items())
    return {name: FileDigest(arrays[name.rpartition("/c/")[0]].chunk_file_bytes, sha256) for name, sha256 in files}


def _array_specs(shape: FeatureShape, source: Source) -> list[ArraySpec]:
    target_dtype = "float64" if shape.task == "regression" else "int64"
    n_inputs = int(np.prod(source.input_shape))
    specs = [ArraySpec(f"standardisation/{name}", (n_inputs,), "float64", n_inputs) for name in ("mean", "scale")]
    for name in ("keys",) if source.groups is None else ("keys", "groups"):
        specs.append(ArraySpec(f"train/{name}", (shape.n_train,), "uint64", shape.item_rows))
    for part in PARTS:
        n_rows = shape.n_rows(part)
        specs.append(ArraySpec(f"{part}/X", (n_rows, shape.n_features), "float32", shape.chunk_rows))
        specs.append(ArraySpec(f"{part}/y", (n_rows,), target_dtype, shape.item_rows))
        if part in shape.weighted:
            specs.append(ArraySpec(f"{part}/weights", (n_rows,), "float64", shape.item_rows))
    return specs
