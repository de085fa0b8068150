"""Each form of committed data: read back exactly; damage is an error that names the file, or does no harm."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from storage import folders
from storage.arrays import commit, load
from storage.errors import CorruptDataError
from storage.files import read_markers, read_record, write_marker, write_record

VALUE = {"name": "é", "rows": 7, "span": [1, 2], "loss": 1e-5}
ARRAYS = {"x": np.arange(3.0), "y": np.array([1, 2], np.int32)}


class Form(NamedTuple):
    """How some value is written into an empty folder and read back; `file` is the one that gets damaged."""

    file: str
    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    value: Any = VALUE
    harmless: float = 0.02  # the largest share of its bytes that may be flipped without an error


def read_marker(folder: Path) -> Any:
    """Read the marker `a`; where it does not count, that becomes the error. The marker `b` is always there."""
    found = read_markers(folder)
    assert found.pop("b") == {"rows": 8}
    if not found:
        raise CorruptDataError("a.json")
    return found["a"]


def arrays_at(name: str, file: str, harmless: float) -> Form:
    def read(folder: Path) -> Any:
        return {key: (values.dtype, values.tolist()) for key, values in load(folder / name).arrays.items()}

    lists = {key: (values.dtype, values.tolist()) for key, values in ARRAYS.items()}
    return Form(file, lambda at: commit(at / name, ARRAYS), read, lists, harmless)


FORMS = {
    "record": Form("a.json", lambda at: write_record(at / "a.json", VALUE), lambda at: read_record(at / "a.json")),
    "marker": Form(
        "a.json", lambda at: [write_marker(at, "a", VALUE), write_marker(at, "b", {"rows": 8})], read_marker
    ),
    "manifest": Form(
        "MANIFEST.json",
        lambda at: folders.seal(at, kind="k", metadata=VALUE),
        lambda at: folders.read_manifest(at).metadata,
    ),
    "arrays in a file": arrays_at("a.npz", "a.npz", 0.5),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Form:
    FORMS[request.param].write(tmp_path)
    return FORMS[request.param]


def is_noticed(form: Form, folder: Path) -> bool:
    """Read; return whether that raised an error that names the file, and fail where it gave another value."""
    try:
        found = form.read(folder)
    except CorruptDataError as error:
        assert Path(form.file).name in str(error)  # noqa: PT017 (the read may also succeed, unharmed)
        assert "\n" not in str(error)  # noqa: PT017
        assert error.exit_code == 65  # noqa: PT017
        return True
    assert found == form.value
    return False


def test_any_flipped_byte_is_noticed_or_harmless(form, tmp_path):
    assert not is_noticed(form, tmp_path), "what was written is read back"
    path = tmp_path / form.file
    data = path.read_bytes()
    n_bytes = len(data) - (path.suffix == ".json")  # after which the line ends
    noticed = 0
    for position in range(n_bytes):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :])
        noticed += is_noticed(form, tmp_path)
    assert noticed >= n_bytes * (1 - form.harmless)


def test_any_other_length_is_noticed(form, tmp_path):
    path = tmp_path / form.file
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert is_noticed(form, tmp_path) or (length == len(data) - 1 and path.suffix == ".json")
    path.write_bytes(data + b"x")
    assert is_noticed(form, tmp_path) or path.suffix == ".npz"  # whose end is found


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"x": 1}', b"\xff", b"[" * 100_000])
def test_garbage_is_noticed(form, tmp_path, content):
    (tmp_path / form.file).write_bytes(content)
    assert is_noticed(form, tmp_path)


def test_what_is_gone_or_of_another_name_is_noticed(tmp_path):
    assert read_markers(tmp_path / "none") == {}
    for name in (".tmp-a.json-00", "notes.txt"):  # of a kill, or of somebody else
        (tmp_path / name).write_text("{")
    write_marker(tmp_path, "a", {"rows": 3})
    (tmp_path / "a.json").rename(tmp_path / "b.json")
    assert read_markers(tmp_path) == {}
