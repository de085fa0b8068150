"""Compiled code that runs without the interpreter lock: loops by numba, and routines of BLAS and LAPACK.

numba keeps loops in NUMBA_CACHE_DIR (see `pipeline`), and compiles what it does not have there, for the types that a
loop is called with, when it is called first.

The routines are those that scipy has for Cython, and write in place. `numpy.matmul` copies what is not contiguous and
mirrors KᵀK for every row block (1.5 times slower at M = 1000), `scipy.linalg.blas.dsyrk` holds the lock, and
`numpy.linalg.cholesky` in a compiled loop takes a second to compile.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path

import numba
import numpy as np
from numba.core import event
from numba.extending import get_cython_function_address
from numpy.typing import NDArray

# Without the interpreter lock, since tasks run beside each other in threads; kept for other processes.
compiled = partial(numba.njit, cache=True, nogil=True)
inner = partial(numba.njit, nogil=True)  # Loops that other loops call are kept with them.
OUR_FILES = ("kernel_loops.", "solver_loops.", "descriptors.", "deformed_copies.")  # Loops are in these files.
END = b"."  # numba ends a whole file with this byte.


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a plain read-only view: one compiled version serves arrays and memory maps alike."""
    view = np.asarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


class _Compiling(event.Listener):
    """Enters `around()` while numba compiles a loop, and those that it calls, and calls `tell` before the first."""

    def __init__(self, tell: Callable[[], object], around: Callable[[], AbstractContextManager[object]]) -> None:
        self._tell, self._around = tell, around
        self._told, self._depth, self._inside = False, 0, ExitStack()

    def on_start(self, event: object) -> None:
        if not self._told:
            self._tell()
            self._told = True
        if self._depth == 0:
            self._inside.enter_context(self._around())
        self._depth += 1

    def on_end(self, event: object) -> None:
        self._depth = max(self._depth - 1, 0)  # 0: of one that began before we listened
        if self._depth == 0:
            self._inside.close()


@contextmanager
def compiling(
    tell: Callable[[], object], around: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[None]:
    """Call `tell` where a loop is compiled inside of the block, before the first; each is compiled inside `around()`.

    What a loss of power has cut off in NUMBA_CACHE_DIR is removed first, so that it is compiled again.
    """
    _remove_cut_off(Path(os.environ["NUMBA_CACHE_DIR"]))
    with event.install_listener("numba:compile", _Compiling(tell, around)):
        yield


@cache
def _remove_cut_off(folder: Path) -> None:
    for kept in folder.rglob("*.nb[ic]"):
        if not kept.name.startswith(OUR_FILES):
            continue
        with suppress(OSError), kept.open("rb") as stream:  # Another process may be as quick.
            stream.seek(max(kept.stat().st_size - 1, 0))
            if stream.read() != END:
                kept.unlink()


def _routine(library: str, name: str, n_arguments: int) -> "ctypes._CFunctionType":
    address = get_cython_function_address(f"scipy.linalg.{library}", name)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(address)


_dsyrk = _routine("cython_blas", "dsyrk", 10)
_dgemm = _routine("cython_blas", "dgemm", 13)
_dtrsv = _routine("cython_blas", "dtrsv", 8)
_dpotrf = _routine("cython_lapack", "dpotrf", 5)


def product_tile(
    columns: NDArray[np.float64], rows: slice, others: slice, space: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return columns[:, rows]ᵀ columns[:, others], f8 C-contiguous; of a tile with itself the lower triangle alone.

    columns (n, M) f8, C-contiguous; the tile is in `space`, (r·c,) f8 or more. Costs 2·n·r·c operations for an r by c
    tile, half of it where `rows` = `others`.
    """
    n, lead = columns.shape
    assert (columns.dtype, columns.flags.c_contiguous) == (np.float64, True)
    shape = rows.stop - rows.start, others.stop - others.start
    tile = space[: shape[0] * shape[1]].reshape(shape)
    # Fortran reads row-major arrays as their transposes: tileᵀ (c, r) = otherᵀ (c, n) · rows (n, r).
    sizes = [ctypes.c_int(value) for value in (*shape, n, lead)]
    lines, width, depth, leading = (ctypes.addressof(size) for size in sizes)
    scalars = ctypes.c_double(1.0), ctypes.c_double(0.0)
    one, zero = (ctypes.addressof(scalar) for scalar in scalars)
    left, right = columns.ctypes.data + 8 * rows.start, columns.ctypes.data + 8 * others.start
    if rows == others:
        _dsyrk(b"U", b"N", width, depth, one, left, leading, zero, tile.ctypes.data, width)
    else:
        _dgemm(b"N", b"T", width, lines, depth, one, right, leading, left, leading, zero, tile.ctypes.data, width)
    return tile


def factorise_definite(matrix: NDArray[np.float64], n: int) -> None:
    """Overwrite the upper triangle of matrix[:n, :n] by R of its Cholesky factorisation RᵀR; the rest is left alone.

    matrix (m, m) f8, C-contiguous, m ≥ n. Costs n³/3 operations. Raises LinAlgError where it is not definite.
    """
    assert (matrix.dtype, matrix.flags.c_contiguous) == (np.float64, True)
    order, leading, info = ctypes.c_int(n), ctypes.c_int(max(matrix.shape[1], 1)), ctypes.c_int(0)
    _dpotrf(b"L", ctypes.addressof(order), matrix.ctypes.data, ctypes.addressof(leading), ctypes.addressof(info))
    if info.value != 0:
        raise np.linalg.LinAlgError("Matrix is not positive definite.")


def solve_factorised(R: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x with RᵀR x = b (n,), for the upper triangle R of R[:n, :n] (m, m) f8, C-contiguous, m ≥ n."""
    x = b.copy()
    size, lead, one = ctypes.c_int(x.size), ctypes.c_int(R.shape[1]), ctypes.c_int(1)
    n, leading, step = (ctypes.addressof(value) for value in (size, lead, one))
    for transposed in (b"N", b"T"):
        _dtrsv(b"L", transposed, b"N", n, R.ctypes.data, leading, x.ctypes.data, step)
    return x
