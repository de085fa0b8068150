"""The predict command: every kind of data in, every kind of file out, and nothing where something is wrong."""

import csv
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.special import softmax

from commands import RENDERED, TARGETS, WORDS, Capture, X, flip, the_error, without_rights
from features.descriptors.descriptor import FeatureSpec
from features.open_source import open_source
from features.source import SourceSpec
from pipeline.kernels.column_generator import GAUSSIAN
from pipeline.models.kernel_expansion import KernelExpansion
from pipeline.predict import main
from pipeline.prediction import example_files
from pipeline.prediction import streamed_prediction as prediction
from pipeline.prediction.model_folder import load_model, save_model
from pipeline.prediction.trained_model import SparseKernelModel
from runs import ROOT, largest_bytes
from storage import output_files as outputs
from storage.output_files import OutputSpec, csv_writer, writing


def predict(model: Path, data: str | Path, out: str | Path, *options: str) -> int:
    return main([str(model), str(data), "--out", str(out), *options])


def loaded(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels and decision values of any file of predictions."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["label"], arrays["decision"]
    if path.suffix == ".zarr":
        group = zarr.open_group(path, mode="r")
        return np.asarray(group["label"][:]), np.asarray(group["decision"][:])
    rows = list(csv.reader(path.read_text().splitlines()))
    assert [row[0] for row in rows[1:]] == [str(k) for k in range(len(rows) - 1)]
    return np.array([row[1] for row in rows[1:]]), np.array([row[2:] for row in rows[1:]], dtype=float)


def write_zarr(path: Path, arrays: dict[str, np.ndarray], chunk_rows: int) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=3)
    for name, values in arrays.items():
        chunks = (chunk_rows, *values.shape[1:])
        array = group.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=chunks, config={"write_empty_chunks": True}
        )
        array[...] = values
    return path


@functools.cache
def of_digits(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """The test images, and the decision values that they must get."""
    model, source = load_model(run / "model"), open_source(SourceSpec("digits"))
    inputs, _ = source.read("test", 0, source.n_test)
    return inputs, model.decision_function(model.features_of(inputs))


@pytest.mark.parametrize("suffix", [".npz", ".zarr", ".csv"])
def test_a_named_data_set_gives_the_decision_function_of_its_test_part(
    images: Path, tmp_path: Path, suffix: str, capsys: Capture
) -> None:
    _, expected = of_digits(images)
    out = tmp_path / f"out{suffix}"
    assert predict(images, "digits", out) == 0
    assert "449 rows of digits, test" in capsys.readouterr().out
    label, decision = loaded(out)
    assert decision.dtype == np.float64
    np.testing.assert_array_equal(decision, expected)
    assert label.astype(int).tolist() == expected.argmax(1).tolist()
    assert os.listdir(tmp_path) == [out.name]  # noqa: PTH208 - nothing is left aside


def test_files_tell_which_column_is_whose(images: Path, rings: dict[str, Path], tmp_path: Path) -> None:
    for run, classes, names in (
        (images, list(range(10)), [f"decision_{k}" for k in range(10)]),
        (rings["words"], list(WORDS), [f"decision_{word}" for word in WORDS]),
        (rings["binary"], [0, 1], ["decision"]),
        (rings["regression"], [], ["decision"]),
    ):
        data = "digits" if run == images else tmp_path / "X.npz"
        np.savez(tmp_path / "X.npz", X=X)
        for suffix in ("npz", "zarr", "csv"):
            assert predict(run, data, tmp_path / f"out.{suffix}", "--force", "-q") == 0
        assert zarr.open_group(tmp_path / "out.zarr", mode="r").attrs["classes"] == classes
        with np.load(tmp_path / "out.npz") as arrays:
            assert arrays["classes"].tolist() == classes if classes else "classes" not in arrays
        assert (tmp_path / "out.csv").read_text().splitlines()[0].split(",") == ["row", "label", *names]


@pytest.mark.parametrize("task", TARGETS)
def test_tables_of_every_task_and_form(
    rings: dict[str, Path], task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows from npz, zarr and csv give the same predictions to the last bit, in every kind of file."""
    monkeypatch.setattr(prediction, "BLOCK_BYTES", 15_000)
    model = load_model(rings[task] / "model")
    assert model.standardisation is not None
    expected = model.decision_function(model.features_of(X))
    np.savez(tmp_path / "data.npz", X=X)
    write_zarr(tmp_path / "group.zarr", {"X": X}, 64)
    array = zarr.create_array(tmp_path / "bare.zarr", shape=X.shape, dtype=X.dtype, chunks=(7, 2), zarr_format=3)
    array[...] = X
    np.savetxt(tmp_path / "bare.csv", X, delimiter=",", fmt="%.17g")
    with_target = [[*map(repr, row.tolist()), ""] for row in X]
    (tmp_path / "target.csv").write_text("a,b,y\n" + "\n".join(",".join(row) for row in with_target) + "\n")
    assert prediction.block_rows_for(model) < len(X) / 2
    first: list[np.ndarray] = []
    for data in ("data.npz", "group.zarr", "bare.zarr", "bare.csv", "target.csv"):
        for suffix in (".npz", ".zarr", ".csv"):
            out = tmp_path / f"{data}-out{suffix}"
            assert predict(rings[task], tmp_path / data, out, "-q") == 0
            label, decision = loaded(out)
            np.testing.assert_allclose(decision, expected, rtol=1e-5, atol=1e-5)
            first = first or [decision]
            np.testing.assert_array_equal(decision, first[0])
            assert suffix != ".npz" or label.dtype.kind == {"regression": "f", "binary": "i", "words": "U"}[task]
            if task == "regression":
                digits = decision[:, 0] if suffix != ".csv" else [float(f"{value:.9g}") for value in decision[:, 0]]
                np.testing.assert_array_equal(label.astype(float), digits)
            elif task == "binary":
                assert label.astype(int).tolist() == (decision[:, 0] >= 0).astype(int).tolist()
            else:
                assert label.tolist() == [WORDS[k] for k in decision.argmax(1)]


@pytest.mark.parametrize("chunk_rows", [7, 83, 1000])
def test_blocks_change_nothing_and_zarr_chunks_do_not_either(
    images: Path, tmp_path: Path, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, expected = (values[:120] for values in of_digits(images))
    data = write_zarr(tmp_path / "flat.zarr", {"X": inputs.reshape(120, -1)}, chunk_rows)
    monkeypatch.setattr(prediction, "MOST_BLOCK_ROWS", 25)
    assert predict(images / "model", data, tmp_path / "out.zarr", "-q") == 0
    label, decision = loaded(tmp_path / "out.zarr")
    np.testing.assert_allclose(decision, expected, rtol=1e-5, atol=1e-5)
    assert label.tolist() == expected.argmax(1).tolist()


@pytest.mark.parametrize("suffix", [".npz", ".zarr", ".csv", "-"])
@pytest.mark.parametrize("task", ["binary", "words"])
def test_probabilities_are_written_beside_the_rest(
    rings: dict[str, Path],
    ring_data: dict[str, Path],
    tmp_path: Path,
    suffix: str,
    task: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prediction, "MOST_BLOCK_ROWS", 11)
    out = tmp_path / ("out.csv" if suffix == "-" else f"out{suffix}")
    words = ["--probabilities", "--part", "all"] if task == "words" else ["--probabilities"]
    assert predict(rings[task], ring_data[task], "-" if suffix == "-" else out, *words) == 0
    if suffix == "-":
        out.write_text(capsys.readouterr().out)
    label, values = loaded(out)
    model = load_model(rings[task] / "model")
    n_outputs = len(model.intercept)
    decision = values[:, :n_outputs]
    if out.suffix == ".csv":
        probability = values[:, n_outputs:]
        header = out.read_text().splitlines()[0].split(",")
        assert header[-len(model.labels) :] == [f"probability_{name}" for name in model.labels]
    elif suffix == ".npz":
        with np.load(out) as arrays:
            probability = arrays["probability"]
    else:
        probability = np.asarray(zarr.open_group(out, mode="r")["probability"][:])
    assert model.temperature is not None
    classes = np.hstack([np.zeros_like(decision), decision]) if n_outputs == 1 else decision
    np.testing.assert_allclose(probability, softmax(classes / model.temperature, axis=1), rtol=1e-12)
    assert len(probability) == len(label) == 160
    assert [str(one) for one in label] == [str(model.labels[k]) for k in probability.argmax(axis=1)]


def test_probabilities_are_refused_where_there_are_none(
    rings: dict[str, Path], ring_data: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    model = load_model(rings["words"] / "model")
    save_model(tmp_path / "older", replace(model, temperature=None))
    assert "temperature" not in (tmp_path / "older" / "model.json").read_text()
    assert predict(tmp_path / "older", ring_data["words"], tmp_path / "out.csv", "-q") == 0
    for run, words in ((rings["regression"], "of a regression"), (tmp_path / "older", "train again with statistics")):
        assert predict(run, ring_data["words"], tmp_path / "refused.csv", "--probabilities") == 2
        assert words in the_error(capsys)
        assert not (tmp_path / "refused.csv").exists()


@pytest.mark.parametrize("suffix", [".npz", ".zarr", ".csv"])
@pytest.mark.parametrize("kind", ["U6", "i8", "f8", "?"])
def test_more_rows_than_a_chunk_are_written_as_they_come(tmp_path: Path, suffix: str, kind: str) -> None:
    n = 3_000 if suffix == ".csv" else 150_000
    decision = np.random.default_rng(0).standard_normal((n, 7))
    label = (decision[:, 0] > 0).astype(kind)
    spec = OutputSpec(n, label.dtype, tuple("abcdefg"))
    with writing(tmp_path / f"out{suffix}", spec) as write:
        for start in range(0, n, 1 + n // 7):
            write(label[start : start + 1 + n // 7], decision[start : start + 1 + n // 7])
    if suffix == ".zarr":
        assert len(list((tmp_path / "out.zarr" / "decision" / "c").iterdir())) > 1
    found = loaded(tmp_path / f"out{suffix}")
    np.testing.assert_array_equal(found[0], label.astype(str) if suffix == ".csv" else label)
    np.testing.assert_array_equal(found[1], decision)


def test_a_file_with_rows_missing_is_not_committed(tmp_path: Path) -> None:
    for suffix in (".npz", ".zarr", ".csv"):
        spec = OutputSpec(3, np.dtype(int), ("decision",))
        with pytest.raises(ValueError, match="3 rows, 2"), writing(tmp_path / f"out{suffix}", spec) as write:
            write(np.zeros(2, int), np.zeros((2, 1)))
    assert not list(tmp_path.iterdir())


def test_a_block_stays_below_its_bytes(images: Path, rings: dict[str, Path]) -> None:
    for run in (images, rings["words"]):
        model = load_model(run / "model")
        rows = prediction.block_rows_for(model)
        assert 1 <= rows <= prediction.MOST_BLOCK_ROWS
        d = model.centers.shape[1]
        assert rows * (8 * np.prod(model.input_shape) + 4 * d + 12 * model.n_centers) <= prediction.BLOCK_BYTES


def test_memory_does_not_grow_with_the_rows(rings: dict[str, Path], tmp_path: Path) -> None:
    """Python's own account of memory, which counts numpy's arrays: 16 times the rows, the same peak."""
    peaks = []
    for n in (2_000, 32_000):
        data = write_zarr(tmp_path / f"{n}.zarr", {"X": np.resize(X, (n, 2))}, 500)
        located = prediction.locate(rings["words"])
        examples = prediction.open_examples(example_files.Asked(str(data), labelled=False), located)
        with largest_bytes() as peak:
            for _ in prediction.predictions(located.model, examples, 500):
                pass
        peaks += peak
    assert peaks[1] < 1.5 * peaks[0]


def test_a_folder_of_images_and_parts(images: Path, tmp_path: Path) -> None:
    """The test images alone will do; in an npz file the parts have names."""
    inputs, expected = (values[:90] for values in of_digits(images))
    folder = tmp_path / "images"
    folder.mkdir()
    header = bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in inputs.shape)
    (folder / "t10k-images-idx3-ubyte").write_bytes(header + inputs.tobytes())
    np.savez(tmp_path / "parts.npz", X_train=inputs[:40], X_test=inputs[40:])
    for data, options, rows in (
        (folder, [], expected),
        (tmp_path / "parts.npz", ["--part", "all"], expected),
        (tmp_path / "parts.npz", [], expected[40:]),
    ):
        assert predict(images, data, tmp_path / "out.npz", "-q", "--force", *options) == 0
        np.testing.assert_allclose(loaded(tmp_path / "out.npz")[1], rows, rtol=1e-5, atol=1e-5)


def test_the_target_of_a_csv_is_left_out_wherever_it_stands(rings: dict[str, Path], tmp_path: Path) -> None:
    rows = [f"{a!r},text,{b!r}" for a, b in X.tolist()]
    (tmp_path / "named.csv").write_text("a,kind,b\n" + "\n".join(rows) + "\n")
    np.savez(tmp_path / "X.npz", X=X)
    assert predict(rings["words"], tmp_path / "named.csv", tmp_path / "a.npz", "--target", "kind", "-q") == 0
    assert predict(rings["words"], tmp_path / "X.npz", tmp_path / "b.npz", "-q") == 0
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_standard_output_gives_the_same_csv(rings: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    np.savez(tmp_path / "X.npz", X=X)
    assert predict(rings["words"], tmp_path / "X.npz", tmp_path / "out.csv", "-q") == 0
    assert predict(rings["words"], tmp_path / "X.npz", "-") == 0
    assert capsys.readouterr().out == (tmp_path / "out.csv").read_text()


def test_a_model_that_was_copied_predicts_the_same_bytes(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images / "model", tmp_path / "copy")
    for name, model in (("run", images), ("model", images / "model"), ("copy", tmp_path / "copy")):
        assert predict(model, "digits", tmp_path / f"{name}.npz", "-q") == 0
    assert len({(tmp_path / f"{name}.npz").read_bytes() for name in ("run", "model", "copy")}) == 1


def test_the_own_data_of_a_run_are_split_as_the_run_split_them(
    rings: dict[str, Path], ring_data: dict[str, Path], tmp_path: Path
) -> None:
    for part, size in {"train": 120, "test": 40, "all": 160}.items():
        assert predict(rings["words"], ring_data["words"], tmp_path / f"{part}.npz", "--part", part, "-q") == 0
        assert len(loaded(tmp_path / f"{part}.npz")[0]) == size


def test_settings_of_a_named_data_set(images: Path, tmp_path: Path) -> None:
    assert predict(images / "model", "synthetic", tmp_path / "out.npz", *RENDERED, "-q") == 0
    source = open_source(SourceSpec("synthetic", n_train=300, n_test=60, seed=3))
    model = load_model(images / "model")
    expected = model.decision_function(model.features_of(source.read("test", 0, 60)[0]))
    np.testing.assert_array_equal(loaded(tmp_path / "out.npz")[1], expected)


def test_an_existing_file_is_only_replaced_by_force(rings: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    np.savez(tmp_path / "X.npz", X=X)
    for suffix in (".npz", ".zarr", ".csv"):
        out = tmp_path / f"out{suffix}"
        assert predict(rings["words"], tmp_path / "X.npz", out, "-q") == 0
        before = loaded(out)[1]
        assert predict(rings["binary"], tmp_path / "X.npz", out, "-q") == 73
        assert "--force" in capsys.readouterr().err
        np.testing.assert_array_equal(loaded(out)[1], before)
        assert predict(rings["binary"], tmp_path / "X.npz", out, "-q", "--force") == 0
        assert loaded(out)[1].shape == (len(X), 1)
    (tmp_path / "mine.zarr").mkdir()
    assert predict(rings["words"], tmp_path / "X.npz", tmp_path / "mine.zarr", "-q", "--force") == 73
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.npz", "mine.zarr", "out.csv", "out.npz", "out.zarr"]


def nan_at(row: int) -> np.ndarray:
    values = X.copy()
    values[row, 1] = np.nan
    return values


def damaged(run: Path, folder: Path) -> Path:
    """A copy of a model in which one byte of the arrays is another."""
    shutil.copytree(run / "model", folder / "damaged")
    flip(folder / "damaged" / "arrays.npz")
    return folder / "damaged"


def unfinished(run: Path, folder: Path) -> Path:
    shutil.copytree(run, folder / "unfinished", ignore=shutil.ignore_patterns("model"))
    return folder / "unfinished"


def csv_of(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "data.csv").write_text(text)
        return folder / "data.csv"

    return make


def npz_of(**arrays: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.savez(folder / "data.npz", **arrays)
        return folder / "data.npz"

    return make


def made(name: str, content: bytes | None = None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        if content is not None:
            (folder / name).write_bytes(content)
        return folder / name

    return make


GOOD = npz_of(X=X)
ROWS = "\n".join("1.5,2.5" for _ in range(30))
BAD: dict[str, tuple[Callable[[Path], Any], list[str], int, str]] = {
    "other number of inputs": (npz_of(X=X[:, :1]), [], 65, "(1,)"),
    "other number of columns": (csv_of("1,2,3,4\n"), [], 65, "has 4 columns"),
    "the target is not in addition": (csv_of("a,b\n1,2\n"), ["--target", "b"], 65, "has 2 columns"),
    "one dimension": (npz_of(X=X[:, 0]), [], 65, "shape (160,)"),
    "no rows": (npz_of(X=X[:0]), [], 65, "shape (0, 2)"),
    "no rows in csv": (csv_of("a,b\n"), [], 65, "no rows"),
    "an empty csv": (csv_of(""), [], 65, "no rows"),
    "no X": (npz_of(inputs=X), [], 65, "X"),
    "text for inputs": (npz_of(X=np.full((5, 2), "a")), [], 65, "real numbers"),
    "NaN": (npz_of(X=nan_at(137)), [], 65, "row 137, column 1"),
    "too large": (npz_of(X=np.where(X[137] == X, 1e300, X)), [], 65, "row 137"),
    "text in a csv": (csv_of(f"{ROWS}\n1,abc\n"), [], 65, "row 30 (line 31)"),
    "nan in a csv": (csv_of(f"{ROWS}\n1,nan\n"), [], 65, "row 30 (line 31)"),
    "a short line": (csv_of(f"{ROWS}\n1\n"), [], 65, "row 30"),
    "bytes that are no text": (made("data.csv", b"\xff\xfe1,2\n"), [], 65, "UTF-8"),
    "no zip file": (made("data.npz", b"nothing"), [], 65, "npz"),
    "a missing file": (made("absent.npz"), [], 66, "no such file"),
    "a missing zarr": (made("absent.zarr"), [], 66, "no such file"),
    "an empty folder": (lambda folder: folder, [], 66, "t10k-images"),
    "an unknown name": (lambda folder: "nonesuch", [], 2, "nonesuch"),
    "an unknown file type": (made("data.txt", b"1,2\n"), [], 2, "file type"),
    "a target that is no column": (csv_of("a,b,c\n1,2,3\n"), ["--target", "z"], 2, "'z'"),
    "a part of what has none": (GOOD, ["--part", "train"], 2, "--part train"),
    "a setting of a file": (GOOD, ["--set", "seed=2"], 2, "--set"),
    "images instead of rows": (lambda folder: "digits", [], 65, "(28, 28)"),
    "a setting of training": (lambda folder: "digits", ["--set", "solver.penalty=2"], 2, "solver.penalty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_give_one_line_the_exit_code_and_leave_nothing(
    case: str, rings: dict[str, Path], tmp_path: Path, capsys: Capture, monkeypatch: Any
) -> None:
    make, options, code, words = BAD[case]
    monkeypatch.setattr(prediction, "MOST_BLOCK_ROWS", 20)  # so that something has been written by then
    inputs, out = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    out.mkdir()
    data = make(inputs)
    for suffix in (".npz", ".zarr", ".csv"):
        assert predict(rings["words"], data, out / f"out{suffix}", *options) == code
        assert words in the_error(capsys)
        assert not list(out.iterdir())


def test_bad_models_and_bad_outputs(rings: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    run, good = rings["words"], GOOD(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    cases: list[tuple[Path, str, int, str]] = [
        (tmp_path / "absent", "a.npz", 66, "no such folder"),
        (tmp_path / "folder.csv", "a.npz", 66, "holds no model"),
        (unfinished(run, tmp_path), "a.npz", 66, "train it to its end"),
        (damaged(run, tmp_path), "a.npz", 65, "arrays.npz"),
        (run, "a.txt", 2, "suffix"),
        (run, "data.npz", 2, "is the data"),
        (run, "absent/a.npz", 73, "no folder"),
        (run, "file/a.zarr", 73, "no folder"),
        (run, "folder.csv", 73, "folder"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for model, out, code, words in cases:
        assert predict(model, good, tmp_path / out, "--force") == code, words
        assert words in the_error(capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_is_full_leaves_nothing(rings: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    """The kernel's own limit on the size of a file stands in for a full disk: write fails with EFBIG."""
    import resource

    np.savez(tmp_path / "X.npz", X=np.resize(X, (4000, 2)))
    (tmp_path / "out").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for suffix in (".npz", ".zarr", ".csv"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        try:
            code = predict(rings["words"], tmp_path / "X.npz", tmp_path / "out" / f"out{suffix}", "-q")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert code == 73
        assert "out" in capsys.readouterr().err
        assert not list((tmp_path / "out").iterdir())
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_folder_without_rights_is_refused(
    rings: dict[str, Path], ring_data: dict[str, Path], capsys: Capture
) -> None:
    with without_rights(rings["words"] / "model", ring_data["words"]) as folder:
        for suffix in ("npz", "zarr", "csv"):
            assert predict(folder / "model", folder / "words.npz", folder / f"out.{suffix}", "-q") == 73
            error = the_error(capsys)
            assert str(folder / "out") in error
            assert "permission denied" in error
        assert sorted(path.name for path in folder.iterdir()) == ["model", "words.npz"]


@pytest.mark.ci
def test_an_interrupt_ends_with_its_code_and_leaves_nothing(tmp_path: Path) -> None:
    """A model so large that a block takes a while: the signal comes when the file has been begun."""
    rng, m, d = np.random.default_rng(1), 400, 50
    model = SparseKernelModel(
        task="regression",
        labels=(),
        features=FeatureSpec("raw"),
        expansion=KernelExpansion(
            GAUSSIAN,
            rng.standard_normal((m, d)).astype(np.float32),
            np.full(m, 50.0),
            rng.standard_normal((m, 1)),
            np.zeros(1),
        ),
        center_index=np.full(m, -1),
        selection_order=np.arange(m),
        input_shape=(d,),
    )
    save_model(tmp_path / "model", model)
    np.savez(tmp_path / "X.npz", X=np.zeros((1_000_000, d), np.float32))
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "pipeline.predict", str(tmp_path / "model"), str(tmp_path / "X.npz")]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out" / "out.npz")], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and not list((tmp_path / "out").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75, error
    assert error == "error: stopped by SIGINT\n"
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.ci
def test_a_reader_that_has_seen_enough_is_no_error(rings: dict[str, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "X.npz", X=np.resize(X, (50_000, 2)))
    command = [sys.executable, "-m", "pipeline.predict", str(rings["words"]), str(tmp_path / "X.npz"), "--out", "-"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"row,label,decision_far")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


def test_the_csv_of_labels_with_commas_reads_back(tmp_path: Path) -> None:
    stream = io.StringIO()
    write = csv_writer(stream.write, ("decision",))
    write(np.array(["a,b", 'c"d']), np.array([[0.1], [1e-300]]))
    rows = list(csv.reader(io.StringIO(stream.getvalue())))
    assert rows[1:] == [["0", "a,b", "0.1"], ["1", 'c"d', "1e-300"]]
    assert json.loads(rows[2][2]) == 1e-300


def test_the_csv_of_a_regression_has_its_values_in_the_digits_they_are_worth() -> None:
    stream = io.StringIO()
    write = csv_writer(stream.write, ("decision",), regression=True)
    values = np.array([2 / 3, 0.1, 1e200, 12345678901.5])
    write(values, values[:, None])
    rows = list(csv.reader(io.StringIO(stream.getvalue())))[1:]
    assert [row[1] for row in rows] == ["0.666666667", "0.1", "1e+200", "12345678900.0"]
    assert [float(row[2]) for row in rows] == values.tolist()


def test_what_a_killed_prediction_left_is_swept_by_the_next(
    rings: dict[str, Path], ring_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f".tmp-out.csv-{'0' * 16}").write_text("row,label")
    monkeypatch.setattr(outputs, "_SETTLED_SECONDS", 0.0)
    assert predict(rings["words"], ring_data["words"], tmp_path / "out.csv", "-q") == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "out.csv"]
