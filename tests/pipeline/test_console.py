"""`slkl COMMAND`: every command under one name, with its own exit codes and words.

A folder of the user's that is called as one of our packages is told in one line, by commands and in Python; another
version of a library than that of a run is told of.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import runs
from pipeline import __version__
from pipeline.__main__ import COMMANDS, main
from pipeline.config.command_line import program
from pipeline.runtime.run_folder import environment, environment_warnings


def test_every_command_is_there(capsys):
    files = {path.stem for path in (runs.ROOT / "pipeline").glob("*.py")}
    assert {name for name in files if not name.startswith("_")} - {"errors", "plan", "session"} == set(COMMANDS)
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in COMMANDS)
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["trian"], ["train.py"], ["stages"]])
def test_what_is_no_command_is_refused(words, capsys):
    assert main(words) == 2
    assert "slkl COMMAND" in capsys.readouterr().err


def test_a_python_without_libraries_says_what_to_type(finished_run, tables, tmp_path):
    run = finished_run("--centers", "20", dataset=tables / "values.npz")
    words = {"train": ["digits"], "predict": [run, tables / "values.npz", "--out", tmp_path / "out.csv"]}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in COMMANDS:
        done = runs.python("-S", "-m", "pipeline", command, *words.get(command, [run]), env=environment)
        if command == "status":  # which needs none
            assert ", finished\n" in done.stdout, done.stderr
            continue
        assert (done.returncode, done.stdout) == (69, "")
        advice = f" is not installed for {sys.executable}: run `make run` once, then `. .venv/bin/activate`"
        assert re.fullmatch(rf"error: \w+{re.escape(advice)}\n", done.stderr), done.stderr


@pytest.mark.parametrize("threads", ["0", "many"])
def test_a_number_of_threads_for_numba_that_is_none_ends_nothing(threads):
    """It is for loops in parallel, of which we have none; numba's import fails over it, or warns."""
    done = runs.python("-Werror", "-c", "import pipeline, numba", env={**os.environ, "NUMBA_NUM_THREADS": threads})
    assert done.returncode == 0, done.stderr


def test_messages_name_the_command_as_it_was_called(monkeypatch):
    assert program("status") == "python -m pipeline.status"
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/slkl", "train"])
    assert program("status") == "slkl status"


WORKERS = """
from pipeline.work.runner import open_executor
if __name__ == "__main__":
    with open_executor("processes", 1, 1, 2**30) as executor:
        print([result.value for result in executor.run(abs, [-5])])
"""


def python_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the checkout on its path, as an installation puts it there."""
    environment = {"PYTHONPATH": str(runs.ROOT), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return runs.python(*arguments, cwd=folder, env=environment)


@pytest.mark.parametrize("theirs", ["features/__init__.py", "storage.py"])
def test_a_package_that_is_shadowed_is_told_in_one_line(tmp_path, theirs):
    file = tmp_path / theirs
    file.parent.mkdir(exist_ok=True)
    shadowing, asked = tmp_path / Path(theirs).parts[0], ("-m", "pipeline.train", "digits", "--print-config")
    assert python_in(tmp_path, *asked).returncode == 0, "a folder without Python in it is none of ours"
    file.touch()
    done = python_in(tmp_path, *asked)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {shadowing} is imported instead of slkl's own package")
    assert str(runs.ROOT / shadowing.stem) in done.stderr
    imported = python_in(tmp_path, "-c", "import pipeline.estimators").stderr
    assert re.search("ImportError: .*take its folder out of PYTHONPATH, start from another one", imported)
    advised = python_in(tmp_path, "-P", *asked)
    assert advised.returncode == 0, advised.stderr


@pytest.mark.ci
def test_the_command_works_beside_packages_of_these_names(tmp_path):
    """Also of one called pipeline, of which nothing of ours can tell where it is imported."""
    slkl, here = tmp_path / "bin" / "slkl", tmp_path / "notebooks"
    slkl.parent.mkdir()
    slkl.write_text(
        "import sys\nfrom pipeline.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    (here / "pipeline").mkdir(parents=True)
    for theirs in ("pipeline/__init__.py", "features.py"):
        (here / theirs).touch()
    assert python_in(here, str(slkl), "train", "digits", "--print-config").returncode == 0
    (workers := slkl.with_name("workers.py")).write_text(WORKERS)
    done = python_in(here, str(workers))
    assert done.stdout == "[5]\n", done.stderr


@pytest.mark.parametrize("started", ["-m", "/bin/slkl", "script.py"])
def test_windows_is_refused_in_one_line(tmp_path, started):
    """As `sys.platform` tells of it: the first thing that is looked at."""
    code = f"import sys; sys.argv, sys.platform = [{started!r}], 'win32'; import pipeline"
    done = python_in(tmp_path, "-c", code)
    *before, last = done.stderr.splitlines()
    assert re.search("does not run on Windows.*WSL", last)
    assert (done.returncode, before == []) == ((1, False) if started == "script.py" else (2, True))


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """An environment as env.json gives it back."""
    return json.loads(json.dumps(environment()))


@pytest.mark.parametrize("name", ["numpy", "scipy", "numba", "BLAS", "the core type of BLAS"])
def test_another_one_is_warned_of_where_it_is_known(stored, name):
    assert stored[name]
    (warning,) = environment_warnings(stored, stored | {name: "0.0.1"})
    assert warning.startswith(f"{name} is 0.0.1 here, the run was started with {stored[name]}")
    assert environment_warnings(stored, stored | {name: None}) == []
    assert environment_warnings(stored | {name: ""}, stored) == []
