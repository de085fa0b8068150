"""The one check for rows that hold something else than numbers."""

import numpy as np
from numpy.typing import ArrayLike


def first_non_finite_row(rows: ArrayLike) -> int | None:
    """Return the number of the first row of (n, …) that holds an infinity or nan, None where all are finite."""
    rows = np.asarray(rows)
    finite = np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))
    return None if finite.all() else int(np.argmin(finite))
