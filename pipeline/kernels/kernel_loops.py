"""The compiled loops of the kernels: from inner products or rows to kernel values, and the sums of products."""

import math

import numpy as np

from pipeline.kernels.jit import compiled, inner

# exp(r) on |r| ≤ ln(2)/2, the polynomial of Cephes' expf; with the two-part reduction below its error
# stays under 2 units in the last place (test_kernel_functions.py compares it with float64 exp on the whole range).
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_LOG2E = np.float32(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_ROUND = np.float32(12582912.0)  # Adding and subtracting 1.5·2²³ rounds a float32 to a whole number.
_SMALLEST = np.float32(-87.0)  # Exponents are held here: below, the float32 result would not be normal.
_ONE, _TWO, _ZERO = np.float32(1), np.float32(2), np.float32(0)


@inner(error_model="numpy")
def _reduced(exponent):
    """Return r and the bits of 2^k of an exponent ≤ 0, held at `_SMALLEST`: exponent = k ln(2) + r."""
    x = max(_SMALLEST, exponent)
    whole = (x * _LOG2E + _ROUND) - _ROUND
    return (x - whole * _LN2_HIGH) - whole * _LN2_LOW, (np.int32(whole) + 127) << 23


@inner(error_model="numpy")
def _exponential(r, power):
    """Return exp(r) · power, for |r| ≤ ln(2)/2."""
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    return (p * r * r + r + _ONE) * power


@compiled(error_model="numpy")
def gaussian_float32(dots, row_norms, center_norms, scale, row_order, out, first):
    """Write out[i, first + j] = exp(-max(0, ‖x‖² + ‖z_j‖² - 2 x·z_j) · scale) with x = row row_order[i].

    mathematics.md, eqs. 2 and 3. dots (rows, m) f4; row_norms (rows,) f4; center_norms (m,) f4; scale f4;
    row_order (rows,) i8; out (rows, M) f4 or f8. Values are float32 numbers whatever the dtype of `out`. The loops are
    branch-free, so that LLVM vectorises them. Norms of 0 and dots of -½ times a distance give exp(-distance · scale).
    """
    n_columns = dots.shape[1]
    reduced = np.empty(n_columns, np.float32)
    bits = np.empty(n_columns, np.int32)
    powers = bits.view(np.float32)
    for i in range(dots.shape[0]):
        row = row_order[i]
        norm = row_norms[row]
        for j in range(n_columns):
            distance = max(_ZERO, norm + center_norms[j] - _TWO * dots[row, j])
            reduced[j], bits[j] = _reduced(-distance * scale)
        values = out[i][first : first + n_columns]
        for j in range(n_columns):
            values[j] = _exponential(reduced[j], powers[j])


@compiled(error_model="numpy")
def gaussian_float64(dots, row_norms, center_norms, scale, row_order, out, first):
    """Do the same in float64 throughout (exact comparisons between paths; slower)."""
    for i in range(dots.shape[0]):
        row = row_order[i]
        for j in range(dots.shape[1]):
            distance = max(0.0, row_norms[row] + center_norms[j] - 2.0 * dots[row, j])
            out[i, first + j] = math.exp(-distance * scale)


_STRIPE = 64  # Centers are computed on in stripes of this length, which LLVM knows.
_FEATURES = 64  # A stripe takes these at once: it stays in the first cache; their sum is rounded, then added on.


@inner(error_model="numpy")
def _square(value):
    return value * value


@compiled(error_model="numpy")
def direct_distances(X, centers, euclidean, distances):
    """Write distances[i, m] = ‖x_i - z_m‖, or Σ_j |x_ij - z_mj| where not `euclidean`, from differences.

    mathematics.md, eqs. 2 and 5. X (rows, d), centers (M, d) and distances (rows, M) are of one dtype, f4 or f8.
    The innermost loops run over a stripe of centers, of a length that LLVM knows; two rows and four features share
    loads and stores. A value depends on its row and its center alone.
    """
    n_rows, n_features = X.shape
    stripe = np.empty((_FEATURES, _STRIPE), X.dtype)
    sums = np.empty((2, _STRIPE), X.dtype)
    of_x, of_y = sums[0], sums[1]
    for first in range(0, len(centers), _STRIPE):
        width = min(_STRIPE, len(centers) - first)
        for start in range(0, n_features, _FEATURES):
            n_here = min(_FEATURES, n_features - start)
            whole = n_here // 4 * 4
            for m in range(_STRIPE):
                for j in range(n_here):
                    stripe[j, m] = centers[first + m, start + j] if m < width else 0
            for i in range(0, n_rows, 2):
                k = min(i + 1, n_rows - 1)  # the last of an odd number twice
                for m in range(_STRIPE):
                    of_x[m], of_y[m] = 0, 0
                for j in range(0, whole, 4):
                    f = start + j
                    x0, x1, x2, x3 = X[i, f], X[i, f + 1], X[i, f + 2], X[i, f + 3]
                    y0, y1, y2, y3 = X[k, f], X[k, f + 1], X[k, f + 2], X[k, f + 3]
                    if euclidean:
                        for m in range(_STRIPE):
                            z0, z1, z2, z3 = stripe[j, m], stripe[j + 1, m], stripe[j + 2, m], stripe[j + 3, m]
                            of_x[m] += _square(x0 - z0) + _square(x1 - z1) + _square(x2 - z2) + _square(x3 - z3)
                            of_y[m] += _square(y0 - z0) + _square(y1 - z1) + _square(y2 - z2) + _square(y3 - z3)
                    else:
                        for m in range(_STRIPE):
                            z0, z1, z2, z3 = stripe[j, m], stripe[j + 1, m], stripe[j + 2, m], stripe[j + 3, m]
                            of_x[m] += abs(x0 - z0) + abs(x1 - z1) + abs(x2 - z2) + abs(x3 - z3)
                            of_y[m] += abs(y0 - z0) + abs(y1 - z1) + abs(y2 - z2) + abs(y3 - z3)
                for j in range(whole, n_here):
                    for m in range(_STRIPE):
                        x, y = X[i, start + j] - stripe[j, m], X[k, start + j] - stripe[j, m]
                        of_x[m] += x * x if euclidean else abs(x)
                        of_y[m] += y * y if euclidean else abs(y)
                to_x, to_y = distances[i, first : first + width], distances[k, first : first + width]
                if start > 0:
                    for m in range(width):
                        of_x[m] += to_x[m]
                        of_y[m] += to_y[m]
                if euclidean and start + n_here == n_features:
                    for m in range(_STRIPE):
                        of_x[m], of_y[m] = math.sqrt(of_x[m]), math.sqrt(of_y[m])
                for m in range(width):
                    to_x[m], to_y[m] = of_x[m], of_y[m]


_LANES, _CENTERS = 64, 32  # Rows and centers are computed on together in these numbers.


@compiled(error_model="numpy")
def add_squared_slopes(X, centers, columns, weights, row_weights, total):
    """Add Σ_i s_i Σ_t (Σ_m w_mt k_im sign(z_mj - x_ij))² to total[j] (mathematics.md, eq. 96).

    X (rows, d), centers (M, d), columns k (rows, M), weights (M, T), row_weights s (rows,), total (d,), all f8. The
    innermost loops run over rows, of which a slope and the four signs by which it changes stay in a core's cache.
    """
    (n_rows, n_features), (n_centers, n_outputs) = X.shape, weights.shape
    rows, near = np.empty((n_features, _LANES)), np.empty((_CENTERS, _LANES))
    signed, slopes = np.empty((4, _LANES)), np.empty((n_outputs, n_features, _LANES))
    for first in range(0, n_rows, _LANES):
        n_here = min(_LANES, n_rows - first)
        for i in range(_LANES):
            for j in range(n_features):
                rows[j, i] = X[first + i, j] if i < n_here else 0.0
        slopes[:] = 0.0
        for start in range(0, n_centers, _CENTERS):
            for i in range(_LANES):
                for m in range(_CENTERS):
                    near[m, i] = columns[first + i, start + m] if i < n_here and start + m < n_centers else 0.0
            for j in range(n_features):
                for m in range(0, min(_CENTERS, n_centers - start), 4):
                    for q in range(4):
                        z = centers[min(start + m + q, n_centers - 1), j]
                        for i in range(_LANES):
                            above = near[m + q, i] if z > rows[j, i] else 0.0
                            below = near[m + q, i] if z < rows[j, i] else 0.0
                            signed[q, i] = above - below
                    for t in range(n_outputs):
                        w0, w1 = weights[start + m, t], weights[min(start + m + 1, n_centers - 1), t]
                        w2 = weights[min(start + m + 2, n_centers - 1), t]
                        w3 = weights[min(start + m + 3, n_centers - 1), t]
                        for i in range(_LANES):
                            both = w0 * signed[0, i] + w1 * signed[1, i]
                            slopes[t, j, i] += both + (w2 * signed[2, i] + w3 * signed[3, i])
        for t in range(n_outputs):
            for j in range(n_features):
                for i in range(n_here):
                    total[j] += row_weights[first + i] * slopes[t, j, i] * slopes[t, j, i]


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
