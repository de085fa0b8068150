"""Manifests: round trip, no name that leaves the folder."""

from pathlib import Path

import numpy as np
import pytest

from storage import folders
from storage.errors import CorruptDataError, MissingDataError
from storage.folder_layouts import MANIFEST_NAME
from storage.folders import FileDigest, seal
from storage.records import canonical_json, read_json, read_record, write_record


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


@pytest.mark.parametrize("other", [{"files": {"a": 1}}, {"format_version": 2}])
def test_a_manifest_of_another_form_is_refused(folder, other):
    write_record(folder / MANIFEST_NAME, read_record(folder / MANIFEST_NAME) | other)
    with pytest.raises(CorruptDataError, match=r"damaged manifest .*; delete the folder .* and build it again$"):
        folders.read_manifest(folder)


def test_no_manifest_is_missing_data(tmp_path):
    with pytest.raises(MissingDataError, match="never completed"):
        folders.read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../outside", "{}", "..", ".", "a\0b"])
def test_a_name_that_leaves_the_folder_is_a_problem(tmp_path, name):
    outside, root = tmp_path / "outside", tmp_path / "folder"
    outside.write_bytes(b"x")
    root.mkdir()
    entry = {name.format(outside): folders.digest_file(outside)}
    assert ("null" if "\0" in name else "not a plain file") in folders.compare(root, entry, contents=True)[0]


def test_canonical_json_of_numpy_scalars_and_of_what_has_no_form():
    """With one spelling per value: keys are sorted, at every depth."""
    value = {"c": (1, {"é": None, "d": True}), "b": np.float64(0.5), "a": np.int64(3)}
    assert canonical_json(value).decode() == '{"a":3,"b":0.5,"c":[1,{"d":true,"é":null}]}'
    for bad in (float("nan"), float("inf"), np.float64("nan")):
        with pytest.raises(ValueError, match="JSON"):
            canonical_json(bad)
    with pytest.raises(TypeError, match="JSON"):
        canonical_json({"a": object()})
