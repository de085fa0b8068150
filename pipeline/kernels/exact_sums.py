"""Sums whose bits depend neither on the order and grouping of their terms nor on who adds them up.

Each term is rounded to a whole multiple of a unit, and multiples are added as 64-bit integers, which is exact
(mathematics.md, eqs. 72, 73 and 74). The unit comes from a bound of the terms that is known before the first of them,
so that every thread, process and session of a run rounds alike. Terms are block products: the same rows must make the
same block wherever it is computed.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import InvalidDataError
from pipeline.kernels.jit import product_tile
from pipeline.kernels.kernel_loops import add_lower_tile

_SUM_BITS = 62  # The largest possible sum has these bits, in units; an int64 has one more, and a sign.
_LEAST_BOUND = 2.0**-960  # The unit of a sum with this bound has an inverse in float64.
_SLACK = 1.001  # Rounding may bring a term above its bound by this factor.
TILE_COLUMNS = 1024  # A tile has these columns: enough for BLAS, and work for several threads.
_scratch = threading.local()  # Each thread keeps its tile: fresh pages for a product cost as much as adding it.
AnyTile = TypeVar("AnyTile")
# Calls a function on every tile, in any order and by any threads; returns when all are done, or raises the first error.
ForEach = Callable[[Callable[[Any], None], Iterable[Any]], None]


def serially(function: Callable[[AnyTile], None], tiles: Iterable[AnyTile], /) -> None:
    """Call a function on one tile after the other, in this thread."""
    for tile in tiles:
        function(tile)


def unit_of(largest: ArrayLike, n_terms: int) -> NDArray[np.float64]:
    """Return the unit, a power of two, for a sum of terms within ±`largest` (mathematics.md, eq. 73)."""
    with np.errstate(over="ignore"):
        bound = np.maximum(np.asarray(largest, np.float64) * max(n_terms, 1), _LEAST_BOUND)
    if not np.isfinite(bound).all():
        raise InvalidDataError("the targets or weights are too large: their sums leave float64; rescale them")
    return np.ldexp(1.0, np.frexp(bound)[1] - _SUM_BITS)


class ExactSum:
    """The sum of at most `n_terms` arrays of one shape, each entry within ±`largest` (broadcast to the shape).

    units : i8, the sum in multiples of the unit; those of two sums of the same bounds may be added
    error : the most that rounding the terms to multiples of the unit may have changed an entry by
    """

    def __init__(self, shape: tuple[int, ...], largest: ArrayLike, n_terms: int) -> None:
        self.units = np.zeros(shape, np.int64)
        self._unit = unit_of(largest, n_terms)
        self.error = 0.5 * self._unit * n_terms
        self._most_units = _SLACK * np.asarray(largest) / self._unit

    def add(self, term: NDArray[np.float64] | float, rows: slice = slice(None)) -> None:
        """Add a term to some rows of the sum. Raises InvalidDataError where it is beyond the bound, or no number."""
        if np.ndim(term) == 2 and not self._unit.ndim and np.shape(term) == self.units[rows].shape:
            # Large sums: one reading of them, without temporaries.
            tile = np.ascontiguousarray(term, np.float64)
            self._add_tile(tile, rows.indices(len(self.units))[0], 0, tile.shape[1])
            return
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused, in words
            units = np.rint(np.asarray(term) / self._unit)
        if not (np.abs(units) <= self._most_units).all():
            raise _out_of_range()
        self.units[... if rows == slice(None) else rows] += units.astype(np.int64)

    def _add_tile(self, tile: NDArray[np.float64], row: int, column: int, diagonal: int) -> None:
        if not add_lower_tile(tile, 1.0 / self._unit, self._most_units, self.units, row, column, diagonal):
            raise _out_of_range()

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the sum in units, as it is stored."""
        return {"units": self.units}

    def absorb(self, arrays: Iterable[tuple[str, NDArray[np.int64]]]) -> None:
        """Add what `arrays` of another sum of the same bounds returned."""
        for _, units in arrays:
            self.units += units

    def values(self) -> NDArray[np.float64]:
        return self.units * self._unit


class ExactSums(dict[str, Any]):
    """Sums by name, each an `ExactSum`, or what has `arrays` and `absorb` as it has."""

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        return {f"{name}.{inner}": units for name, sums in self.items() for inner, units in sums.arrays().items()}

    def absorb(self, arrays: Iterable[tuple[str, NDArray[np.int64]]]) -> None:
        for name, units in arrays:
            mine, _, inner = name.partition(".")
            self[mine].absorb([(inner, units)])


class ExactGram(ExactSum):
    """The last rows of a Gram's lower triangle, (M - n_kept, M): of columns `n_kept` to M, against all before them.

    Terms are KᵀK of at most `n_terms` blocks, each entry within ±`largest`.
    """

    def __init__(self, n_columns: int, n_kept: int, largest: float, n_terms: int) -> None:
        super().__init__((n_columns - n_kept, n_columns), largest, n_terms)
        self._kept = n_kept

    def add_products(self, columns: NDArray[np.float64], each: ForEach = serially) -> None:
        """Add KᵀK of a block K = columns (rows, M) f8 C-contiguous; `each` shares out the tiles.

        Costs rows·M² operations where nothing is kept. Raises InvalidDataError for an entry beyond the bound.
        """
        if len(columns) and len(self.units):
            n, step = self.units.shape[1], TILE_COLUMNS
            tiles = [(i, j) for i in range(self._kept, n, step) for j in range(0, min(i + step, n), step)]
            largest_first = sorted(tiles, key=lambda tile: tile[1] + step > tile[0])
            each(lambda tile: self._add_product(columns, *tile), largest_first)

    def _add_product(self, columns: NDArray[np.float64], i: int, j: int) -> None:
        n_columns = self.units.shape[1]
        rows, stop = slice(i, min(i + TILE_COLUMNS, n_columns)), min(j + TILE_COLUMNS, n_columns, i + TILE_COLUMNS)
        if not hasattr(_scratch, "tile") or _scratch.tile.size < TILE_COLUMNS**2:
            _scratch.tile = np.empty(TILE_COLUMNS**2)
        tile = product_tile(columns, rows, slice(j, stop), _scratch.tile)
        self._add_tile(tile, i - self._kept, j, i - j + 1)

    def values(self) -> NDArray[np.float64]:
        """Return the sum (M - n_kept, M) f8, both triangles; it overwrites the units: call it once."""
        values = self.units.view(np.float64)
        for start in range(0, len(values), 64):  # no second Gram
            stripe = slice(start, start + 64)
            values[stripe] = self.units[stripe] * self._unit
        new = values[:, self._kept :]
        for start in range(0, len(new), 256):  # the lower triangle becomes the upper one, too
            stop = min(start + 256, len(new))
            new[:start, start:stop] = new[start:stop, :start].T
            corner = new[start:stop, start:stop]
            corner[:] = np.tril(corner) + np.tril(corner, -1).T
        return values


def _out_of_range() -> InvalidDataError:
    return InvalidDataError(
        "a sum over the rows is beyond the bound that their sizes gave: the features or the targets are not those that "
        "the run began with; start a new run"
    )
