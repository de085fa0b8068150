"""The kernels, each a class: its name, columns, width, derivatives and compiled loops.

Each is a function of a distance with 0 ≤ k(x, z) ≤ 1 = k(z, z). An object is the kernel at some centers. Before them
rows are multiplied by learned scales or a metric (`scaled`).
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import InvalidDataError
from pipeline.kernels.exact_sums import TILE_COLUMNS, ForEach, serially
from pipeline.kernels.jit import read_only
from pipeline.kernels.kernel_loops import add_squared_slopes, direct_distances, gaussian_float32, gaussian_float64

Values = NDArray[np.floating]
Doubles = NDArray[np.float64]
Index = NDArray[np.int64]

# The mean is subtracted where its squared norm exceeds the points' mean squared deviation this many times; below,
# the loss is at most that much larger than it has to be, and the pass over the rows is saved.
FAR_FROM_ORIGIN = 10.0
MOST_SQUARED_NORM = 1e3  # Beyond this multiple of σ², products round a Gaussian's values by more units than this.
MEDIAN_POINTS = 1000  # The typical width is measured between at most these points.
TILE_ROWS = 32  # A product with a metric has these rows; blocks of rows begin at multiples of it.
DIAGONAL, METRIC = "diagonal", "metric"  # Scales come from squared derivatives, or from products of each two.


class Kernel(ABC):
    """Kernel columns c_m = k(X, x_m) of fixed centers over any rows (mathematics.md, eq. 1).

    centers : (n_centers, n_features) array, kept as C-contiguous `dtype`
    sigma2 : the width
    dtype : float32 (one sgemm, values rounded to float32) or float64 (for exact comparisons; twice the cost)

    Raises ValueError for a width that is no finite number above 0, InvalidDataError where the centers are too large for
    `dtype`, or the width is too small for it.
    """

    name: str
    has_metric = True  # distances are in the 2-norm, so that directions of all features can be learned
    can_move = False  # the gradient by its centers is known

    def __init__(self, centers: Values, sigma2: float, dtype: type = np.float32) -> None:
        if not (math.isfinite(sigma2) and sigma2 > 0):
            raise ValueError(f"sigma2 must be a finite number above 0, got {sigma2}")
        self._sigma2 = float(sigma2)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what overflows is refused, in words
            self._centers: Values = np.ascontiguousarray(centers, dtype=dtype)
            self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Check the centers and the width, and prepare what all columns need."""

    @abstractmethod
    def _prepared(self, X: Values, who: str = "row") -> tuple[Values, Values]:
        """Return checked rows (rows, d) as `_write` wants them, and a size of each (rows,)."""

    @abstractmethod
    def _write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        """Write the columns of a tile of centers to `out` (rows, n_centers), with the rows taken in an order."""

    @property
    def n_centers(self) -> int:
        return len(self._centers)

    def block(
        self, X: Values, row_order: Index | None = None, out_dtype: type = np.float32, each: ForEach = serially
    ) -> NDArray[Any]:
        """Return the kernel block (rows, n_centers) of some rows, C-contiguous.

        X is (rows, n_features); output row i belongs to X[row_order[i]] (default: in order). With float32 centers the
        values are float32 numbers, stored as `out_dtype` (float64 saves the statistics a copy). `each` shares out the
        tiles of columns: the bits of a value depend on the rows of the block and on the centers alone. Costs
        2·rows·n_features·n_centers operations and rows·n_centers·(4 + itemsize) bytes. Raises InvalidDataError naming
        a row that is too large for squared distances.
        """
        n_features, dtype = self._centers.shape[1], self._centers.dtype
        if X.ndim != 2 or X.shape[1] != n_features:
            raise ValueError(f"rows have {X.shape[1:]} features, the centers have {n_features}")
        with np.errstate(over="ignore", invalid="ignore"):
            rows, sizes = self._prepared(np.ascontiguousarray(X, dtype=dtype))
        order = np.arange(len(rows)) if row_order is None else row_order
        out: Values = np.empty((len(rows), self.n_centers), np.float64 if dtype == np.float64 else out_dtype)
        starts = range(0, self.n_centers, TILE_COLUMNS)
        tiles = [slice(j, min(j + TILE_COLUMNS, self.n_centers)) for j in starts]
        each(lambda tile: self._write(rows, sizes, order, out, tile), tiles)
        return out

    @abstractmethod
    def slope_sums(self, X: Values, weights: Doubles, kind: str, row_weights: Doubles | None = None) -> Doubles:
        """Return Σ_i s_i Σ_t (∂f_t/∂u_j)², (d,) f8, over rows X (rows, d), of the weights s (none: 1 each).

        f(u) = Σ_m w_m k(u, u_m) with weights (n_centers, T) f8 (mathematics.md, eqs. 84 and 96). For a METRIC Σ_i s_i
        Σ_t (∂f_t/∂u_j)(∂f_t/∂u_k), (d, d), for another 2·rows·d²·T operations. Costs 2·rows·m·d·(1 + T) operations and
        8·rows·(2·m + 2·d) bytes. Raises ValueError for a METRIC of a kernel that has none.
        """

    @classmethod
    def default_sigma2(cls, points: Values) -> float:
        """Return the typical width of the first points, of four digits: alike on machines that round otherwise."""
        return float(f"{cls.typical_sigma2(points[:MEDIAN_POINTS]):.4g}")

    @classmethod
    def typical_sigma2(cls, points: Values) -> float:
        """Return the σ² at which kernel values are neither all alike nor all different, for points (m, d).

        The median of the squared distances between different points (mathematics.md, eq. 68), at which the Gaussian is
        exp(-1/2) and the other 1/e. Of `MEDIAN_POINTS` at most, drawn, since the first may be of one class; 1 where
        there is nothing to measure.
        """
        drawn = np.sort(np.random.default_rng(0).permutation(len(points))[:MEDIAN_POINTS])
        values = points[drawn].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # Points that are too large are refused elsewhere.
            centred = values - values.mean(axis=0)  # far from the origin, the distances would cancel
            squares = cls._squared_distances(centred)[np.triu_indices(len(values), 1)]
        squares = squares[np.isfinite(squares)]
        squares = squares[squares > 1e-12 * squares.max(initial=0.0)]  # distances of different points only
        return float(np.median(squares)) if len(squares) else 1.0

    @staticmethod
    def _squared_distances(points: Doubles) -> Doubles:
        """Return the squared distances between centred points (m, d), (m, m)."""
        norms = _squared_norms(points)
        distances: Doubles = norms[:, None] + norms - 2.0 * (points @ points.T)
        return distances


class GaussianKernel(Kernel):
    """exp(-‖x-z‖² / (2 σ²)) from inner products: one sgemm, one compiled epilogue (mathematics.md, eqs. 2 and 3).

    ‖x‖² + ‖z‖² - 2 xᵀz cancels where points lie far from the origin and close to each other: about norm²·eps is lost.
    Where the centers' mean is far from the origin, rows and centers are therefore taken relative to it. Where some
    center is still many widths away, distances are of differences, which lose nothing and cost more: 1.3 to 2.5 times
    as much with 100 features or fewer, 7 times with 800.
    """

    name = "gaussian"
    can_move = True

    def _set_up(self) -> None:
        sigma2 = self._sigma2
        self._scale = _scale(0.5 / np.float64(sigma2), self._centers.dtype, sigma2, "1/(2 sigma2)")
        self._origin = _origin(self._centers)
        self._near = self._centers if self._origin is None else self._centers - self._origin
        self._norms = _squared_norms(self._near)
        # Rows need no such look: one with a kernel value above rounding is about as long as its center.
        self._of_differences = float(self._norms.max(initial=0.0)) > MOST_SQUARED_NORM * sigma2
        if self._of_differences:
            self._origin, self._near, self._norms = None, self._centers, _squared_norms(self._centers)
        _checked("center", "squared norm", self._norms)

    def _prepared(self, X: Values, who: str = "row") -> tuple[Values, Values]:
        values = X if self._origin is None else X - self._origin
        return values, _checked(who, "squared norm", _squared_norms(values))

    def _write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        near = self._near[tile]
        if self._of_differences:
            _write_exponentials(np.square(_distances(X, near, euclidean=True)), self._scale, order, out, tile.start)
        else:
            loop = gaussian_float32 if X.dtype == np.float32 else gaussian_float64
            loop(X @ near.T, sizes, self._norms[tile], self._scale, order, out, tile.start)

    def slope_sums(self, X: Values, weights: Doubles, kind: str, row_weights: Doubles | None = None) -> Doubles:
        """Do so by products of matrices (mathematics.md, eq. 84)."""
        total = np.zeros(X.shape[1] if kind == DIAGONAL else (X.shape[1], X.shape[1]))
        origin = self._centers.mean(axis=0, dtype=np.float64)  # far from it, differences of products would cancel
        centers, rows = self._centers - origin, X - origin
        values = self.block(X, None, np.float64)
        for of_output in weights.T:
            pulls = values * of_output
            slopes = pulls @ centers
            slopes -= pulls.sum(axis=1)[:, None] * rows  # ∂f_t/∂u (rows, d), times σ²
            if kind == METRIC:
                total += slopes.T @ (slopes if row_weights is None else row_weights[:, None] * slopes)
            else:
                np.square(slopes, out=slopes)
                total += slopes.sum(axis=0) if row_weights is None else row_weights @ slopes
        return total / self._sigma2**2


class ProductLaplaceKernel(Kernel):
    """exp(-Σ_j |x_j - z_j| / σ), of distances from differences, which do not cancel (mathematics.md, eq. 5)."""

    name = "product-laplace"
    has_metric = False

    def _set_up(self) -> None:
        self._prepared(self._centers, "center")
        sigma2 = self._sigma2
        self._scale = _scale(1.0 / np.sqrt(np.float64(sigma2)), self._centers.dtype, sigma2, "1/√sigma2")

    def _prepared(self, X: Values, who: str = "row") -> tuple[Values, Values]:
        return X, _checked(who, "sum of absolute features", np.abs(X).sum(axis=1))

    def _write(self, X: Values, sizes: Values, order: Index, out: Values, tile: slice) -> None:
        distances = _distances(X, self._centers[tile], euclidean=False)
        _write_exponentials(distances, self._scale, order, out, tile.start)

    def slope_sums(self, X: Values, weights: Doubles, kind: str, row_weights: Doubles | None = None) -> Doubles:
        """Do so by a loop (mathematics.md, eq. 96)."""
        if kind != DIAGONAL:
            raise ValueError(f"the {self.name} kernel has scales of its features, and no metric")
        total = np.zeros(X.shape[1])
        rows = np.ascontiguousarray(X.astype(self._centers.dtype, copy=False), np.float64)
        add_squared_slopes(
            read_only(rows),
            read_only(self._centers.astype(np.float64)),
            read_only(self.block(X, None, np.float64)),
            read_only(np.ascontiguousarray(weights)),
            read_only(np.ones(len(X)) if row_weights is None else row_weights),
            total,
        )
        return total / self._sigma2

    @staticmethod
    def _squared_distances(points: Doubles) -> Doubles:
        values = points.astype(np.float32)  # for which the loop is compiled
        return np.square(_distances(values, values, euclidean=False), dtype=np.float64)


KERNELS: tuple[type[Kernel], ...] = (GaussianKernel, ProductLaplaceKernel)


def kernel_named(name: str) -> type[Kernel]:
    """Return the kernel of a name. Raises ValueError where there is none."""
    names = [kernel.name for kernel in KERNELS]
    if name not in names:
        raise ValueError(f"the kernel must be one of {', '.join(names)}, got {name!r}")
    return KERNELS[names.index(name)]


def _distances(X: Values, centers: Values, *, euclidean: bool) -> Values:
    """Return the distances (rows, m) of rows to centers, of one dtype, from differences, which do not cancel."""
    distances = np.empty((len(X), len(centers)), X.dtype)
    direct_distances(read_only(X), read_only(centers), euclidean, distances)
    return distances


def _write_exponentials(distances: Values, scale: np.floating, order: Index, out: Values, first: int) -> None:
    """Write exp(-distance · scale) of distances (rows, m), which are spoilt, to columns of `out` from the first on."""
    loop = gaussian_float32 if distances.dtype == np.float32 else gaussian_float64
    distances *= -0.5
    n_rows, n_columns = distances.shape
    loop(distances, np.zeros(n_rows, distances.dtype), np.zeros(n_columns, distances.dtype), scale, order, out, first)


def _origin(centers: Values) -> Values | None:
    """Return the centers' mean (n_features,), rounded to their dtype, or None where it is no help."""
    if not len(centers):
        return None
    mean = centers.mean(axis=0, dtype=np.float64)
    offset = float(mean @ mean)
    spread = float(np.einsum("ij,ij->i", centers, centers, dtype=np.float64).mean()) - offset
    return mean.astype(centers.dtype) if offset > FAR_FROM_ORIGIN * spread else None


def _checked(who: str, what: str, sizes: Values) -> Values:
    """Return sizes (rows,); InvalidDataError names the first row or center whose ‖x‖² + ‖z‖² - 2 xᵀz may overflow."""
    bad = np.flatnonzero(~(sizes <= float(np.finfo(sizes.dtype).max) / 8))
    if bad.size:
        place = f"row {bad[0]} of a block of {len(sizes)}" if who == "row" else f"{who} {bad[0]}"
        raise InvalidDataError(
            f"{place}: its {what} is {sizes[bad[0]]:g}, too large for {sizes.dtype} kernel values; standardise the "
            "inputs (`data.standardise=true`) or rescale them"
        )
    return sizes


def _scale(value: np.float64, dtype: np.dtype, sigma2: float, what: str) -> np.floating:
    """Return what is made of the width, in a dtype. Raises InvalidDataError where it overflows to infinity."""
    scale: np.floating = dtype.type(value)
    if not np.isfinite(scale):
        raise InvalidDataError(
            f"`kernel.sigma2={sigma2:g}` is too small: {what} is no {dtype} number; give more, or rescale the inputs"
        )
    return scale


def _squared_norms(X: Values) -> Values:
    return np.einsum("ij,ij->i", X, X)


def scaled(X: Values, scales: NDArray[np.float32] | None) -> Values:
    """Return rows X (rows, d) times the scales (d,) f4 of the features, of the dtype of X; as they are without any.

    mathematics.md, eqs. 81 and 90. Scales (d, d) are the root of a metric. Costs 2·rows·d² operations then; a row
    does not depend on how many are beside it.
    """
    if scales is None:
        return X
    if scales.ndim == 1:
        return X * scales
    # By products of TILE_ROWS rows in order: BLAS rounds by their number and their order in memory.
    X, root = np.ascontiguousarray(X), scales.astype(X.dtype, copy=False)
    out, whole = np.empty_like(X), len(X) - len(X) % TILE_ROWS
    tiles = (-1, TILE_ROWS, X.shape[1])
    np.matmul(X[:whole].reshape(tiles), root, out=out[:whole].reshape(tiles))
    last = np.zeros((TILE_ROWS, X.shape[1]), X.dtype)
    last[: len(X) - whole] = X[whole:]
    out[whole:] = (last @ root)[: len(X) - whole]
    return out


def lengths(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how far apart scales (d,) or (d, d) bring two rows that differ by one in a single feature, (d,) f4."""
    return scales if scales.ndim == 1 else np.sqrt(np.square(scales).sum(axis=1))


def first_non_finite_row(rows: ArrayLike) -> int | None:
    """Return the number of the first row of (n, …) that holds an infinity or nan, None where all are finite."""
    rows = np.asarray(rows)
    finite = np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))
    return None if finite.all() else int(np.argmin(finite))
