"""Which kernel, scales of the features and width have the lowest held-out error, by least squares on a sample of rows.

Scales are learned in rounds: each fits some candidates, and multiplies every scale by the root mean square of the
derivatives of that fit by the feature: the diagonal of a recursive feature machine (Radhakrishnan, Beaglehole, Pandit
and Belkin 2024, arXiv:2212.13881). The first rounds take a power of it. Where that gains no more, the whole machine
goes on from the best round: the root of the mean outer product of the gradients replaces the scales. A fit that
explains nothing has slopes that are noise, and whether it does depends on its width and on its candidates: rounds begin
at several widths, on more candidates than they have themselves, and are judged by their best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from math import floor, log2
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.errors import InvalidDataError
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_functions import DIAGONAL, METRIC, Kernel, lengths, scaled
from pipeline.solvers.held_out_losses import clipped, log_losses
from pipeline.solvers.ridge import HeldOutRows, least_squares, mean_diagonal, search_exponents, try_ridges

BLOCK_ROWS = 1024
START_WIDTHS = (1.0, 1 / 16)  # times the typical one, at which rounds of scales begin
START_CENTERS = 3  # times those of a trial: more explain something, and have slopes, where fewer explain nothing
WOKEN = 0.1  # of the largest scale, that the others have at least where rounds begin again
SHARP = 1.5  # power of the slopes in the first rounds, which find out sooner which features matter
FIRST_WIDTH = 0.5  # times the typical one, where the search for a width begins
SMALLEST, LARGEST = 2.0**-10, 2.0**6  # times the typical width: beyond, rounding rules the columns
JUDGED_AFTER, MOST_ROUNDS = 2, 12  # rounds
LEAST_GAIN = 0.01  # of a held-out error
SLOPE_ROWS, SLOPE_OPERATIONS = 4000, 2e10  # of which derivatives are taken, at most, and what they may cost
MOST_OF_METRIC = 200  # features that may have a metric
LEARNED = "learned"
PLAIN, COMMON = "plain", "common"  # features as they are; inputs on one common scale, in place of z-scores
SCALE_KINDS = (PLAIN, COMMON, DIAGONAL, METRIC)  # of scales, the simple ones first
Found = dict[str, NDArray[Any]]  # what a step of a search has found
_LEAST = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Sample:
    """Training rows on which kernels are tried."""

    X: NDArray[np.floating]  # (rows, d)
    keys: NDArray[np.uint64]  # (rows,), equal for equal rows
    targets: NDArray[np.float64]  # (rows, T); of classes 1 and -1
    folds: NDArray[np.int64]  # (rows,): the fold that a row is held out with, -1 for none
    points: NDArray[np.floating]  # (m, d): candidates
    common: NDArray[np.float32]  # (d,): the scales that put the inputs on one common scale
    n_held_out: float  # how many of the held-out rows differ
    of_classes: bool
    limits: NDArray[np.float64]  # (2,), of predictions, (0,) for none
    weights: NDArray[np.float64] | None = None  # (rows,); None: 1 each

    def part(self, rows: NDArray[Any] | slice) -> "Sample":
        weights = None if self.weights is None else self.weights[rows]
        arrays = {name: getattr(self, name)[rows] for name in ("X", "keys", "targets", "folds")}
        return replace(self, **arrays, weights=weights)

    @property
    def fitted(self) -> NDArray[np.bool_]:
        """Which rows the weights of a trial are of: those of no fold; all where each is of one."""
        of_none = self.folds < 0
        return of_none if of_none.any() else ~of_none

    @property
    def by_fold(self) -> NDArray[np.int64]:
        return np.argsort(self.folds, kind="stable")[np.count_nonzero(self.folds < 0) :]

    @property
    def n_folds(self) -> int:
        return int(self.folds.max()) + 1

    @property
    def counts(self) -> NDArray[np.float64]:
        return np.ones(len(self.X)) if self.weights is None else self.weights

    @property
    def truth(self) -> NDArray[np.int64]:
        outputs = self.targets
        return np.asarray(outputs.argmax(axis=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Trial:
    """A fit of least squares to the fit rows of a sample, and its error on the held-out rows of each fold."""

    kernel: type[Kernel]
    kind: str  # of the scales, one of SCALE_KINDS
    scales: NDArray[np.float32]  # (d,), or the root (d, d) of a metric
    sigma2: float
    n_centers: int
    # Mean squared, or of classes the log loss; infinite without kernel values, or where the Gram is not definite.
    error: float = float("inf")
    ridge: int | None = None  # the exponent of its fraction of the diagonal; None: it is looked for everywhere
    typical: float = 1.0  # the typical width
    weights: NDArray[np.float64] | None = None  # (m, T)
    ridges: NDArray[np.float64] | None = None  # (tried, 2), fractions and squared errors, of a fit of its own
    held_out: NDArray[np.float64] | None = None  # (rows, T), decision values of held-out rows, fold by fold


@dataclass(frozen=True)
class Search:
    """How kernels are tried."""

    n_centers: int
    kinds: tuple[str, ...] = ()  # of learned scales
    sigma2: float | None = None  # the width where it is given; None: it is chosen as well
    on_round: Callable[[Trial], None] = lambda trial: None  # called with the best width of each round
    once: Callable[[Callable[[], Found]], Found] = lambda make: make()  # returns what was made at this place before

    def tried(self, sample: Sample, trial: Trial) -> Trial:
        found = self.once(lambda: _result_of(try_kernel(sample, trial)))
        ridge, weights = found["ridge"], found["weights"]
        return replace(
            trial,
            error=float(found["error"]),
            ridge=int(ridge[0]) if ridge.size else None,
            weights=weights if weights.size else None,
        )


def _result_of(trial: Trial) -> Found:
    return {
        "error": np.array(trial.error),
        "ridge": np.array([] if trial.ridge is None else [trial.ridge], np.int64),
        "weights": np.zeros((0, 0)) if trial.weights is None else trial.weights,
    }


def kinds_of(scale: str | None, kernel: type[Kernel], n_features: int, n_rows: float) -> tuple[str, ...]:
    """Return the kinds of scales that are learned from so many rows; none for the scale None and "none".

    For "learned" all that there are: a metric of no more features than MOST_OF_METRIC, and of no more free numbers than
    there are rows. With fewer rows it lowers the held-out error, and not that of rows that are a little different.
    """
    free = n_features * (n_features + 1) / 2
    has_metric = kernel.has_metric and n_features <= MOST_OF_METRIC and free <= n_rows
    possible = (DIAGONAL, METRIC) if has_metric else (DIAGONAL,)
    return possible if scale == LEARNED else tuple(kind for kind in (DIAGONAL, METRIC) if kind == scale)


def least_gain(n_rows: float) -> float:
    """Return the relative fall of the error on so many held-out rows that may be chance (mathematics.md, eq. 86)."""
    return max(LEAST_GAIN, 0.5 / max(n_rows, 1.0) ** 0.5)


def simplest(trials: Sequence[Trial], n_held_out: float) -> Trial:
    """Return the trial of the lowest error; an earlier one where what it gains may be chance."""
    chosen = trials[0]
    for trial in trials[1:]:
        if trial.error < (1 - least_gain(n_held_out)) * chosen.error:
            chosen = trial
    return chosen


def try_kernel(sample: Sample, trial: Trial) -> Trial:
    """Return a trial with its error, ridge and weights.

    Each fold is held out once, and one ridge serves all. Costs rows·m·(2d + m) operations, and m³/3 for each fold and
    each ridge that is tried: from its own on, or all. What cannot be computed has an infinite error: the trial has
    lost.
    """
    rows = sample.part(sample.by_fold)
    ends = np.searchsorted(rows.folds, np.arange(sample.n_folds + 1))
    spans = [slice(*span) for span in pairwise(ends.tolist())]
    try:
        kernel = trial.kernel(scaled(sample.points[: trial.n_centers], trial.scales), trial.sigma2)
        if sample.n_folds == 1:
            fit = _statistics(kernel, trial, sample.part(sample.fitted))
            fits = [fit]
        else:  # sums, since differences would round more
            parts = [_statistics(kernel, trial, rows.part(span)) for span in spans]
            fits = [reduce(add, parts[:fold] + parts[fold + 1 :]) for fold in range(len(parts))]
            fit = fits[0] + parts[0]
        columns = kernel.block(scaled(rows.X, trial.scales), None, np.float64)
        of_spans = [(columns[span], rows.part(span)) for span in spans]
        held_out = [HeldOutRows(float(some.counts.sum()), partial(_squared_error, K, some)) for K, some in of_spans]
        ridges, weights = try_ridges(list(zip(fits, held_out, strict=True)), start=trial.ridge, intercept=True)
        if not ridges:
            return replace(trial, error=float("inf"), weights=None)
        fraction, _ = min(ridges, key=lambda pair: pair[1])
        found = weights[fraction]
        whole = found[0] if len(found) == 1 else least_squares(fit, fraction * mean_diagonal(fit), intercept=True)
    except (InvalidDataError, LinAlgError):
        return replace(trial, error=float("inf"), weights=None)
    f = np.concatenate([of_fold.decide(columns[span]) for of_fold, span in zip(found, spans, strict=True)])
    d, ridge = sample.X.shape[1], round(np.log10(fraction))
    # Scales are learned from all folds: their numbers are charged for as in generalised cross-validation.
    free = {DIAGONAL: d, METRIC: d * (d + 1) / 2}.get(trial.kind, 0) if sample.n_folds > 1 else 0
    error = _error(f, rows) / max(1 - free / sample.n_held_out, 0.1) ** 2
    return replace(trial, error=error, ridge=ridge, weights=whole.weights, ridges=np.array(ridges), held_out=f)


def _squared_error(
    columns: NDArray[np.floating], rows: Sample, weights: NDArray[np.float64], intercept: NDArray[np.float64]
) -> NDArray[np.float64]:
    off = columns @ weights + intercept - rows.targets
    return np.asarray(rows.counts @ np.square(off))


def _error(f: NDArray[np.float64], rows: Sample) -> float:
    """Return the mean squared error of predictions f (rows, T) within the limits; of classes the log loss.

    The squared error of classes counts decision values beyond ±1, which no probability minds: it preferred metrics
    whose machines made more errors.
    """
    if rows.of_classes:
        losses = log_losses(f, rows.truth, rows.counts, rows.n_held_out)
    else:
        losses = np.square(clipped(f, tuple(rows.limits)) - rows.targets).sum(axis=1)
    return float(np.average(losses, weights=rows.counts))


def _statistics(kernel: Kernel, trial: Trial, rows: Sample) -> GramStatistics:
    m, n_outputs = kernel.n_centers, rows.targets.shape[1]
    gram, kty, yty = np.zeros((m, m)), np.zeros((m, n_outputs)), np.zeros(n_outputs)
    sums, of_targets, total = np.zeros(m), np.zeros(n_outputs), 0.0
    for start in range(0, len(rows.X), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        columns, y = kernel.block(scaled(rows.X[block], trial.scales), None, np.float64), rows.targets[block]
        ones = rows.counts[block]
        sums, of_targets, total = sums + ones @ columns, of_targets + ones @ y, total + float(ones.sum())
        if rows.weights is not None:
            roots = np.sqrt(ones)[:, None]
            columns, y = columns * roots, y * roots
        gram += columns.T @ columns
        kty += columns.T @ y
        yty += np.einsum("it,it->t", y, y)
    return GramStatistics(gram, kty, yty, sums, of_targets, total)


def best_width(sample: Sample, start: Trial, search: Search) -> list[Trial]:
    """Return trials at widths: by halves from that of `start` while the error falls, else doubled; the best first.

    The error is taken to fall towards the best width and to rise beyond it; smaller widths are tried first, since the
    best is smaller with more candidates (mathematics.md, eq. 83).
    """
    trials, ridge = dict[int, Trial](), start.ridge

    def error_at(step: int) -> float:
        nonlocal ridge
        trials[step] = search.tried(sample, replace(start, sigma2=start.sigma2 * 2.0**step, ridge=ridge))
        ridge = trials[step].ridge
        return trials[step].error

    least = most = 0
    if search.sigma2 is None:
        least, most = (floor(log2(bound * start.typical / start.sigma2)) for bound in (SMALLEST, LARGEST))
    search_exponents(error_at, 0, range(min(least, 0), max(most, 0) + 1))
    return sorted(trials.values(), key=lambda trial: trial.error)


def search_kernel(sample: Sample, kernel: type[Kernel], search: Search) -> list[Trial]:
    """Return the trials of a kernel that are worth more candidates, simple ones first; the best is the last."""
    ones = np.ones(sample.points.shape[1], np.float32)
    starts = [(PLAIN, ones)]
    if search.kinds and np.ptp(sample.common) > 1e-3:
        starts.append((COMMON, sample.common))
    found = [_first(sample, Trial(kernel, *start, 1.0, search.n_centers), search) for start in starts]
    kept = [found[0]]
    if len(found) > 1 and simplest(found, sample.n_held_out) is found[1]:
        kept.append(found[1])
    if search.kinds:
        kept += [trial for trial in learn_scales(sample, kept[-1], search) if trial.error < kept[-1].error]
    best = simplest(kept, sample.n_held_out)
    return kept[: kept.index(best) + 1]


def search_from(
    sample: Sample, kernel: type[Kernel], kind: str, scales: NDArray[np.float32], search: Search
) -> list[Trial]:
    """Return the trials of a kernel with scales of a kind that another has found, and with those that rounds make."""
    line = [_first(sample, Trial(kernel, kind, scales, 1.0, search.n_centers), search)]
    line += _rounds(sample, line[0], kind, 1, search)
    line = _while_gaining(sample, line, kind, search)
    return [min(line, key=lambda trial: trial.error)]


def _first(sample: Sample, trial: Trial, search: Search) -> Trial:
    typical = trial.kernel.default_sigma2(scaled(sample.points, trial.scales))
    sigma2 = search.sigma2 or FIRST_WIDTH * typical
    best = best_width(sample, replace(trial, sigma2=sigma2, typical=typical), search)[0]
    search.on_round(best)
    return best


def learn_scales(sample: Sample, base: Trial, search: Search) -> list[Trial]:
    """Return the best trial of each kind of learned scales, from rounds that begin with the scales of `base`."""
    best = list[Trial]()
    for kind in search.kinds:
        start, power = min([base, *best], key=lambda trial: trial.error), SHARP if kind == DIAGONAL else 1.0
        starts = _starts(sample, start, search)
        lines = [[start, *_rounds(sample, one, kind, JUDGED_AFTER, search, power)] for one in starts]
        line = min(lines, key=lambda line: min(trial.error for trial in line[1:]))
        if kind == DIAGONAL:
            line = _while_gaining(sample, line, kind, search, SHARP)
            last = min(line[1:], key=lambda trial: trial.error)
            line = _while_gaining(sample, [*line, *_rounds(sample, last, kind, 1, search)], kind, search)
            line += _rounds(sample, _woken(sample, line[1:], search), kind, 1, search)
        best.append(min(_while_gaining(sample, line, kind, search)[1:], key=lambda trial: trial.error))
    return best


def _woken(sample: Sample, line: list[Trial], search: Search) -> Trial:
    """Return the best trial of a line, with features that rounds have put to sleep a little awake: on more candidates.

    A scale that has become tiny cannot grow again, since its feature has no slope: the more so where two of them matter
    together alone.
    """
    best = min(line, key=lambda trial: trial.error)
    scales = np.hypot(best.scales, WOKEN * best.scales.max())
    scales *= np.sqrt(best.typical / best.kernel.typical_sigma2(scaled(sample.points, scales)))
    n_centers = min(START_CENTERS * search.n_centers, len(sample.points))
    return search.tried(sample, replace(best, scales=scales.astype(np.float32), n_centers=n_centers, ridge=None))


def _starts(sample: Sample, base: Trial, search: Search) -> list[Trial]:
    widths = [search.sigma2] if search.sigma2 is not None else [step * base.typical for step in START_WIDTHS]
    n_centers = min(START_CENTERS * search.n_centers, len(sample.points))
    return [search.tried(sample, replace(base, sigma2=width, n_centers=n_centers, ridge=None)) for width in widths]


def _while_gaining(sample: Sample, line: list[Trial], kind: str, search: Search, power: float = 1.0) -> list[Trial]:
    line = list(line)
    while len(line) <= MOST_ROUNDS and line[-1].error < (1 - LEAST_GAIN) * min(trial.error for trial in line[:-1]):
        line += _rounds(sample, line[-1], kind, 1, search, power)
    return line


def _rounds(sample: Sample, trial: Trial, kind: str, count: int, search: Search, power: float = 1.0) -> list[Trial]:
    trials = [trial]
    for _ in range(count):
        last = trials[-1]
        found = search.once(partial(slopes, sample, last, kind))
        scales = next_scales(last, found["slopes"], sample.points, power)
        of_round = replace(last, kind=kind, scales=scales, n_centers=search.n_centers)
        trials.append(best_width(sample, of_round, search)[0])
        search.on_round(trials[-1])
    return trials[1:]


def slopes(sample: Sample, trial: Trial, kind: str) -> Found:
    """Return, as `slopes`, the mean squares (d,) f8 of the derivatives of a fit by the scaled features.

    For a METRIC the mean products (d, d). Of the fit rows, at most SLOPE_ROWS and what SLOPE_OPERATIONS pay for.
    """
    if trial.weights is None:
        return {"slopes": np.zeros(len(trial.scales))}
    points, largest = scaled(sample.points[: trial.n_centers], trial.scales), np.abs(trial.weights).max(initial=_LEAST)
    kernel, outputs = trial.kernel(points, trial.sigma2, points.dtype.type), trial.weights / largest
    each = 2.0 * points.size * (1 + trial.weights.shape[1])
    rows = np.flatnonzero(sample.fitted)
    rows = rows[:: max(-(-len(rows) // max(min(SLOPE_ROWS, int(SLOPE_OPERATIONS / each)), 1)), 1)]
    total = np.zeros(points.shape[1]) if kind == DIAGONAL else np.zeros((points.shape[1],) * 2)
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        weights = None if sample.weights is None else sample.weights[block]
        total += kernel.slope_sums(scaled(sample.X[block], trial.scales), outputs, kind, weights)
    return {"slopes": total}


def next_scales(
    trial: Trial, slopes: NDArray[np.float64], points: NDArray[np.floating], power: float = 1.0
) -> NDArray[np.float32]:
    """Return the scales (d,) f4 of a trial times the roots of the mean squared derivatives (d,), or the root (d, d).

    Of the former a power; the root is that of the mean products (d, d) of the derivatives by the scaled features
    (mathematics.md, eqs. 85 and 91), of a metric. The typical width of the points (m, d) stays that of the trial, so
    that a width means the same in every round. Where the function is constant the scales stay as they are.
    """
    scales = trial.scales
    slopes = slopes / max(float(np.abs(slopes).max(initial=0.0)), _LEAST)
    if slopes.ndim == 1:
        learned = (scales * np.sqrt(slopes)) ** power
    else:
        root = np.diag(scales).astype(np.float64) if scales.ndim == 1 else scales.astype(np.float64)
        values, vectors = np.linalg.eigh(root @ slopes @ root)
        learned = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        learned = (learned + learned.T) / 2
    if not learned.any():
        return scales
    learned /= np.abs(learned).max()
    larger = trial.typical / trial.kernel.typical_sigma2(scaled(points, learned))
    return (learned * np.sqrt(larger)).astype(np.float32)


def importances(scales: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the share (d,) f8 of each feature in the squared distances between features of equal spread."""
    squares = np.square(lengths(scales), dtype=np.float64)
    return np.asarray(squares / squares.sum())


def choose(finalists: Sequence[Trial], n_held_out: float) -> Trial:
    """Return the best of trials on equally many candidates: simple scales and the first kernels where in doubt."""
    order = sorted(finalists, key=lambda trial: SCALE_KINDS.index(trial.kind))
    return simplest(order, n_held_out)


def trial_bytes(n_rows: int, n_centers: int, n_features: int, n_folds: int = 1) -> int:
    """Return the bytes of a trial: the sample, twice where it is scaled, points, columns, and Grams.

    Columns are those of a block with temporaries, or those of the rows that are held out: half of all at most.
    """
    grams = 4 if n_folds == 1 else 4 + 3 * n_folds
    metric = 3 * 8 * n_features**2 if n_features <= MOST_OF_METRIC else 0
    rows = 4 * n_features * (n_rows + 3 * n_centers)
    columns = max(3 * BLOCK_ROWS, n_rows // 2) * (n_centers + n_features)
    return 2 * rows + metric + 8 * (grams * n_centers**2 + columns)
