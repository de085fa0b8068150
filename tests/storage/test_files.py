"""Only plain files are opened, at once and to a bound: both doors, that of stored files and that of the user's data."""

import os
import socket
from pathlib import Path

import pyarrow
import pytest

from features import input_files as users
from features.errors import DataError
from storage import files as stored
from storage.errors import CorruptDataError

DOORS = {"stored": (stored.open_plain, CorruptDataError), "users": (users.open_plain, DataError)}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "link to a pipe"])
def test_what_is_no_plain_file_is_refused_at_once(door: str, kind: str, tmp_path: Path) -> None:
    open_plain, refused = DOORS[door]
    path = tmp_path / "x"
    with socket.socket(socket.AF_UNIX) as unix:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "socket":
            unix.bind(os.path.relpath(path))
        else:
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to("pipe")
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(refused, match="plain file") as caught:
            open_plain(path)
        assert str(path) in str(caught.value)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("door", DOORS)
def test_plain_files_and_links_to_them_are_read(door: str, tmp_path: Path) -> None:
    open_plain, _ = DOORS[door]
    (tmp_path / "x").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("x")
    for name in ("x", "link"):
        with open_plain(tmp_path / name) as stream:
            assert stream.read() == b"abc"
    with pytest.raises(IsADirectoryError):
        open_plain(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "none")


@pytest.mark.parametrize("name", ["x", "x.gz", "x.zst"])
def test_packed_files_are_unpacked_in_pieces(tmp_path: Path, name: str) -> None:
    content = b"abc\r\n" * 500_000
    with pyarrow.output_stream(tmp_path / name, compression={"x.gz": "gzip", "x.zst": "zstd"}.get(name)) as stream:
        stream.write(content)
    with users.open_unpacked(tmp_path / name) as unpacked:
        pieces = list(iter(lambda: unpacked.read(1 << 20), b""))
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) == 1 << 20
