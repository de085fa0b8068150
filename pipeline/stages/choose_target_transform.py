"""The transform of a regression's targets: the one asked for, or by held-out rows, as where outliers ruin the fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from features.row_draws import draw_held_out
from features.target_transform import KINDS, TargetDistribution, TargetTransform
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import FeatureAccess, ScaledFeatures, open_features
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_forms import ColumnGenerator, default_sigma2
from pipeline.runtime import progress
from pipeline.runtime.stored_arrays import Arrays
from pipeline.solvers.candidate_budget import TRIAL_SIZES
from pipeline.solvers.kernel_trials import least_gain
from pipeline.solvers.ridge import refit
from pipeline.stages.kernel_settings import kernels_of
from pipeline.stages.target_facts import RowData, TargetFacts, key_blocks, sample_targets, target_blocks, transformed
from pipeline.stages.workspace import CENTERS, TaskCheckpoints, Workspace

TRANSFORMS = "target-transform"  # the pass of their trial
LARGEST_ERROR = 5.0  # that an error counts for, in units of the scale: an outlier is none the worse for being further
USELESS = 0.05  # of the variance of the held-out targets: a fit that explains less of it is of no use
# Where outliers are looked for, unasked: a tail (10 000 targets have 6 if normal, 18 exponential, 70 log-normal), and
# what a transform has to gain. Where tails are no mistakes, plain fits explain more, or transforms gain less.
LEAST_TAIL, LEAST_CURE = 20.0, 0.7
_BLOCK_ROWS = 1024
_Rows = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]  # columns (n, m), targets, weights (n,)


@dataclass(frozen=True)
class TransformTrial(RowData):
    """What a worker needs to try transforms: rows, candidates (training rows) and the scale of the targets."""

    features: FeatureAccess
    shape: FeatureShape
    config: TrainConfig
    facts: TargetFacts
    candidates: tuple[int, ...]
    transforms: tuple[TargetTransform, ...]
    scale: float


def choose_target_transform(
    work: Workspace, index: NDArray[np.int64], facts: TargetFacts
) -> tuple[TargetFacts, Arrays]:
    """Return the facts with the transform of the targets, and what was tried, to be committed with the candidates.

    `auto` is the transform of least held-out squared error in the units of the targets, an error counting for
    LARGEST_ERROR at most: outliers do not rule it, and without them it is the mean squared error. None, where the gain
    may be chance, or where the fit to plain targets has the lower error if errors count whole, and is not USELESS.
    `outliers` is that only where such a fit is useless, with LEAST_TAIL and LEAST_CURE. Fits are least squares on 500
    candidates, drawn from `index`, at their typical width. `transform_errors` (3,) f8: of KINDS.
    """
    asked = work.config.data.target_transform
    if asked in (None, "none"):
        return facts, {}
    distribution = TargetDistribution.of(*sample_targets(work))
    chooses = asked in ("auto", "outliers")
    if chooses and not (facts.held_out_limit and distribution.tail > (LEAST_TAIL if asked == "outliers" else 0.0)):
        return facts, {}
    kinds = KINDS[1:] if chooses else (asked,)
    transforms = [one for one in map(distribution.transform, kinds) if one is not None]
    if not chooses or not transforms:
        return (transformed(work, facts, transforms[0]) if transforms else facts), {}
    features = work.features.features if isinstance(work.features, ScaledFeatures) else work.features
    drawn = np.random.default_rng([work.config.seed, 7]).permutation(np.sort(index))[: TRIAL_SIZES[-1].few]
    trial = TransformTrial(
        features, work.shape, work.config, facts, tuple(drawn.tolist()), tuple(transforms), distribution.scale
    )
    items, words = {f"passes/{TRANSFORMS}/errors.npz": trial}, "trying transforms of the targets"
    (found,) = work.compute(CENTERS, try_transforms, items, unit="", words=words)
    best = _best(asked, found)
    names = ["none", *(one.kind for one in transforms)]
    errors = dict.fromkeys(KINDS, np.inf) | dict(zip(names, found["errors"].tolist(), strict=True))
    numbers = ", ".join(f"{kind} {error:.4g}" for kind, error in errors.items())
    work.log(f"target transform: {names[best]}, by held-out error without the excess of outliers: {numbers}")
    facts = transformed(work, facts, transforms[best - 1]) if best else facts
    return facts, {"transform_errors": np.array(list(errors.values()))}


def _best(asked: str | None, found: Arrays) -> int:
    """Return which of the trials of `try_transforms` is taken."""
    useless = found["squares"][0] > (1 - USELESS) * found["spread"]
    allowed = useless | ((asked == "auto") & (found["squares"] <= found["squares"][0]))
    best = int(np.argmin(np.where(allowed, found["errors"], np.inf)))
    least = least_gain(float(found["n_held_out"])) if asked == "auto" else LEAST_CURE
    return best if found["errors"][best] < (1 - least) * found["errors"][0] else 0


def try_transforms(trial: TransformTrial, _: TaskCheckpoints) -> Arrays:
    """Return held-out errors of least squares, first on targets as they are, then of each transform; infinite for none.

    errors, squares: mean squared errors in the units of the targets, an error counting for LARGEST_ERROR at most, or
    whole; spread: that of the mean of the fit rows; n_held_out: how many different rows they are of. At most 10 000
    rows, drawn, are used.
    """
    rows = np.sort(
        np.random.default_rng([trial.config.seed, 8]).permutation(trial.shape.n_train)[: TRIAL_SIZES[-1].n_rows]
    )
    y, weights, held_out, keys = _targets(trial, rows)
    errors, spread = np.full((2, 1 + len(trial.transforms)), np.inf), np.inf
    if weights @ held_out > 0 and weights @ ~held_out > 0:
        columns = _columns(trial, rows)
        fit, judged = ((columns[part], y[part], weights[part]) for part in (~held_out, held_out))
        errors = _errors(fit, judged, (None, *trial.transforms), LARGEST_ERROR * trial.scale)
        spread = np.average((judged[1] - np.average(fit[1], weights=fit[2])) ** 2, weights=judged[2])
    numbers = {"spread": spread, "n_held_out": len(np.unique(keys[held_out]))}
    return {"errors": errors[0], "squares": errors[1]} | {name: np.array(value) for name, value in numbers.items()}


def _targets(trial: TransformTrial, rows: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """Return targets, weights, who is held out, and keys of some training rows in ascending order, each (rows,)."""
    blocks, start = list[tuple[NDArray[Any], ...]](), 0
    for (y, weights), (keys, groups) in zip(target_blocks(trial), key_blocks(trial), strict=True):
        inside = rows[slice(*np.searchsorted(rows, (start, start + len(y))))] - start
        held_out = draw_held_out(trial.config.seed, trial.facts.held_out_limit, groups[inside])
        blocks.append((y[inside], weights[inside], held_out, keys[inside]))
        start += len(y)
    return tuple(np.concatenate(values) for values in zip(*blocks, strict=True))


def _columns(trial: TransformTrial, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the kernel columns (rows, m) of the candidates at their typical width."""
    store, settings = open_features(trial.features), trial.config.kernel
    points, kernel = store.take(np.array(trial.candidates, np.int64)), kernels_of(settings)[0]
    width = default_sigma2(points, kernel) if kernel.has_width else 1.0
    generator = ColumnGenerator(points, width, np.dtype(settings.precision).type, kernel=kernel)
    columns = np.empty((len(rows), len(points)))
    for start in range(0, len(rows), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        columns[part] = generator.block(store.take(rows[part]), out_dtype=np.float64)
        progress.advance(len(rows[part]) / len(rows), f"trying transforms of the targets on {len(rows)} rows")
    return columns


def _errors(
    fit: _Rows, judged: _Rows, transforms: Sequence[TargetTransform | None], largest: float
) -> NDArray[np.float64]:
    """Return mean squared errors (2, transforms) on the rows that judge: errors count for the largest, or whole."""
    (columns, y, weights), (judging, truth, counts) = fit, judged
    grams, errors = [part.T @ (of_rows[:, None] * part) for part, _, of_rows in (fit, judged)], []
    for transform in transforms:
        scores = [values if transform is None else transform.apply(values) for values in (y, truth)]
        of_fit = _statistics(grams[0], columns, scores[0], weights)
        try:
            best = refit(of_fit, _statistics(grams[1], judging, scores[1], counts), of_fit, intercept=True)
        except LinAlgError:
            errors.append((np.inf, np.inf))
            continue
        predicted = best.weights.decide(judging)[:, 0]
        misses = np.abs((predicted if transform is None else transform.invert(predicted)) - truth)
        with np.errstate(over="ignore"):
            squares = np.minimum(misses, largest) ** 2, misses**2
            errors.append((float(counts @ squares[0] / counts.sum()), float(counts @ squares[1] / counts.sum())))
    return np.array(errors).T


def _statistics(
    gram: NDArray[np.float64], columns: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64]
) -> GramStatistics:
    """Return the statistics of rows with these columns (n, m) of a known Gram, targets (n,) and weights (n,)."""
    counted = weights * targets
    kty, yty, total = columns.T @ counted, counted @ targets, float(weights.sum())
    return GramStatistics(gram, kty[:, None], np.array([yty]), weights @ columns, np.array([counted.sum()]), total)
