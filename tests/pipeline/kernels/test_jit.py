"""Where compiled loops are kept, and that compiling is told."""

import itertools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

import pipeline
from pipeline.runtime.progress import COMPILING
from runs import ROOT, python, report_of

LOOPS = (
    "import features.descriptors as a, pipeline.kernels.kernel_loops as b;"
    "import pipeline.solvers.solver_loops as c;"
    "print(*{Path(f.stats.cache_path).parent for f in (a.sphog_rows, b.gaussian_float32, c.sweep)});"
)


def told(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | variables
    return python("-c", f"import pipeline, sys; from pathlib import Path; {code}", env=environment, check=True)


def test_the_loops_of_both_packages_are_kept_in_a_private_folder(tmp_path):
    done = told(LOOPS, XDG_CACHE_HOME=str(tmp_path))
    folder = tmp_path / "slkl" / "numba"
    assert (done.stdout, done.stderr) == (f"{folder}\n", "")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert told(LOOPS, HOME=str(tmp_path), XDG_CACHE_HOME="").stdout == f"{tmp_path / '.cache' / 'slkl' / 'numba'}\n"


# How the folder is made, and words of the warning.
SPOILT = {
    "open to others": ("mkdir -m 770", "chmod 700"),
    "of another owner": ("mkdir -m 700", "belongs to user"),
    "a link": ("ln -s .", "is a link"),
    "a file": ("touch", "File exists"),
    "named, a file": ("touch", "File exists"),
    "named, closed": ("mkdir", "/proc/closed"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_folder_that_is_not_private_or_takes_nothing_is_done_without(tmp_path, spoilt, monkeypatch, caplog):
    folder, (made, words) = tmp_path / "slkl" / "numba", SPOILT[spoilt]
    folder.parent.mkdir()
    subprocess.run([*made.split(), folder], check=True)
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
    assert words in warning
    monkeypatch.setenv("NUMBA_CACHE_DIR", named.get(spoilt, ""))
    monkeypatch.setattr(tempfile, "tempdir", "/proc/closed")
    pipeline.keep_compiled_code()
    assert os.environ["NUMBA_CACHE_DIR"] == os.devnull, "never the folder that others can write to"


@pytest.mark.parametrize("largest_file", [0, 10**6])
def test_a_folder_without_room_is_done_without(tmp_path: Path, largest_file: int) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file}, -1)); "
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = python("-c", f"{limited} import pipeline, os; print(os.environ['NUMBA_CACHE_DIR'])", env=environment)
    assert done.stdout == f"{os.devnull}\n"
    assert done.stderr.startswith("warning: compiled code is not kept beyond this process")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
def test_an_estimator_tells_of_compiling_and_heals_what_is_cut_off(tmp_path):
    code = (
        "import numpy as np; from pipeline.estimators import SLKLRegressor; X = np.random.default_rng(0).random(60); "
    )
    code += "SLKLRegressor(20, penalty=1.0).fit(X[:, None], X)"

    def lines() -> str:
        return told(code, NUMBA_CACHE_DIR=str(tmp_path)).stderr

    assert (lines(), lines()) == (f"{COMPILING}\n", "")
    for suffix, length in itertools.product(("nbi", "nbc"), (0, 100)):
        for file in tmp_path.rglob(f"*.{suffix}"):
            file.write_bytes(file.read_bytes()[:length])
        assert (lines(), lines()) == (f"{COMPILING}\n", "")


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
def test_a_fresh_checkout_compiles_and_later_runs_nothing(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PATH": "", "PYTHONPATH": str(ROOT)}
    (tmp_path / "numba").mkdir()
    words = ["digits", "--centers", "30", "--penalty", "1", "--features-dir", str(tmp_path / "features"), "--run-dir"]
    first = python("-c", COUNTED, *words, tmp_path / "first", env=environment)
    assert first.returncode == 0, first.stderr
    assert COMPILING in first.stderr
    assert int(first.stderr.splitlines()[-1]) > 10
    assert report_of(tmp_path / "first")["stages"]["compile"]["wall_seconds"] > 1
    again = python("-c", COUNTED, *words, tmp_path / "again", env=environment)
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines()[-1] == "0", "what was compiled is what is used"
    assert "compiling" not in again.stderr
    assert "compile" not in report_of(tmp_path / "again")["stages"]
