"""Copies of objects, from moto's server and from servers that deny, cut and are not there; all on loopback."""

import http.server
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import zarr

from features.table_paths import is_table_file
from runs import ROOT
from storage import object_store
from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError, UnusableNameError
from storage.object_store import copy_objects, is_url, path_of

KEY, SECRET, TOKEN = "AKIAEXAMPLE", "wJalr/secret+part", "token-of-an-hour"
CSV = b"a,b,y\n1,2,3\n4,5,6\n"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("SESSION_TOKEN", TOKEN)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(object_store, "SILENCE_SECONDS", 1)


@pytest.fixture
def bucket(s3, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    return s3.new_bucket()


def fetch(url, folder, count=lambda n_bytes: None):
    return copy_objects(url, folder, is_table_file, count)


def files_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_one_object_is_copied_under_its_own_name(s3, bucket, tmp_path):
    s3.put(bucket, {"in/t.csv": CSV, "in/t.csv.gz": b"not read here", "T.parquet": b"nor this"})
    counted = []
    assert fetch(f"s3://{bucket}/in/t.csv", tmp_path, counted.append) == tmp_path / bucket / "in" / "t.csv"
    assert counted == [len(CSV)]
    fetch(f"s3://{bucket}/in/t.csv.gz", tmp_path)
    fetch(f"s3://{bucket}/T.parquet", tmp_path)
    assert files_of(tmp_path / bucket) == {"in/t.csv": CSV, "in/t.csv.gz": b"not read here", "T.parquet": b"nor this"}


def test_a_prefix_has_hive_folders_and_no_files_of_other_programs(s3, bucket, tmp_path):
    parts = {f"year={year}/part-{k}.parquet": b"%d" % k for year in (2024, 2025) for k in (0, 1)}
    s3.put(bucket, {f"sales/{name}": content for name, content in parts.items()})
    others = ("", "year=2024/", "_SUCCESS", "_log/0.json", "_log/0.csv", "year=2024/.part.csv", "notes.txt")
    s3.put(bucket, {f"sales/{name}": b"" for name in others} | {"sales2/a.csv": CSV})
    for url in (f"s3://{bucket}/sales", f"s3://{bucket}/sales/"):
        assert files_of(fetch(url, tmp_path)) == parts
    s3.put(bucket, {"spark.parquet/part-0.parquet": b"x"})
    assert files_of(fetch(f"s3://{bucket}/spark.parquet", tmp_path)) == {"part-0.parquet": b"x"}


def test_a_pattern_names_objects(s3, bucket, tmp_path):
    s3.put(bucket, {f"d/{name}": CSV for name in ("a1.csv", "a2.csv", "b1.csv", "sub/a3.csv", "sub/deep/a4.csv")})
    named = {
        "a*.csv": ["a1.csv", "a2.csv"],
        "[ab]1.csv": ["a1.csv", "b1.csv"],
        "*/a*.csv": ["sub/a3.csv"],
        "**/a*.csv": ["a1.csv", "a2.csv", "sub/a3.csv", "sub/deep/a4.csv"],
    }
    for number, (pattern, names) in enumerate(named.items()):
        copy = fetch(f"s3://{bucket}/d/{pattern}", tmp_path / str(number))
        assert copy == tmp_path / str(number) / bucket / "d" / pattern
        assert list(files_of(tmp_path / str(number) / bucket / "d")) == names
    with pytest.raises(MissingDataError, match="no such"):
        fetch(f"s3://{bucket}/d/c*.csv", tmp_path)
    s3.put(bucket, {"d/x[1].csv": b"of a name with signs"})
    assert fetch(f"s3://{bucket}/d/x[1].csv", tmp_path).read_bytes() == b"of a name with signs"


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [("**", "a/b", True), ("**/b", "b", True), ("a/**/b", "a/b", True), ("a/**/b", "a/c/d/b", True),
     ("a/**", "b", False), ("*", "a/b", False), ("**/a/**/b", "c/a/b/c", False), ("**/*/**", "a", True)],
)  # fmt: skip
def test_patterns_with_folders_of_any_depth(pattern, name, matches):
    assert object_store._matches(name.split("/"), pattern.split("/")) == matches


def test_a_pattern_of_many_folders_takes_no_time():
    assert not object_store._matches(["a"] * 40, ["**", "a"] * 15 + ["b"])


def test_a_zarr_store_with_all_its_files(s3, bucket, tmp_path):
    group = zarr.open_group(tmp_path / "here" / "x.zarr", mode="w")
    group.create_array("X", data=np.arange(60.0).reshape(20, 3), chunks=(4, 2))
    stored = files_of(tmp_path / "here" / "x.zarr") | {".zattrs": b"{}"}
    s3.put(bucket, {"in/t.csv": CSV})
    s3.put(bucket, {f"in/x.zarr/{name}": content for name, content in stored.items()})
    copy = fetch(f"s3://{bucket}/in/x.zarr", tmp_path / "there")
    assert files_of(copy) == stored
    for beside in ("in", "in/**/*"):  # which copy only tables
        fetch(f"s3://{bucket}/{beside}", tmp_path / "there")
        assert np.array_equal(zarr.open_group(copy, mode="r")["X"][:], group["X"][:])


def test_another_object_of_the_same_second_and_size_is_copied(s3, bucket, tmp_path):
    for content in (b"1,2\n", b"3,4\n", b"3,4\n", b"5,6\n") * 3:
        s3.put(bucket, {"t.csv": content})
        assert fetch(f"s3://{bucket}/t.csv", tmp_path).read_bytes() == content


def test_what_changed_is_copied_again_and_what_is_gone_is_removed(s3, bucket, tmp_path):
    s3.put(bucket, {"d/a.csv": CSV, "d/b.csv": CSV, "d/sub/c.csv": CSV, "d/e.csv": CSV})
    copy, counted = fetch(f"s3://{bucket}/d", tmp_path), []
    before = {name: (copy / name).stat().st_ino for name in ("a.csv", "e.csv")}
    s3.remove(bucket, "d/b.csv", "d/sub/c.csv")
    s3.put(bucket, {"d/e.csv": CSV + CSV, "d/b.csv/f.csv": CSV})  # a folder in place of a file
    (copy / "own.csv").write_bytes(b"of somebody else")
    fetch(f"s3://{bucket}/d", tmp_path, counted.append)
    assert files_of(copy) == {"a.csv": CSV, "b.csv/f.csv": CSV, "e.csv": CSV + CSV}
    assert (copy / "a.csv").stat().st_ino == before["a.csv"]
    assert (copy / "e.csv").stat().st_ino != before["e.csv"]
    assert sorted(counted) == [len(CSV), 2 * len(CSV)]
    os.utime(copy / "a.csv", (1e9, 1e9))  # as of an older object of the same size
    counted.clear()
    fetch(f"s3://{bucket}/d", tmp_path, counted.append)
    assert counted == [len(CSV)]


def test_a_file_takes_the_place_of_a_folder_and_back(s3, bucket, tmp_path):
    url = f"s3://{bucket}/t.csv"
    for name in ("t.csv/part.csv", "t.csv", "t.csv/part.csv"):
        s3.put(bucket, {name: CSV})
        fetch(url, tmp_path)
        assert files_of(tmp_path / bucket) == {name: CSV}
        s3.remove(bucket, name)


def test_an_object_must_not_change_while_it_is_copied(s3, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "PIECE_BYTES", 1000)
    first, second, counted = b"1,2\n" * 1000, b"3,4\n" * 1000, []
    s3.put(bucket, {"t.csv": first})

    def replacing(n_bytes):
        counted.append(n_bytes)
        if len(counted) == 2:
            s3.put(bucket, {"t.csv": second})

    with pytest.raises(UnavailableStoreError, match="changed while it was copied"):
        fetch(f"s3://{bucket}/t.csv", tmp_path, replacing)
    assert counted == [1000] * 4
    assert files_of(tmp_path) == {}
    assert fetch(f"s3://{bucket}/t.csv", tmp_path).read_bytes() == second


def test_what_counting_raises_ends_the_copying(s3, bucket, tmp_path):
    s3.put(bucket, {f"d/{k}.csv": CSV for k in range(20)})

    def stop(n_bytes):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        fetch(f"s3://{bucket}/d", tmp_path, stop)
    assert files_of(tmp_path) == {}


@contextmanager
def served(kind, handler):
    with kind(("127.0.0.1", 0), handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()


@contextmanager
def cut_after(address, n_bytes):
    """Pass connections on until answers have `n_bytes`; then cut them all."""
    left, (host, port) = [n_bytes], address.removeprefix("http://").split(":")

    class Passing(socketserver.BaseRequestHandler):
        def handle(self):
            if left[0] <= 0:
                return
            with socket.create_connection((host, int(port))) as onward:
                threading.Thread(target=self.ask, args=(onward,), daemon=True).start()
                with suppress(OSError):
                    while left[0] > 0 and (data := onward.recv(4096)):
                        self.request.sendall(data[: left[0]])
                        left[0] -= len(data)
                    onward.shutdown(socket.SHUT_RDWR)
                    self.request.shutdown(socket.SHUT_RDWR)

        def ask(self, onward):
            with suppress(OSError):
                while data := self.request.recv(65536):
                    onward.sendall(data)

    with served(socketserver.ThreadingTCPServer, Passing) as cut:
        yield cut


def test_after_a_cut_connection_what_is_whole_stays(s3, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "THREADS", 1)
    rows = b"1.5,2.5\n" * 12_500  # 100 KB
    s3.put(bucket, {f"d/{k}.csv": rows for k in range(5)})
    with cut_after(s3.address, 250_000) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(UnavailableStoreError, match="run it again: what was copied stays"):
            fetch(f"s3://{bucket}/d", tmp_path)
    assert files_of(tmp_path / bucket / "d") == {f"{k}.csv": rows for k in range(2)}
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    counted = []
    copy = fetch(f"s3://{bucket}/d", tmp_path, counted.append)
    assert files_of(copy) == {f"{k}.csv": rows for k in range(5)}
    assert counted == [100_000] * 3


@pytest.mark.ci
def test_a_killed_copy_goes_on_where_it_was(s3, bucket, tmp_path, monkeypatch):
    s3.put(bucket, {f"d/{k}.csv": CSV for k in range(4)})
    code = """
import os, signal, sys
from pathlib import Path
from storage import object_store
object_store.THREADS = 1
counted = []
def kill(n_bytes):
    counted.append(n_bytes)
    if len(counted) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
object_store.copy_objects(sys.argv[1], Path(sys.argv[2]), lambda name: True, kill)
"""
    url = f"s3://{bucket}/d"
    done = subprocess.run([sys.executable, "-c", code, url, str(tmp_path)], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -9
    (left,) = tmp_path.rglob(".tmp-*")
    counted = []
    copy = fetch(url, tmp_path, counted.append)
    whole = {f"{k}.csv": CSV for k in range(4)}
    assert files_of(copy) == {left.name: left.read_bytes(), **whole}  # another command may be at work on it
    assert counted == [len(CSV)] * 2
    monkeypatch.setattr(object_store, "ABANDONED_SECONDS", -1)
    assert files_of(fetch(url, tmp_path)) == whole


def test_what_is_not_there_and_what_is_no_table(s3, bucket, tmp_path):
    s3.put(bucket, {"d/a.csv": CSV, "empty/": b"", "plain": CSV, "x.npz": b"", "n/notes.txt": b"", "flat.zarr": b""})
    for path in ("no-such-bucket/t.csv", "no-such-bucket", "no-such-bucket/*.csv"):
        with pytest.raises(MissingDataError, match=f"^s3://{path.replace('*', '[*]')}: no such"):
            fetch(f"s3://{path}", tmp_path)
    for key in ("t.csv", "d/a", "d/a.csv/", "e", "empty", "e/*.csv", "x.zarr"):
        with pytest.raises(MissingDataError, match="no such"):
            fetch(f"s3://{bucket}/{key}", tmp_path)
    for key in ("plain", "x.npz", "n", "flat.zarr"):
        with pytest.raises(UnusableNameError, match=r"names neither tables nor a \.zarr store"):
            fetch(f"s3://{bucket}/{key}", tmp_path)
    assert list(tmp_path.iterdir()) == []


class Denying(http.server.BaseHTTPRequestHandler):
    """Denies all; tells the keys, and more, as no server should."""

    def do_GET(self):
        message = f"{SECRET}\x1b[31m\n{KEY} {TOKEN} {'x' * 500}"
        text = f"<Error><Code>AccessDenied</Code><Message>{message}</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text.encode())

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, *words):
        pass


def without_secrets(error):
    text = str(error)
    for secret in (SECRET, TOKEN, KEY):
        assert secret not in text
        assert secret not in repr(error.__cause__)
    assert text.isprintable()
    return text


def test_denied_access_is_told_without_the_keys(tmp_path, monkeypatch):
    with served(http.server.ThreadingHTTPServer, Denying) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        for path in ("bucket/t.csv", "bucket/*.csv", "bucket"):
            with pytest.raises(UnavailableStoreError) as denied:
                fetch(f"s3://{path}", tmp_path)
            text = without_secrets(denied.value)
            assert text.startswith(f"s3://{path}: access denied (AWS Error")
            assert "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in text
            assert len(text) < 320


def test_no_connection(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(UnavailableStoreError, match="AWS_ENDPOINT_URL and AWS_REGION") as refused:
            fetch("s3://bucket/t.csv", tmp_path)
        assert "Could not connect" in without_secrets(refused.value)


@pytest.mark.ci
def test_silence_is_told_in_seconds(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(UnavailableStoreError, match="cannot be read"):
            fetch("s3://bucket/t.csv", tmp_path)
        assert time.monotonic() - started < 30


@pytest.mark.ci
def test_keys_of_the_environment_alone(tmp_path, monkeypatch):
    """Nothing of a configuration file is sent, and nothing is signed without a key."""
    home, signed = tmp_path / "home", []
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text("[default]\naws_access_key_id=FILE\naws_secret_access_key=FILE\n")

    class Noting(Denying):
        def do_HEAD(self):
            signed.append((self.headers.get("Authorization"), self.headers.get("X-Amz-Security-Token")))
            super().do_HEAD()

    code = "import pathlib, storage.object_store as s; s.copy_objects('s3://bucket/t.csv', pathlib.Path(), str)"
    with served(http.server.ThreadingHTTPServer, Noting) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("HOME", str(home))
        with pytest.raises(UnavailableStoreError):
            fetch("s3://bucket/t.csv", tmp_path)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_PROFILE", "default")
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True)
    (first, token), *others = signed
    assert f"Credential={KEY}/" in first
    assert "/us-east-1/s3/" in first
    assert token == TOKEN
    assert others
    assert set(others) == {(None, None)}


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9", f"http://{KEY}:{SECRET}@127.0.0.1:9", "http://127.0.0.1:9/path", "ftp://x", "http://x y"]
)
def test_a_malformed_address_is_refused(address, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with pytest.raises(UnusableNameError, match="AWS_ENDPOINT_URL: must be") as refused:
        fetch("s3://bucket/t.csv", tmp_path)
    without_secrets(refused.value)


def test_half_a_key_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UnusableNameError, match="set both, or none"):
        fetch("s3://bucket/t.csv", tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://{KEY}:{SECRET}@bucket/t.csv",
        f"s3://bucket/t.csv?X-Amz-Credential={KEY}&X-Amz-Signature={SECRET}",
        f"s3://bucket/{SECRET}\n.csv",
        f"s3:///{SECRET}",
    ],
)
def test_urls_with_secrets_are_refused_and_not_told(url):
    assert is_url(url)
    with pytest.raises(UnusableNameError, match="URL is malformed, or has user info or a query") as refused:
        path_of(url)
    without_secrets(refused.value)


def test_malformed_paths_are_refused():
    for path in ("b1/../t.csv", "b1//t.csv", "b1/a\\t.csv", "b1/./t.csv", "b1//", f"b1/{'x' * 300}.csv"):
        with pytest.raises(UnusableNameError, match=r"^s3://b1/.* has an empty part"):
            path_of(f"s3://{path}")
    assert path_of("s3://b.1") == path_of("s3://b.1/") == "b.1"


@pytest.mark.parametrize("key", ["d/../../x.csv", "d//x.csv", "d/a\\b.csv", "d/\x01x.csv", "d/./x.csv", "d//etc/x.csv"])
def test_hostile_keys_are_refused(key, s3, bucket, tmp_path):
    s3.put(bucket, {"d/a.csv": CSV, key: CSV})
    with pytest.raises(CorruptDataError, match="cannot be the name of a file") as refused:
        fetch(f"s3://{bucket}/d", tmp_path / "copies")
    assert str(refused.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_an_object_in_the_place_of_a_folder_is_refused(s3, bucket, tmp_path):
    s3.put(bucket, {"d/a.csv": CSV, "d/a.csv/b.csv": CSV})
    with pytest.raises(CorruptDataError, match="has the name of a folder"):
        fetch(f"s3://{bucket}/d", tmp_path)


def test_too_many_objects_are_refused(s3, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(object_store, "MOST_OBJECTS", 3)
    s3.put(bucket, {f"d/{k}.csv": CSV for k in range(4)})
    with pytest.raises(CorruptDataError, match="more than 3 objects"):
        fetch(f"s3://{bucket}/d", tmp_path)


@pytest.mark.nightly
def test_more_objects_than_one_answer_lists(s3, bucket, tmp_path):
    stored = {f"{k // 100}/{k}.csv": b"%d\n" % k for k in range(1100)}
    s3.put(bucket, {f"d/{name}": content for name, content in stored.items()})
    assert files_of(fetch(f"s3://{bucket}/d", tmp_path)) == stored


class Lying(Denying):
    """Lists an object of 4 bytes, and says later that it has more than any disk."""

    def do_GET(self):
        is_listing = "list-type" in self.path
        key = "other/t.csv" if "prefix=e/" in self.path else "d/t.csv"
        listed = f"<Contents><Key>{key}</Key><Size>4</Size><LastModified>9999-12-31T23:59:59Z</LastModified></Contents>"
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
        self.send_response(404 if self.path in ("/bucket/d", "/bucket/e") else 200)
        self.send_header("Content-Length", str(len(text) if is_listing else 10**15))
        self.end_headers()
        if is_listing:
            self.wfile.write(text.encode())


def test_a_store_that_lies_fills_no_disk(tmp_path, monkeypatch):
    with served(http.server.ThreadingHTTPServer, Lying) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(UnavailableStoreError, match=r"s3://bucket/d/t\.csv changed while it was copied"):
            fetch("s3://bucket/d", tmp_path)
        with pytest.raises(CorruptDataError, match="cannot be the name of a file"):
            fetch("s3://bucket/e", tmp_path)


def test_two_that_copy_at_once_get_the_same(s3, bucket, tmp_path):
    s3.put(bucket, {f"d/{k}.csv": CSV for k in range(30)})
    copies = []
    threads = [threading.Thread(target=lambda: copies.append(fetch(f"s3://{bucket}/d", tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert copies == [tmp_path / bucket / "d"] * 4
    assert files_of(copies[0]) == {f"{k}.csv": CSV for k in range(30)}
