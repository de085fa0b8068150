"""The data command: what is here, from mirrors on the loopback, and what is damaged."""

import hashlib
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from commands import Capture
from features import published
from features.published import PUBLISHED, Published, locate
from pipeline.data import main

BODIES = {"zip.train.gz": b"train" * 1000, "zip.test.gz": b"test" * 100}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of usps in a cache of the test's own; no folder is named, and no mirror answers."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "SLKL_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, known in PUBLISHED.items():
        monkeypatch.setitem(PUBLISHED, name, Published(known.files, ("http://127.0.0.1:9/",)))
    return tmp_path / "cache" / "slkl" / "usps"


@pytest.fixture
def mirror(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a mirror serves as usps."""
    folder = tmp_path / "served"
    write(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    digests = {name: hashlib.sha256(body).hexdigest() for name, body in BODIES.items()}
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    monkeypatch.setitem(PUBLISHED, "usps", Published(digests, (address,)))
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, body in BODIES.items():
        (folder / name).write_bytes(body)
    return folder


def test_nothing_is_here(cache: Path, capsys: Capture) -> None:
    assert main(["list"]) == 0
    told = capsys.readouterr().out
    for name, known in PUBLISHED.items():
        assert f"not here: python -m pipeline.data fetch {name}\n" in told
        assert all(file in told for file in known.files)
    assert "digits, synthetic, sinc: made on this machine" in told
    assert main(["verify"]) == 0, "nobody asked for any"
    assert main(["verify", "usps"]) == 66
    assert capsys.readouterr().err == "usps: not here: python -m pipeline.data fetch usps\n"
    assert main(["fetch", "digits", "sinc"]) == 0
    assert capsys.readouterr().out == "digits, sinc: made on this machine, nothing to download\n"
    assert not cache.exists()
    assert main(["fetch", "boston", "abalone"]) == 69
    told = capsys.readouterr().err
    assert "error: boston: no mirror delivered housing.data" in told
    assert "error: abalone: no mirror delivered abalone.data" in told


def test_fetch_fills_the_cache_that_training_uses(cache: Path, mirror: Path, capsys: Capture) -> None:
    assert main(["fetch", "usps"]) == 0
    assert capsys.readouterr().out == f"usps: {cache}, every sha256 as published\n"
    shutil.rmtree(mirror)
    assert published.find("usps", None) == cache
    assert published.read_files("usps", cache) == BODIES
    assert main(["list", "usps"]) == 0
    told = capsys.readouterr().out
    assert f"{cache} (cache), 0.01 MiB" in told
    assert "5000 bytes" in told
    assert main(["verify"]) == 0
    assert f"usps: {cache} (cache), 2 files, all as published" in capsys.readouterr().out


def test_verify_names_the_damaged_file_and_fetch_replaces_it(cache: Path, mirror: Path, capsys: Capture) -> None:
    write(cache)
    (cache / "zip.test.gz").write_bytes(b"test" * 99 + b"tesT")
    for names in ([], ["usps"]):
        assert main(["verify", *names]) == 65
        told = capsys.readouterr()
        damaged = f"{cache / 'zip.test.gz'}: damaged, its sha256 is not the published one"
        assert told.err == f"{damaged}; python -m pipeline.data fetch usps\n"
        assert "as published" not in told.out
    (cache / "zip.train.gz").unlink()
    assert main(["verify", "usps"]) == 65, "damage outweighs what is missing"
    assert f"{cache / 'zip.train.gz'}: missing" in capsys.readouterr().err
    assert main(["fetch", "usps"]) == 0
    assert main(["verify", "usps"]) == 0


def test_the_folders_are_searched_as_training_does(
    cache: Path, mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write(cache)
    named, given = write(tmp_path / "named" / "usps"), write(tmp_path / "given")
    for data_dir, folder, source in ((None, cache, "cache"), (str(given), given, "data-dir")):
        found = locate("usps", data_dir)
        assert found is not None
        assert (found.folder, found.source) == (folder, source)
        assert published.find("usps", data_dir) == folder
    monkeypatch.setenv("SLKL_DATA_DIR", str(named.parent))
    assert published.find("usps", None) == named
    assert main(["list", "usps"]) == 0
    assert f"{named} (SLKL_DATA_DIR)" in capsys.readouterr().out
    assert main(["fetch", "usps"]) == 0
    assert f"training takes it from {named}, which SLKL_DATA_DIR names" in capsys.readouterr().out


def test_a_folder_that_lacks_a_file_is_told_as_incomplete(
    cache: Path, mirror: Path, tmp_path: Path, capsys: Capture
) -> None:
    given = write(tmp_path / "given")
    (given / "zip.test.gz").unlink()
    write(cache)
    assert main(["list", "usps", "--data-dir", str(given)]) == 0
    told = capsys.readouterr().out
    assert "incomplete: copy it there again" in told
    assert "missing" in told
    assert main(["verify", "usps", "--data-dir", str(given)]) == 66
    assert main(["verify", "mnist", "--data-dir", str(given)]) == 66
    assert f"mnist: not in {given}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["verify", "nmist"], 2, "data set 'nmist' is unknown; give mnist"),
        (["fetch", "usps", "--data-dir", "/"], 2, "fetch fills the cache only"),
        (["list", "--data-dir", "/no/such/place"], 66, "--data-dir /no/such/place: no such folder"),
    ],
)
def test_bad_input(arguments: list[str], code: int, words: str, capsys: Capture) -> None:
    assert main(arguments) == code
    told = capsys.readouterr().err
    assert told.startswith(f"error: {words}")
    assert told.count("\n") == 1


def test_a_cache_that_cannot_be_made(cache: Path, mirror: Path, capsys: Capture) -> None:
    cache.parent.parent.mkdir()
    cache.parent.write_text("a file in the way")
    assert main(["fetch", "usps"]) == 73
    assert capsys.readouterr().err.startswith(f"error: {cache}: cannot write")
