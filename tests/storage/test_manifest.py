"""Manifests: round trip, no name that leaves the folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import folders
from storage.errors import CorruptDataError, MissingDataError
from storage.folder_layouts import MANIFEST_NAME
from storage.folders import FileDigest, Manifest, seal
from storage.records import canonical_json, read_json, write_record

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    (root / "sub").mkdir(parents=True)
    for name, data in (("a.bin", b"hello"), ("sub/b.bin", b""), ("sub/c.bin", bytes(1000))):
        (root / name).write_bytes(data)
    seal(root, kind="test", metadata={"step": 3, "when": [1, None, "x"]})
    return root


def test_round_trip(folder):
    read = folders.read_manifest(folder)
    assert (read.kind, read.metadata) == ("test", {"step": 3, "when": [1, None, "x"]})
    assert read_json(folder / MANIFEST_NAME)["format_version"] == 1
    assert read.files["a.bin"] == FileDigest(5, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
    assert folders.verify(folder, contents=True) == []


@pytest.mark.parametrize("name", ["a.bin", "sub/b.bin", "sub/c.bin"])
def test_each_kind_of_damage_is_one_problem_naming_the_file(folder, name):
    path = folder / name
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    assert [problem.split(":")[0] for problem in folders.verify(folder, contents=False)] == [name]
    path.unlink()
    assert folders.verify(folder, contents=False) == [f"{name}: missing"]
    path.symlink_to("/etc/hostname")
    assert "not a plain file" in folders.verify(folder, contents=False)[0]
    path.unlink()
    if data:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert folders.verify(folder, contents=False) == []
        assert [problem.split(":")[0] for problem in folders.verify(folder, contents=True)] == [name]


def test_a_linked_folder_is_no_part_of_it(folder):
    elsewhere = (folder / "sub").rename(folder.with_name("elsewhere"))
    (folder / "sub").symlink_to(elsewhere)
    assert len(folders.verify(folder, contents=True)) == 2


CRAFTED: dict[str, dict[str, Any]] = {
    "entry no pair": {"files": {"a": 1}},
    "newer version": {"format_version": 2},
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_manifest_of_another_form_is_refused(tmp_path, name):
    good = {"kind": "k", "format_version": 1, "files": {}, "metadata": {}}
    write_record(tmp_path / MANIFEST_NAME, good)
    assert folders.read_manifest(tmp_path) == Manifest("k", {}, {}), "else the others prove nothing"
    write_record(tmp_path / MANIFEST_NAME, good | CRAFTED[name])
    with pytest.raises(CorruptDataError, match=r"damaged manifest .*; delete the folder .* and build it again$"):
        folders.read_manifest(tmp_path)


def test_no_manifest_is_missing_data(tmp_path):
    with pytest.raises(MissingDataError, match="never completed"):
        folders.read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../outside", "{}", "..", "."])
def test_a_name_that_leaves_the_folder_is_a_problem(tmp_path, name):
    outside, root = tmp_path / "outside", tmp_path / "folder"
    outside.write_bytes(b"x")
    root.mkdir()
    entry = {name.format(outside): folders.digest_file(outside)}
    assert "not a plain file" in folders.compare(root, entry, contents=True)[0]


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=5))
def test_canonical_json_depends_on_the_value_alone(obj):
    assert canonical_json(dict(reversed(obj.items()))) == canonical_json(obj)
    assert json.loads(canonical_json(obj)) == obj


def test_canonical_json_of_numpy_scalars_and_of_what_has_no_form():
    assert canonical_json({"a": np.int64(3), "b": np.float64(0.5), "c": (1,)}) == b'{"a":3,"b":0.5,"c":[1]}'
    for bad in (float("nan"), float("inf"), np.float64("nan")):
        with pytest.raises(ValueError, match="JSON"):
            canonical_json(bad)
    with pytest.raises(TypeError, match="JSON"):
        canonical_json({"a": object()})
