"""Where compiled loops are kept, for both packages, and what is known of them without numba's inner parts."""

import fcntl
import json
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

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


SPOILT = ["open to others", *(pytest.param(way, marks=pytest.mark.ci) for way in ("a link", "a file in its place"))]


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_folder_that_is_not_private_is_done_without(tmp_path: Path, spoilt: str) -> None:
    folder = tmp_path / "slkl" / "numba"
    folder.parent.mkdir()
    if spoilt == "a file in its place":
        folder.touch()
    elif spoilt == "open to others":
        folder.mkdir()
        folder.chmod(0o770)
    else:
        (tmp_path / "elsewhere").mkdir(0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    done = told(LOOPS, XDG_CACHE_HOME=str(tmp_path))
    fresh = Path(done.stdout.strip())
    assert fresh != folder
    assert not fresh.exists(), "removed at the end of the process"
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("warning: compiled code is not kept beyond this process")
    assert "NUMBA_CACHE_DIR" in warning


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


@pytest.mark.parametrize("name", ["laplace", "product-laplace"])
def test_columns_and_slopes_of_differences_need_no_loop_that_is_not_named(name: str) -> None:
    """Also of read-only rows and centers, which another version would be compiled for in the middle of the work."""
    loops, kernel = loops_in(kernel_loops, *kernel_loops.SIGNATURES), kernel_named(name)
    named = {(loop.function, loop.types) for loop in loops}
    for dtype in (np.float32, np.float64):
        X, weights = np.random.default_rng(0).normal(size=(9, 3)).astype(dtype), np.ones((9, 2))
        for _ in ("writable", "read-only"):
            kernel.typical_sigma2(X)
            for stored in (np.float32, np.float64):
                kernel(X, 2.0, dtype).block(X, out_dtype=stored)
            kernel(X, 1.0, dtype).slope_sums(X, weights, DIAGONAL, weights[:, 0].copy())
            X.flags.writeable = weights.flags.writeable = False
    for function in (kernel_loops.direct_distances, kernel_loops.laplace_float32, kernel_loops.laplace_float64):
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


@pytest.mark.ci
def test_damaged_code_is_told_with_its_folder(tmp_path: Path) -> None:
    """numba's own error names no file; whoever meets it must know what to delete."""
    code = (
        "import numpy as np; from pipeline.kernels.kernel_loops import gaussian_float64 as loop;"
        "from pipeline.runtime.answers import answered;"
        "row = np.ones(1); block = np.ones((1, 1));"
        "print(answered(lambda: loop(block, row, row, 1.0, np.zeros(1, int), block.copy(), 0)))"
    )
    assert told(code, NUMBA_CACHE_DIR=str(tmp_path)).stdout == "0\n"
    indices = list(tmp_path.rglob("*.nbi"))
    assert indices
    for index in indices:
        index.write_bytes(b"")
    done = told(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.stdout == "65\n"
    assert done.stderr.startswith(f"error: compiled code in {tmp_path} is damaged")
    assert done.stderr.count("\n") == 1


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
    assert "compiling 11 loops (once a checkout)" in first.stderr
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
