"""The predict command: every kind of data in, every kind of file out, and nothing where something is wrong."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet
import pytest

from commands import TARGETS, WORDS, X, the_error
from features.open_source import open_source
from features.source import SourceSpec
from pipeline import report
from pipeline.predict import main
from pipeline.prediction import predictor as prediction
from pipeline.prediction.scores import probabilities
from pipeline.prediction.trained_model import load_model
from runs import ROOT, largest_bytes
from sources import idx_bytes, write_npy
from storage import files as disk
from storage import output_files as outputs
from storage.output_files import SUFFIXES, writing


def predict(model: Path, data: str | Path, out: str | Path, *options: str) -> int:
    return main([str(model), str(data), "--out", str(out), *options])


def loaded(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels of any file of predictions, and decision values with the probabilities beside them, if any."""
    is_text = path.suffix == ".csv"
    table = pandas.read_csv(path, dtype={"label": str}) if is_text else pandas.read_parquet(path)
    assert table["row"].tolist() == list(range(len(table)))
    return table["label"].to_numpy(), table.iloc[:, 2:].to_numpy(float)


@pytest.mark.parametrize("task", TARGETS)
def test_tables_of_every_task_and_form(rings, task, tmp_path, monkeypatch):
    """The same rows from npz, npy and csv give the same predictions to the last bit, in every kind of file.

    The target of a csv is left out wherever it stands. Columns have the names and the types of their values.
    """
    names = [f"decision_{word}" for word in WORDS] if task == "words" else ["decision"]
    of_label = {"regression": "double", "binary": "int64", "words": "string"}[task]
    monkeypatch.setattr(prediction, "BLOCK_BYTES", 15_000)
    model = load_model(rings[task] / "model")
    assert model.standardisation is not None
    expected = model.decision_function(model.features_of(X))
    np.savez(tmp_path / "data.npz", X=X)
    write_npy(tmp_path / "folder", X=X)
    np.save(tmp_path / "bare.npy", X)
    frame = pandas.DataFrame({"a": X[:, 0], "kind": "text", "b": X[:, 1], "y": ""})
    for name, columns in {"bare": ["a", "b"], "target": ["a", "b", "y"], "amid": ["a", "kind", "b"]}.items():
        frame[columns].to_csv(tmp_path / f"{name}.csv", index=False)
    frame[["a", "b"]].to_csv(tmp_path / "headless.csv", index=False, header=False)
    assert prediction.block_rows_for(model) < len(X) / 2
    first: list[np.ndarray] = []
    for data in ("data.npz", "folder", "bare.npy", "bare.csv", "headless.csv", "target.csv", "amid.csv"):
        target = ("--target", "kind") if data == "amid.csv" else ()
        for suffix in SUFFIXES:
            out = tmp_path / f"{data}-out{suffix}"
            assert predict(rings[task], tmp_path / data, out, *target, "-q") == 0
            if suffix == ".parquet":
                schema = pyarrow.parquet.read_schema(out)
                assert schema.names == ["row", "label", *names]
                assert [str(one) for one in schema.types] == ["int64", of_label, *["double"] * len(names)]
            else:
                assert out.read_text().splitlines()[0].split(",") == ["row", "label", *names]
            label, decision = loaded(out)
            np.testing.assert_allclose(decision, expected, rtol=1e-5, atol=1e-5)
            first = first or [decision]
            np.testing.assert_array_equal(decision, first[0])
            if task == "regression":
                np.testing.assert_allclose(label.astype(float), decision[:, 0], rtol=1e-8)
            else:
                assert [str(one) for one in label] == [str(one) for one in model.labels_of(decision)]


@pytest.mark.parametrize(("task", "part", "n_rows"), [("binary", (), 160), ("words", ("--part", "train"), 120)])
def test_probabilities_are_written_beside_the_rest(rings, ring_data, tmp_path, capsys, monkeypatch, task, part, n_rows):
    """Of the whole file, or of a part as the run split it; on standard output as in a csv."""
    monkeypatch.setattr(prediction, "MOST_BLOCK_ROWS", 11)
    model, out = load_model(rings[task] / "model"), tmp_path / "out.csv"
    words = ["--probabilities", *part]
    for suffix in SUFFIXES:
        assert predict(rings[task], ring_data[task], out.with_suffix(suffix), *words, "-q") == 0
        label, values = loaded(out.with_suffix(suffix))
        decision, probability = np.split(values, [len(model.intercept)], axis=1)
        np.testing.assert_allclose(probability, probabilities(decision, model.calibration), rtol=1e-12)
        assert len(probability) == len(label) == n_rows
        assert [str(one) for one in label] == [str(model.labels[k]) for k in probability.argmax(axis=1)]
    header = out.read_text().splitlines()[0].split(",")
    assert header[-len(model.labels) :] == [f"probability_{name}" for name in model.labels]
    assert predict(rings[task], ring_data[task], "-", *words) == 0
    assert capsys.readouterr().out == out.read_text()
    if not part:
        inputs, predictor = np.load(ring_data[task])["X"], prediction.load_predictor(rings[task])
        assert predictor.predict_proba(inputs).tolist() == probability.tolist()
        assert predictor.predict(inputs).tolist() == label.tolist()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["U6", "i8", "f8", "?"])
def test_more_rows_than_a_chunk_are_written_as_they_come(tmp_path, suffix, kind):
    n = 3_000 if suffix == ".csv" else 150_000
    decision = np.random.default_rng(0).standard_normal((n, 7))
    label = np.where(decision[:, 0] > 0, *(('ä,b"', "日本") if kind == "U6" else (1, 0))).astype(kind)
    with writing(tmp_path / f"out{suffix}", {"label": label.dtype} | dict.fromkeys("abcdefg", float), n) as write:
        for rows in (slice(start, start + 1 + n // 7) for start in range(0, n, 1 + n // 7)):
            write([label[rows], *decision[rows].T])
    found = loaded(tmp_path / f"out{suffix}")
    np.testing.assert_array_equal(found[0], label.astype(str) if suffix == ".csv" else label)
    np.testing.assert_array_equal(found[1], decision)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_memory_does_not_grow_with_the_rows(rings, tmp_path, monkeypatch, suffix):
    """Python's own account of memory, which counts numpy's arrays: 16 times the rows, nearly the same peak."""
    monkeypatch.setattr(prediction, "MOST_BLOCK_ROWS", 500)
    monkeypatch.setattr(outputs, "chunk_rows_for", lambda row_bytes, n_rows: 2_000)
    peaks = []
    for turn, n in enumerate((2_000, 32_000, 2_000, 32_000)):  # The first two bring what stays.
        np.save(data := tmp_path / f"{turn}.npy", np.resize(X, (n, 2)))
        with largest_bytes() as peak:
            assert predict(rings["words"], data, tmp_path / f"out{suffix}", "-q", "--force") == 0
        peaks += peak
    assert peaks[3] < 1.5 * peaks[2]


def test_images_of_a_named_set_of_a_folder_and_of_parts(images, tmp_path, capsys):
    """Of a folder the test images alone will do; in an npz file the parts have names."""
    source, model = open_source(SourceSpec("digits")), load_model(images / "model")
    inputs = source.test.X[:]
    decision = model.decision_function(model.features_of(inputs))
    assert predict(images, "digits", tmp_path / "out.csv") == 0
    assert "449 rows of digits, test" in capsys.readouterr().out
    np.testing.assert_array_equal(loaded(tmp_path / "out.csv")[1], decision)
    inputs, decision = inputs[:90], decision[:90]
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(inputs))
    np.savez(tmp_path / "parts.npz", X_train=inputs[:40], X_test=inputs[40:])
    for data, options, rows in (
        (folder, [], decision),
        (tmp_path / "parts.npz", ["--part", "all"], decision),
        (tmp_path / "parts.npz", [], decision[40:]),
    ):
        assert predict(images, data, tmp_path / "out.csv", "-q", "--force", *options) == 0
        np.testing.assert_allclose(loaded(tmp_path / "out.csv")[1], rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("command", "suffix"), [*((main, one) for one in SUFFIXES), (report.main, ".html")])
def test_a_file_that_appears_while_an_output_is_written_stays(
    command, suffix, rings, ring_data, tmp_path, monkeypatch, capsys
):
    out, sync = tmp_path / f"out{suffix}", disk.low_fsync

    def interfere(descriptor: int, path: Path) -> None:
        out.write_text("theirs")
        sync(descriptor, path)

    monkeypatch.setattr(disk, "low_fsync", interfere)
    data = [str(ring_data["words"])] * (command is main)
    assert command([str(rings["words"]), *data, "--out", str(out)]) == 73
    assert f"{out}: somebody else made it meanwhile" in the_error(capsys)
    assert out.read_text() == "theirs"
    assert os.listdir(tmp_path) == [out.name]  # noqa: PTH208 - nothing is left aside
    monkeypatch.undo()
    assert command([str(rings["words"]), *data, "--out", str(out)]) == (2 if command is report.main else 73)
    assert ("--force" in the_error(capsys)) == (command is not report.main)
    assert out.read_text() == "theirs"
    assert command is report.main or command([str(rings["words"]), *data, "--out", str(out), "--force"]) == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_interrupt_ends_with_its_code_and_leaves_nothing(suffix, rings, ring_data, tmp_path, monkeypatch, capsys):
    """The signal comes amid a block, when the file has been begun."""
    features_of = prediction.features_of

    def interrupted(*arguments: Any, **named: Any) -> Any:
        assert list(tmp_path.iterdir())
        signal.raise_signal(signal.SIGINT)
        return features_of(*arguments, **named)

    monkeypatch.setattr(prediction, "features_of", interrupted)
    assert predict(rings["words"], ring_data["words"], tmp_path / f"out{suffix}") == 75
    assert the_error(capsys) == "error: stopped by SIGINT\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.ci
def test_a_reader_that_has_seen_enough_is_no_error(rings, tmp_path):
    np.savez(tmp_path / "X.npz", X=np.resize(X, (50_000, 2)))
    command = [sys.executable, "-m", "pipeline.predict", str(rings["words"]), str(tmp_path / "X.npz"), "--out", "-"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"row,label,decision_far")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0
