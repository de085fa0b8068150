"""A folder of the user's that is called as one of our packages: one line, in commands and in Python."""

import shutil
import subprocess
from pathlib import Path

import pytest

import runs

WORKERS = """
from pipeline.runtime.executors import open_executor
if __name__ == "__main__":
    with open_executor("processes", 1, 1, 2**30) as executor:
        print([result.value for result in executor.run(abs, [-5])])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installation puts on the path."""
    folder = tmp_path_factory.mktemp("installed")
    for package in ("pipeline", "features", "storage"):
        shutil.copytree(runs.ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def python(site: Path | str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return runs.python(*arguments, cwd=folder, env=environment)


@pytest.mark.parametrize("theirs", ["features/__init__.py", "storage.py"])
def test_a_package_that_is_shadowed_is_told_in_one_line(site: Path, tmp_path: Path, theirs: str) -> None:
    file = tmp_path / theirs
    file.parent.mkdir(exist_ok=True)
    file.touch()
    name = Path(theirs).parts[0].removesuffix(".py")
    done = python(site, tmp_path, "-m", "pipeline.train", "digits", "--print-config")
    assert done.returncode == 2
    shadowing = tmp_path / Path(theirs).parts[0]
    assert done.stderr.startswith(f"error: {shadowing} is imported instead of slkl's own package")
    assert str(site / name) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = python(site, tmp_path, "-c", "import pipeline.estimators")
    assert "ImportError: " in done.stderr
    assert "start from another folder" in done.stderr
    assert "the command slkl works here too" in done.stderr
    done = python(f"{tmp_path}:{site}", tmp_path.parent, "-c", "import pipeline.estimators")
    assert f"{tmp_path / Path(theirs).parts[0]} is imported" in done.stderr
    assert "or take its folder out of PYTHONPATH" in done.stderr
    advised = python(site, tmp_path, "-P", "-m", "pipeline.train", "digits", "--print-config")
    assert advised.returncode == 0, advised.stderr


@pytest.mark.ci
def test_the_command_works_beside_packages_of_these_names(site: Path, tmp_path: Path) -> None:
    """Also of one called pipeline, of which nothing of ours can tell where it is imported."""
    slkl, here = tmp_path / "bin" / "slkl", tmp_path / "notebooks"
    slkl.parent.mkdir()
    slkl.write_text(
        "import sys\nfrom pipeline.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    (here / "pipeline").mkdir(parents=True)
    for theirs in ("pipeline/__init__.py", "features.py"):
        (here / theirs).touch()
    assert python(site, here, str(slkl), "train", "digits", "--print-config").returncode == 0
    (workers := slkl.with_name("workers.py")).write_text(WORKERS)
    done = python(site, here, str(workers))
    assert done.stdout == "[5]\n", done.stderr


@pytest.mark.parametrize("started", ["-m", "/bin/slkl", "script.py"])
def test_windows_is_refused_in_one_line(site: Path, tmp_path: Path, started: str) -> None:
    """As `sys.platform` tells of it: the first thing that is looked at."""
    done = python(site, tmp_path, "-c", f"import sys; sys.argv, sys.platform = [{started!r}], 'win32'; import pipeline")
    last = done.stderr.splitlines()[-1]
    assert "does not run on Windows" in last
    assert "WSL" in last
    command = started != "script.py"
    assert (done.returncode, len(done.stderr.splitlines()) == 1) == ((2, True) if command else (1, False))


def test_a_folder_without_python_in_it_is_none_of_ours(site: Path, tmp_path: Path) -> None:
    """As a folder of feature stores, or of data."""
    for name in ("features", "storage"):
        (tmp_path / name).mkdir()
    done = python(site, tmp_path, "-m", "pipeline.train", "digits", "--print-config")
    assert done.returncode == 0, done.stderr
