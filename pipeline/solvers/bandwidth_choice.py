"""Which kernel width gives the lowest held-out error of least squares: of several, then at the size that is used."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, largest_terms
from pipeline.kernels.kernel_forms import ColumnGenerator, Kernel, column_bounds
from pipeline.solvers.ridge import refit

BLOCK_ROWS = 1024
STEPS = (4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)  # times the typical width; on MNIST's features 1/2 is best
TRIAL_ROWS, TRIAL_CENTERS = 10_000, 500  # on which these are tried
MOST_CENTERS = 2000  # on which the best is refined: a fit of more costs more than it tells
MOST_TRIED = 8  # widths while it is refined
LEAST_GAIN = 0.01  # of a held-out error


def centers_used(n_candidates: int, n_chosen: int | None) -> int:
    """Return on how many candidates a width is refined: as many as are used, and no fewer than it is tried on first."""
    return min(n_candidates, max(n_chosen or n_candidates, TRIAL_CENTERS), MOST_CENTERS)


def trial_rows(seed: int, n_rows: int, n_centers: int) -> NDArray[np.int64]:
    """Return the rows, drawn and ascending, that widths are tried on with so many centers."""
    return np.sort(np.random.default_rng([seed, 6]).permutation(n_rows)[: max(TRIAL_ROWS, 4 * n_centers)])


def trial_bytes(n_centers: int, n_rows: int, n_features: int) -> int:
    """Return the bytes of the trial of a width: rows and points, then the Grams of a fit, or of seven small ones."""
    rows, m = min(max(TRIAL_ROWS, 4 * n_centers), n_rows), n_centers
    return 4 * 3 * (rows + m) * n_features + max(2**27, 5 * 8 * m * m) + 3 * 8 * BLOCK_ROWS * m


def least_gain(n_rows: float) -> float:
    """Return the relative fall of the error on so many held-out rows that may be chance (mathematics.md, eq. 83)."""
    return max(LEAST_GAIN, 0.5 / max(n_rows, 1.0) ** 0.5)


def best_of(errors: Mapping[float, float], usual: float, n_held_out: float) -> float:
    """Return the width of the lowest held-out error; the usual one if that may be chance (mathematics.md, eq. 83)."""
    best = min(sorted(errors, reverse=True), key=lambda width: errors[width])
    return best if errors[best] < (1 - least_gain(n_held_out)) * errors[usual] else usual


def refine(
    start: float, known: Mapping[float, float], errors_at: Callable[[list[float]], Sequence[float]]
) -> dict[float, float]:
    """Return widths and their held-out errors, `known` ones among them: by halves from `start`, then by a half step.

    The error is taken to fall towards the best width and to rise beyond it (mathematics.md, eq. 82). Smaller widths are
    tried first: the best is smaller with more centers.
    """
    errors = dict(known)

    def look_at(*widths: float) -> None:
        new = [width for width in widths if width not in errors]
        errors.update(zip(new, errors_at(new), strict=True) if new else ())

    look_at(start, start / 2)
    factor = 0.5 if errors[start / 2] < errors[start] else 2.0
    best = start / 2 if factor < 1 else start
    while len(errors) < MOST_TRIED + len(known):
        look_at(best * factor)
        if not errors[best * factor] < errors[best]:
            break
        best *= factor
    look_at(best * math.sqrt(2), best / math.sqrt(2))
    return errors


def choose_width(
    typical: float,
    try_together: Callable[[list[float]], tuple[Sequence[float], float]],
    try_each: Callable[[list[float]], Sequence[float]],
    *,
    same_size: bool,
) -> tuple[float, dict[float, float]] | None:
    """Return the best width around the typical one, and the held-out errors at the size that is used; None if infinite.

    try_together: errors of the first ones on some of the candidates, and the number of held-out rows; try_each: errors
    at the size that is used, the same where `same_size`.
    """
    widths = [step * typical for step in STEPS]
    errors, n_held_out = try_together(widths)
    if not np.isfinite(errors).any():
        return None
    tried = dict(zip(widths, errors, strict=True))
    start = best_of(tried, typical, n_held_out)
    refined = refine(start, tried if same_size else {}, try_each)
    return best_of(refined, start, n_held_out), refined


def held_out_errors(
    points: NDArray[np.floating],
    widths: Sequence[float],
    kernel: Kernel,
    read: Callable[[slice], NDArray[np.floating]],
    targets: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    on_rows: Callable[[int], None] = lambda n: None,
    weights: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the mean squared held-out error of least squares on all the points, at each width, (widths,) f8.

    points (m, d), targets (rows, T), held_out (rows,), weights of the rows (none: 1 each). `read` returns some of the
    rows X (rows, d); an unbounded kernel sees all at once. The ridge is the best one for each width; infinite where
    none makes the Gram definite. Calls `on_rows` with the number of rows of each block. Costs 2·rows·d·m +
    widths·rows·m² operations.
    """
    n, m, place = len(targets), len(points), np.tile(np.arange(len(points)), len(widths))
    generator = ColumnGenerator(points, np.repeat(widths, m), kernel=kernel, place=place)
    of_rows = 1.0 if kernel.is_bounded else column_bounds(kernel, read(slice(0, n)), min(widths))
    bounds = RowBounds.of([largest_terms(of_rows, targets, weights)]), BLOCK_ROWS, -(-n // BLOCK_ROWS)
    sums = [(StatisticsSums(m, *bounds), StatisticsSums(m, *bounds)) for _ in widths]
    for start in range(0, n, BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        order = np.argsort(held_out[rows], kind="stable")
        n_fit = len(order) - int(np.count_nonzero(held_out[rows]))
        block, ordered = generator.block(read(rows), order, np.float64), targets[rows][order]
        for index, (fit, held_out_sums) in enumerate(sums):
            columns = np.ascontiguousarray(block[:, index * m : (index + 1) * m])
            counted = np.ones(len(order)) if weights is None else weights[rows][order]
            fit.add(columns[:n_fit], ordered[:n_fit], counted[:n_fit])
            held_out_sums.add(columns[n_fit:], ordered[n_fit:], counted[n_fit:])
        on_rows(len(order))

    def error(fit: GramStatistics, held_out: GramStatistics) -> float:
        try:
            return min(error for _, error in refit(fit, held_out, fit, intercept=False).held_out_errors)
        except LinAlgError:
            return float("inf")

    return np.array([error(fit.statistics(), held_out_sums.statistics()) for fit, held_out_sums in sums])
