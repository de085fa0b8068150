"""Codes of the cells of inputs, (n, columns) f8: learned in the first reading of a table, and read as learned.

A code is a number, the place of a word in the list of its column, -1 for an unknown word, or NaN for a missing cell;
`features.tables.encoding` makes inputs of them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow
from numpy.typing import NDArray

from features.cell_text import (
    COMMAS,
    KINDS,
    NUMBER,
    UNKNOWN,
    WORD,
    counted,
    drop_setting,
    misread,
    names_text,
    places_in,
    read_cell,
    setting,
    title_of,
)
from features.errors import DataError, UsageError
from features.source import SourceSpec
from features.tables.cells import distinct, numbers, without_zeros
from features.tables.encoding import ONE_HOT, EncodingRequest, Words
from features.tables.readers import Batch

MOST_COMPLAINTS = 20  # Columns that are listed.
MOST_WORDS = 1000  # Words of a column that are counted; a column that is refused may have a million.
MOST_WORD_CHARACTERS = 200  # A longer cell is a text, of which nothing is learned.


@dataclass
class _Column:
    """What was seen of a column: its words in the order of their first rows, None for numbers.

    named: whether it was asked for as categories, so that its numbers are words. place: among all columns. longest: the
    characters of its longest word. counts, first: of the cells of a kind, how many there are and the first one.
    """

    name: str
    words: dict[str, int] | None = None
    named: bool = False
    place: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    longest: int = 0
    first: dict[str, tuple[str, Batch]] = field(default_factory=dict)

    def read(self, batch: Batch, values: "pyarrow.Array") -> NDArray[np.float64]:
        """Return the codes (rows,) of cells, and count what they are."""
        if self.words is not None:
            return self._places(batch, values)
        read, kinds = numbers(values)
        finite = np.isfinite(read)
        for kind, name in enumerate(KINDS[:WORD]):
            if name not in self.first:
                self._see(batch, name, values, finite & (kinds == kind))
        if finite.all():
            return read
        if (kinds == WORD).any():
            self.words = {}
            return self._places(batch, values)
        for name, rows in (("infinite", np.isinf(read)), ("missing", np.isnan(read))):
            self.counts[name] += int(np.count_nonzero(rows))
            self._see(batch, name, values, rows)
        return read

    @property
    def kinds(self) -> list[str]:
        """The kinds of cells that it has beside words."""
        return [kind for kind in KINDS[:WORD] if kind in self.first]

    @property
    def is_mixed(self) -> bool:
        """Whether it has numbers, dates or truth values among others, or among words."""
        return not self.named and len(self.kinds) + bool(self.words) > 1

    def _places(self, batch: Batch, values: "pyarrow.Array") -> NDArray[np.float64]:
        """Return the places (rows,) of words; numbers among them are seen, unless they are asked for as words."""
        assert self.words is not None
        texts, of_rows = distinct(values)
        counts = np.bincount(of_rows, minlength=len(texts))
        places = np.full(len(texts), np.nan)
        for at, text in enumerate(texts):
            kind = "missing" if text is None else KINDS[WORD]
            if text is not None and text not in self.words:
                self.longest = max(self.longest, len(text))
                if not self.named and (read := read_cell(text)[0]) != WORD:
                    kind = KINDS[read]
                elif len(self.words) <= MOST_WORDS:
                    self.words[text] = len(self.words)
            if text in self.words:
                places[at] = self.words[text]
            self.counts[kind] += int(counts[at])
            if kind not in self.first:
                self.first[kind] = str(text), _row_of(batch, int(np.argmax(of_rows == at)))
        return places[of_rows]

    def _see(self, batch: Batch, kind: str, values: "pyarrow.Array", rows: NDArray[np.bool_]) -> None:
        """Remember the first cell of a kind."""
        if kind not in self.first and rows.any():
            row = int(np.argmax(rows))
            self.first[kind] = str(values[row].as_py()), _row_of(batch, row)

    def example(self, kind: str) -> str:
        """Return the first cell of a kind and where it is, for people."""
        if kind not in self.first:
            return ""
        text, row = self.first[kind]
        if kind == "missing":
            return f", the first in {row.place(0)}"
        return f", such as {text[:40]!r} in {row.place(0)}"


def _row_of(batch: Batch, row: int) -> Batch:
    """Return a batch of the place of one row, without its cells."""
    return Batch(batch.path, batch.start + row, 0, {}, batch.line_of)


class Learner:
    """Reads the inputs of a table to train on for the first time: which columns are numbers, and which words there are.

    names: of the columns. Nothing is refused meanwhile: `check` tells all that cannot be used as it is. Raises
    UsageError where a column that is asked for as categories is no input.
    """

    def __init__(self, path: Path, names: Sequence[str], asked: EncodingRequest) -> None:
        self.names, self._path, self._asked = list(names), path, asked
        absent = next((name for name in asked.columns if name not in names), None)
        if absent is not None:
            known = ", ".join(names)[:400]
            raise UsageError(f"`data.categorical`: {absent!r} is no input of {path}; it has {known}")
        named = [name in asked.columns for name in names]
        self._columns = [_Column(name, {} if one else None, one) for name, one in zip(names, named, strict=True)]

    @property
    def words(self) -> list[dict[str, int] | None]:
        """The words of each column and their codes; None for a column of numbers."""
        return [column.words for column in self._columns]

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of cells of each column of dates or truth values."""
        others = (column for column in self._columns if column.words is None and column.kinds)
        return {column.name: column.kinds[0] for column in others if column.kinds[0] != KINDS[NUMBER]}

    def codes(self, batch: Batch, places: Sequence[int]) -> NDArray[np.float64]:
        """Return the codes (rows, columns) of the columns at some places."""
        codes = np.empty((batch.n_rows, len(places)))
        for k, (column, place) in enumerate(zip(self._columns, places, strict=True)):
            column.place = place
            codes[:, k] = column.read(batch, batch.columns[place])
        return codes

    def check(self, spec: SourceSpec, n_rows: int) -> None:
        """Raise DataError with every column that cannot be used as it is, and the settings that help."""
        faults, dropped, needs, most = list[str](), list[str](), set[str](), self._asked.most
        for column in self._columns:
            words, parts = column.words or {}, []
            example = column.example if len(faults) < MOST_COMPLAINTS else lambda kind: ""  # some take a reading
            unusable = bool(column.counts["infinite"]) or column.counts["missing"] == n_rows
            if column.counts["infinite"]:
                parts.append(f"{column.counts['infinite']} infinite{example('infinite')}")
            looks = None if column.named else misread(words)
            if looks is not None:
                at = example("word") if looks[2] == column.first["word"][0] else f", such as {looks[2][:40]!r}"
                parts.append(f"{looks[0]}{at}, {looks[1]}")
                unusable = not looks[0].startswith(COMMAS)
            elif column.is_mixed:
                parts.append(_mixture(column, example))
                unusable = True
            elif column.longest > MOST_WORD_CHARACTERS:
                parts.append(f"texts of up to {column.longest} characters{example('word')}")
                unusable = True
            elif len(words) > most:
                parts.append(_too_many(column, example, most))
                unusable = True
            elif words and not self._asked.words:
                parts.append(f"{counted(len(words), 'word')}{example('word')}")
                needs.add("categorical")
            if column.counts["missing"] == n_rows:
                parts.append("no cell is filled in")
            elif column.counts["missing"] and self._asked.missing is None:
                parts.append(f"{column.counts['missing']} of {n_rows} missing{example('missing') if not parts else ''}")
                needs |= set() if unusable else {"missing"}
            faults += [f"{title_of(column.name, column.place)} ({'; '.join(parts)})"] if parts else []
            dropped += [column.name] if unusable else []
        if not faults:
            return
        dropped = dropped if len(dropped) < len(self._columns) else []  # no input would be left
        options = _remedies(spec, self._asked, dropped, needs)
        more = f" and {len(faults) - MOST_COMPLAINTS} more" if len(faults) > MOST_COMPLAINTS else ""
        listed = ", ".join(faults[:MOST_COMPLAINTS]) + more
        remedy = f"mend their cells, or try: {options}" if options else "mend their cells"
        raise DataError(f"{self._path}: columns that need a setting: {listed}; {remedy}")


def _too_many(column: _Column, example: Callable[[str], str], most: int) -> str:
    """Return how many words a column has that has too many, and the setting that takes them, if they are categories."""
    words = column.words or {}
    if len(words) > MOST_WORDS:
        return f"more than {MOST_WORDS} different words{example('word')}"
    if len(words) == column.counts["word"]:
        return f"{len(words)} words, another one in each row{example('word')}"
    told = f"{len(words)} words{example('word')}, more than {most}"
    return f"{told}; {setting('data.categories', str(len(words)))} takes them"


def _mixture(column: _Column, example: Callable[[str], str]) -> str:
    """Return the kinds of cells that a column has, and the first of each, for people."""
    words = [] if not column.words else [f"{counted(len(column.words), 'other word')}{example('word')}"]
    firsts = [(kind, example(kind).removeprefix(", such as ")) for kind in column.kinds]
    held = " and ".join([*(f"{kind}s" for kind in column.kinds), *words])
    return ", ".join([held, *(f"{cell} is a {kind}" for kind, cell in firsts if cell)])


def _remedies(spec: SourceSpec, asked: EncodingRequest, dropped: list[str], needs: Collection[str]) -> str:
    """Return the options that let a table be read, with those that it has already."""
    options = []
    if dropped and spec.columns is not None:
        options.append(setting("data.columns", names_text(name for name in spec.columns if name not in dropped)))
    elif dropped:
        options.append(drop_setting(*(spec.drop or ()), *dropped))
    options += [setting("data.categorical", ONE_HOT)] if "categorical" in needs else []
    options += [setting("data.missing", "median")] if "missing" in needs else []
    return " ".join(options)


@dataclass
class CellReader:
    """Turns the columns of batches into codes as they were learned.

    names: of the columns; words: those of each column in the order of their codes, None for numbers; missing: whether
    cells may be missing; kinds: of the columns of dates or truth values; others are of
    numbers; None where any may be. are_known: whether the same cells were read before, by a `Learner` or another
    reader. are_quantities: whether texts with needless zeros in front are numbers too. unknown: how many cells of
    each column had a word that is not known.
    """

    names: Sequence[str]
    words: Words
    missing: bool = False
    kinds: Mapping[str, str] | None = None
    are_known: bool = False
    are_quantities: bool = False
    unknown: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Number the words."""
        self._known = [None if words is None else {word: k for k, word in enumerate(words)} for words in self.words]

    def codes(self, batch: Batch, places: Sequence[int]) -> NDArray[np.float64]:
        """Return the codes (rows, columns) f8 of the columns at some places.

        Raises DataError for the first row with a cell that cannot be.
        """
        codes, faults = np.empty((batch.n_rows, len(places))), list[tuple[int, int, str]]()
        for k, place in enumerate(places):
            known, cells = self._known[k], batch.columns[place]
            codes[:, k], wrong, wanted = self._numbers(k, cells) if known is None else self._places(k, known, cells)
            if wrong.any():
                faults.append((int(np.argmax(wrong)), k, wanted))
        if faults:
            row, k, wanted = min(faults)
            value, title = batch.columns[places[k]][row].as_py(), title_of(self.names[k], places[k])
            told = f"{batch.where(row)}, column {title} is {'' if value is None else str(value)[:40]!r}"
            raise DataError(f"{told}; {wanted} is needed")
        return codes

    def _numbers(self, k: int, cells: "pyarrow.Array") -> tuple[NDArray[np.float64], NDArray[np.bool_], str]:
        """Return the numbers of a column, which of them cannot be, and what is needed there."""
        cells = without_zeros(cells) if self.are_quantities else cells
        read, kinds = numbers(cells, are_known=self.are_known)
        wrong = np.isinf(read) if self.missing else ~np.isfinite(read)
        wanted = "a finite number"
        if not self.are_known:
            wrong |= kinds == WORD
        if self.kinds is not None:
            kind = self.kinds.get(self.names[k], KINDS[NUMBER])
            wrong |= ~np.isnan(read) & (kinds != KINDS.index(kind))
            wanted = f"a {kind}" if kind != KINDS[NUMBER] else wanted
        return read, wrong, wanted

    def _places(
        self, k: int, known: Mapping[str, int], cells: "pyarrow.Array"
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], str]:
        """Return the places of the words of a column, as `_numbers`."""
        texts, of_rows = distinct(cells)
        of_texts = np.array(places_in(known, [text or "" for text in texts]), np.float64)
        places = np.where([text is None for text in texts], np.nan, of_texts)[of_rows]
        self.unknown[self.names[k]] += int(np.count_nonzero(places == UNKNOWN))
        return places, np.isnan(places) & (not self.missing), "a category"
