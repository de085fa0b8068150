"""Where examples come from: a small description, which tasks carry and open, and the open source."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from features.cell_text import MOST_CATEGORIES
from features.row_draws import RowKeys
from features.tables.encoding import TableEncoding

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")
NAMED = ("mnist", "usps", "boston", "abalone", "sinc", "digits")


@dataclass(frozen=True)
class SourceSpec:
    """What to read; picklable and JSON-able. What has no comment here is as the setting data.NAME, in its range."""

    dataset: str  # one of `NAMED`, or a path: a folder in MNIST's IDX layout, an npz file, a table or a zarr store
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
    seed: int = 0  # of the split, of the order from which n_train takes, and of what is generated
    copies: int = 1  # rows that each training image becomes, see `features.deformed_copies`
    deform: str | None = None
    kept: str | None = None  # the folder of what was found in tables and pictures; None: tables are read into memory


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
        described = {name: getattr(self, name) for name in ("target", "header", "weights", "groups")}
        described |= {"decimal": self.decimal} if self.decimal != "." else {}
        encoding = None if self.encoding is None else self.encoding.described()
        return described | {"inputs": list(self.inputs), "encoding": encoding}

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> "Columns":
        """Return the columns that `described` made."""
        encoding = described["encoding"]
        known = None if encoding is None else TableEncoding.from_description(encoding)
        return cls(**{**described, "inputs": tuple(described["inputs"]), "encoding": known})

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
    """Examples with a task and a train/test split, read by row blocks; safe to read from several threads."""

    name: str  # short, never a path
    task: str
    classes: tuple  # sorted labels as Python scalars; () for regression
    n_train: int
    n_test: int
    input_shape: tuple[int, ...]  # of one input: (H, W) of images, (H, W, 3) in colour, (d,) of tables
    input_dtype: str  # as inputs are read
    standardise: bool  # whether inputs are to be z-scored with the statistics of the training part
    read_rows: Callable[[Part, int, int], np.ndarray]
    targets: Mapping[Part, np.ndarray]  # (n,): int64 indices into `classes`, or float64 for regression
    identity: dict[str, Any]  # all that determines what `read` returns, as JSON-able values; no path, no time
    weights: Mapping[Part, np.ndarray | None]  # (n,) f8 above 0; None where rows count 1 each
    file_rows: Mapping[Part, np.ndarray | None]  # (n,) i8: its rows in the data as given; None where these are all
    groups: np.ndarray | None = None  # (n,) u8: keys of the groups of training rows, see `features.row_draws`
    row_keys: Callable[[int, int], RowKeys] | None = None  # of training rows; None: inputs have to be read
    columns: Columns | None = None  # of the file that the inputs are from; None where it is no table
    notes: tuple[str, ...] = ()  # what was assumed when the data were read: header, target column, classes
    warnings: tuple[str, ...] = ()  # what makes errors doubtful: rows in order, damage
    file_names: Mapping[Part, np.ndarray] | None = None  # (n,) text: files that a row is each, as the data have them
    memory: SourceMemory = SourceMemory()
    image_scale: float | None = None  # what is white in images as they were given; None for other inputs
    learned: Callable[[], LearnedRows] | None = None  # returns the rows that moments are fitted to; None: all
    # Yields (part, first row in it, inputs) of all rows as the files have them; None: any order costs nothing more.
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
