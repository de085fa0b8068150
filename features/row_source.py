"""A source over array-likes: a seeded choice of rows, read in bounded pieces.

Chosen rows keep the order of the data, so that a block of them is one contiguous range of the array-like and
a chunked store is read front to back.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from features.encoding import shown
from features.errors import DataError
from features.row_parts import NO_FACTS, RowFacts, counted_rows, keys_of_groups, part_rows, split_rows
from features.source import PARTS, ChunkedArray, Columns, Part, RowArray, SourceMemory, SourceSpec
from features.targets import MOST_CLASSES, MOST_TABLE_CLASSES, class_labels, detect_task, encode

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
class PartRows:
    """One part: an array-like of inputs, its rows that belong to the part (None: all), their targets and weights.

    groups: keys (n,) u8 of the groups of the rows; of the training part alone, None without groups.
    """

    inputs: RowArray
    array_name: str
    rows: np.ndarray | None
    targets: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class RowSource:
    """A `features.source.Source` over array-likes; build it with `split_source` or `parts_source`."""

    name: str
    task: str
    classes: tuple
    standardise: bool
    train: PartRows
    test: PartRows
    identity: dict[str, Any]
    columns: Columns | None = None
    notes: tuple[str, ...] = ()
    added: tuple[int, ...] = ()

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

    @property
    def memory(self) -> SourceMemory:
        """What the arrays hold; of array-likes in chunks (`storage`) what their readers keep of them."""
        inputs = list({id(part.inputs): part.inputs for part in (self.train, self.test)}.values())
        parts = [(part.targets, part.weights, part.groups) for part in (self.train, self.test)]
        held = sum(getattr(array, "nbytes", 0) for array in chain(inputs, *parts))
        chunked = [array for array in inputs if isinstance(array, ChunkedArray)]
        kept = sum(array.kept_bytes for array in chunked)
        decoded = sum(int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize for array in chunked)
        return SourceMemory(held, kept, decoded, max((array.decoding_bytes for array in chunked), default=0))

    def read(self, part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one block of rows; see `features.source.Source.read`.

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
        check_finite(block, chosen.array_name, rows)
        return block, chosen.targets[start:stop].copy()

    def weights(self, part: Part) -> np.ndarray | None:
        """Return the weights of the rows of a part; None where each counts 1."""
        return (self.train if part == "train" else self.test).weights

    @property
    def groups(self) -> np.ndarray | None:
        """Keys of the groups of the training rows."""
        return self.train.groups

    def fingerprint(self) -> dict[str, Any]:
        """Return what determines the rows: content digests, sizes, seed; no path, no time."""
        return dict(self.identity)


def split_source(
    spec: SourceSpec,
    name: str,
    inputs: RowArray,
    labels: np.ndarray,
    standardise: bool,
    identity: dict[str, Any],
    columns: Columns | None = None,
    facts: RowFacts = NO_FACTS,
) -> RowSource:
    """Build a source from data without a split: `spec.test_fraction` of the rows, by seed, are the test part.

    Rows of weight 0 are as if they were not there. Rows of one group are in one part.

    Raises
    ------
    DataError
        Fewer than two rows, lengths that differ, or labels no machine can learn from.
    UsageError
        More rows asked for than there are.
    """
    check_lengths(inputs, labels, "X", "y")
    if spec.joins is not None:
        return joining_source(spec, name, inputs, labels, standardise, identity, facts.groups)
    weights, counted = counted_rows(spec, facts.weights, len(labels), "the data")
    labels, groups = labels[counted], keys_of_groups(spec, facts.groups, len(labels), counted)
    task = spec.task or detect_task(labels, _most_classes(spec, inputs))
    classes = class_labels(labels, task)
    targets = encode(labels, classes)
    parts = []
    for kept in split_rows(spec, len(counted), name, groups):
        rows = counted[kept]
        of_rows = None if weights is None else weights[rows], None if groups is None else groups[kept]
        parts.append(PartRows(inputs, "X", rows, targets[kept], *of_rows))
    notes = _column_notes(columns, inputs) + _task_notes(spec, task, inputs, labels)
    notes += _weight_notes(spec, inputs.shape[0] - len(counted)) + _group_notes(spec, *(part.groups for part in parts))
    identity = {"split": spec.test_fraction, **identity}
    return replace(_source(spec, name, task, classes, standardise, parts, identity), columns=columns, notes=notes)


def parts_source(
    spec: SourceSpec,
    name: str,
    inputs: tuple[RowArray, RowArray],
    labels: tuple[np.ndarray, np.ndarray],
    standardise: bool,
    identity: dict[str, Any],
    columns: Columns | None = None,
    facts: tuple[RowFacts, RowFacts] = (NO_FACTS, NO_FACTS),
) -> RowSource:
    """Build a source from data with a train and a test part of their own.

    Rows of weight 0 are as if they were not there.

    Raises
    ------
    DataError
        An empty part, lengths or shapes that differ, a test label the training part lacks.
    UsageError
        More rows asked for than there are.
    """
    if spec.joins is not None:
        check_lengths(inputs[0], labels[0], "X of train", "y of train")
        return joining_source(spec, name, inputs[0], labels[0], standardise, identity, facts[0].groups)
    for array, values, part in zip(inputs, labels, PARTS, strict=True):
        check_lengths(array, values, f"X of {part}", f"y of {part}")
    if tuple(inputs[0].shape[1:]) != tuple(inputs[1].shape[1:]):
        raise DataError(
            f"{name}: train inputs have shape {tuple(inputs[0].shape[1:])}, test inputs {tuple(inputs[1].shape[1:])}"
        )
    dtypes = [input_dtype(array) for array in inputs]
    if (dtypes[0] == np.uint8) != (dtypes[1] == np.uint8):
        raise DataError(f"{name}: train images are {dtypes[0]}, test images {dtypes[1]}; give both on one scale")
    counts = [
        counted_rows(spec, of_part.weights, len(y), part) for of_part, y, part in zip(facts, labels, PARTS, strict=True)
    ]
    train_labels = labels[0][counts[0][1]]
    task = spec.task or detect_task(train_labels, _most_classes(spec, inputs[0]))
    classes = class_labels(train_labels, task)
    parts = []
    for array, y, part, (weights, counted), (_, groups) in zip(inputs, labels, PARTS, counts, facts, strict=True):
        kept = part_rows(spec, part, len(counted), name)
        counted = counted if kept is None else counted[kept]
        rows = None if len(counted) == len(y) else counted
        targets = encode(y[counted], classes, f"y of {part}")
        of_rows = (
            None if weights is None else weights[counted],
            keys_of_groups(spec, groups, len(y), counted, f" of {part}"),
        )
        parts.append(PartRows(array, f"X of {part}", rows, targets, *of_rows))
    notes = _column_notes(columns, inputs[0]) + _task_notes(spec, task, inputs[0], train_labels)
    notes += _weight_notes(spec, sum(map(len, labels)) - sum(len(counted) for _, counted in counts))
    notes += _group_notes(spec, *(part.groups for part in parts))
    return replace(_source(spec, name, task, classes, standardise, parts, identity), columns=columns, notes=notes)


def _group_notes(spec: SourceSpec, train: np.ndarray | None, test: np.ndarray | None) -> tuple[str, ...]:
    if train is None:
        return ()
    n_both = 0 if test is None else len(np.intersect1d(train, test))
    both = f"; {n_both} of them have rows in the test part as well" if n_both else ""
    return (f"groups of the rows: {spec.groups}, {len(np.unique(train))} in the training part{both}",)


def _weight_notes(spec: SourceSpec, n_left_out: int) -> tuple[str, ...]:
    if spec.weights is None:
        return ()
    left_out = f", {n_left_out} rows of weight 0 left out" if n_left_out else ""
    return (f"weights of the rows: {spec.weights}{left_out}",)


def _most_classes(spec: SourceSpec, inputs: RowArray) -> int:
    """Return how many whole numbers suggest classes: labels of images, or one set against all others, are such."""
    if spec.most_classes is not None:
        return spec.most_classes
    return MOST_TABLE_CLASSES if len(inputs.shape) == 2 and spec.positive is None else MOST_CLASSES


def _column_notes(columns: Columns | None, inputs: RowArray) -> tuple[str, ...]:
    if columns is None:
        return ()
    encoded = columns.encoding.notes() if columns.encoding is not None else ()
    if columns.target is None:
        n_columns = inputs.shape[1] if columns.encoding is None else len(columns.encoding.columns)
        last = n_columns + (columns.weights_index is not None)
        return f"header: no, target: column {columns.target_place} of 0 to {last}", *encoded
    header = f"header: yes, target: column {columns.target_place} ({columns.target})"
    if columns.chosen:
        header = f"header: yes, target: {columns.target}, inputs: {shown(columns.inputs)}"
    if not columns.inputs:
        return header, "names repeat in the header: a model of it matches columns by position", *encoded
    if "" not in columns.inputs:
        return header, *encoded
    unnamed = "a column without a name is an input like the others; take it out if it counts the rows"
    return header, unnamed, *encoded


def _task_notes(spec: SourceSpec, task: str, inputs: RowArray, labels: np.ndarray) -> tuple[str, ...]:
    """Say what whole numbers in a table were taken for, where nobody said what they are."""
    if spec.task or spec.positive is not None or labels.dtype.kind not in "iu" or len(inputs.shape) > 2:
        return ()
    counted = f"target: {len(np.unique(labels))} distinct whole numbers are taken for"
    if task == "multiclass":
        return (f"{counted} classes; where they are quantities, --set data.task=regression",)
    if task == "regression":
        return (f"{counted} quantities (a regression); where they are classes, --set data.task=multiclass",)
    return ()


def input_dtype(inputs: RowArray) -> np.dtype:
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


def check_lengths(inputs: RowArray, labels: np.ndarray, inputs_name: str, labels_name: str) -> None:
    """Raise `DataError` unless X is (n, …) with something in it, y is (n,), and both have the same n."""
    if len(inputs.shape) < 2 or 0 in inputs.shape:
        raise DataError(
            f"{inputs_name} has shape {tuple(inputs.shape)}; rows of inputs are needed, (n, d) or (n, H, W)"
        )
    if labels.ndim != 1 or len(labels) != inputs.shape[0]:
        raise DataError(f"{inputs_name} has {inputs.shape[0]} rows, {labels_name} has shape {labels.shape}")
    input_dtype(inputs)


def digest_rows(array: RowArray) -> str:
    """Return the sha256 of an array-like's dtype, shape and values, read in pieces of 8 MiB."""
    if not array.shape:
        raise DataError("an array holds a single value; rows are needed")
    digest = hashlib.sha256(f"{np.dtype(array.dtype).str} {tuple(array.shape)}".encode())
    n_rows, span = array.shape[0], _piece_rows(array)
    for begin in range(0, n_rows, span):
        end = min(begin + span, n_rows)
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
        found, more = f"the {len(train.targets)} training rows all have label {only!r}", "take more rows"
        if spec.groups is not None and "split" in identity:
            found, more = f"{found}: so the split by groups {spec.groups} left them", "give groups of several labels"
        raise DataError(f"{name}: {found}; {more}")
    full_identity = {
        **identity,
        "task": task,
        "classes": list(classes),
        "n_train": len(train.targets),
        "n_test": len(test.targets),
        # Where every row is taken as it comes, the seed decides nothing: all seeds share one feature store.
        "seed": spec.seed if any(part.rows is not None for part in parts) else None,
        # Which array is which: one may be both. Data without groups have the identity of versions without them.
        **({} if spec.groups is None else {"roles": {"groups": spec.groups, "weights": spec.weights}}),
    }
    chosen = standardise if spec.standardise is None else spec.standardise
    return RowSource(name, task, classes, chosen, train, test, full_identity)


def joining_source(
    spec: SourceSpec,
    name: str,
    inputs: RowArray,
    labels: np.ndarray,
    standardise: bool,
    identity: dict[str, Any],
    groups: np.ndarray | None = None,
) -> RowSource:
    """Return all rows as training rows that join others. Raises DataError for a label that is none of their classes."""
    assert spec.task is not None  # that of the rows that they join
    assert spec.joins is not None
    task, classes = spec.task, spec.joins.classes
    if classes and isinstance(classes[0], str):
        labels = labels.astype(str)  # words that all read as numbers, in these rows alone
    elif classes and labels.dtype.kind == "U":
        raise DataError(f"{name}: labels are text ({labels[0].item()[:40]!r}), those of the training data numbers")
    try:
        targets = encode(labels, classes, f"{name}: y")
    except DataError as error:
        raise DataError(f"{error}; leave such rows out, or train on all rows anew") from None
    train = PartRows(
        inputs, f"{name}: X", None, targets, None, keys_of_groups(spec, groups, len(targets), of=f" of {name}")
    )
    test = replace(train, rows=np.empty(0, np.int64), targets=targets[:0])
    identity = {**identity, "n_train": len(targets), "classes": list(classes)}
    return RowSource(name, task, classes, standardise, train, test, identity)


def _pieces(rows: np.ndarray, inputs: RowArray) -> Iterator[tuple[int, int]]:
    """Cut sorted rows into runs (begin, end) that span at most `PIECE_BYTES` (or one row)."""
    span = _piece_rows(inputs)
    begin = 0
    while begin < len(rows):
        end = int(np.searchsorted(rows, rows[begin] + span, side="left"))
        yield begin, end
        begin = end


def _piece_rows(inputs: RowArray) -> int:
    """Return how many rows `PIECE_BYTES` hold, at least one."""
    row_bytes = math.prod(inputs.shape[1:]) * np.dtype(inputs.dtype).itemsize
    return max(1, PIECE_BYTES // max(1, row_bytes))


def check_finite(block: np.ndarray, array_name: str, rows: np.ndarray) -> None:
    """Raise DataError naming row (its number among `rows`), column and value where an input is not finite."""
    if block.dtype.kind != "f":
        return
    flat = block.reshape(len(block), -1)
    bad = np.argwhere(~np.isfinite(flat))
    if bad.size:
        row, column = bad[0]
        raise DataError(f"{array_name}: row {rows[row]}, column {column} is {flat[row, column]}; inputs must be finite")
