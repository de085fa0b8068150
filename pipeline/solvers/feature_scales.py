"""A scale for each feature, or a metric of all, learned: how steep the function fitted so far is along them.

Each round fits least squares on some candidates, and multiplies every scale by the root mean square of the partial
derivatives of that fit: the diagonal of a recursive feature machine (Radhakrishnan, Beaglehole, Pandit and Belkin 2024,
arXiv:2212.13881). Where that gains no more, the whole machine goes on from the best round: the root of the mean outer
product of the gradients replaces the scales. Held-out rows decide which round is kept, and whether any is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.kernels.derivatives import DIAGONAL, METRIC, Derivatives, steepest
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_forms import GAUSSIAN, Kernel, typical_sigma2
from pipeline.kernels.scaled_rows import lengths, scaled
from pipeline.solvers.bandwidth_choice import LEAST_GAIN, least_gain
from pipeline.solvers.ridge import refit

TRIAL_CENTERS = 500  # candidates that the rounds fit on
MOST_ROUNDS = 20
MORE_CENTERS, WIDTHS = 1000, (2.0, 1.0, 0.5, 0.25)  # on which a metric is confirmed, at widths times the typical one
MOST_OF_METRIC = 200  # features that may have a metric
_LEAST = float(np.finfo(np.float64).tiny)
_SLACK = 4.0  # of a bound: products of float32 kernel values are rounded
LEARNED = "learned"  # both kinds: a factor for each feature, then directions of all


@dataclass(frozen=True, eq=False)
class Round:
    """A fit at some scales (d,) f4, or the root (d, d) f4 of a metric: weights (m, T) f8, mean squared held-out error.

    The weights are of the candidates. The error is infinite, and they are zero, where no ridge makes the Gram definite.
    """

    scales: NDArray[np.float32]
    weights: NDArray[np.float64]
    held_out_error: float

    @property
    def kind(self) -> str:
        """Of the scales."""
        return kind_of(self.scales)


StatisticsAt = Callable[[int, NDArray[np.float32]], tuple[GramStatistics, GramStatistics]]
SlopesAt = Callable[[int, Round, str], NDArray[np.float64]]


def kind_of(scales: NDArray[np.float32]) -> str:
    """Return the kind of scales (d,), DIAGONAL, or (d, d), METRIC."""
    return DIAGONAL if scales.ndim == 1 else METRIC


def kinds_of(scale: str | None, n_features: int) -> tuple[str, ...]:
    """Return the kinds that are learned: for "learned" both where there are few features; none for None and "none"."""
    of_all = (DIAGONAL, METRIC) if n_features <= MOST_OF_METRIC else (DIAGONAL,)
    return of_all if scale == LEARNED else tuple(kind for kind in (DIAGONAL, METRIC) if kind == scale)


def learn_scales(
    points: NDArray[np.floating],
    statistics: StatisticsAt,
    slopes: SlopesAt,
    *,
    intercept: bool,
    kinds: tuple[str, ...] = (DIAGONAL,),
    most_rounds: int = MOST_ROUNDS,
    earlier: Sequence[Round] = (),
    on_round: Callable[[int, Round], None] = lambda number, done: None,
) -> list[Round]:
    """Return the `earlier` rounds and those after them, the first without scales; `on_round` gets each new one.

    They end after `most_rounds` with scales, or when the held-out error falls no longer with any kind.

    points (m, d) : the candidates, not scaled
    statistics(number, scales) : of the fit rows and of the held-out rows, for the round of that number
    slopes(number, round, kind) : mean squares (d,) f8 of the derivatives of a round's fit by the scaled features, or
        mean products (d, d) f8 for a metric, over a common factor
    kinds : of the scales that are tried, in this order
    """
    rounds, scales = list(earlier), np.ones(points.shape[1], np.float32)
    while (kind := _next_kind(rounds, kinds, most_rounds)) is not None:
        number = len(rounds)
        if number:
            followed = number - 1 if kind == rounds[-1].kind else best_of_all(rounds)
            scales = next_scales(rounds[followed].scales, slopes(followed, rounds[followed], kind), points)
        rounds.append(_fitted(scales, *statistics(number, scales), intercept=intercept))
        on_round(number, rounds[-1])
    return rounds


def widths_with_more(asked: float | str, typical: float) -> list[float]:
    """Return the widths on MORE_CENTERS: that asked for, the typical one of the scaled points, or WIDTHS ("auto")."""
    if isinstance(asked, str):
        return [step * typical for step in (WIDTHS if asked == "auto" else (1.0,))]
    return [float(asked)]


def best_round(
    rounds: Sequence[Round], n_held_out: float, with_more: Callable[[int], tuple[float, float]]
) -> tuple[int, list[float]]:
    """Return the number of the round to keep, and what `with_more` was asked for: errors without and with a metric.

    It is that of the lowest held-out error, but no scales (0), or scales in place of a metric, where the gain may be
    chance (mathematics.md, eq. 83). A metric gains most with few centers of large width: it must do so at the best
    width of MORE_CENTERS as well; with_more(round) returns the error there, and on how many rows.
    """
    errors = {
        kind: [one.held_out_error if one.kind == kind else np.inf for one in rounds] for kind in (DIAGONAL, METRIC)
    }
    simple, metric = (int(np.argmin(errors[kind])) for kind in (DIAGONAL, METRIC))
    if not _is_gain(errors[DIAGONAL][simple], errors[DIAGONAL][0], n_held_out):
        simple = 0
    if not _is_gain(errors[METRIC][metric], errors[DIAGONAL][simple], n_held_out):
        return simple, []
    (before, n_rows), (after, _) = with_more(simple), with_more(metric)
    return metric if _is_gain(after, before, n_rows) else simple, [before, after]


def importances(scales: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the share (d,) f8 of each feature in the squared distances between features of equal spread."""
    squares = np.square(lengths(scales), dtype=np.float64)
    return np.asarray(squares / squares.sum())


def next_scales(
    scales: NDArray[np.float32], slopes: NDArray[np.float64], points: NDArray[np.floating]
) -> NDArray[np.float32]:
    """Return scales (d,) f4 times the roots of the mean squared derivatives (d,), or the root (d, d) of a metric.

    The root is that of the mean products (d, d) of the derivatives by the scaled features (mathematics.md, eqs. 81 and
    88). The typical squared distance of the points (m, d) stays what it was, so that a width means the same in every
    round. Where the function is constant the scales stay as they are.
    """
    slopes = slopes / max(float(np.abs(slopes).max(initial=0.0)), _LEAST)
    if slopes.ndim == 1:
        learned = scales * np.sqrt(slopes)
    else:
        root = np.diag(scales).astype(np.float64) if scales.ndim == 1 else scales.astype(np.float64)
        values, vectors = np.linalg.eigh(root @ slopes @ root)
        learned = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        learned = (learned + learned.T) / 2
    if not learned.any():
        return scales
    learned /= np.abs(learned).max()
    typical = typical_sigma2(points, GAUSSIAN) / typical_sigma2(scaled(points, learned), GAUSSIAN)
    return (learned * np.sqrt(typical)).astype(np.float32)


def derivatives_of(done: Round, points: NDArray[np.floating], sigma2: float, kernel: Kernel = GAUSSIAN) -> Derivatives:
    """Return the derivatives of a round's fit on points (m, d) with their scales, over their largest weight."""
    largest = float(np.abs(done.weights).max(initial=0.0))
    return Derivatives(points, sigma2, done.weights / largest if largest else done.weights, kernel)


def largest_product(done: Round, sigma2: float, kernel: Kernel = GAUSSIAN) -> float:
    """Return a bound of the products of the derivatives of a row, over that weight.

    mathematics.md, eqs. 89 and 109.
    """
    sums = np.abs(done.weights).sum(axis=0) / max(float(np.abs(done.weights).max(initial=0.0)), _LEAST)
    return float(_SLACK * np.square(sums).sum() * steepest(kernel, sigma2) ** 2)


def best_of_all(rounds: Sequence[Round]) -> int:
    """Return the number of the round of the lowest held-out error."""
    return int(np.argmin([one.held_out_error for one in rounds]))


def _is_gain(error: float, usual: float, n_held_out: float) -> bool:
    return error < (1 - least_gain(n_held_out)) * usual


def _next_kind(rounds: Sequence[Round], kinds: tuple[str, ...], most_rounds: int) -> str | None:
    """Return the kind of the next round: that of the last as long as it gains, then the one after; None at the end."""
    errors = [one.held_out_error for one in rounds]
    if len(errors) < 2:
        return kinds[0] if not errors or np.isfinite(errors[0]) else None
    if len(errors) > most_rounds:
        return None
    if errors[-1] <= (1 - LEAST_GAIN) * min(errors[:-1]):
        return rounds[-1].kind
    later = kinds[kinds.index(rounds[-1].kind) + 1 :]
    return later[0] if later else None


def _fitted(scales: NDArray[np.float32], fit: GramStatistics, held_out: GramStatistics, *, intercept: bool) -> Round:
    try:
        best = refit(fit, held_out, fit, intercept=intercept)
    except LinAlgError:
        return Round(scales, np.zeros(fit.kty.shape), float("inf"))
    return Round(scales, best.weights.weights, min(error for _, error in best.held_out_errors))


def slopes_bytes(n_rows: int, n_points: int, n_features: int) -> int:
    """Return the bytes of the derivatives of a block of rows: columns, slopes and rows, in float64, and a metric."""
    metric = 3 * n_features**2 if n_features <= MOST_OF_METRIC else 0
    return 8 * (2 * n_rows * (n_points + n_features) + metric)
