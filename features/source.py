"""Where examples come from: a small description, which tasks carry and open, and the open source.

Of rows as they were given a train and a test part are chosen by the seed, each in the order of the data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np

from features.cell_text import MOST_CATEGORIES, is_number
from features.errors import DataError, UsageError
from features.images import BYTE_SCALE, input_shape
from features.row_draws import keys_apart, units_of
from features.rows import Chosen, InOrder, Mapped, Rows, check_lengths, inputs_of, piece_rows, root_of, some_of
from features.tables.encoding import TableEncoding
from features.targets import (
    MOST_CLASSES,
    MOST_TABLE_CLASSES,
    are_numbered,
    checked_weights,
    class_labels,
    detect_task,
    encode,
)
from features.words import shown

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")
NAMED = ("mnist", "usps", "boston", "abalone", "sinc", "digits")


@dataclass(frozen=True)
class SourceSpec:
    """What to read; picklable and JSON-able. What has no comment here is as the setting data.NAME, in its range."""

    dataset: str  # one of `NAMED`, or a path: a folder in MNIST's IDX layout or of .npy files, an npz file, a table
    data_dir: str | None = None  # folder with the files of a published data set, or with a folder of its name
    n_train: int | None = None  # rows of `sinc` to generate; of others, training rows to take, by the seed
    test: str | None = None
    test_fraction: float = 0.25
    target: str | None = None  # a column of a table by name or position, or the key of an array
    weights: str | None = None
    groups: str | None = None  # no group is in both parts
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] | None = None
    header: bool = True  # whether texts begin with the names of their columns
    decimal: str = "."  # what stands before decimals in texts
    categorical: str | None = None  # how cells become numbers, see `features.tables.encoding`
    missing: str | None = None
    categories: int = MOST_CATEGORIES
    task: str | None = None
    standardise: bool | None = None  # None: False for images and `sinc`, True for tables
    size: str | None = None  # HEIGHTxWIDTH that pictures get; None: their median
    skip_bad: bool = False  # whether pictures that cannot be read are left out
    seed: int = 0  # decides the split, the order from which n_train takes, and generated data
    copies: int = 1  # rows that each training image becomes, see `features.deformed_copies`
    deform: str | None = None
    kept: str | None = None  # the folder of first readings of files; None: tables are held in memory


Tick = Callable[[int], None]  # It is told how many more rows were read.
Files = Callable[[], list[Path]]  # It lists files.


class Keeper(Protocol):
    """Keeps the first readings of files; see `pipeline.datasets.open_data`."""

    def read(self, path: Path, files: Files, request: dict[str, Any], read: Callable[[Tick], Any], form: Any, /) -> Any:
        """Return the kept reading of a path for a request, as a `form` of arrays, or read it now.

        files: lists the files that it depends on, by whose stamps it is known.
        """

    def __hash__(self) -> int:
        """Return a hash: sources that are open are found by it."""


def first_reading(
    keeper: Keeper | None, path: Path, files: Files, request: dict[str, Any], read: Callable[[Tick], Any], form: Any
) -> Any:
    """Return the reading of a path that a keeper has; without one, read it now."""
    return read(lambda n_rows: None) if keeper is None else keeper.read(path, files, request, read, form)


@dataclass(frozen=True)
class Columns:
    """The columns of the table that a model was trained on, by their names; () where its inputs have none."""

    inputs: tuple[str, ...]
    target: str | None = None
    header: bool = True  # whether texts begin with the names, else these are f0, f1, …
    weights: str | None = None
    groups: str | None = None
    encoding: TableEncoding | None = None  # how cells become inputs; None for numbers alone
    decimal: str = "."

    def described(self) -> dict[str, Any]:
        """Return the columns as JSON-able values."""
        encoding = None if self.encoding is None else self.encoding.described()
        described = vars(self) | {"inputs": list(self.inputs), "encoding": encoding}
        return {name: value for name, value in described.items() if (name, value) != ("decimal", ".")}

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> "Columns":
        encoding = described["encoding"]
        known = None if encoding is None else TableEncoding.from_description(encoding)
        return cls(**{**described, "inputs": tuple(described["inputs"]), "encoding": known})

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs that are made of the cells, () where they have none."""
        return self.encoding.inputs if self.encoding is not None else self.inputs


@dataclass(frozen=True)
class SourceMemory:
    """Bytes: held for good; and those that decoding takes while rows are read."""

    held: int = 0
    decoding: int = 0


@dataclass(frozen=True, eq=False)
class Source:
    """Examples with a task, in a train and a test part; safe to read from several threads."""

    name: str  # short, never a path
    task: str
    classes: tuple  # sorted labels as Python scalars; () for regression
    standardise: bool  # whether inputs are to be z-scored with the statistics of the training part
    identity: dict[str, Any]  # all that determines the rows, as JSON-able values; no path, no time
    # Inputs as of `rows.inputs_of`, uint8, float32 or float64; targets; and `numbers` of rows in the data as given.
    train: Rows
    test: Rows
    image_scale: float | None = None  # the white of images as they were given; None for other inputs
    notes: tuple[str, ...] = ()  # assumptions when the data were read: header, target column, classes
    warnings: tuple[str, ...] = ()  # reasons to doubt test errors: rows in order, damage
    columns: Columns | None = None  # columns of the file that the inputs are from; None where it is no table
    sampled: Callable[[Rows], Rows] | None = None  # returns some of the training rows of a table that is read in order

    @property
    def parts(self) -> dict[Part, Rows]:
        return {"train": self.train, "test": self.test}

    @property
    def n_train(self) -> int:
        return len(self.train)

    @property
    def n_test(self) -> int:
        return len(self.test)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (H, W) of images, (H, W, 3) in colour, (d,) of tables."""
        return self.train.X.shape[1:]

    @property
    def memory(self) -> SourceMemory:
        fields = [values for rows in (self.train, self.test) for values in vars(rows).values()]
        roots = list({id(root): root for root in map(root_of, fields)}.values())
        return SourceMemory(
            held=sum(getattr(root, "nbytes", 0) for root in roots),
            decoding=max(getattr(root, "decoding_bytes", 0) for root in roots),
        )

    @property
    def is_in_order(self) -> bool:
        """Whether rows are read front to back, so that any order but that of `in_order` costs more readings."""
        return isinstance(root_of(self.train.X), InOrder)

    def in_order(self) -> Iterator[tuple[Part, int, np.ndarray]]:
        """Yield (part, first row in it, inputs) of all rows as the files have them, each file read once."""
        named: list[tuple[Part, Rows]] = [("train", self.train), ("test", self.test)]
        is_one = root_of(self.train.X) is root_of(self.test.X)
        for together in [named] if is_one else [named[:1], named[1:]]:
            inputs = cast("Mapped", together[0][1].X).values
            given = inputs.values if isinstance(inputs, Chosen) else inputs
            span = piece_rows(given)
            for start in range(0, given.shape[0], span):
                block = given[start : start + span]
                for part, rows in together:
                    numbers = np.arange(given.shape[0]) if rows.numbers is None else rows.numbers[:]
                    low, high = np.searchsorted(numbers, (start, start + span)).tolist()
                    if low < high:
                        yield part, low, block[numbers[low:high] - start]

    def learned(self) -> Rows:
        """Return the training rows that moments are fitted to."""
        return self.train if self.sampled is None else self.sampled(self.train)


def source_of(
    spec: SourceSpec,
    name: str,
    given: Sequence[Rows],
    standardise: bool,
    identity: dict[str, Any],
    scale: float | None = None,
    labels_names: Sequence[str] | None = None,
) -> Source:
    """Build a source from one set of rows as they were given, or from a train and a test part of their own.

    One set gives `spec.test_fraction` of its rows to the test part, see `chosen_rows`. Rows of weight 0 are ignored.
    scale: the white of images, None for other inputs; labels_names: the names of the labels of each set in errors, None
    for y.

    Raises DataError for shapes or labels that nothing can be learned from, UsageError for more rows than there are.
    """
    own = [f" of {part}" for part in PARTS] if len(given) > 1 else [""]  # Names of arrays in errors end so.
    names = labels_names or [f"y{of}" for of in own]
    for one, of, labels_name in zip(given, own, names, strict=True):
        check_lengths(one.X, one.y, f"X{of}", labels_name)
    shapes = [input_shape(one.X.shape, "X") for one in given]
    if shapes[0] != shapes[-1]:
        raise DataError(f"{name}: train inputs have shape {shapes[0]}, test inputs {shapes[-1]}")
    counted, weights = zip(*(count_rows(spec, one, of) for one, of in zip(given, own, strict=True)), strict=True)
    n_left_out = sum(len(one) - len(rows) for one, rows in zip(given, counted, strict=True))
    labels = given[0].y[counted[0]]
    is_table = len(given[0].X.shape) == 2
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
        numbers = None if of and len(rows) == len(one) else rows
        targets = encode(one.y[rows], classes, labels_name)
        keys, groups = some_of(one.keys, rows), some_of(one.groups, rows)
        inputs = inputs_of(one.X, f"X{of}", numbers, scale)
        files = None if one.names is None else Chosen(one.names, rows)
        parts.append(Rows(inputs, targets, some_of(of_rows, rows), keys, groups, numbers, files))
    train, test = parts
    if classes and len(np.unique(train.y)) < 2:
        only = classes[int(train.y[0])]
        fault, remedy = f"the {len(train)} training rows all have label {only!r}", "take more rows"
        if spec.groups is not None and "split" in identity:
            fault, remedy = f"{fault}: so the split by groups {spec.groups} left them", "give groups of several labels"
        raise DataError(f"{name}: {fault}; {remedy}")
    identity = {
        **identity,
        "task": task,
        "classes": list(classes),
        "n_train": len(train),
        "n_test": len(test),
        # Where every row is taken as it comes, the seed decides nothing: all seeds share one feature store.
        "seed": spec.seed if any(part.numbers is not None for part in parts) else None,
    }
    if spec.groups is not None:  # One array may be in either role.
        identity["roles"] = {"groups": spec.groups, "weights": spec.weights}
    zscored = standardise if spec.standardise is None else spec.standardise
    notes = _task_notes(spec, task, labels, is_table=is_table)
    if scale not in (None, BYTE_SCALE):
        notes.append(f"images are read as bytes: {scale:g} is white, and becomes 255")
    notes += _fact_notes(spec, n_left_out, classes, train, test)
    if train.groups is None and train.keys is not None:
        train = replace(train, groups=keys_apart(train.keys))
    train = replace(train, keys=None if is_table else train.keys)  # Those of tables are of cells.
    return Source(name, task, classes, zscored, identity, train, replace(test, keys=None), scale, tuple(notes))


def count_rows(spec: SourceSpec, given: Rows, of: str = "") -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rows of weight above 0, ascending, and the checked weights (n,) f8; errors end with `of`."""
    if given.weights is None:
        return np.arange(len(given.y)), None
    weights = checked_weights(given.weights, len(given.y), f"weights {spec.weights}{of or ' of the data'}")
    return np.flatnonzero(weights), weights


def chosen_rows(
    spec: SourceSpec, given: Sequence[Rows], counted: Sequence[np.ndarray], name: str, task: str, *, split: bool
) -> list[np.ndarray]:
    """Return the rows that each part takes, sorted: of its own set, or of one set that is `split`; by the seed.

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


def _split(spec: SourceSpec, given: Rows, rows: np.ndarray, name: str, task: str) -> list[np.ndarray]:
    """Return the rows of the train and the test part in the order drawn, as positions among those that count.

    A unit is a group (without groups: equal rows) and has the class of its first row.
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
        of_class = np.unique(given.y[rows], return_inverse=True)[1].astype(np.int32)
    n_test = min(max(1, round(spec.test_fraction * n)), n - 1)
    shares, is_tested = _drawn_units(rng, of_class[firsts], np.bincount(of_rows), n_test)
    in_test = is_tested[of_rows]
    for label in np.setdiff1d(of_class, of_class[~in_test]):  # All its rows are in units of other classes.
        in_test &= of_rows != of_rows[np.argmax(of_class == label)]
    if not in_test.any() and given.groups is None and keys is not None:
        return _split(spec, replace(given, keys=None), rows, name, task)  # All rows of each label are equal.
    if not in_test.any():
        fault = f"{n} row(s), each of another label" if given.groups is None else "all rows are of one group"
        raise DataError(f"{name}: {fault}; at least one to train and one to test are needed")
    order = np.argsort(shares[of_rows], kind="stable") if given.groups is None else order
    train = order[~in_test[order]]
    return [train[::-1] if of_class.any() else train, order[in_test[order]]]  # Each class's last unit comes first.


def _drawn_units(rng: np.random.Generator, classes: np.ndarray, sizes: np.ndarray, n_test: int) -> list[np.ndarray]:
    """Return for each unit (u,) the share of its class drawn before it, and whether it is tested.

    Each class has its share of the `n_test` rows, by largest remainders, as nearly as the sizes of its units allow; its
    last unit is never tested.
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
            waiting = waiting[sizes[waiting] < 2 * left]  # Larger units are passed over.
    if not is_tested.any():
        is_tested[np.argmin(np.where(shares < 1, sizes, np.inf))] = True
    return [shares, is_tested]


def _fact_notes(spec: SourceSpec, n_left_out: int, classes: tuple, train: Rows, test: Rows) -> list[str]:
    notes = []
    if spec.weights is not None:
        left_out = f", {n_left_out} rows of weight 0 left out" if n_left_out else ""
        notes.append(f"weights of the rows: {spec.weights}{left_out}")
    if train.groups is not None:
        n_both = 0 if test.groups is None else len(np.intersect1d(train.groups, test.groups))
        both = f"; {n_both} of them have rows in the test part as well" if n_both else ""
        notes.append(f"groups of the rows: {spec.groups}, {len(np.unique(train.groups))} in the training part{both}")
    counts = np.bincount(train.y, minlength=len(classes)) if classes else np.empty(0)
    few = [f"{classes[k]!r} ({counts[k]})" for k in np.flatnonzero(counts < 2).tolist()]
    notes += [f"labels with fewer than two training rows: {shown(few)}"] if few else []
    if train.keys is not None and test.keys is not None:
        ordered = np.sort(train.keys)
        n_equal = np.count_nonzero(ordered[np.searchsorted(ordered[:-1], test.keys)] == test.keys)
        told = f"{n_equal} of {len(test.keys)} test rows equal a training row; their errors tell little of new rows"
        notes += [told] if n_equal else []
    return notes


def _task_notes(spec: SourceSpec, task: str, labels: np.ndarray, *, is_table: bool) -> list[str]:
    """Return a note on whether whole numbers were taken for classes, where no setting decides it (images: in doubt)."""
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
