"""Where compiled loops are kept, for both packages, and what is known of them without numba's inner parts."""

import fcntl
import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.errors import StoppedError
from pipeline.kernels import kernel_loops
from pipeline.kernels.jit import Loop, loops_in
from pipeline.kernels.kernel_functions import DIAGONAL, kernel_named
from pipeline.stages import preparation
from runs import ROOT, python, report_of, wait_until

LOOPS = (
    "import features.descriptors.sphog as a, pipeline.kernels.kernel_loops as b;"
    "import pipeline.solvers.solver_loops as c;"
    "print(*{Path(f.stats.cache_path).parent for f in (a.sphog_rows, b.gaussian_float32, c.sweep)});"
)


def told(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | variables
    return python("-c", f"import pipeline, sys; from pathlib import Path; {code}", env=environment, check=True)


def test_the_loops_of_both_packages_are_kept_in_a_private_folder(tmp_path: Path) -> None:
    done = told(LOOPS, XDG_CACHE_HOME=str(tmp_path))
    folder = tmp_path / "slkl" / "numba"
    assert (done.stdout, done.stderr) == (f"{folder}\n", "")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert told(LOOPS, HOME=str(tmp_path), XDG_CACHE_HOME="").stdout == f"{tmp_path / '.cache' / 'slkl' / 'numba'}\n"


SPOILT = {
    "open to others": "chmod 700",
    "of another owner": "belongs to user",
    "a link": "is a link",
    "a file": "File exists",
    "named, a file": "File exists",
    "named, closed": "/proc/closed",
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_folder_that_is_not_private_or_takes_nothing_is_done_without(
    tmp_path: Path, spoilt: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "slkl" / "numba"
    folder.parent.mkdir()
    if spoilt.endswith("a file"):
        folder.touch()
    elif spoilt == "a link":
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir(0o700)
    if spoilt == "open to others":
        folder.chmod(0o770)
    if spoilt == "of another owner":
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    named = {"named, a file": str(folder), "named, closed": "/proc/closed"}
    monkeypatch.setenv("NUMBA_CACHE_DIR", named.get(spoilt, ""))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pipeline.keep_compiled_code()
    kept = Path(os.environ["NUMBA_CACHE_DIR"])
    assert kept.parent == tmp_path
    assert kept.stat().st_mode & 0o777 == 0o700
    (warning,) = caplog.messages
    assert warning.startswith("warning: compiled code is not kept beyond this process")
    assert "set NUMBA_CACHE_DIR" in warning
    assert SPOILT[spoilt] in warning
    monkeypatch.setenv("NUMBA_CACHE_DIR", named.get(spoilt, ""))
    monkeypatch.setattr(tempfile, "tempdir", "/proc/closed")
    pipeline.keep_compiled_code()
    assert os.environ["NUMBA_CACHE_DIR"] == os.devnull, "never the folder that others can write to"


OWN_LOOPS = """from numba import int64 as i8
from pipeline.kernels.jit import compiled

@compiled()
def one(x):
    return x + 1

@compiled()
def other(x):
    return x - 1

SIGNATURES = {"one": [(i8,)], "other": [(i8,)]}
"""


@pytest.mark.ci
def test_what_is_kept_is_known_loop_by_loop_until_its_source_changes(tmp_path: Path) -> None:
    """Without compiling anything to see."""
    code = (
        f"sys.path.insert(0, {str(tmp_path)!r}); import own_loops; from pipeline.kernels.jit import loops_in;"
        "loops = loops_in(own_loops, 'one', 'other'); print(*(loop.is_kept for loop in loops)); loops[0].load();"
        "print(*(loop.is_kept for loop in loops), sum(own_loops.one.stats.cache_misses.values()), own_loops.one(1));"
    )

    def found() -> list[str]:
        return told(code, NUMBA_CACHE_DIR=str(tmp_path / "cache")).stdout.splitlines()

    source = tmp_path / "own_loops.py"
    source.write_text(OWN_LOOPS)
    assert found() == ["False False", "True False 1 2"]
    assert found() == ["True False", "True False 0 2"]
    source.write_text(OWN_LOOPS.replace("x + 1", "x + 10"))
    assert found() == ["False False", "True False 1 11"]


def test_columns_and_slopes_of_differences_need_no_loop_that_is_not_named() -> None:
    """Also of read-only rows and centers, which another version would be compiled for in the middle of the work."""
    loops, kernel = loops_in(kernel_loops, *kernel_loops.SIGNATURES), kernel_named("product-laplace")
    named = {(loop.function, loop.types) for loop in loops}
    for dtype in (np.float32, np.float64):
        X, weights = np.random.default_rng(0).normal(size=(9, 3)).astype(dtype), np.ones((9, 2))
        for _ in ("writable", "read-only"):
            kernel.typical_sigma2(X)
            for stored in (np.float32, np.float64):
                kernel(X, 2.0, dtype).block(X, out_dtype=stored)
            kernel(X, 1.0, dtype).slope_sums(X, weights, DIAGONAL, weights[:, 0].copy())
            X.flags.writeable = weights.flags.writeable = False
    for function in (kernel_loops.direct_distances, kernel_loops.gaussian_float32, kernel_loops.gaussian_float64):
        assert {(function, types) for types in function.overloads} <= named
    assert {(kernel_loops.add_squared_slopes, types) for types in kernel_loops.add_squared_slopes.overloads} <= named


def test_waiting_for_another_process_ends_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def stop() -> None:
        raise StoppedError("stopped")

    loaded: list[Loop] = []
    monkeypatch.setattr(Loop, "load", lambda loop: loaded.append(loop))
    loop = Loop(None, ())
    with (tmp_path / "compiling.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoppedError):
            preparation.compile_loops([loop], stop)
        monkeypatch.setattr(preparation, "COMPILER_SECONDS", 0.0)
        assert not loaded
        preparation.compile_loops([loop])
        assert loaded == [loop], "it waits for a process that is suspended no longer than that"
    preparation.compile_loops([loop])
    assert loaded == [loop, loop]


LOADING = """import os, resource
from pipeline.kernels import jit, kernel_loops
resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["LARGEST_FILE"]), resource.RLIM_INFINITY))
loop, = jit.loops_in(kernel_loops, "add_lower_tile"); loop.load()
print(loop.function.signatures == [loop.types], loop._marker().exists())"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("spoilt", "problem", "largest_file"),
    [
        ("a full disk", "is not kept beyond this process", 0),
        ("a disk that fills up", "is not kept beyond this process", 10_000),  # the index fits, the code does not
        ("an index that cannot be read", "is not kept beyond this process", 10**6),
        ("an empty index", "is damaged, and is made again", 10**6),
        ("code that is cut off", "is damaged, and is made again", 10**6),
    ],
)
def test_a_loop_that_cannot_be_kept_or_read_is_compiled_with_a_warning(
    tmp_path: Path, spoilt: str, problem: str, largest_file: int
) -> None:
    def load(largest_file: int) -> tuple[str, str]:
        done = told(LOADING, NUMBA_CACHE_DIR=str(tmp_path), LARGEST_FILE=str(largest_file))
        return done.stdout, done.stderr

    files = list[Path]()
    if largest_file == 10**6:
        assert load(largest_file) == ("True True\n", "")
        files += tmp_path.rglob("*.nbc" if spoilt.startswith("code") else "*.nbi")
    for file in files:
        content = b"" if "empty" in spoilt else file.read_bytes()[:1000]
        file.unlink()
        file.mkdir() if "cannot be read" in spoilt else file.write_bytes(content)
    output, warning = load(largest_file)
    assert output == f"True {largest_file == 10**6}\n"
    assert warning.startswith("warning: compiled code ")
    assert (problem in warning, str(tmp_path) in warning, warning.count("\n")) == (True, True, 1)
    for file in files:
        file.rmdir() if file.is_dir() else None
    load(10**6)
    assert load(10**6) == ("True True\n", ""), "kept again"


@pytest.mark.parametrize("words", [["compiling 2 loops, once on this machine"], []])
def test_a_fit_that_nobody_watches_tells_of_compiling_once_it_takes_long(
    words: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preparation, "SILENT_SECONDS", 0.01 if words else 60.0)
    monkeypatch.setattr(Loop, "load", lambda loop: wait_until(lambda: caplog.messages == words, 30))
    slow = Loop(None, ())
    preparation.compile_told([slow, slow], None)
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    wait_until(lambda: not any(timer.is_alive() for timer in timers), 30)
    assert caplog.messages == words
    lines: list[str] = []
    preparation.compile_told([slow, slow], lines.append)
    assert lines[0] == "compiling 2 loops, once on this machine"
    assert lines[1].startswith("compiled in ")
    assert caplog.messages == words, "told once"
    preparation.compile_told([], lines.append)
    assert len(lines) == 2


COUNTED = """
import sys, pipeline
from numba.core import event
told = event.RecordingListener()
event.register("numba:compile", told)
from pipeline.train import main
code = main(sys.argv[1:])
print(len(told.buffer) // 2, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.ci
def test_a_fresh_checkout_compiles_before_the_work_and_later_runs_nothing(tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PATH": "", "PYTHONPATH": str(ROOT)}
    (tmp_path / "numba").mkdir()
    words = ["digits", "--centers", "30", "--penalty", "1", "--features-dir", str(tmp_path / "features"), "--run-dir"]
    first = python("-c", COUNTED, *words, tmp_path / "first", env=environment)
    assert first.returncode == 0, first.stderr
    assert "compiling 11 loops, once on this machine" in first.stderr
    report = report_of(tmp_path / "first")
    assert report["stages"]["compile"]["items"] == 11
    records = [json.loads(line) for line in (tmp_path / "first" / "log.jsonl").read_text().splitlines()]
    stages = [one["stage"] for one in records if one["event"] == "stage" and one["status"] == "started"]
    assert stages[:2] == ["compile", "features"]
    again = python("-c", COUNTED, *words, tmp_path / "again", env=environment)
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines()[-1] == "0", "what was compiled is what is used"
    assert "compiling" not in again.stderr
    assert "compile" not in report_of(tmp_path / "again")["stages"]
