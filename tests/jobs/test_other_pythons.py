"""Where continuous integration finds the other Pythons on which it tries the main commands."""

import os
import subprocess
import sys
from pathlib import Path

from runs import ROOT

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def found(path: Path, pyenv: Path, *versions: str) -> list[str]:
    environment = {"PATH": f"{path}:{os.environ['PATH']}", "PYENV_ROOT": str(pyenv), "HOME": str(pyenv)}
    command = [str(ROOT / ".ci" / "pythons"), *versions]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_python_is_taken_from_the_path_if_it_runs_and_else_from_pyenv(tmp_path: Path) -> None:
    real, name = f'exec {sys.executable} "$@"', f"python{VERSION}"
    shim = script(tmp_path / "path" / name, "echo not installed >&2; exit 127")
    for patch in (9, 10):
        newest = script(tmp_path / "pyenv" / "versions" / f"{VERSION}.{patch}" / "bin" / "python", real)
    assert found(shim.parent, tmp_path / "pyenv", VERSION, "3.99") == [str(newest)]
    script(tmp_path / "path" / "python3.98", real)
    assert found(shim.parent, tmp_path / "nothing", VERSION, "3.98") == [], "neither runs as what it is called"
    script(shim, real)
    assert found(shim.parent, tmp_path / "pyenv", "3.99", VERSION) == [str(shim)]
