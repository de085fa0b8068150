"""Where examples come from: a small description, which tasks carry and open, and the open source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, Protocol

import numpy as np

from features.encoding import TableEncoding
from features.errors import DataError

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")
NAMED = ("mnist", "usps", "boston", "abalone", "sinc", "digits")


@dataclass(frozen=True)
class SourceSpec:
    """What to read; picklable and JSON-able. What is not named here is as the setting data.NAME, in its range.

    dataset : one of `NAMED`, or the path of a folder in MNIST's IDX layout, an ``.npz`` file, a table or a zarr store
    data_dir : folder that holds the files of a published data set, or a folder of its name with them
    n_train, n_test : of `sinc` how many to generate; of others, how many rows to take, by the seed
    target, weights, groups : columns of a table by name or position, or keys of arrays; no group is in both parts
    categorical, missing : tables: how cells become numbers, see `features.encoding.Asked.read`
    standardise : None: False for images and `sinc`, True for tables
    positive : the label to set against all others, as it reads; labels become 1 and -1
    seed : of the split, of the order from which n_train and n_test take, and of what is generated
    kept : the folder of tables that were read; None: they are read into memory
    """

    dataset: str
    data_dir: str | None = None
    n_train: int | None = None
    n_test: int | None = None
    test: str | None = None
    test_fraction: float = 0.25
    target: str | None = None
    weights: str | None = None
    groups: str | None = None
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] | None = None
    categorical: str | None = None
    missing: str | None = None
    task: str | None = None
    standardise: bool | None = None
    positive: str | None = None
    noise: float | None = None
    seed: int = 0
    kept: str | None = None


class RowArray(Protocol):
    """An array-like (n, …) that is read by slices of rows: an array, or what reads one from the disk.

    One that decodes whole chunks has `kept_bytes`, of each reading thread, and `decoding_bytes`, beside its result.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        """Return some rows, whole."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table: names of the inputs, () without a header; name and place of target, weights and groups.

    Places are those in a file of these columns alone, the target's without weights and groups; None where there is no
    such column. chosen: whether others may be beside them. encoding: how cells become inputs, None for numbers alone.
    """

    inputs: tuple[str, ...]
    target: str | None
    target_index: int
    chosen: bool = False
    encoding: TableEncoding | None = None
    weights: str | None = None
    weights_index: int | None = None
    groups: str | None = None
    groups_index: int | None = None

    def described(self) -> dict[str, Any]:
        """Return the columns as JSON-able values; what most tables have none of is left out."""
        named: dict[str, Any] = {"inputs": list(self.inputs), "target": self.target, "target_index": self.target_index}
        named |= {"chosen": True} if self.chosen else {}
        named |= {} if self.encoding is None else {"encoding": self.encoding.described()}
        for what in ("weights", "groups"):
            name, place = getattr(self, what), getattr(self, f"{what}_index")
            named |= {} if place is None else {what: name, f"{what}_index": place}
        return named

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> "Columns":
        """Return the columns that `described` made. Raises DataError where something in it cannot be, or KeyError."""
        inputs, target, index = described["inputs"], described["target"], described["target_index"]
        names = isinstance(inputs, list) and all(isinstance(name, str) for name in inputs)
        if not names or not isinstance(target, str | None) or type(index) is not int or index < 0:
            raise DataError(f"columns are {described!r:.60}, expected names of the inputs, a target and its place")
        chosen, encoding, others = described.get("chosen", False), described.get("encoding"), list[Any]()
        if type(chosen) is not bool:
            raise DataError(f"columns are chosen: {chosen!r:.40}, expected true or false")
        for what in ("weights", "groups"):
            name, place = described.get(what), described.get(f"{what}_index")
            if not isinstance(name, str | None) or not (place is None or (type(place) is int and place >= 0)):
                raise DataError(f"columns are {described!r:.60}, expected a name of the {what} and their place")
            others += [name, place]
        known = None if encoding is None else TableEncoding.from_description(encoding)
        return cls(tuple(inputs), target, index, chosen, known, *others)

    @property
    def other_places(self) -> tuple[int, ...]:
        """Places of weights and groups, those that there are, in rising order."""
        return tuple(sorted(place for place in (self.weights_index, self.groups_index) if place is not None))

    @property
    def target_place(self) -> int:
        """Place of the target in a file that has the weights and the groups as well."""
        return reduce(lambda place, other: place + (other <= place), self.other_places, self.target_index)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs that are made of the cells, () where they have none."""
        return self.encoding.inputs if self.encoding is not None else self.inputs


@dataclass(frozen=True)
class SourceMemory:
    """Bytes: held for good; kept by each reading thread, at most decoded by all; decoding, while one reads."""

    held: int = 0
    kept: int = 0
    decoded: int = 0
    decoding: int = 0

    def reading(self, threads: int) -> int:
        """Return what so many threads take while they read, beside what is held."""
        return min(threads * self.kept, self.decoded) + self.decoding


@dataclass(frozen=True, eq=False)
class Source:
    """Examples with a task and a train/test split, read by row blocks; safe to read from several threads.

    classes : sorted labels as Python scalars; () for regression
    input_shape : of one input, (H, W) for images, (d,) for tables
    standardise : whether inputs are to be z-scored with the statistics of the training part
    identity : all that determines what `read` returns, as JSON-able values; no path, no time
    row_weights : part → weights (n,) f8 above 0 of its rows; None, or nothing, where they count 1 each
    file_rows : part → numbers (n,) i8 of its rows in the data as given; None, or nothing, where these are all
    groups : keys (n,) u8 of the groups of the training rows (`features.row_draws`); None where they have none
    columns : the columns of the file that the inputs are from; None where it is no table
    notes : what was assumed when the data were read, a line each: header, target column, classes
    """

    name: str  # short, never a path
    task: str
    classes: tuple
    n_train: int
    n_test: int
    input_shape: tuple[int, ...]
    standardise: bool
    read_rows: Callable[[Part, int, int], tuple[np.ndarray, np.ndarray]]
    identity: dict[str, Any]
    row_weights: Mapping[Part, np.ndarray | None] = field(default_factory=dict)
    file_rows: Mapping[Part, np.ndarray | None] = field(default_factory=dict)
    groups: np.ndarray | None = None
    columns: Columns | None = None
    notes: tuple[str, ...] = ()
    memory: SourceMemory = SourceMemory()

    def read(self, part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs (stop - start, *input_shape) and targets (stop - start,).

        Inputs are uint8, float32 or float64; targets an int64 index into `classes`, or float64 for regression. Raises
        DataError naming array and row where a value is not finite, IndexError where the rows do not exist.
        """
        n = self.n_train if part == "train" else self.n_test
        if not 0 <= start <= stop <= n:
            raise IndexError(f"rows {start} to {stop} of the {part} part of {self.name} do not exist; it has {n}")
        return self.read_rows(part, start, stop)

    def weights(self, part: Part) -> np.ndarray | None:
        """Return how much each row of a part counts, (n,) f8 above 0; None where each counts 1."""
        return self.row_weights.get(part)
