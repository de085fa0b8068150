"""Tables to train on: learned in one reading, and read once more, in order, by whoever writes their features.

The first reading learns types, words, medians, labels, weights, groups, and whether the table can be used as it is. It
keeps the codes of a sample of the rows, of all where the table is small.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray

from features.cell_text import drop_setting, looks_like_cell, normal_name, setting, shown
from features.errors import CHANGED, DataError, MissingInputError, UsageError
from features.input_files import KNOWN_TABLES, existing_files, is_table, table_name
from features.row_draws import RowKeys, draw_sample, group_keys, row_keys
from features.row_source import LabelledRows, chosen_rows, count_rows, digest_rows, source_of
from features.source import PARTS, Columns, Keeper, LearnedRows, RowArray, Source, SourceSpec, Tick
from features.tables.cells import distinct, labels_of, texts_of
from features.tables.columns import TableLayout, model_layout, training_layout
from features.tables.encoding import EncodingRequest, TableEncoding, Words, learn_encoding, unknown_words
from features.tables.learning import CellReader, Learner, PointsOfThree, check_commas
from features.tables.readers import Batch, CsvFile, Table
from features.tables.row_numbers import RowOrder
from features.targets import MOST_TABLE_CLASSES, check_finite_targets, detect_task

SAMPLE_CELLS = 1 << 23  # of the codes that the first reading keeps, 8 bytes each


class ReadRows(NamedTuple):
    """Rows of a batch: codes (n, columns) f8; labels, weights (n,) f8 and keys (n,) u8 of their groups, or None."""

    batch: Batch
    codes: NDArray[np.float64]
    labels: "pyarrow.Array | None"
    weights: NDArray[np.float64] | None
    groups: RowKeys | None


def rows_of(table: Table, layout: TableLayout, reader: Learner | CellReader, *, labelled: bool) -> Iterator[ReadRows]:
    """Yield the rows of a table by batches; without labels, weights and groups unless they are `labelled`."""
    roles = (layout.target, layout.weights, layout.groups) if labelled else (None, None, None)
    target, weights, groups = roles
    of_weights = CellReader([layout.names[weights or 0]], [None])
    for batch in table.batches({*layout.inputs, *(place for place in roles if place is not None)}):
        yield ReadRows(
            batch,
            reader.codes(batch, layout.inputs),
            None if target is None else _labels(batch, target, layout),
            None if weights is None else of_weights.codes(batch, [weights])[:, 0],
            None if groups is None else _group_keys(batch, groups, layout),
        )


def _labels(batch: Batch, place: int, layout: TableLayout) -> "pyarrow.Array":
    values = batch.columns[place]
    row = texts_of(values).is_null().index(True).as_py()
    if row < 0:
        return values
    text = values[row].as_py()
    found = f" ({text!r:.60}); if that is one, write it otherwise" if text else ""
    raise DataError(f"{batch.where(row)}, column {layout.title(place)} has no label{found}")


def _group_keys(batch: Batch, place: int, layout: TableLayout) -> RowKeys:
    texts, of_rows = distinct(batch.columns[place])
    if None in texts:
        where = batch.where(int(np.argmax(of_rows == texts.index(None))))
        raise DataError(f"{where}, column {layout.title(place)} names no group; name one for each row")
    return group_keys(np.array(texts, dtype=str))[of_rows]


@dataclass(frozen=True, eq=False)
class ReadTable:
    """What the first reading of a table found."""

    words: Words  # of each column, for their codes; None for numbers
    labels: NDArray[Any]  # (n,)
    weights: NDArray[np.float64] | None  # (n,)
    groups: RowKeys | None  # (n,)
    keys: RowKeys  # (n,) of the inputs: equal where all cells are, in the test file as in the training file
    codes_sha256: str
    sha256: str  # of all that was read, with names and words
    left_out: Sequence[int] = ()  # columns that number the rows, among those asked for: nothing else here is of them
    notes: Sequence[str] = ()  # what was seen of the cells
    warnings: Sequence[str] = ()  # what was seen of the order of the rows
    encoding: TableEncoding | None = None  # learned on the training rows; None for numbers alone and for a test file
    unknown: Mapping[str, int] = field(default_factory=dict)  # cells of each column whose word no training row has
    # Some of the rows (m,), ascending, and their codes (m, columns); None where they were not kept.
    sample: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None

    @property
    def held(self) -> NDArray[np.float64] | None:
        """The codes of all rows, None where they are not in memory."""
        return self.sample[1] if self.sample is not None and len(self.sample[0]) == len(self.labels) else None

    def as_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what was found, without codes, as arrays that `from_arrays` reads: words as JSON."""
        texts = np.unique(self.labels) if self.labels.dtype.kind == "U" else None
        labels = self.labels if texts is None else np.searchsorted(texts, self.labels)
        plain = ("words", "codes_sha256", "sha256", "left_out", "notes", "warnings", "unknown")
        record = {name: getattr(self, name) for name in plain} | {"texts": None if texts is None else texts.tolist()}
        record["encoding"] = self.encoding and self.encoding.described()
        facts = {"labels": labels, "weights": self.weights, "groups": self.groups, "keys": self.keys}
        facts["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        return {name: values for name, values in facts.items() if values is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "ReadTable":
        """Return what was found. Raises DataError, KeyError, TypeError, ... where something in it cannot be."""
        facts: dict[str, Any] = {"weights": None, "groups": None, **arrays}
        facts |= json.loads(facts.pop("record").tobytes())
        texts, described = facts.pop("texts"), facts.pop("encoding")
        facts["labels"] = facts["labels"] if texts is None else np.array(texts)[facts["labels"]]
        return cls(**facts, encoding=described and TableEncoding.from_description(described))


class EncodedRows:
    """Codes (n, columns) f8 read as inputs (n, d) f8: an array-like that encodes what is read of it."""

    def __init__(self, codes: RowArray, encoding: TableEncoding, words: Words) -> None:
        self._codes, self.encoding = codes, encoding
        self._places = [column.places(known) for column, known in zip(encoding.columns, words, strict=True)]
        self.shape = (codes.shape[0], len(encoding.inputs))
        self.dtype, self.nbytes = np.dtype(np.float64), int(getattr(codes, "nbytes", 0))
        self.in_order, self.decoding_bytes = getattr(codes, "in_order", False), getattr(codes, "decoding_bytes", 0)

    def codes(self, rows: slice) -> NDArray[np.float64]:
        """Return the codes (n, columns) of some rows: the places of words in the encoding, numbers as they are."""
        codes = np.array(self._codes[rows])
        for k, table in enumerate(self._places):
            if table is not None:
                filled = ~np.isnan(codes[:, k])
                codes[filled, k] = table[codes[filled, k].astype(np.int64)]
        return codes

    def __getitem__(self, rows: slice) -> NDArray[np.float64]:
        return self.encoding.apply(self.codes(rows))


class RowsInOrder:
    """Arrays with a row each that come in blocks, read front to back: a row before those read last begins anew.

    blocks: returns the blocks of all rows, from the first one on, each a tuple of arrays of one length.
    """

    def __init__(self, blocks: Callable[[], Iterator[tuple[NDArray[Any], ...]]]) -> None:
        self._all, self._lock = blocks, Lock()
        self._blocks: Iterator[tuple[NDArray[Any], ...]] | None = None
        self._block: tuple[NDArray[Any], ...] = ()  # the last one
        self._begin = 0  # the first row of it

    def read(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """Return the arrays of some rows, at least one."""
        taken = []
        with self._lock:
            if self._blocks is None or start < self._begin:
                self._blocks, self._begin = self._all(), 0
                self._block = next(self._blocks)
            while True:
                first, last = start - self._begin, stop - self._begin
                taken.append(tuple(array[max(first, 0) : last] for array in self._block))
                if last <= len(self._block[0]):
                    return tuple(np.concatenate(arrays) for arrays in zip(*taken, strict=True))
                self._begin += len(self._block[0])
                self._block = next(self._blocks)


class CodesInOrder:
    """Codes (n, columns) f8 of a table, read front to back; DataError where they are not those of the first reading."""

    dtype, in_order = np.dtype(np.float64), True

    def __init__(self, table: Table, layout: TableLayout, found: ReadTable) -> None:
        self._table, self._layout, self._words, self._sha256 = table, layout, found.words, found.codes_sha256
        self.shape = (len(found.labels), len(layout.inputs))
        self.decoding_bytes = table.parts[0].reading_bytes()
        self._rows = RowsInOrder(self._read)

    def __getitem__(self, rows: slice) -> NDArray[np.float64]:
        start, stop, _ = rows.indices(self.shape[0])
        return self._rows.read(start, stop)[0] if start < stop else np.empty((0, self.shape[1]))

    def _read(self) -> Iterator[tuple[NDArray[np.float64]]]:
        digest, n_rows = hashlib.sha256(), 0
        reader = CellReader(self._layout.input_names, self._words, True)
        for rows in rows_of(self._table, self._layout, reader, labelled=False):
            digest.update(rows.codes.tobytes())
            n_rows += len(rows.codes)
            if n_rows >= self.shape[0] and digest.hexdigest() != self._sha256:
                break
            yield (rows.codes,)
        raise DataError(f"{self._table.path}: {CHANGED}")


def open_table(spec: SourceSpec, path: Path, keeper: Keeper | None = None) -> Source:
    """Open a table; `spec.test` is one more, whose columns are matched by name where both have names.

    The target is the column `spec.target`, else one named y, target or label, else the last; its labels may be text.
    Words and missing cells are inputs where that is asked for. Memory is about 60 bytes a row and 64 MiB, and 8 bytes a
    cell where there is no `keeper`, as then rows are read in any order.

    Raises DataError for a file, line, row or cell that cannot be read, with all columns that need a setting, or a test
    file without one of the columns; UsageError where a column that is asked for is none; MissingInputError.
    """
    table = Table.in_files(path, header=spec.header, decimal=spec.decimal)
    test = None if spec.test is None else Path(spec.test)
    if test is not None and not is_table(test):
        raise UsageError(f"test file {test}: file type not known; give {KNOWN_TABLES}")
    if test is not None and not test.exists():
        raise MissingInputError(f"test file {test}: no such file")
    layout, columns = training_layout(spec, table)
    asked = EncodingRequest.read(spec.categorical, spec.missing, spec.categories)
    request = {"layout": astuple(layout), "header": spec.header, "asked": astuple(asked), "task": spec.task}
    request |= {"decimal": spec.decimal, "named": spec.columns}
    if asked.encodes:  # as is learned on the training rows
        request["encoded"] = [spec.seed, spec.n_train, spec.test_fraction, test is None]
    learn = partial(_learn, spec, table, layout, asked)
    found = _read_once(keeper, path, request, learn)
    layout = layout.without(found.left_out)
    columns = replace(columns, inputs=tuple(layout.input_names), encoding=found.encoding)
    rows = _labelled_rows(table, layout, found, columns.encoding, in_memory=keeper is None)
    given, digests, labels_names = [rows], [found.sha256], [_where(table, layout)]
    notes, identity = list[str](), dict[str, Any](source="csv")
    if found.encoding is not None:
        identity["encoding"] = found.encoding.digest()
    if test is not None:
        of_test, sha256, notes = _open_test(spec, test, columns, len(layout.inputs), found, keeper)
        given, digests = [*given, of_test], [*digests, sha256]
        labels_names.append(f"{test}: column {columns.target}")
    identity["sha256"] = dict(zip(PARTS, digests, strict=True)) if test is not None else digests[0]
    source = source_of(spec, table_name(path), given, True, identity, labels_names)
    notes = [*_notes(table, layout, columns, found), *source.notes, *notes]
    chosen, inputs = source.file_rows["test"], rows.inputs
    if test is None and isinstance(inputs, EncodedRows) and not inputs.in_order and chosen is not None:
        counts = inputs.encoding.unknown(inputs.codes(slice(None))[chosen])
        notes += [f"test part: {line}" for line in unknown_words(counts)]
    source = replace(source, columns=columns, notes=tuple(notes), warnings=tuple(found.warnings))
    if found.held is not None:
        return source
    return replace(source, learned=_sampled(source, found, learn, keeps=keeper is None))


def learning_bytes(spec: SourceSpec) -> int:
    """Return how many bytes the first reading of a table takes beside 60 for each row, from headers and sizes."""
    path = Path(spec.dataset)
    size = sum(file.stat().st_size for file in existing_files(path))
    return Table.in_files(path, header=spec.header).parts[0].reading_bytes() + min(16 * SAMPLE_CELLS, 32 * size)


def _read_once(
    keeper: Keeper | None, path: Path, request: dict[str, Any], read: Callable[[Tick], ReadTable]
) -> ReadTable:
    """Return what is kept of a table for such a request, or read it now."""
    return keeper.read(path, request, read, ReadTable) if keeper else read(lambda n_rows: None)


def _where(table: Table, layout: TableLayout) -> str:
    assert layout.target is not None
    return f"{table.path}: column {layout.title(layout.target)}"


def _learn(spec: SourceSpec, table: Table, layout: TableLayout, asked: EncodingRequest, tick: Tick) -> ReadTable:
    """Return what one reading of a table to train on finds. Raises DataError with all columns that need a setting.

    Which columns number the rows is guessed of the first batch; where others do in the end, the table is read again.
    """
    named = {*map(normal_name, spec.columns or ()), *asked.columns}
    left_out: tuple[int, ...] | None = None
    while True:
        learner = Learner(table.path, layout.input_names, asked)
        found, order = _read(table, layout, learner, tick, spec, spec.task, named, left_out)
        if order.left_out == found.left_out:
            break
        left_out = order.left_out
    assert found.sample is not None
    drawn, codes = found.sample
    inputs = layout.without(order.left_out)
    codes = np.delete(codes, order.left_out, axis=1) if order.left_out else codes  # np.delete copies all rows
    _check_names(table, inputs, named, found.words, codes)
    learner.check(spec, len(found.labels), order.left_out)
    titles = [layout.title(place) for place in layout.inputs]
    warnings = tuple(order.warnings(titles, drops=spec.drop is not None))
    found = replace(found, sample=(drawn, codes), warnings=warnings)
    if not asked.encodes:
        return found
    rows = LabelledRows(codes, found.labels, found.weights, found.groups, found.keys)
    counted, _ = count_rows(spec, rows)
    task = spec.task or detect_task(found.labels[counted], MOST_TABLE_CLASSES, _where(table, layout))
    train, *_ = chosen_rows(spec, [rows], [counted], table_name(table.path), task, split=spec.test is None)
    codes = codes if len(train) == len(found.labels) else codes[np.isin(drawn, train)]
    try:
        encoding = learn_encoding(inputs.input_names, found.words, codes, asked)
    except DataError as error:
        raise DataError(f"{table.path}: {error}") from None
    return replace(found, encoding=encoding)


def _check_names(
    table: Table, layout: TableLayout, named: Collection[str], words: Words, codes: NDArray[np.float64]
) -> None:
    """Raise DataError where inputs have no name: that of a frame's index that was shuffled, or of a lost column."""
    places = [(k, place) for k, place in enumerate(layout.inputs) if place in table.nameless]
    nameless = [(k, place) for k, place in places if layout.names[place] not in named]
    if nameless:
        told = shown(layout.title(place) for _, place in nameless)
        options = drop_setting(*(layout.names[place] for _, place in nameless))
        fault, remedy = "whose numbers do not rise from row to row", "name them if they are inputs"
        if any(words[k] is not None for k, _ in nameless):
            fault = "that hold words"
        elif all(np.isnan(codes[:, k]).all() for k, _ in nameless):
            fault, remedy = "and without cells", "take the separators at the ends of lines out"
        fault = f"columns without a name {fault}: {told}"
        raise DataError(f"{table.path}: {fault}; leave them out ({options}), or {remedy}")


def _read(
    table: Table,
    layout: TableLayout,
    reader: Learner | CellReader,
    tick: Tick,
    spec: SourceSpec,
    task: str | None,
    named: Collection[str] = (),
    left_out: tuple[int, ...] | None = (),
) -> tuple[ReadTable, RowOrder]:
    """Return what one reading finds, without an encoding: labels, as for a task, weights, groups, and some codes.

    named: columns that were asked for; left_out: those of which nothing but codes is wanted; None: those that number
    the rows of the first batch.
    """
    names = layout.input_names
    labels, weights = list["pyarrow.Array"](), list[NDArray[np.float64]]()
    batches = list[tuple[int, Batch]]()
    groups, keys = list[RowKeys](), list[RowKeys]()
    digest, n_rows, sample = hashlib.sha256(), 0, _Sampler(spec.seed, len(layout.inputs))
    points = PointsOfThree(table, [*layout.inputs, layout.target] if isinstance(reader, Learner) else [])
    for rows in rows_of(table, layout, reader, labelled=True):
        if left_out is None:
            left_out = RowOrder.of(names, reader.words, rows.codes, np.zeros(1, np.int64), named).left_out
        points.add(rows.batch)
        codes = np.delete(rows.codes, left_out, axis=1) if left_out else rows.codes
        digest.update(codes.tobytes())
        sample.add(n_rows, rows.codes)
        batches.append((n_rows, replace(rows.batch, columns={})))
        n_rows += len(codes)
        labels += [] if rows.labels is None else [rows.labels]
        weights += [] if rows.weights is None else [rows.weights]
        groups += [] if rows.groups is None else [rows.groups]
        keys.append(row_keys(codes))
        tick(len(codes))
    pyarrow.default_memory_pool().release_unused()
    if not n_rows:
        raise DataError(f"{table.path}: has columns but no rows")
    left_out, where = left_out or (), _where(table, layout)
    if isinstance(reader, Learner):
        check_commas(table, layout, reader.words, labels[0] if task in (None, "regression") else None)

    def place(row: int) -> str:
        first, batch = next(one for one in reversed(batches) if one[0] <= row)
        file = f" of {batch.path.name}" if len(table.parts) > 1 else ""
        return batch.place(row - first) + file

    values = labels_of(labels, where, task, place)
    if values.dtype.kind == "f":
        check_finite_targets(values, where)
    of_rows, of_groups = np.concatenate(weights) if weights else None, np.concatenate(groups) if groups else None
    drawn, codes = sample.finish()
    starts = np.searchsorted(drawn, [first for first, batch in batches if not batch.start])
    order = RowOrder.of(names, reader.words, codes, starts, named)
    inputs = layout.without(left_out).input_names
    listed = (known for k, known in enumerate(reader.words) if k not in left_out)
    words = tuple(None if known is None else tuple(known) for known in listed)
    whole = hashlib.sha256(
        repr((digest.hexdigest(), n_rows, (*inputs, layout.title(layout.target or 0)), words)).encode()
    )
    for array in (values, of_rows, of_groups):
        whole.update(b"" if array is None else digest_rows(array).encode())
    found = ReadTable(
        words=words,
        labels=values,
        weights=of_rows,
        groups=of_groups,
        keys=np.concatenate(keys),
        codes_sha256=digest.hexdigest(),
        sha256=whole.hexdigest(),
        left_out=left_out,
        notes=points.notes(layout),
        unknown=dict(reader.unknown) if isinstance(reader, CellReader) else {},
        sample=(drawn, codes),
    )
    return found, order


class _Sampler:
    """Keeps the codes of rows up to SAMPLE_CELLS; of more, those of a share of the rows that is halved as they come."""

    def __init__(self, seed: int, n_columns: int) -> None:
        self._seed, self._share, self._n_columns, self._n_rows = seed, 1.0, n_columns, 0
        self._rows, self._codes = [np.empty(0, np.int64)], [np.empty((0, n_columns))]

    def add(self, start: int, codes: NDArray[np.float64]) -> None:
        self._rows.append(np.arange(start, start + len(codes)))
        self._codes.append(codes)
        if self._share < 1.0:
            self._keep(len(self._rows) - 1)
        self._n_rows += len(self._rows[-1])
        while self._n_rows * self._n_columns > SAMPLE_CELLS:
            self._share /= 2
            for k in range(len(self._rows)):
                self._keep(k)
            self._n_rows = sum(map(len, self._rows))

    def _keep(self, k: int) -> None:
        kept = draw_sample(self._seed, self._share, self._rows[k].astype(np.uint64))
        self._rows[k], self._codes[k] = self._rows[k][kept], self._codes[k][kept]

    def finish(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return np.concatenate(self._rows), np.concatenate(self._codes)


def _labelled_rows(
    table: Table, layout: TableLayout, found: ReadTable, encoding: TableEncoding | None, *, in_memory: bool
) -> LabelledRows:
    codes: RowArray | None = found.held
    if codes is None:
        codes = CodesInOrder(table, layout, found)
        codes = codes[: codes.shape[0]] if in_memory else codes
    inputs = codes if encoding is None else EncodedRows(codes, encoding, found.words)
    return LabelledRows(inputs, found.labels, found.weights, found.groups, found.keys)


def _open_test(
    spec: SourceSpec, path: Path, columns: Columns, n_columns: int, train: ReadTable, keeper: Keeper | None
) -> tuple[LabelledRows, str, list[str]]:
    table = Table.in_files(path, header=spec.header, decimal=spec.decimal)
    layout = model_layout(table, None, columns, n_columns, labelled=True)
    reader = replace(cell_reader(columns, layout.input_names), words=train.words)
    read_as = "words" if train.labels.dtype.kind == "U" else "regression"
    request = {"layout": astuple(layout), "header": spec.header, "words": train.words, "missing": reader.missing}
    request |= {"labels": read_as, "decimal": spec.decimal}
    found = _read_once(keeper, path, request, lambda tick: _read(table, layout, reader, tick, spec, read_as)[0])
    if found.labels.dtype.kind != "U" and train.labels.dtype.kind == "U":
        found = replace(found, labels=found.labels.astype(str))
    rows = _labelled_rows(table, layout, found, columns.encoding, in_memory=keeper is None)
    notes = [*_file_notes(table, found), *unknown_words(found.unknown)]
    return rows, found.sha256, [f"test part: {line}" for line in notes]


def cell_reader(columns: Columns, names: Sequence[str]) -> CellReader:
    """Return what reads the cells of columns with such names as the training rows had them."""
    if columns.encoding is None:
        return CellReader(names, [None] * len(names))
    words = [column.words for column in columns.encoding.columns]
    return CellReader(names, words, columns.encoding.missing)


def _sampled(
    source: Source, known: ReadTable, read: Callable[[Tick], ReadTable], *, keeps: bool
) -> Callable[[], LearnedRows]:
    """Return what returns the training rows of the sample that was read; read again where it is gone, as it is large.

    Their inputs are encoded as they are read, as they may be many.
    """

    def learned() -> LearnedRows:
        nonlocal known
        found = known if known.sample is not None else read(lambda n_rows: None)
        if found.sha256 != known.sha256:
            raise DataError(f"{source.name}: {CHANGED}")
        known = known if keeps else replace(known, sample=None)
        assert found.sample is not None
        rows, (drawn, codes) = source.file_rows["train"], found.sample
        rows = np.arange(source.n_train) if rows is None else rows
        chosen = np.flatnonzero(np.isin(drawn, rows))
        inputs: RowArray = codes[chosen]
        inputs = inputs if found.encoding is None else EncodedRows(inputs, found.encoding, found.words)
        return LearnedRows(inputs, np.searchsorted(rows, drawn[chosen]))

    return learned


def _file_notes(table: Table, found: ReadTable) -> list[str]:
    told = table.files_told()
    return [f"{told}, {len(found.labels)} rows"] if told else []


def _notes(table: Table, layout: TableLayout, columns: Columns, found: ReadTable) -> Iterator[str]:
    yield from _file_notes(table, found)
    like_cells = [name for name in table.names if looks_like_cell(name)]
    if like_cells and isinstance(table.parts[0], CsvFile):
        remedy = setting("data.header", "false")
        yield f"columns are called {shown(like_cells)}; if these are cells of the first row, train with {remedy}"
    yield f"target: {layout.title(layout.target or 0)}; inputs: {shown(map(layout.title, layout.inputs))}"
    yield from columns.encoding.notes() if columns.encoding is not None else ()
    read = {*layout.inputs, layout.target, layout.weights, layout.groups}
    if left_out := [name for place, name in enumerate(table.names) if place in table.index - read]:
        yield f"left out, the index of a pandas frame: {shown(left_out)}; name it to use it"
    yield from found.notes
