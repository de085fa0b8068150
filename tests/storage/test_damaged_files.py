"""What is committed is read back exactly; damage of any byte is an error that names the file, or does no harm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.arrays import check_whole, commit, load
from storage.errors import CorruptDataError
from storage.files import read_record, write_record

VALUE = {"name": "é", "rows": 7, "span": [1, 2], "loss": 1e-5}
ARRAYS = {"x": np.arange(3.0), "y": np.array([1, 2], np.int32)}
FORMS = ("record.json", "arrays.npz")


@pytest.fixture(params=FORMS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    write_record(path, VALUE) if path.suffix == ".json" else commit(path, ARRAYS, VALUE)
    return path


def content_of(path: Path) -> Any:
    if path.suffix == ".json":
        return read_record(path)
    check_whole(path)
    arrays, facts = load(path)
    return facts, {name: (values.dtype, values.tolist()) for name, values in arrays.items()}


def is_noticed(path: Path, value: Any) -> bool:
    """Read; return whether that raised an error that names the file, and fail where it gave another value."""
    try:
        found = content_of(path)
    except CorruptDataError as error:
        assert path.name in str(error)  # noqa: PT017 (the read may also succeed, unharmed)
        assert "\n" not in str(error)  # noqa: PT017
        assert error.exit_code == 65  # noqa: PT017
        return True
    assert found == value
    return False


def test_any_flipped_byte_is_noticed_or_harmless(path):
    value, data = content_of(path), path.read_bytes()
    noticed, n_bytes = 0, len(data) - (path.suffix == ".json")  # after which the line ends
    for position in range(n_bytes):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
        noticed += is_noticed(path, value)
    assert noticed >= n_bytes * (0.98 if path.suffix == ".json" else 0.5)


def test_any_other_length_is_noticed(path):
    value, data = content_of(path), path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert is_noticed(path, value) or (length == len(data) - 1 and path.suffix == ".json")
    path.write_bytes(data + b"x")
    assert is_noticed(path, value) or path.suffix == ".npz"  # whose end is found


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"x": 1}', b"\xff", b"[" * 100_000])
def test_garbage_is_noticed(path, content):
    path.write_bytes(content)
    assert is_noticed(path, None)
