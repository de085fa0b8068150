"""Tables in files, to train on: which columns are inputs, how their cells become numbers, which rows are what part."""

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from features.csv_files import column_names, is_header, is_plain, named_column, reads_as_number, target_column
from features.encoding import Asked, EncodedRows, learn, shown
from features.errors import DataError, MissingInputError, UsageError
from features.parquet_files import is_parquet
from features.row_source import LabelledRows, chosen_rows, count_rows, digest_rows, source_of
from features.source import PARTS, Columns, RowArray, Source, SourceSpec
from features.table_cells import CellReader, is_repeated, is_table, table_rows
from features.table_layout import TableLayout, layout_of, rows_of, word_columns
from features.tables import label_array


def open_table(spec: SourceSpec, path: Path) -> Source:
    """Open a table; `spec.test` is one more, whose columns are matched by name where both have names.

    The target is the column `spec.target` (a whole number is a position), else one named y, target or label, else the
    last; its labels may be text. Words and missing cells are inputs where that is asked for (`features.encoding`).
    Memory is 8 bytes a cell and about 60 a row.

    Raises DataError for a file, line, row or cell that cannot be read as asked, or a test file without one of the
    columns; UsageError where a column that is asked for is none; MissingInputError where there is no test file.
    """
    if spec.joins is not None:
        return _open_addition(spec, path)
    if spec.test is not None and not is_table(Path(spec.test)):
        raise UsageError(f"test file {spec.test}: file type not known; give .csv, .tsv (also .gz) or .parquet")
    if spec.test is not None and not Path(spec.test).is_file():
        raise MissingInputError(f"test file {spec.test}: no such file")
    asked = Asked.read(spec.categorical, spec.missing)
    line, layout, columns = _training_layout(spec, path)
    names = [layout.names[place] for place in layout.inputs]
    words = word_columns(path, layout, asked)
    reader = CellReader(names, words, missing=asked.missing is not None, new=True)
    codes, texts, weights, groups = _read(path, layout, reader)
    if not layout.header:
        _check_first_label(texts, line, path)
    labels = label_array(_label_values(texts, f"{path}, column {layout.names[layout.target or 0]}"), "y")
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    identity = {"source": "csv"}
    if asked.categorical is not None or asked.missing is not None:
        own = spec.test is not None
        counted = count_rows(spec, LabelledRows(codes, labels, weights, groups), " of train" if own else "")
        training = chosen_rows(spec, [counted], name, split=not own)[0]
        try:
            encoding = learn(names, words, codes, training, asked)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        columns, identity["encoding"] = replace(columns, encoding=encoding), encoding.digest()
    inputs = codes if columns.encoding is None else EncodedRows(codes, columns.encoding)
    given = [LabelledRows(inputs, labels, weights, groups)]
    if spec.test is not None:
        given.append(_read_test(Path(spec.test), columns, len(names), labels))
    digests = [_digest(*rows) for rows in given]
    sha256 = dict(zip(PARTS, digests, strict=True)) if len(given) > 1 else digests[0]
    source = source_of(spec, name, given, True, identity | {"sha256": sha256})
    return replace(source, columns=columns, notes=(*_column_notes(columns, inputs.shape[1]), *source.notes))


def _open_addition(spec: SourceSpec, path: Path) -> Source:
    """Open a table whose rows are more training rows: its columns are found as those of a test file."""
    assert spec.joins is not None
    joins = spec.joins
    columns = joins.columns or Columns((), None, joins.n_inputs)
    n_columns = joins.n_inputs if columns.encoding is None else len(columns.encoding.columns)
    rows = _read_test(path, columns, n_columns, np.array(joins.classes or [0.0]))
    if columns.groups_index is not None and rows.groups is None:
        raise DataError(f"{path}: has no column of the groups ({columns.groups or columns.groups_index}); add it")
    identity = {"source": "csv", "sha256": _digest(*rows._replace(weights=None))}
    if columns.encoding is not None:
        identity["encoding"] = columns.encoding.digest()
    return source_of(spec, path.name, [rows], True, identity)


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


def _training_layout(spec: SourceSpec, path: Path) -> tuple[int, TableLayout, Columns]:
    """Return the first line of a table, its layout, whose rows are not counted yet, and the columns of the model."""
    line, first = next(table_rows(path, ()), (0, []))
    if not first:
        raise DataError(f"{path}: is empty; rows of numbers are needed")
    header = is_parquet(path) or any(is_header(first, name) for name in (spec.target, spec.weights, spec.groups))
    if header and spec.categorical is not None and spec.target not in column_names(first) and is_repeated(path):
        header = False
    asked = {"weights": spec.weights, "groups": spec.groups}
    others = {what: named_column(first, header, name, path, what) for what, name in asked.items() if name is not None}
    target = target_column(first, header, spec.target, path, others.values())
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
    return line, TableLayout(0, header, tuple(names), tuple(places), target, **others), columns


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
    path: Path, layout: TableLayout, reader: CellReader
) -> tuple[np.ndarray, list[str], np.ndarray | None, np.ndarray | None]:
    """Return the codes (n, columns) f8, labels, weights and groups of all rows. Raises DataError."""
    codes, labels, weights, groups = array("d"), list[str](), array("d"), list[str]()
    for of_row, label, weight, group in rows_of(path, layout, reader, labelled=True):
        codes.extend(of_row)
        labels.append(label)
        weights.append(weight)
        groups += [] if layout.groups is None else [group]
    if not labels:
        raise DataError(f"{path}: has a header but no rows")
    facts = None if layout.weights is None else np.array(weights), np.array(groups) if groups else None
    return np.frombuffer(codes).reshape(len(labels), -1), labels, *facts


def _read_test(path: Path, columns: Columns, n_columns: int, labels: np.ndarray) -> LabelledRows:
    """Return inputs, labels, weights and groups of a test file, whose columns are those of a file with such labels."""
    is_text = labels.dtype.kind == "U"
    known = np.unique(labels).tolist() if is_text else ()
    layout = layout_of(path, None, columns, n_columns, known, labelled=True)
    codes, texts, *facts = _read(path, layout, reader_of(columns, [layout.names[place] for place in layout.inputs]))
    test_labels = np.array(texts) if is_text else _label_values(texts, f"{path}, the target")
    if test_labels.dtype.kind == "U" and not is_text:
        row = next(row for row, text in enumerate(texts) if not reads_as_number(text))
        raise DataError(f"{path}: row {row} has the target {texts[row][:40]!r}, those of the training file are numbers")
    inputs = codes if columns.encoding is None else EncodedRows(codes, columns.encoding)
    return LabelledRows(inputs, label_array(test_labels, "y of test"), *facts)


def _digest(*arrays: RowArray | None) -> str:
    return hashlib.sha256("".join(digest_rows(one) for one in arrays if one is not None).encode()).hexdigest()


def _check_first_label(labels: list[str], line: int, path: Path) -> None:
    """Raise DataError where the first label is a word, and all others are numbers or repeat: of a header, or wrong."""
    if len(labels) < 3 or reads_as_number(labels[0]):
        return
    counts = Counter(labels)
    if all(map(reads_as_number, labels[1:])):
        unlike = "all other lines have numbers"
    elif counts.pop(labels[0]) == 1 and min(counts.values()) > 1:
        unlike = "no other line has it, and all other labels repeat"
    else:
        return
    word, fault = labels[0][:40], f"{path}: line {line} has the target {labels[0][:40]!r}, {unlike}"
    remedy = f"if it is a header, name the target column (--target {word}), else mend the line or leave it out"
    raise DataError(f"{fault}; {remedy}")


def _check_told_apart(labels: list[str], values: np.ndarray, where: str) -> None:
    """Raise DataError where whole numbers beyond 64 bits that differ are the same in float64."""
    first = dict[float, str]()
    for label, value in zip(labels, values.tolist(), strict=True):
        other = first.setdefault(value, label)
        if other != label and abs(value) >= 2**53 and all(re.fullmatch(r"[+-]?\d+", text) for text in (label, other)):
            raise DataError(
                f"{where}: no type of numbers tells the labels {other[:40]} and {label[:40]} apart; write labels of "
                "classes as words, and quantities with an exponent (1e20)"
            )


def _label_values(labels: list[str], where: str) -> np.ndarray:
    """Return labels as int64, uint64 or float64 where all are numbers, else as text. Raises DataError."""
    for dtype in (np.int64, np.uint64, np.float64):
        try:
            values = np.array([dtype(label) for label in labels])
        except (ValueError, OverflowError):
            continue
        if dtype is np.float64:
            _check_told_apart(labels, values, where)
        odd = next((row for row, label in enumerate(labels) if not is_plain(label)), None)
        if odd is not None:
            raise DataError(f"{where}, row {odd} is {labels[odd][:40]!r}; write numbers in ASCII digits without _")
        return values
    return np.array(labels)
