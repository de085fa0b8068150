"""Whether this package can work here: on this system, and with its own `features` and `storage`.

A folder of such a name where Python is started would be imported instead.
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
        file, ours = _found(name), Path(__file__).parents[1] / name
        if file is not None and os.path.realpath(file) != os.path.realpath(ours / "__init__.py"):
            _refuse(_told(file, ours), name)


def _told(file: Path, ours: Path) -> str:
    """Return what to tell of a file that is imported instead of the package in the folder `ours`."""
    theirs = file.parent if file.name == "__init__.py" else file
    listed = [Path(folder).resolve() for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    elsewhere = "start from another folder, or with python -P; the command slkl works here too"
    advice = "take its folder out of PYTHONPATH" if theirs.resolve().parent in listed else elsewhere
    return f"{theirs} is imported instead of slkl's own package {ours.name} ({ours}); rename it, or {advice}"


def _refuse(line: str, name: str) -> NoReturn:
    if sys.argv[:1] == ["-m"] or Path(sys.argv[0]).stem == "slkl":  # while Python looks for the module of a command
        print(f"error: {line}", file=sys.stderr)
        raise SystemExit(USAGE)
    raise ImportError(line, name=name)


def _found(name: str) -> Path | None:
    """Return the file that `import name` reads; None where there is none, which the import itself says best."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return Path(loaded.__file__) if loaded.__file__ else None
    spec = importlib.util.find_spec(name)
    return Path(spec.origin) if spec is not None and spec.origin else None
