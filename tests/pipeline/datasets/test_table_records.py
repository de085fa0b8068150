"""What was found in tables is kept: found again while their files are as they were, and read again where not."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import flip
from features import open_source
from features.errors import DataError
from features.source import Source, SourceSpec, Tick
from features.tables import readers, table_source
from pipeline.datasets import feature_request, feature_rows
from pipeline.datasets.open_data import Reading, TableRecords, open_data
from pipeline.runtime import stopping
from runs import files_of, model_bytes, report_of, train
from sources import everything, same
from storage.arrays import read_arrays, write_arrays

SIZES = ["" if k % 5 == 0 else k * 7 % 90 / 3 for k in range(90)]
WORDS = "color,size,y\n" + "".join(f"{'rgb'[k % 3]},{size},{'np'[k % 2]}\n" for k, size in enumerate(SIZES))
ENCODED = {"categorical": "onehot", "missing": "median"}
OPTIONS = ("--set", "data.categorical=onehot", "--set", "data.missing=median", "--centers", "10", "--penalty", "1")
SMALL = ("--scheduler", "serial", "--centers", "10", "--penalty", "1", "--sigma2", "2")
SIZE = "0.6666666666666666"


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is small: each is learned on a sample and read again, in blocks of some rows."""
    monkeypatch.setattr(table_source, "SAMPLE_CELLS", 30)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 256)
    monkeypatch.setattr(readers, "COLUMN_BLOCK_BYTES", 1)


def opened(tmp_path: Path, reading: Reading | None = None, **options: Any) -> Source:
    open_source.close_files()  # as in another process
    return open_data(SourceSpec(str(tmp_path / "t.csv"), kept=str(tmp_path / "tables"), **options), reading=reading)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (WORDS, ENCODED),
        ("id,g,w,y\n" + "".join(f"{k},a{k % 7},{k % 3},{k / 7}\n" for k in range(60)), {"groups": "g", "weights": "w"}),
        (WORDS, {**ENCODED, "test": "test.csv"}),
    ],
    ids=range(3),
)
@pytest.mark.usefixtures("in_order")
def test_what_is_kept_is_what_was_found_and_is_not_read_again(tmp_path, monkeypatch, text, options):
    readings = Reading(), Reading()
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(text)
    Path("test.csv").write_text("y,size,color\nn,2,r\np,,pink\n")
    first, second = (opened(tmp_path, reading, **options) for reading in readings)
    assert first.is_in_order
    assert [reading.n_tables for reading in readings] == [2 if "test" in options else 1, 0]
    same(second, first)
    for name in ("X", "y", "numbers"):
        np.testing.assert_array_equal(*(getattr(source.learned(), name)[:] for source in (first, second)))
    for one, other in zip(first.in_order(), second.in_order(), strict=True):
        np.testing.assert_array_equal(one[2], other[2])


def test_a_changed_file_is_read_again(tmp_path):
    path, kept = tmp_path / "t.csv", list[Source]()
    values = (SIZE, "0.7777777777777777", "0.8888888888888888")
    for k, value in enumerate(values):
        path.write_text(WORDS.replace(SIZE, value))
        os.utime(path, (k, k))
        kept.append(opened(tmp_path, reading := Reading(), **ENCODED))
        assert reading.n_tables == 1
        assert any("has changed since it was read" in note for note in reading.notes) == (k > 0)
        same(kept[-1], open_data(SourceSpec(str(path), **ENCODED)))
        assert len(list((tmp_path / "tables").iterdir())) == 1
    assert len({source.identity["sha256"] for source in kept}) == 3
    for source, value in zip(kept, values, strict=True):
        assert float(value) in everything(source)[0]


def test_a_table_with_other_words_or_names_in_the_same_places_is_another(tmp_path):
    """Codes number the words as they come: of r and b in place of each other they are the same."""
    swapped = WORDS.translate(str.maketrans("rb", "br")).replace("colob", "color")
    texts, kept = (WORDS, swapped, WORDS.replace("size", "length"), WORDS.replace("y\n", "z\n")), set()
    for text in texts:
        (tmp_path / "t.csv").write_text(text)
        kept.add(open_data(SourceSpec(str(tmp_path / "t.csv"), **ENCODED)).identity["sha256"])
        open_source.close_files()
    assert len(kept) == len(texts)


def test_other_settings_ask_other_questions(tmp_path):
    """Nothing that was found with gaps, or with a header, is taken for what is found without."""
    text = "f0,f1,f2\n" + "".join(f"{k % 7},{k % 5},{k % 2}\n" for k in range(40))
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "test.csv").write_text("f0,f1,f2\n1,,0\n")
    opened(tmp_path, test=str(tmp_path / "test.csv"), missing="median")
    with pytest.raises(DataError, match=r"test\.csv: row 0 \(line 2\), column f1 is ''"):
        opened(tmp_path, test=str(tmp_path / "test.csv"))
    opened(tmp_path)
    with pytest.raises(DataError, match=r"f0 \(numbers and 1 other word"):
        opened(tmp_path, header=False, target="2")


@pytest.mark.parametrize("harm", ["a flipped bit", "no archive", "no labels", "words that are none"])
def test_a_record_that_is_damaged_is_made_again(tmp_path, harm):
    (tmp_path / "t.csv").write_text(WORDS)
    before = opened(tmp_path, **ENCODED)
    (record,) = (tmp_path / "tables").iterdir()
    if harm == "a flipped bit":
        flip(record)
    elif harm == "no archive":
        record.write_text("{}")
    else:
        facts = read_arrays(record)
        facts.pop("labels") if harm == "no labels" else facts.update(record=np.frombuffer(b"[1]", np.uint8))
        write_arrays(record, facts)
    same(opened(tmp_path, reading := Reading(), **ENCODED), before)
    assert reading.n_tables == 1


def test_a_file_that_changes_while_it_is_read_is_told_and_not_kept(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(WORDS)
    found = table_source.open_table(SourceSpec(str(path), **ENCODED), path)

    def read(tick: Tick) -> Any:
        path.write_text(WORDS + "r,1,n\n")  # as another program would
        return found

    with pytest.raises(DataError, match=r"t\.csv: changed while it was read; .* run again"):
        TableRecords(tmp_path / "tables", True, Reading()).read(path, {}, read, table_source.ReadTable)
    assert not list((tmp_path / "tables").glob("*"))


@pytest.mark.parametrize("small", [True, False])
def test_a_run_counts_its_reading_and_the_next_reads_nothing(tmp_path, capsys, request, small):
    if not small:
        request.getfixturevalue("in_order")
    (tmp_path / "t.csv").write_text(WORDS)
    features = tmp_path / "features"
    train(tmp_path / "dry", features, *OPTIONS, "--dry-run", dataset=tmp_path / "t.csv")
    assert "read " in capsys.readouterr().out
    assert not features.exists()
    assert not (tmp_path / "dry").exists()
    train(tmp_path / "one", features, *OPTIONS, dataset=tmp_path / "t.csv")
    assert report_of(tmp_path / "one")["stages"]["read"]["items"] == 1
    kept = files_of(features)
    open_source.close_files()
    train(tmp_path / "two", features, *OPTIONS, dataset=tmp_path / "t.csv")
    assert "read" not in report_of(tmp_path / "two")["stages"]
    assert files_of(features) == kept
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "two")
    train(tmp_path / "live", features, *OPTIONS, "--features-dir", "none", dataset=tmp_path / "t.csv")
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "live"), "moments are of the same rows"


@pytest.mark.usefixtures("in_order")
def test_of_a_table_that_was_not_read_to_its_end_nothing_is_taken_up(tmp_path, monkeypatch, capsys):
    """It may have been another table, which is known at the end."""
    monkeypatch.setattr(feature_request, "chunk_rows_for", lambda row_bytes, n_rows: 16)
    X, path = np.random.default_rng(0).normal(size=(400, 4)), tmp_path / "t.csv"
    np.savetxt(path, X, delimiter=",", header="a,b,c,y", comments="")
    train(tmp_path / "whole", tmp_path / "f", *SMALL, dataset=path)
    written, real = list[str](), feature_rows.build_item

    def stopping_after_three(task: Any, item: Any, inputs: Any) -> int:
        written.append(item.name)
        if len(written) == 3:
            stopping.current().reason = "a test"
        return real(task, item, inputs + 1)

    monkeypatch.setattr(feature_rows, "build_item", stopping_after_three)
    train(tmp_path / "stopped", tmp_path / "g", *SMALL, dataset=path, code=75)
    assert "written in one reading, which begins anew; continue with: " in capsys.readouterr().err
    assert len(written) == 3
    monkeypatch.setattr(feature_rows, "build_item", real)
    train(tmp_path / "run", tmp_path / "g", *SMALL, dataset=path)
    assert files_of(tmp_path / "g") == files_of(tmp_path / "f")
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_a_limit_below_what_reading_needs_is_told_before_the_table_is_read(tmp_path, capsys):
    needed = []
    for n_columns in (3, 5000):
        (tmp_path / "t.csv").write_text(",".join(f"c{k}" for k in range(n_columns)) + "\n")
        train(tmp_path / "run", tmp_path / "f", "--memory-limit", "200MiB", dataset=tmp_path / "t.csv", code=71)
        told = re.search(
            r"t\.csv: reading the table needs (\d+) MiB, the limit is 200 MiB; use --memory-limit (\d+)MiB or more",
            capsys.readouterr().err,
        )
        assert told is not None
        assert int(told[1]) <= int(told[2]) <= int(told[1]) + 1
        needed.append(int(told[1]))
    assert needed[0] < 330
    assert needed[1] > needed[0] + 100
