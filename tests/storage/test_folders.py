"""Commits: whole or not there, whatever fails and wherever. Only plain files are opened, at once and to a bound."""

import errno
import itertools
import os
import pickle
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from features import input_files as users
from features.errors import DataError
from storage import files as disk
from storage.arrays import commit, load
from storage.errors import CannotWriteError, CorruptDataError
from storage.files import canonical_json, replacing, write_file
from storage.folder_layouts import MANIFEST_NAME
from storage.folders import compare, digest_file, hold_lock, holder, read_manifest, remove_folder, remove_stale, seal
from storage.output_files import writing
from storage.zarr_arrays import create_arrays

LOW = [name for name in vars(disk) if name.startswith("low_")]


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here is what other processes see; what is there after a power loss, test_crash_states.py tests."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def break_at(at: int, number: int, patch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Break the change of the disk that is numbered `at` with an errno; return a list that gets all changes."""
    calls: list[tuple[str, Path]] = []

    def broken(name: str, real: Any, *arguments: Any) -> Any:
        calls.append((name, next(value for value in reversed(arguments) if isinstance(value, Path))))
        if len(calls) == at + 1:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    for name in LOW:
        patch.setattr(disk, name, partial(broken, name, getattr(disk, name)))
    return calls


def write(final: Path, number: int) -> None:
    disk.make_folder(final.parent)
    commit(final, {"x": np.full(5, number)}, {"number": number})


def read(final: Path) -> int:
    arrays, facts = load(final)
    assert arrays["x"].tolist() == [facts["number"]] * 5
    return int(facts["number"])


CAUSES = {errno.ENOSPC: "disk full", errno.EDQUOT: "disk quota used up", errno.EIO: "input/output error"}
CAUSES |= {errno.EROFS: "read-only file system", errno.EACCES: "permission denied", errno.EFBIG: "ulimit -f"}


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("number", CAUSES)
def test_an_error_of_any_change_is_73_and_leaves_the_old(tmp_path, replaces, number):
    for at in itertools.count():
        final = tmp_path / str(at) / "final.npz"
        if replaces:
            write(final, 1)
        with pytest.MonkeyPatch.context() as patch:
            calls = break_at(at, number, patch)
            try:
                write(final, 2)
            except CannotWriteError as error:
                caught = error
            else:
                assert len(calls) <= at, "nobody was told"
                break
        assert caught.exit_code == 73
        assert CAUSES[number] in str(caught)
        assert str(tmp_path / str(at)) in str(caught)
        assert str(pickle.loads(pickle.dumps(caught))) == str(caught)
        if ("low_rename", final) in calls[:at]:
            assert read(final) == 2
        else:
            assert (read(final) if final.exists() else 0) == int(replaces), at
            names = {path.name for path in final.parent.iterdir()} if final.parent.exists() else set()
            assert names <= {"final.npz"}
    assert at >= 5


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("theirs", ["file", "folder", "link"])
def test_a_name_that_is_taken_meanwhile_stays_whose_it_is(tmp_path, links, theirs, monkeypatch):
    final = tmp_path / "final"
    if not links:  # of the file system
        monkeypatch.setattr(Path, "hardlink_to", lambda *_: os.open(tmp_path / "none" / "such", os.O_RDONLY))
    with replacing(final, replace=False):
        assert not final.exists()
    final.rename(tmp_path / "ours")
    with pytest.raises(CannotWriteError, match="final: somebody else made it"), replacing(final, replace=False):  # noqa: PT012
        if theirs == "folder":
            (final / "mine").mkdir(parents=True)
        elif theirs == "file":
            final.write_text("mine")
        else:
            final.symlink_to("mine")
        before = final.lstat()
    assert os.path.samestat(final.lstat(), before)
    assert {path.name for path in tmp_path.iterdir()} == {"final", "ours"}


def test_short_writes_are_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "low_write", lambda descriptor, path, data: os.write(descriptor, data[:7]))
    data = bytes(range(100))
    write_file(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data
    commit(tmp_path / "b.npz", {"x": np.arange(50)})
    assert load(tmp_path / "b.npz").arrays["x"].tolist() == list(range(50))


HEX = "0123456789abcdef"
NOT_OURS = [".tmp-", ".tmp-a", f".tmp-{HEX}", f".tmp--{HEX}", f".tmp-a-{HEX}0", f".tmp-a-{HEX[:15]}", ".tmp-old-a"]
NOT_OURS += [f".tmp-a-{HEX.upper()}", f".tmp-a{HEX}", f"tmp-a-{HEX}", f".tmp_a-{HEX}", f".tmp-a-{HEX}.npz"]


def test_what_a_kill_left_aside_goes_and_what_is_only_named_alike_stays(tmp_path):
    """Files and folders of a user whose names begin like ours, in each place that sweeps."""
    for name in NOT_OURS:
        assert disk.aside_of(name) is None
        (tmp_path / "folders" / name / "inside").mkdir(parents=True)
        (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for sweep, made in ((remove_stale, []), (partial(seal, known={}), [tmp_path / MANIFEST_NAME])):
        for place in (tmp_path, tmp_path / "folders"):
            disk.temporary_path(place / "file").write_text("x")
            disk.temporary_path(place / "folder").mkdir()
        sweep(tmp_path)
        assert sorted(tmp_path.rglob("*")) == sorted([*before, *made])
    remove_stale(tmp_path / "none")


def test_sealing_trusts_known_digests_and_sees_lost_files(tmp_path):
    write_file(tmp_path / "a", b"12")
    write_file(disk.temporary_path(tmp_path / "x"), b"1")
    known = {"a": digest_file(tmp_path / "a")}
    (tmp_path / "a").write_bytes(b"13")  # damaged after it was written: the manifest must tell, not bless it
    seal(tmp_path, known)
    assert read_manifest(tmp_path) == known
    assert compare(tmp_path, known, contents=True) == ["a: its content does not match its digest"]
    for change in (lambda: (tmp_path / "a").write_bytes(b"123"), (tmp_path / "a").unlink):
        change()
        with pytest.raises(CorruptDataError, match="written, but now a: "):
            seal(tmp_path, known)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptDataError, match="pipe: is a pipe"):
        seal(tmp_path, {})


def test_a_line_that_finds_no_room_is_named_and_nothing_waits_for_a_later_write(tmp_path):
    """On 1 MiB of memory as a file system."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("cannot mount a small tmpfs here")
    try:
        (tmp_path / "log").write_bytes(b"first\ncut o")
        lines = disk.LineFile(tmp_path / "log")
        lines.append("second")
        (tmp_path / "filler").write_bytes(bytes(2**20 - 2 * os.sysconf("SC_PAGE_SIZE")))
        with pytest.raises(CannotWriteError, match=r"log: cannot write 20001 bytes: disk full; free some space"):
            lines.append("x" * 20_000)
        lines.append("third")
        lines.close()
        assert (tmp_path / "log").read_bytes() == b"first\nsecond\nthird\n"
    finally:
        subprocess.run(["umount", tmp_path], check=True)


ONE = {"label": np.int64, "decision": np.float64}, 1


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder of root's that this process may not write to meanwhile; pytest's own are closed to other users."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user without rights")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        Path(name, "inside").mkdir()
        os.seteuid(65534)
        yield Path(name)
        os.seteuid(0)


def test_a_closed_folder_is_73_for_an_ordinary_user(closed):
    for action, wanted in (
        (lambda: write_file(closed / "a", b"1"), "a: cannot write 1 bytes"),
        (lambda: commit(closed / "b.npz", {"x": np.ones(2)}), "b.npz: cannot write 16 bytes"),
        (lambda: create_arrays(closed / "d.zarr", [], {}), "d.zarr: cannot write"),
        (lambda: remove_folder(closed / "inside"), "inside: cannot write"),
        (lambda: hold_lock(closed / "e.lock", "x").__enter__(), "e.lock: cannot write"),
        (lambda: disk.make_folder(closed / "f"), "f: cannot write"),
        (lambda: writing(closed / "g.csv", *ONE).__enter__(), "g.csv: cannot write"),
        (lambda: writing(closed / "g.parquet", *ONE).__enter__(), "g.parquet: cannot write"),
    ):
        with pytest.raises(CannotWriteError, match=f"{closed}/{wanted}: permission denied") as caught:
            action()
        assert caught.value.exit_code == 73


DOORS: dict[str, Any] = {
    "stored": (disk.open_plain, CorruptDataError),
    "users": (users.open_plain, DataError),
    "lines": (disk.LineFile, CorruptDataError),
    "lock": (lambda path: hold_lock(path, "a test").__enter__(), CorruptDataError),
    "holder": (holder, CorruptDataError),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "link to a pipe"])
def test_what_is_no_plain_file_is_refused_at_once(door, kind, tmp_path):
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
        with pytest.raises(refused, match="plain file") as caught:
            open_plain(path)
        assert str(path) in str(caught.value)
        assert os.path.realpath(path) not in map(os.path.realpath, Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("name", ["a.bin", "sub/b.bin", "sub/c.bin"])
def test_each_kind_of_damage_is_one_problem_naming_the_file(tmp_path, name):
    (tmp_path / "sub").mkdir()
    for other, content in (("a.bin", b"hello"), ("sub/b.bin", b""), ("sub/c.bin", bytes(1000))):
        (tmp_path / other).write_bytes(content)
    seal(tmp_path, {})
    path, files = tmp_path / name, read_manifest(tmp_path)
    assert files["a.bin"] == (5, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
    data = path.read_bytes()
    for content, whole in ((data, True), (data + b"x", False)):
        path.write_bytes(content)
        assert [problem.split(":")[0] for problem in compare(tmp_path, files, contents=False)] == [name] * (not whole)
    path.unlink()
    assert compare(tmp_path, files, contents=False) == [f"{name}: missing"]
    path.symlink_to("/etc/hostname")
    assert compare(tmp_path, files, contents=False) == [f"{name}: not a plain file"]
    path.unlink()
    if data:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert compare(tmp_path, files, contents=False) == []
        assert compare(tmp_path, files, contents=True) == [f"{name}: its content does not match its digest"]


def test_canonical_json_of_numpy_scalars_and_of_what_has_no_form():
    """With one spelling per value: keys are sorted, at every depth."""
    value = {"c": (1, {"é": None, "d": True}), "b": np.float64(0.5), "a": np.int64(3)}
    assert canonical_json(value).decode() == '{"a":3,"b":0.5,"c":[1,{"d":true,"é":null}]}'
    for bad in (float("nan"), float("inf"), np.float64("nan")):
        with pytest.raises(ValueError, match="JSON"):
            canonical_json(bad)
    with pytest.raises(TypeError, match="JSON"):
        canonical_json({"a": object()})
