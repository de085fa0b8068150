"""A table as a model reads it: which of its columns is which input, by name where both have names, else by place."""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow

from features.cell_text import is_missing, is_value, reads_as_number
from features.column_names import names_text, setting
from features.encoding import Asked, shown
from features.errors import DataError, UsageError
from features.source import Columns
from features.table_batches import Batch
from features.table_cells import (
    CellError,
    CellReader,
    distinct,
    first_rows,
    keys_of_groups,
    numbers,
)
from features.table_header import TARGET_NAMES, column_names, is_header, target_column
from features.table_parts import Table

LOOKED_AT = 1001  # lines at the begin of a file, where words may be names or a row


@dataclass(frozen=True)
class TableLayout:
    """What is known of a table before its cells are read: names of all columns, numbers without a header; places.

    inputs: those of the columns that are read, in the model's order; target, weights, groups: None without such.
    """

    n_rows: int
    header: bool
    names: tuple[str, ...]
    inputs: tuple[int, ...]
    target: int | None
    weights: int | None = None
    groups: int | None = None


def layout_of(
    table: Table, target: str | None, columns: Columns, n_inputs: int, labels: Collection[object], *, labelled: bool
) -> TableLayout:
    """Return the layout of a table, whose files are read once for its number of rows.

    columns : those of the table trained on, without names where it had none; n_inputs of them are inputs
    labels : those of the table trained on, as far as they are words of a row

    With a header, known names decide, and one column more may be the target; else columns are taken as they stand.
    Raises DataError where columns are missing, unknown or too many, or the first line is neither a header nor a row,
    UsageError where `target` names none.
    """
    path, (number, first) = table.path, table.first_line()
    words = {} if is_header(first, None) else dict(enumerate(column_names(first)))  # of a line that has numbers as well
    lone = {k: word for k, word in words.items() if not reads_as_number(word) and word not in labels}
    if lone and not table.has_names:
        for batch in table.batches(lone, header=True):
            lone = {k: word for k, word in lone.items() if first_rows(batch, k, word.__eq__) is None}
            if not lone:
                break
    is_named = not is_row_of_dates(table) and _is_header(first, target, columns, set(lone.values()))
    header = bool(first) and (table.has_names or is_named)
    n_rows = table.count_rows(header=header)
    if not n_rows:
        raise DataError(f"{path}: has no rows{' below its header' if header else ''}")
    if header and columns.inputs:
        inputs, column = _by_name(column_names(first), target, columns, path)
        places = {name: place for place, name in reversed(list(enumerate(column_names(first))))}
        others = places.get(columns.weights or ""), places.get(columns.groups or "")
    else:
        inputs, column, others = _by_place(first, header, target, columns, n_inputs, path, labelled=labelled)
    word = "" if header or column is None else lone.get(column, "")[:40]
    are_numbers = set(labels) != {-1, 1} and not any(isinstance(label, str) for label in labels)  # -1, 1: data.positive
    if any(map(str.isalpha, word)) and are_numbers:  # "?" or an empty cell is a label not known
        raise DataError(
            f"{path}: line {number} has the target {word!r}, the model's are numbers; if it is a header, name the "
            f"target column (--target {word}), else mend the line"
        )
    if labelled and column is None:
        wanted = "" if columns.target is None else f" {columns.target!r}"
        raise DataError(f"{path}: has no target column{wanted}; name the one to compare with (--target NAME)")
    names = column_names(first) if header else [str(k) for k in range(len(first))]
    return TableLayout(n_rows, header, tuple(names), inputs, column, *others)


def _is_header(cells: list[str], target: str | None, known: Columns, lone: Collection[str]) -> bool:
    """Return whether the first line holds names.

    It does where training would take it so (words, unless most are categories of the model and none a name of it);
    where a word that no row below repeats in its column (`lone`) names an input or target; or where all names, even
    numbers, are the model's in its order.
    """
    names, inputs = column_names(cells), list(known.inputs)
    expected = {*inputs, *TARGET_NAMES, known.target, target}
    if is_header(cells, target):
        encoded = known.encoding.columns if known.encoding else ()
        words = {word for column in encoded for word in column.words or ()}
        return not expected.isdisjoint(names) or 2 * sum(name in words for name in names) <= len(names)
    with_target = [*inputs[: known.target_index], known.target, *inputs[known.target_index :]]
    return not expected.isdisjoint(lone) or (bool(inputs) and names in (inputs, with_target))


def _by_name(names: list[str], target: str | None, known: Columns, path: Path) -> tuple[tuple[int, ...], int | None]:
    """Return the place of each input of the model, and that of the target."""
    column = _known_target(names, known) if target is None else target_column(names, True, target, path)
    others = {known.weights, known.groups} - {None}
    none = (column, *(k for k, name in enumerate(names) if name in others))
    places = [k for k in range(len(names)) if k not in none and (names[k] in known.inputs or not known.chosen)]
    missing = [name for name in known.inputs if name not in {names[k] for k in places}]
    unknown = [names[k] for k in places if names[k] not in known.inputs]
    if len(unknown) == 1 and not missing and known.target is None:  # an estimator knows no name of its target
        column = names.index(unknown[0])
        places.remove(column)
    elif missing or unknown:
        faults = [f"lacks {_listed(missing)}"] if missing else []
        faults += [f"has {_listed(unknown)}, which the model does not know"] if unknown else []
        hint = f" (--target {unknown[0]} if it is the target)" if len(unknown) == 1 and column is None else ""
        raise DataError(
            f"{path}: {' and '.join(faults)}{hint}; give the columns of the training file, or none of their names to "
            "have them taken in its order"
        )
    if [names[k] for k in places] == list(known.inputs):
        return tuple(places), column
    if len(places) > len(known.inputs) or len(set(known.inputs)) < len(known.inputs):
        raise DataError(f"{path}: names repeat in its header; give the columns in the order of the training file")
    return tuple(names.index(name) for name in known.inputs), column


def _by_place(
    cells: list[str], header: bool, target: str | None, columns: Columns, n_inputs: int, path: Path, *, labelled: bool
) -> tuple[tuple[int, ...], int | None, tuple[int | None, int | None]]:
    """Return the places of the inputs, all other columns but target, weights and groups, and the places of these."""
    there = len(columns.other_places) > 0 and len(cells) == n_inputs + 1 + len(columns.other_places)
    others = (columns.weights_index, columns.groups_index) if there else (None, None)
    n_columns = len(cells) - len(columns.other_places) * there
    has_target = target is not None or n_columns == n_inputs + 1
    if n_columns - has_target != n_inputs or (labelled and not has_target):
        wanted = f"{n_inputs} inputs" + (" and a target" if labelled or target else "")
        raise DataError(f"{path}: has {len(cells)} columns, wanted the model's {wanted}")
    column = target_column(cells, header, target, path, others) if has_target else None
    named = header and not set(TARGET_NAMES).isdisjoint(column_names(cells))
    if has_target and target is None:
        trained = _known_target(column_names(cells), columns) if header else None
        place = columns.target_place if there else columns.target_index
        column = trained if trained is not None else column if named else place
    return tuple(k for k in range(len(cells)) if k not in (column, *others)), column, others


def _known_target(names: list[str], known: Columns) -> int | None:
    """Return the place of the model's target, where names repeat that which it had; None where it has no such name."""
    places = [k for k, name in enumerate(names) if name == known.target]
    return known.target_index if known.target_index in places else next(iter(places), None)


def _listed(names: Sequence[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {shown([repr(name) for name in names])}"


def is_repeated(table: Table) -> bool:
    """Return whether the first line of a file without numbers is a row: most of its cells recur below, as no names do.

    Looks at a thousand lines; files that name their columns have none.
    """
    rows = itertools.islice(table.lines(), LOOKED_AT)
    _, first = next(rows, (0, []))
    recurring = set[int]()
    for _, cells in rows:
        recurring |= {place for place, pair in enumerate(zip(first, cells, strict=False)) if pair[0] == pair[1]}
    return 2 * len(recurring) > len(first)


def is_row_of_dates(table: Table) -> bool:
    """Return whether the first two lines both have a date or a truth value in some column, as no names do."""
    pairs = zip(*(cells for _, cells in itertools.islice(table.lines(), 2)), strict=False)
    return any(all(is_value(cell) and not reads_as_number(cell) for cell in pair) for pair in pairs if len(pair) > 1)


class ReadRows(NamedTuple):
    """What a batch of rows holds: codes (n, columns) f8, weights (n,) f8 and keys (n,) u8 of groups, or None."""

    batch: Batch
    codes: np.ndarray
    weights: np.ndarray | None
    groups: np.ndarray | None


def rows_of(
    table: Table, layout: TableLayout, reader: CellReader, labels: Callable[[Batch, int], None] | None
) -> Iterator[ReadRows]:
    """Yield the rows of a table by batches; `labels` takes each with the place of the target, or None is read.

    Raises DataError for the first row that cannot be read.
    """
    roles = (layout.target, layout.weights, layout.groups) if labels is not None else (None, None, None)
    target, weights, groups = roles
    of_weights = CellReader([layout.names[weights or 0]], [None])
    places = {*layout.inputs, *(place for place in roles if place is not None)}
    for number, batch in enumerate(table.batches(places, header=layout.header)):
        hint = ""
        if target is not None and not number and not layout.header and batch.n_rows:
            label = distinct(batch.columns[target])[0][0].strip()
            if not reads_as_number(label):
                hint = f"; if it is a header, name the target column (--target {label[:40]})"
        read: list[Any] = []
        errors = list[CellError]()
        steps: tuple[Callable[[], Any], ...] = (
            lambda: None if labels is None or target is None else labels(batch, target),  # noqa: B023
            lambda: None if weights is None else of_weights.codes(batch, [weights])[:, 0],  # noqa: B023
            lambda: None if groups is None else keys_of_groups(batch, groups, layout.names[groups]),  # noqa: B023
            lambda: reader.codes(batch, layout.inputs, hint),  # noqa: B023
        )
        for step in steps:
            try:
                read.append(step())
            except CellError as error:
                errors.append(error)
        if errors:
            raise min(errors, key=lambda error: error.row)
        _, of_rows, keys, codes = read
        yield ReadRows(batch, codes, of_rows, keys)


def word_columns(table: Table, layout: TableLayout, asked: Asked) -> list[dict[str, int] | None]:
    """Return an empty list of words for each column that holds some or is asked for, None for each of numbers.

    One pass over the table where categories are asked for. Raises DataError where a column not asked for has numbers
    and words, UsageError where one asked for is no column.
    """
    names, places, path = layout.names, layout.inputs, table.path
    absent = [name for name in asked.columns if name not in (names[place] for place in places)]
    if absent:
        raise UsageError(f"data.categorical: {absent[0]!r} is no input of {path}; it has {', '.join(names)[:400]}")
    if asked.categorical is None:
        return [None] * len(places)
    found: dict[bool, dict[int, tuple[str, str]]] = {True: {}, False: {}}  # whether a number: the first row of a place
    undecided = [place for place in places if names[place] not in asked.columns]
    for batch in table.batches(undecided, header=layout.header):
        for place in undecided:
            values = batch.columns[place]
            finite = np.isfinite(numbers(values))
            if len(finite) and finite.any():
                found[True].setdefault(place, (batch.place(int(np.argmax(finite))), ""))
            others = [] if finite.all() else distinct(values.filter(pyarrow.array(~finite)))[0]
            for text in dict.fromkeys(other.strip() for other in others):
                if is_missing(text) or place in found[is_value(text)]:
                    continue
                row, _ = first_rows(batch, place, text.__eq__) or (0, "")
                found[is_value(text)][place] = batch.place(row), text
    for place in sorted(found[True].keys() & found[False].keys()):
        where, word = found[False][place]
        named = names_text((*asked.columns, names[place]))
        remedy = setting("data.categorical", f"{asked.categorical}:{named}")
        other = f"{found[True][place][0]} has a number"
        advice = f"leave missing cells empty, or take all of them for categories ({remedy})"
        raise DataError(f"{path}: {where}, column {names[place]} is {word[:40]!r}, {other}; {advice}")
    return [{} if place in found[False] or names[place] in asked.columns else None for place in places]
