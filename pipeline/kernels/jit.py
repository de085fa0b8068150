"""How loops are compiled, and whether they are already: numba keeps them in NUMBA_CACHE_DIR (see `pipeline`)."""

import os
import sys
from functools import partial
from pathlib import Path

from numba import njit

# Without the interpreter lock, since tasks run beside each other in threads; kept for other processes.
compiled = partial(njit, cache=True, nogil=True)


def is_kept(source: Path, function: str = "*") -> bool:
    """Tell whether the cache has code of a function of a source file (of any, where none is named) for this Python.

    It has where numba's index file, "<file>.<function>-<line>.py<version>.nbi", is no older than the source.
    """
    folder = Path(os.environ.get("NUMBA_CACHE_DIR", ""))
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    try:
        indices = folder.glob(f"{source.parent.name}_*/{source.stem}.{function}-*.{python}*.nbi")
        return any(index.stat().st_mtime >= source.stat().st_mtime for index in indices)
    except OSError:  # removed meanwhile
        return False
