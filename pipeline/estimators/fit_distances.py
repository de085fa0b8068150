"""The distances that an estimator's kernel sees: learned scales of the features, and the width, from the data."""

from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from features.row_draws import Keys
from pipeline.estimators.filled_parameters import Filled
from pipeline.estimators.fit_data import Rows, accumulate
from pipeline.kernels.bandwidth import MEDIAN_POINTS, default_sigma2
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_forms import Kernel
from pipeline.kernels.scaled_features import scaled
from pipeline.solvers.bandwidth_choice import TRIAL_CENTERS as WIDTH_CENTERS
from pipeline.solvers.bandwidth_choice import centers_used, choose_width, held_out_errors, trial_rows
from pipeline.solvers.feature_scales import (
    DIAGONAL,
    MORE_CENTERS,
    TRIAL_CENTERS,
    Learning,
    Round,
    best_round,
    derivatives_of,
    kinds_of,
    learn_scales,
    width_of_rounds,
    widths_with_more,
)


@dataclass(frozen=True, eq=False)
class Trials:
    """What distances are found from.

    rows (n, d); points (M, d): the candidates; targets (n, T), weights (n,), keys (n,) u8, and who is held out
    (n,); dtype: of the kernel values; intercept: the fits have one; kernel: whose width it is.
    """

    rows: Rows
    points: NDArray[np.floating]
    targets: NDArray[np.float64]
    weights: NDArray[np.float64]
    keys: Keys
    held_out: NDArray[np.bool_]
    seed: int
    dtype: type
    intercept: bool
    kernel: Kernel

    def drawn(self, count: int) -> NDArray[np.floating]:
        """Return some candidates, drawn: the first may be of one class."""
        order = np.random.default_rng([self.seed, 7]).permutation(len(self.points))
        return self.points[order[:count]]

    def scaled(self, scales: NDArray[np.float32] | None) -> "Trials":
        """Return the same with scaled rows and points."""
        return replace(self, rows=self.rows.scaled(scales), points=scaled(self.points, scales))

    def errors_at(self, widths: list[float], n_centers: int) -> list[float]:
        """Return the held-out error of so many candidates at each width, on the rows that widths are tried on."""
        rows = self._rows(n_centers)
        targets, held_out, weights = self.targets[rows], self.held_out[rows], self.weights[rows]
        X = _Taken(self.rows, rows)
        return held_out_errors(
            self.drawn(n_centers), widths, self.kernel, X, targets, held_out, weights=weights
        ).tolist()

    def n_held_out(self, n_centers: int) -> int:
        """Return how many different ones of these rows are held out."""
        rows = self._rows(n_centers)
        return len(np.unique(self.keys[rows[self.held_out[rows]]]))

    def _rows(self, n_centers: int) -> NDArray[np.int64]:
        eligible = np.flatnonzero(self.weights > 0)
        return eligible[trial_rows(self.seed, len(eligible), n_centers)]


@dataclass(frozen=True, eq=False)
class _Taken:
    """Some rows, by their index (n,), ascending: no more of them in memory than are asked for at once."""

    rows: Rows
    index: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, span: slice) -> NDArray[np.floating]:
        return self.rows.take(self.index[span])


def learned_scales(trials: Trials, sigma2: float | str, scale: str, most_rounds: int) -> NDArray[np.float32]:
    """Return a scale for each feature, (d,) f4, or the root (d, d) of a metric, as the command learns them.

    Ones (d,) where none gain anything.
    """
    points = trials.drawn(TRIAL_CENTERS)
    width = width_of_rounds(sigma2, points)

    def statistics(_: int, scales: NDArray[np.float32]) -> tuple[GramStatistics, GramStatistics]:
        generator = ColumnGenerator(scaled(points, scales), width, trials.dtype)
        return accumulate(trials.rows.scaled(scales), generator, trials.targets, trials.weights, trials.held_out)

    def slopes(_: int, done: Round, kind: str) -> NDArray[np.float64]:
        derivatives = derivatives_of(done, scaled(points, done.scales).astype(trials.dtype, copy=False), width)
        blocks = trials.rows.scaled(done.scales).blocks(len(points) + points.shape[1])
        added = derivatives.squares if kind == DIAGONAL else derivatives.products
        total = reduce(add, (added(X, trials.weights[span]) for span, X in blocks))
        return np.asarray(total / trials.weights.sum())

    kinds = kinds_of(scale, points.shape[1])
    rounds = learn_scales(Learning(points, statistics, slopes, trials.intercept, kinds, most_rounds))
    n_held_out = float(len(np.unique(trials.keys[trials.held_out])))

    def with_more(number: int) -> tuple[float, float]:
        seen, n_centers = trials.scaled(rounds[number].scales), min(MORE_CENTERS, len(trials.points))
        return min(seen.errors_at(widths_with_more(sigma2, typical_width(seen)), n_centers)), seen.n_held_out(n_centers)

    return rounds[best_round(rounds, n_held_out, with_more)[0]].scales


def typical_width(trials: Trials) -> float:
    """Return the width at which kernel values are neither all alike nor all different, as the command finds it."""
    return default_sigma2(trials.drawn(MEDIAN_POINTS), trials.kernel)


def best_width(trials: Trials, n_chosen: int | None) -> float:
    """Return the width of the lowest held-out error, as `--sigma2 auto` finds it. Raises ValueError where none fits."""
    n_tried, n_used = min(WIDTH_CENTERS, len(trials.points)), centers_used(len(trials.points), n_chosen)
    best = choose_width(
        typical_width(trials),
        lambda widths: (trials.errors_at(widths, n_tried), trials.n_held_out(n_tried)),
        lambda widths: trials.errors_at(widths, n_used),
        same_size=n_used == n_tried,
    )
    if best is None:
        raise ValueError("sigma2='auto': no width gives a Gram that least squares can be fitted with; give a number")
    return best[0]


def find_distances(
    trials: Trials, filled: Filled, n_chosen: int | None
) -> tuple[NDArray[np.float32] | None, NDArray[np.float64]]:
    """Return the scales (d,) or (d, d) f4, None where none are to be learned, and the widths (W,) f8.

    n_chosen: how many centers a greedy choice is to have. Several widths have no scales.
    """
    sigma2 = filled.sigma2
    if isinstance(sigma2, tuple):
        return None, np.array(sigma2)
    scales = None if filled.scale is None else learned_scales(trials, sigma2, filled.scale, filled.scale_rounds)
    seen = trials.scaled(scales)
    if sigma2 == "auto":
        sigma2 = best_width(seen, n_chosen)
    elif sigma2 == "median":
        sigma2 = typical_width(seen)
    return scales, np.array([float(sigma2)])
