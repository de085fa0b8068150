"""Where the compiled loops are kept between processes: a folder that only its user can write.

numba's cache holds pickles and machine code, so to load it is to run it. It goes to a private folder, and its files
carry digests (`compiled_cache_files`): a flipped bit in machine code would give other numbers without a word.
"""

import atexit
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_logger = logging.getLogger(__name__)
_PACKAGES = ("pipeline", "features")


class _BeforeCompiledLoops:
    """A finder that finds nothing: it only learns that a module of compiled loops is about to be imported.

    numba takes half a second to import, so that the cache cannot be set up with the package; and `features`, which has
    such modules too, knows nothing of this package.
    """

    def __init__(self) -> None:
        self._done = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Set up the cache once, before the first such module."""
        if self._done or not name.endswith("_numba") or name.partition(".")[0] not in _PACKAGES:
            return
        self._done = True
        try:
            from pipeline.compiled_cache_files import install
        except AttributeError as error:  # these parts of numba are not its public interface
            warn(f"this version of numba keeps compiled code otherwise ({error}); its own cache is used, unchecked")
            return
        install(private_folder(wanted_folder()))


def guard_imports() -> None:
    """Have the cache set up before the first module of compiled loops is imported. Costs nothing until then."""
    if not any(isinstance(finder, _BeforeCompiledLoops) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeCompiledLoops())


def wanted_folder() -> Path | None:
    """Return the folder of the compiled loops: inside NUMBA_CACHE_DIR, else inside the user's cache folder.

    None where there is neither: a user without a home.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen).absolute() / "slkl"  # the folder itself may be shared with other programs
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return caches.expanduser().absolute() / "slkl" / "compiled"
    except RuntimeError:
        return None


def private_folder(wanted: Path | None) -> Path:
    """Return the folder if it is this user's alone, made where missing; else a fresh one, removed at exit, and warn."""
    problem = "there is no home folder to keep compiled code in"
    if wanted is not None:
        try:
            wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = problem_of(wanted.lstat(), os.geteuid())
        except OSError as error:
            problem = f"it cannot be created ({error.strerror})"
        if not problem:
            return wanted
        problem = f"{wanted} is not used for compiled code: {problem}"
    warn(f"{problem}; the loops are compiled anew in this process, which takes some seconds")
    fresh = Path(tempfile.mkdtemp(prefix="slkl-compiled-"))
    atexit.register(shutil.rmtree, fresh, ignore_errors=True)
    return fresh


def problem_of(found: os.stat_result, user: int) -> str:
    """Return why a folder is not private to a user, and what to do; empty where it is."""
    if not stat.S_ISDIR(found.st_mode):
        return "it is no folder; remove it"
    if found.st_uid != user:
        return f"it belongs to user {found.st_uid}, not to {user}; choose another with NUMBA_CACHE_DIR"
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        return f"others have rights on it (mode {mode:04o}); remove it, or chmod 700 where you trust its content"
    return ""


def warn(message: str) -> None:
    """Tell the user. Not with `warnings`: where those are errors, they would end the run."""
    _logger.warning("warning: %s", message)
