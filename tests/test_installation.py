"""Installed with pip into an environment of its own, and used in a folder that knows no checkout."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import yaml

from commands import IMAGES
from pipeline import __version__
from runs import ROOT

RUN = "runs/digits"
COMMANDS = (
    f"train digits --centers 60 --run-dir {RUN}",
    f"train digits --run-dir {RUN} --resume auto",
    f"predict {RUN} digits --out labels.csv",
    f"evaluate {RUN} --json",
    f"report {RUN}",
    f"status {RUN}",
    "train digits --print-config",
    "--version",
)


def done(command: list[str | Path], folder: Path) -> str:
    """Run a command in a folder, as someone who has no checkout, nor data; return what it printed."""
    gone = ("PYTHONPATH", "SLKL_DATA_DIR", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "PIPX_HOME": str(folder / "pipx")}
    ended = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{command}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip builds of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    asked = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder / "download", "hatchling"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("no package index can be reached, to install from")
    done([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], folder)
    return next(folder.glob("*.whl"))


def installed(wheel: Path, folder: Path, *options: str) -> Path:
    """Return the Python of a fresh environment that has the project."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    done([python, "-m", "pip", "install", "-q", *options, wheel], folder)
    where = done([python, "-c", "import pipeline; print(pipeline.__file__)"], folder)
    assert str(folder / "venv") in where
    return python


def test_every_file_that_names_the_version_names_the_same():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version == __version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest.groups() == (version, citation["date-released"])


@pytest.mark.ci
def test_the_wheel_works_where_there_is_no_checkout(wheel, finished_run, tmp_path):
    """With the libraries of these tests, beside which it is installed."""
    files = [path for package in ("pipeline", "features", "storage") for path in (ROOT / package).rglob("*.*")]
    expected = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    expected.add("pipeline/config/mnist.toml")  # in the checkout, where people look for it, in jobs
    assert {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} == expected
    python = installed(wheel, tmp_path, "--no-deps")
    (site,) = tmp_path.glob("venv/lib/*/site-packages")
    (site / "libraries.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    slkl = python.with_name("slkl")
    for command in (*COMMANDS[-2:], f"predict {finished_run(*IMAGES)} digits --out labels.csv"):
        done([slkl, *command.split()], tmp_path)
    assert (tmp_path / "labels.csv").read_text().count("\n") == 450
    assert "features.deskew = 1.0  # mnist.toml" in done([slkl, "train", "mnist", "--print-config"], tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_command_works_where_there_is_no_checkout(wheel, tmp_path):
    python = installed(wheel, tmp_path)
    slkl = python.with_name("slkl")
    for command in COMMANDS:
        done([slkl, *command.split()], tmp_path)
    code = f"from pipeline import train; print(train('digits', run_dir={RUN!r}, resume='require').report['n_test'])"
    assert done([python, "-c", code], tmp_path).splitlines()[-1] == "449"
    assert (tmp_path / "labels.csv").read_text().count("\n") == 450
    assert (tmp_path / RUN / "report.html").exists()
