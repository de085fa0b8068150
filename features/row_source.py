"""Sources over array-likes: rows chosen by the seed, in the order of the data, read front to back in bounded pieces."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from features.cell_text import is_number, shown
from features.errors import DataError, UsageError
from features.image_arrays import input_shape, piece_rows, pieces_of, rescaled, scale_note, to_bytes
from features.row_draws import RowKeys, keys_apart, row_keys, units_of
from features.source import PARTS, Part, RowArray, Source, SourceMemory, SourceSpec
from features.targets import (
    LARGEST_WHOLE,
    MOST_CLASSES,
    MOST_TABLE_CLASSES,
    UNTOLD,
    are_numbered,
    checked_weights,
    class_labels,
    detect_task,
    encode,
)


class LabelledRows(NamedTuple):
    """Rows as they were given."""

    inputs: RowArray  # (n, …)
    labels: np.ndarray  # (n,)
    weights: np.ndarray | None = None  # (n,)
    groups: RowKeys | None = None  # (n,)
    keys: RowKeys | None = None  # (n,) of the inputs
    scale: float | None = None  # what is white in images, which are read as bytes; None: inputs are read as they are


class PartRows(NamedTuple):
    """One part: inputs, what errors call them, rows (None: all), targets, and the rest as of `LabelledRows`."""

    inputs: RowArray
    array_name: str
    rows: np.ndarray | None
    targets: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    keys: np.ndarray | None = None
    scale: float | None = None

    @property
    def dtype(self) -> np.dtype:
        """Of what `read` returns."""
        return input_dtype(self.inputs) if self.scale is None else np.dtype(np.uint8)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the inputs of some rows. Memory: the result and 8 MiB, however far apart the rows are."""
        rows = np.arange(start, stop) if self.rows is None else self.rows[start:stop]
        if hasattr(self.inputs, "take_rows"):
            return np.asarray(self.inputs.take_rows(rows))
        block = np.empty((len(rows), *self.inputs.shape[1:]), dtype=input_dtype(self.inputs))
        span, begin = piece_rows(self.inputs), 0
        while begin < len(rows):
            low, end = int(rows[begin]), int(np.searchsorted(rows, rows[begin] + span))
            values = np.asarray(self.inputs[low : int(rows[end - 1]) + 1])
            check_whole(values, self.array_name)
            block[begin:end] = values[rows[begin:end] - low]
            begin = end
        check_finite(block, self.array_name, rows)
        if self.scale is not None:
            block = to_bytes(block, self.scale, rows)
        return block.reshape(len(block), *input_shape(self.inputs.shape, self.array_name))


def source_of(
    spec: SourceSpec,
    name: str,
    given: Sequence[LabelledRows],
    standardise: bool,
    identity: dict[str, Any],
    labels_names: Sequence[str] | None = None,
) -> Source:
    """Build a source from one set of rows, or from a train and a test part of their own.

    Of one set, `spec.test_fraction` of the rows are the test part, see `chosen_rows`. Rows of weight 0 are as if they
    were not there. labels_names: what errors call the labels of each set, None for y.

    Raises DataError for shapes or labels of which nothing can be learned, UsageError for more rows than there are.
    """
    own = [f" of {part}" for part in PARTS] if len(given) > 1 else [""]  # ends what errors call an array
    names = labels_names or [f"y{of}" for of in own]
    for one, of, labels_name in zip(given, own, names, strict=True):
        check_lengths(one.inputs, one.labels, f"X{of}", labels_name)
    shapes = [input_shape(one.inputs.shape, "X") for one in given]
    if shapes[0] != shapes[-1]:
        raise DataError(f"{name}: train inputs have shape {shapes[0]}, test inputs {shapes[-1]}")
    counted, weights = zip(*(count_rows(spec, one, of) for one, of in zip(given, own, strict=True)), strict=True)
    n_left_out = sum(len(one.labels) - len(rows) for one, rows in zip(given, counted, strict=True))
    labels = given[0].labels[counted[0]]
    is_table = len(given[0].inputs.shape) == 2
    first = names[0] if labels_names else "y"
    most = MOST_TABLE_CLASSES if is_table else len(labels) if are_numbered(labels) else MOST_CLASSES
    task = spec.task or detect_task(labels, most, first)
    classes = class_labels(labels, task, first)
    chosen = chosen_rows(spec, given, counted, name, task, split=len(given) == 1)
    if len(given) == 1:
        identity = {"split": spec.test_fraction, **identity}
        given, weights, own, names = [*given] * 2, weights * 2, own * 2, [*names] * 2
    parts = []
    for one, of_rows, rows, of, labels_name in zip(given, weights, chosen, own, names, strict=True):
        every = None if of and len(rows) == len(one.labels) else rows
        targets = encode(one.labels[rows], classes, labels_name)
        more = [None if values is None else values[rows] for values in (of_rows, one.groups, one.keys)]
        part = PartRows(one.inputs, f"X{of}", every, targets, *more)
        parts.append(part._replace(scale=given[0].scale))
    if classes and len(np.unique(parts[0].targets)) < 2:
        only = classes[int(parts[0].targets[0])]
        fault, remedy = f"the {len(chosen[0])} training rows all have label {only!r}", "take more rows"
        if spec.groups is not None and "split" in identity:
            fault, remedy = f"{fault}: so the split by groups {spec.groups} left them", "give groups of several labels"
        raise DataError(f"{name}: {fault}; {remedy}")
    identity = {
        **identity,
        "task": task,
        "classes": list(classes),
        "n_train": len(chosen[0]),
        "n_test": len(chosen[1]),
        # Where every row is taken as it comes, the seed decides nothing: all seeds share one feature store.
        "seed": spec.seed if any(part.rows is not None for part in parts) else None,
    }
    if spec.groups is not None:  # which array is which: one may be both
        identity["roles"] = {"groups": spec.groups, "weights": spec.weights}
    zscored = standardise if spec.standardise is None else spec.standardise
    notes = [*_task_notes(spec, task, labels, is_table=is_table), *scale_note(given[0].scale)]
    notes += _fact_notes(spec, n_left_out, classes, *parts)
    if parts[0].groups is None and parts[0].keys is not None:
        parts[0] = parts[0]._replace(groups=keys_apart(parts[0].keys))
    keys, parts = parts[0].keys, [part._replace(keys=None) for part in parts]  # of 8 bytes a row
    facts = {"name": name, "task": task, "classes": classes, "standardise": zscored, "notes": tuple(notes)}
    source = _of_parts(facts | {"identity": identity}, *parts)
    if keys is not None and not is_table:  # those of tables are of cells
        held = replace(source.memory, held=source.memory.held + keys.nbytes)
        source = replace(source, row_keys=lambda start, stop: keys[start:stop], memory=held)
    if spec.copies == 1 and spec.deform is None:
        return source
    from features.deformed_copies import with_copies  # with numba, which data without copies do without

    return with_copies(source, spec)


def count_rows(spec: SourceSpec, given: LabelledRows, of: str = "") -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rows of weight above 0, ascending, and the checked weights (n,) f8; errors end with `of`."""
    if given.weights is None:
        return np.arange(len(given.labels)), None
    weights = checked_weights(given.weights, len(given.labels), f"weights {spec.weights}{of or ' of the data'}")
    return np.flatnonzero(weights), weights


def chosen_rows(
    spec: SourceSpec, given: Sequence[LabelledRows], counted: Sequence[np.ndarray], name: str, task: str, *, split: bool
) -> list[np.ndarray]:
    """Return which rows each part takes, sorted, of parts of their own or of one set that is `split`; by the seed.

    Groups are not split. Without groups equal rows are in one part, unless they are of a few categories, see
    `keys_apart`, and the parts have their shares of each class, but no class is in the test part alone. Errors as
    `source_of`.
    """
    orders = _split(spec, given[0], counted[0], name, task) if split else counted
    chosen = []
    seeds = np.random.SeedSequence(spec.seed).spawn(2)
    for part, order, own, asked in zip([*counted] * 2, orders, seeds, (spec.n_train, None), strict=False):
        n = len(order)
        if asked is not None and asked > n:
            raise UsageError(f"n_train is {asked}, but {name} has {n} such rows; give at most {n}")
        if not split and asked in (None, n):
            chosen.append(part)
            continue
        positions = order if split else np.random.default_rng(own).permutation(n)
        chosen.append(part[np.sort(positions[:asked])])
    return chosen


def _split(spec: SourceSpec, given: LabelledRows, rows: np.ndarray, name: str, task: str) -> list[np.ndarray]:
    """Return the rows of the train and the test part in the order drawn, as positions among those that count.

    Units are groups, or without groups equal rows, and are of the class of their first row.
    """
    n, keys, rng = len(rows), given.keys, np.random.default_rng(np.random.SeedSequence(spec.seed))
    firsts = of_rows = np.arange(n)
    of_class = np.zeros(n, np.int32)
    if given.groups is not None:
        order, of_rows = rng.permutation(n), np.unique(given.groups[rows], return_inverse=True)[1]
        firsts = np.arange(of_rows.max(initial=0) + 1)
    elif keys is not None and keys_apart(keys[rows]) is None:
        firsts, of_rows = units_of(keys[rows])
    if given.groups is None and task != "regression":
        of_class = np.unique(given.labels[rows], return_inverse=True)[1].astype(np.int32)
    n_test = min(max(1, round(spec.test_fraction * n)), n - 1)
    shares, is_tested = _drawn_units(rng, of_class[firsts], np.bincount(of_rows), n_test)
    in_test = is_tested[of_rows]
    for label in np.setdiff1d(of_class, of_class[~in_test]):  # its rows stand in units of other classes
        in_test &= of_rows != of_rows[np.argmax(of_class == label)]
    if not in_test.any() and given.groups is None and keys is not None:
        return _split(spec, given._replace(keys=None), rows, name, task)  # equal rows of one label
    if not in_test.any():
        fault = f"{n} row(s), each of another label" if given.groups is None else "all rows are of one group"
        raise DataError(f"{name}: {fault}; at least one to train and one to test are needed")
    order = np.argsort(shares[of_rows], kind="stable") if given.groups is None else order
    train = order[~in_test[order]]
    return [train[::-1] if of_class.any() else train, order[in_test[order]]]  # first the last unit of each class


def _drawn_units(rng: np.random.Generator, classes: np.ndarray, sizes: np.ndarray, n_test: int) -> list[np.ndarray]:
    """Return of units of rows, (u,) each, the share of its class that is drawn before, and whether they are tested.

    Each class has its share of the `n_test` rows, by largest remainders, as near as its units come in their order; its
    last unit is none of them.
    """
    drawn, counts = rng.permutation(len(classes)), np.bincount(classes, sizes)
    exact = counts * n_test / counts.sum()
    wanted, remainders = np.floor(exact), np.where(counts > 1, exact % 1, -1.0)
    largest = np.lexsort((rng.permutation(len(counts)), -remainders))[: n_test - int(wanted.sum())]
    wanted[largest] += remainders[largest] > 0
    drawn = drawn[np.argsort(classes[drawn], kind="stable")]
    shares, is_tested = np.empty(len(drawn)), np.zeros(len(drawn), bool)
    of_classes = np.split(drawn, np.cumsum(np.bincount(classes))[:-1])
    for units, count, left in zip(of_classes, counts, wanted.tolist(), strict=True):
        shares[units] = (np.cumsum(sizes[units]) - sizes[units] / 2) / count
        shares[units[-1:]], waiting = 1.0, units[:-1]
        while len(waiting):
            middles = np.cumsum(sizes[waiting]) - sizes[waiting] / 2
            taken, waiting = np.split(waiting, [np.count_nonzero(middles < left)])
            is_tested[taken], left = True, left - sizes[taken].sum()
            waiting = waiting[sizes[waiting] < 2 * left]  # larger units are passed over
    if not is_tested.any():
        is_tested[np.argmin(np.where(shares < 1, sizes, np.inf))] = True
    return [shares, is_tested]


def _of_parts(facts: dict[str, Any], train: PartRows, test: PartRows) -> Source:
    """Return a source of two parts, with `facts` that the parts do not tell."""
    inputs = list({id(part.inputs): part.inputs for part in (train, test)}.values())
    chunked = [array for array in inputs if hasattr(array, "decoding_bytes")]  # by readers of `storage`
    return Source(
        **facts,
        n_train=len(train.targets),
        n_test=len(test.targets),
        input_shape=input_shape(train.inputs.shape, train.array_name),
        input_dtype=train.dtype.name,
        image_scale=train.scale,
        read_rows=lambda part, start, stop: (train if part == "train" else test).read(start, stop),
        targets={"train": train.targets, "test": test.targets},
        weights={"train": train.weights, "test": test.weights},
        file_rows={"train": train.rows, "test": test.rows},
        groups=train.groups,
        memory=SourceMemory(
            held=sum(getattr(array, "nbytes", 0) for array in chain(inputs, train[3:7], test[3:7])),
            kept=sum(getattr(array, "kept_bytes", 0) for array in chunked),
            decoded=sum(math.prod(array.shape) * array.dtype.itemsize for array in chunked),
            decoding=max((getattr(array, "decoding_bytes", 0) for array in chunked), default=0),
        ),
        in_order=partial(_in_order, train, test) if any(getattr(one, "in_order", False) for one in inputs) else None,
    )


def _in_order(train: PartRows, test: PartRows) -> Iterator[tuple[Part, int, np.ndarray]]:
    """Yield (part, first row in it, inputs) of all rows, each file read once, front to back."""
    named: list[tuple[Part, PartRows]] = [("train", train), ("test", test)]
    for together in [named] if train.inputs is test.inputs else [named[:1], named[1:]]:
        inputs = together[0][1].inputs
        span = piece_rows(inputs)
        for start in range(0, inputs.shape[0], span):
            block = np.asarray(inputs[start : start + span])
            for part, of_part in together:
                rows = np.arange(inputs.shape[0]) if of_part.rows is None else of_part.rows
                low, high = np.searchsorted(rows, (start, start + span)).tolist()
                if low < high:
                    yield part, low, block[rows[low:high] - start]


def _fact_notes(spec: SourceSpec, n_left_out: int, classes: tuple, train: PartRows, test: PartRows) -> list[str]:
    notes = []
    if spec.weights is not None:
        left_out = f", {n_left_out} rows of weight 0 left out" if n_left_out else ""
        notes.append(f"weights of the rows: {spec.weights}{left_out}")
    if train.groups is not None:
        n_both = 0 if test.groups is None else len(np.intersect1d(train.groups, test.groups))
        both = f"; {n_both} of them have rows in the test part as well" if n_both else ""
        notes.append(f"groups of the rows: {spec.groups}, {len(np.unique(train.groups))} in the training part{both}")
    counts = np.bincount(train.targets, minlength=len(classes)) if classes else np.empty(0)
    few = [f"{classes[k]!r} ({counts[k]})" for k in np.flatnonzero(counts < 2).tolist()]
    notes += [f"labels with fewer than two training rows: {shown(few)}"] if few else []
    if train.keys is not None and test.keys is not None:
        ordered = np.sort(train.keys)
        n_equal = np.count_nonzero(ordered[np.searchsorted(ordered[:-1], test.keys)] == test.keys)
        told = f"{n_equal} of {len(test.keys)} test rows equal a training row; their errors tell little of new rows"
        notes += [told] if n_equal else []
    return notes


def _task_notes(spec: SourceSpec, task: str, labels: np.ndarray, *, is_table: bool) -> list[str]:
    """Return a note on whether whole numbers were taken for classes, where no setting decides it.

    Of images only where they were not, or where the classes are many.
    """
    if spec.task or (not is_table and task != "regression" and len(np.unique(labels)) <= MOST_CLASSES):
        return []
    if labels.dtype.kind == "U" and (numbers := list(filter(is_number, np.unique(labels).tolist()))):
        return [f"target: numbers such as {shown(numbers, 3)} are classes as they are written, as words are"]
    if labels.dtype.kind in "bU" or (labels % 1).any() or task == "binary":
        return []
    taken, otherwise, other = "classes", "quantities", "regression"
    if task == "regression":
        taken, otherwise, other = "quantities (a regression)", "classes", "multiclass"
    counted = f"target: {len(np.unique(labels))} distinct whole numbers are taken for {taken}"
    return [f"{counted}; where they are {otherwise}, `data.task={other}`"]


def input_dtype(inputs: RowArray) -> np.dtype:
    """Return the dtype blocks are read in: image bytes and float32 stay, other real numbers become float64."""
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


def digest_rows(array: RowArray, keys: RowKeys | None = None, scale: float | None = None) -> str:
    """Return the sha256 of dtype, shape and values, in pieces of 8 MiB; fill in row keys, of images as bytes."""
    if not array.shape:
        raise DataError("an array holds a single value; rows are needed")
    digest, begin = hashlib.sha256(f"{np.dtype(array.dtype).str} {tuple(array.shape)}".encode()), 0
    for piece in pieces_of(array):
        digest.update(piece.tobytes())
        if keys is not None:
            keys[begin : begin + len(piece)] = row_keys(piece if scale is None else rescaled(piece, scale))
        begin += len(piece)
    return digest.hexdigest()


def check_whole(values: np.ndarray, array_name: str) -> None:
    """Raise DataError for whole numbers of 64 bits that float64 does not tell apart."""
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        long = np.abs(values.astype(np.float64)) >= LARGEST_WHOLE
        if long.any():
            raise DataError(f"{array_name} holds whole numbers such as {values[long][0]}; {UNTOLD}")


def check_finite(block: np.ndarray, array_name: str, rows: np.ndarray) -> None:
    """Raise DataError naming row (its number among `rows`), column and value where an input is not finite."""
    if block.dtype.kind != "f" or not len(block):
        return
    flat = block.reshape(len(block), -1)
    if (bad := np.argwhere(~np.isfinite(flat))).size:
        row, column = bad[0]
        raise DataError(f"{array_name}: row {rows[row]}, column {column} is {flat[row, column]}; inputs must be finite")
