"""Sources from npz and csv files and from opened array-likes, all read with bounds and without pickle."""

import csv
import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from features.errors import DataError, UsageError
from features.rows import RowSource, digest_rows, input_dtype, parts_source, split_source
from features.sources import SourceSpec

MAX_LINE_CHARACTERS = 1 << 20
MAX_HEADER_BYTES = 1 << 16
# As for IDX: deflate reaches 1032:1, numbers do not; a small member is always believed.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 64 << 20
TARGET_NAMES = ("y", "target", "label")
SPLIT_KEYS = ("train/X", "train/y", "test/X", "test/y")
PART_KEYS = ("X_train", "y_train", "X_test", "y_test")
ROWS_PER_PIECE = 4096


def open_arrays(spec: SourceSpec, arrays: Mapping[str, Any], digests: Mapping[str, str] | None = None) -> RowSource:
    """Open array-likes: ``X, y`` (split by seed) or ``train/X, train/y, test/X, test/y``.

    y is read whole, X by rows only: once here for its digest, unless `digests` (of `digest_arrays`, for the same
    arrays) are given.

    Raises
    ------
    DataError
        A key is missing, shapes disagree, or the values are no real numbers.
    """
    name = Path(spec.dataset).stem
    keys = _array_keys(spec.dataset, arrays)
    identity = {"source": "arrays", "sha256": dict(digests or digest_arrays(spec, arrays))}
    inputs_of = [_checked_inputs(arrays[key], key) for key in keys if key.endswith("X")]
    labels_of = [label_array(np.asarray(arrays[key][:]), key) for key in keys if key.endswith("y")]
    table = _is_table(inputs_of[0])
    if len(keys) == 2:
        return split_source(spec, name, inputs_of[0], labels_of[0], table, identity)
    return parts_source(spec, name, (inputs_of[0], inputs_of[1]), (labels_of[0], labels_of[1]), table, identity)


def digest_arrays(spec: SourceSpec, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return the sha256 of every array that `open_arrays` uses, by key; one pass over all of X.

    Raises
    ------
    DataError
        As `open_arrays`.
    """
    digests = {}
    for key in _array_keys(spec.dataset, arrays):
        if key.endswith("X"):
            digests[key] = digest_rows(_checked_inputs(arrays[key], key))
        else:
            digests[key] = digest_rows(label_array(np.asarray(arrays[key][:]), key))
    return digests


def _array_keys(dataset: str, arrays: Mapping[str, Any]) -> tuple[str, ...]:
    if "X" in arrays and "y" in arrays:
        return ("X", "y")
    missing = [key for key in SPLIT_KEYS if key not in arrays]
    if missing:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{dataset}: needs arrays X and y, or {', '.join(SPLIT_KEYS)}; found {found}")
    return SPLIT_KEYS


def open_npz(spec: SourceSpec, path: Path) -> RowSource:
    """Open an npz file with ``X, y`` or ``X_train, y_train, X_test, y_test``; `spec.target` renames ``y``.

    Read whole: memory is that of the arrays, which is compared with the file before anything is allocated.

    Raises
    ------
    DataError
        No zip file, a missing key, Python objects, or a member that promises more than the file can hold.
    """
    target = spec.target or "y"
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = ("X", target) if "X" in members and target in members else PART_KEYS
            missing = [key for key in keys if key not in members]
            if missing:
                found = ", ".join(sorted(members)) or "nothing"
                raise DataError(f"{path}: needs X and {target}, or {', '.join(PART_KEYS)}; found {found}")
            loaded = {key: read_member(archive, members[key], path) for key in keys}
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        NotImplementedError,
        EOFError,
        RuntimeError,
        zlib.error,
    ) as error:
        raise DataError(f"{path}: not a readable npz file ({error})") from error
    identity = {"source": "npz", "sha256": {key: digest_rows(values) for key, values in loaded.items()}}
    if len(keys) == 2:
        inputs, labels = loaded["X"], label_array(loaded[target], target)
        return split_source(spec, path.stem, inputs, labels, _is_table(inputs), identity)
    inputs_of = (loaded["X_train"], loaded["X_test"])
    labels_of = (label_array(loaded["y_train"], "y_train"), label_array(loaded["y_test"], "y_test"))
    return parts_source(spec, path.stem, inputs_of, labels_of, _is_table(inputs_of[0]), identity)


def open_csv(spec: SourceSpec, path: Path) -> RowSource:
    """Open a comma-separated file of numbers.

    The target is the column `spec.target`, else one named y, target or label, else the last; its labels may
    be text. A first line without a number, or with the target's name, is a header. Rows and columns count
    from 0 in messages, lines from 1. Read line by line; memory is 8 bytes a cell and about 60 a row.

    Raises
    ------
    DataError
        No rows, rows of different length, a cell that is no finite number, a line of more than a million
        characters, or bytes that are not UTF-8.
    UsageError
        `spec.target` names no column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            inputs, labels = _parse_csv(stream, spec.target, path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    digest = hashlib.sha256(digest_rows(inputs).encode() + digest_rows(labels).encode()).hexdigest()
    identity = {"source": "csv", "sha256": digest}
    return split_source(spec, path.stem, inputs, labels, True, identity)


def _parse_csv(stream: TextIO, target: str | None, path: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = csv_cells(stream, path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: is empty; rows of numbers are needed")
    first_line, first_cells = first
    header = is_header(first_cells, target)
    column = target_column(first_cells, header, target, path)
    if len(first_cells) < 2:
        raise DataError(f"{path}: has one column; inputs and a target are needed")
    names = first_cells if header else [str(k) for k in range(len(first_cells))]
    pieces: list[np.ndarray] = []
    piece: list[list[float]] = []
    labels: list[str] = []
    for line, cells in _chain(None if header else (first_line, first_cells), rows):
        where = f"{path}: row {len(labels)} (line {line})"
        if len(cells) != len(names):
            raise DataError(f"{where} has {len(cells)} cells, expected {len(names)}")
        label = cells.pop(column).strip()
        if not label or label.lower() in ("nan", "na"):
            raise DataError(f"{where}, column {names[column]} has no label ({label!r})")
        labels.append(label)
        piece.append(numbers(cells, names[:column] + names[column + 1 :], where))
        if len(piece) == ROWS_PER_PIECE:
            pieces.append(np.array(piece))
            piece = []
    if piece:
        pieces.append(np.array(piece))
    if not pieces:
        raise DataError(f"{path}: has a header but no rows")
    return np.concatenate(pieces), _label_values(labels)


def csv_cells(stream: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number from 1, cells) of each line that is not blank; quotes end on their line."""
    number = 0
    while line := stream.readline(MAX_LINE_CHARACTERS):
        number += 1
        if len(line) == MAX_LINE_CHARACTERS and not line.endswith("\n"):
            raise DataError(f"{path}: line {number} is longer than {MAX_LINE_CHARACTERS} characters")
        if line.strip():
            try:
                yield number, next(csv.reader([line], strict=True))
            except csv.Error as error:
                raise DataError(f"{path}: line {number} is not comma-separated text ({error})") from error


def _chain(
    first: tuple[int, list[str]] | None, rest: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    if first is not None:
        yield first[0], list(first[1])
    yield from rest


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_header(cells: list[str], target: str | None) -> bool:
    """Tell whether the first line holds names: the target's is in it, or no cell is a number."""
    if any(cell.strip() in TARGET_NAMES or (target is not None and cell.strip() == target) for cell in cells):
        return not all(_is_number(cell) for cell in cells)
    return not any(_is_number(cell) for cell in cells)


def target_column(cells: list[str], header: bool, target: str | None, path: Path) -> int:
    """Return which column is the target: `target` by name or number, else one of the usual names, else the last.

    Raises UsageError where `target` names none.
    """
    names = [cell.strip() for cell in cells] if header else []
    if target is None:
        return next((names.index(name) for name in TARGET_NAMES if name in names), len(cells) - 1)
    if target in names:
        return names.index(target)
    try:
        number = int(target)
    except ValueError:
        known = f"columns {', '.join(names)}" if header else "no header; give a number"
        raise UsageError(f"target {target!r} is no column of {path}, which has {known}") from None
    if not -len(cells) <= number < len(cells):
        raise UsageError(f"target {number} is no column of {path}; it has columns 0 to {len(cells) - 1}")
    return number % len(cells)


def numbers(cells: list[str], names: list[str], where: str) -> list[float]:
    """Return the cells as numbers. Raises DataError, naming the column, where one is no finite number."""
    values = []
    for name, cell in zip(names, cells, strict=True):
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{where}, column {name} is {cell[:40]!r}; a finite number is needed")
        values.append(value)
    return values


def _label_values(labels: list[str]) -> np.ndarray:
    """Return labels as int64 where all are whole numbers, float64 where all are numbers, else as strings."""
    for dtype in (np.int64, np.float64):
        try:
            return np.array([dtype(label) for label in labels])
        except (ValueError, OverflowError):
            continue
    return np.array(labels)


def label_array(labels: np.ndarray, name: str) -> np.ndarray:
    """Return labels (n,) in a dtype that `features.targets` knows; (n, 1) is flattened."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind in "OTS":
        labels = labels.astype(str)
    if labels.dtype.kind not in "biufU":
        raise DataError(f"{name} holds {labels.dtype} values; numbers or strings are needed")
    if labels.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(labels))
        if bad.size:
            raise DataError(f"{name}: row {bad[0]} is {labels[bad[0]]}; every target must be finite")
    return labels


def _is_table(inputs: Any) -> bool:
    return len(inputs.shape) == 2


def _checked_inputs(inputs: Any, name: str) -> Any:
    if len(inputs.shape) < 2 or 0 in inputs.shape:
        raise DataError(f"{name} has shape {tuple(inputs.shape)}; inputs are needed, (n, d) or (n, H, W)")
    input_dtype(inputs)
    return inputs


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """Read one npy member after comparing its header with the zip directory and the compressed size."""
    where = f"{path}, {info.filename}"
    if info.flag_bits & 1:
        raise DataError(f"{where}: is encrypted")
    # The zip directory may lie about both sizes, the size of the file on disk does not.
    compressed_bytes = min(info.compress_size, path.stat().st_size)
    limit_bytes = max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * compressed_bytes)
    if info.file_size > limit_bytes:
        raise DataError(
            f"{where}: promises {info.file_size} bytes from {compressed_bytes} compressed ones, more than "
            f"the {limit_bytes} allowed; save it without compression"
        )
    with archive.open(info) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read_header(stream, max_header_size=MAX_HEADER_BYTES)
        except (ValueError, KeyError, SyntaxError) as error:
            raise DataError(f"{where}: not a readable npy header ({error})") from error
        if dtype.hasobject or dtype.names:
            raise DataError(f"{where}: holds Python objects or records ({dtype}); plain numbers are needed")
        promised_bytes = math.prod(shape) * dtype.itemsize
        if promised_bytes + stream.tell() != info.file_size:
            raise DataError(
                f"{where}: its header promises {promised_bytes} bytes, the file holds {info.file_size - stream.tell()}"
            )
    with archive.open(info) as stream:
        try:
            return np.lib.format.read_array(stream, allow_pickle=False, max_header_size=MAX_HEADER_BYTES)
        except (ValueError, EOFError) as error:
            raise DataError(f"{where}: damaged ({error})") from error
