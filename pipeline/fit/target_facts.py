"""Targets, weights and keys of the training rows, which are read once, and the facts that training derives from them.

Few rows are three numbers, all of `solvers.candidate_budget`. LEAST_FOLDED_ROWS different rows or more, but fewer than
FOLDED_ROWS, are all held out, in folds, where kernels are tried (`TargetFacts.few_rows`); least squares on them takes
its ridge from these folds (`TargetFacts.by_folds`). Fewer than LEFT_OUT_ROWS calibrate probabilities by values that
leave out their unit: their group, their image, or rows that are equal (`TargetFacts.leaves_out`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.row_draws import RowKeys, draw_held_out, held_out_limit
from features.rows import some_of
from features.targets import balanced_factors, outputs
from pipeline.config.train_config import NO_PENALTY, TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_rows import FeatureAccess, FeatureShape, open_features
from pipeline.errors import InvalidDataError
from pipeline.kernels.gram_statistics import LEAST_TARGET, RowBounds, largest_terms, too_large
from pipeline.runtime import stopping
from pipeline.solvers.candidate_budget import FOLDED_ROWS, LEAST_FOLDED_ROWS, LEFT_OUT_ROWS
from pipeline.solvers.held_out_losses import Limits, limits_of
from storage.arrays import Arrays

LARGEST_LEFT_OUT = 1000  # Larger units are not left out: the square of their rows is held.
READ_TARGETS = 65_536  # Targets, weights and keys of as many rows are read at once.


@dataclass(frozen=True)
class TargetFacts:
    """Facts of targets, row weights and keys, which are committed with the candidates."""

    mean: float = 0.0  # is subtracted from the targets
    class_factors: tuple[float, ...] = ()  # a factor of the row weights for each class; () for none
    held_out_limit: float = 0.0  # rows whose coins are below it are held out
    largest: tuple[float, ...] = ()  # the `largest_terms` of the rows
    limits: Limits = ()  # bounds of predictions of the encoded targets; () for none
    n_held_out_rows: int = 0
    n_held_out: int = 0  # the number of held-out units: groups where they are given, images, rows that differ
    leaves_out: bool = False  # whether probabilities are calibrated by values that leave each unit out
    few_rows: bool = False  # whether kernels are tried by folds of all rows
    by_folds: bool = False  # whether these folds choose the ridge of least squares, and settings that are not given

    def encoded(self, y: NDArray[Any], shape: FeatureShape) -> NDArray[np.float64]:
        """Return the outputs (rows, T) f8 that the solves fit for stored targets y (rows,), less the mean."""
        return outputs(y, shape.task, len(shape.classes)) - self.mean

    def weights(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Return the weights of rows with stored targets y (rows,) and given weights; None where each counts 1."""
        if not self.class_factors:
            return weights
        factors = np.array(self.class_factors)[y]
        return factors if weights is None else weights * factors

    def bounds(self) -> RowBounds:
        return RowBounds.of(np.array(self.largest))


def facts_of(arrays: Arrays) -> TargetFacts:
    """Return the facts among the arrays that are committed with candidates."""
    stored = {field.name: arrays[field.name] for field in fields(TargetFacts)}
    found: dict[str, Any] = {name: tuple(of.tolist()) if of.ndim else of.item() for name, of in stored.items()}
    return TargetFacts(**found)


@dataclass(frozen=True)
class Labels:
    """The n training rows without their features; in memory while candidates are drawn."""

    y: NDArray[Any]  # (n,), as stored
    keys: RowKeys  # (n,), equal for equal rows
    groups: RowKeys  # (n,); a row may be its own group
    weights: NDArray[np.float64] | None = None  # (n,); None: 1 each

    def blocks(self) -> Iterator[slice]:
        return (slice(start, start + READ_TARGETS) for start in range(0, len(self.y), READ_TARGETS))

    def weighed(self) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
        """Yield the targets and the weights of each block."""
        for rows in self.blocks():
            y = self.y[rows]
            yield y, np.ones(len(y)) if self.weights is None else self.weights[rows]

    def held_out_limit(self, seed: int, fraction: float) -> float:
        """Return the limit of `held_out` for a fraction of the rows; see `row_draws.held_out_limit`."""
        return held_out_limit(seed, fraction, (self.groups[rows] for rows in self.blocks()))

    def held_out(self, seed: int, limit: float) -> NDArray[np.bool_]:
        """Return whether rows are held out, (n,) bool."""
        return np.concatenate([draw_held_out(seed, limit, self.groups[rows]) for rows in self.blocks()])


def read_labels(features: FeatureAccess, n_rows: int) -> Labels:
    """Return the labels of all training rows: one reading, in which groups that are the keys are held once.

    No feature is read. Raises StoppedError on request, between two blocks.
    """
    store, whole = open_features(features), dict[str, NDArray[Any]]()
    for start in range(0, n_rows, READ_TARGETS):
        stopping.check()
        stop = min(start + READ_TARGETS, n_rows)
        keys, groups = store.keys_of(start, stop)
        labels = {"y": store.y[start:stop], "keys": keys}
        labels |= {} if np.may_share_memory(groups, keys) else {"groups": groups}
        labels |= {} if store.weights is None else {"weights": store.weights[start:stop]}
        for name, values in labels.items():
            whole.setdefault(name, np.empty(n_rows, values.dtype))[start:stop] = values
    return Labels(**{"groups": whole["keys"], **whole})


def row_weights(features: FeatureAccess, shape: FeatureShape, facts: TargetFacts) -> NDArray[np.float64] | None:
    """Return the weights (n,) f8 of all training rows, times the class factors; None where each counts 1."""
    if not facts.class_factors and "train" not in shape.weighted:
        return None
    rows = open_features(features)
    return facts.weights(rows.y[:], some_of(rows.weights, slice(None)))


def summarise(config: TrainConfig, shape: FeatureShape, labels: Labels, n_different: int) -> TargetFacts:
    """Return the facts of training rows, `n_different` of which differ. Raises InvalidDataError for unfit targets.

    The mean of a regression is weighted and exact, 0 without an intercept: centred targets would be another problem.
    """
    facts = TargetFacts()
    if shape.task == "regression":
        least, most = _checked_range(labels)
        if config.solver.intercept:
            total = math.fsum(weight for _, weights in labels.weighed() for weight in weights.tolist())
            values = (value for y, weights in labels.weighed() for value in (y / (total / weights)).tolist())
            facts = replace(facts, mean=math.fsum(values))
        terms = [largest_terms(facts.encoded(y, shape), weights) for y, weights in labels.weighed()]
        limits = tuple(limit - facts.mean for limit in limits_of(least, most)) if config.clips else ()
        facts = replace(facts, largest=tuple(np.max(terms, axis=0).tolist()), limits=limits)
    else:
        if config.data.class_weight is not None:
            of_classes = sum(np.bincount(y, weights, len(shape.classes)) for y, weights in labels.weighed())
            facts = replace(facts, class_factors=tuple(balanced_factors(np.asarray(of_classes)).tolist()))
        # Outputs of classes are -1 and 1: the largest terms are those of the heaviest row.
        counts = (facts.weights(y, weights) for y, weights in labels.weighed())
        heaviest = max(float(of_rows.max()) for of_rows in counts if of_rows is not None)
        facts = replace(facts, largest=tuple(largest_terms(np.ones((1, shape.n_outputs)), heaviest).tolist()))
    few_rows = LEAST_FOLDED_ROWS <= n_different < FOLDED_ROWS
    largest_unit = int(np.unique(labels.groups, return_counts=True)[1].max())
    limit = labels.held_out_limit(config.seed, config.statistics.hold_out)
    held_out = labels.held_out(config.seed, limit)
    _check_choices(config, shape, labels, limit, held_out)
    return replace(
        facts,
        held_out_limit=limit,
        n_held_out_rows=int(np.count_nonzero(held_out)),
        n_held_out=len(np.unique(labels.groups[held_out])),
        leaves_out=len(labels.y) < LEFT_OUT_ROWS and largest_unit <= LARGEST_LEFT_OUT,
        few_rows=few_rows,
        by_folds=few_rows and config.solver.is_least_squares,
    )


def _checked_range(labels: Labels) -> tuple[float, float]:
    """Return the least and the largest target of a regression. Raises InvalidDataError for too large or small ones."""
    squares = weight = 0.0
    with np.errstate(over="ignore", under="ignore"):
        for y, weights in labels.weighed():
            squares += float((weights * y) @ y)
            weight += float(weights.sum())
        squares *= weight
    if not math.isfinite(squares):
        raise too_large()
    least, most = float(labels.y.min()), float(labels.y.max())
    if 0.0 < max(-least, most) < LEAST_TARGET:
        raise InvalidDataError(f"the targets are too small: none is above {LEAST_TARGET:g}; rescale them")
    return least, most


def _check_choices(
    config: TrainConfig, shape: FeatureShape, labels: Labels, limit: float, held_out: NDArray[np.bool_]
) -> None:
    """Raise InvalidDataError where a choice needs held-out rows, and there are none, or they tell nothing."""
    asked = what_needs_held_out_rows(config)
    if asked is None:
        return
    who = "least squares" if asked == f"`solver.penalty={NO_PENALTY}`" else asked
    hold_out_none = f"`statistics.hold_out=0` without {asked}"
    if not limit:
        alike = "equal; give rows that differ" if config.data.groups is None else "of one group; give more groups"
        # scikit-learn looks for the word samples where it gives one row.
        fault = f"{who} needs held-out rows, but all {shape.n_train} samples are {alike}"
        raise InvalidDataError(fault, hold_out_none)
    if config.data.groups is None or shape.task == "regression":
        return
    fit = np.unique(labels.y[~held_out])
    if len(fit) < 2 or not np.isin(labels.y[held_out], fit).any():
        raise InvalidDataError(
            f"{who} chooses by held-out rows, but by groups {config.data.groups} the other rows lack their labels, or "
            "have one label alone; give groups of several labels",
            hold_out_none,
        )
