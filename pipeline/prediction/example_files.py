"""Files of examples for prediction, read block by block: .npz, .zarr, .csv, folders in IDX layout."""

from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features import array_sources
from features.errors import DataError, MissingInputError, UsageError
from features.images import IDX_FILES, idx_file, read_idx
from features.row_source import check_lengths
from features.source import NAMED, PARTS, Part, RowArray
from features.tables.table_paths import KNOWN, exists, is_table
from pipeline.errors import ConfigError
from storage.user_arrays import open_user_arrays

NPZ_NAME, ZARR_NAME = "{name}_{part}", "{part}/{name}"


@dataclass(frozen=True, eq=False)
class ExamplePart:
    """Rows of one array, file or part. read(start, stop): inputs as they are stored, and labels or None.

    weights (n,) f8: of the rows, as training had them; None: each counts 1. file_rows (n,) i8: the numbers of the rows
    of a part in the data as given; None: these are all.
    """

    n_rows: int
    input_shape: tuple[int, ...]
    read: Callable[[int, int], tuple[NDArray[Any], NDArray[Any] | None]]
    name: str
    weights: NDArray[np.float64] | None = None
    file_rows: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Examples:
    """What to predict: a name for people, the part (None: a whole file), and its pieces.

    header: whether a table's first line was taken for names; None for other data. unknown: how many cells read so far
    of each column held a category that the model does not know.
    """

    name: str
    part: str | None
    pieces: tuple[ExamplePart, ...]
    header: bool | None = None
    unknown: Counter[str] = field(default_factory=Counter)

    @property
    def header_words(self) -> str:
        """What the first line was taken for, for people; empty where there is none."""
        return "" if self.header is None else f", header: {'yes' if self.header else 'no'}"

    @property
    def n_rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.n_rows for piece in self.pieces)


@dataclass(frozen=True)
class ExampleRequest:
    """Which data a command was asked for; settings (`KEY=VALUE`) and data_dir go with named data sets only."""

    data: str | None
    labelled: bool
    part: str | None = None
    target: str | None = None
    data_dir: str | None = None
    settings: tuple[str, ...] = ()


def parts_asked(part: str) -> tuple[Part, ...]:
    """Return the parts that train, test or all names."""
    return PARTS if part == "all" else tuple(name for name in PARTS if name == part)


def open_arrays(path: Path, asked: ExampleRequest) -> Examples | None:
    """Open arrays or images of a file or folder, None for a table; errors as `streamed_prediction.open_examples`."""
    if asked.settings or asked.data_dir:
        raise ConfigError(f"{path}: --set and --data-dir have no effect on a file; leave them out")
    is_folder, is_file = path.is_dir() and not is_table(path), path.suffix == ".npz" or is_table(path)
    if is_folder and path.suffix == ".zarr":
        arrays = open_user_arrays(path, lambda names: {"", *_wanted(names, asked, ZARR_NAME)})
        return _open_arrays(path, asked, {"X": arrays[""]} if "" in arrays else arrays, ZARR_NAME)
    if is_folder and not is_file:
        return _open_idx(path, asked)
    if not exists(path) and (path.suffix or len(path.parts) > 1):
        raise MissingInputError(f"{path}: no such file or folder")
    if not exists(path):
        raise UsageError(f"data set {asked.data!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")
    if is_folder or not is_file:
        raise UsageError(f"{path}: file type not known; give .npz, {KNOWN}, or a folder: .zarr or IDX layout")
    if path.suffix == ".npz":
        return _open_arrays(path, asked, _read_npz(path, asked), NPZ_NAME)
    _refuse_part(path, asked)
    return None


def _refuse_part(path: Path, asked: ExampleRequest) -> None:
    if asked.part is not None:
        raise UsageError(f"--part {asked.part}: {path} has no parts; leave it out")


def _array_names(known: Container[str], asked: ExampleRequest, part_name: str) -> list[tuple[str, str]]:
    """Return the names of inputs and labels: those of X, else those of the parts, spelt like `part_name`."""
    if "X" in known:
        return [("X", asked.target or "y")]
    parts = parts_asked(asked.part or "test")
    return [(part_name.format(name="X", part=part), part_name.format(name="y", part=part)) for part in parts]


def _wanted(known: Container[str], asked: ExampleRequest, part_name: str) -> list[str]:
    """Return the names of the arrays that are needed, whether they are there or not."""
    return [name for pair in _array_names(known, asked, part_name) for name in pair[: 1 + asked.labelled]]


def _read_npz(path: Path, asked: ExampleRequest) -> dict[str, NDArray[Any]]:
    """Return those arrays of an npz file that are needed; each is checked before anything is allocated."""
    with array_sources.npz_archive(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted = [name for name in _wanted(members, asked, NPZ_NAME) if name in members]
        return {name: array_sources.read_member(archive, members[name], path) for name in wanted}


def _open_arrays(path: Path, asked: ExampleRequest, arrays: Mapping[str, RowArray], part_name: str) -> Examples:
    """Return the rows of X, or those of the parts."""
    if "X" in arrays:
        _refuse_part(path, asked)
    pieces = []
    for inputs, labels in _array_names(arrays, asked, part_name):
        for name in (inputs, labels)[: 1 + asked.labelled]:
            if name not in arrays:
                words = name if "X" in arrays or name != inputs else f"X or {name}"
                raise DataError(f"{path}: has no array {words}")
        if asked.labelled:
            check_lengths(arrays[inputs], arrays[labels], inputs, labels)
        y = array_sources.label_array(np.asarray(arrays[labels][:]), labels) if asked.labelled else None
        pieces.append(_array_piece(inputs, arrays[inputs], y))
    return Examples(path.name, None if "X" in arrays else asked.part or "test", tuple(pieces))


def _array_piece(name: str, X: RowArray, y: NDArray[Any] | None) -> ExamplePart:
    """Return the rows of an array over chunks; it caches the last decoded run of chunks, at most two blocks of rows."""
    check_lengths(X, np.broadcast_to(0, X.shape[:1]) if y is None else y, name, "y")
    chunk_rows = getattr(X, "chunk_rows", 1)
    kept: tuple[int, NDArray[Any]] = (0, np.empty(0))

    def read(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        nonlocal kept
        labels = None if y is None else y[start:stop]
        if chunk_rows <= stop - start:
            return np.asarray(X[start:stop]), labels
        if not kept[0] <= start <= stop <= kept[0] + len(kept[1]):
            low, high = start - start % chunk_rows, -(-stop // chunk_rows) * chunk_rows
            kept = (low, np.asarray(X[low : min(high, X.shape[0])]))
        return kept[1][start - kept[0] : stop - kept[0]], labels

    return ExamplePart(X.shape[0], tuple(int(size) for size in X.shape[1:]), read, name)


def _open_idx(path: Path, asked: ExampleRequest) -> Examples:
    part = asked.part or "test"
    pieces = []
    for name in parts_asked(part):
        images, labels = (file for file in IDX_FILES if file.startswith("train") == (name == "train"))
        y = read_idx(_idx_file(path, labels), 1).astype(np.int64) if asked.labelled else None
        pieces.append(_array_piece(images, read_idx(_idx_file(path, images), 3), y))
    return Examples(path.resolve().name, part, tuple(pieces))


def _idx_file(folder: Path, name: str) -> Path:
    path = idx_file(folder, name)
    if path is None:
        raise MissingInputError(f"{folder}: lacks {name} (raw or .gz); a folder of images needs MNIST's file names")
    return path
