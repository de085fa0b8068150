"""What tests of data sources share: all rows, a table of any cells, npy headers, MNIST's layout."""

import gzip
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from features.open_source import PUBLISHED, Published, close_files, open_source
from features.source import Source, SourceSpec


def opened(path: Path, keeper: Any = None, **options: Any) -> Source:
    """Open data as another process does."""
    close_files()
    return open_source(SourceSpec(str(path), **options), keeper=keeper)


def everything(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of the training rows and then of the test rows."""
    inputs, targets = ([getattr(rows, name)[:] for rows in source.parts.values()] for name in "Xy")
    return np.concatenate(inputs), np.concatenate(targets)


def all_of(source: Source) -> list[np.ndarray]:
    """Return inputs, targets, weights of both parts, and groups; arrays of nothing where there are none."""
    weights = [source.parts[part].weights for part in ("train", "test")]
    return [*everything(source), *(np.ones(1) if of is None else of for of in weights), np.asarray(source.train.groups)]


def same(one: Source, other: Source) -> None:
    """Check that two sources hold the same rows, and say the same of them."""
    for found, expected in zip(all_of(one), all_of(other), strict=True):
        np.testing.assert_array_equal(found, expected)
    for name in ("identity", "columns", "classes", "notes"):
        assert getattr(one, name) == getattr(other, name)


def people(n: int) -> tuple[pandas.DataFrame, np.ndarray]:
    """Return words, numbers with gaps, dates, truth values, categories and codes, and what they give with noise."""
    draw = np.random.default_rng(1)
    color = draw.choice(["red", "green", "blue, dark"], n)
    age = np.where(draw.random(n) < 0.1, np.nan, draw.normal(40, 10, n).round(2))
    columns = {
        "color": np.where(draw.random(n) < 0.05, None, color),
        "age": age,
        "since": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(draw.integers(0, 900, n), "D"),
        "member": draw.random(n) < 0.4,
        "size": pandas.Categorical(draw.choice(list("SML"), n)),
        "zip": draw.integers(0, 4, n),
    }
    y = 2.0 * (color == "red") + np.nan_to_num(age, nan=40) / 20 + columns["member"] + 0.1 * draw.normal(size=n)
    return pandas.DataFrame(columns), y


def write_npy(folder: Path, **arrays: np.ndarray) -> None:
    """Write a folder of .npy files."""
    folder.mkdir(exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)


def npy_bytes(descr: object, shape: tuple[int, ...], data: bytes = b"") -> bytes:
    """Return an npy file whose header claims whatever it likes."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


def idx_bytes(values: np.ndarray, shape: tuple[int, ...] | None = None, magic: bytes | None = None) -> bytes:
    """Return an IDX file of bytes, whose header may claim another shape or another kind."""
    shape = values.shape if shape is None else shape
    head = bytes((0, 0, 8, len(shape))) if magic is None else magic
    return head + b"".join(size.to_bytes(4, "big") for size in shape) + values.astype(np.uint8).tobytes()


def write_idx_folder(folder: Path, *, compressed: bool = True, **parts: tuple[np.ndarray, np.ndarray]) -> None:
    """Write images and labels of the parts train and t10k under MNIST's names."""
    folder.mkdir(exist_ok=True)
    for part, (images, labels) in parts.items():
        for kind, content in (("images-idx3", idx_bytes(images)), ("labels-idx1", idx_bytes(labels))):
            path = folder / f"{part}-{kind}-ubyte{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(content, mtime=0) if compressed else content)


def publish(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the files of a folder be the published ones of the data set of its name."""
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setitem(PUBLISHED, folder.name, Published(files, ()))
