"""Trials of a kernel on a sample of the rows: least squares with a width and scales, and its held-out error.

Scales of the features are learned from fits: the next scales are those of a fit times the root mean squares of its
derivatives by the features, the diagonal of a recursive feature machine (Radhakrishnan, Beaglehole, Pandit and Belkin
2024, arXiv:2212.13881); the root of the mean outer product of its gradients is a metric, the whole machine.
`solvers.ladder` searches among them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.errors import InvalidDataError
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_functions import DIAGONAL, METRIC, Kernel, lengths, scaled
from pipeline.solvers.held_out_losses import clipped, log_losses
from pipeline.solvers.ridge import (
    FIRST_RIDGE,
    RIDGE_STEPS,
    LabelledColumns,
    RidgeFit,
    Weights,
    least_squares,
    left_out,
    mean_diagonal,
    search_exponents,
)

BLOCK_ROWS = 1024
TYPICAL_POINTS = 300  # Whenever scales change, the typical width is measured anew between these points.
LEAST_GAIN = 0.01  # The least relative fall of a held-out error that counts.
SLOPE_ROWS, SLOPE_OPERATIONS = 6000, 2e10  # Derivatives are taken on at most these rows, for at most these operations.
ROWS_OF_A_NUMBER = 10  # By folds, each number of the scales needs this number of rows.
MOST_OF_METRIC = 200  # Of more features no metric is learned.
PLAIN = "plain"  # Features stay as they are.
SCALE_KINDS = (PLAIN, DIAGONAL, METRIC)  # Simpler kinds come first.
_LEAST = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Sample:
    """Training rows on which kernels are tried."""

    X: NDArray[np.floating]  # (rows, d)
    targets: NDArray[np.float64]  # (rows, T); of classes 1 and -1
    folds: NDArray[np.int64]  # (rows,): the fold that a row is held out with, -1 for none
    points: NDArray[np.floating]  # (m, d): candidates
    n_held_out: float  # how many units the held-out rows are
    of_classes: bool
    limits: NDArray[np.float64]  # (2,), of predictions, (0,) for none
    weights: NDArray[np.float64] | None = None  # (rows,); None: 1 each
    groups: NDArray[np.uint64] | None = None  # (rows,), their units, where folds calibrate

    def part(self, rows: NDArray[Any] | slice) -> "Sample":
        weights = None if self.weights is None else self.weights[rows]
        groups = None if self.groups is None else self.groups[rows]
        arrays = {name: getattr(self, name)[rows] for name in ("X", "targets", "folds")}
        return replace(self, **arrays, weights=weights, groups=groups)

    @property
    def held_out(self) -> "Sample":
        """The rows of each fold, fold by fold, without their inputs."""
        return replace(self, X=self.X[:, :0]).part(self.by_fold)

    def columns_of(self, kernel: Kernel, scales: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the kernel columns (rows, m) of some rows, whose inputs are copied a block at a time."""
        columns = np.empty((len(rows), kernel.n_centers))
        for start in range(0, len(rows), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            columns[block] = kernel.block(scaled(self.X[rows[block]], scales), None, np.float64)
        return columns

    def first(self, n_rows: int) -> "Sample":
        """Return the first `n_rows` fit rows with all held-out rows; all rows where each is of a fold."""
        of_none, folded = np.flatnonzero(self.folds < 0), np.flatnonzero(self.folds >= 0)
        return self if len(of_none) <= n_rows else self.part(np.concatenate([of_none[:n_rows], folded]))

    @property
    def fitted(self) -> NDArray[np.bool_]:
        """Which rows a trial fits: those of no fold; all where each is of one."""
        return ~(self.folds < 0) if self.by_folds else self.folds < 0

    @property
    def by_folds(self) -> bool:
        """Whether each row is of a fold."""
        return bool((self.folds >= 0).all())

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
    kind: str  # one of SCALE_KINDS
    scales: NDArray[np.float32]  # (d,), or the root (d, d) of a metric
    sigma2: float
    n_centers: int
    # Mean squared, or of classes the log loss; infinite without kernel values, or where the Gram is not definite.
    error: float = float("inf")
    ridge: int | None = None  # the exponent of its fraction of the diagonal; None: it is looked for from FIRST_RIDGE on
    typical: float = 1.0  # the typical width
    weights: NDArray[np.float64] | None = None  # (m, T)
    ridges: NDArray[np.float64] | None = None  # (tried, 2), fractions and squared errors, of a fit of its own
    held_out: NDArray[np.float64] | None = None  # (rows, T), decision values of held-out rows, fold by fold


def kinds_of(scale: str | None, kernel: type[Kernel], sample: Sample) -> tuple[str, ...]:
    """Return the kinds of scales that are learned from a sample; none for the scale None and "none".

    "learned" means all kinds with no more free numbers than fitted rows (a tenth of them where each row is of a fold);
    a metric has at most MOST_OF_METRIC features. On fewer rows scales lower the held-out error, but not the error of
    rows that differ a little.
    """
    n_features = sample.X.shape[1]
    most = np.count_nonzero(sample.fitted) / (ROWS_OF_A_NUMBER if sample.by_folds else 1)
    free = {DIAGONAL: n_features, METRIC: n_features * (n_features + 1) / 2}
    if scale != "learned":  # what was asked for
        return tuple(kind for kind in free if kind == scale)
    possible = tuple(kind for kind, numbers in free.items() if numbers <= most)
    has_metric = kernel.has_metric and n_features <= MOST_OF_METRIC
    return possible if has_metric else tuple(kind for kind in possible if kind != METRIC)


def least_gain(n_rows: float) -> float:
    """Return the relative fall of the error on `n_rows` held-out rows that may be chance (mathematics.md, eq. 86)."""
    return max(LEAST_GAIN, 0.5 / max(n_rows, 1.0) ** 0.5)


def choose(trials: Iterable[Trial], n_held_out: float) -> Trial:
    """Return the trial of the lowest error; one of simpler scales where the gain may be chance."""
    first, *others = sorted(trials, key=lambda trial: (SCALE_KINDS.index(trial.kind), trial.error))
    for trial in others:
        if trial.error < (1 - least_gain(n_held_out)) * first.error:
            first = trial
    return first


def try_kernel(sample: Sample, trial: Trial) -> Trial:
    """Return a trial with its error, ridge and weights.

    Each fold is held out once, by one fit where each row is of one, and one ridge serves all. Costs rows·m·(2d + m)
    operations, and m³/3 for each ridge that is tried, from that of the trial on: by folds twice as many and m² a row.
    What cannot be computed has an infinite error: the trial has lost.
    """
    rows, found = sample.held_out, dict[int, tuple[Weights, NDArray[np.float64]]]()
    try:
        kernel = trial.kernel(scaled(sample.points[: trial.n_centers], trial.scales), trial.sigma2)
        fit = _statistics(kernel, trial, sample)
        columns, centred = sample.columns_of(kernel, trial.scales, sample.by_fold), fit.centred()
    except InvalidDataError:
        return replace(trial, error=float("inf"), weights=None)
    ends, in_none = np.searchsorted(rows.folds, np.arange(1, rows.n_folds)), np.zeros(len(columns), bool)
    known = rows.folds, columns, rows.targets, rows.truth, rows.counts, in_none
    of_folds = [LabelledColumns(*parts) for parts in zip(*(np.split(one, ends) for one in known), strict=True)]

    def error_at(exponent: int) -> float:
        ridge = 10.0**exponent * mean_diagonal(fit)
        try:
            weights = least_squares(fit, ridge, intercept=True, centred=centred)
            f = weights.decide(columns)
            if sample.by_folds:
                (f, *_), *_ = left_out(RidgeFit(weights, fit, ridge, centred=True), of_folds)
        except LinAlgError:
            return float("inf")
        if len(f) < len(columns):  # A fold determines its own values.
            return float("inf")
        found[exponent] = weights, f
        return float(np.average(np.square(f - rows.targets).sum(axis=1), weights=rows.counts))

    errors = search_exponents(error_at, FIRST_RIDGE if trial.ridge is None else trial.ridge, RIDGE_STEPS)
    ridge = min(errors, key=lambda exponent: errors[exponent])
    if not np.isfinite(errors[ridge]):
        return replace(trial, error=float("inf"), weights=None)
    (weights, f), d = found[ridge], sample.X.shape[1]
    # Scales are learned from all folds: their numbers are charged for as in generalised cross-validation.
    free = {DIAGONAL: d, METRIC: d * (d + 1) / 2}.get(trial.kind, 0) if sample.by_folds else 0
    error = _error(f, rows) / max(1 - free / sample.n_held_out, 0.1) ** 2
    ridges = np.array([(10.0**exponent, errors[exponent]) for exponent in sorted(found)])
    return replace(trial, error=error, ridge=ridge, weights=weights.weights, ridges=ridges, held_out=f)


def constants_of_folds(sample: Sample) -> tuple[NDArray[np.float64], float]:
    """Return what the mean of the other folds predicts of the rows, fold by fold, (rows, T), and its error."""
    rows, f = sample.held_out, list[NDArray[np.float64]]()
    for fold in range(sample.n_folds):
        fitted = rows.part(rows.folds != fold)
        mean = np.average(fitted.targets, axis=0, weights=fitted.counts)
        f.append(np.tile(mean, (int(np.count_nonzero(rows.folds == fold)), 1)))
    return np.concatenate(f), _error(np.concatenate(f), rows)


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


def _statistics(kernel: Kernel, trial: Trial, sample: Sample) -> GramStatistics:
    """Return the statistics of the fit rows, a block in memory at a time."""
    m, n_outputs, fitted = kernel.n_centers, sample.targets.shape[1], np.flatnonzero(sample.fitted)
    gram, kty, yty = np.zeros((m, m)), np.zeros((m, n_outputs)), np.zeros(n_outputs)
    sums, of_targets, total = np.zeros(m), np.zeros(n_outputs), 0.0
    for start in range(0, len(fitted), BLOCK_ROWS):
        rows = fitted[start : start + BLOCK_ROWS]
        columns, y, ones = sample.columns_of(kernel, trial.scales, rows), sample.targets[rows], sample.counts[rows]
        sums, of_targets, total = sums + ones @ columns, of_targets + ones @ y, total + float(ones.sum())
        if sample.weights is not None:
            roots = np.sqrt(ones)[:, None]
            columns, y = columns * roots, y * roots
        gram += columns.T @ columns
        kty += columns.T @ y
        yty += np.einsum("it,it->t", y, y)
    return GramStatistics(gram, kty, yty, sums, of_targets, total)


def next_scales(sample: Sample, trial: Trial, kind: str, power: float = 1.0) -> NDArray[np.float32]:
    """Return the scales (d,) f4 that a fit teaches, or of a METRIC the root (d, d) (mathematics.md, eqs. 85 and 91).

    The scales of the trial times the root mean squares of the derivatives, to a power; or the root of the mean products
    of the gradients. Where the function is constant the scales stay as they are.
    """
    slopes, scales = _slopes(sample, trial, kind), trial.scales
    slopes /= max(float(np.abs(slopes).max(initial=0.0)), _LEAST)
    if slopes.ndim == 1:
        learned = (scales * np.sqrt(slopes)) ** power
    else:
        root = np.diag(scales).astype(np.float64) if scales.ndim == 1 else scales.astype(np.float64)
        values, vectors = np.linalg.eigh(root @ slopes @ root)
        learned = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        learned = (learned + learned.T) / 2
    return normalised(learned, sample, trial) if learned.any() else scales


def woken_scales(sample: Sample, trial: Trial, share: float) -> NDArray[np.float32]:
    """Return the scales of a trial, the tiny ones raised to a share of the largest (mathematics.md, eq. 98).

    A tiny scale cannot grow again, since its feature has no slope, least of all where two features matter only
    together. Of a metric all directions are woken.
    """
    scales = trial.scales.astype(np.float64)
    if scales.ndim == 1:
        return normalised(np.hypot(scales, share * scales.max()), sample, trial)
    return normalised(scales + share * float(np.linalg.norm(scales, 2)) * np.eye(len(scales)), sample, trial)


def normalised(scales: NDArray[np.floating], sample: Sample, trial: Trial) -> NDArray[np.float32]:
    """Return scales at which the typical width is that of a trial: a width means the same whatever the scales."""
    scales = (scales / np.abs(scales).max()).astype(np.float32)
    larger = trial.typical / trial.kernel.typical_sigma2(scaled(sample.points[:TYPICAL_POINTS], scales))
    return np.asarray(scales * np.float32(np.sqrt(larger)))


def _slopes(sample: Sample, trial: Trial, kind: str) -> NDArray[np.float64]:
    """Return the mean squares (d,) f8 of the derivatives of a fit by the scaled features (mathematics.md, eq. 84).

    For a METRIC the mean products (d, d). Of the fit rows, at most SLOPE_ROWS and what SLOPE_OPERATIONS pay for.
    """
    assert trial.weights is not None
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
    return total


def importances(scales: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the share (d,) f8 of each feature in the squared distances between features of equal spread."""
    squares = np.square(lengths(scales), dtype=np.float64)
    return np.asarray(squares / squares.sum())


def trial_bytes(n_rows: int, n_centers: int, n_features: int, *, by_folds: bool = False) -> int:
    """Return the bytes of a trial beside the sample: points, Grams, inputs of a block and of it scaled, and columns.

    Columns are those of the held-out rows, half of all at most (by folds all, with three temporaries of a fold), or of
    a block with temporaries.
    """
    metric = 3 * 8 * n_features**2 if n_features <= MOST_OF_METRIC else 0
    points = 4 * n_features * 6 * n_centers
    columns = max(3 * BLOCK_ROWS * (n_centers + n_features), (2 * n_rows if by_folds else n_rows // 2) * n_centers)
    folds = 4 * (n_rows // 5) ** 2 if by_folds else 0
    return points + metric + 8 * (5 * n_centers**2 + columns + folds)
