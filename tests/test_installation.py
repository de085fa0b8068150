"""Installed with pip into an environment of its own, and used in a folder that knows no checkout."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from runs import ROOT

NAMED_RUNS = sorted(path.stem for path in (ROOT / "jobs").glob("*.toml"))
RUN = "runs/digits"
COMMANDS = (
    f"train digits --centers 60 --run-dir {RUN}",
    f"train digits --run-dir {RUN} --resume auto",
    f"predict {RUN} digits --out labels.csv",
    f"evaluate {RUN} --json",
    f"resize {RUN} --size 20 --out small",
    "predict small digits --out small.npz",
    f"report {RUN}",
    f"status {RUN}",
    f"verify {RUN}",
    "doctor",
    "data list",
    "feature-stores list",
    "train --print-schema",
    "--version",
)


def outside(folder: Path) -> dict[str, str]:
    """The environment of someone who has no checkout, nor data."""
    gone = ("PYTHONPATH", "SLKL_DATA_DIR", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    return kept | {"XDG_CACHE_HOME": str(folder / "cache"), "PIPX_HOME": str(folder / "pipx")}


def done(command: list[str | Path], folder: Path) -> str:
    """Run a command in a folder; return what it printed."""
    ended = subprocess.run(
        command, cwd=folder, env=outside(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{command}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    return ended.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that has this project and what it asks for."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    asked = [python, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "hatchling"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("no package index can be reached, to install from")
    done([python, "-m", "pip", "install", "-q", str(ROOT)], folder)
    return python


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_command_works_where_there_is_no_checkout(python: Path, tmp_path: Path) -> None:
    where = done([python, "-c", "import pipeline; print(pipeline.__file__)"], tmp_path)
    assert str(python.parents[1]) in where
    slkl = python.with_name("slkl")
    for command in COMMANDS:
        done([slkl, *command.split()], tmp_path)
    for name in NAMED_RUNS:
        assert f"# {name}.toml" in done([slkl, "train", name, "--print-config"], tmp_path)
    code = f"from pipeline import train; print(train('digits', run_dir={RUN!r}, resume='require').report['n_test'])"
    assert done([python, "-c", code], tmp_path).splitlines()[-1] == "449"
    assert (tmp_path / "labels.csv").read_text().count("\n") == 450
    assert (tmp_path / RUN / "report.html").exists()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("pipx") is None, reason="pipx is not installed")
def test_pipx_installs_the_command(tmp_path: Path) -> None:
    done(["pipx", "install", "--python", sys.executable, str(ROOT)], tmp_path)
    slkl = tmp_path / "pipx" / "venvs" / "slkl" / "bin" / "slkl"
    done([slkl, "train", "digits", "--centers", "60", "--run-dir", RUN, "-q"], tmp_path)
    done([slkl, "status", RUN], tmp_path)
