"""Where examples come from: a small description, which tasks carry and open, and the open source."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from features.cell_text import MOST_CATEGORIES
from features.errors import DataError
from features.row_draws import RowKeys
from features.tables.encoding import TableEncoding

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")
NAMED = ("mnist", "usps", "boston", "abalone", "sinc", "digits")


@dataclass(frozen=True)
class SourceSpec:
    """What to read; picklable and JSON-able. What is not named here is as the setting data.NAME, in its range.

    dataset : one of `NAMED`, or the path of a folder in MNIST's IDX layout, an ``.npz`` file, a table or a zarr store
    data_dir : folder that holds the files of a published data set, or a folder of its name with them
    n_train : of `sinc` how many rows to generate; of others, how many training rows to take, by the seed
    target, weights, groups : columns of a table by name or position, or keys of arrays; no group is in both parts
    header, decimal : tables of text: whether they begin with the names of their columns; a point or a comma
    categorical, missing, categories : tables: how cells become numbers, see `features.tables.encoding`
    standardise : None: False for images and `sinc`, True for tables
    size : HEIGHTxWIDTH that pictures get; None: their median
    skip_bad : whether pictures that cannot be read are left out
    seed : of the split, of the order from which n_train takes, and of what is generated
    copies, deform : rows that each training image becomes, see `features.deformed_copies`
    kept : the folder of what was found in tables and pictures; None: tables are read into memory
    """

    dataset: str
    data_dir: str | None = None
    n_train: int | None = None
    test: str | None = None
    test_fraction: float = 0.25
    target: str | None = None
    weights: str | None = None
    groups: str | None = None
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] | None = None
    header: bool = True
    decimal: str = "."
    categorical: str | None = None
    missing: str | None = None
    categories: int = MOST_CATEGORIES
    task: str | None = None
    standardise: bool | None = None
    size: str | None = None
    skip_bad: bool = False
    seed: int = 0
    copies: int = 1
    deform: str | None = None
    kept: str | None = None


Tick = Callable[[int], None]  # told how many more rows were read


class Keeper(Protocol):
    """Keeps what was found in tables and pictures; see `pipeline.datasets.table_records`."""

    def read(self, path: Path, request: dict[str, Any], read: Callable[[Tick], Any], form: Any, /) -> Any:
        """Return what was found at a path for a request, of a form that arrays are read as, or read it now."""

    def __hash__(self) -> int:
        """Return a hash: sources that are open are found by it."""


class RowArray(Protocol):
    """An array-like (n, …) that is read by slices of rows: an array, or what reads one from the disk.

    One that decodes whole chunks has `kept_bytes`, of each reading thread, and `decoding_bytes`, beside its result; one
    that decodes each row for itself has `take_rows`, which returns those of some numbers.
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
    """The columns of the table that a model was trained on, by their names; () where its inputs have none.

    header: whether texts begin with the names, else these are f0, f1, … . encoding: how cells become inputs, None for
    numbers alone. decimal: what stands before the decimals in texts, a point or a comma.
    """

    inputs: tuple[str, ...]
    target: str | None = None
    header: bool = True
    weights: str | None = None
    groups: str | None = None
    encoding: TableEncoding | None = None
    decimal: str = "."

    def described(self) -> dict[str, Any]:
        """Return the columns as JSON-able values."""
        described = {name: getattr(self, name) for name in ("target", "header", "weights", "groups")}
        described |= {"decimal": self.decimal} if self.decimal != "." else {}
        encoding = None if self.encoding is None else self.encoding.described()
        return described | {"inputs": list(self.inputs), "encoding": encoding}

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> "Columns":
        """Return the columns that `described` made. Raises DataError where something in it cannot be, or KeyError."""
        inputs, encoding = described["inputs"], described["encoding"]
        names = [described[name] for name in ("target", "weights", "groups")]
        are_names = isinstance(inputs, list) and all(isinstance(name, str) for name in inputs)
        if not are_names or not all(isinstance(name, str | None) for name in names):
            raise DataError(f"columns are {described!r:.60}, expected names")
        if type(described["header"]) is not bool or described.get("decimal", ".") not in (".", ","):
            raise DataError(f"columns are {described!r:.60}, expected true or false for header, . or , for decimal")
        known = None if encoding is None else TableEncoding.from_description(encoding)
        return cls(**{**described, "inputs": tuple(inputs), "encoding": known})

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


class LearnedRows(NamedTuple):
    """Training rows that moments are fitted to: inputs (m, d), and which rows of the training part they are (m,)."""

    inputs: RowArray
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Source:
    """Examples with a task and a train/test split, read by row blocks; safe to read from several threads.

    classes : sorted labels as Python scalars; () for regression
    input_shape : of one input: (H, W) of images, (H, W, 3) in colour, (d,) of tables; input_dtype : as they are read
    image_scale : what is white in images as they were given, which are read as bytes; None for other inputs
    standardise : whether inputs are to be z-scored with the statistics of the training part
    identity : all that determines what `read` returns, as JSON-able values; no path, no time
    targets : part → targets (n,): int64 indices into `classes`, or float64 for regression
    weights : part → weights (n,) f8 above 0 of its rows; None where they count 1 each
    file_rows : part → numbers (n,) i8 of its rows in the data as given; None where these are all
    groups : keys (n,) u8 of the groups of the training rows (`features.row_draws`); None where they have none
    row_keys : returns the keys of training rows, from a first one to before another; None: inputs have to be read
    columns : the columns of the file that the inputs are from; None where it is no table
    notes : what was assumed when the data were read, a line each: header, target column, classes
    file_names : part → names (n,) text of the files that a row is each, in the order of the data as given; or None
    learned : returns the rows that moments are fitted to; None: all training rows
    in_order : yields (part, first row in it, inputs) of all rows as the files have them; None where rows are read in
        any order, at no cost
    """

    name: str  # short, never a path
    task: str
    classes: tuple
    n_train: int
    n_test: int
    input_shape: tuple[int, ...]
    input_dtype: str
    standardise: bool
    read_rows: Callable[[Part, int, int], np.ndarray]
    targets: Mapping[Part, np.ndarray]
    identity: dict[str, Any]
    weights: Mapping[Part, np.ndarray | None]
    file_rows: Mapping[Part, np.ndarray | None]
    groups: np.ndarray | None = None
    row_keys: Callable[[int, int], RowKeys] | None = None
    columns: Columns | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    file_names: Mapping[Part, np.ndarray] | None = None
    memory: SourceMemory = SourceMemory()
    image_scale: float | None = None
    learned: Callable[[], LearnedRows] | None = None
    in_order: Callable[[], Iterator[tuple[Part, int, np.ndarray]]] | None = None

    def read(self, part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs (stop - start, *input_shape) and targets (stop - start,).

        Inputs are uint8, float32 or float64. Raises DataError naming array and row where a value is not finite,
        IndexError where the rows do not exist.
        """
        n = self.n_train if part == "train" else self.n_test
        if not 0 <= start <= stop <= n:
            raise IndexError(f"rows {start} to {stop} of the {part} part of {self.name} do not exist; it has {n}")
        return self.read_rows(part, start, stop), self.targets[part][start:stop].copy()
