"""Tables as text: which line is a header, which column the target, what cells become, what is refused, and where."""

import gzip
import re

import numpy as np
import pytest
from features.tables.encoding import MOST_WORDS

from features import csv_files
from features.errors import DataError, UsageError
from features.open_source import open_source
from features.source import SourceSpec
from sources import everything


def table(tmp_path, text, name="table.csv", **options):
    (tmp_path / name).write_text(text)
    return open_source(SourceSpec(str(tmp_path / name), **options))


HEADER = "length,sex,label\n"
ROWS = "1.5,0,a\n2.5,1,b\n-3e2,0,a\n4,1,c\n5,1,c\n6,0,b\n7,0,b\n8,1,a\n"


def letters():
    """Lines like those of the letter recognition file: a capital, then sixteen small integers, no header."""
    rng = np.random.default_rng(0)
    return "".join(f"{chr(65 + k % 26)},{','.join(map(str, rng.integers(0, 16, 16)))}\n" for k in range(200))


NUMBERS = "y,a,b\n" + "".join(f"{k % 2},{k},{k * 0.5}\n" for k in range(12))
OF_B = [k * 0.5 for k in range(12)]
SPECIES = "1,2,3,cat\n3,4,5,dog\n" * 9
PAIRS = "1,2,0\n3,4,1\n" * 9
FIVES = "1,5,3\n" * 5 + "1,6,4\n" * 5
ALPHABET = {"classes": tuple(map(chr, range(65, 91))), "shape": (16,), "rows": 200}
NO, YES = "header: no, target: column", "header: yes, target: column"
TOLD = ("names repeat", "without a name")
OF_ROWS = {"task": "multiclass", "classes": ("a", "b", "c"), "shape": (2,), "targets": [0, 0, 0, 1, 1, 1, 2, 2]}
OF_ROWS["table"] = [[-300, 0, 0], [1.5, 0, 0], [2.5, 1, 1], [4, 1, 2], [5, 1, 2], [6, 0, 1], [7, 0, 1], [8, 1, 0]]
# Content of the file, options, and what is read: rows, task, classes, sorted targets, names and places of columns, the
# first note, which of the notes in TOLD are given, and the table with its targets, by its first column.
READ = {
    "with a header": (HEADER + ROWS, {}, OF_ROWS),
    "without one": (ROWS, {}, OF_ROWS),
    "of another editor": ("\ufeff" + HEADER + ROWS.replace("\n", "\r\n\r\n"), {}, OF_ROWS),
    "target called y": (NUMBERS, {}, {"task": "binary", "targets": [0] * 6 + [1] * 6}),
    "target by name": (NUMBERS, {"target": "b"}, {"task": "regression", "targets": OF_B}),
    "target by place": (NUMBERS, {"target": "2"}, {"targets": OF_B}),
    "target by place from the end": (NUMBERS, {"target": "-1"}, {"targets": OF_B}),
    "a row with a number": ("0.8,0.7,y\n0.1,0.2,n\n" * 50, {}, {"rows": 100, "note": f"{NO} 2 of 0 to 2"}),
    "letters": (letters(), {"target": "0"}, {"note": f"{NO} 0 of 0 to 16"} | ALPHABET),
    "letters from the end": (letters(), {"target": "-17"}, {"note": f"{NO} 0 of 0 to 16"} | ALPHABET),
    "named target": ("400,402,y2\n" + PAIRS, {"target": "y2"}, {"rows": 18, "note": f"{YES} 2 (y2)"}),
    "a position is no name": ("2,1,0\n" + FIVES, {"target": "1"}, {"rows": 11, "note": f"{NO} 1 of 0 to 2"}),
    "weights and groups": (
        "".join(f"{k},1,g{k},{k % 2}\n" for k in range(12)),
        {"target": "3", "weights": "1", "groups": "2"},
        {"rows": 12, "note": f"{NO} 3 of 0 to 3"},
    ),
    "label, last": ("kg,m,label\n" + "1,2,p\n3,4,q\n" * 9, {}, {"rows": 18, "note": f"{YES} 2 (label)"}),
    "label, first": ("label,m,kg\n" + "p,1,2\nq,3,4\n" * 9, {}, {"rows": 18, "note": f"{YES} 0 (label)"}),
    "no name": ("x_1,,b\n" + FIVES, {}, {"rows": 10, "note": f"{YES} 2 (b)", "told": ["without a name"]}),
    "years": ("2019,2020,21,kind\n" + SPECIES, {"target": "kind"}, {"rows": 18, "classes": ("cat", "dog")}),
    "rare labels": ("1,2,3,cow\n4,5,6,owl\n" + SPECIES, {}, {"rows": 20, "classes": ("cat", "cow", "dog", "owl")}),
    "names that repeat": ("a,a,c\n" + PAIRS, {}, {"inputs": (), "target": "c", "at": 2, "told": ["names repeat"]}),
    "names with blanks": ("far, near ,y\n" + PAIRS, {}, {"inputs": ("far", "near"), "target": "y", "at": 2}),
    "no names": (PAIRS, {"positive": "1", "target": "0"}, {"inputs": (), "target": None, "at": 0}),
    "labels of any script": ("a,y\n" + "1,vier_fünf\n3,１x\n5,7\n" * 9, {}, {"classes": ("7", "vier_fünf", "１x")}),
    "separators in quotes": ('"a, b";"d, e";y\n' + "1;2;3\n3;4;5\n" * 9, {}, {"inputs": ("a, b", "d, e"), "at": 2}),
    "commas in cells": ("x\ty\n" + "1\ta, b\n2\tc\n" * 2, {"name": "words.tsv"}, {"classes": ("a, b", "c")}),
}


@pytest.mark.parametrize("case", READ)
def test_header_target_and_columns_are_found(tmp_path, case):
    text, options, expected = READ[case]
    source = table(tmp_path, text, **options)
    rows = np.column_stack(everything(source))
    found = {
        "rows": source.n_train + source.n_test,
        "task": source.task,
        "classes": source.classes,
        "shape": source.input_shape,
        "inputs": source.columns.inputs,
        "target": source.columns.target,
        "at": source.columns.target_index,
        "targets": sorted(rows[:, -1].tolist()),
        "table": rows[np.argsort(rows[:, 0])].tolist(),
        "note": source.notes[0],
        "told": [words for words in TOLD if any(words in note for note in source.notes)],
    }
    expected = {"told": []} | expected
    assert {key: found[key] for key in expected} == expected


WORDS = "id,color,age,ok\n" + "".join(
    f"{k},{color},{age},{'yn'[k % 2]}\n"
    for k, (color, age) in enumerate([("red", "31"), ('"blue, dark"', "NA"), ("red", "nan"), ("?", "20.5")] * 6)
)
NO_AGE = WORDS.replace(",31,", ",,").replace(",20.5,", ",?,")
ENCODED = {"categorical": "onehot", "missing": "median"}
OCTANE = "1,2,3\n3,4,5\n" * 9
REFUSED = [
    ("", {}, "empty"),
    ("a,b,y\n", {}, "no rows"),
    ("1\n2\n", {}, "one column"),
    (HEADER + ROWS + "9,1\n", {}, r"row 8 \(line 10\) has 2 cells, expected 3"),
    (HEADER + ROWS + "nan,1,a\n", {}, r"row 8 \(line 10\), column length is 'nan'"),
    (ROWS + "1,x,a\n", {}, r"row 8 \(line 9\), column 1 is 'x'"),
    (ROWS + "1,,a\n", {}, "column 1 is ''"),
    (ROWS + "1,inf,a\n", {}, "column 1 is 'inf'"),
    (ROWS + "1,2,\n", {}, "no label"),
    (ROWS + '1,"2,a\n', {}, "not text separated by ','"),
    ("a,y\n" + "1,x\n2,x\0\n" * 9, {}, "the label .* ends with a NUL character"),
    ("1,2\n1,2\n3,2\n", {}, "one class"),
    ("a;b;y\n1,5;2;3\n2,5;3;4\n", {}, "column a is '1,5'; a finite number with a decimal point is needed"),
    # The cell 1 of the first line is a number, not the name of the column asked for.
    ("a,b,1\n" + FIVES, {"target": "1"}, r"row 0 \(line 1\), column 0 is 'a'"),
    # A header of numbers would make a class of every value of the target, or one class more.
    ("400,402,octane\n" + OCTANE, {}, r"line 1 has the target 'octane'.*--target octane"),
    ("400,kg,octane\n" + OCTANE, {}, r"line 1\), column 1 is 'kg'.* if it is a header, .*--target octane"),
    ("2019,2020,2021,species\n" + SPECIES, {}, "line 1 has the target 'species', no other line.*--target species"),
    ("2019,2020,2021,species\n" + SPECIES, {"target": "3"}, "line 1 has .* no other line.*--target species"),
    ("a,y\n" + "".join(f"{k},{k / 7}\n" for k in range(150)) + "3,?\n", {}, r"row 150 is '\?'"),
    ("a,y\n" + "1,2\n2,inf\n" * 20, {}, "row 1 is inf"),
    # Words and missing cells.
    (WORDS, {}, r"row 0 \(line 2\), column color is 'red'; .*--set data.categorical=onehot"),
    (WORDS, {"categorical": "onehot"}, r"row 1 .*column age is 'NA'; .*--set data.missing=median"),
    (WORDS, {"missing": "median"}, "column color is 'red'"),
    (WORDS + "24,inf,3,y\n", ENCODED, "line 2, column color is 'red', line 26 has a number; .*onehot:color"),
    (WORDS + "24,red,old,y\n", ENCODED, "line 26, column age is 'old', line 2 has a number; leave missing"),
    (WORDS + "24,red,inf,y\n", ENCODED, "column age is 'inf'; a finite number is needed$"),
    (WORDS + "24,red,,\n", ENCODED, "row 24 .*column ok has no label"),
    (WORDS + "24,red,3\n", ENCODED, "has 3 cells, expected 4"),
    (NO_AGE, ENCODED, "'age' has no cell .*data.drop=age"),
    ("a,b,y\n" + ",1,2\n,3,4\n" * 9, {"missing": "median"}, "column 'a' has no cell"),
    ("a,y\n" + f"{'x' * 300},1\ny,2\n", {"categorical": "auto"}, "a text of 300 characters; .*data.drop=a"),
    ("a,y\n" + "".join(f"w{k},1\n" for k in range(MOST_WORDS + 1)), ENCODED, f"more than {MOST_WORDS} categories"),
]
# Python's float takes all of these; nor are they names, which would lose a row.
for odd in ("1_000", "\uff11\uff12", "\u0663"):
    REFUSED += [
        (f"a,b,y\n1,2,0\n3,4,1\n5,{odd},1\n", {}, rf"row 2 \(line 4\), column b is '{odd}'; a number in ASCII digits"),
        (f"a,b,y\n1,2,0\n3,4,1\n5,6,{odd}\n", {}, f"column y, row 2 is '{odd}'; write numbers in ASCII digits"),
        (f"{odd},b,y\n1,2,0\n3,4,1\n", {}, "column 0 is"),
    ]


A_TO_C = "a,b,c,y\n" + "".join(f"{k},{k * 2},{k * 3},{k * 0.5}\n" for k in range(20))
ASKED_FOR_IN_VAIN = [
    (NUMBERS, {"target": "rings"}, "y, a, b"),
    (NUMBERS, {"target": "3"}, "0 to 2"),
    (A_TO_C, {"drop": ("d",)}, r"'d' is no column of .*, which has a, b, c, y"),
    (A_TO_C, {"columns": ("a", "y")}, "'y' is the target"),
    (A_TO_C, {"drop": ("a", "b", "c")}, "leaves no input"),
    (A_TO_C, {"drop": ("a",), "columns": ("b",)}, "leave one of them out"),
    (A_TO_C.partition("\n")[2], {"drop": ("a",)}, "has no header"),
    (A_TO_C.replace("a,b,c", "a,a,c"), {"drop": ("a",)}, "'a' stands more than once"),
    (A_TO_C, {"categorical": "onehot:zap"}, r"'zap' is no input of .*; it has a, b, c, y"),
    (A_TO_C, {"categorical": "dummies"}, "give "),
    (A_TO_C, {"missing": "mean"}, "give "),
]
WRONG = [(DataError, *case) for case in REFUSED] + [(UsageError, *case) for case in ASKED_FOR_IN_VAIN]


@pytest.mark.parametrize(("error", "text", "options", "message"), WRONG, ids=range(len(WRONG)))
def test_cells_that_cannot_be_and_columns_that_are_not_there_are_refused(tmp_path, error, text, options, message):
    with pytest.raises(error, match=message) as caught:
        table(tmp_path, text, **options)
    assert "\n" not in str(caught.value)


def test_columns_are_chosen_by_name(tmp_path):
    source = table(tmp_path, A_TO_C, columns=("c", "a"))
    assert (source.columns.inputs, source.columns.target_index, source.columns.chosen) == (("a", "c"), 2, True)
    inputs, targets = source.read("train", 0, 15)
    assert inputs.tolist() == [[k, 3 * k] for k in (2 * targets).tolist()]
    assert "header: yes, target: y, inputs: a, c" in source.notes
    assert table(tmp_path, A_TO_C, drop=("b",)).identity == source.identity


@pytest.mark.parametrize(
    ("content", "message"), [(b"1" * 5000, "line 1 is longer than 1000"), (b"1,2\n\xff\xfe,3\n", "UTF-8")]
)
def test_bytes_that_are_no_lines_of_text_are_refused(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(csv_files, "MAX_LINE_CHARACTERS", 1000)
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_source(SourceSpec(str(tmp_path / "table.csv")))


@pytest.mark.parametrize(
    ("n_values", "task", "words"),
    [
        (2, "binary", None),
        (7, "multiclass", "7 distinct whole numbers are taken for classes.*data.task=regression"),
        (26, "multiclass", "26 distinct"),
        (30, "regression", "30 distinct whole numbers are taken for quantities.*data.task=multiclass"),
    ],
)
def test_what_whole_numbers_are_taken_for_is_said(tmp_path, n_values, task, words):
    text = "".join(f"{k * 0.5},{k % n_values}\n" for k in range(120))
    source = table(tmp_path, text)
    assert source.task == task
    assert len(source.notes) == (1 if words is None else 2)
    assert words is None or re.search(words, source.notes[1])
    for asked in ("multiclass", "regression"):
        source = table(tmp_path, text, task=asked)
        assert (source.task, len(source.notes)) == (asked, 1)


@pytest.mark.parametrize(
    ("name", "separator"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t"), ("t.tsv.gz", "\t"), ("t.csv.gz", ",")]
)
def test_separators_and_packed_files_hold_the_same_rows(tmp_path, name, separator):
    text = 'a,"b",y\n1,2,3.5\n4,5,6.5\n7,8,9.5\n'
    plain = table(tmp_path, text, name="plain.csv")
    other = text.replace(",", separator).encode()
    (tmp_path / name).write_bytes(gzip.compress(other) if name.endswith(".gz") else other)
    packed = open_source(SourceSpec(str(tmp_path / name)))
    assert (packed.identity, packed.columns, packed.name) == (plain.identity, plain.columns, "t")


STORED = gzip.compress(b"x,y\n" + b"1,2\n3,4\n" * 500, compresslevel=0, mtime=0)
PACKED = gzip.compress(b"x,y\n" + b"1,2\n3,4\n" * 500, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [(PACKED[:20], "damaged gzip file"), (PACKED[:-9], "damaged gzip file"), (b"x,y\n1,2\n", "damaged gzip file")]
    # A flipped byte is told of the file, and not of a cell.
    + [(STORED.replace(b"3,4", cell, 1), r"damaged gzip file \(CRC") for cell in (b"3,w", b"3,5", b"\xff,4")]
    + [(gzip.compress(b"x,y\n" + b"1,2\n" * 200_000, mtime=0), "more than 100 times")],
    ids=["cut early", "cut late", "no gzip", "a letter", "another digit", "no text", "a bomb"],
)
def test_a_packed_file_that_is_damaged_or_a_bomb_is_named(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr("features.input_files.ALWAYS_ALLOWED_BYTES", 1 << 16)
    (tmp_path / "t.csv.gz").write_bytes(content)
    with pytest.raises(DataError, match=rf"t\.csv\.gz: .*{message}"):
        open_source(SourceSpec(str(tmp_path / "t.csv.gz")))
