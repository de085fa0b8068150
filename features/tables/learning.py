"""Codes of the cells of inputs, (n, columns) f8: learned in the first reading of a table, and read as learned.

A code is a number, the place of a word in the list of its column, -1 for an unknown word, or NaN for a missing cell;
`features.tables.encoding` makes inputs of them. Which number a cell is, `numbers` of `features.tables.cells` says.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from features.cell_text import COMMAS, UNKNOWN, misread, of_one_value, value_of
from features.errors import DataError, UsageError
from features.source import SourceSpec
from features.tables.cells import distinct, long_numbers, numbers, plain_numbers, texts_of
from features.tables.encoding import ONE_HOT, EncodingRequest, Words
from features.tables.readers import Batch, CsvFile, Table, TableLayout
from features.words import counted, drop_setting, names_text, shown, title_of

MOST_LISTED_COLUMNS = 20
LEAST_IDS = 20  # In fewer rows each may have another word by chance.
LEAST_REPEATED = 10  # Little is learned of a category in fewer rows, on average.
TOGETHER = 32  # Columns of numbers are read together, so that a table of thousands takes no longer by cell.
MOST_WORDS = 1000  # Further words of a column are not counted, and `data.categories` may be no larger.
_THREE = r"^\s*[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+\s*$"  # The marks of such numbers may stand between thousands.
NUMBER, WORD, MISSING, INFINITE, LONG = "number", "word", "missing", "infinite", "long"


@dataclass
class _Column:
    name: str
    words: dict[str, int] | None = None  # the code of each word, in the order of their first rows; None for numbers
    named: bool = False  # whether it was asked for as categories, so that its numbers are words
    place: int = 0  # its place among all columns of the file
    counts: Counter[str] = field(default_factory=Counter)  # cells of each kind
    first: dict[str, tuple[str, int]] = field(default_factory=dict)  # the first cell of each kind, and its row

    def read(self, values: "pyarrow.Array", start: int) -> NDArray[np.float64]:
        """Return the codes (rows,) of cells, of which `start` is the first row."""
        if self.words is not None:
            return self._places(values, start)
        read, are_words = numbers(values)
        finite = np.isfinite(read)
        self.see(NUMBER, values, start, finite)
        if are_words.any():
            self.words = {}
            return self._places(values, start)
        kinds = {INFINITE: np.isinf(read), MISSING: np.isnan(read)} if not finite.all() else {}
        for kind, rows in {LONG: long_numbers(values, read), **kinds}.items():
            self.counts[kind] += int(np.count_nonzero(rows))
            self.see(kind, values, start, rows)
        return read

    def _places(self, values: "pyarrow.Array", start: int) -> NDArray[np.float64]:
        """Return the places (rows,) of words; numbers among them are seen, unless they are asked for as words."""
        assert self.words is not None
        texts, of_rows = distinct(values)
        new = [text for text in texts if text is not None and text not in self.words]
        are_words = dict.fromkeys(new, True)
        if not self.named and len(self.words) <= MOST_WORDS:
            are_words = dict(zip(new, numbers(pyarrow.array(new, pyarrow.string()))[1].tolist(), strict=True))
        counts = np.bincount(of_rows, minlength=len(texts))
        places = np.full(len(texts), np.nan)
        for at, text in enumerate(texts):
            kind = MISSING if text is None else WORD if are_words.get(text, True) else NUMBER
            self.counts[kind] += int(counts[at])
            if kind not in self.first:
                self.first[kind] = str(text), start + int(np.argmax(of_rows == at))
            if kind == WORD and len(self.words) <= MOST_WORDS:
                self.words.setdefault(str(text), len(self.words))
            if text in self.words:
                places[at] = self.words[text]
        return places[of_rows]

    def see(self, kind: str, values: "pyarrow.Array", start: int, rows: NDArray[np.bool_]) -> None:
        if kind not in self.first and rows.any():
            row = int(np.argmax(rows))
            self.first[kind] = str(values[row].as_py()), start + row


def _together(places: Sequence[int]) -> list[slice]:
    return [slice(start, start + TOGETHER) for start in range(0, len(places), TOGETHER)]


class Learner:
    """The first reading of the inputs of a training table: which columns hold numbers, and which words the others.

    names: the columns. Nothing is refused meanwhile: `check` names all that cannot be used as it is. Raises UsageError
    where a column that is asked for as categories is no input.
    """

    def __init__(self, path: Path, names: Sequence[str], asked: EncodingRequest) -> None:
        self._path, self._asked, self._n_rows = path, asked, 0
        for name in asked.columns:
            if name not in names:
                known = ", ".join(names)[:400]
                raise UsageError(f"`data.categorical`: {name!r} is no input of {path}; it has {known}")
        named = [name in asked.columns for name in names]
        self._columns = [_Column(name, {} if one else None, one) for name, one in zip(names, named, strict=True)]

    @property
    def words(self) -> list[dict[str, int] | None]:
        return [column.words for column in self._columns]

    def codes(self, batch: Batch, places: Sequence[int]) -> NDArray[np.float64]:
        """Return the codes (rows, columns) of the columns at some places."""
        codes = np.empty((batch.n_rows, len(places)))
        for some in _together(places):
            columns, cells = self._columns[some], [batch.columns[place] for place in places[some]]
            read = None if any(column.words is not None for column in columns) else plain_numbers(cells)
            if read is not None:
                codes[:, some] = read
            for k, (column, values) in enumerate(zip(columns, cells, strict=True), some.start):
                column.place = places[k]
                if read is None:
                    codes[:, k] = column.read(values, self._n_rows)
                else:
                    column.see(NUMBER, values, self._n_rows, np.ones(batch.n_rows, bool))
        self._n_rows += batch.n_rows
        return codes

    def check(
        self, spec: SourceSpec, left_out: Collection[int] = (), place_of: Callable[[int], str] = "row {}".format
    ) -> None:
        """Raise DataError with every column that cannot be used as it is, and the settings that help.

        left_out: columns that are not used; place_of: returns the name of a row in messages.
        """
        faults, dropped, needs, n_rows = list[str](), list[str](), set[str](), self._n_rows
        for column in (one for k, one in enumerate(self._columns) if k not in left_out):
            first = column.first if len(faults) < MOST_LISTED_COLUMNS else {}  # To find a place may take a reading.

            def example(kind: str, first: Mapping[str, tuple[str, int]] = first) -> str:
                text, row = first.get(kind, ("", 0))
                told = "the first" if kind == MISSING else f"such as {text[:40]!r}"
                return f", {told} in {place_of(row)}" if kind in first else ""

            parts, usable = [], True
            if fault := self._fault(column, n_rows, example):
                parts, usable = [fault], fault.startswith(COMMAS)  # One setting reads decimal commas.
            elif column.words and not self._asked.words:
                parts.append(f"{counted(len(column.words), 'word')}{example(WORD)}")
                needs.add("categorical")
            if usable and column.counts[MISSING] and self._asked.missing is None:
                where = example(MISSING) if not parts else ""
                parts.append(f"{column.counts[MISSING]} of {n_rows} missing{where}")
                needs.add("missing")
            faults += [f"{title_of(column.name, column.place)} ({'; '.join(parts)})"] if parts else []
            dropped += [] if usable else [column.name]
        if not faults:
            return
        dropped = dropped if len(dropped) < len(self._columns) else []  # Without all of them no input is left.
        options = _remedies(spec, self._asked, dropped, needs)
        remedy = f"mend their cells, or try: {options}" if options else "mend their cells"
        raise DataError(f"{self._path}: columns that need a setting: {shown(faults, MOST_LISTED_COLUMNS)}; {remedy}")

    def _fault(self, column: _Column, n_rows: int, example: Callable[[str], str]) -> str | None:
        """Return why a column can only be left out; None where a setting makes inputs of it."""
        words = column.words or {}
        as_words = f"`data.categorical={ONE_HOT}:{names_text([column.name])}`"
        looks = None if column.named else misread(words)
        if column.counts[MISSING] == n_rows:
            return "no cell is filled in"
        if column.counts[INFINITE]:
            return f"{column.counts[INFINITE]} infinite{example(INFINITE)}"
        if column.counts[LONG]:
            told = f"whole numbers above 2^53{example(LONG)}, which float64 does not tell apart"
            return f"{told}; if they are names, {as_words}"
        if looks is not None:
            at = example(WORD) if looks[2] == column.first[WORD][0] else f", such as {looks[2][:40]!r}"
            told = f"{looks[0]}{at}, {looks[1]}"
            repeat = len(words) <= min(self._asked.most, n_rows // LEAST_REPEATED)
            return f"{told}; if they are categories, {as_words}" if repeat else told
        if words and NUMBER in column.first:
            told = f"numbers and {counted(len(words), 'other word')}{example(WORD)}"
            return f"{told}; write the numbers that are meant, or nothing; if they are names, {as_words}"
        if not column.named and len(words) == column.counts[WORD] >= LEAST_IDS:
            return f"{len(words)} words, another one in each row{example(WORD)}"
        if len(words) > self._asked.most:
            count = f"over {MOST_WORDS}" if len(words) > MOST_WORDS else len(words)
            told = f"{count} words{example(WORD)}, more than {self._asked.most}"
            more = f"`data.categories={len(words)}` takes them"
            return f"{told}; {more}" if len(words) <= min(MOST_WORDS, n_rows // LEAST_REPEATED) else told
        if (twice := of_one_value(map(value_of, words))) is not None:
            return f"{' and '.join(f'{[*words][k][:40]!r}' for k in twice)} are one value, write it in one way"
        return None


def _remedies(spec: SourceSpec, asked: EncodingRequest, dropped: list[str], needs: Collection[str]) -> str:
    options = []
    if dropped and spec.columns is not None:
        options.append(f"`data.columns={names_text(name for name in spec.columns if name not in dropped)}`")
    elif dropped:
        options.append(drop_setting(*(spec.drop or ()), *dropped))
    left = [name for name in asked.columns if name not in dropped]
    if "categorical" in needs or len(left) < len(asked.columns):
        options.append(f"`data.categorical={ONE_HOT}:{names_text(left)}`" if left else f"`data.categorical={ONE_HOT}`")
    options += ["`data.missing=median`"] if "missing" in needs else []
    return " ".join(options)


@dataclass
class CellReader:
    """Reads the columns of batches as codes that were learned."""

    names: Sequence[str]
    words: Words
    missing: bool = False  # whether cells may be missing
    unknown: Counter[str] = field(default_factory=Counter)  # number of cells of each column with an unknown word

    def __post_init__(self) -> None:
        self._known = [None if one is None else {value_of(word): k for k, word in enumerate(one)} for one in self.words]

    def codes(self, batch: Batch, places: Sequence[int]) -> NDArray[np.float64]:
        """Return the codes (rows, columns) f8 of columns at some places; DataError for the first row that has none."""
        codes, faults = np.empty((batch.n_rows, len(places))), list[tuple[int, int]]()
        for some in _together(places):
            are_words = any(known is not None for known in self._known[some])
            read = None if are_words else plain_numbers([batch.columns[place] for place in places[some]])
            if read is not None:
                codes[:, some] = read
                continue
            for k, place in enumerate(places[some], some.start):
                codes[:, k], wrong = self._read(k, batch.columns[place])
                if wrong.any():
                    faults.append((int(np.argmax(wrong)), k))
        if faults:
            row, k = min(faults)
            text = texts_of(batch.columns[places[k]][row : row + 1])[0].as_py() or ""
            told = f"{batch.where(row)}, column {title_of(self.names[k], places[k])} is {text[:40]!r}"
            raise DataError(f"{told}; {'a finite number' if self._known[k] is None else 'a category'} is needed")
        return codes

    def _read(self, k: int, cells: "pyarrow.Array") -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the codes (rows,) of a column, and which rows have none."""
        known = self._known[k]
        if known is None:
            read, wrong = numbers(cells)
            wrong |= np.isinf(read)
        else:
            read, wrong = self._places(k, known, cells), np.zeros(len(cells), bool)
        return read, wrong if self.missing else wrong | np.isnan(read)

    def _places(self, k: int, known: Mapping[object, int], cells: "pyarrow.Array") -> NDArray[np.float64]:
        """Return the places (rows,) of the words of a column, NaN for a missing cell."""
        texts, of_rows = distinct(cells)
        of_texts = [np.nan if text is None else known.get(value_of(text), UNKNOWN) for text in texts]
        places = np.array(of_texts, np.float64)[of_rows]
        self.unknown[self.names[k]] += int(np.count_nonzero(places == UNKNOWN))
        return places


class PointsOfThree:
    """Columns of a csv whose decimal marks are all followed by three digits, as marks between thousands are.

    Columns with decimal points are watched only in files that semicolons or tabs separate.
    """

    def __init__(self, table: Table, places: Iterable[int | None]) -> None:
        first = table.parts[0]
        self._marks = "commas" if isinstance(first, CsvFile) and first.decimal == "," else "points"
        can_be = isinstance(first, CsvFile) and (first.separator != "," or first.decimal == ",")
        self._seen = dict.fromkeys((place for place in places if place is not None), False) if can_be else {}

    def add(self, batch: Batch) -> None:
        for place in list(self._seen):
            cells = batch.columns[place]
            cells = cells.filter(compute.match_substring(cells, "."))
            if len(cells) and compute.all(compute.match_substring_regex(cells, _THREE)).as_py():
                self._seen[place] = True
            elif len(cells):
                del self._seen[place]

    def notes(self, layout: TableLayout) -> tuple[str, ...]:
        columns = [layout.title(place) for place, is_seen in self._seen.items() if is_seen]
        told = f"{self._marks} are decimal ones, with three digits behind each"
        return (f"{told}; take them out where they stand between thousands: {shown(columns)}",) if columns else ()
