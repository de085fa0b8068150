"""Where compiled loops are kept, and that they are compiled before the work."""

import importlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

import numba
import pytest

import pipeline
from pipeline.fit import preparation
from pipeline.kernels.jit import compiled, is_kept
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


LOADING = """import numpy as np
from pipeline.kernels.exact_sums import ExactGram
from pipeline.kernels.jit import warm_up
from pipeline.kernels.kernel_functions import kernel_named
columns = kernel_named("gaussian")(np.ones((2, 2)), 1.0)
steps = [lambda: ExactGram(2, 0, 8.0, 1).add_products(np.ones((8, 2))), lambda: columns.block(np.ones((2, 2)))]
print(warm_up(steps, lambda: print("compiling")) > 0)"""


@pytest.mark.parametrize("largest_file", [0, 10**6])
def test_a_folder_without_room_is_done_without(tmp_path: Path, largest_file: int) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file}, -1)); "
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = python("-c", f"{limited} import pipeline, os; print(os.environ['NUMBA_CACHE_DIR'])", env=environment)
    assert done.stdout == f"{os.devnull}\n"
    assert done.stderr.startswith("warning: compiled code is not kept beyond this process")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_damaged_code_is_compiled_again(tmp_path, suffix):
    def load() -> tuple[str, str]:
        done = told(LOADING, NUMBA_CACHE_DIR=str(tmp_path))
        return done.stdout, done.stderr

    first = load()
    assert first == ("compiling\nTrue\n", "")
    assert load() == ("False\n", "")
    for length in (0, 100):
        for file in tmp_path.rglob(f"*.{suffix}"):
            file.write_bytes(file.read_bytes()[:length])
        assert load() == first
        assert load() == ("False\n", "")


def test_loops_of_another_source_are_not_kept(tmp_path, monkeypatch):
    source = tmp_path / "loops.py"
    source.write_text("def more(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    loop = compiled()(importlib.import_module("loops").more)
    assert not is_kept(loop)
    loop(1)
    os.utime(source, (2**32, 2**32))
    assert is_kept(loop)
    source.write_text("def more(x):\n    return x + 2\n")
    assert not is_kept(loop)


WATCHED = """
import sys
from pathlib import Path
import pipeline
import numpy as np
from numba.core.dispatcher import Dispatcher
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.fit import preparation
from pipeline.train import main

compile, warm_up, phases, late = Dispatcher.compile, preparation.warm_up, ["before"], []

def asked(loop, types):
    if phases[-1] != "warming":
        late.append((loop.py_func.__name__, types, *phases))
    return compile(loop, types)

def warmed(*words):
    phases.append("warming")
    count = warm_up(*words)
    phases.append("warm")
    return count

def train(line):
    words = [*line.format(data=data).split(), "--features-dir", str(run / "features"), "--run-dir", str(run / "run")]
    assert main([*words, "-q"]) in (0, 3)

Dispatcher.compile, preparation.warm_up = asked, warmed
run, data = map(Path, sys.argv[1:])
X = np.random.default_rng(0).random((200, 4))
y, w = np.sin(6 * X[:, 0]), X[:, 1]
"""
CLASSES, VALUES, IMAGES = "{data}/classes.npz --centers 60", "{data}/values.npz --centers 60", "digits --centers 60"
COMMANDS = (
    IMAGES,
    f"{IMAGES} --set centers.working_set=40 --features sphog --penalty 1 --features-dir none --copies 2",
    f"{IMAGES} --kernel product-laplace --penalty 1 --sigma2 median --refit ridge",
    f"{IMAGES} --features soft-hog --penalty 1 --sigma2 1e-3",
    f"{CLASSES} --penalty 1 --schedule paper --max-sweeps 5",
    f"{CLASSES} --set centers.columns=on-demand --penalty 1 --schedule shrinking --set data.weights=w",
    f"{VALUES} --penalty 1 --schedule uniform --max-sweeps 20",
    f"{VALUES} --select greedy:12 --move-centers 4 --sigma2 1e-5",
    f"{VALUES} --penalty auto --scale learned --kernel auto --sigma2 auto --set data.weights=w",
)
FITS = (
    *(f"train({line!r})" for line in COMMANDS),
    "SLKLRegressor(60, penalty=1.0, schedule='shrinking').fit(X.astype('f4', order='F'), y, w).predict(X)",
    "SLKLRegressor(60, kernel='product-laplace', feature_scale='diagonal').fit(X[::2], y[::2]).predict(X)",
    "SLKLClassifier(20, penalty=1.0).fit(np.tile(X[:, :, None], (1, 3, 12)), y > 0).predict(np.ones((1, 12, 12)))",
)


@pytest.mark.ci
@pytest.mark.parametrize("fit", FITS)
def test_a_fit_asks_for_no_loop_that_was_not_compiled_before_it(fit, tmp_path, tables, tmp_path_factory):
    """In a process of its own, since other fits have loops compiled for other types; the folder is empty at first."""
    kept = tmp_path_factory.getbasetemp() / "numba"
    kept.mkdir(exist_ok=True)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(kept)}
    done = python(
        "-c", f"{WATCHED}{fit}\nassert phases[-1] == 'warm' and not late, late", tmp_path, tables, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_a_fit_in_memory_tells_of_compiling_once(caplog):
    loop, lines = numba.njit(lambda x: x + 1), list[str]()
    preparation.compile_told([lambda: loop(1)], lines.append)
    preparation.compile_told([lambda: loop(1)], lines.append)
    assert lines == [COMPILING]
    preparation.compile_told([lambda: loop(1.0)], None)
    assert caplog.messages == [COMPILING]


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
def test_a_fresh_checkout_compiles_before_the_work_and_later_runs_nothing(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PATH": "", "PYTHONPATH": str(ROOT)}
    (tmp_path / "numba").mkdir()
    words = ["digits", "--centers", "30", "--penalty", "1", "--features-dir", str(tmp_path / "features"), "--run-dir"]
    first = python("-c", COUNTED, *words, tmp_path / "first", env=environment)
    assert first.returncode == 0, first.stderr
    assert COMPILING in first.stderr
    assert 10 < report_of(tmp_path / "first")["stages"]["compile"]["items"] == int(first.stderr.splitlines()[-1])
    records = [json.loads(line) for line in (tmp_path / "first" / "log.jsonl").read_text().splitlines()]
    stages = [one["stage"] for one in records if one["event"] == "stage" and one["status"] == "started"]
    assert stages[:2] == ["compile", "features"]
    again = python("-c", COUNTED, *words, tmp_path / "again", env=environment)
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines()[-1] == "0", "what was compiled is what is used"
    assert "compiling" not in again.stderr
    assert "compile" not in report_of(tmp_path / "again")["stages"]
