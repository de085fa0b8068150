"""Two BLAS routines that numpy and scipy do not offer without the interpreter lock or a temporary.

`numpy.matmul` needs an M×M temporary and mirrors it for every row block (1.5 times slower at M = 1000), and
`scipy.linalg.blas.dsyrk` holds the interpreter lock, so two threads run one after the other. Calling the same
routine through ctypes adds in place and releases the lock.
"""

import ctypes

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas

_POINTER = ctypes.c_void_p


def _routine(name: str, n_arguments: int) -> "ctypes._CFunctionType":
    capsule = cython_blas.__pyx_capi__[name]
    capsule_name = ctypes.pythonapi.PyCapsule_GetName
    capsule_name.restype, capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = _POINTER, [ctypes.py_object, ctypes.c_char_p]
    prototype = ctypes.CFUNCTYPE(None, *[_POINTER] * n_arguments)
    return prototype(address(capsule, capsule_name(capsule)))


_dsyrk = _routine("dsyrk", 10)
_dgemm = _routine("dgemm", 13)


def add_gram(columns: NDArray[np.float64], gram: NDArray[np.float64]) -> None:
    """Add columnsᵀ columns to the lower triangle of `gram`, in place; the strict upper triangle is left alone.

    columns (rows, M) f8 and gram (M, M) f8, both C-contiguous. Costs rows·M² operations, no temporary.
    """
    rows, n_columns = columns.shape
    for array, shape in ((columns, (rows, n_columns)), (gram, (n_columns, n_columns))):
        if array.dtype != np.float64 or not array.flags.c_contiguous or array.shape != shape:
            raise ValueError(f"expected a C-contiguous float64 array of shape {shape}, got {array.dtype} {array.shape}")
    if not rows or not n_columns:
        return
    # Fortran reads our row-major (rows, M) as A (M, rows) and our lower triangle as its upper one: C += A Aᵀ.
    size, depth, one = ctypes.c_int(n_columns), ctypes.c_int(rows), ctypes.c_double(1.0)
    n, k, alpha = ctypes.addressof(size), ctypes.addressof(depth), ctypes.addressof(one)
    _dsyrk(b"U", b"N", n, k, alpha, columns.ctypes.data, n, alpha, gram.ctypes.data, n)


def add_product(left: NDArray[np.float64], right: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Add leftᵀ right to `out`, in place.

    left (rows, M), right (rows, N) and out (M, N), all f8, with contiguous rows (a slice of the columns of a
    C-contiguous array will do). Costs 2·rows·M·N operations, no temporary.
    """
    rows, m = left.shape
    n = right.shape[1]
    for array, shape in ((left, (rows, m)), (right, (rows, n)), (out, (m, n))):
        strided = array.strides[1] == 8 and array.strides[0] >= 8 * shape[1] if array.size else True
        if array.dtype != np.float64 or array.shape != shape or not strided:
            raise ValueError(f"expected float64 rows of shape {shape}, got {array.dtype} {array.shape}")
    if not rows or not m or not n:
        return
    # Fortran reads row-major arrays as their transposes: outᵀ (n, m) += rightᵀ (n, rows) · left (rows, m).
    sizes = [ctypes.c_int(value) for value in (n, m, rows, *(array.strides[0] // 8 for array in (right, left, out)))]
    columns, lines, depth, lead_right, lead_left, lead_out = (ctypes.addressof(size) for size in sizes)
    one = ctypes.c_double(1.0)
    alpha = ctypes.addressof(one)
    a, b, c = right.ctypes.data, left.ctypes.data, out.ctypes.data
    _dgemm(b"N", b"T", columns, lines, depth, alpha, a, lead_right, b, lead_left, alpha, c, lead_out)
