"""What is found of all training targets, weights and keys before rows are streamed; committed with the candidates."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_held_out, held_out_limit
from features.targets import balanced_factors
from pipeline.config.parsers import NO_PENALTY
from pipeline.config.train_config import TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_request import FeatureShape, encoded_targets
from pipeline.datasets.feature_rows import FeatureAccess, open_features
from pipeline.errors import InvalidDataError
from pipeline.kernels.gram_statistics import LEAST_TARGET, RowBounds, largest_terms, too_large
from pipeline.runtime.stored_arrays import Arrays

READ_TARGETS = 65_536  # that are read at once


class RowData:
    """The rows of a fit: where their features are, what they hold, and what is asked of them."""

    features: FeatureAccess
    shape: FeatureShape
    config: TrainConfig


@dataclass(frozen=True)
class TargetFacts:
    """What training makes of targets and row weights.

    mean : is taken off the targets
    class_factors : of the weights of the rows of each class; () for none
    held_out_limit : rows whose coins are below it are held out
    largest : the `largest_terms` of the rows
    """

    mean: float = 0.0
    class_factors: tuple[float, ...] = ()
    held_out_limit: float = 0.0
    largest: tuple[float, ...] = ()

    def encoded(self, y: NDArray[Any], shape: FeatureShape) -> NDArray[np.float64]:
        """Return what the solves fit for targets y (rows,) as stored: less the mean, (rows, T) f8."""
        return encoded_targets(y, shape) - self.mean

    def weights(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Return how much rows count that have targets y (rows,) as stored, and these weights; None: 1 each."""
        if not self.class_factors:
            return weights
        factors = np.array(self.class_factors)[y]
        return factors if weights is None else weights * factors

    def bounds(self) -> RowBounds:
        """Return the bounds of the rows."""
        return RowBounds.of(np.array(self.largest))

    def arrays(self) -> Arrays:
        """Return the facts as arrays, which `facts_of` reads."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}


def find_target_facts(run: RowData) -> TargetFacts:
    """Return the facts of a run: passes over its targets and weights, where there is something to find.

    Raises InvalidDataError where the squares of the training targets leave float64, upwards or downwards, and where
    rows are to be held out that are all equal, or of one group, or whose groups leave no label to choose by.
    """
    _check_targets(run)
    weighs_classes, n_classes = run.config.data.class_weight is not None, len(run.shape.classes)
    counts = [np.bincount(y, weights, n_classes) for y, weights in target_blocks(run)] if weighs_classes else []
    facts = TargetFacts(
        mean=_mean(run),
        class_factors=tuple(balanced_factors(sum(counts, np.zeros(n_classes))).tolist()) if counts else (),
        held_out_limit=_held_out_limit(run),
    )
    return replace(facts, largest=_largest_of(run, facts))


def _largest_of(run: RowData, facts: TargetFacts) -> tuple[float, ...]:
    """Return the `largest_terms` of the rows: of classes, whose outputs are -1 and 1, those of the heaviest row."""
    if run.shape.task == "regression":
        blocks = ((facts.encoded(y, run.shape), facts.weights(y, weights)) for y, weights in target_blocks(run))
        terms = [largest_terms(targets, weights) for targets, weights in blocks]
    else:
        heaviest, outputs = [1.0], np.ones((1, run.shape.n_outputs))
        if facts.class_factors or "train" in run.shape.weighted:
            of_rows = (facts.weights(y, weights) for y, weights in target_blocks(run))
            heaviest = [float(weights.max()) for weights in of_rows if weights is not None]
        terms = [largest_terms(outputs, max(heaviest))]
    return tuple(np.max(terms, axis=0).tolist())


def facts_of(arrays: Arrays) -> TargetFacts:
    """Return the facts among arrays that are committed with candidates."""
    factors, largest = tuple(arrays["class_factors"].tolist()), tuple(arrays["largest"].tolist())
    return TargetFacts(float(arrays["mean"]), factors, float(arrays["held_out_limit"]), largest)


def held_out_rows(run: RowData, facts: TargetFacts) -> NDArray[np.bool_]:
    """Return which training rows are held out, (n,) bool."""
    blocks = (draw_held_out(run.config.seed, facts.held_out_limit, groups) for _, groups in key_blocks(run))
    return np.concatenate(list(blocks))


def count_held_out(run: RowData, facts: TargetFacts) -> int:
    """Return how many different rows are held out."""
    seed, limit, held_out = run.config.seed, facts.held_out_limit, np.empty(0, np.uint64)
    for keys, groups in key_blocks(run) if limit else ():
        held_out = np.union1d(held_out, keys[draw_held_out(seed, limit, groups)])
    return len(held_out)


def key_blocks(run: RowData) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield the keys of the training rows and of their groups, in blocks as those of `target_blocks`."""
    store = open_features(run.features)
    for start in range(0, run.shape.n_train, READ_TARGETS):
        rows = start, min(start + READ_TARGETS, run.shape.n_train)
        yield store.keys(*rows)


def all_keys(run: RowData) -> NDArray[np.uint64]:
    """Return the keys (n,) of all training rows: equal for equal ones."""
    keys, start = np.empty(run.shape.n_train, np.uint64), 0
    for of_block, _ in key_blocks(run):  # in place: the keys of many rows are held once
        keys[start : start + len(of_block)] = of_block
        start += len(of_block)
    return keys


def row_weights(run: RowData, facts: TargetFacts) -> NDArray[np.float64] | None:
    """Return the weights (n,) f8 of all training rows, their classes' factors in them; None where each counts 1."""
    if not facts.class_factors and "train" not in run.shape.weighted:
        return None
    blocks = (facts.weights(y, weights) for y, weights in target_blocks(run))
    return np.concatenate([weights for weights in blocks if weights is not None])


def target_blocks(run: RowData) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
    """Yield the targets of the training rows as stored and their own weights; no feature is read."""
    store = open_features(run.features)
    for start in range(0, run.shape.n_train, READ_TARGETS):
        y = store.targets("train", start, min(start + READ_TARGETS, run.shape.n_train))
        weights = store.weights("train", start, start + len(y))
        yield y, np.ones(len(y)) if weights is None else weights


def _held_out_limit(run: RowData) -> float:
    config, blocks = run.config, (groups for _, groups in key_blocks(run))
    limit, asked = held_out_limit(config.seed, config.statistics.hold_out, blocks), what_needs_held_out_rows(config)
    if asked is None:
        return limit
    who = "least squares" if asked == f"`solver.penalty={NO_PENALTY}`" else asked
    hold_out_none = f"`statistics.hold_out=0` without {asked}"
    if not limit:
        alike = "equal; give rows that differ" if config.data.groups is None else "of one group; give more groups"
        raise InvalidDataError(
            f"{who} needs held-out rows, but all {run.shape.n_train} training rows are {alike}, or {hold_out_none}"
        )
    if config.data.groups is not None and run.shape.task != "regression" and not _tells_labels_apart(run, limit):
        raise InvalidDataError(
            f"{who} chooses by held-out rows, but by groups {config.data.groups} the other rows lack their labels, or "
            f"have one label alone; give groups of several labels, or {hold_out_none}"
        )
    return limit


def _tells_labels_apart(run: RowData, limit: float) -> bool:
    fit = held_out = np.empty(0)
    for (y, _), (_, groups) in zip(target_blocks(run), key_blocks(run), strict=True):
        is_held_out = draw_held_out(run.config.seed, limit, groups)
        fit, held_out = np.union1d(fit, y[~is_held_out]), np.union1d(held_out, y[is_held_out])
    return len(np.unique(fit)) > 1 and bool(np.isin(held_out, fit).any())


def _mean(run: RowData) -> float:
    """Return the weighted mean of the training targets, summed exactly; 0 where they are not centred."""
    if not run.config.data.centre_targets:
        return 0.0
    total = math.fsum(weight for _, weights in target_blocks(run) for weight in weights.tolist())
    return math.fsum(value for y, weights in target_blocks(run) for value in (y / (total / weights)).tolist())


def _check_targets(run: RowData) -> None:
    """Raise InvalidDataError where the squares of the targets of a regression leave float64, upwards or downwards."""
    if run.shape.task != "regression":
        return
    squares = largest = weight = 0.0
    with np.errstate(over="ignore", under="ignore"):
        for y, weights in target_blocks(run):
            squares += float((weights * y) @ y)
            weight += float(weights.sum())
            largest = max(largest, float(np.abs(y).max(initial=0.0)))
        squares *= weight
    if not math.isfinite(squares):
        raise too_large()
    if 0.0 < largest < LEAST_TARGET:
        raise InvalidDataError(f"the targets are too small: none is above {LEAST_TARGET:g}; rescale them")
