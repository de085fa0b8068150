"""Predictions as a file: .npz, .zarr or .csv, written block by block, whole under its name or not there.

Memory does not grow with the rows: an .npz is filled in place while its labels wait in a nameless file beside it, a
.zarr gets whole chunks, a .csv its lines.
"""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from storage import disk
from storage.arrays import chunk_rows_for
from storage.commit import move_in
from storage.errors import CannotWriteError
from storage.zarr_metadata import NODE_FILE

SUFFIXES = (".npz", ".zarr", ".csv")
_DATE = (1980, 1, 1, 0, 0, 0)  # equal predictions give equal bytes

Write = Callable[[NDArray[Any], NDArray[np.float64]], None]


@dataclass(frozen=True, eq=False)
class OutputSpec:
    """What a file of predictions holds, known before the first row.

    label_dtype: of the labels, numbers, booleans or strings of fixed length; names: of the columns of the decision
    values; classes: the labels in the order of the outputs, empty for regression.
    """

    n_rows: int
    label_dtype: np.dtype[Any]
    names: tuple[str, ...]
    classes: tuple[Any, ...] = ()


def check_output(path: Path, *, replace: bool) -> None:
    """Raise CannotWriteError where `writing` would refuse `path`, so that nothing is computed in vain.

    With `replace` a file is replaced by a file and a zarr store by a store, never anything else.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: wanted one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise _refusal(path, f"there is no folder {path.parent}; make it, or choose another")
    if not (path.exists() or path.is_symlink()):
        return
    if not replace:
        raise _refusal(path, "exists; choose another name, or --force to replace it")
    if path.suffix == ".zarr" and not (path / NODE_FILE).is_file():
        raise _refusal(path, "exists and is no zarr store; choose another name")
    if path.suffix != ".zarr" and path.is_dir():
        raise _refusal(path, "is a folder; choose another name")


@contextlib.contextmanager
def writing(path: Path, spec: OutputSpec, *, replace: bool = False) -> Iterator[Write]:
    """Yield a function that takes the next labels (rows,) and decision values (rows, T) f8.

    The file becomes `path` in one step when the block ends, after `spec.n_rows` rows; on any error nothing changes.

    .npz: arrays label, decision and, where there are any, classes. .zarr: arrays label and decision, the classes
    among the attributes. .csv: see `csv_writer`.

    Raises
    ------
    CannotWriteError
        As `check_output`, and naming path and cause where the disk refuses.
    ValueError
        If another number of rows was written than `spec` says.
    """
    check_output(path, replace=replace)
    form = {".npz": _npz, ".zarr": _zarr, ".csv": _csv}[path.suffix]
    rows = 0

    with form(path, spec) as write:

        def counted(label: NDArray[Any], decision: NDArray[np.float64]) -> None:
            nonlocal rows
            rows += len(label)
            write(label, decision)

        yield counted
        if rows != spec.n_rows:
            raise ValueError(f"{path}: wanted {spec.n_rows} rows, {rows} were written")


def csv_writer(emit: Callable[[str], Any], names: Sequence[str]) -> Write:
    """Return a function that hands out labels and decision values as csv text, and hand out the header line.

    Columns: row (from 0), label, and the decision values by name; numbers in the fewest digits that read back equal.
    """
    emit(_csv_text([["row", "label", *names]]))
    start = 0

    def write(label: NDArray[Any], decision: NDArray[np.float64]) -> None:
        nonlocal start
        rows = zip(range(start, start + len(label)), label.tolist(), decision.tolist(), strict=True)
        emit(_csv_text([[row, value, *values] for row, value, values in rows]))
        start += len(label)

    return write


def _csv_text(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@contextlib.contextmanager
def _csv(path: Path, spec: OutputSpec) -> Iterator[Write]:
    with disk.replacing(path) as stream:
        yield csv_writer(lambda text: stream.write(text.encode()), spec.names)


@contextlib.contextmanager
def _npz(path: Path, spec: OutputSpec) -> Iterator[Write]:
    shape = (spec.n_rows, len(spec.names))
    with (
        disk.replacing(path, 8 * shape[0] * shape[1]) as stream,
        tempfile.TemporaryFile(dir=path.parent) as labels,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive,
    ):
        with _entry(archive, "decision", shape, np.dtype("<f8")) as entry:

            def write(label: NDArray[Any], decision: NDArray[np.float64]) -> None:
                labels.write(np.ascontiguousarray(label, dtype=spec.label_dtype).tobytes())
                entry.write(np.ascontiguousarray(decision, dtype="<f8").tobytes())

            yield write
        labels.seek(0)
        with _entry(archive, "label", (spec.n_rows,), spec.label_dtype) as entry:
            shutil.copyfileobj(labels, entry)
        if spec.classes:
            classes = np.asarray(spec.classes, dtype=spec.label_dtype)
            with _entry(archive, "classes", classes.shape, classes.dtype) as entry:
                entry.write(classes.tobytes())


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
        yield chunks.write
        chunks.flush(1)
        disk.fsync_tree(aside)
        move_in(aside, path)
    except OSError as error:
        raise disk.cannot_write(path, error) from error
    finally:  # once it is moved in there is nothing left aside
        with contextlib.suppress(OSError):
            disk.low_remove_tree(aside)


class _Chunks:
    """Arrays label and decision of a new zarr group; rows wait until they fill a chunk."""

    def __init__(self, folder: Path, spec: OutputSpec) -> None:
        # Imported here: a command that writes no zarr shall not wait for it (0.4 s).
        import zarr
        from zarr.codecs import Crc32cCodec

        shape = (spec.n_rows, len(spec.names))
        self._chunk_rows = chunk_rows_for(8 * shape[1], spec.n_rows)
        self._start, self._waiting_rows = 0, 0
        self._waiting: list[tuple[NDArray[Any], NDArray[np.float64]]] = []
        group = zarr.create_group(folder, zarr_format=3, attributes={"classes": list(spec.classes)})
        label_type = str if spec.label_dtype.kind == "U" else spec.label_dtype
        self._label, self._decision = (
            group.create_array(
                name,
                shape=(spec.n_rows, *shape[1:axes]),
                chunks=(self._chunk_rows, *shape[1:axes]),
                dtype=dtype,
                filters=None,
                compressors=Crc32cCodec(),
                config={"write_empty_chunks": True},
            )
            for name, axes, dtype in (("label", 1, label_type), ("decision", 2, "float64"))
        )

    def write(self, label: NDArray[Any], decision: NDArray[np.float64]) -> None:
        """Take the next rows."""
        self._waiting.append((label, decision))
        self._waiting_rows += len(label)
        self.flush(self._chunk_rows)

    def flush(self, least: int) -> None:
        """Write what waits, in whole chunks, if there are `least` rows of it; the last chunk may be shorter."""
        if self._waiting_rows < least:
            return
        label, decision = (np.concatenate(pieces) for pieces in zip(*self._waiting, strict=True))
        end = self._start + len(label)
        stop = end if least < self._chunk_rows else end - end % self._chunk_rows
        n = stop - self._start
        self._label[self._start : stop], self._decision[self._start : stop] = label[:n], decision[:n]
        self._waiting, self._start, self._waiting_rows = [(label[n:], decision[n:])], stop, len(label) - n


def _refusal(path: Path, reason: str) -> CannotWriteError:
    return CannotWriteError(f"{path}: {reason}", path=str(path), cause="refused")
