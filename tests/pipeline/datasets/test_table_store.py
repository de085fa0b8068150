"""Tables that were read are kept: found again while their files hold the same bytes, and read again where not."""

import os
import re
import shutil
import time

import numpy as np
import pandas
import polars
import pytest
import zarr
from features.table_files import ReadTable
from pipeline.datasets.table_store import TableStore

from commands import flip
from features import open_source
from features.errors import DataError
from features.source import SourceSpec
from pipeline.datasets import reading
from pipeline.datasets.open_data import open_data
from pipeline.errors import ConfigMismatchError
from pipeline.train import train as run_of
from runs import files_of, model_bytes, report_of, train
from sources import everything
from storage.files import temporary_path
from storage.folders import new_folder
from storage.zarr_arrays import ArrayWriter, create_arrays, open_arrays

WORDS = "color,size,y\n" + "".join(f"{'rgb'[k % 3]},{'' if k % 5 == 0 else k / 3},{'np'[k % 2]}\n" for k in range(90))
ENCODED = {"categorical": "onehot", "missing": "median"}


def opened(tmp_path, **options):
    return open_data(SourceSpec(str(tmp_path / "t.csv"), kept=str(tmp_path / "tables"), **options))


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(everything(one), everything(other), strict=True))


def disguise(path, change):
    """Change the bytes of a file, and give it its size and time back."""
    status, text = path.stat(), path.read_text()
    changed = change(text)
    assert len(changed) == len(text)
    path.write_text(changed)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_kept_table_is_read_from_the_store_and_a_changed_file_again(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(WORDS)
    in_memory = open_data(SourceSpec(str(path), **ENCODED))
    first = opened(tmp_path, **ENCODED)
    assert same(first, in_memory)
    assert (first.identity, first.columns, first.notes) == (in_memory.identity, in_memory.columns, in_memory.notes)
    os.utime(path, ns=(1, 1))  # the same bytes at another time
    reading.take()
    assert same(opened(tmp_path, **ENCODED), in_memory)
    assert reading.take().n_tables == 0
    disguise(path, lambda text: text.replace("0.6666666666666666", "0.7777777777777777"))
    open_source._opened.cache_clear()  # as in another process
    assert same(opened(tmp_path, **ENCODED), in_memory)  # of the store: size and time are those it had
    assert reading.take().n_tables == 0
    path.write_text(WORDS + "r,1,n\n")
    longer = opened(tmp_path, **ENCODED)
    taken = reading.take()
    assert taken.n_tables == 1
    assert "has changed since it was read" in taken.notes[0]
    assert longer.n_train + longer.n_test == 91


def test_a_table_that_is_read_anew_stays_for_those_who_read_it(tmp_path):
    path, tables = tmp_path / "t.csv", tmp_path / "tables"
    kept = []
    for value in ("0.6666666666666666", "0.7777777777777777", "0.8888888888888888"):
        path.write_text(WORDS.replace("0.6666666666666666", value))
        open_source._opened.cache_clear()  # as in another process
        kept.append((opened(tmp_path, **ENCODED), everything(open_data(SourceSpec(str(path), **ENCODED)))))
        for source, expected in kept[-2:]:
            assert all(np.array_equal(a, b) for a, b in zip(everything(source), expected, strict=True))
        assert len(list(tables.iterdir())) == min(len(kept), 2)
    assert len({source.identity["sha256"] for source, _ in kept}) == 3
    (oldest, _) = sorted(tables.iterdir(), key=lambda folder: (folder / "table.json").stat().st_mtime_ns)
    shutil.rmtree(oldest / "arrays.zarr")
    path.write_text(WORDS.replace("0.6666666666666666", "0.7777777777777777"))
    open_source._opened.cache_clear()
    assert opened(tmp_path, **ENCODED).identity == kept[1][0].identity


@pytest.mark.parametrize("harm", ["a flipped bit", "a file that is gone", "a record that is no record"])
def test_a_store_that_is_damaged_is_made_again(tmp_path, harm):
    (tmp_path / "t.csv").write_text(WORDS)
    before = everything(opened(tmp_path, drop=("color",), missing="median"))
    (folder,) = (tmp_path / "tables").iterdir()
    if harm == "a flipped bit":
        flip(folder / "rows.npz")
    elif harm == "a file that is gone":
        shutil.rmtree(folder / "arrays.zarr")
    else:
        (folder / "table.json").write_text("{}")
    reading.take()
    open_source._opened.cache_clear()  # as in another process
    after = everything(opened(tmp_path, drop=("color",), missing="median"))
    assert reading.take().n_tables == 1
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_table_that_another_process_reads_just_now_is_left_alone_and_what_a_killed_one_left_is_removed(tmp_path):
    (tmp_path / "t.csv").write_text(WORDS)
    opened(tmp_path, **ENCODED)
    (key,) = (path.name for path in (tmp_path / "tables").iterdir())
    with new_folder(tmp_path / "tables" / "another", kind=None) as other, new_folder(tmp_path / "tables" / key) as own:
        left = temporary_path(tmp_path / "tables" / key)
        left.mkdir()
        time.sleep(1.1)  # a folder that has just begun is left alone
        open_source._opened.cache_clear()
        opened(tmp_path, **ENCODED)
        assert other.is_dir()
        assert own.is_dir()
        assert not left.exists()


def test_arrays_of_unknown_length_are_those_of_zarr(tmp_path):
    rng, blocks = np.random.default_rng(0), []
    (tmp_path / "s").mkdir()
    writer = ArrayWriter(tmp_path / "s", "x", (5,), np.float64)
    for n_rows in (3, 0, 200_000, 7, 60_000):
        blocks.append(rng.standard_normal((n_rows, 5)))
        writer.add(blocks[-1])
    create_arrays(tmp_path / "s", [writer.finish()], {})
    whole = np.concatenate(blocks)
    assert np.array_equal(open_arrays(tmp_path / "s")["x"].read(0, len(whole)), whole)
    assert np.array_equal(zarr.open_group(tmp_path / "s", mode="r")["x"][:], whole)


def test_a_run_counts_its_reading_and_the_next_reads_nothing(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(WORDS)
    words = ("--set", "data.categorical=onehot", "--set", "data.missing=median", "--centers", "10", "--penalty", "1")
    features = tmp_path / "features"
    train(tmp_path / "dry", features, *words, "--dry-run", dataset=tmp_path / "t.csv")
    assert "read " in capsys.readouterr().out
    assert not features.exists()
    assert not (tmp_path / "dry").exists()
    train(tmp_path / "one", features, *words, dataset=tmp_path / "t.csv")
    assert report_of(tmp_path / "one")["stages"]["read"]["items"] == 1
    kept = files_of(features / "tables")
    train(tmp_path / "two", features, *words, dataset=tmp_path / "t.csv")
    assert "read" not in report_of(tmp_path / "two")["stages"]
    assert files_of(features / "tables") == kept
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "two")


def test_a_limit_below_what_reading_needs_is_told_before_the_table_is_read(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("not,a,table\n")
    limit = ("--memory-limit", "200MiB")
    train(tmp_path / "run", tmp_path / "features", *limit, dataset=tmp_path / "t.csv", code=71)
    assert "t.csv: reading a table needs 330 MiB, the limit is 200 MiB" in capsys.readouterr().err


@pytest.mark.parametrize("drop", [None, ("id",)])
def test_columns_that_tell_one_row_from_another_are_told(tmp_path, drop):
    rows = "".join(f"{k + 5},name{k},{k * 7 % 13},{k % 2}\n" for k in range(30))
    (tmp_path / "t.csv").write_text('id,"n, w",v,y\n' + rows)
    for _ in range(2):  # read, and from the store
        open_source._opened.cache_clear()
        notes = opened(tmp_path, categorical="auto", drop=drop).notes
        (note,) = (note for note in notes if "names of rows" in note)
        setting = """--set 'data.drop="n, w"'""" if drop else """--set 'data.drop=id,"n, w"'"""
        assert note.endswith(f"{setting} leaves them out")


def test_a_file_that_changes_while_it_is_read_is_told_and_not_kept(tmp_path):
    (tmp_path / "t.csv").write_text(WORDS)
    store, path = TableStore(tmp_path / "tables"), tmp_path / "t.csv"

    def read(make):
        path.write_text(WORDS + "r,1,n\n")  # as another program would
        codes = make(1)
        codes.add(np.zeros((90, 1)))
        return ReadTable(codes.finish(), (None,), np.arange(90), None, None, "")

    with pytest.raises(DataError, match=r"t\.csv: changed while it was read; .* run again"):
        store.read(path, {"encoded": False}, read)
    assert list((tmp_path / "tables").iterdir()) == []


def test_data_frames_train_as_their_parquet_does_and_resume(tmp_path):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"c": rng.choice(["r", "g"], 90), "x": rng.normal(size=90)})
    frame["y"] = np.where(frame["x"] > 0, frame["c"], "no")
    of_polars = polars.from_pandas(frame).with_columns(polars.col("c").cast(polars.Categorical))
    frame.to_parquet(tmp_path / "rows.parquet")
    options = {"centers": 20, "penalty": 1, "target": "y", "settings": {"data.categorical": "auto"}, "quiet": True}
    options["features_dir"] = tmp_path / "features"
    for name, data in (("file", tmp_path / "rows.parquet"), ("frame", frame), ("polars", of_polars)):
        run = run_of(data, run_dir=tmp_path / name, test=data if name == "polars" else None, **options)
        assert run.model.predict(frame[["x", "c"]]).tolist() == run.model.predict(frame).tolist()
    assert model_bytes(tmp_path / "frame") == model_bytes(tmp_path / "file")
    assert run.report["n_test"] == 90
    assert run_of(frame, run_dir=tmp_path / "frame", resume="require", **options).report["n_train"] == 68
    with pytest.raises(ConfigMismatchError):
        run_of(frame[1:], run_dir=tmp_path / "frame", resume="require", **options)
    written = sorted(path.name for path in (tmp_path / "features" / "frames").iterdir())
    assert len(written) in (2, 3)  # polars may write the same bytes as pandas
    assert all(re.fullmatch(r"frame-[0-9a-f]{16}\.parquet", name) for name in written)
