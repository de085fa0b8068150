"""Training of sparse, certified kernel machines: columns, statistics, solvers, and the run itself."""

import logging
import os
import stat
from pathlib import Path

from pipeline import own_packages

__version__ = "1.0.0"


def keep_compiled_code() -> None:
    """Have numba keep compiled loops in a folder of this user alone: to load such code is to run it.

    NUMBA_CACHE_DIR is set here since numba reads it when it is imported; the user's own setting stays.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        folder = caches.expanduser().absolute() / "slkl" / "numba"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        problem = "" if private else f"{folder} is open to others: chmod 700 it, or set NUMBA_CACHE_DIR"
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        problem = f"set NUMBA_CACHE_DIR ({error})"
    if problem:
        import atexit  # slow to import, and hardly ever needed
        import shutil
        import tempfile

        logging.getLogger(__name__).warning("warning: compiled code is not kept beyond this process; %s", problem)
        folder = Path(tempfile.mkdtemp(prefix="slkl-compiled-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


own_packages.check()
keep_compiled_code()
