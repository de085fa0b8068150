"""Imports point one way, and each outside library has its one place."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("pipeline", "features", "storage")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_architecture(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path)}
    if package_of(path) != "pipeline":
        assert not roots & (set(PACKAGES) - {package_of(path)})
    if path.name != "executors.py":
        assert not roots & {"dask", "distributed"}
    if package_of(path) != "storage":
        assert "zarr" not in roots
    assert not roots & {"pickle", "joblib", "shelve", "marshal", "cloudpickle"}


MATHEMATICS = [
    *(
        ROOT / "pipeline" / f"{name}.py"
        for name in ("columns", "columns_numba", "kernels", "widths", "blas", "statistics", "model")
    ),
    *(ROOT / "pipeline" / "solvers").glob("*.py"),
]


@pytest.mark.parametrize("path", MATHEMATICS, ids=lambda path: path.stem)
def test_mathematics_sees_no_configuration_path_or_log(path: Path) -> None:
    names = set(imported(path))
    assert not names & {"pathlib", "logging", "os", "pipeline.config", "pipeline.events"}
    assert not any(name.split(".")[0] == "storage" for name in names)


def test_no_file_is_long() -> None:
    long = {path.name: n for path in SOURCES if (n := len(path.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long


def test_help_imports_no_numpy() -> None:
    code = (
        "import sys, runpy\n"
        "sys.argv = ['train', '--help']\n"
        "try: runpy.run_module('pipeline.train', run_name='__main__')\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--penalty" in done.stdout
