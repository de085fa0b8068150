"""Sources from npz files and from opened array-likes, all read with bounds and without pickle."""

import contextlib
import math
import struct
import zipfile
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from features.errors import DataError
from features.input_files import ALWAYS_ALLOWED_BYTES, MAX_EXPANSION, open_plain
from features.row_parts import RowFacts
from features.row_source import RowSource, digest_rows, input_dtype, parts_source, split_source
from features.source import RowArray, SourceSpec
from features.targets import check_finite_targets

MAX_HEADER_BYTES = 1 << 16
MAX_LENGTH = 1 << 62
MAX_CODE_POINT, SURROGATES = 0x10FFFF, 0xD800
SPLIT_KEYS = ("train/X", "train/y", "test/X", "test/y")
PART_KEYS = ("X_train", "y_train", "X_test", "y_test")


def open_arrays(
    spec: SourceSpec, arrays: Mapping[str, RowArray], digests: Mapping[str, str] | None = None
) -> RowSource:
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
    facts = [_facts(arrays, of_part) for of_part in _fact_keys(spec, arrays, keys)]
    inputs_of = [_checked_inputs(arrays[key], key) for key in keys if key.endswith("X")]
    labels_of = [label_array(np.asarray(arrays[key][:]), key) for key in keys if key.endswith("y")]
    table = _is_table(inputs_of[0])
    if len(keys) == 2:
        return split_source(spec, name, inputs_of[0], labels_of[0], table, identity, facts=facts[0])
    parts = (inputs_of[0], inputs_of[1]), (labels_of[0], labels_of[1])
    return parts_source(spec, name, *parts, table, identity, facts=(facts[0], facts[1]))


def digest_arrays(spec: SourceSpec, arrays: Mapping[str, RowArray]) -> dict[str, str]:
    """Return the sha256 of every array that `open_arrays` uses, by key; one pass over all of X.

    Raises
    ------
    DataError
        As `open_arrays`.
    """
    digests = {}
    keys = _array_keys(spec.dataset, arrays)
    _check_shapes(arrays, keys)
    for key in keys:
        if key.endswith("X"):
            digests[key] = digest_rows(_checked_inputs(arrays[key], key))
        else:
            digests[key] = digest_rows(label_array(np.asarray(arrays[key][:]), key))
    digests |= {key: digest_rows(arrays[key]) for key in chain(*_fact_keys(spec, arrays, keys)) if key is not None}
    return digests


def _fact_keys(spec: SourceSpec, known: Container[str], keys: tuple[str, ...]) -> list[tuple[str | None, str | None]]:
    """Return the arrays of weights and of groups that go with each array of inputs in `keys`, None for those not there.

    They are named like the inputs, `spec.weights` or `spec.groups` in the place of X. The test part may lack them.

    Raises
    ------
    DataError
        The rows to train on have none.
    """
    found = []
    for option, asked in (("weights", spec.weights), ("groups", spec.groups)):
        names = [key if asked is None else asked if key == "X" else asked.join(key.split("X")) for key in keys[::2]]
        if asked is not None and names[0] not in known:
            raise DataError(f"{spec.dataset}: has no array {names[0]} for data.{option} = {asked}; name one it has")
        found.append([None if asked is None or name not in known else name for name in names])
    return list(zip(*found, strict=True))


def _facts(arrays: Mapping[str, RowArray], keys: tuple[str | None, str | None]) -> RowFacts:
    """Return what arrays hold beside inputs and targets."""
    return RowFacts(*(None if key is None else np.asarray(arrays[key][:]) for key in keys))


def _array_keys(dataset: str, arrays: Mapping[str, RowArray]) -> tuple[str, ...]:
    if "X" in arrays and "y" in arrays:
        return ("X", "y")
    missing = [key for key in SPLIT_KEYS if key not in arrays]
    if missing:
        raise DataError(f"{dataset}: needs arrays X and y, or {', '.join(SPLIT_KEYS)}; found {_some_of(arrays)}")
    return SPLIT_KEYS


def open_npz(spec: SourceSpec, path: Path, *, outline: bool = False) -> RowSource:
    """Open an npz file with ``X, y`` or ``X_train, y_train, X_test, y_test``; `spec.target` renames ``y``.

    Read whole: memory is that of the arrays, which is compared with the file before anything is allocated. An
    `outline` has the labels, and zeros that take no memory in place of the inputs.

    Raises
    ------
    DataError
        No zip file, a missing key, Python objects, or a member that promises more than the file can hold.
    """
    target = spec.target or "y"
    with npz_archive(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        keys = ("X", target) if "X" in members and target in members else PART_KEYS
        missing = [key for key in keys if key not in members]
        if missing:
            raise DataError(f"{path}: needs X and {target}, or {', '.join(PART_KEYS)}; found {_some_of(members)}")
        fact_keys = _fact_keys(spec, members, keys)
        loaded = {
            key: (_zeros if outline and key.startswith("X") else read_member)(archive, members[key], path)
            for key in (*keys, *filter(None, chain(*fact_keys)))
        }
    facts = [_facts(loaded, of_part) for of_part in fact_keys]
    _check_shapes(loaded, keys)
    digests = {key: "" if outline else digest_rows(values) for key, values in loaded.items()}
    identity: dict[str, Any] = {"source": "npz", "sha256": digests}
    if len(keys) == 2 and target != "y" and spec.weights is not None:  # either array may be the other
        identity["target"] = target
    if len(keys) == 2:
        inputs, labels = loaded["X"], label_array(loaded[target], target)
        return split_source(spec, path.stem, inputs, labels, _is_table(inputs), identity, facts=facts[0])
    inputs_of = (loaded["X_train"], loaded["X_test"])
    labels_of = (label_array(loaded["y_train"], "y_train"), label_array(loaded["y_test"], "y_test"))
    of_parts = (facts[0], facts[1])
    return parts_source(spec, path.stem, inputs_of, labels_of, _is_table(inputs_of[0]), identity, facts=of_parts)


def _some_of(names: Iterable[str]) -> str:
    """Return names for a message: the first ones, since a file may have thousands."""
    found = [name[:40] for name in sorted(names)]
    return ", ".join(found[:12] + ["..."] * (len(found) > 12)) or "nothing"


def label_array(labels: np.ndarray, name: str) -> np.ndarray:
    """Return labels (n,) in a dtype that `features.targets` knows; (n, 1) is flattened."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind in "OTS":
        try:
            labels = labels.astype(str)
        except UnicodeDecodeError as error:
            raise DataError(f"{name} holds bytes that are no ASCII text ({error.object[:20]!r}); store text") from None
    if labels.dtype.kind not in "biufU":
        raise DataError(f"{name} holds {labels.dtype} values; numbers or strings are needed")
    if labels.dtype.kind == "U":
        _check_text(labels, name)
    if labels.dtype.kind == "f":
        labels = labels.astype(np.float64) if labels.dtype.itemsize > 8 else labels  # nothing else can store them
        check_finite_targets(labels, name)
    return labels


def _check_text(labels: np.ndarray, name: str) -> None:
    """Raise DataError unless all characters can be written: an array may hold any 32 bits for one."""
    if not labels.size or not labels.dtype.itemsize:
        return
    flat = np.ascontiguousarray(labels.reshape(-1), labels.dtype.newbyteorder("="))
    codes = flat.view(np.uint32).reshape(len(flat), -1)
    bad = np.flatnonzero(((codes > MAX_CODE_POINT) | (codes >> 11 == SURROGATES >> 11)).any(axis=1))
    if bad.size:
        raise DataError(f"{name}: row {bad[0]} holds a character that no text has (a lone surrogate?); mend it")


def _is_table(inputs: RowArray) -> bool:
    return len(inputs.shape) == 2


def _checked_inputs(inputs: RowArray, name: str) -> RowArray:
    if len(inputs.shape) < 2 or 0 in inputs.shape:
        raise DataError(f"{name} has shape {tuple(inputs.shape)}; inputs are needed, (n, d) or (n, H, W)")
    input_dtype(inputs)
    return inputs


def _zeros(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """Return zeros of the shape and dtype of a member, which take no memory."""
    shape, dtype = _member_header(archive, info, path)
    return np.broadcast_to(np.zeros((), dtype), shape)


def check_shapes(inputs: RowArray, labels: RowArray, inputs_name: str, labels_name: str) -> None:
    """Raise DataError unless X is (n, …) with something in it and y is (n,) or (n, 1); neither is read."""
    n_rows, shape = _checked_inputs(inputs, inputs_name).shape[0], tuple(labels.shape)
    if shape not in ((n_rows,), (n_rows, 1)):
        raise DataError(f"{inputs_name} has {n_rows} rows, {labels_name} has shape {shape}")


def _check_shapes(arrays: Mapping[str, RowArray], keys: tuple[str, ...]) -> None:
    """Do so for each part, before a byte is hashed."""
    for inputs, labels in zip(keys[::2], keys[1::2], strict=True):
        check_shapes(arrays[inputs], arrays[labels], inputs, labels)


@contextlib.contextmanager
def npz_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an npz file, whose members `read_member` reads.

    Raises
    ------
    DataError
        It is no plain file, no zip file, or damaged, also where reading a member inside finds it so.
    """
    try:
        with open_plain(path) as stream, zipfile.ZipFile(stream) as archive:
            yield archive
    except (DataError, FileNotFoundError):
        raise
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        NotImplementedError,
        EOFError,
        RuntimeError,
        ValueError,
        OverflowError,
        struct.error,
        zlib.error,
    ) as error:
        raise DataError(f"{path}: not a readable npz file ({error})") from error


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """Read one npy member after comparing its header with the zip directory and the compressed size."""
    _member_header(archive, info, path)
    with archive.open(info) as stream:
        try:
            return np.lib.format.read_array(stream, allow_pickle=False, max_header_size=MAX_HEADER_BYTES)
        except (ValueError, EOFError, OverflowError) as error:
            raise DataError(f"{path}, {info.filename}: damaged ({error})") from error


def _member_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype of one npy member, checked as `read_member` says."""
    where = f"{path}, {info.filename}"
    if info.flag_bits & 1:
        raise DataError(f"{where}: is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # zipfile unfolds others whole, whatever the directory says of their size.
        raise DataError(f"{where}: is compressed in a way numpy never does; save it with np.savez")
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
        except Exception as error:  # numpy evaluates it as a Python literal, which raises whatever it likes
            raise DataError(f"{where}: not a readable npy header ({str(error)[:120]})") from error
        if dtype.kind in "OV":
            raise DataError(f"{where}: holds Python objects or records ({dtype}); plain numbers are needed")
        if not dtype.itemsize or not all(0 < length < MAX_LENGTH for length in shape):
            raise DataError(f"{where}: holds nothing: shape {str(shape)[:60]}, dtype {dtype}")
        promised_bytes = math.prod(shape) * dtype.itemsize
        if promised_bytes + stream.tell() != info.file_size:
            raise DataError(
                f"{where}: its header promises {promised_bytes} bytes, the file holds {info.file_size - stream.tell()}"
            )
    return shape, dtype
