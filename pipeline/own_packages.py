"""Whether this package can work here: on this system, and with its own `features` and `storage`.

A folder of such a name where Python is started would be imported instead. The doctor looks for one called `pipeline`.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

NAMES = ("features", "storage")
USAGE = 2  # as in `pipeline.errors`


def check() -> None:
    """Raise ImportError where the package cannot work here; end a command with that line and 2."""
    if sys.platform == "win32":
        _refuse("slkl does not run on Windows, whose locks and signals are others; start it in WSL", "pipeline")
    for name in NAMES:
        line = _told(_found(name), name)
        if line:
            _refuse(line, name)


def told_of(folder: Path) -> list[str]:
    """Return a line for each package of a folder that Python, started there, imports instead of one of ours."""
    names = ("pipeline", *NAMES)
    files = [(file, name) for name in names for file in (folder / name / "__init__.py", folder / f"{name}.py")]
    return [line for file, name in files if file.is_file() and (line := _told(file, name))]


def _told(file: Path | None, name: str) -> str:
    """Return what to tell of a file that is imported under the name of one of our packages; empty where it is ours."""
    if file is None or os.path.realpath(file) == os.path.realpath(_ours(name)):
        return ""
    theirs = file.parent if file.name == "__init__.py" else file
    listed = [Path(folder).resolve() for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    elsewhere = "start from another folder, or with python -P; the command slkl works here too"
    advice = "take its folder out of PYTHONPATH" if theirs.resolve().parent in listed else elsewhere
    return f"{theirs} is imported instead of slkl's own package {name} ({_ours(name).parent}); rename it, or {advice}"


def _refuse(line: str, name: str) -> NoReturn:
    if sys.argv[:1] == ["-m"] or Path(sys.argv[0]).stem == "slkl":  # while Python looks for the module of a command
        print(f"error: {line}", file=sys.stderr)
        raise SystemExit(USAGE)
    raise ImportError(line, name=name)


def _ours(name: str) -> Path:
    return Path(__file__).parents[1] / name / "__init__.py"


def _found(name: str) -> Path | None:
    """Return the file that `import name` reads; None where there is none, which the import itself says best."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return Path(loaded.__file__) if loaded.__file__ else None
    spec = importlib.util.find_spec(name)
    return Path(spec.origin) if spec is not None and spec.origin else None
