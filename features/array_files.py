"""Arrays in files, read without pickle: those of .npz and IDX files whole, .npy files by rows, also in a folder."""

import contextlib
import math
from collections.abc import Container, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.lib.npyio import NpzFile

from features.errors import CHANGED, DataError, MissingInputError, UnavailableError
from features.images import read_idx, read_idx_shape
from features.input_files import check_npy_folder, npy_files, open_plain, stamp
from features.rows import TAKE_BYTES, RowArray, Some, digest_rows, row_bytes


class NpyRows:
    """The array (n, …) of an .npy file, read by rows, from several threads; no row is kept.

    Rows are read, not mapped: where a mapped file is cut short, the system kills the process. Raises DataError where
    the file is damaged, in Fortran order or has objects, and when it is read, where it is not as it was when opened.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise MissingInputError(f"{path}: is a link to what is not there; restore that, or remove the link")
        self._path, self._stamp = path, stamp(path)
        with _damage_told(path, "an .npy file"), open_plain(path) as stream:
            self.shape, is_fortran, self.dtype = _header(stream)
            self._begin = stream.tell()
            _check_plain(self.shape, self.dtype, path.stem)
        if is_fortran and len(self.shape) > 1:
            remedy = f"numpy.save({path.name!r}, numpy.ascontiguousarray(array))"
            raise DataError(f"{path}: is in Fortran order, column after column; save it row by row: {remedy}")
        wanted, n_bytes = self._begin + math.prod(self.shape) * self.dtype.itemsize, self._stamp[1]
        if n_bytes < wanted:
            raise DataError(f"{path}: has {n_bytes} bytes, and its header promises {wanted}; copy or write it again")

    def __getitem__(self, rows: Some) -> np.ndarray:
        with contextlib.suppress(FileNotFoundError), open_plain(self._path) as stream:
            if isinstance(rows, slice):
                out = self._read(stream, *rows.indices(self.shape[0])[:2])
            else:
                out = self._gathered(stream, rows)
            if stamp(self._path) == self._stamp:
                return out
        raise DataError(f"{self._path}: {CHANGED}")

    def _gathered(self, stream: BufferedReader, rows: np.ndarray) -> np.ndarray:
        """Return rows by their numbers; near ones are read together, with those between them, 1 MiB at once."""
        out, order = np.empty((len(rows), *self.shape[1:]), self.dtype), np.argsort(rows, kind="stable")
        begin, span = 0, max(1, TAKE_BYTES // row_bytes(self))
        while begin < len(rows):
            low = int(rows[order[begin]])
            end = int(np.searchsorted(rows, low + span, sorter=order))
            some = order[begin:end]
            out[some] = self._read(stream, low, int(rows[some[-1]]) + 1)[rows[some] - low]
            begin = end
        return out

    def _read(self, stream: BufferedReader, start: int, stop: int) -> np.ndarray:
        out = np.empty((max(stop - start, 0), *self.shape[1:]), self.dtype)
        stream.seek(self._begin + start * row_bytes(self))
        if stream.readinto(out.reshape(-1).view(np.uint8).data) < out.nbytes:
            raise DataError(f"{self._path}: {CHANGED}")
        return out


class IdxRows:
    """The array (n, …) u1 of an IDX file, read whole at the first use; DataError where it is not that of a `sha256`."""

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, n_dimensions: int) -> None:
        self.shape, self.sha256 = read_idx_shape(path, n_dimensions), ""
        self.nbytes = math.prod(self.shape)
        self._path, self._lock = path, Lock()
        self._values: np.ndarray | None = None

    def __getitem__(self, rows: Some) -> np.ndarray:
        with self._lock:
            if self._values is None:
                read = read_idx(self._path, len(self.shape))
                if self.sha256 and digest_rows(read) != self.sha256:
                    raise DataError(f"{self._path}: {CHANGED}")
                self._values = read
        return self._values[rows]


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays of an .npz or a folder of .npy files; that of a single .npy file is X."""
    if path.is_dir():
        check_npy_folder(path)
        return [file.stem for file in npy_files(path)]
    if path.suffix == ".npy":
        return ["X"]
    with _npz_archive(path) as archive:
        return archive.files


def read_arrays(path: Path, names: Iterable[str], outlined: Container[str] = ()) -> dict[str, RowArray]:
    """Return some arrays of a path by their names; those of an .npz that are `outlined` are zeros that take no memory.

    Raises DataError naming the file where it is damaged, or an array that holds no numbers or texts, or nothing.
    """
    if path.is_dir() or path.suffix == ".npy":
        return {name: NpyRows(path / f"{name}.npy" if path.is_dir() else path) for name in names}
    with _npz_archive(path) as archive:
        outlines = {name: _outline(archive, name) for name in names}  # Outlines refuse what is not read.
        return {name: zeros if name in outlined else archive[name] for name, zeros in outlines.items()}


@contextlib.contextmanager
def _npz_archive(path: Path) -> Iterator[NpzFile]:
    with _damage_told(path, "an .npz file"), open_plain(path) as stream:
        archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, NpzFile):
            raise DataError(f"{path}: holds one array without a name; np.savez(path, X=X, y=y) names them")
        with archive:
            yield archive


@contextlib.contextmanager
def _damage_told(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except (DataError, UnavailableError, FileNotFoundError):
        raise
    except Exception as error:  # numpy evaluates headers as Python literals, which raise whatever they like
        raise DataError(f"{path}: cannot be read as {kind}: {' '.join(str(error).split())[:160]}") from error


def _outline(archive: NpzFile, name: str) -> np.ndarray:
    """Return zeros that take no memory, in shape and dtype of an array."""
    assert archive.zip is not None
    with archive.zip.open(f"{name}.npy") as stream:
        shape, _, dtype = _header(stream)
    _check_plain(shape, dtype, name)
    return np.broadcast_to(np.zeros((), dtype), shape)


def _header(stream: IO[bytes]) -> tuple[Any, bool, np.dtype]:
    """Return shape, whether in Fortran order, and dtype, as an .npy begins."""
    is_first = np.lib.format.read_magic(stream) == (1, 0)  # The others differ in what names of fields may be.
    read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
    return read(stream)


def _check_plain(shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects; save numbers, or words by {name}.astype(str)")
    if dtype.kind == "V":
        raise ValueError(f"{name} holds {dtype}; numbers or texts are needed")
    if not shape or min(shape) < 1 or not dtype.itemsize:
        raise ValueError(f"{name} holds no rows: its shape is {shape}, its dtype {dtype}")
