"""npz, csv and opened arrays: what is read, what is refused, and where the message points."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features import rows, tables
from features.errors import DataError, UsageError
from features.sources import SourceSpec, open_source

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = np.resize([0, 1, 2], 40)


def npz(tmp_path, **arrays):
    path = tmp_path / "table.npz"
    np.savez(path, **arrays)
    return SourceSpec(str(path))


def csv(tmp_path, text, **options):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return SourceSpec(str(path), **options)


def everything(source):
    train, test = source.read("train", 0, source.n_train), source.read("test", 0, source.n_test)
    return np.concatenate([train[0], test[0]]), np.concatenate([train[1], test[1]])


def test_npz_split(tmp_path):
    source = open_source(npz(tmp_path, X=X, y=Y))
    assert (source.name, source.task, source.classes) == ("table", "multiclass", (0, 1, 2))
    assert (source.n_train, source.n_test, source.input_shape, source.standardise) == (30, 10, (3,), True)
    inputs, targets = everything(source)
    order = np.lexsort(inputs.T)
    assert np.array_equal(inputs[order], X[np.lexsort(X.T)])
    assert np.array_equal(targets[order], Y[np.lexsort(X.T)])
    assert str(tmp_path) not in json.dumps(source.fingerprint())


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 60), st.floats(0.05, 0.9), st.integers(0, 5))
def test_split_is_a_seeded_partition(n, fraction, seed):
    inputs, labels = np.arange(2.0 * n).reshape(n, 2), np.arange(n) / 7.0
    spec = SourceSpec("x.zarr", test_fraction=fraction, seed=seed)
    source, again = (open_source(spec, {"X": inputs, "y": labels}) for _ in range(2))
    found, targets = everything(source)
    assert np.array_equal(np.sort(found[:, 0]), inputs[:, 0])
    assert np.array_equal(targets, labels[(found[:, 0] / 2).astype(int)])
    assert source.n_test == min(max(1, round(fraction * n)), n - 1)
    assert np.array_equal(found, everything(again)[0])


def test_npz_with_parts_of_its_own(tmp_path):
    source = open_source(npz(tmp_path, X_train=X, y_train=Y, X_test=X[:7], y_test=Y[:7]))
    assert (source.n_train, source.n_test) == (40, 7)
    assert np.array_equal(source.read("train", 3, 9)[0], X[3:9])
    assert np.array_equal(source.read("test", 0, 7)[1], Y[:7])


def test_npz_images_are_not_standardised(tmp_path):
    images = RNG.integers(0, 256, (40, 8, 8)).astype(np.uint8)
    source = open_source(npz(tmp_path, X=images, y=Y))
    assert not source.standardise
    assert source.read("train", 0, 5)[0].dtype == np.uint8
    assert open_source(SourceSpec(str(tmp_path / "table.npz"), standardise=True)).standardise


def test_npz_target_key_and_task(tmp_path):
    npz(tmp_path, X=X, rings=Y)
    path = str(tmp_path / "table.npz")
    assert open_source(SourceSpec(path, target="rings")).task == "multiclass"
    source = open_source(SourceSpec(path, target="rings", task="regression"))
    assert source.classes == ()
    assert source.read("train", 0, 4)[1].dtype == np.float64


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "needs X and y"),
        ({"X": X, "y": Y[:-1]}, "40 rows"),
        ({"X": X[:0], "y": Y[:0]}, "shape"),
        ({"X": X[:, 0], "y": Y}, "shape"),
        ({"X": X, "y": np.ones(40)}, "one class"),
        ({"X": X.astype(complex), "y": Y}, "complex"),
        ({"X": np.float64(3.0), "y": Y}, "rows are needed"),
        ({"X": X, "y": np.array([None] * 40)}, "Python objects"),
        ({"X_train": X, "y_train": Y, "X_test": X[:, :2], "y_test": Y}, "train inputs have shape"),
        ({"X_train": X, "y_train": Y, "X_test": X, "y_test": Y + 1}, "y of test: row 2 has label 3"),
    ],
)
def test_npz_refuses(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        open_source(npz(tmp_path, **arrays))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 39), st.integers(0, 2), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_bad_value_is_named_with_its_row(row, column, value):
    damaged = X.copy()
    damaged[row, column] = value
    source = open_source(SourceSpec("x.zarr"), {"X": damaged, "y": Y})
    with pytest.raises(DataError, match=f"X: row {row}, column {column} is {value}"):
        everything(source)


def test_bad_target_is_named_with_its_row():
    with pytest.raises(DataError, match="y: row 5 is nan"):
        open_source(SourceSpec("x.zarr"), {"X": X, "y": np.where(np.arange(40) == 5, np.nan, 0.5 * Y)})


def test_npz_damage(tmp_path):
    spec = npz(tmp_path, X=X, y=Y)
    path = Path(spec.dataset)
    content = path.read_bytes()
    for length in (0, 10, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DataError):
            open_source(spec)
    flipped = bytearray(content)
    flipped[400] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(DataError):
        open_source(spec)


def npy_header(shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_npz_header_that_lies(tmp_path):
    path = tmp_path / "table.npz"
    for shape in ((1 << 40, 3), (-5, -8), (39, 1)):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", npy_header(shape) + bytes(8 * 40))
            archive.writestr("y.npy", npy_header((40,)) + Y.astype(float).tobytes())
        with pytest.raises(DataError, match=r"X\.npy"):
            open_source(SourceSpec(str(path)))


BOMB_CHILD = """
import resource, sys
from pathlib import Path
from features.errors import DataError
from features.sources import SourceSpec, open_source
import features.tables
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    open_source(SourceSpec(sys.argv[1]))
except DataError as error:
    print(error)
    sys.exit(65)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets RLIMIT_AS")
def test_npz_bomb_is_refused_in_64_mib(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("X.npy", "w") as member:
            member.write(npy_header((1 << 27, 1)))
            for _ in range(1 << 10):
                member.write(bytes(1 << 20))
        archive.writestr("y.npy", npy_header((1 << 27,)))
    done = subprocess.run(
        [sys.executable, "-c", BOMB_CHILD, path], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 65, done.stderr


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
        (ROWS + '1,"2,a\n', "comma-separated"),
        ("1,2\n1,2\n3,2\n", "one class"),
    ],
)
def test_csv_refuses(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        open_source(csv(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_csv_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_LINE_CHARACTERS", 1000)
    with pytest.raises(DataError, match="line 1 is longer than 1000"):
        open_source(csv(tmp_path, "1" * 5000))


def test_csv_that_is_no_text(tmp_path):
    (tmp_path / "table.csv").write_bytes(b"1,2\n\xff\xfe,3\n")
    with pytest.raises(DataError, match="UTF-8"):
        open_source(SourceSpec(str(tmp_path / "table.csv")))


def test_csv_across_pieces(tmp_path, monkeypatch):
    text = "".join(f"{k},{k + 0.5}\n" for k in range(25))
    whole = everything(open_source(csv(tmp_path, text)))
    monkeypatch.setattr(tables, "ROWS_PER_PIECE", 4)
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


class RecordingArray:
    """An array-like that notes how many rows each slice asks for."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.asked = values, values.shape, values.dtype, []

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        self.asked.append(rows.stop - rows.start)
        return self.values[rows]


def test_arrays_are_read_by_rows_in_bounded_pieces(monkeypatch):
    monkeypatch.setattr(rows, "PIECE_BYTES", 10 * 3 * 8)
    array = RecordingArray(np.arange(3000.0).reshape(1000, 3))
    source = open_source(SourceSpec("big.zarr", n_train=100, n_test=50), {"X": array, "y": np.arange(1000) / 3})
    inputs, targets = source.read("train", 0, 100)
    assert max(array.asked) <= 10
    assert np.array_equal(inputs[:, 0] / 3, np.round(targets * 3))
    assert source.name == "big"


def test_arrays_with_parts():
    parts = {"train/X": X, "train/y": Y, "test/X": X[:5], "test/y": Y[:5]}
    source = open_source(SourceSpec("big.zarr"), parts)
    assert (source.n_train, source.n_test) == (40, 5)
    with pytest.raises(DataError, match="found test/X"):
        open_source(SourceSpec("big.zarr"), {"test/X": X})
    with pytest.raises(UsageError, match="opened by the caller"):
        open_source(SourceSpec("big.zarr"))


def test_types_of_inputs():
    for dtype, expected in ((np.float32, np.float32), (np.int16, np.float64), (bool, np.float64), (">f8", np.float64)):
        found = open_source(SourceSpec("a.zarr"), {"X": (X * 9).astype(dtype), "y": Y}).read("train", 0, 3)[0]
        assert found.dtype == expected


def test_training_part_of_one_class():
    labels = np.zeros(40, dtype=int)
    labels[7] = 1
    with pytest.raises(DataError, match="training rows all have label 0"):
        open_source(SourceSpec("a.zarr", n_train=1), {"X": X, "y": labels})


def test_fingerprint_follows_content():
    def identity(inputs, **options):
        return json.dumps(open_source(SourceSpec("a.zarr", **options), {"X": inputs, "y": Y}).fingerprint())

    changed = X.copy()
    changed[39, 2] += 1e-9
    found = {
        identity(X),
        identity(changed),
        identity(X, seed=1),
        identity(X, test_fraction=0.5),
        identity(X, n_train=9),
    }
    assert len(found) == 5
    assert identity(X) == identity(X.copy())
