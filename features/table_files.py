"""Tables in files, to train on: which columns are inputs, how their cells become numbers, which rows are what part."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from features.cell_text import reads_as_number
from features.column_names import drop_setting
from features.encoding import Asked, EncodedRows, learn, shown
from features.errors import DataError, MissingInputError, UsageError
from features.row_source import LabelledRows, chosen_rows, count_rows, digest_rows, pieces_of, source_of
from features.source import PARTS, Columns, RowArray, Source, SourceSpec
from features.table_cells import CellReader
from features.table_header import column_names, is_header, named_column, target_column
from features.table_labels import LabelReader, WordAfterNumbersError
from features.table_layout import TableLayout, is_repeated, is_row_of_dates, layout_of, rows_of, word_columns
from features.table_parts import ArrowPart, Table, returned_memory
from features.table_paths import KNOWN, exists, is_table, table_name
from features.tables import label_array

LEAST_IDS = 20  # rows, of fewer it may be by chance that a column counts them


@dataclass(frozen=True, eq=False)
class ReadTable:
    """A table that was read: codes (n, columns) f8, the words that they stand for by column, and facts of the rows.

    labels (n,), weights (n,) f8, groups (n,) u8: keys; sha256: of all that. ids: columns that count the rows, or whose
    words all differ.
    """

    codes: RowArray
    words: tuple[tuple[str, ...] | None, ...]
    labels: np.ndarray
    weights: np.ndarray | None
    groups: np.ndarray | None
    sha256: str
    ids: tuple[str, ...] = ()


class CodeWriter(Protocol):
    """Takes the codes of rows as they are read."""

    def add(self, codes: np.ndarray, /) -> None:
        """Take the codes (rows, columns) f8 of more rows."""

    def finish(self) -> RowArray:
        """Return the codes of all rows."""


MakeCodes = Callable[[int], CodeWriter]  # of so many columns


class Keeper(Protocol):
    """Keeps tables that were read; see `pipeline.datasets.table_store`."""

    def read(self, path: Path, request: dict[str, Any], read: Callable[[MakeCodes], ReadTable], /) -> ReadTable:
        """Return a table as it was read for a request, or read it now."""

    def __hash__(self) -> int:
        """Return a hash: sources that are open are found by it."""


class CodesInMemory:
    """Collects codes in memory."""

    def __init__(self, n_columns: int) -> None:
        self._blocks = [np.empty((0, n_columns))]

    def add(self, codes: np.ndarray, /) -> None:
        """Take the codes of more rows."""
        self._blocks.append(codes)

    def finish(self) -> np.ndarray:
        """Return the codes of all rows."""
        return np.concatenate(self._blocks)


class NotKept:
    """Reads tables into memory."""

    def read(self, path: Path, request: dict[str, Any], read: Callable[[MakeCodes], ReadTable], /) -> ReadTable:
        """Read a table."""
        return read(CodesInMemory)


def open_table(spec: SourceSpec, path: Path, keeper: Keeper | None = None) -> Source:
    """Open a table; `spec.test` is one more, whose columns are matched by name where both have names.

    The target is the column `spec.target` (a whole number is a position), else one named y, target or label, else the
    last; its labels may be text. Words and missing cells are inputs where that is asked for (`features.encoding`).
    Memory is about 60 bytes a row, and 8 a cell where there is no `keeper` of tables that were read.

    Raises DataError for a file, line, row or cell that cannot be read as asked, or a test file without one of the
    columns; UsageError where a column that is asked for is none; MissingInputError where there is no test file.
    """
    return table_source(spec, Table.in_files(path), keeper or NotKept())


def table_source(spec: SourceSpec, table: Table, keeper: Keeper) -> Source:
    """Return the examples of a table; see `open_table`."""
    test = None if spec.test is None else Path(spec.test)
    if test is not None and not is_table(test):
        raise UsageError(f"test file {test}: file type not known; give {KNOWN}")
    if test is not None and not exists(test):
        raise MissingInputError(f"test file {test}: no such file")
    asked = Asked.read(spec.categorical, spec.missing)
    layout, columns = _training_layout(spec, table)
    names = [layout.names[place] for place in layout.inputs]

    def read_now(codes: MakeCodes) -> ReadTable:
        words = word_columns(table, layout, asked)
        return _read(table, layout, CellReader(names, words, missing=asked.missing is not None, new=True), codes)

    request = {"layout": list(astuple(layout)), "asked": list(astuple(asked)), "encoded": asked != Asked()}
    read = keeper.read(table.path, request, read_now)
    name = table_name(table.path)
    identity = {"source": "csv"}
    rows = LabelledRows(read.codes, label_array(read.labels, "y"), read.weights, read.groups)
    if asked != Asked():
        own = test is not None
        counted = count_rows(spec, rows, " of train" if own else "")
        training = chosen_rows(spec, [counted], name, split=not own)[0]
        pieces = partial(pieces_of, read.codes.__getitem__, training, 8 * len(names))
        try:
            encoding, places = learn(names, read.words, pieces, asked)
        except DataError as error:
            raise DataError(f"{table.path}: {error}") from None
        columns, identity["encoding"] = replace(columns, encoding=encoding), encoding.digest()
        rows = rows._replace(inputs=EncodedRows(read.codes, encoding, places))
    given, digests = [rows], [read.sha256]
    if test is not None:
        of_test, sha256 = _read_known(Table.in_files(test), columns, len(names), rows.labels, keeper)
        given, digests = [*given, of_test], [*digests, sha256]
    sha256s = dict(zip(PARTS, digests, strict=True)) if len(given) > 1 else digests[0]
    source = source_of(spec, name, given, True, identity | {"sha256": sha256s})
    notes = _column_notes(columns, rows.inputs.shape[1]) + _id_notes(read.ids, layout)
    return replace(source, columns=columns, notes=(*notes, *source.notes))


class CodesOfCells:
    """Codes (n, columns) f8 of a table in memory, made of its cells whenever rows are read: none are kept."""

    dtype = np.dtype(np.float64)

    def __init__(self, part: ArrowPart, reader: CellReader) -> None:
        self._part, self._reader = part, reader
        self.shape = (part.count_rows(), len(reader.names))

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return the codes of some rows. Raises DataError for the first with a cell that cannot be."""
        start, stop, _ = rows.indices(self.shape[0])
        places = range(self.shape[1])
        return self._reader.codes(self._part.rows(start, stop, places), places)


def inputs_in_memory(part: ArrowPart, asked: Asked, training: np.ndarray) -> tuple[RowArray, Columns]:
    """Return the inputs (n, d) f8 that all columns of a table become, read by slices, and how.

    training : the rows, ascending, that words and medians are learned on. Raises DataError and UsageError as
    `open_table`.
    """
    names, table = column_names(part.first_line()[1]), Table(part.path, [(part, ())])
    layout = TableLayout(part.count_rows(), True, tuple(names), tuple(range(len(names))), None)
    words, columns = word_columns(table, layout, asked), Columns(tuple(names), None, len(names))
    codes = CodesOfCells(part, CellReader(names, words, missing=asked.missing is not None, new=True))
    for _ in pieces_of(codes.__getitem__, np.arange(layout.n_rows), 8 * len(names)):
        pass  # which refuses cells, and gives every word its place
    if asked == Asked():
        return codes, columns
    pieces = partial(pieces_of, codes.__getitem__, training, 8 * len(names))
    encoding, _ = learn(names, [None if known is None else tuple(known) for known in words], pieces, asked)
    columns = replace(columns, encoding=encoding)
    return EncodedRows(CodesOfCells(part, reader_of(columns, names)), encoding), columns


def _id_notes(ids: Sequence[str], layout: TableLayout) -> tuple[str, ...]:
    """Return a note of columns that look like numbers or names of rows, and how to leave them out."""
    if not ids or not layout.header or len(ids) == len(layout.inputs):
        return ()
    return (f"columns that look like numbers or names of rows: {shown(ids)}; {drop_setting(*ids)} leaves them out",)


def reader_of(columns: Columns, names: Sequence[str]) -> CellReader:
    """Return what reads the cells of columns with such names as the training rows had them."""
    if columns.encoding is None:
        return CellReader(names, [None] * len(names))
    words = [
        None if known is None else {word: k for k, word in enumerate(known)}
        for known in (column.words for column in columns.encoding.columns)
    ]
    return CellReader(names, words, missing=columns.encoding.missing)


def _column_notes(columns: Columns, n_inputs: int) -> tuple[str, ...]:
    """Return what the header and the target were taken for, and which columns are encoded."""
    encoded = columns.encoding.notes() if columns.encoding is not None else ()
    if columns.target is None:
        n_columns = n_inputs if columns.encoding is None else len(columns.encoding.columns)
        last = n_columns + len(columns.other_places)
        return f"header: no, target: column {columns.target_place} of 0 to {last}", *encoded
    header = f"header: yes, target: column {columns.target_place} ({columns.target})"
    if columns.chosen:
        header = f"header: yes, target: {columns.target}, inputs: {shown(columns.inputs)}"
    if not columns.inputs:
        return header, "names repeat in the header: a model of it matches columns by position", *encoded
    unnamed = "a column without a name is an input like the others; take it out if it counts the rows"
    return header, *([unnamed] if "" in columns.inputs else []), *encoded


def _training_layout(spec: SourceSpec, table: Table) -> tuple[TableLayout, Columns]:
    """Return the layout of a table, whose rows are not counted yet, and the columns of the model."""
    path, (_, first) = table.path, table.first_line()
    if not first:
        raise DataError(f"{path}: is empty; rows of numbers are needed")
    header = table.has_names or any(is_header(first, name) for name in (spec.target, spec.weights, spec.groups))
    if header and spec.target not in column_names(first):
        header = not (is_row_of_dates(table) or (spec.categorical is not None and is_repeated(table)))
    unreadable = next(
        (name for name in map(str.strip, first) if header and re.search("[\\x00-\\x1f\\x7f-\\x9f]", name)), None
    )
    if unreadable is not None:
        raise DataError(f"{path}: the name of a column has control characters ({unreadable!r:.60}); rename it")
    asked = {"weights": spec.weights, "groups": spec.groups}
    others = {what: named_column(first, header, name, path, what) for what, name in asked.items() if name is not None}
    of_folders = range(len(first) - len(table.partitioned), len(first))
    target = target_column(first, header, spec.target, path, {*others.values(), *of_folders})
    roles = {"target": target, **others}
    taken = tuple(roles.values())
    for place in taken:
        both = [role for role, of_role in roles.items() if of_role == place]
        if len(both) > 1:
            called = first[place].strip() if header else place
            raise UsageError(f"{path}: column {called} is both {' and '.join(both)}; name another one")
    if len(first) < 1 + len(taken):
        few = "one column" if len(first) == 1 else f"{len(first)} columns"
        raise DataError(f"{path}: has {few}; inputs and {' and '.join(('a target', *others))} are needed")
    names = column_names(first) if header else [str(k) for k in range(len(first))]
    every = [place for place in range(len(names)) if place not in taken]
    places = _chosen_places(spec, names, header, every, path)
    chosen = [names[place] for place in places]
    are_distinct = len({*chosen, names[target]}) == len(chosen) + 1  # else no name tells a column from another
    named = {what: names[place] for what, place in others.items() if header}
    index = {what: sum(other < place for other in (*places, *taken)) for what, place in others.items()}
    columns = Columns(
        inputs=tuple(chosen) if header and are_distinct else (),
        target=names[target] if header else None,
        target_index=sum(place < target for place in places),
        chosen=len(places) < len(every),
        weights=named.get("weights"),
        weights_index=index.get("weights"),
        groups=named.get("groups"),
        groups_index=index.get("groups"),
    )
    return TableLayout(0, header, tuple(names), tuple(places), target, **others), columns


def _chosen_places(spec: SourceSpec, names: list[str], header: bool, every: list[int], path: Path) -> list[int]:
    """Return the places of the inputs in their order in the file: all that may be, or those that are asked for."""
    asked = spec.columns if spec.columns is not None else spec.drop
    if asked is None:
        return every
    key = "data.columns" if spec.columns is not None else "data.drop"
    if spec.columns is not None and spec.drop is not None:
        raise UsageError("data.columns and data.drop: name the inputs, or what is none; leave one of them out")
    if not header:
        raise UsageError(f"{key}: {path} has no header; give it one to choose columns by name")
    for name in asked:
        if name in names and not any(names[place] == name for place in every):
            what = {spec.weights: "the weights", spec.groups: "the groups"}.get(name, "the target")
            raise UsageError(f"{key}: {name!r} is {what}; leave it out, or name another column for that")
        if names.count(name) != 1:
            fault = "stands more than once in the header" if name in names else "is no column"
            raise UsageError(f"{key}: {name!r} {fault} of {path}, which has {', '.join(names)[:400]}")
    places = [place for place in every if (names[place] in asked) == (spec.columns is not None)]
    if not places:
        raise UsageError(f"{key}: leaves no input of {path}")
    return places


def _read(
    table: Table,
    layout: TableLayout,
    reader: CellReader,
    make: MakeCodes,
    *,
    as_words: bool = False,
    trained: bool = False,
) -> ReadTable:
    """Return all rows of a table; as_words: whether labels are words, all of them; trained: whether a model knows it.

    Raises DataError for the first row that cannot be read, or a first label that looks like a name.
    """
    labels, path = LabelReader(layout.names[layout.target or 0], as_words), table.path
    codes, weights, groups = make(len(layout.inputs)), list[np.ndarray](), list[np.ndarray]()
    digest, n_rows, counting = hashlib.sha256(), 0, np.arange(len(layout.inputs))
    first = np.empty((1, len(layout.inputs)))
    try:
        with returned_memory():
            for rows in rows_of(table, layout, reader, labels.add):
                codes.add(rows.codes)
                digest.update(rows.codes.tobytes())
                first = rows.codes[:1] if not n_rows else first
                numbers = first[:, counting] + np.arange(n_rows, n_rows + len(rows.codes))[:, None]
                counting = counting[(rows.codes[:, counting] == numbers).all(axis=0)]
                n_rows += len(rows.codes)
                weights += [] if rows.weights is None else [rows.weights]
                groups += [] if rows.groups is None else [rows.groups]
    except WordAfterNumbersError:
        return _read(table, layout, reader, make, as_words=True, trained=trained)
    unlike = None if layout.header or trained else labels.first_unlike_others()
    if unlike is not None:
        label, fault = unlike[0][:40], f"{path}: line {table.first_line()[0]} has the target {unlike[0][:40]!r}"
        remedy = f"if it is a header, name the target column (--target {label}), else mend the line or leave it out"
        raise DataError(f"{fault}, {unlike[1]}; {remedy}")
    values = labels.values(f"{path}, the target" if trained else f"{path}, column {labels.name}")
    if not len(values):
        raise DataError(f"{path}: has a header but no rows")
    of_rows, keys = (np.concatenate(arrays) if arrays else None for arrays in (weights, groups))
    digest.update(repr((len(values), len(layout.inputs))).encode())
    for array in (values, of_rows, keys):
        digest.update(b"" if array is None else digest_rows(array).encode())
    words = tuple(None if known is None else tuple(known) for known in reader.words)
    ids = tuple(layout.names[layout.inputs[k]] for k in counting.tolist()) if n_rows >= LEAST_IDS else ()
    return ReadTable(codes.finish(), words, values, of_rows, keys, digest.hexdigest(), ids)


def _read_known(
    table: Table, columns: Columns, n_columns: int, labels: np.ndarray, keeper: Keeper
) -> tuple[LabelledRows, str]:
    """Return the rows of a table whose columns are those of one with such labels, and their sha256."""
    is_text = labels.dtype.kind == "U"
    known = np.unique(labels).tolist() if is_text else ()

    def read_now(codes: MakeCodes) -> ReadTable:
        layout = layout_of(table, None, columns, n_columns, known, labelled=True)
        reader = reader_of(columns, [layout.names[place] for place in layout.inputs])
        return _read(table, layout, reader, codes, as_words=is_text, trained=True)

    encoding = None if columns.encoding is None else columns.encoding.described()
    request = {
        "columns": [*astuple(replace(columns, encoding=None))],
        "encoding": encoding,
        "known": list(known),
        "encoded": False,
    }
    read = keeper.read(table.path, request, read_now)
    if read.labels.dtype.kind == "U" and not is_text:
        row = next(row for row, text in enumerate(read.labels.tolist()) if not reads_as_number(text))
        text = read.labels[row].item()[:40]
        raise DataError(f"{table.path}: row {row} has the target {text!r}, those of the training file are numbers")
    inputs = read.codes if columns.encoding is None else EncodedRows(read.codes, columns.encoding)
    rows = LabelledRows(inputs, label_array(read.labels, "y of test"), read.weights, read.groups)
    return rows, read.sha256
