"""Published data: mirrors that misbehave on the loopback; USPS, boston, abalone, sinc."""

import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pooch
import pytest

from features.errors import DataError, MissingInputError, UnavailableError
from features.open_source import PUBLISHED, Published, fetch, find, open_source, read_files
from features.source import SourceSpec
from sources import everything

BODIES = {f"file-{k}.gz": bytes([k]) * (20_000 + k) for k in range(4)}
FILES = {name: hashlib.sha256(body).hexdigest() for name, body in BODIES.items()}
QUICK = {"silence_seconds": 0.5}


class Mirror(BaseHTTPRequestHandler):
    """Serves /<behaviour>/<file>; notes what was asked for on the server."""

    def do_GET(self):
        behaviour, name = self.path.strip("/").split("/")
        self.server.asked.append((behaviour, name))
        body = BODIES[name][:-1] + b"!" if behaviour == "wrong" else BODIES[name]
        if behaviour == "hang" and self.server.released.wait(10):
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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


@pytest.mark.parametrize("behaviour", ["wrong", "hang"])
def test_a_mirror_that_fails_leaves_nothing_and_the_next_is_tried(mirror, tmp_path, behaviour):
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
    monkeypatch.setenv("SLKL_DATA_DIR", str(tmp_path / "other"))  # holds no usps
    assert find("usps", None) == usps
    monkeypatch.setenv("SLKL_DATA_DIR", str(named.parent))
    assert find("usps", None) == find("usps", str(named.parent)) == named
    assert find("usps", str(given)) == given
    (given / "file-1.gz").unlink()
    with pytest.raises(MissingInputError, match=f"{given} lacks file-1.gz; copy them there or unset SLKL_DATA_DIR"):
        find("usps", str(given))
    assert mirror.asked == []


@pytest.mark.parametrize("dataset", sorted(PUBLISHED))
def test_offline_says_what_to_do(tmp_path, monkeypatch, dataset):
    monkeypatch.delenv("SLKL_DATA_DIR", raising=False)
    nowhere = replace(PUBLISHED[dataset], mirrors=("http://127.0.0.1:9/", "http://127.0.0.1:9/other/"))
    monkeypatch.setitem(PUBLISHED, dataset, nowhere)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    with pytest.raises(UnavailableError, match=f"^{dataset}: no mirror delivered") as caught:
        open_source(SourceSpec(dataset))
    for name in (*PUBLISHED[dataset].files, "SLKL_DATA_DIR", "digits", "needs no download", str(tmp_path)):
        assert name in str(caught.value)


@pytest.mark.ci
def test_real_usps(data_dir):
    source = open_source(SourceSpec("usps", data_dir=str(data_dir)))
    assert (source.n_train, source.n_test, source.input_shape) == (7291, 2007, (16, 16))
    assert (source.task, source.classes, source.standardise) == ("multiclass", tuple(range(10)), False)
    inputs, targets = everything(source)
    assert (inputs.dtype, inputs.min(), inputs.max()) == (np.float32, -1.0, 1.0)
    assert np.bincount(targets[:7291]).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert np.bincount(targets[7291:]).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    table = np.loadtxt(data_dir / "usps" / "zip.train.gz", max_rows=3)
    assert np.array_equal(inputs[:3].reshape(3, 256), table[:, 1:].astype(np.float32))


def test_real_boston_and_abalone(data_dir):
    boston, abalone = (open_source(SourceSpec(name, data_dir=str(data_dir), seed=3)) for name in ("boston", "abalone"))
    assert (boston.n_train, boston.n_test, boston.input_shape) == (350, 156, (13,))
    assert (abalone.n_train, abalone.n_test, abalone.input_shape) == (3000, 1177, (10,))
    assert {(source.task, source.classes, source.standardise) for source in (boston, abalone)} == {
        ("regression", (), True)
    }
    rows, table = np.column_stack(everything(boston)), np.loadtxt(data_dir / "boston" / "housing.data")
    assert np.array_equal(rows[np.lexsort(rows.T)], table[np.lexsort(table.T)])
    inputs, targets = everything(abalone)
    assert inputs[:, :3].sum(axis=0).tolist() == [1528, 1307, 1342]  # M, F, I
    assert np.count_nonzero(inputs[:, 5] == 0) == 2  # two rows of height 0
    assert targets.mean() == pytest.approx(9.9337, abs=1e-4)


def test_sinc_is_what_it_says_by_seed_noise_and_size():
    source = open_source(SourceSpec("sinc"))
    assert (source.n_train, source.n_test, source.input_shape) == (1000, 1000, (2,))
    assert (source.task, source.standardise) == ("regression", False)
    inputs, targets = everything(source)
    assert np.abs(inputs).max() <= 5
    radius = np.linalg.norm(inputs, axis=1)
    noise = (targets - np.sin(radius) / radius).reshape(2, 1000)
    assert noise.var(axis=1) == pytest.approx([0.1, 0.0], rel=0.1, abs=1e-20)
    inputs, _ = everything(open_source(SourceSpec("sinc", n_train=400_000)))
    signal = np.sinc(np.linalg.norm(inputs, axis=1) / np.pi)
    assert np.mean(signal**2) == pytest.approx(0.0954, abs=5e-4)  # the other reading of 10 dB is a tenth of this
    one, same, other = (np.column_stack(everything(open_source(SourceSpec("sinc", seed=s)))) for s in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one[:, :2], other[:, :2])
