"""Stores we must not read are refused from their metadata, before data or codecs are touched."""

import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import zstd
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from storage.errors import CorruptDataError, MissingDataError
from storage.zarr_arrays import ArraySpec, create_arrays, open_arrays, open_user_arrays


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


def test_a_lying_shape_is_refused_before_allocation(store: Path) -> None:
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


def test_a_v2_store_is_refused_without_looking_at_its_filters(tmp_path: Path) -> None:
    root = tmp_path / "v2.zarr"
    group = zarr.create_group(str(root), zarr_format=2)
    group.create_array("X", shape=(4,), chunks=(2,), dtype="int32")[:] = 1
    for path in (root, root / "X"):
        for door in (open_arrays, open_user_arrays):
            with pytest.raises(CorruptDataError, match="v2"):
                door(path)


def test_a_v2_array_inside_a_v3_group_is_refused(store: Path) -> None:
    (store / "evil").mkdir()
    (store / "evil" / ".zarray").write_text("{}")
    for door in (open_arrays, open_user_arrays):
        with pytest.raises(CorruptDataError, match="v2"):
            door(store)


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


def test_a_file_in_place_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(MissingDataError):
        open_user_arrays(tmp_path / "f")


def test_our_own_stores_never_import_zarr(store: Path) -> None:
    import os
    import subprocess

    code = "import sys; from storage.zarr_arrays import open_arrays; from pathlib import Path\n"
    code += f"open_arrays(Path({str(store)!r}))['X'].read(0, 10); sys.exit('zarr' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


ZSTD, GZIP = ({"name": name, "configuration": {"level": 1}} for name in ("zstd", "gzip"))
COMPRESSORS: dict[str, list[Any]] = {
    "none": [],
    "zstd": [ZstdCodec()],
    "gzip": [GzipCodec()],
    "blosc": [BloscCodec()],
    "zstd over crc32c": [Crc32cCodec(), ZstdCodec()],
    "crc32c over zstd": [ZstdCodec(), Crc32cCodec()],
    "gzip over crc32c": [Crc32cCodec(), GzipCodec()],
    "crc32c over gzip": [GzipCodec(), Crc32cCodec()],
}


def compressed(root: Path, values: np.ndarray, codecs: list[Any], **options: Any) -> Path:
    group = zarr.create_group(root, zarr_format=3)
    array = group.create_array(
        "X",
        shape=values.shape,
        chunks=(16, 3),
        dtype=values.dtype,
        compressors=codecs,
        config={"write_empty_chunks": True},
        **options,
    )
    array[:] = values
    return root


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_honest_chunks_read_as_zarr_reads_them(name: str, order: tuple[int, int], tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(50, 7)).astype(">f4")
    root = compressed(tmp_path / "a.zarr", values, COMPRESSORS[name], filters=[TransposeCodec(order=order)])
    array = open_user_arrays(root)["X"]
    np.testing.assert_array_equal(array[0:50], values)
    # What others open in this process is decoded by zarr's own codecs, as before.
    assert all(type(codec).__module__.startswith("zarr.") for codec in zarr.open_array(root / "X").compressors)


def stream_of(data: bytes) -> bytes:
    """Return a zstd frame of raw blocks that does not state its size (RFC 8878, 3.1.1)."""
    blocks = [data[start : start + 2**16] for start in range(0, len(data), 2**16)]
    headers = [((block is blocks[-1]) | len(block) << 3).to_bytes(3, "little") for block in blocks]
    return b"\x28\xb5\x2f\xfd\x00\x30" + b"".join(head + block for head, block in zip(headers, blocks, strict=True))


def test_a_zstd_stream_without_a_size_is_read(tmp_path: Path) -> None:
    values = np.arange(48.0).reshape(16, 3)
    root = compressed(tmp_path / "a.zarr", values, [ZstdCodec()])
    (root / "X/c/0/0").write_bytes(stream_of(values.tobytes()))
    np.testing.assert_array_equal(open_user_arrays(root)["X"][0:16], values)


LIES = {
    "zstd that states more": ([ZstdCodec()], lambda: zstd.compress(bytes(2**20))),
    "zstd stream of more": ([ZstdCodec()], lambda: stream_of(bytes(2**12))),
    "zstd stream of less": ([ZstdCodec()], lambda: stream_of(bytes(8))),
    "two zstd frames": ([ZstdCodec()], lambda: zstd.compress(bytes(16 * 3 * 8)) * 2),
    "zstd cut short": ([ZstdCodec()], lambda: zstd.compress(bytes(16 * 3 * 8))[:5]),
    "gzip of more": ([GzipCodec()], lambda: gzip.compress(bytes(2**20))),
    "gzip of less": ([GzipCodec()], lambda: gzip.compress(bytes(8))),
    "two gzip members": ([GzipCodec()], lambda: gzip.compress(bytes(16 * 3 * 8)) + gzip.compress(b"")),
    "gzip cut short": ([GzipCodec()], lambda: gzip.compress(bytes(16 * 3 * 8))[:-3]),
    "no compression at all": ([ZstdCodec()], lambda: bytes(16 * 3 * 8)),
    "nothing": ([GzipCodec()], lambda: b""),
}


@pytest.mark.parametrize("name", LIES)
def test_a_chunk_that_is_not_what_shape_and_dtype_say(name: str, tmp_path: Path) -> None:
    codecs, lie = LIES[name]
    root = compressed(tmp_path / "a.zarr", np.ones((16, 3)), codecs)
    (root / "X/c/0/0").write_bytes(lie())
    with pytest.raises(CorruptDataError, match="X/c/0/0") as caught:
        open_user_arrays(root)["X"][0:16]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("chain", [[GZIP, GZIP], [ZSTD, GZIP], [ZSTD, {"name": "crc32c"}, ZSTD]])
def test_one_compression_inside_another_is_refused(store: Path, chain: list[dict]) -> None:
    alter(store, lambda node: node.update(codecs=[node["codecs"][0], *chain]))
    with pytest.raises(CorruptDataError, match="at most one"):
        open_user_arrays(store)


def test_a_chunk_file_larger_than_its_chunk_is_not_read(store: Path) -> None:
    os.truncate(store / "X/c/0/0", 2**40)
    with pytest.raises(CorruptDataError, match="1099511627776 bytes"):
        open_user_arrays(store)["X"][0:4]


def test_a_promise_far_beyond_the_bytes_is_not_believed(tmp_path: Path) -> None:
    """Chunks that are honest, each for itself, and together more than a row of sensible data."""
    root = compressed(tmp_path / "a.zarr", np.zeros((1, 9), "uint8"), [ZstdCodec()])
    alter(root, lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[2**24, 1]))
    for column in range(9):
        (root / f"X/c/0/{column}").write_bytes(zstd.compress(bytes(2**24)))
    with pytest.raises(CorruptDataError, match="promise 150994944 bytes"):
        open_user_arrays(root)["X"][0:1]


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
