"""Compiled loops: numba keeps them in NUMBA_CACHE_DIR (see `pipeline`), and compiles what it does not have there.

A loop is compiled for the types that it is called with. `warm_up` has that done before the work.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import event

# Without the interpreter lock, since tasks run beside each other in threads; kept for other processes.
compiled = partial(numba.njit, cache=True, nogil=True)
inner = partial(numba.njit, nogil=True)  # Loops that other loops call are kept with them.


OUR_FILES = ("kernel_loops.", "solver_loops.", "soft_hog.", "sphog.", "deskew.", "deformed_copies.")  # of loops


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a plain read-only view: one compiled version serves arrays and memory maps alike."""
    view = np.asarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


def is_kept(loop: Any) -> bool:
    """Return whether numba keeps a loop of this source, whose sha256 is in its index: a run then compiles few."""
    source = Path(loop.py_func.__code__.co_filename)
    digest = hashlib.sha256(source.read_bytes()).digest()
    indexes = Path(loop.stats.cache_path).glob(f"{source.stem}.{loop.py_func.__name__}-*.nbi")
    return any(digest in index.read_bytes() for index in indexes)


class _Compilations(event.Listener):
    """Counts the loops that numba compiles, and calls `tell` before the first."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self.count, self._tell = 0, tell

    def on_start(self, event: object) -> None:
        if self.count == 0:
            self._tell()
        self.count += 1

    def on_end(self, event: object) -> None:
        pass


def warm_up(steps: Iterable[Callable[[], object]], tell: Callable[[], object]) -> int:
    """Call steps, which call compiled loops, so that later calls compile nothing; return how many were compiled.

    `tell` is called before the first is compiled. Where what NUMBA_CACHE_DIR has is damaged, its index is removed, and
    loops are compiled again.
    """
    compilations = _Compilations(tell)
    with event.install_listener("numba:compile", compilations):
        for step in steps:
            _call(step)
    return compilations.count


def _call(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception:  # Code that is damaged raises whatever it likes while it is read.
        for index in Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbi"):
            if index.name.startswith(OUR_FILES):
                index.unlink(missing_ok=True)
        step()
