"""csv: what is a header, which column the target, what is refused, and where the message points."""

import gzip
import re

import numpy as np
import pytest

from features import csv_files, table_files
from features.errors import DataError, UsageError
from features.open_source import open_source
from features.source import SourceSpec


def csv(tmp_path, text, **options):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return SourceSpec(str(path), **options)


def everything(source):
    train, test = source.read("train", 0, source.n_train), source.read("test", 0, source.n_test)
    return np.concatenate([train[0], test[0]]), np.concatenate([train[1], test[1]])


HEADER = "length,sex,label\n"
ROWS = "1.5,0,a\n2.5,1,b\n-3e2,0,a\n4,1,c\n5,1,c\n6,0,b\n7,0,b\n8,1,a\n"


@pytest.mark.parametrize("text", [HEADER + ROWS, ROWS, "\ufeff" + HEADER + ROWS.replace("\n", "\r\n\r\n")])
def test_csv_with_and_without_header(tmp_path, text):
    source = open_source(csv(tmp_path, text))
    assert (source.task, source.classes, source.input_shape) == ("multiclass", ("a", "b", "c"), (2,))
    inputs, targets = everything(source)
    order = np.argsort(inputs[:, 0])
    assert inputs[order, 0].tolist() == [-300.0, 1.5, 2.5, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert targets[order].tolist() == [0, 0, 1, 2, 2, 1, 1, 0]


def test_csv_target_by_name_and_number(tmp_path):
    numbers = "y,a,b\n" + "".join(f"{k % 2},{k},{k * 0.5}\n" for k in range(12))
    assert open_source(csv(tmp_path, numbers)).task == "binary"
    by_name = open_source(csv(tmp_path, numbers, target="b"))
    assert by_name.task == "regression"
    assert everything(open_source(csv(tmp_path, numbers, target="2")))[1].tolist() == everything(by_name)[1].tolist()
    assert open_source(csv(tmp_path, numbers, target="-1")).task == "regression"
    with pytest.raises(UsageError, match="y, a, b"):
        open_source(csv(tmp_path, numbers, target="rings"))
    with pytest.raises(UsageError, match="0 to 2"):
        open_source(csv(tmp_path, numbers, target="3"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a,b,y\n", "no rows"),
        ("1\n2\n", "one column"),
        (HEADER + ROWS + "9,1\n", r"row 8 \(line 10\) has 2 cells, expected 3"),
        (HEADER + ROWS + "nan,1,a\n", r"row 8 \(line 10\), column length is 'nan'"),
        (ROWS + "1,x,a\n", r"row 8 \(line 9\), column 1 is 'x'"),
        (ROWS + "1,,a\n", "column 1 is ''"),
        (ROWS + "1,inf,a\n", "column 1 is 'inf'"),
        (ROWS + "1,2,\n", "no label"),
        (ROWS + '1,"2,a\n', "not text separated by ','"),
        ("1,2\n1,2\n3,2\n", "one class"),
    ],
)
def test_csv_refuses(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        open_source(csv(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_csv_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "MAX_LINE_CHARACTERS", 1000)
    with pytest.raises(DataError, match="line 1 is longer than 1000"):
        open_source(csv(tmp_path, "1" * 5000))


def test_csv_that_is_no_text(tmp_path):
    (tmp_path / "table.csv").write_bytes(b"1,2\n\xff\xfe,3\n")
    with pytest.raises(DataError, match="UTF-8"):
        open_source(SourceSpec(str(tmp_path / "table.csv")))


def test_csv_across_pieces(tmp_path, monkeypatch):
    text = "".join(f"{k},{k + 0.5}\n" for k in range(25))
    whole = everything(open_source(csv(tmp_path, text)))
    monkeypatch.setattr(table_files, "ROWS_PER_PIECE", 4)
    (tmp_path / "other").mkdir()
    assert np.array_equal(whole[0], everything(open_source(csv(tmp_path / "other", text)))[0])


def test_changed_file_is_read_again(tmp_path):
    first = open_source(csv(tmp_path, ROWS)).fingerprint()
    assert open_source(csv(tmp_path, ROWS + "9,1,a\n")).fingerprint() != first


def test_boston_and_abalone(data_dir, tmp_path):
    lines = (data_dir / "boston" / "housing.data").read_text().splitlines()
    boston = open_source(csv(tmp_path, "\n".join(",".join(line.split()) for line in lines)))
    assert (boston.task, boston.n_train + boston.n_test, boston.input_shape) == ("regression", 506, (13,))
    assert everything(boston)[1].mean() == pytest.approx(22.5328, abs=1e-4)
    with pytest.raises(DataError, match=r"row 0 .*column 0 is 'M'"):
        open_source(csv(tmp_path, (data_dir / "abalone" / "abalone.data").read_text()))


def letters(n=200):
    """Lines like those of the letter recognition file: a capital, then sixteen small integers, no header."""
    rng = np.random.default_rng(0)
    names = [chr(65 + k % 26) for k in range(n)]
    return "".join(f"{name},{','.join(map(str, rng.integers(0, 16, 16)))}\n" for name in names)


@pytest.mark.parametrize(
    ("text", "target", "n_rows", "note"),
    [
        ("0.844,0.758,y\n0.1,0.2,n\n" * 50, None, 100, "header: no, target: column 2 of 0 to 2"),
        (letters(), "0", 200, "header: no, target: column 0 of 0 to 16"),
        (letters(), "-17", 200, "header: no, target: column 0 of 0 to 16"),
        ("400,402,octane\n" + "1,2,3.5\n3,4,5.5\n" * 9, "octane", 18, "header: yes, target: column 2 (octane)"),
        ("2,1,0\n" + "1,5,3\n" * 5 + "1,6,4\n" * 5, "1", 11, "header: no, target: column 1 of 0 to 2"),
        ("kg,m,label\n" + "1,2,p\n3,4,q\n" * 9, None, 18, "header: yes, target: column 2 (label)"),
        ("label,m,kg\n" + "p,1,2\nq,3,4\n" * 9, None, 18, "header: yes, target: column 0 (label)"),
        ("x_1,,b\n" + "1,5,3\n" * 5 + "1,6,4\n" * 5, None, 10, "header: yes, target: column 2 (b)"),
    ],
)
def test_a_row_with_a_number_is_no_header_unless_its_target_is_named(tmp_path, text, target, n_rows, note):
    source = open_source(csv(tmp_path, text, target=target))
    assert source.n_train + source.n_test == n_rows
    assert source.notes[0] == note
    assert any("without a name" in line for line in source.notes) == ("x_1" in text)
    if target in ("0", "-17"):
        assert (source.classes, source.input_shape) == (tuple(map(chr, range(65, 91))), (16,))


def test_a_position_is_no_name(tmp_path):
    """The cell 1 of the first line is a number, not the name of the column asked for."""
    with pytest.raises(DataError, match=r"row 0 \(line 1\), column 0 is 'a'"):
        open_source(csv(tmp_path, "a,b,1\n" + "1,5,3\n" * 5 + "1,6,4\n" * 5, target="1"))


def test_a_header_of_numbers_is_not_read_as_a_row(tmp_path):
    """It would make a class of every value of the target."""
    with pytest.raises(DataError, match=r"line 1 has the target 'octane'.*--target octane"):
        open_source(csv(tmp_path, "400,402,octane\n" + "1,2,3\n3,4,5\n" * 9))
    with pytest.raises(DataError, match=r"line 1\), column 1 is 'kg'.* if it is a header, .*--target octane"):
        open_source(csv(tmp_path, "400,kg,octane\n" + "1,2,3\n3,4,5\n" * 9))


@pytest.mark.parametrize("target", [None, "3"])
def test_a_header_of_numbers_is_no_class_of_its_own(tmp_path, target):
    rows = "1,2,3,cat\n3,4,5,dog\n" * 9
    with pytest.raises(DataError, match=r"line 1 has the target 'species', no other line.*--target species"):
        open_source(csv(tmp_path, "2019,2020,2021,species\n" + rows, target=target))
    assert open_source(csv(tmp_path, "2019,2020,2021,species\n" + rows, target="species")).classes == ("cat", "dog")
    rare = open_source(csv(tmp_path, "1,2,3,cow\n4,5,6,owl\n" + rows))
    assert rare.classes == ("cat", "cow", "dog", "owl"), "other labels stand alone too"


def test_names_that_repeat_are_told_of(tmp_path):
    source = open_source(csv(tmp_path, "a,a,c\n" + "1,2,0\n3,4,1\n" * 9))
    assert any("names repeat" in note for note in source.notes)
    assert (source.columns.inputs, source.columns.target, source.columns.target_index) == ((), "c", 2)


def test_the_columns_are_known(tmp_path):
    source = open_source(csv(tmp_path, "far, near ,y\n" + "1,2,0\n3,4,1\n" * 9))
    assert (source.columns.inputs, source.columns.target, source.columns.target_index) == (("far", "near"), "y", 2)
    source = open_source(csv(tmp_path, "1,2,0\n3,4,1\n" * 9, positive="1", target="0"))
    assert (source.columns.inputs, source.columns.target, source.columns.target_index) == ((), None, 0)


@pytest.mark.parametrize("cell", ["1_000", "\uff11\uff12", "\u0663"])
def test_numbers_are_written_in_ascii_digits(tmp_path, cell):
    """Python's float takes them all."""
    with pytest.raises(DataError, match=rf"row 2 \(line 4\), column b is '{cell}'; a number in ASCII digits"):
        open_source(csv(tmp_path, f"a,b,y\n1,2,0\n3,4,1\n5,{cell},1\n"))
    with pytest.raises(DataError, match=rf"column y, row 2 is '{cell}'; write numbers in ASCII digits"):
        open_source(csv(tmp_path, f"a,b,y\n1,2,0\n3,4,1\n5,6,{cell}\n"))
    with pytest.raises(DataError, match="column 0 is"):  # nor is it a name, which would lose the row
        open_source(csv(tmp_path, f"{cell},b,y\n1,2,0\n3,4,1\n"))


def test_labels_may_be_words_of_any_script(tmp_path):
    source = open_source(csv(tmp_path, "a,b,y\n" + "1,2,vier_f\u00fcnf\n3,4,\uff11x\n5,6,7\n" * 9))
    assert source.classes == ("7", "vier_f\u00fcnf", "\uff11x")


def test_a_word_among_many_numbers_is_named(tmp_path):
    rows = "".join(f"{k},{k / 7}\n" for k in range(150))
    with pytest.raises(DataError, match=r"row 150 is '\?'"):
        open_source(csv(tmp_path, f"a,y\n{rows}3,?\n"))


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
    source = open_source(csv(tmp_path, text))
    assert source.task == task
    assert len(source.notes) == (1 if words is None else 2)
    assert words is None or re.search(words, source.notes[1])
    for asked in ("multiclass", "regression"):
        source = open_source(csv(tmp_path, text, task=asked))
        assert (source.task, len(source.notes)) == (asked, 1)


def test_labels_of_images_and_one_against_the_rest_are_classes():
    labels = np.resize(np.arange(47), 200)
    images, rows = np.zeros((200, 5, 5), np.uint8), np.zeros((200, 5))
    assert open_source(SourceSpec("a.zarr"), {"X": images, "y": labels}).task == "multiclass"
    assert open_source(SourceSpec("a.zarr"), {"X": rows, "y": labels}).task == "regression"
    assert open_source(SourceSpec("a.zarr", positive="46"), {"X": rows, "y": labels}).task == "binary"
    assert open_source(SourceSpec("a.zarr", most_classes=100), {"X": rows, "y": labels}).task == "multiclass"


def test_an_infinite_label_of_a_csv_is_named(tmp_path):
    with pytest.raises(DataError, match="row 1 is inf"):
        open_source(csv(tmp_path, "a,y\n" + "1,2\n2,inf\n" * 20))


@pytest.mark.parametrize(
    ("name", "separator"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t"), ("t.tsv.gz", "\t"), ("t.csv.gz", ",")]
)
def test_separators_and_packed_files_hold_the_same_rows(tmp_path, name, separator):
    text = 'a,"b",y\n1,2,3.5\n4,5,6.5\n7,8,9.5\n'
    plain = tmp_path / "plain.csv"
    plain.write_text(text)
    path, other = tmp_path / name, text.replace(",", separator).encode()
    path.write_bytes(gzip.compress(other) if name.endswith(".gz") else other)
    one, two = (open_source(SourceSpec(str(file))) for file in (plain, path))
    assert one.fingerprint() == two.fingerprint()
    assert one.columns == two.columns
    assert two.name == "t"


def test_commas_inside_cells_of_a_tsv_are_no_separators(tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("x\ty\n1\ta, b\n2\tc\n3\ta, b\n4\tc\n")
    assert open_source(SourceSpec(str(path))).classes == ("a, b", "c")


@pytest.mark.parametrize("cut", [20, -9, 0])
def test_a_damaged_gzip_file_is_named(tmp_path, cut):
    path = tmp_path / "t.csv.gz"
    packed = gzip.compress(b"x,y\n" + b"1,2\n3,4\n" * 500)
    path.write_bytes(packed[:cut] if cut else b"x,y\n1,2\n")
    with pytest.raises(DataError, match=r"t\.csv\.gz: (damaged gzip file|is empty)"):
        open_source(SourceSpec(str(path)))


def test_a_flipped_byte_is_told_of_the_gzip_file_and_not_of_a_cell(tmp_path):
    path = tmp_path / "t.csv.gz"
    stored = gzip.compress(b"x,y\n" + b"1,2\n3,4\n" * 500, compresslevel=0)
    for other in (b"3,w", b"3,5", b"\xff,4"):
        path.write_bytes(stored.replace(b"3,4", other, 1))
        with pytest.raises(DataError, match=r"t\.csv\.gz: damaged gzip file \(CRC"):
            open_source(SourceSpec(str(path)))


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("features.input_files.ALWAYS_ALLOWED_BYTES", 1 << 16)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 2_000_000))
    with pytest.raises(DataError, match="more than 100 times"):
        open_source(SourceSpec(str(path)))


def test_separators_inside_quotes_and_decimal_commas(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('"a, b, c";"d, e";y\n1;2;3.5\n4;5;6.5\n7;8;9.5\n')
    assert open_source(SourceSpec(str(path))).columns.inputs == ("a, b, c", "d, e")
    path.write_text("a;b;y\n1,5;2;3\n2,5;3;4\n")
    with pytest.raises(DataError, match="column a is '1,5'; a finite number with a decimal point is needed"):
        open_source(SourceSpec(str(path)))
