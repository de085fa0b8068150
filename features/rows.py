"""Rows of data: arrays that are read by rows, arrays made from the rows of others, and the rows of one part.

All are read as NumPy's arrays are: `array[start:stop]` and `array[numbers]` return whole rows. Rows made from others
are made whenever they are read, and never held; all arrays are safe to read from several threads.

Columns are z-scored by moments of the training part. The moments of blocks are merged in their order (Chan, Golub &
LeVeque 1983), in float64, so that their bits are the same in any run.
"""

import ctypes
import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from features.errors import DataError
from features.images import input_shape, rescaled, to_bytes
from features.row_draws import RowKeys, row_keys
from features.targets import LARGEST_WHOLE, UNTOLD

PIECE_BYTES = 8 << 20  # Rows that are read to be hashed, or passed over, are read in pieces of this size.
TAKE_BYTES = 1 << 20  # Scattered rows are made in pieces of this size, of one row at least.
Some = slice | NDArray[np.int64]  # The rows to read: a slice without steps, or numbers (m,).
CLOSE_VALUES = 1e-9  # If values differ by less than this share, the first is subtracted from all, which is exact.


class RowArray(Protocol):
    """An array-like (n, …) that is read by rows: an array, or an object that makes rows when they are asked for.

    One that decodes has `decoding_bytes`, which that takes beside its result.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""

    def __getitem__(self, rows: Some, /) -> np.ndarray:
        """Return some rows, whole."""


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Mean and scale of each column, float64 (d,); the scale of a column that was constant is inf: it becomes 0."""

    mean: np.ndarray
    scale: np.ndarray

    def apply(self, inputs: np.ndarray, dtype: type = np.float32) -> np.ndarray:
        """Return (inputs - mean) / scale of (n, d) or (n, *shape) inputs as `dtype` (n, d), infinite if too large."""
        flat = _flat(inputs)
        if flat.shape[1] != len(self.mean):
            raise ValueError(f"inputs have {flat.shape[1]} columns, the standardisation was fitted on {len(self.mean)}")
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray((flat - self.mean) / self.scale, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one part, or as they were given: array-likes that are read by rows."""

    X: RowArray  # (n, …): inputs, or features of them
    y: Any  # (n,): labels, or targets: int64 indices into the classes, or float64 for regression
    weights: Any = None  # (n,) f8; None where rows count 1 each
    keys: Any = None  # (n,) u8, see `features.row_draws`: equal for equal rows; None: not known
    groups: Any = None  # (n,) u8: keys of the groups of the rows; None: those of the rows
    numbers: Any = None  # (n,) i8: the rows in the data as given; None where these are all
    names: Any = None  # (n,) text: the file of each row, where a row is one
    name: str = "X"  # the name of the inputs in errors
    standardisation: Standardisation | None = None  # standardises the inputs that features are made of

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def keys_of(self, start: int, stop: int) -> tuple[RowKeys, RowKeys]:
        """Return the keys of some rows, and those of their groups, (stop - start,) each."""
        keys = self.keys[start:stop]
        return keys, keys if self.groups is None else self.groups[start:stop]


class Mapped:
    """Rows (n, …) that are made of those of another array: `make(values, numbers)`, numbers (m,) of the rows."""

    def __init__(
        self, values: RowArray, make: Callable[[Any, NDArray[np.int64]], np.ndarray], shape: tuple[int, ...], dtype: Any
    ) -> None:
        self.values, self._make = values, make
        self.shape, self.dtype = (values.shape[0], *shape), np.dtype(dtype)

    def __getitem__(self, rows: Some) -> np.ndarray:
        if isinstance(rows, slice):
            return self._make(self.values[rows], np.arange(*rows.indices(self.shape[0])))
        out, order = np.empty((len(rows), *self.shape[1:]), self.dtype), np.argsort(rows, kind="stable")
        step = max(1, TAKE_BYTES // max(1, row_bytes(self) + row_bytes(self.values)))
        step = max(step, 4 * getattr(self.values, "chunk_rows", 0))  # Chunks between two pieces are read twice.
        for some in (order[start : start + step] for start in range(0, len(rows), step)):
            out[some] = self._make(self.values[rows[some]], rows[some])
        return out


class Chosen:
    """Rows of another array by their numbers (n,) in it, each as often as it is named; none is read twice at once."""

    def __init__(self, values: RowArray, numbers: NDArray[np.int64]) -> None:
        self.values, self.numbers = values, numbers
        self.shape, self.dtype = (len(numbers), *values.shape[1:]), values.dtype

    def __getitem__(self, rows: Some) -> np.ndarray:
        numbers, places = np.unique(self.numbers[rows], return_inverse=True)
        return self.values[numbers][places]


class InOrder:
    """Tuples of arrays with a row each, read front to back: a row before those that were read last begins anew.

    blocks: returns the blocks of all rows, from the first one on, each a tuple of arrays of one length. shape: that of
    the first array. The arrays that were read last are kept until others are read.
    """

    def __init__(
        self, blocks: Callable[[], Iterator[tuple[NDArray[Any], ...]]], shape: tuple[int, ...], decoding_bytes: int = 0
    ) -> None:
        self.shape, self.dtype, self.decoding_bytes = shape, np.dtype(np.float64), decoding_bytes
        self._all, self._lock = blocks, Lock()
        self._blocks: Iterator[tuple[NDArray[Any], ...]] | None = None
        self._block: tuple[NDArray[Any], ...] = ()  # the last block
        self._begin = 0  # its first row
        self._kept: tuple[tuple[int, int], tuple[NDArray[Any], ...]] | None = None

    def array(self, place: int, shape: tuple[int, ...] = (), dtype: Any = np.float64) -> Mapped:
        """Return the array at a place of the tuples; shape: that of one row."""
        return Mapped(self, lambda arrays, numbers: arrays[place], shape, dtype)

    def __getitem__(self, rows: Some) -> Any:
        if isinstance(rows, slice):
            return self._read(*rows.indices(self.shape[0])[:2])
        found, begin, span = [self._read(0, 0)] if not len(rows) else [], 0, piece_rows(self)
        while begin < len(rows):  # They ascend, as `Mapped` takes them.
            low = int(rows[begin])
            end = int(np.searchsorted(rows, low + span))
            arrays = self._read(low, int(rows[end - 1]) + 1)
            found.append(tuple(array[rows[begin:end] - low] for array in arrays))
            begin = end
        return tuple(map(np.concatenate, zip(*found, strict=True)))

    def _read(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        with self._lock:
            if self._kept is not None and self._kept[0] == (start, stop):
                return self._kept[1]
            self._kept, taken = None, []
            if self._blocks is None or start < self._begin:
                self._blocks, self._begin = self._all(), 0
                self._block = next(self._blocks)
            while True:
                first, last = start - self._begin, stop - self._begin
                taken.append(tuple(array[max(first, 0) : last] for array in self._block))
                if last <= len(self._block[0]):
                    self._kept = (start, stop), tuple(map(np.concatenate, zip(*taken, strict=True)))
                    if stop == self.shape[0]:  # The file is read to its end.
                        self._blocks, self._block = None, ()
                        give_back_memory()
                    return self._kept[1]
                self._begin += len(self._block[0])
                self._block = next(self._blocks)


def give_back_memory() -> None:
    """Have C's allocator give back free memory; glibc keeps what lies between arrays that stay."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def some_of(values: Any, rows: Some) -> Any:
    """Return some rows of an array; None for None."""
    return None if values is None else values[rows]


def inputs_of(
    given: RowArray, name: str = "X", numbers: NDArray[np.int64] | None = None, scale: float | None = None
) -> Mapped:
    """Return inputs as they are read: finite, of one shape, and images as bytes where `scale` is white.

    name: their name in errors; numbers: the rows that are taken, None: all. This is the check that inputs are finite.
    Raises DataError for another shape or dtype, and when read, naming row (as given), column and value.
    """
    shape, dtype = input_shape(given.shape, name), input_dtype(given)

    def read(values: np.ndarray, rows: NDArray[np.int64]) -> np.ndarray:
        if numbers is not None:
            rows = numbers[rows]
        check_whole(values, name)
        block = np.asarray(values, dtype)
        check_finite(block, name, rows)
        if scale is not None:
            block = to_bytes(block, scale, rows)
        return block.reshape(len(block), *shape)

    chosen = given if numbers is None else Chosen(given, numbers)
    return Mapped(chosen, read, shape, dtype if scale is None else np.uint8)


def keys_of_inputs(inputs: RowArray) -> Mapped:
    """Return the keys (n,) u8 of inputs, computed when they are read; inputs are read in pieces."""

    def keys(_: Any, numbers: NDArray[np.int64]) -> RowKeys:
        span = piece_rows(inputs)
        pieces = [numbers[begin : begin + span] for begin in range(0, len(numbers), span)]
        are_rows_in_turn = len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers)
        read: list[Some] = [slice(int(one[0]), int(one[-1]) + 1) if are_rows_in_turn else one for one in pieces]
        return np.concatenate([np.empty(0, np.uint64), *(row_keys(inputs[some]) for some in read)])

    return Mapped(np.broadcast_to(np.uint64(0), inputs.shape[:1]), keys, (), np.uint64)


def root_of(array: Any) -> Any:
    """Return the array that an array's rows are read from in the end."""
    while isinstance(array, Mapped | Chosen):
        array = array.values
    return array


def digest_rows(
    array: RowArray,
    keys: RowKeys | None = None,
    scale: float | None = None,
    tick: Callable[[int], None] = lambda n_rows: None,
) -> str:
    """Return the sha256 of dtype, shape and values, in pieces of 8 MiB; fill in row keys (images: of their bytes)."""
    digest, begin = hashlib.sha256(f"{np.dtype(array.dtype).str} {tuple(array.shape)}".encode()), 0
    for piece in pieces_of(array):
        digest.update(piece.tobytes())
        if keys is not None:
            keys[begin : begin + len(piece)] = row_keys(piece if scale is None else rescaled(piece, scale))
        begin += len(piece)
        tick(len(piece))
    return digest.hexdigest()


def row_bytes(array: RowArray) -> int:
    """Return the bytes of one row."""
    return math.prod(array.shape[1:]) * array.dtype.itemsize


def piece_rows(array: RowArray) -> int:
    """Return how many rows `PIECE_BYTES` hold, at least one."""
    return max(1, PIECE_BYTES // max(1, row_bytes(array)))


def pieces_of(array: RowArray) -> Iterator[np.ndarray]:
    """Yield the rows of an array in pieces of `PIECE_BYTES`."""
    n_rows, span = array.shape[0], piece_rows(array)
    yield from (np.ascontiguousarray(array[begin : min(begin + span, n_rows)]) for begin in range(0, n_rows, span))


def input_dtype(inputs: RowArray) -> np.dtype:
    """Return the dtype inputs are read in: image bytes and float32 stay, other real numbers become float64."""
    dtype = np.dtype(inputs.dtype)
    if dtype.kind not in "biuf":
        words = "words" if dtype.kind in "SUT" else f"{dtype} values"
        raise DataError(f"X holds {words}; numbers are needed")
    if (dtype == np.uint8 and len(inputs.shape) > 2) or dtype == np.float32:
        return dtype.newbyteorder("=")
    return np.dtype(np.float64)


def check_lengths(inputs: RowArray, labels: RowArray, inputs_name: str, labels_name: str) -> None:
    """Raise `DataError` unless X is (n, …) real numbers, n > 0, and y is (n,) or (n, 1); neither is read."""
    if 0 in inputs.shape:
        raise DataError(f"{inputs_name} has shape {tuple(inputs.shape)}, which holds nothing")
    input_shape(inputs.shape, inputs_name)
    n_rows, shape = inputs.shape[0], tuple(labels.shape)
    if shape not in ((n_rows,), (n_rows, 1)):
        raise DataError(f"{inputs_name} has {n_rows} rows, {labels_name} has shape {shape}")
    input_dtype(inputs)


def check_whole(values: np.ndarray, array_name: str) -> None:
    """Raise DataError for whole numbers of 64 bits that float64 does not tell apart."""
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        long = np.abs(values.astype(np.float64)) >= LARGEST_WHOLE
        if long.any():
            raise DataError(f"{array_name} holds whole numbers such as {values[long][0]}; {UNTOLD}")


def check_finite(block: np.ndarray, array_name: str, rows: NDArray[np.int64]) -> None:
    """Raise DataError naming row (its number among `rows`), column and value where an input is not finite."""
    if block.dtype.kind != "f" or not len(block):
        return
    flat = block.reshape(len(block), -1)
    if (bad := np.argwhere(~np.isfinite(flat))).size:
        row, column = bad[0]
        raise DataError(f"{array_name}: row {rows[row]}, column {column} is {flat[row, column]}; inputs must be finite")


@dataclass(frozen=True, eq=False)
class RunningMoments:
    """Count (or weight), mean and sum of squared deviations of rows; a value, whose methods return a new one."""

    count: float
    mean: np.ndarray
    squares: np.ndarray
    origin: np.ndarray  # what is subtracted from each column first; the same for all moments that are merged

    @classmethod
    def begin(cls, block: np.ndarray) -> "RunningMoments":
        """Return the moments of no rows, for rows such as those of `block`, (n, d) or (n, *shape)."""
        flat = _flat(block)
        half, none = (
            flat.max(axis=0) / 2 - flat.min(axis=0) / 2,
            np.zeros(flat.shape[1]),
        )  # The whole range may overflow.
        return cls(0, none, none, np.where(half <= CLOSE_VALUES * np.abs(flat[0]), flat[0], 0.0))

    def update(self, block: np.ndarray, weights: np.ndarray | None = None) -> "RunningMoments":
        """Return the moments after the rows of `block`, (n, d) or (n, *shape); nd operations.

        A row of weight 2 counts as two rows. Moments beyond float64 become infinities, which `standardisation` refuses.
        """
        flat = _flat(block)
        if not len(flat) or (weights is not None and not weights.any()):
            return self
        with np.errstate(over="ignore", invalid="ignore"):
            flat = flat - self.origin
            mean = flat.mean(axis=0) if weights is None else weights @ flat / weights.sum()
            squares = (flat - mean) ** 2
            squares = squares.sum(axis=0) if weights is None else weights @ squares
        count = len(flat) if weights is None else float(weights.sum())
        return self.merge(RunningMoments(count, mean, squares, self.origin))

    def merge(self, other: "RunningMoments") -> "RunningMoments":
        if not self.count or not other.count:
            return other if not self.count else self
        count = self.count + other.count
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            mean = self.mean + step * (other.count / count)
            squares = self.squares + other.squares + step**2 * (self.count * other.count / count)
        return RunningMoments(count, mean, squares, self.origin)

    def standardisation(self) -> Standardisation:
        """Return mean and population standard deviation; the scale of a constant column is inf.

        Raises ValueError where there are no rows, DataError naming the first column whose moments leave float64.
        """
        if not self.count:
            raise ValueError("a standardisation needs at least one row, found none")
        mean, deviation = self.origin + self.mean, np.sqrt(self.squares / self.count)
        bad = np.flatnonzero(~(np.isfinite(mean) & np.isfinite(deviation)))
        if bad.size:
            told = f"mean {mean[bad[0]]:g} and standard deviation {deviation[bad[0]]:g}; its values are too large"
            raise DataError(f"inputs, column {bad[0]}: {told} to be standardised in float64: rescale the column")
        return Standardisation(mean, np.where(deviation > 0, deviation, np.inf))


def _flat(block: np.ndarray) -> np.ndarray:
    return np.asarray(block, dtype=np.float64).reshape(len(block), math.prod(block.shape[1:]))
