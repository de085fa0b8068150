"""What all kernels have: a form, which makes blocks of columns, and the refusal of sizes that would overflow."""

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidDataError
from pipeline.kernels.scaled_rows import first_non_finite_row

Values = NDArray[np.floating]
Index = NDArray[np.int64]
_RESCALE = "standardise the inputs (--set data.standardise=true) or rescale them"


class Form:
    """A kernel: all that the rest of the system knows of it is in its form.

    An object is the kernel at points, values (p, d) of one float dtype; column j is of point place[j], or j without
    places. `prepared` checks rows X (rows, d) and returns them as `write` wants them, with a size of each, (rows,): the
    same for all tiles. `write` fills the columns of a tile in `out` (rows, columns) with the rows, taken in an order.
    has_width, is_bounded, loops : see `Kernel`
    """

    has_width, is_bounded, loops = True, False, tuple[str, ...]()

    def __init__(self, values: Values, place: Index | None, sigma2: NDArray[np.float64], degree: int) -> None:
        self._values, self._place, self._degree = values, place, degree
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what overflows is refused, in words
            self._set_up(sigma2)

    @staticmethod
    def bounds(X: Values, sigma2: float, degree: int) -> NDArray[np.float64]:
        """Return √k(x, x) of rows X (rows, d), and a little more where float32 values may exceed it, (rows,)."""
        raise NotImplementedError

    @staticmethod
    def squares(points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what σ² is typical as the median of, for points (m, d): their squared norms, of inner products."""
        return np.asarray(squared_norms(points), np.float64)

    def _set_up(self, sigma2: NDArray[np.float64]) -> None:
        raise NotImplementedError

    def tiles(self) -> list[slice]:
        """Return the tiles that `write` takes: all columns at once."""
        n_columns = len(self._values if self._place is None else self._place)
        return [slice(0, n_columns)] if n_columns else []

    def _spread(self, of_points: Values) -> Values:
        """Return what is known of each point, (..., p), for each column, (..., columns)."""
        return of_points if self._place is None else np.ascontiguousarray(of_points[..., self._place])


def check_sizes(who: str, sizes: Values, largest: float, what: str = "squared norm") -> None:
    """Raise InvalidDataError naming the first row or center whose size (rows,) is above the largest that will do."""
    bad = np.flatnonzero(~(sizes <= largest))
    if bad.size:
        place = f"row {bad[0]} of a block of {len(sizes)}" if who == "row" else f"{who} {bad[0]}"
        raise InvalidDataError(
            f"{place}: its {what} is {sizes[bad[0]]:g}, too large for {sizes.dtype} kernel values; {_RESCALE}"
        )


def check_scales(scales: Values, widths: NDArray[np.float64], what: str) -> None:
    """Raise InvalidDataError where what is made of the widths (columns,) overflowed to infinity."""
    place = first_non_finite_row(scales)
    if place is not None:
        raise InvalidDataError(
            f"sigma2 = {widths[place]:g} is too small: {what} is no {scales.dtype} number; use a larger --sigma2"
        )


def largest_norm(dtype: np.dtype) -> float:
    """Return the largest squared norm with which ‖x‖² + ‖z‖² - 2 xᵀz cannot overflow on its way."""
    return float(np.finfo(dtype).max) / 8


def squared_norms(X: Values) -> Values:
    """Return ‖x‖² of rows X (rows, d), in their dtype."""
    return np.einsum("ij,ij->i", X, X)
