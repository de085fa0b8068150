"""How loops are compiled, and when: before the work that needs them, once for all processes of a machine.

numba keeps them in NUMBA_CACHE_DIR (see `pipeline`). A file of loops ends in SIGNATURES, the types for which each loop
is compiled that Python calls; called with others, it is compiled again in the middle of the work.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.core import sigutils

# Without the interpreter lock, since tasks run beside each other in threads; kept for other processes.
compiled = partial(njit, cache=True, nogil=True)
_POLL_SECONDS = 0.05  # between two looks whether another process has ended its compiling
_SILENT_SECONDS = 2.0  # of compiling, before it is told where nobody asked to be told
_WAIT_SECONDS = 60.0  # for another process, which may be suspended; then both compile, which harms nothing


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a plain read-only view: one compiled version serves arrays and memory maps alike."""
    view = np.asarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


class Loop(NamedTuple):
    """A loop, as numba's dispatcher, and the types that it is compiled for."""

    function: Any
    types: tuple[Any, ...]

    def dtype_of(self, argument: str) -> str | None:
        """Return the dtype of the array that is its argument of a name; None where it has none."""
        code = getattr(self.function, "py_func", self.function).__code__
        types = dict(zip(code.co_varnames, self.types, strict=False))
        return str(types[argument].dtype) if argument in types else None

    @property
    def is_kept(self) -> bool:
        """Whether this process or numba's cache has it, for this processor and as its source is now."""
        if not hasattr(self.function, "overloads") or self.types in self.function.overloads:
            return True  # without overloads: NUMBA_DISABLE_JIT is set
        try:
            cache = self.function._cache  # numba has no public way to its index
            return cache._index_key(self.types, self.function.targetctx.codegen()) in cache._cache_file._load_index()
        except AttributeError:  # another version of numba: `compile` loads what is kept
            return False

    def load(self) -> None:
        """Load the loop, or compile it where it is not kept."""
        if hasattr(self.function, "overloads"):
            self.function.compile(self.types)


def loops_in(module: ModuleType, *names: str) -> list[Loop]:
    """Return the loops of a file, or some of them by name, once for each of their signatures."""
    table = {name: module.SIGNATURES[name] for name in names or module.SIGNATURES}
    return [
        Loop(getattr(module, name), tuple(sigutils.normalize_signature(signature)[0]))
        for name, signatures in table.items()
        for signature in ([signatures] if isinstance(signatures, str) else signatures)
    ]


def not_kept(loops: Iterable[Loop]) -> list[Loop]:
    """Return the loops that are still to be compiled."""
    return [loop for loop in loops if not loop.is_kept]


def compile_loops(loops: Iterable[Loop], check: Callable[[], None] = lambda: None) -> None:
    """Compile the loops that are not kept, or wait for and load what another process compiles.

    `check` is called before each loop and many times a second while waiting; what it raises ends it. Takes about half
    a second a loop.
    """
    missing = not_kept(loops)
    if not missing:
        return
    with _alone(check):
        for loop in missing:
            check()
            loop.load()


def compile_told(loops: Iterable[Loop], log: Callable[[str], object] | None) -> None:
    """Compile the loops that are not kept; tell it by `log`, and without one by a logged warning if it takes long."""
    missing = not_kept(loops)
    if not missing:
        return
    words, started = f"compiling {len(missing)} loops, once on this machine", time.perf_counter()
    timer = threading.Timer(_SILENT_SECONDS, logging.getLogger("pipeline").warning, [words])
    timer.daemon = True
    if log is None:
        timer.start()
    else:
        log(words)
    try:
        compile_loops(missing)
    finally:
        timer.cancel()
    if log is not None:
        log(f"compiled in {time.perf_counter() - started:.1f} s")


@contextmanager
def _alone(check: Callable[[], None]) -> Iterator[None]:
    """Hold a lock in the folder of the cache, which dies with the process; without one where there can be none."""
    try:
        descriptor = os.open(Path(os.environ["NUMBA_CACHE_DIR"]) / "compiling.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except (KeyError, OSError):
        descriptor = -1
    until = time.monotonic() + _WAIT_SECONDS
    try:
        while descriptor >= 0 and time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                check()
                time.sleep(_POLL_SECONDS)
            except OSError:  # a file system without locks: all compile, and the last of the same code is kept
                break
        yield
    finally:
        if descriptor >= 0:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor too
            os.close(descriptor)
