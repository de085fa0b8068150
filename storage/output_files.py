"""Predictions as a file: .npz, .zarr or .csv, written block by block, whole under its name or not there.

Memory does not grow with the rows: an .npz is filled in place while its labels wait in a nameless file beside it, a
.zarr gets whole chunks, a .csv its lines.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import os
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from storage import disk_writes as disk
from storage.atomic_writes import move_in, remove_aside
from storage.disk_writes import FolderForm, check_output, locked, refusal
from storage.records import read_json
from storage.zarr_arrays import chunk_rows_for
from storage.zarr_metadata import NODE_FILE

_FILES = (".npz", ".csv")
SUFFIXES = (*_FILES, ".zarr")
_ZARR = FolderForm(
    "zarr store of predictions",
    (NODE_FILE, f"label/{NODE_FILE}", f"decision/{NODE_FILE}"),
    lambda folder: read_json(folder / NODE_FILE)["attributes"].keys() == {"classes"},
    rf"probability(/{NODE_FILE})?|(label|decision|probability)/c(/\d+)*",
)
_DATE = (1980, 1, 1, 0, 0, 0)  # equal predictions give equal bytes

_SETTLED_SECONDS = 1.0  # a writer that has just begun has not locked its file yet


class Write(Protocol):
    """Takes the next labels (rows,), their decision values (rows, T) and, where wanted, probabilities (rows, K)."""

    def __call__(self, label: NDArray[Any], /, *values: NDArray[np.float64]) -> None:
        """Write them."""


@dataclass(frozen=True, eq=False)
class OutputSpec:
    """What a file of predictions holds, known before the first row.

    label_dtype: of the labels, numbers, booleans or strings of fixed length; names: of the columns of the decision
    values; classes: the labels in the order of the outputs, empty for regression; probability_names: of the columns of
    probabilities, empty where none are wanted.
    """

    n_rows: int
    label_dtype: np.dtype[Any]
    names: tuple[str, ...]
    classes: tuple[Any, ...] = ()
    probability_names: tuple[str, ...] = ()


def check_predictions(path: Path, *, replace: bool) -> None:
    """Raise CannotWriteError where `writing` would refuse `path`, so that nothing is computed in vain."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: wanted one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise refusal(path, f"there is no folder {path.parent}; make it, or choose another")
    check_output(path, _ZARR if path.suffix == ".zarr" else None, replace=replace)


def sweep_output(path: Path) -> None:
    """Remove what killed writers of `path` left beside it; a folder that one of them had moved aside comes back.

    A writer locks its file until it ends, however it ends. What cannot be locked or removed stays: where a file system
    has no locks, or none for folders, that is everything.
    """
    try:
        entries = list(path.parent.iterdir())
    except OSError:
        return
    for entry in entries:
        aside = disk.aside_of(entry.name)
        if (
            aside is not None
            and aside.name in (path.name, path.name[:200])
            and _is_left(entry, path.suffix not in _FILES)
        ):
            with contextlib.suppress(OSError):
                remove_aside(entry)


def _is_left(aside: Path, is_folder: bool) -> bool:
    try:
        descriptor = os.open(aside, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(status.st_mode):
            return False
        if time.time() - status.st_ctime < _SETTLED_SECONDS:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _replacing(path: Path, wanted_bytes: int | None = None) -> Iterator[Any]:
    """Yield a stream as `disk.replacing`, locked until it has its name."""
    with contextlib.ExitStack() as held, disk.replacing(path, wanted_bytes) as stream:
        held.enter_context(locked(os.dup(stream.descriptor)))
        yield stream


@contextlib.contextmanager
def writing(path: Path, spec: OutputSpec, *, replace: bool = False) -> Iterator[Write]:
    """Yield a function that takes the next labels (rows,), decision values (rows, T) f8 and probabilities (rows, K).

    The file becomes `path` in one step when the block ends, after `spec.n_rows` rows; on any error nothing changes.

    .npz: arrays label, decision and, where there are any, probability and classes. .zarr: likewise, the classes among
    the attributes. .csv: see `csv_writer`.

    Raises
    ------
    CannotWriteError
        As `check_predictions`, and naming path and cause where the disk refuses.
    ValueError
        If another number of rows was written than `spec` says.
    """
    check_predictions(path, replace=replace)
    form = {".npz": _npz, ".zarr": _zarr, ".csv": _csv}[path.suffix]
    rows = 0

    with form(path, spec) as write:

        def counted(label: NDArray[Any], /, *values: NDArray[np.float64]) -> None:
            nonlocal rows
            rows += len(label)
            write(label, *values)

        yield counted
        if rows != spec.n_rows:
            raise ValueError(f"{path}: wanted {spec.n_rows} rows, {rows} were written")


def csv_writer(emit: Callable[[str], object], names: Sequence[str], *, regression: bool = False) -> Write:
    """Return a function that hands out predictions as csv text, and hand out the header line.

    Columns: row (from 0), label, and decision values and probabilities by name; numbers in the fewest digits that read
    back equal. The label of a regression is its decision value to 9 digits, those of a float32 as kernel values are.
    """
    emit(_csv_text([["row", "label", *names]]))
    start = 0

    def write(label: NDArray[Any], /, *values: NDArray[np.float64]) -> None:
        nonlocal start
        labels = [float(f"{value:.9g}") for value in label.tolist()] if regression else label.tolist()
        rows = zip(range(start, start + len(label)), labels, np.hstack(values).tolist(), strict=True)
        emit(_csv_text([[row, value, *others] for row, value, others in rows]))
        start += len(label)

    return write


def _csv_text(rows: list[list[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@contextlib.contextmanager
def _csv(path: Path, spec: OutputSpec) -> Iterator[Write]:
    with _replacing(path) as stream:
        names = (*spec.names, *spec.probability_names)
        regression = spec.label_dtype.kind == "f" and not spec.classes
        yield csv_writer(lambda text: stream.write(text.encode()), names, regression=regression)


@contextlib.contextmanager
def _npz(path: Path, spec: OutputSpec) -> Iterator[Write]:
    shape, wide = (spec.n_rows, len(spec.names)), (spec.n_rows, len(spec.probability_names))
    with (
        _replacing(path, 8 * shape[0] * (shape[1] + wide[1])) as stream,
        tempfile.TemporaryFile(dir=path.parent) as labels,
        tempfile.TemporaryFile(dir=path.parent) as probabilities,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive,
    ):
        with _entry(archive, "decision", shape, np.dtype("<f8")) as entry:

            def write(label: NDArray[Any], /, *values: NDArray[np.float64]) -> None:
                labels.write(np.ascontiguousarray(label, dtype=spec.label_dtype).tobytes())
                for stream, block in zip((entry, probabilities), values, strict=False):
                    stream.write(np.ascontiguousarray(block, dtype="<f8").tobytes())

            yield write
        _add_entry(archive, "label", (spec.n_rows,), spec.label_dtype, labels)
        if spec.probability_names:
            _add_entry(archive, "probability", wide, np.dtype("<f8"), probabilities)
        if spec.classes:
            classes = np.asarray(spec.classes, dtype=spec.label_dtype)
            with _entry(archive, "classes", classes.shape, classes.dtype) as entry:
                entry.write(classes.tobytes())


def _add_entry(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], content: IO[bytes]
) -> None:
    content.seek(0)
    with _entry(archive, name, shape, dtype) as entry:
        shutil.copyfileobj(content, entry)


def _entry(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> IO[bytes]:
    """Return an entry of an .npz whose header is written; its size must be known, so that it may exceed 4 GiB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    info = zipfile.ZipInfo(f"{name}.npy", _DATE)
    info.create_system = 3
    info.external_attr = 0o644 << 16
    info.file_size = len(header.getvalue()) + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    entry = archive.open(info, "w")
    entry.write(header.getvalue())
    return entry


@contextlib.contextmanager
def _zarr(path: Path, spec: OutputSpec) -> Iterator[Write]:
    aside = disk.temporary_path(path)
    try:
        chunks = _Chunks(aside, spec)
        with locked(os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)):
            yield chunks.write
            chunks.flush(1)
            disk.fsync_tree(aside)
            move_in(aside, path, _ZARR)
    except OSError as error:
        raise disk.cannot_write(path, error) from error
    finally:  # once it is moved in there is nothing left aside
        with contextlib.suppress(OSError):
            disk.low_remove_tree(aside)


class _Chunks:
    """The arrays of a new zarr group; rows wait until they fill a chunk."""

    def __init__(self, folder: Path, spec: OutputSpec) -> None:
        # Imported here: a command that writes no zarr shall not wait for it (0.4 s).
        import zarr
        from zarr.codecs import Crc32cCodec

        widths = {"decision": len(spec.names), "probability": len(spec.probability_names)}
        self._chunk_rows = chunk_rows_for(8 * sum(widths.values()), spec.n_rows)
        self._start, self._waiting_rows = 0, 0
        self._waiting: list[tuple[NDArray[Any], ...]] = []
        group = zarr.create_group(folder, zarr_format=3, attributes={"classes": list(spec.classes)})
        label_type = str if spec.label_dtype.kind == "U" else spec.label_dtype
        columns = [("label", (), label_type)] + [(name, (k,), "float64") for name, k in widths.items() if k]
        self._arrays = [
            group.create_array(
                name,
                shape=(spec.n_rows, *width),
                chunks=(self._chunk_rows, *width),
                dtype=dtype,
                filters=None,
                compressors=Crc32cCodec(),
                config={"write_empty_chunks": True},
            )
            for name, width, dtype in columns
        ]

    def write(self, label: NDArray[Any], /, *values: NDArray[np.float64]) -> None:
        """Take the next rows."""
        self._waiting.append((label, *values))
        self._waiting_rows += len(label)
        self.flush(self._chunk_rows)

    def flush(self, least: int) -> None:
        """Write what waits, in whole chunks, if there are `least` rows of it; the last chunk may be shorter."""
        if self._waiting_rows < least:
            return
        pieces = [np.concatenate(of_array) for of_array in zip(*self._waiting, strict=True)]
        end = self._start + len(pieces[0])
        stop = end if least < self._chunk_rows else end - end % self._chunk_rows
        n = stop - self._start
        for array, values in zip(self._arrays, pieces, strict=True):
            array[self._start : stop] = values[:n]
        self._waiting, self._start = [tuple(values[n:] for values in pieces)], stop
        self._waiting_rows = end - stop
