"""Tables to train on: learned in one reading, and read once more, in order, to write their features.

The first reading learns types, words, medians, labels, weights, groups, and whether the table can be used as it is. It
keeps the codes of a sample of the rows, or of all rows of a small table.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from features.cell_text import looks_like_cell
from features.errors import CHANGED, DataError, MissingInputError, UsageError
from features.input_files import KNOWN_TABLES, is_table, table_files, table_name
from features.row_draws import RowKeys, draw_sample, group_keys, row_keys
from features.rows import InOrder, Mapped, RowArray, Rows, digest_rows, give_back_memory, root_of, some_of
from features.source import (
    PARTS,
    Columns,
    Keeper,
    Source,
    SourceSpec,
    Tick,
    chosen_rows,
    count_rows,
    first_reading,
    source_of,
)
from features.tables.cells import distinct, labels_of, texts_of
from features.tables.encoding import EncodingRequest, RowOrder, TableEncoding, Words, learn_encoding, unknown_words
from features.tables.learning import CellReader, Learner, PointsOfThree
from features.tables.readers import Batch, CsvFile, Table, TableLayout, model_layout, training_layout
from features.targets import MOST_TABLE_CLASSES, check_finite_targets, detect_task
from features.words import drop_setting, normal_name, shown

SAMPLE_CELLS = 1 << 23  # The first reading keeps at most this many codes, of 8 bytes each.


def codes_of(
    table: Table, layout: TableLayout, reader: Learner | CellReader, *, labelled: bool
) -> Iterator[tuple[Batch, NDArray[np.float64]]]:
    """Yield the batches of a table and the codes (n, columns) f8 of their inputs.

    labelled: whether the batches hold labels, weights and groups as well.
    """
    roles = [layout.target, layout.weights, layout.groups] if labelled else []
    for batch in table.batches({*layout.inputs, *(place for place in roles if place is not None)}):
        yield batch, reader.codes(batch, layout.inputs)


def labels_in(batch: Batch, layout: TableLayout) -> "pyarrow.Array":
    """Return the labels of a batch as they stand there. Raises DataError for a row without one."""
    place = layout.target or 0
    values = batch.columns[place]
    row = texts_of(values).is_null().index(True).as_py()
    if row < 0:
        return values
    text = values[row].as_py()
    found = f" ({text!r:.60}); if that is one, write it otherwise" if text else ""
    raise DataError(f"{batch.where(row)}, column {layout.title(place)} has no label{found}")


def _groups_in(batch: Batch, layout: TableLayout) -> RowKeys:
    place = layout.groups or 0
    texts, of_rows = distinct(batch.columns[place])
    if None in texts:
        where = batch.where(int(np.argmax(of_rows == texts.index(None))))
        raise DataError(f"{where}, column {layout.title(place)} names no group; name one for each row")
    return group_keys(np.array(texts, dtype=str))[of_rows]


@dataclass(frozen=True, eq=False)
class ReadTable:
    """What the first reading of a table found."""

    words: Words
    labels: NDArray[Any]  # (n,)
    weights: NDArray[np.float64] | None  # (n,)
    groups: RowKeys | None  # (n,)
    keys: RowKeys  # (n,): keys of the inputs; equal rows have equal keys, also in the test file
    codes_sha256: str
    sha256: str  # the digest of all that was read, with names and words
    left_out: Sequence[int] = ()  # inputs asked for that only number the rows; the other fields are without them
    notes: Sequence[str] = ()  # on the cells
    warnings: Sequence[str] = ()  # on the order of the rows
    encoding: Mapping[str, Any] | None = None  # a described `TableEncoding`; None for numbers alone, or a test file
    unknown: Mapping[str, int] = field(default_factory=dict)  # number of cells of each column with an unknown word
    # A sample of the rows (m,), ascending, and their codes (m, columns); None where it was not kept.
    sample: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None

    @property
    def held(self) -> NDArray[np.float64] | None:
        """The codes of all rows; None where they are not in memory."""
        return self.sample[1] if self.sample is not None and len(self.sample[0]) == len(self.labels) else None

    def rows(self, table: Table, layout: TableLayout, encoding: TableEncoding | None, *, in_memory: bool) -> Rows:
        """Return the rows as they were given; layout: that of the table that was read, without `left_out`."""
        codes = _codes_again(table, layout, self) if self.held is None else self.held
        codes = codes[:] if in_memory else codes
        return Rows(encoded(codes, encoding, self.words), self.labels, self.weights, self.keys, self.groups)


def encoded(codes: RowArray, encoding: TableEncoding | None, words: Words) -> RowArray:
    """Return the inputs (n, d) f8 that codes (n, columns) of words are; codes are inputs where nothing is encoded."""
    if encoding is None:
        return codes
    shape = (len(encoding.inputs),)
    return Mapped(codes, lambda values, _: encoding.apply(encoding.placed(values, words)), shape, np.float64)


def _codes_again(table: Table, layout: TableLayout, found: ReadTable) -> RowArray:
    """Return the codes of a table, read in order; DataError where they differ from those of the first reading."""
    n_rows = len(found.labels)

    def blocks() -> Iterator[tuple[NDArray[np.float64]]]:
        digest, n_read = hashlib.sha256(), 0
        reader = CellReader(layout.input_names, found.words, True)
        for _, codes in codes_of(table, layout, reader, labelled=False):
            digest.update(codes.tobytes())
            n_read += len(codes)
            if n_read >= n_rows and digest.hexdigest() != found.codes_sha256:
                break
            yield (codes,)
        raise DataError(f"{table.path}: {CHANGED}")

    shape = (len(layout.inputs),)
    return InOrder(blocks, (n_rows, *shape), table.parts[0].reading_bytes()).array(0, shape)


class TrainingTable:
    """A table to train on: its first reading, and the sample of its rows that is learned from.

    Raises DataError for a file, line, row or cell that cannot be read, with all columns that need a setting;
    UsageError where a column that is asked for is none.
    """

    def __init__(self, spec: SourceSpec, path: Path, keeper: Keeper | None) -> None:
        self.table = Table.in_files(path, header=spec.header, decimal=spec.decimal)
        self._spec, self._keeper, self._path = spec, keeper, path
        self._every, columns = training_layout(spec, self.table)
        self._asked = asked = EncodingRequest.read(spec.categorical, spec.missing, spec.categories)
        request = {"layout": astuple(self._every), "header": spec.header, "asked": astuple(asked), "task": spec.task}
        request |= {"decimal": spec.decimal, "named": spec.columns}
        if asked.encodes:  # The encoding depends on the training rows.
            request["encoded"] = [spec.seed, spec.n_train, spec.test_fraction, spec.test is None]
        self.found = first_reading(keeper, path, partial(table_files, path), request, self._learn, ReadTable)
        self.layout = self._every.without(self.found.left_out)
        described = self.found.encoding
        encoding = None if described is None else TableEncoding.from_description(described)
        self.columns = replace(columns, inputs=tuple(self.layout.input_names), encoding=encoding)

    def _learn(self, tick: Tick) -> ReadTable:
        """Return what one reading finds; if the first batch misjudged which columns number the rows, read again."""
        spec, table, layout, asked = self._spec, self.table, self._every, self._asked
        named = {*map(normal_name, spec.columns or ()), *asked.columns}
        left_out: tuple[int, ...] | None = None
        while True:
            learner = Learner(table.path, layout.input_names, asked)
            found, order, place = _read(table, layout, learner, spec, tick, spec.task, named, left_out)
            if order.left_out == found.left_out:
                break
            left_out = order.left_out
        assert found.sample is not None
        drawn, codes = found.sample
        inputs = layout.without(order.left_out)
        codes = np.delete(codes, order.left_out, axis=1) if order.left_out else codes  # np.delete always copies.
        _check_names(table, inputs, named)
        learner.check(spec, order.left_out, place)
        warnings = tuple(order.warnings([layout.title(place) for place in layout.inputs]))
        found = replace(found, sample=(drawn, codes), warnings=warnings)
        if not asked.encodes:
            return found
        rows = Rows(codes, found.labels, found.weights, found.keys, found.groups)
        counted, _ = count_rows(spec, rows)
        task = spec.task or detect_task(found.labels[counted], MOST_TABLE_CLASSES, _where(table, layout))
        train, *_ = chosen_rows(spec, [rows], [counted], table_name(table.path), task, split=spec.test is None)
        codes = codes if len(train) == len(found.labels) else codes[np.isin(drawn, train)]
        try:
            encoding = learn_encoding(inputs.input_names, found.words, codes, asked)
        except DataError as error:
            raise DataError(f"{table.path}: {error}") from None
        return replace(found, encoding=encoding.described())

    def sampled(self, train: Rows) -> Rows:
        """Return the training rows that are in the sample, encoded as they are read, as they may be many.

        The sample goes with the first call where it is not held anyway, as it is large; then the table is read again.
        """
        found = self.found if self.found.sample is not None else self._learn(lambda n_rows: None)
        if found.sha256 != self.found.sha256:
            raise DataError(f"{table_name(self._path)}: {CHANGED}")
        self.found = found if self._keeper is None else replace(self.found, sample=None)
        assert found.sample is not None
        drawn, codes = found.sample
        numbers = np.arange(len(train)) if train.numbers is None else train.numbers
        chosen = np.flatnonzero(np.isin(drawn, numbers))
        places = np.searchsorted(numbers, drawn[chosen])
        inputs = encoded(codes[chosen], self.columns.encoding, found.words)
        return Rows(inputs, train.y[places], some_of(train.weights, places), numbers=drawn[chosen])

    def notes(self) -> Iterator[str]:
        layout, names = self.layout, self.table.names
        yield from _file_notes(self.table, self.found)
        like_cells = [name for name in names if looks_like_cell(name)]
        if like_cells and isinstance(self.table.parts[0], CsvFile):
            told = f"columns are called {shown(like_cells)}"
            yield f"{told}; if these are cells of the first row, train with `data.header=false`"
        yield f"target: {layout.title(layout.target or 0)}; inputs: {shown(map(layout.title, layout.inputs))}"
        yield from self.columns.encoding.notes() if self.columns.encoding is not None else ()
        read = {*layout.inputs, layout.target, layout.weights, layout.groups}
        if left_out := [name for place, name in enumerate(names) if place in self.table.index - read]:
            yield f"left out, the index of a pandas frame: {shown(left_out)}; name it to use it"
        yield from self.found.notes


def open_table(spec: SourceSpec, path: Path, keeper: Keeper | None = None) -> Source:
    """Open a table; `spec.test` is a second one, whose columns are matched by name where both have names.

    The target is the column `spec.target`, else one named y, target or label, else the last; its labels may be text.
    Words and missing cells are inputs if asked for. Memory is about 60 bytes a row and 64 MiB; without a `keeper` also
    8 bytes a cell, as rows are read in any order.

    Raises as `TrainingTable`, DataError for a test file without one of the columns, MissingInputError.
    """
    test = None if spec.test is None else Path(spec.test)
    if test is not None and not is_table(test):
        raise UsageError(f"test file {test}: file type not known; give {KNOWN_TABLES}")
    if test is not None and not test.exists():
        raise MissingInputError(f"test file {test}: no such file")
    read = TrainingTable(spec, path, keeper)
    found, encoding, is_whole = read.found, read.columns.encoding, read.found.held is not None
    rows = found.rows(read.table, read.layout, encoding, in_memory=keeper is None)
    given, digests, labels_names = [rows], [found.sha256], [_where(read.table, read.layout)]
    notes, identity = list[str](), dict[str, Any](source="csv")
    if encoding is not None:
        identity["encoding"] = encoding.digest()
    if test is not None:
        of_test, sha256, notes = _open_test(spec, test, read, keeper)
        given, digests = [*given, of_test], [*digests, sha256]
        labels_names.append(f"{test}: column {read.columns.target}")
    identity["sha256"] = dict(zip(PARTS, digests, strict=True)) if test is not None else digests[0]
    source = source_of(spec, table_name(path), given, True, identity, labels_names=labels_names)
    codes, chosen = root_of(rows.X), source.test.numbers
    if test is None and encoding is not None and isinstance(codes, np.ndarray) and chosen is not None:
        counts = encoding.unknown(encoding.placed(codes[chosen], found.words))
        notes += [f"test part: {line}" for line in unknown_words(counts)]
    give_back_memory()
    return replace(
        source,
        notes=(*read.notes(), *source.notes, *notes),
        warnings=tuple(found.warnings),
        columns=read.columns,
        sampled=None if is_whole else read.sampled,
    )


def learning_bytes(spec: SourceSpec) -> int:
    """Return how many bytes the first reading of a table takes beside 60 for each row, from headers and sizes."""
    path = Path(spec.dataset)
    size = sum(file.stat().st_size for file in table_files(path))
    return Table.in_files(path, header=spec.header).parts[0].reading_bytes() + min(16 * SAMPLE_CELLS, 32 * size)


def _where(table: Table, layout: TableLayout) -> str:
    assert layout.target is not None
    return f"{table.path}: column {layout.title(layout.target)}"


def _check_names(table: Table, layout: TableLayout, named: Collection[str]) -> None:
    """Raise DataError where inputs have no name: that of a frame's index that was shuffled, or of a lost column."""
    nameless = [place for place in layout.inputs if place in table.nameless and layout.names[place] not in named]
    if nameless:
        options = drop_setting(*(layout.names[place] for place in nameless))
        remedy = f"leave them out ({options}), or name them if they are inputs"
        raise DataError(f"{table.path}: columns without a name: {shown(map(layout.title, nameless))}; {remedy}")


class _Sample:
    """Codes of rows, up to SAMPLE_CELLS; a larger table leaves a share of its rows, which is halved as they come."""

    def __init__(self, seed: int, n_columns: int) -> None:
        self._seed, self._share, self._n_columns, self._n_drawn = seed, 1.0, n_columns, 0
        self._drawn, self._codes = [np.empty(0, np.int64)], [np.empty((0, n_columns))]

    def add(self, rows: NDArray[np.int64], codes: NDArray[np.float64]) -> None:
        self._drawn.append(rows)
        self._codes.append(codes)
        if self._share < 1.0:
            self._keep(len(self._drawn) - 1)
        self._n_drawn += len(self._drawn[-1])
        while self._n_drawn * self._n_columns > SAMPLE_CELLS:
            self._share /= 2
            for k in range(len(self._drawn)):
                self._keep(k)
            self._n_drawn = sum(map(len, self._drawn))

    def _keep(self, k: int) -> None:
        kept = draw_sample(self._seed, self._share, self._drawn[k].astype(np.uint64))
        self._drawn[k], self._codes[k] = self._drawn[k][kept], self._codes[k][kept]

    def found(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the rows (m,), ascending, and their codes (m, columns)."""
        return np.concatenate(self._drawn), np.concatenate(self._codes)


def _read(
    table: Table,
    layout: TableLayout,
    reader: Learner | CellReader,
    spec: SourceSpec,
    tick: Tick,
    task: str | None,
    named: Collection[str] = (),
    left_out: tuple[int, ...] | None = (),
) -> tuple[ReadTable, RowOrder, Callable[[int], str]]:
    """Return what one pass over a table finds (without an encoding), its row order, and the function that names a row.

    task: decides how labels are read; named: columns that were asked for; left_out: inputs of which only the codes are
    wanted; None: those that number the rows of the first batch.
    """

    def order_of(codes: NDArray[np.float64], starts: NDArray[np.int64]) -> RowOrder:
        return RowOrder.of(layout.input_names, reader.words, codes, starts, named)

    def place(row: int) -> str:
        first, batch = next(one for one in reversed(batches) if one[0] <= row)
        return batch.place(row - first) + (f" of {batch.path.name}" if len(table.parts) > 1 else "")

    digest, sample, batches, n_rows = hashlib.sha256(), _Sample(spec.seed, len(layout.inputs)), [], 0
    weights, groups, keys = list[NDArray[np.float64]](), list[RowKeys](), list[RowKeys]()
    points = PointsOfThree(table, [*layout.inputs, layout.target] if isinstance(reader, Learner) else [])
    of_weights, of_labels = CellReader([layout.names[layout.weights or 0]], [None]), list["pyarrow.Array"]()
    for batch, codes in codes_of(table, layout, reader, labelled=True):
        if left_out is None:
            left_out = order_of(codes, np.zeros(1, np.int64)).left_out
        of_labels.append(labels_in(batch, layout))
        weights += [] if layout.weights is None else [of_weights.codes(batch, [layout.weights])[:, 0]]
        groups += [] if layout.groups is None else [_groups_in(batch, layout)]
        points.add(batch)
        batches.append((n_rows, replace(batch, columns={})))
        sample.add(np.arange(n_rows, n_rows + len(codes)), codes)
        n_rows += len(codes)
        used = np.delete(codes, left_out, axis=1) if left_out else codes
        digest.update(used.tobytes())
        keys.append(row_keys(used))
        tick(len(codes))
    if not n_rows:
        raise DataError(f"{table.path}: has columns but no rows")
    drawn, codes = sample.found()
    starts = np.searchsorted(drawn, [first for first, batch in batches if not batch.start])
    where, left_out = _where(table, layout), left_out or ()
    labels = labels_of(of_labels, where, task, place)
    if labels.dtype.kind == "f":
        check_finite_targets(labels, where)
    known = (words for k, words in enumerate(reader.words) if k not in left_out)
    words = tuple(None if one is None else tuple(one) for one in known)
    names = (*layout.without(left_out).input_names, layout.title(layout.target or 0))
    found = ReadTable(
        words=words,
        labels=labels,
        weights=np.concatenate(weights) if weights else None,
        groups=np.concatenate(groups) if groups else None,
        keys=np.concatenate(keys),
        codes_sha256=digest.hexdigest(),
        sha256="",
        left_out=left_out,
        notes=points.notes(layout),
        unknown=dict(reader.unknown) if isinstance(reader, CellReader) else {},
        sample=(drawn, codes),
    )
    sha256 = hashlib.sha256(repr((found.codes_sha256, n_rows, names, words)).encode())
    for array in (found.labels, found.weights, found.groups):
        sha256.update(b"" if array is None else digest_rows(array).encode())
    return replace(found, sha256=sha256.hexdigest()), order_of(codes, starts), place


def _open_test(
    spec: SourceSpec, path: Path, train: TrainingTable, keeper: Keeper | None
) -> tuple[Rows, str, list[str]]:
    """Return the rows of a test file, their digest, and notes."""
    table, columns = Table.in_files(path, header=spec.header, decimal=spec.decimal), train.columns
    layout = model_layout(table, None, columns, len(train.layout.inputs), labelled=True)
    reader = replace(cell_reader(columns, layout.input_names), words=train.found.words)
    read_as = "words" if train.found.labels.dtype.kind == "U" else "regression"
    request = {"layout": astuple(layout), "header": spec.header, "words": train.found.words, "missing": reader.missing}
    request |= {"labels": read_as, "decimal": spec.decimal}

    def read(tick: Tick) -> ReadTable:
        return _read(table, layout, reader, spec, tick, read_as)[0]

    found = first_reading(keeper, path, partial(table_files, path), request, read, ReadTable)
    if found.labels.dtype.kind != "U" and train.found.labels.dtype.kind == "U":
        found = replace(found, labels=found.labels.astype(str))
    rows = found.rows(table, layout, columns.encoding, in_memory=keeper is None)
    notes = [*_file_notes(table, found), *unknown_words(found.unknown)]
    return rows, found.sha256, [f"test part: {line}" for line in notes]


def cell_reader(columns: Columns, names: Sequence[str]) -> CellReader:
    """Return the reader of columns with such names, with the words of the training rows."""
    if columns.encoding is None:
        return CellReader(names, [None] * len(names))
    words = [column.words for column in columns.encoding.columns]
    return CellReader(names, words, columns.encoding.missing)


def _file_notes(table: Table, found: ReadTable) -> list[str]:
    told = table.files_told()
    return [f"{told}, {len(found.labels)} rows"] if told else []
