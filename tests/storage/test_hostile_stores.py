"""Stores we must not read are refused from their metadata, before data or codecs are touched."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

from storage.errors import CorruptDataError, MissingDataError
from storage.user_arrays import open_user_arrays
from storage.zarr_arrays import ArraySpec, create_arrays, open_arrays


@pytest.fixture
def store(tmp_path: Path) -> Path:
    create_arrays(tmp_path / "a.zarr", [ArraySpec("X", (10, 2), "float32", 4)], {})
    open_arrays(tmp_path / "a.zarr")["X"].write(0, np.ones((10, 2), "float32"))
    return tmp_path / "a.zarr"


def alter(store: Path, change: Callable[[dict], object]) -> None:
    path = store / "X" / "zarr.json"
    node = json.loads(path.read_text())
    change(node)
    path.write_text(json.dumps(node))


HOSTILE = {
    "object dtype": lambda node: node.update(data_type="object"),
    "structured dtype": lambda node: node.update(data_type={"name": "structured", "configuration": {}}),
    "extension dtype": lambda node: node.update(data_type="variable_length_utf8"),
    "unknown codec": lambda node: node["codecs"].append({"name": "exec", "configuration": {"code": "1"}}),
    "numcodecs pickle": lambda node: node.update(codecs=[{"name": "numcodecs.pickle"}]),
    "sharding": lambda node: node.update(codecs=[{"name": "sharding_indexed", "configuration": {}}]),
    "codecs no list": lambda node: node.update(codecs="bytes"),
    "format 2": lambda node: node.update(zarr_format=2),
    "format true": lambda node: node.update(zarr_format=True),
    "format text": lambda node: node.update(zarr_format="3"),
    "node type": lambda node: node.update(node_type="pickle"),
    "negative shape": lambda node: node.update(shape=[-10, 2]),
    "text shape": lambda node: node.update(shape=["10", 2]),
    "shape of other rank": lambda node: node.update(shape=[10]),
    "huge chunk": lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[2**40, 2]),
    "zero chunk": lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[0, 2]),
    "irregular grid": lambda node: node.update(chunk_grid={"name": "rectilinear", "configuration": {}}),
    "beyond 64 bits": lambda node: node.update(shape=[2**61, 2**61]),
    "hundreds of axes": lambda node: node.update(
        shape=[1] * 300, chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1] * 300}}
    ),
    "no grid": lambda node: node.pop("chunk_grid"),
    "transformer": lambda node: node.update(storage_transformers=[{"name": "x"}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_metadata_is_refused_by_both_doors(store: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alter(store, HOSTILE[name])
    monkeypatch.setattr(zarr, "open_array", lambda *_, **__: pytest.fail("zarr saw a store that was not checked"))
    for door in (open_arrays, open_user_arrays):
        with pytest.raises(CorruptDataError) as caught:
            door(store)
        assert caught.value.exit_code == 65
        assert "\n" not in str(caught.value)


NOT_OURS = {
    "zstd": lambda node: node["codecs"].append({"name": "zstd", "configuration": {"level": 0, "checksum": False}}),
    "no checksum": lambda node: node["codecs"].pop(),
    "big endian": lambda node: node["codecs"][0]["configuration"].update(endian="big"),
    "columns cut": lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[4, 1]),
    "dotted keys": lambda node: node["chunk_key_encoding"]["configuration"].update(separator="."),
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_our_stores_have_one_form(store: Path, name: str) -> None:
    alter(store, NOT_OURS[name])
    with pytest.raises(CorruptDataError):
        open_arrays(store)


def test_lengths_that_lie_are_refused_before_allocation(store: Path) -> None:
    alter(store, lambda node: node.update(shape=[2**50, 2]))
    with pytest.raises(CorruptDataError, match="missing"):
        open_arrays(store)["X"].read(0, 2**50)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", "{}", "[" * 100_000, '{"zarr_format": 3}', "\xff\x00"])
@pytest.mark.parametrize("node", ["zarr.json", "X/zarr.json"])
def test_garbage_metadata(store: Path, text: str, node: str) -> None:
    (store / node).write_bytes(text.encode("latin-1"))
    for door in (open_arrays, open_user_arrays):
        with pytest.raises(CorruptDataError):
            door(store)


def test_a_v2_store_is_refused_without_looking_at_its_filters(store: Path, tmp_path: Path) -> None:
    """Also an array of one inside a group of v3."""
    (store / "evil").mkdir()
    (store / "evil" / ".zarray").write_text("{}")
    root = tmp_path / "v2.zarr"
    group = zarr.create_group(str(root), zarr_format=2)
    group.create_array("X", shape=(4,), chunks=(2,), dtype="int32")[:] = 1
    for path in (root, root / "X", store):
        for door in (open_arrays, open_user_arrays):
            with pytest.raises(CorruptDataError, match="v2"):
                door(path)


def test_nesting_is_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "deep.zarr"
    for _ in range(12):
        folder.mkdir()
        (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
        folder = folder / "g"
    with pytest.raises(CorruptDataError, match="deeper"):
        open_arrays(tmp_path / "deep.zarr")


def test_a_linked_array_is_not_followed(store: Path, tmp_path: Path) -> None:
    create_arrays(tmp_path / "b.zarr", [], {})
    (tmp_path / "b.zarr" / "X").symlink_to(store / "X")
    assert list(open_arrays(tmp_path / "b.zarr")) == []


def test_a_store_that_does_not_exist_or_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for door in (open_arrays, open_user_arrays):
        for name in ("file", "none"):
            with pytest.raises(MissingDataError) as caught:
                door(tmp_path / name)
            assert caught.value.exit_code == 66


def test_our_own_stores_never_import_zarr(store: Path) -> None:
    code = "import sys; from storage.zarr_arrays import open_arrays; from pathlib import Path\n"
    code += f"open_arrays(Path({str(store)!r}))['X'].read(0, 10); sys.exit('zarr' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["zarr.json", "X/zarr.json", "X/c/0/0"])
@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_pipes_and_devices_in_a_store_are_not_opened(store: Path, tmp_path: Path, name: str, target: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (store / name).unlink()
    (store / name).symlink_to(tmp_path / target)
    with pytest.raises(CorruptDataError, match=name):
        open_user_arrays(store)["X"][0:4]
    with pytest.raises(CorruptDataError, match=name):
        open_arrays(store)["X"].read(0, 4)
