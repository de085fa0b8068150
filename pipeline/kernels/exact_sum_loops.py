"""The compiled loop of `exact_sums`: a tile of a product, rounded and added, in one pass."""

import numpy as np

from pipeline.kernels.jit import compiled


@compiled()
def add_lower_tile(tile, inverse_unit, most_units, sums, first_row, first_column, diagonal):
    """Add round(tile · inverse_unit) to `sums` at (first_row, first_column); return whether every entry was in range.

    mathematics.md, eq. 74. tile (r, c) f8 and sums (R, M) i8, C-contiguous; `diagonal` is how many entries of the
    tile's first row are in the lower triangle: what lies above it is left alone. An entry is in range up to
    ±most_units; where one is not, or is no number, the sums are spoilt.
    """
    strange = False
    for i in range(tile.shape[0]):
        stop = min(tile.shape[1], max(diagonal + i, 0))
        values, row = tile[i][:stop], sums[first_row + i][first_column : first_column + stop]
        for j in range(stop):
            units = np.rint(values[j] * inverse_unit)
            strange |= not abs(units) <= most_units
            row[j] += np.int64(units)
    return not strange


SIGNATURES = {"add_lower_tile": "(f8[:, ::1], f8, f8, i8[:, ::1], i8, i8, i8)"}
