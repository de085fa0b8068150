"""The floors of the house: imports point downwards, no circle, and each outside library has its one place."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from runs import ROOT, python

PACKAGES = ("pipeline", "features", "storage")

# From the ground up. A room imports from the floors below it and from itself, never from a neighbour.
FLOORS = (
    ("storage", "features", "pipeline", "pipeline.errors"),
    ("pipeline.kernels", "pipeline.config"),
    ("pipeline.solvers", "pipeline.models", "pipeline.runtime"),
    ("pipeline.datasets",),
    ("pipeline.prediction",),
    ("pipeline.stages",),
    ("pipeline.planning", "pipeline.reporting", "pipeline.estimators"),
    tuple(
        f"pipeline.{command}"
        for command in (
            "__main__",
            "data",
            "doctor",
            "evaluate",
            "export",
            "feature_stores",
            "predict",
            "report",
            "resize",
            "status",
            "train",
            "verify",
        )
    ),
)
MATHEMATICS = ("pipeline.kernels", "pipeline.solvers", "pipeline.models")
FOREIGN_TO_MATHEMATICS = ("features", "storage", "pipeline.config")  # not even through others
PATHS_AND_LOGS = {"os", "pathlib", "logging"}
OWN_PLACE = {  # an outside library: the only files that may import it
    "dask": ("pipeline/runtime/dask_clients.py",),
    "pyarrow": ("features/parquet_files.py",),
    "distributed": ("pipeline/runtime/dask_clients.py", "pipeline/runtime/executors.py"),
}
FORBIDDEN = {"pickle", "joblib", "shelve", "marshal", "cloudpickle"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def room_of(module: str) -> str:
    package, *inside = module.removesuffix(".own_packages").split(".")  # a part of pipeline/__init__.py
    return f"pipeline.{inside[0]}" if package == "pipeline" and inside else package


def floor_of(module: str) -> int:
    return next(height for height, rooms in enumerate(FLOORS) if room_of(module) in rooms)


def import_nodes(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield each import and whether it stands inside a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, id(node) in inside


def names_in(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that an import names: of `from a import b` a.b where that is one of our modules, else a."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "relative import"
    whole = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name in MODULES else str(node.module) for name in whole]


@cache
def imports(module: str) -> frozenset[str]:
    return frozenset(name for node, _ in import_nodes(MODULES[module]) for name in names_in(node))


@cache
def reached(module: str) -> frozenset[str]:
    """Return all that a module imports, also through others of ours."""
    waiting, seen = [module], set()
    while waiting:
        for name in imports(waiting.pop()):
            if name not in seen:
                seen.add(name)
                waiting += [name] if name in MODULES else []
    return frozenset(seen)


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(module) for module in MODULES}
    assert rooms == {room for floor in FLOORS for room in floor}
    assert len(FLOORS) <= 8


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module: str) -> None:
    for name in imports(module) & MODULES.keys():
        if room_of(name) != room_of(module):
            assert floor_of(name) < floor_of(module), f"{module} imports {name}, which is not below it"


def test_no_circle() -> None:
    assert not [module for module in MODULES if module in reached(module)]


@pytest.mark.parametrize("module", [module for module in MODULES if room_of(module) in MATHEMATICS])
def test_mathematics_sees_arrays_only(module: str) -> None:
    for name in reached(module):
        assert not any(name == part or name.startswith(f"{part}.") for part in FOREIGN_TO_MATHEMATICS), name
    assert module == "pipeline.kernels.jit" or not imports(module) & PATHS_AND_LOGS


@pytest.mark.parametrize("module", MODULES)
def test_an_import_inside_a_function_says_why(module: str) -> None:
    """By a comment on its line, or above the first of the imports that it stands among."""
    lines = MODULES[module].read_text(encoding="utf-8").splitlines()
    for node, inside in import_nodes(MODULES[module]):
        if inside:
            first = node.lineno - 1
            while not lines[first - 1].strip() or lines[first - 1].strip().startswith(("import ", "from ", ")")):
                first -= 1
            near = lines[first - 1 : node.end_lineno]
            assert any("#" in line for line in near), f"line {node.lineno}: a local import without a comment"


@pytest.mark.parametrize("module", MODULES)
def test_outside_libraries_have_their_place(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(module)}
    path = MODULES[module].relative_to(ROOT).as_posix()
    for library, places in OWN_PLACE.items():
        assert library not in roots or path in places
    assert "zarr" not in roots or room_of(module) == "storage"
    assert not roots & FORBIDDEN


def test_no_name_at_two_levels() -> None:
    stems: dict[str, str] = {}
    for module in MODULES:
        stem = module.rpartition(".")[2]
        assert stem == "errors" or stem not in stems, f"{module} and {stems[stem]}"
        stems[stem] = module


def test_no_file_is_long() -> None:
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert not {module: n for module, n in lengths.items() if n > 400}


@pytest.mark.parametrize("command", FLOORS[-1])
def test_help_imports_no_library_of_numbers(command: str) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{command!r}, '--help']\n"
        f"try: runpy.run_module({command!r}, run_name='__main__')\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert not {'numpy', 'zarr', 'dask', 'sklearn'} & set(sys.modules)"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--" in done.stdout
