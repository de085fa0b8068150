"""Compiled loops: how they are compiled, for which types, and whether a machine has them already.

numba keeps them in NUMBA_CACHE_DIR (see `pipeline`). A file of loops ends in SIGNATURES, the types for which each loop
is compiled that Python calls; called with others, it is compiled again in the middle of the work. numba does not tell
what its cache has: beside each loop that was compiled ahead lies an empty file that says so. Where the folder takes
nothing, or is damaged, loops are compiled again.
"""

import hashlib
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import llvmlite.binding
import numba
import numpy as np
from numba.core.caching import FunctionCache

from pipeline.errors import PipelineError

# Without the interpreter lock, since tasks run beside each other in threads; kept for other processes.
compiled = partial(numba.njit, cache=True, nogil=True)
_unkept = set[Callable[..., Any]]()  # loops that numba could not write to its folder


@contextmanager
def _doing_without(files: Any) -> Iterator[None]:
    """Go on where numba cannot read or write the files of a loop of ours: it compiles what it got nothing of."""
    try:
        yield
    except Exception as error:  # to unpickle what is damaged raises anything
        function, folder = files._py_func, Path(files.cache_path).parent
        is_ours = function.__module__.startswith(("pipeline.", "features."))
        if isinstance(error, PipelineError | MemoryError) or not is_ours:
            raise
        if isinstance(error, OSError):
            _unkept.add(function)
            _warn(
                f"compiled code is not kept beyond this process: {folder}: {error.strerror}; free some space, or set "
                "NUMBA_CACHE_DIR"
            )
            return
        _warn(f"compiled code in {folder} is damaged, and is made again")
        with suppress(OSError):
            files.flush()


@cache
def _warn(message: str) -> None:
    """Warn once, in the leading process alone: its workers have the same folder."""
    if multiprocessing.parent_process() is None:
        logging.getLogger("pipeline").warning("warning: %s", message)


# In the place of numba's own guard, which is for spurious errors of Windows.
FunctionCache._guard_against_spurious_io_errors = _doing_without  # type: ignore[assignment, method-assign]


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a plain read-only view: one compiled version serves arrays and memory maps alike."""
    view = np.asarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


class Loop(NamedTuple):
    """A loop, as numba's dispatcher (a plain function where NUMBA_DISABLE_JIT is set), and the types it is for."""

    function: Any
    types: tuple[Any, ...]

    @property
    def is_kept(self) -> bool:
        """Whether this process has it, or numba's cache, for this processor and as its source is now."""
        if not hasattr(self.function, "signatures"):
            return True
        return self.types in self.function.signatures or self._marker().exists()

    def load(self) -> None:
        """Load the loop, or compile it where it is not kept."""
        if hasattr(self.function, "signatures"):
            self.function.compile(self.types)
            if self.function.py_func not in _unkept:
                with suppress(OSError):
                    self._marker().touch()

    def _marker(self) -> Path:
        """Return the file that says that numba has it: a name for all that numba compiles it anew for."""
        source = Path(self.function.py_func.__code__.co_filename).stat()
        features = llvmlite.binding.get_host_cpu_features().flatten()
        machine = sys.implementation.cache_tag, numba.__version__, llvmlite.binding.get_host_cpu_name(), features
        made_for = repr((self.types, source.st_mtime_ns, source.st_size, *machine))
        digest = hashlib.sha256(made_for.encode()).hexdigest()[:16]
        return Path(self.function.stats.cache_path) / f"{self.function.__name__}-{digest}.compiled"


def loops_in(module: ModuleType, *names: str) -> list[Loop]:
    """Return the loops of a file of some names, once for each of their signatures."""
    return [Loop(getattr(module, name), types) for name in names for types in module.SIGNATURES[name]]
