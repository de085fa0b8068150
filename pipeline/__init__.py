"""Training of sparse, certified kernel machines: columns, statistics, solvers, and the run itself.

The import checks that the package can work here, and says where numba keeps compiled loops.
"""

import errno
import importlib.util
import logging
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

__version__ = "1.0.0"
USAGE = 2  # `pipeline.errors` has the same exit code.
COMPILED_BYTES = 2**21  # More than the compiled loops of a run take.


def check_own_packages() -> None:
    """Raise ImportError where the package cannot work here; end a command with that line and 2."""
    if sys.platform == "win32":
        _refuse("slkl does not run on Windows, whose locks and signals are others; start it in WSL", "pipeline")
    for name in ("features", "storage"):
        spec = sys.modules[name].__spec__ if name in sys.modules else importlib.util.find_spec(name)
        ours = Path(__file__).parents[1] / name
        if spec is None or not spec.origin or os.path.realpath(spec.origin) == os.path.realpath(ours / "__init__.py"):
            continue  # where there is none, the import itself says so best
        file = Path(spec.origin)
        theirs = file.parent if file.name == "__init__.py" else file
        advice = "rename it, take its folder out of PYTHONPATH, start from another one, or use the command slkl"
        _refuse(f"{theirs} is imported instead of slkl's own package {name} ({ours}); {advice}", name)


def _refuse(line: str, name: str) -> NoReturn:
    if sys.argv[:1] == ["-m"] or Path(sys.argv[0]).stem == "slkl":  # while Python looks for the module of a command
        print(f"error: {line}", file=sys.stderr)
        raise SystemExit(USAGE)
    raise ImportError(line, name=name)


def keep_compiled_code() -> None:
    """Have numba keep compiled loops in a folder of this user alone: to load such code is to run it.

    NUMBA_CACHE_DIR is set here since numba reads it when it is imported; the user's own setting stays, unless nothing
    can be written there.
    """
    if not os.environ.get("NUMBA_NUM_THREADS", "1").strip("0").isdecimal():
        del os.environ["NUMBA_NUM_THREADS"]  # numba's import fails over it, and no loop here is for several threads
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named == os.devnull:  # as a process that started this one has set it, below
        return
    try:
        folder = Path(named or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
        folder = folder if named else folder / "slkl" / "numba"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = "" if named else _openness(folder)
        if not problem:
            _fill(folder / f".space-{os.getpid()}")
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        problem = f"set NUMBA_CACHE_DIR ({error})"
    if problem:
        import atexit  # slow to import, and hardly ever needed
        import shutil
        import tempfile

        logging.getLogger(__name__).warning("warning: compiled code is not kept beyond this process; %s", problem)
        folder = Path(os.devnull)  # in which numba keeps nothing
        with suppress(OSError):  # no folder for temporary files either: most commands compile nothing
            made = Path(tempfile.mkdtemp(prefix="slkl-compiled-"))
            atexit.register(shutil.rmtree, made, ignore_errors=True)
            _fill(made / "space")
            folder = made
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


def _fill(path: Path) -> None:
    """Write and remove a file as large as compiled loops. Raises OSError where there is no room, as numba would."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if os.write(descriptor, bytes(COMPILED_BYTES)) < COMPILED_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path.parent))
    finally:
        os.close(descriptor)
        path.unlink()


def _openness(folder: Path) -> str:
    """Return why others could put code into a folder, and what to do; empty where they cannot."""
    status, advice = folder.lstat(), "set NUMBA_CACHE_DIR"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is a link; {advice}"
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to user {status.st_uid}; {advice}"
    return f"{folder} is open to others: chmod 700 it, or {advice}" if status.st_mode & 0o077 else ""


check_own_packages()
keep_compiled_code()
