"""A source over array-likes: a seeded choice of rows, read in bounded pieces.

Chosen rows keep the order of the data, so that a block of them is one contiguous range of the array-like and
a chunked store is read front to back.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.errors import DataError, UsageError
from features.sources import Part, SourceSpec
from features.targets import class_labels, detect_task, encode

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
class PartRows:
    """One part: an array-like of inputs, its rows that belong to the part (None: all), their targets."""

    inputs: Any
    array_name: str
    rows: np.ndarray | None
    targets: np.ndarray


@dataclass(frozen=True, eq=False)
class RowSource:
    """A `features.sources.Source` over array-likes; build it with `split_source` or `parts_source`."""

    name: str
    task: str
    classes: tuple
    standardise: bool
    train: PartRows
    test: PartRows
    identity: dict[str, Any]

    @property
    def n_train(self) -> int:
        """Rows of the training part."""
        return len(self.train.targets)

    @property
    def n_test(self) -> int:
        """Rows of the test part."""
        return len(self.test.targets)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(int(size) for size in self.train.inputs.shape[1:])

    def read(self, part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one block of rows; see `features.sources.Source.read`.

        Memory: the block and 8 MiB, however far apart its rows are.
        """
        chosen = self.train if part == "train" else self.test
        n = len(chosen.targets)
        if not 0 <= start <= stop <= n:
            raise IndexError(f"rows {start} to {stop} of the {part} part of {self.name} do not exist; it has {n}")
        dtype = input_dtype(chosen.inputs)
        block = np.empty((stop - start, *self.input_shape), dtype=dtype)
        rows = np.arange(start, stop) if chosen.rows is None else chosen.rows[start:stop]
        for begin, end in _pieces(rows, chosen.inputs):
            low = int(rows[begin])
            values = np.asarray(chosen.inputs[low : int(rows[end - 1]) + 1])
            block[begin:end] = values[rows[begin:end] - low]
        _check_finite(block, chosen.array_name, rows)
        return block, chosen.targets[start:stop].copy()

    def fingerprint(self) -> dict[str, Any]:
        """Return what determines the rows: content digests, sizes, seed; no path, no time."""
        return dict(self.identity)


def split_source(
    spec: SourceSpec, name: str, inputs: Any, labels: np.ndarray, standardise: bool, identity: dict[str, Any]
) -> RowSource:
    """Build a source from data without a split: `spec.test_fraction` of the rows, by seed, are the test part.

    Raises
    ------
    DataError
        Fewer than two rows, lengths that differ, or labels no machine can learn from.
    UsageError
        More rows asked for than there are.
    """
    check_lengths(inputs, labels, "X", "y")
    n = len(labels)
    if n < 2:
        raise DataError(f"{name}: {n} row(s); at least one to train and one to test are needed")
    task = spec.task or detect_task(labels)
    classes = class_labels(labels, task)
    targets = encode(labels, classes)
    n_test = min(max(1, round(spec.test_fraction * n)), n - 1)
    order = np.random.default_rng(np.random.SeedSequence(spec.seed)).permutation(n)
    parts = []
    for option, rows, asked in (
        ("n_train", order[n_test:], spec.n_train),
        ("n_test", order[:n_test], spec.n_test),
    ):
        kept = np.sort(rows[: _checked_size(option, asked, len(rows), name)])
        parts.append(PartRows(inputs, "X", kept, targets[kept]))
    return _source(spec, name, task, classes, standardise, parts, {"split": spec.test_fraction, **identity})


def parts_source(
    spec: SourceSpec,
    name: str,
    inputs: tuple[Any, Any],
    labels: tuple[np.ndarray, np.ndarray],
    standardise: bool,
    identity: dict[str, Any],
) -> RowSource:
    """Build a source from data with a train and a test part of their own.

    Raises
    ------
    DataError
        An empty part, lengths or shapes that differ, a test label the training part lacks.
    UsageError
        More rows asked for than there are.
    """
    names = ("train", "test")
    for array, values, part in zip(inputs, labels, names, strict=True):
        check_lengths(array, values, f"X of {part}", f"y of {part}")
    if tuple(inputs[0].shape[1:]) != tuple(inputs[1].shape[1:]):
        raise DataError(
            f"{name}: train inputs have shape {tuple(inputs[0].shape[1:])}, test inputs {tuple(inputs[1].shape[1:])}"
        )
    dtypes = [input_dtype(array) for array in inputs]
    if (dtypes[0] == np.uint8) != (dtypes[1] == np.uint8):
        raise DataError(f"{name}: train images are {dtypes[0]}, test images {dtypes[1]}; give both on one scale")
    task = spec.task or detect_task(labels[0])
    classes = class_labels(labels[0], task)
    seeds = np.random.SeedSequence(spec.seed).spawn(2)
    parts = []
    for k, (option, asked) in enumerate((("n_train", spec.n_train), ("n_test", spec.n_test))):
        n = len(labels[k])
        size = _checked_size(option, asked, n, name)
        kept = None if size == n else np.sort(np.random.default_rng(seeds[k]).permutation(n)[:size])
        targets = encode(labels[k], classes, f"y of {names[k]}")
        parts.append(PartRows(inputs[k], f"X of {names[k]}", kept, targets if kept is None else targets[kept]))
    return _source(spec, name, task, classes, standardise, parts, identity)


def input_dtype(inputs: Any) -> np.dtype:
    """Return the dtype blocks are read in: image bytes and float32 stay, other numbers become float64.

    Raises
    ------
    DataError
        Values that are not real numbers.
    """
    dtype = np.dtype(inputs.dtype)
    if dtype.kind not in "biuf":
        raise DataError(f"X holds {dtype} values; real numbers are needed")
    if (dtype == np.uint8 and len(inputs.shape) > 2) or dtype == np.float32:
        return dtype.newbyteorder("=")
    return np.dtype(np.float64)


def check_lengths(inputs: Any, labels: np.ndarray, inputs_name: str, labels_name: str) -> None:
    """Raise `DataError` unless X is (n, …) with something in it, y is (n,), and both have the same n."""
    if len(inputs.shape) < 2 or 0 in inputs.shape:
        raise DataError(
            f"{inputs_name} has shape {tuple(inputs.shape)}; rows of inputs are needed, (n, d) or (n, H, W)"
        )
    if labels.ndim != 1 or len(labels) != inputs.shape[0]:
        raise DataError(f"{inputs_name} has {inputs.shape[0]} rows, {labels_name} has shape {labels.shape}")
    input_dtype(inputs)


def digest_rows(array: Any) -> str:
    """Return the sha256 of an array-like's dtype, shape and values, read in pieces of 8 MiB."""
    if not array.shape:
        raise DataError("an array holds a single value; rows are needed")
    digest = hashlib.sha256(f"{np.dtype(array.dtype).str} {tuple(array.shape)}".encode())
    for begin, end in _pieces(np.arange(array.shape[0]), array):
        digest.update(np.ascontiguousarray(array[begin:end]).tobytes())
    return digest.hexdigest()


def _source(
    spec: SourceSpec,
    name: str,
    task: str,
    classes: tuple,
    standardise: bool,
    parts: list[PartRows],
    identity: dict[str, Any],
) -> RowSource:
    train, test = parts
    if classes and len(np.unique(train.targets)) < 2:
        only = classes[int(train.targets[0])]
        raise DataError(f"{name}: the {len(train.targets)} training rows all have label {only!r}; take more rows")
    full_identity = {
        **identity,
        "task": task,
        "classes": list(classes),
        "n_train": len(train.targets),
        "n_test": len(test.targets),
        # Where every row is taken as it comes, the seed decides nothing: all seeds share one feature store.
        "seed": spec.seed if any(part.rows is not None for part in parts) else None,
    }
    chosen = standardise if spec.standardise is None else spec.standardise
    return RowSource(name, task, classes, chosen, train, test, full_identity)


def _checked_size(option: str, asked: int | None, available: int, name: str) -> int:
    if asked is None:
        return available
    if asked > available:
        raise UsageError(f"{option} is {asked}, but {name} has {available} such rows; give at most {available}")
    return asked


def _pieces(rows: np.ndarray, inputs: Any) -> Iterator[tuple[int, int]]:
    """Cut sorted rows into runs (begin, end) that span at most `PIECE_BYTES` (or one row)."""
    row_bytes = int(np.prod(inputs.shape[1:], dtype=np.int64)) * np.dtype(inputs.dtype).itemsize
    span = max(1, PIECE_BYTES // max(1, row_bytes))
    begin = 0
    while begin < len(rows):
        end = int(np.searchsorted(rows, rows[begin] + span, side="left"))
        yield begin, end
        begin = end


def _check_finite(block: np.ndarray, array_name: str, rows: np.ndarray) -> None:
    if block.dtype.kind != "f":
        return
    flat = block.reshape(len(block), -1)
    bad = np.argwhere(~np.isfinite(flat))
    if bad.size:
        row, column = bad[0]
        raise DataError(f"{array_name}: row {rows[row]}, column {column} is {flat[row, column]}; inputs must be finite")
