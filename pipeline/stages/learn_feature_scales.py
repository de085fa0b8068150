"""Scales of the features, or a metric, learned in rounds of passes over the rows; each round is committed."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.feature_rows import ScaledFeatures, open_features
from pipeline.errors import InvalidDataError
from pipeline.kernels.exact_sums import Each
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_forms import GAUSSIAN, default_sigma2
from pipeline.kernels.scaled_rows import lengths
from pipeline.runtime.stored_arrays import Arrays, Stored, as_arrays, as_dataclass
from pipeline.solvers.feature_scales import (
    DIAGONAL,
    METRIC,
    MORE_CENTERS,
    TRIAL_CENTERS,
    Round,
    best_round,
    derivatives_of,
    kinds_of,
    largest_product,
    learn_scales,
    widths_with_more,
)
from pipeline.stages.accumulate_statistics import FIT, HELD_OUT, statistics_pass
from pipeline.stages.block_pass import OfBlock, Values, sum_pass, value_pass
from pipeline.stages.choose_bandwidth import bandwidth_task, errors_of, typical_width
from pipeline.stages.target_facts import TargetFacts, count_held_out
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task_of
from pipeline.stages.workspace import CENTERS, Workspace

SCALES, PASS = "scales/learned.npz", "feature-scales"
SLOPES = {DIAGONAL: "squares", METRIC: "products"}  # of the derivatives


def learn_feature_scales(work: Workspace, index: NDArray[np.int64], facts: TargetFacts) -> None:
    """Learn the scales of the features by candidates at training rows `index`, and commit them.

    With them are committed the scales (rounds, d) and held-out errors (rounds,) of all rounds, the first without
    scales, and the round chosen. Raises InvalidDataError where no rows are held out, or all are.
    """
    work.once(SCALES, lambda: _learned(work, index, facts))


def _learned(work: Workspace, index: NDArray[np.int64], facts: TargetFacts) -> Arrays:
    of_fit = _Rounds(work, index, facts)
    rounds = of_fit.learned()
    errors = [one.held_out_error for one in rounds]
    best, with_more = best_round(rounds, float(count_held_out(work, facts)), of_fit.with_more)
    gained = f"{len(rounds) - 1} rounds, held-out mean squared error {errors[0]:.6g} to {errors[best]:.6g}"
    found = {DIAGONAL: "scales of the features", METRIC: "metric of the features"}[rounds[best].kind]
    work.log(f"{found if best else 'no scales of the features'}: {gained}")
    if with_more:
        work.log(f"on more candidates {with_more[0]:.6g} without a metric, {with_more[1]:.6g} with it")
    return {
        "scales": rounds[best].scales,
        "rounds": np.stack([lengths(one.scales) for one in rounds]),
        "hold_out_errors": np.array(errors),
        "chosen": np.array(best),
    }


class _Rounds:
    """The rounds, as passes over the rows; what each gives is committed."""

    def __init__(self, work: Workspace, index: NDArray[np.int64], facts: TargetFacts) -> None:
        self._work, self._index, self._facts = work, index, facts
        # Drawn, since listed candidates, or all rows, may be sorted by class.
        self._members = np.random.default_rng([work.config.seed, 7]).permutation(np.sort(index))[:TRIAL_CENTERS]
        assert isinstance(work.features, ScaledFeatures)
        self._unscaled = work.features.features
        self._points = open_features(self._unscaled).take(self._members)
        asked = work.config.kernel.sigma2
        assert isinstance(asked, str | float)  # filled in; several are refused
        self._sigma2 = default_sigma2(self._points, GAUSSIAN) if isinstance(asked, str) else float(asked)

    def learned(self) -> list[Round]:
        """Return all rounds; those of an earlier session are taken up."""
        earlier: list[Round] = []
        while (found := self._work.committed(_name("fit", len(earlier)))) is not None:
            earlier.append(as_dataclass(found, Round))
        return learn_scales(
            self._points,
            self._statistics,
            self._slopes,
            intercept=self._work.intercept,
            kinds=kinds_of(self._work.config.kernel.scale, self._work.shape.n_features),
            most_rounds=self._work.config.kernel.scale_rounds,
            earlier=earlier,
            on_round=self._commit,
        )

    def with_more(self, number: int) -> tuple[float, float]:
        """Return the held-out error of the scales of a round on more candidates, and on how many rows it is."""
        work, features, folder = self._work, self._scaled(number), f"{PASS}/with-more-{number}"
        task = bandwidth_task(work, features, self._index, self._facts)
        asked = work.config.kernel.sigma2
        assert isinstance(asked, str | float)
        widths = widths_with_more(asked, typical_width(work, task, folder))
        n_centers = min(MORE_CENTERS, len(task.candidates))
        ((errors, n_held_out),) = errors_of(work, task, n_centers, [tuple(widths)], folder)
        return min(errors), n_held_out

    def _commit(self, number: int, done: Round) -> None:
        self._work.commit(_name("fit", number), as_arrays(done))
        self._work.drop(f"passes/{_pass(number, 'statistics')}")

    def _scaled(self, number: int) -> ScaledFeatures:
        return ScaledFeatures(self._unscaled, self._work.stored(_name("scales", number)))

    def _task(self, number: int) -> RowTask:
        return row_task_of(self._work, None, self._scaled(number), (self._sigma2,), self._facts)

    def _statistics(self, number: int, scales: NDArray[np.float32]) -> tuple[GramStatistics, GramStatistics]:
        members = self._work.commit(_name("scales", number), {"scales": scales, "members": self._members})
        task = statistics_pass(
            rows=self._task(number),
            parts=(FIT, HELD_OUT),
            n_columns=len(self._members),
            largest=self._facts.bounds(),
            members=members,
        )
        words = f"scales of the features, round {number}: statistics"
        parts = self._work.add_up(CENTERS, task, _pass(number, "statistics"), words).statistics()
        if not parts[FIT].weight_sum or not parts[HELD_OUT].weight_sum:
            raise InvalidDataError("--scale learned: all rows are held out, or none; set statistics.hold_out to 0.1")
        return parts[FIT], parts[HELD_OUT]

    def _slopes(self, number: int, done: Round, kind: str) -> NDArray[np.float64]:
        """Return the mean squares (d,) f8 of the derivatives of a round's fit, or mean products (d, d) for a metric."""
        name, words = _pass(number, "derivatives"), f"scales of the features, round {number}: derivatives"
        n_train, d = self._work.shape.n_train, self._work.shape.n_features

        def make() -> Arrays:
            task, blocks = self._task(number), row_grid("train", n_train, len(self._members) + d)
            scales, fit = (self._work.stored(_name(what, number)) for what in ("scales", "fit"))
            opened = partial(_opened, scales, fit, kind)
            if kind == DIAGONAL:
                values = self._work.add_up(CENTERS, value_pass(task, blocks, opened), name, words)
                total = np.asarray(values.in_order(SLOPES[kind]).sum(axis=0))
            else:
                largest = blocks.block_rows * self._facts.bounds().weight * largest_product(done, self._sigma2)
                sums = sum_pass(task, blocks, opened, (d, d), largest)
                total = self._work.add_up(CENTERS, sums, name, words)["sum"].values()
            return {SLOPES[kind]: total / n_train}

        slopes = self._work.once(_name(SLOPES[kind], number), make)[SLOPES[kind]]
        self._work.drop(f"passes/{name}")
        return slopes


def _name(what: str, number: int) -> str:
    """Return the name of the scales of a round with its candidates, of its fit, or of what its derivatives give."""
    return f"passes/{PASS}/{what}-{number:03d}.npz"


def _pass(number: int, what: str) -> str:
    return f"{PASS}-{number:03d}-{what}"


def _opened(scales: Stored, fit: Stored, kind: str, task: RowTask) -> OfBlock:
    """Return what sums the squares (1, d), or products (d, d), of the derivatives over the rows of a block."""
    points = open_features(task.features).take(scales.read()["members"]).astype(task.precision, copy=False)
    derivatives = derivatives_of(as_dataclass(fit.read(), Round), points, task.sigma2[0])

    def slopes(block: RowBlock, _: Each) -> Values:
        sums = derivatives.sums(block.X, kind, block.weights)
        return {SLOPES[kind]: sums[None] if kind == DIAGONAL else sums}

    return slopes
