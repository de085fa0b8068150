"""Numbers of a text with commas, or with points between thousands: refused or told, as nothing says what they mean."""

import re
from collections.abc import Iterable

import pyarrow
from pyarrow import compute

from features.cell_text import is_number, setting, shown
from features.errors import DataError
from features.tables.cells import distinct
from features.tables.columns import TableLayout
from features.tables.encoding import Words
from features.tables.readers import Batch, CsvFile, Table

_THREE = r"^\s*[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+\s*$"
_COMMA = re.compile(r"[+-]?([0-9]*|[0-9]{1,3}(\.[0-9]{3})+),[0-9]+(e[+-]?[0-9]+)?", re.I)
_MAY_BE_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")


class PointsOfThree:
    """Columns at some places of a csv, whose decimal points or commas have three digits behind them each.

    Where a point stands before decimals, only those of files that semicolons or tabs separate.
    """

    def __init__(self, table: Table, places: Iterable[int | None]) -> None:
        first = table.parts[0]
        self._marks = "commas" if isinstance(first, CsvFile) and first.decimal == "," else "points"
        can_be = isinstance(first, CsvFile) and (first.separator != "," or first.decimal == ",")
        self._seen = dict.fromkeys((place for place in places if place is not None), False) if can_be else {}

    def add(self, batch: Batch) -> None:
        """See the cells of a batch."""
        for place in list(self._seen):
            cells = batch.columns[place]
            cells = cells.filter(compute.match_substring(cells, "."))
            if len(cells) and compute.all(compute.match_substring_regex(cells, _THREE)).as_py():
                self._seen[place] = True
            elif len(cells):
                del self._seen[place]

    def notes(self, layout: TableLayout) -> tuple[str, ...]:
        """Return a note of such columns, if there are any."""
        columns = [layout.title(place) for place, is_seen in self._seen.items() if is_seen]
        told = f"{self._marks} are decimal ones, with three digits behind each"
        return (f"{told}; take them out where they stand between thousands: {shown(columns)}",) if columns else ()


def check_commas(table: Table, layout: TableLayout, words: Words, labels: "pyarrow.Array | None") -> None:
    """Raise DataError with every column (`labels`: None for classes) of which most words are numbers with commas."""
    first = table.parts[0]
    if not isinstance(first, CsvFile) or first.decimal != ".":
        return
    listed = dict(zip(layout.inputs, words, strict=True))
    if labels is not None and layout.target is not None:
        listed[layout.target] = [text for text in distinct(labels)[0] if text is not None]
    found = dict[str, list[str]]()
    for place, texts in listed.items():
        commas = [text for text in texts or () if _COMMA.fullmatch(text)]
        others = [text for text in texts or () if not is_number(text) and not _COMMA.fullmatch(text)]
        if len(commas) > len(others):
            found[layout.title(place)] = commas
    if not found:
        return
    told = shown(f"{title} (such as {commas[0]!r:.60})" for title, commas in found.items())
    has_points = any("." in text for commas in found.values() for text in commas)
    without = ", without points between thousands" if has_points else ""
    remedy = f"if these are decimal commas{without}, read the file with {setting('data.decimal', ',')}"
    if unclear := [title for title, commas in found.items() if all(map(_MAY_BE_THOUSANDS.fullmatch, commas))]:
        remedy = f"if commas stand between thousands ({shown(unclear)}), take them out of the cells; {remedy}"
    raise DataError(f"{table.path}: numbers with commas in {told}; {remedy}")
