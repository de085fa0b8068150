"""Mirrors that misbehave, on the loopback."""

import errno
import hashlib
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pooch
import pytest

from features import published
from features.errors import DataError, MissingInputError, UnavailableError
from features.open_source import open_source
from features.published import PUBLISHED, Published, fetch, find, read_files
from features.source import SourceSpec

BODIES = {f"file-{k}.gz": bytes([k]) * (20_000 + k) for k in range(4)}
FILES = {name: hashlib.sha256(body).hexdigest() for name, body in BODIES.items()}
QUICK = {"silence_seconds": 0.5, "total_seconds": 1.5}


class Mirror(BaseHTTPRequestHandler):
    """Serves /<behaviour>/<file>; notes what was asked for on the server."""

    def do_GET(self):
        behaviour, name = self.path.strip("/").split("/")
        self.server.asked.append((behaviour, name))
        body = BODIES[name]
        if behaviour == "wrong":
            body = body[:-1] + b"!"
        if behaviour == "error":
            return self.send_error(500)
        if behaviour == "hang" and self.server.released.wait(10):
            return None
        self.send_response(200)
        length = len(body)
        if behaviour == "truncated":
            body = body[:1000]
        self.send_header("Content-Length", str(10**12 if behaviour == "endless" else length))
        self.end_headers()
        try:
            if behaviour == "trickle":
                for byte in body[:200]:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)
            elif behaviour == "endless":
                while True:
                    self.wfile.write(bytes(1 << 16))
            self.wfile.write(body)
        except OSError:
            pass
        return None

    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    server.daemon_threads = True
    server.block_on_close = False
    server.asked, server.released = [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.url = lambda behaviour: f"http://127.0.0.1:{server.server_address[1]}/{behaviour}/"
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_good_mirror_fills_the_cache_once(mirror, tmp_path):
    for _ in range(2):
        folder = fetch("some", FILES, [mirror.url("good")], tmp_path / "cache", **QUICK)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == BODIES
    assert len(mirror.asked) == len(FILES)


@pytest.mark.parametrize("behaviour", ["wrong", "truncated", "error", "hang", "trickle", "endless"])
def test_a_mirror_that_fails_leaves_nothing_and_the_next_is_tried(mirror, tmp_path, monkeypatch, behaviour):
    monkeypatch.setattr(published, "MAX_FILE_BYTES", 1 << 20)
    one = dict(list(FILES.items())[:1])
    with pytest.raises(UnavailableError) as caught:
        fetch("some", one, [mirror.url(behaviour)], tmp_path, **QUICK)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir()), "nothing may be left that a later run could trust"
    mirror.asked.clear()
    folder = fetch("some", one, [mirror.url(behaviour), mirror.url("good")], tmp_path, **QUICK)
    assert (folder / "file-0.gz").read_bytes() == BODIES["file-0.gz"]
    assert mirror.asked == [(behaviour, "file-0.gz"), ("good", "file-0.gz")]


@pytest.fixture
def usps(mirror, tmp_path, monkeypatch):
    """The folder of usps in a cache of the test's own; a mirror has its files, which are those of this test."""
    monkeypatch.delenv("SLKL_DATA_DIR", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache")
    monkeypatch.setitem(PUBLISHED, "usps", Published(FILES, (mirror.url("good"),)))
    return tmp_path / "cache" / "usps"


def write(folder):
    folder.mkdir(parents=True)
    for name, body in BODIES.items():
        (folder / name).write_bytes(body)
    return folder


def test_a_damaged_or_missing_file_of_the_cache_is_downloaded_again(usps, mirror):
    write(usps)
    (usps / "file-1.gz").write_bytes(b"!" + BODIES["file-1.gz"][1:])
    (usps / "file-2.gz").unlink()
    with pytest.raises(DataError, match=r"file-1\.gz: sha256 is "):
        read_files("usps", usps)
    assert find("usps", None) == usps
    assert mirror.asked == [("good", "file-1.gz"), ("good", "file-2.gz")]
    assert read_files("usps", usps) == BODIES


def test_a_folder_that_is_given_comes_before_the_cache_and_is_never_filled(usps, mirror, tmp_path, monkeypatch):
    write(usps)
    named, given = write(tmp_path / "named" / "usps"), write(tmp_path / "given")
    assert find("usps", None) == usps
    monkeypatch.setenv("SLKL_DATA_DIR", str(named.parent))
    assert find("usps", None) == named
    assert find("usps", str(given)) == given
    (given / "file-1.gz").unlink()
    with pytest.raises(MissingInputError, match=f"{given} lacks file-1.gz; copy them there or leave out --data-dir"):
        find("usps", str(given))
    with pytest.raises(MissingInputError, match=f"neither {tmp_path} nor {tmp_path / 'usps'} holds file-0.gz"):
        find("usps", str(tmp_path))
    assert mirror.asked == []


def test_a_full_disk_is_not_blamed_on_the_mirror(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(pooch, "retrieve", full)
    with pytest.raises(OSError, match="no space left"):
        fetch("some", FILES, ["http://127.0.0.1:9/"], tmp_path, **QUICK)


@pytest.mark.parametrize("dataset", sorted(PUBLISHED))
def test_offline_says_what_to_do(tmp_path, monkeypatch, dataset):
    monkeypatch.delenv("SLKL_DATA_DIR", raising=False)
    nowhere = replace(PUBLISHED[dataset], mirrors=("http://127.0.0.1:9/", "http://127.0.0.1:9/other/"))
    monkeypatch.setitem(PUBLISHED, dataset, nowhere)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    with pytest.raises(UnavailableError, match=f"^{dataset}: no mirror delivered") as caught:
        open_source(SourceSpec(dataset))
    for name in (*PUBLISHED[dataset].files, "--data-dir", "digits", "needs no download", str(tmp_path)):
        assert name in str(caught.value)


def test_every_published_data_set_has_two_mirrors_over_https():
    assert all(len(each.mirrors) >= 2 for each in PUBLISHED.values())
    mirrors = [mirror for each in PUBLISHED.values() for mirror in each.mirrors]
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in mirrors)
