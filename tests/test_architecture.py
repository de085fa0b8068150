"""The floors of the house: imports point downwards, no circle, and each outside library has its one place.

Docstrings cite the equations of mathematics.md, in one format.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pipeline import __main__ as console
from runs import ROOT, python

PACKAGES = ("pipeline", "features", "storage")
COMMANDS = ["__main__", *(name.replace("-", "_") for name in console.COMMANDS)]

# From the ground up. A room imports from the floors below it and from itself, never from a neighbour.
FLOORS = (
    ("storage", "features", "pipeline", "pipeline.errors"),
    ("pipeline.kernels", "pipeline.config"),
    ("pipeline.solvers", "pipeline.runtime"),
    ("pipeline.datasets", "pipeline.work"),
    ("pipeline.prediction",),
    ("pipeline.fit",),
    ("pipeline.plan", "pipeline.reporting", "pipeline.estimators"),
    ("pipeline.session",),
    tuple(f"pipeline.{command}" for command in COMMANDS),
)
MATHEMATICS = ("pipeline.kernels", "pipeline.solvers")
FOREIGN_TO_MATHEMATICS = ("features.", "storage.", "pipeline.config.")  # not even through others
PATHS_AND_LOGS = {"os", "pathlib", "logging"}
OWN_PLACE = {  # an outside library: the only files that may import it
    "dask": ("pipeline/runtime/dask_executor.py",),
    "pyarrow": (
        "features/input_files.py",
        *(f"features/tables/{name}.py" for name in ("readers", "cells", "learning", "table_source")),
        "storage/output_files.py",
    ),
    "distributed": ("pipeline/runtime/dask_executor.py",),
    "zarr": (),  # Our stores are written and read without it.
}
FORBIDDEN = {"pickle", "joblib", "shelve", "marshal", "cloudpickle"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def room_of(module: str) -> str:
    package, *inside = module.split(".")
    return f"pipeline.{inside[0]}" if package == "pipeline" and inside else package


def floor_of(module: str) -> int:
    return next(height for height, rooms in enumerate(FLOORS) if room_of(module) in rooms)


def names_in(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that an import names: of `from a import b` a.b where that is one of our modules, else a."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "relative import"
    whole = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if name in MODULES else str(node.module) for name in whole]


@cache
def imports(module: str) -> frozenset[str]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return frozenset(name for node in nodes for name in names_in(node))


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


def test_every_room_has_a_floor():
    rooms = {room_of(module) for module in MODULES}
    assert rooms == {room for floor in FLOORS for room in floor}
    assert len(FLOORS) <= 9


def test_imports_point_downwards():
    pairs = {(module, name) for module in MODULES for name in imports(module) & MODULES.keys()}
    between = {(module, name) for module, name in pairs if room_of(module) != room_of(name)}
    assert len(between) > 100
    assert not [f"{module} imports {name}" for module, name in between if floor_of(name) >= floor_of(module)]


def test_no_circle():
    assert not [module for module in MODULES if module in reached(module)]


def test_mathematics_sees_arrays_only():
    modules = [module for module in MODULES if room_of(module) in MATHEMATICS]
    assert len(modules) > 15
    for module in modules:
        seen = [name for name in reached(module) if f"{name}.".startswith(FOREIGN_TO_MATHEMATICS)]
        assert not seen, f"{module} reaches {seen}"
        assert module == "pipeline.kernels.jit" or not imports(module) & PATHS_AND_LOGS, module


def test_outside_libraries_have_their_place():
    for module, path in MODULES.items():
        roots = {name.split(".")[0] for name in imports(module)}
        for library, places in OWN_PLACE.items():
            assert library not in roots or path.relative_to(ROOT).as_posix() in places, f"{module} imports {library}"
        assert not roots & FORBIDDEN, f"{module} imports {roots & FORBIDDEN}"


def test_no_name_at_two_levels():
    stems: dict[str, str] = {}
    for module in MODULES:
        stem = module.rpartition(".")[2]
        assert stem == "errors" or stem not in stems, f"{module} and {stems[stem]}"
        stems[stem] = module


def test_no_file_is_long():
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert not {module: n for module, n in lengths.items() if n > 700}


def test_the_help_of_every_command_imports_no_library_of_numbers():
    code = """
import runpy, sys
for command in sys.argv[1:]:
    for name in [name for name in sys.modules if name.startswith(("pipeline", "features", "storage"))]:
        del sys.modules[name]
    sys.argv = [command, "--help"]
    try:
        runpy.run_module(f"pipeline.{command}", run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code
    slow = {"numpy", "numba", "zarr", "dask", "sklearn", "pyarrow"} & set(sys.modules)
    print("ended", command, code or 0, slow or "-")
"""
    done = python("-c", code, *COMMANDS)
    assert (done.returncode, done.stderr) == (0, "")
    ended = [line for line in done.stdout.splitlines() if line.startswith("ended")]
    assert ended == [f"ended {command} 0 -" for command in COMMANDS]
    assert done.stdout.count("usage: ") == len(COMMANDS)
    assert done.stdout.count("Exit codes: ") == len(COMMANDS) - 1


def test_the_estimators_import_what_computes_with_the_first_fit():
    code = """
import sys
import pipeline.estimators
from sklearn.utils.fixes import pd  # which scikit-learn imports where it is there, and pyarrow with it
late = {"numba", "zarr", "dask", "pipeline.fit", "pipeline.kernels"} | (set() if pd else {"pyarrow"})
print(sorted(late & set(sys.modules)))
machine = pipeline.estimators.SLKLRegressor(n_centers=2, sigma2=1.0, feature_scale=None)
machine.fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])
print(sorted({"numba", "pipeline.fit"} & set(sys.modules)))
"""
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[]", "['numba', 'pipeline.fit']"]


EQUATIONS = ROOT / "pipeline" / "solvers" / "mathematics.md"
CITATION = re.compile(r"mathematics\.md, (?:eq\. (\d+)|eqs\. (\d+(?:, \d+)* and \d+))(?!\d)")
STEPS = {12, 14, 16, 17, 62}  # equations on the way to others, which no function computes


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstring, on one line, of a module and of every class and function in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield " ".join((ast.get_docstring(node) or "").split())


@cache
def numbered() -> list[int]:
    """The numbers at the ends of the lines of formulas, as they come."""
    formulas = re.findall(r"^```\n(.*?)^```$", EQUATIONS.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [int(number) for block in formulas for number in re.findall(r" \((\d+)\)$", block, flags=re.MULTILINE)]


def test_every_equation_has_a_number_of_its_own_and_references_within_the_page_exist():
    assert len(set(numbered())) == len(numbered())
    referred = {int(number) for number in re.findall(r"\((\d+)\)", EQUATIONS.read_text(encoding="utf-8"))}
    assert referred <= set(numbered())


def test_every_equation_is_cited_where_it_is_computed():
    texts = " ".join(text for source in MODULES.values() for text in docstrings(source))
    cited = {int(number) for match in CITATION.finditer(texts) for number in re.findall(r"\d+", match[0])}
    assert cited == set(numbered()) - STEPS
