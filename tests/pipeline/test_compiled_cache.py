"""The cache of compiled code: damage costs a compilation and a warning, a folder that others can write is refused."""

import hashlib
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import compiled_cache, compiled_cache_files
from pipeline.compiled_cache import private_folder, problem_of, wanted_folder
from pipeline.compiled_cache_files import CheckedCacheFile

ROOT = Path(__file__).resolve().parents[2]
OTHER_USER = 65534
KEY, DATA = ("signature", "processor"), {"code": b"\x00machine code" * 20, "name": "sweep"}


def cache_file(folder: Path, stamp: bytes = b"source") -> CheckedCacheFile:
    return CheckedCacheFile(cache_path=str(folder), filename_base="module.function-1.py311", source_stamp=stamp)


def saved(folder: Path) -> CheckedCacheFile:
    folder.mkdir(exist_ok=True)
    found = cache_file(folder)
    found.save(KEY, DATA)
    return found


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_saved_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert saved(tmp_path).load(KEY) == DATA
    assert cache_file(tmp_path).load(("another", "key")) is None
    assert warnings_of(caplog) == []


def test_another_source_or_version_of_numba_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    assert cache_file(tmp_path, b"edited source").load(KEY) is None
    other = cache_file(tmp_path)
    monkeypatch.setattr(other, "_version", "0.0.1")
    assert other.load(KEY) is None
    assert warnings_of(caplog) == [], "what is only old is nobody's concern"


@pytest.mark.parametrize(("stamp", "key"), [(b"edited source", KEY), (b"source", ("another", "key"))])
def test_an_index_that_names_the_file_of_something_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stamp: bytes, key: object
) -> None:
    """A kill between the index and the data of a new source; two processes that number their files alike."""
    saved(tmp_path)
    (data_file,) = tmp_path.glob("*.nbc")
    found = cache_file(tmp_path, stamp)
    monkeypatch.setattr(found, "_load_index", dict)
    monkeypatch.setattr(found, "_save_data", lambda *_: None)
    found.save(key, DATA)
    (index,) = tmp_path.glob("*.nbi")
    assert data_file.name.encode() in index.read_bytes()
    assert cache_file(tmp_path, stamp).load(key) is None
    cache_file(tmp_path, stamp).save(key, "new")
    assert cache_file(tmp_path, stamp).load(key) == "new"


@settings(max_examples=80, deadline=None)
@given(suffix=st.sampled_from(["nbi", "nbc"]), place=st.floats(0, 1, exclude_max=True), bit=st.integers(-1, 7))
def test_whatever_bit_or_end_is_lost_the_entry_is_gone_and_comes_again(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, place: float, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    saved(folder)
    (path,) = folder.glob(f"*.{suffix}")
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    if bit < 0:
        del content[at:]
    else:
        content[at] ^= 1 << bit
    path.write_bytes(content)
    assert cache_file(folder).load(KEY) is None
    assert not path.exists(), "it is removed"
    cache_file(folder).save(KEY, DATA)
    assert cache_file(folder).load(KEY) == DATA


def test_a_whole_file_that_cannot_be_read_is_removed_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone:
        """A class that a later version no longer has."""

    monkeypatch.setattr(sys.modules[__name__], "Gone", Gone, raising=False)
    Gone.__qualname__ = "Gone"
    found = cache_file(tmp_path)
    monkeypatch.setattr(found, "_dump", pickle.dumps)
    found.save(KEY, Gone())
    monkeypatch.delattr(sys.modules[__name__], "Gone")
    assert found.load(KEY) is None
    assert ["AttributeError" in line for line in warnings_of(caplog)] == [True]
    assert not list(tmp_path.glob("*.nbi"))


def test_a_full_disk_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CheckedCacheFile, "_told_unwritable", False)
    for _ in range(2):
        cache_file(tmp_path / "missing").save(KEY, DATA)
    assert ["cannot be kept" in line for line in warnings_of(caplog)] == [True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path)
    (index,) = tmp_path.glob("*.nbi")
    os.chown(index, OTHER_USER, OTHER_USER)
    assert cache_file(tmp_path).load(KEY) is None
    assert [f"belongs to user {OTHER_USER}" in line for line in warnings_of(caplog)] == [True]


def test_the_folder_is_made_private_and_found_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = tmp_path / "new" / "compiled"
    before = os.umask(0)
    try:
        assert private_folder(wanted) == wanted
    finally:
        os.umask(before)
    assert wanted.stat().st_mode & 0o777 == 0o700
    assert private_folder(wanted) == wanted
    assert warnings_of(caplog) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder, to be spoiled."""
    found = tmp_path / "compiled"
    found.mkdir(0o700)
    return found


def assert_refused(wanted: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another folder, fresh and private, is taken for it, and the user told."""
    fresh = private_folder(wanted)
    assert fresh != wanted
    try:
        assert wanted.resolve() not in (fresh.resolve(), *fresh.resolve().parents)
        assert problem_of(fresh.lstat(), os.geteuid()) == ""
        (warning,) = warnings_of(caplog)
        assert f"{wanted} is not used for compiled code" in warning
    finally:
        shutil.rmtree(fresh)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o755])
def test_a_folder_that_others_have_rights_on_is_refused(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    folder.chmod(mode)
    assert_refused(folder, caplog)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.chown(folder, OTHER_USER, OTHER_USER)
    assert_refused(folder, caplog)


def test_a_link_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))
    assert_refused(folder, caplog)
    assert "it is no folder" in warnings_of(caplog)[0]


def test_a_folder_that_cannot_be_made_is_done_without(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.rmdir()
    folder.write_text("a file in its place")
    assert_refused(folder, caplog)
    caplog.clear()
    assert_refused(folder / "below", caplog)


def test_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    assert wanted_folder() == tmp_path / "numba" / "slkl"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert wanted_folder() == tmp_path / "caches" / "slkl" / "compiled"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert wanted_folder() == tmp_path / "home" / ".cache" / "slkl" / "compiled"
    monkeypatch.setattr(compiled_cache.Path, "expanduser", lambda self: (_ for _ in ()).throw(RuntimeError))
    assert wanted_folder() is None
    shutil.rmtree(private_folder(None))
    assert ["there is no home folder" in line for line in warnings_of(caplog)] == [True]


def test_modules_of_both_packages_use_the_checked_folder_and_other_code_does_not(tmp_path: Path) -> None:
    """In a worker's order of imports: a module of the stages comes first, and nobody has called anything."""
    (tmp_path / "foreign.py").write_text("from numba import njit\n@njit(cache=True)\ndef f(x):\n    return x\n")
    code = (
        "import pipeline, sys\n"
        "assert 'numba' not in sys.modules, 'the package must import at once'\n"
        "import pipeline.stages.solve\n"
        "import features.sphog_numba as a, pipeline.columns_numba as b, pipeline.solvers.scnd_numba as c, foreign\n"
        "for f in (a.sphog_rows, b.gaussian_float32, c.sweep, foreign.f): print(f.stats.cache_path)\n"
        "for f in (a.sphog_rows, foreign.f): print(type(f._cache._cache_file).__name__)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    *ours, foreign, checked, plain = done.stdout.split()
    assert all(path.startswith(str(tmp_path / "slkl" / "compiled") + os.sep) for path in ours)
    assert foreign == str(tmp_path / "__pycache__")
    assert checked == "CheckedCacheFile"
    assert plain == compiled_cache_files.CheckedCacheFile.__bases__[0].__name__


def train(run: Path, caches: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(caches)}
    line = [sys.executable, "-m", "pipeline.train", "digits", "--centers", "40", "--scheduler", "serial", "-q"]
    line += ["--run-dir", str(run), "--features-dir", str(run / ".." / "features")]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def model_digest(run: Path) -> str:
    return hashlib.sha256((run / "model" / "arrays.npz").read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_run_survives_a_damaged_cache_with_the_same_bytes(tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    present = wanted_folder()
    if present is not None and present.is_dir():  # spares the compilation of all that is left whole
        shutil.copytree(present, caches / "slkl")
        (caches / "slkl").chmod(0o700)
    first = train(tmp_path / "first", caches)
    assert first.returncode == 0, first.stderr
    assert first.stderr == ""

    names, damaged = ("gaussian_float32*.nbc", "residual_scores*.nbc", "inverse_of_definite*.nbi"), set()
    flips = random.Random(0)
    for name in names:  # those of other checkouts of this user too, which this one does not read
        for path in (caches / "slkl").glob(f"*/*.{name}"):
            content = bytearray(path.read_bytes())
            if path.suffix == ".nbi":
                content = content[: len(content) // 2]
            else:
                content[flips.randrange(len(content) // 4, len(content) // 2)] ^= 16
            path.write_bytes(content)
            damaged.add(f"warning: compiled code in {path} is damaged; it is removed and compiled anew")
    second = train(tmp_path / "second", caches)
    assert second.returncode == 0, second.stderr
    told = set(second.stderr.splitlines())
    assert len(told) >= len(names)
    assert told <= damaged
    assert model_digest(tmp_path / "second") == model_digest(tmp_path / "first")

    third = train(tmp_path / "third", caches)
    assert (third.returncode, third.stderr) == (0, ""), "what was compiled anew is whole again"
    assert model_digest(tmp_path / "third") == model_digest(tmp_path / "first")
