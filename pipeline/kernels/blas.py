"""Three routines that numpy and scipy do not offer without the interpreter lock or a temporary.

`numpy.matmul` copies what is not contiguous and mirrors KᵀK for every row block (1.5 times slower at M = 1000),
`scipy.linalg.blas.dsyrk` holds the interpreter lock. Through ctypes the same routine writes in place and releases it.
`numpy.linalg.cholesky` in a compiled loop would release it too, but takes a second to compile.
"""

import ctypes
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack

_POINTER = ctypes.c_void_p


def _routine(library: ModuleType, name: str, n_arguments: int) -> "ctypes._CFunctionType":
    capsule = library.__pyx_capi__[name]
    capsule_name = ctypes.pythonapi.PyCapsule_GetName
    capsule_name.restype, capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = _POINTER, [ctypes.py_object, ctypes.c_char_p]
    prototype = ctypes.CFUNCTYPE(None, *[_POINTER] * n_arguments)
    return prototype(address(capsule, capsule_name(capsule)))


_dsyrk = _routine(cython_blas, "dsyrk", 10)
_dgemm = _routine(cython_blas, "dgemm", 13)
_dpotrf = _routine(cython_lapack, "dpotrf", 5)


def product_tile(
    columns: NDArray[np.float64], rows: slice, others: slice, space: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return columns[:, rows]ᵀ columns[:, others], f8 C-contiguous; of a tile with itself the lower triangle alone.

    columns (n, M) f8, C-contiguous; the tile is in `space`, (r·c,) f8 or more. Costs 2·n·r·c operations for an r by c
    tile, half of it where `rows` = `others`.
    """
    n, lead = columns.shape
    _check(columns)
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
    _check(matrix)
    order, leading, info = ctypes.c_int(n), ctypes.c_int(matrix.shape[1]), ctypes.c_int(0)
    _dpotrf(b"L", ctypes.addressof(order), matrix.ctypes.data, ctypes.addressof(leading), ctypes.addressof(info))
    if info.value != 0:
        raise np.linalg.LinAlgError("Matrix is not positive definite.")


def _check(matrix: NDArray[np.float64]) -> None:
    if matrix.dtype != np.float64 or not matrix.flags.c_contiguous:
        raise ValueError(f"expected a C-contiguous float64 array, got {matrix.dtype} of strides {matrix.strides}")
