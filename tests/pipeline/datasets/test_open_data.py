"""Data that change: what was found in tables is kept while files are as they were; a run is of its own data alone."""

import contextlib
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from commands import flip
from features import array_files, images, input_files, open_source
from features.errors import DataError
from features.source import Source, SourceSpec, Tick
from features.tables import readers, table_source
from pipeline import plan, session
from pipeline import train as training
from pipeline.datasets import feature_rows
from pipeline.datasets import open_data as opening
from pipeline.datasets.open_data import FirstReadings, Reading, open_data
from pipeline.runtime import stopping
from runs import files_of, model_bytes, report_of, train
from sources import everything, publish, same, write_idx_folder, write_npy

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
    assert [reading.n_readings for reading in readings] == [2 if "test" in options else 1, 0]
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
        assert reading.n_readings == 1
        assert any("has changed since it was read" in note for note in reading.notes) == (k > 0)
        same(kept[-1], open_data(SourceSpec(str(path), **ENCODED)))
        assert len(list((tmp_path / "tables").iterdir())) == 1
    assert len({source.identity["sha256"] for source in kept}) == 3
    for source, value in zip(kept, values, strict=True):
        assert float(value) in everything(source)[0]


def test_a_changed_file_is_read_again_where_the_file_system_keeps_one_time_alone(tmp_path, monkeypatch):
    """As FAT, exFAT and sshfs do: the labels change, and neither size nor time."""
    kept = Path.stat

    def stat(path: Path, **options: Any) -> SimpleNamespace:
        found = kept(path, **options)
        names = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**names | {"st_ctime_ns": found.st_mtime_ns})

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(input_files, "ONE_TIME", ("",))  # of any kind
    labels = []
    for words in (WORDS, WORDS.replace(",p\n", ",q\n")):
        (tmp_path / "t.csv").write_text(words)
        os.utime(tmp_path / "t.csv", (1, 1))
        labels.append(opened(tmp_path, **ENCODED).classes)
    assert labels == [("n", "p"), ("n", "q")]


def test_a_table_with_other_words_or_names_in_the_same_places_is_another(tmp_path):
    """Codes number the words as they come: of r and b in place of each other they are the same."""
    swapped = WORDS.translate(str.maketrans("rb", "br")).replace("colob", "color")
    texts, kept = (WORDS, swapped, WORDS.replace("size", "length"), WORDS.replace("y\n", "z\n")), set()
    for text in texts:
        (tmp_path / "t.csv").write_text(text)
        kept.add(open_data(SourceSpec(str(tmp_path / "t.csv"), **ENCODED)).identity["sha256"])
        open_source.close_files()
    assert len(kept) == len(texts)


def test_images_of_idx_files_are_read_where_they_are_needed_and_where_a_file_changed(tmp_path, monkeypatch):
    spec = SourceSpec(str(tmp_path / "shapes"), kept=str(tmp_path / "tables"))
    rng, readings, read = np.random.default_rng(0), [Reading() for _ in range(3)], list[Path]()
    parts = {part: (rng.integers(0, 256, (n, 4, 5)), np.arange(n) % 3) for part, n in (("train", 9), ("t10k", 6))}
    write_idx_folder(tmp_path / "shapes", **parts)
    first = open_data(spec, reading=readings[0])
    open_source.close_files()  # as in another process
    monkeypatch.setattr(array_files, "read_idx", lambda *of: read.append(of[0]) or images.read_idx(*of))
    second = open_data(spec, reading=readings[1])
    assert all("labels" in path.name for path in read)
    same(second, first)
    assert sum("images" in path.name for path in read) == 2
    open_source.close_files()
    stale = open_data(spec)
    parts["train"][0][0, 0, 0] ^= 1
    write_idx_folder(tmp_path / "shapes", **parts)
    with pytest.raises(DataError, match="changed"):
        stale.train.X[:1]
    third = open_data(spec, reading=readings[2])
    assert [reading.n_readings for reading in readings] == [1, 0, 1]
    assert third.identity["sha256"] != first.identity["sha256"]
    np.testing.assert_array_equal(third.train.X[:], parts["train"][0])


def test_published_labels_that_changed_are_told_whatever_stands_beside_them(tmp_path, monkeypatch):
    parts = {part: (np.zeros((n, 4, 5)), np.arange(n) % 3) for part, n in (("train", 9), ("t10k", 6))}
    write_idx_folder(folder := tmp_path / "mnist", **parts)
    publish(monkeypatch, folder)
    np.save(folder / "notes.npy", np.zeros(3))
    monkeypatch.setenv("SLKL_DATA_DIR", str(tmp_path))
    spec = SourceSpec("mnist", kept=str(tmp_path / "tables"))
    assert open_data(spec).n_train == 9
    open_source.close_files()
    write_idx_folder(folder, train=(parts["train"][0], parts["train"][1][::-1]))
    with pytest.raises(DataError, match="sha256"):
        open_data(spec)


def test_other_settings_ask_other_questions(tmp_path):
    """Nothing that was found with gaps, or with a header, is taken for what is found without."""
    text = "f0,f1,f2\n" + "".join(f"{k % 7},{k % 5},{k % 2}\n" for k in range(40))
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "test.csv").write_text("f0,f1,f2\n1,,0\n")
    opened(tmp_path, test=str(tmp_path / "test.csv"), missing="median")
    with pytest.raises(DataError, match=r"test\.csv: line 2, column f1 is ''"):
        opened(tmp_path, test=str(tmp_path / "test.csv"))
    opened(tmp_path)
    with pytest.raises(DataError, match=r"f0 \(numbers and 1 other word"):
        opened(tmp_path, header=False, target="2")


@pytest.mark.parametrize("harm", [flip, lambda record: record.write_text("{}")])
def test_a_record_that_is_damaged_is_made_again(tmp_path, harm):
    (tmp_path / "t.csv").write_text(WORDS)
    before = opened(tmp_path, **ENCODED)
    (record,) = (tmp_path / "tables").iterdir()
    harm(record)
    same(opened(tmp_path, reading := Reading(), **ENCODED), before)
    assert reading.n_readings == 1


def test_a_file_that_changes_while_it_is_read_is_told_and_not_kept(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(WORDS)
    found = table_source.open_table(SourceSpec(str(path), **ENCODED), path)

    def read(tick: Tick) -> Any:
        path.write_text(WORDS + "r,1,n\n")  # as another program would
        return found

    with pytest.raises(DataError, match=r"t\.csv: changed while it was read; .* run again"):
        FirstReadings(tmp_path / "tables", True, Reading()).read(path, lambda: [path], {}, read, table_source.ReadTable)
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
    with contextlib.chdir(tmp_path):
        train(tmp_path / "live", features, *OPTIONS, "--features-dir", "none", dataset=tmp_path / "t.csv")
    assert not (tmp_path / "none").exists(), "no store, and no folder for one"
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "live"), "moments are of the same rows"


@pytest.mark.usefixtures("in_order")
def test_of_a_table_that_was_not_read_to_its_end_nothing_is_taken_up(tmp_path, monkeypatch, capsys):
    """It may have been another table, which is known at the end."""
    monkeypatch.setattr(feature_rows, "chunk_rows_for", lambda row_bytes, n_rows: 16)
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
        told = re.search(r"t\.csv: .*table needs (\d+) MiB.* use --memory-limit (\d+)MiB", capsys.readouterr().err)
        assert told is not None
        assert int(told[1]) <= int(told[2]) <= int(told[1]) + 1
        needed.append(int(told[1]))
    assert needed[0] < 330
    assert needed[1] > needed[0] + 100


N = 300
LINE = ("--centers", "10", "--penalty", "1", "--sigma2", "2", "--workers", "2", "--set", "features.name=raw")
CHANGED = "changed while it was read; leave it alone meanwhile, and run again"


def write_data(folder: Path, kind: str, X: np.ndarray) -> Path:
    """Write rows in one of the forms that are read; return the path."""
    folder.mkdir()
    y, path = np.arange(N) % 7 / 7, folder / f"d.{kind}"
    frame = pandas.DataFrame(X, columns=list("abcd")).assign(y=y)
    if kind == "npz":
        np.savez(path, X=X, y=y)
    elif kind == "npy":
        write_npy(path, X=X, y=y)
    elif kind == "idx":
        images = (40 * X + 128).clip(0, 255).reshape(N, 2, 2), np.arange(N) % 3
        write_idx_folder(path := folder / "idx", compressed=False, train=images, t10k=images)
    elif kind == "pictures":
        for k, x in enumerate((40 * X + 128).clip(0, 255).astype(np.uint8).reshape(N, 2, 2)):
            (path := folder / "pictures" / f"{k % 3}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(path / f"{k}.bmp")
        path = path.parent
    elif kind == "parts":
        (path := folder / "parts").mkdir()
        for k in range(3):
            frame[k * 100 : k * 100 + 100].to_parquet(path / f"{k}.parquet", compression=None)
    else:
        np.savetxt(path, frame, "%+.6f", ",", header="a,b,c,d,y", comments="")
    return path


def put(data: Path, place: Path) -> None:
    """Write data over others of the same size, in place and with the times of those."""
    for file in [data] if data.is_file() else [path for path in data.rglob("*") if path.is_file()]:
        status = (old := place / file.relative_to(data)).stat()
        assert file.stat().st_size == status.st_size
        old.write_bytes(file.read_bytes())
        os.utime(old, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("scheduler", "times"),
    [
        ("serial", "do not tell"),
        pytest.param("serial", "tell", marks=pytest.mark.ci),
        pytest.param("processes", "do not tell", marks=pytest.mark.ci),
    ],
)
@pytest.mark.parametrize("store", ["zarr", "none"])
@pytest.mark.parametrize(
    "kind",
    [
        *("npz", "npy", "csv in order"),
        *(pytest.param(k, marks=pytest.mark.ci) for k in ("idx", "pictures", "csv", "parts", "parts in order")),
    ],
)
def test_rows_of_other_data_are_in_no_store_and_no_model(tmp_path, monkeypatch, capsys, kind, store, scheduler, times):
    if kind.endswith("in order"):
        for module, name, value in ((table_source, "SAMPLE_CELLS", 30), (readers, "BLOCK_BYTES", 256)):
            monkeypatch.setattr(module, name, value)
    if times == "do not tell":
        for module in (open_source, opening):
            monkeypatch.setattr(module, "stamp", lambda path: (str(path),))
    monkeypatch.setattr(feature_rows, "chunk_rows_for", lambda row_bytes, n_rows: 16)
    X, form = np.random.default_rng(0).normal(size=(N, 4)), kind.split()[0]
    path = write_data(tmp_path / "data", form, X)
    write_data(tmp_path / "as it was", form, X)
    X[N // 2 :] += 1
    write_data(tmp_path / "other", form, X)
    line = (*LINE, "--scheduler", scheduler, *(("--features-dir", "none") if store == "none" else ()))
    train(tmp_path / "whole", tmp_path / "f", *line, dataset=path)
    prepare, evaluate = plan.prepare, session.evaluate_model

    def prepare_and_change(*words: Any, **named: Any) -> plan.Prepared:
        prepared = prepare(*words, **named)
        put(tmp_path / "other", tmp_path / "data")
        return prepared

    def restore_and_evaluate(run: Any) -> Any:
        put(tmp_path / "as it was", tmp_path / "data")
        return evaluate(run)

    open_source.close_files()
    with monkeypatch.context() as during:
        during.setattr(plan, "prepare", prepare_and_change)
        during.setattr(session, "evaluate_model", restore_and_evaluate)
        folders = ("--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "g"))
        code = training.main([str(path), "-q", *folders, *line])
    assert code in (0, 65)
    assert (CHANGED in capsys.readouterr().err) == (code == 65)
    assert code == 65 or model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
    put(tmp_path / "as it was", tmp_path / "data")
    open_source.close_files()
    train(tmp_path / "again", tmp_path / "g", *line, dataset=path)
    assert model_bytes(tmp_path / "again") == model_bytes(tmp_path / "whole")


@pytest.mark.parametrize(
    "kind", ["npz", *(pytest.param(kind, marks=pytest.mark.ci) for kind in ("npy", "idx", "pictures", "csv", "parts"))]
)
def test_a_run_is_resumed_with_its_own_data_alone_also_when_it_is_finished(tmp_path, capsys, kind):
    X = np.random.default_rng(0).normal(size=(N, 4))
    path, run, line = write_data(tmp_path / "data", kind, X), tmp_path / "run", (*LINE, "--resume", "auto")
    train(run, tmp_path / "f", *line, dataset=path)
    train(run, tmp_path / "f", *line, dataset=path)
    assert capsys.readouterr().out == ""
    train(run, tmp_path / "f", *line, dataset=path, quiet=False)
    assert re.match(r"finished on 20\d\d-\d\d-\d\d \d\d:\d\d UTC\n\n", capsys.readouterr().out)
    X[-1] += 1
    put(write_data(tmp_path / "other", kind, X), path)
    open_source.close_files()
    for told in ("finished before, on other data", "started before, on other data"):
        train(run, tmp_path / "f", *line, dataset=path, code=78)
        assert told in capsys.readouterr().err
        (run / "report.json").unlink(missing_ok=True)
