"""Files of examples for prediction, read block by block: .npz, .zarr, .csv, folders in IDX layout."""

import itertools
import math
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features import tables
from features.errors import DataError, MissingInputError, UsageError
from features.idx import read_idx
from features.images import IDX_FILES
from features.rows import check_lengths
from features.sources import NAMED, Part
from pipeline.errors import ConfigError
from pipeline.model import SparseKernelModel
from storage.arrays import open_user_arrays

PARTS: tuple[Part, ...] = ("train", "test")
NPZ_NAME, ZARR_NAME = "{name}_{part}", "{part}/{name}"


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of one array, file or part. read(start, stop): inputs as they are stored, and labels or None."""

    n_rows: int
    input_shape: tuple[int, ...]
    read: Callable[[int, int], tuple[NDArray[Any], NDArray[Any] | None]]
    name: str


@dataclass(frozen=True, eq=False)
class Examples:
    """What to predict: its name for people, the part it is (None: a whole file), the pieces it consists of."""

    name: str
    part: str | None
    pieces: tuple[Piece, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.n_rows for piece in self.pieces)


@dataclass(frozen=True)
class Asked:
    """Which data a command was asked for; settings (`KEY=VALUE`) and data_dir go with named data sets only."""

    data: str | None
    labelled: bool
    part: str | None = None
    target: str | None = None
    data_dir: str | None = None
    settings: tuple[str, ...] = ()


def parts_asked(part: str) -> tuple[Part, ...]:
    """Return the parts that train, test or all names."""
    return PARTS if part == "all" else tuple(one for one in PARTS if one == part)


def open_path(path: Path, asked: Asked, model: SparseKernelModel) -> Examples:
    """Open a file or folder; errors as `prediction.open_examples`."""
    if asked.settings or asked.data_dir:
        raise ConfigError(f"{path}: --set and --data-dir have no effect on a file; leave them out")
    is_folder, is_table = path.is_dir(), path.suffix in (".npz", ".csv")
    if is_folder and path.suffix == ".zarr":
        found = open_user_arrays(path, lambda names: {"", *_wanted(names, asked, ZARR_NAME)})
        return _open_arrays(path, asked, {"X": found[""]} if "" in found else found, ZARR_NAME)
    if is_folder and not is_table:
        return _open_idx(path, asked)
    if not path.exists() and (path.suffix or len(path.parts) > 1):
        raise MissingInputError(f"{path}: no such file or folder")
    if not path.exists():
        raise UsageError(f"data set {asked.data!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")
    if is_folder or not is_table:
        raise UsageError(f"{path}: file type not known; give a file .npz or .csv, a folder .zarr or one in IDX layout")
    if path.suffix == ".npz":
        return _open_arrays(path, asked, _read_npz(path, asked), NPZ_NAME)
    _refuse_part(path, asked)
    return Examples(path.name, None, (_open_csv(path, asked, math.prod(model.input_shape)),))


def _refuse_part(path: Path, asked: Asked) -> None:
    if asked.part is not None:
        raise UsageError(f"--part {asked.part}: {path} has no parts; leave it out")


def _array_names(known: Container[str], asked: Asked, part_name: str) -> list[tuple[str, str]]:
    """Return the names of inputs and labels: those of X, else those of the parts, spelt like `part_name`."""
    if "X" in known:
        return [("X", asked.target or "y")]
    parts = parts_asked(asked.part or "test")
    return [(part_name.format(name="X", part=part), part_name.format(name="y", part=part)) for part in parts]


def _wanted(known: Container[str], asked: Asked, part_name: str) -> list[str]:
    """Return the names of the arrays that are needed, whether they are there or not."""
    return [name for pair in _array_names(known, asked, part_name) for name in pair[: 1 + asked.labelled]]


def _read_npz(path: Path, asked: Asked) -> dict[str, NDArray[Any]]:
    """Return those arrays of an npz file that are needed; each is checked before anything is allocated."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = [name for name in _wanted(members, asked, NPZ_NAME) if name in members]
            return {name: tables.read_member(archive, members[name], path) for name in wanted}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, RuntimeError, zlib.error) as error:
        raise DataError(f"{path}: not a readable npz file ({error})") from error


def _open_arrays(path: Path, asked: Asked, arrays: Mapping[str, Any], part_name: str) -> Examples:
    """Return the rows of X, or those of the parts."""
    if "X" in arrays:
        _refuse_part(path, asked)
    pieces = []
    for inputs, labels in _array_names(arrays, asked, part_name):
        for name in (inputs, labels)[: 1 + asked.labelled]:
            if name not in arrays:
                words = name if "X" in arrays or name != inputs else f"X or {name}"
                raise DataError(f"{path}: has no array {words}")
        y = tables.label_array(np.asarray(arrays[labels][:]), labels) if asked.labelled else None
        pieces.append(_array_piece(inputs, arrays[inputs], y))
    return Examples(path.name, None if "X" in arrays else asked.part or "test", tuple(pieces))


def _array_piece(name: str, X: Any, y: NDArray[Any] | None) -> Piece:
    """Return the rows of an array-like, of which one run of chunks is kept, since decoding one costs as much as it is.

    Memory where chunks have more rows than a block: two of them.
    """
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
            kept = (low, np.asarray(X[low : min(high, len(X))]))
        return kept[1][start - kept[0] : stop - kept[0]], labels

    return Piece(len(X), tuple(int(size) for size in X.shape[1:]), read, name)


def _open_idx(path: Path, asked: Asked) -> Examples:
    part = asked.part or "test"
    pieces = []
    for one in parts_asked(part):
        images, labels = (name for name in IDX_FILES if name.startswith("train") == (one == "train"))
        y = read_idx(_idx_file(path, labels), 1).astype(np.int64) if asked.labelled else None
        pieces.append(_array_piece(images, read_idx(_idx_file(path, images), 3), y))
    return Examples(path.resolve().name, part, tuple(pieces))


def _idx_file(folder: Path, name: str) -> Path:
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise MissingInputError(f"{folder}: lacks {name} (raw or .gz); a folder of images needs MNIST's file names")
    return path


def _open_csv(path: Path, asked: Asked, n_inputs: int) -> Piece:
    """Return the rows of a csv file, which is read once for their number and again for the numbers in them.

    A column more than the model's inputs is the target, chosen as in training.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = tables.csv_cells(stream, path)
            first = next(lines, (0, []))[1]
            n_lines = bool(first) + sum(1 for _ in lines)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    header = bool(first) and tables.is_header(first, asked.target)
    if n_lines == header:
        below = " below its header" if header else ""
        raise DataError(f"{path}: has no rows{below}")
    has_target = asked.target is not None or len(first) == n_inputs + 1
    column = tables.target_column(first, header, asked.target, path) if has_target else None
    if len(first) - has_target != n_inputs or (asked.labelled and not has_target):
        wanted = f"{n_inputs} inputs" + (" and a target" if asked.labelled or asked.target else "")
        raise DataError(f"{path}: has {len(first)} columns, wanted the model's {wanted}")
    names = first if header else [str(k) for k in range(len(first))]
    rows: Iterator[tuple[NDArray[np.float64], str]] = iter(())

    def read(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        nonlocal rows
        if start == 0:
            rows = _csv_rows(path, header, names, column, labelled=asked.labelled)
        inputs, labels = np.empty((stop - start, n_inputs)), []
        for k, (values, label) in enumerate(itertools.islice(rows, stop - start)):
            inputs[k] = values
            labels.append(label)
        if len(labels) < stop - start:
            raise DataError(
                f"{path}: ends at row {start + len(labels)}, it was longer before; leave it alone meanwhile"
            )
        return inputs, np.array(labels) if asked.labelled else None

    return Piece(n_lines - header, (n_inputs,), read, str(path))


def _csv_rows(
    path: Path, header: bool, names: list[str], column: int | None, *, labelled: bool
) -> Iterator[tuple[NDArray[np.float64], str]]:
    """Yield inputs and label of every row; a label is only asked for where it is needed."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        for row, (line, cells) in enumerate(itertools.islice(tables.csv_cells(stream, path), int(header), None)):
            where = f"{path}: row {row} (line {line})"
            if len(cells) != len(names):
                raise DataError(f"{where} has {len(cells)} cells, expected {len(names)}")
            label = "" if column is None else cells[column].strip()
            if labelled and (not label or label.lower() in ("nan", "na")):
                raise DataError(f"{where} has no label ({label!r})")
            kept = [k for k in range(len(names)) if k != column]
            yield np.array(tables.numbers([cells[k] for k in kept], [names[k] for k in kept], where)), label
