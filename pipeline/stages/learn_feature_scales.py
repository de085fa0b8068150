"""Scales of the features, or a metric, learned in rounds of passes over the rows; each round is committed.

Part of the centers.
"""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.features_on_the_fly import ScaledFeatures, open_features
from pipeline.errors import InvalidDataError
from pipeline.kernels.each_tile import Each
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.scaled_features import lengths
from pipeline.solvers.feature_scales import (
    DIAGONAL,
    METRIC,
    MORE_CENTERS,
    TRIAL_CENTERS,
    Derivatives,
    Learning,
    Round,
    best_round,
    derivatives_of,
    kinds_of,
    largest_product,
    learn_scales,
    width_of_rounds,
    widths_with_more,
)
from pipeline.stages.block_values import BlockPass, OfBlock, SumPass, Values
from pipeline.stages.choose_bandwidth import bandwidth_task, errors_of, typical_width
from pipeline.stages.largest_values import largest_of_bounded
from pipeline.stages.run_state import CENTERS, Run
from pipeline.stages.statistics_pass import FIT, HELD_OUT, StatisticsPass
from pipeline.stages.target_facts import TargetFacts, count_held_out
from pipeline.stages.training_rows import RowBlock, RowGrid, RowTask, row_grid, row_task_of
from storage.arrays import read_arrays, read_dataclass, write_arrays, write_dataclass
from storage.errors import remedy_of
from storage.files import make_folder
from storage.folders import remove_folder

PASS = "feature-scales"
REMEDY = remedy_of("passes")
SLOPES = {DIAGONAL: "squares", METRIC: "products"}  # of the derivatives


def learn_feature_scales(run: Run, index: NDArray[np.int64], facts: TargetFacts) -> None:
    """Learn the scales of a run whose candidates are the training rows `index`, and commit them.

    Beside them stand the lengths (rounds, d) and held-out errors (rounds,) of all rounds, the first without scales, and
    which was taken. Raises InvalidDataError where no rows are held out, or all are.
    """
    if run.layout.feature_scales.exists():
        return
    folder = run.layout.row_pass(PASS)
    make_folder(folder)
    of_run = _Rounds(run, folder, index, facts)
    rounds = of_run.learned()
    errors = [one.held_out_error for one in rounds]
    best, with_more = best_round(rounds, float(count_held_out(run, facts)), of_run.with_more)
    gained = f"{len(rounds) - 1} rounds, held-out mean squared error {errors[0]:.6g} to {errors[best]:.6g}"
    found = {DIAGONAL: "scales of the features", METRIC: "metric of the features"}[rounds[best].kind]
    run.events.say(f"{found if best else 'no scales of the features'}: {gained}")
    if with_more:
        run.events.say(f"on more candidates {with_more[0]:.6g} without a metric, {with_more[1]:.6g} with it")
    arrays = {
        "scales": rounds[best].scales,
        "rounds": np.stack([lengths(one.scales) for one in rounds]),
        "hold_out_errors": np.array(errors),
        "chosen": np.array(best),
    }
    make_folder(run.layout.feature_scales.parent)
    write_arrays(run.layout.feature_scales, arrays)
    remove_folder(folder, durable=False)


@dataclass(frozen=True)
class RoundFiles:
    """The files of a round: its scales and the names of its candidates, its fit, what its derivatives give a kind."""

    scales: Path
    fit: Path
    squares: Path
    products: Path

    def slopes(self, kind: str) -> Path:
        """Return the file of the squares or of the products of the derivatives."""
        return Path(getattr(self, SLOPES[kind]))


class _Rounds:
    """The rounds of a run, as passes over its rows."""

    def __init__(self, run: Run, folder: Path, index: NDArray[np.int64], facts: TargetFacts) -> None:
        self._run, self._folder, self._index, self._facts = run, folder, index, facts
        # Drawn, since listed candidates, or all rows, may be sorted by class.
        self._members = np.random.default_rng([run.config.seed, 7]).permutation(np.sort(index))[:TRIAL_CENTERS]
        assert isinstance(run.features, ScaledFeatures)
        self._unscaled = run.features.features
        self._points = open_features(self._unscaled).take(self._members)
        asked = run.config.kernel.sigma2
        assert isinstance(asked, str | float)  # filled in; several are refused
        self._sigma2 = width_of_rounds(asked, self._points)

    def learned(self) -> list[Round]:
        """Return all rounds; those of an earlier session are taken up."""
        learning = Learning(
            points=self._points,
            statistics=self._statistics,
            slopes=self._slopes,
            intercept=bool(self._run.config.solver.intercept),
            kinds=kinds_of(self._run.config.kernel.scale, self._run.shape.n_features),
            most_rounds=self._run.config.kernel.scale_rounds,
        )
        earlier: list[Round] = []
        while self._files(len(earlier)).fit.exists():
            earlier.append(read_dataclass(self._files(len(earlier)).fit, Round, remedy=REMEDY))
        return learn_scales(learning, earlier, self._commit)

    def with_more(self, number: int) -> tuple[float, float]:
        """Return the held-out error of the scales of a round on more candidates, and on how many rows it is."""
        run, features = self._run, ScaledFeatures(self._unscaled, self._files(number).scales)
        task = bandwidth_task(run, features, self._index, self._facts)
        asked = run.config.kernel.sigma2
        assert isinstance(asked, str | float)
        widths = widths_with_more(asked, typical_width(run, task))
        n_centers = min(MORE_CENTERS, len(task.candidates))
        ((errors, n_held_out),) = errors_of(run, task, n_centers, [tuple(widths)], self._folder / f"with-more-{number}")
        return min(errors), n_held_out

    def _commit(self, number: int, done: Round) -> None:
        write_dataclass(self._files(number).fit, done)
        remove_folder(self._pass(number, "statistics"), durable=False)

    def _files(self, number: int) -> RoundFiles:
        return RoundFiles(**{one.name: self._folder / f"{one.name}-{number:03d}.npz" for one in fields(RoundFiles)})

    def _pass(self, number: int, name: str) -> Path:
        return self._run.layout.row_pass(f"{PASS}-{number:03d}-{name}")

    def _task(self, number: int) -> RowTask:
        features = ScaledFeatures(self._unscaled, self._files(number).scales)
        return row_task_of(self._run, features, (self._sigma2,), self._facts)

    def _statistics(self, number: int, scales: NDArray[np.float32]) -> tuple[GramStatistics, GramStatistics]:
        members = self._files(number).scales
        write_arrays(members, {"scales": scales, "members": self._members})
        task = StatisticsPass(
            rows=self._task(number),
            parts=(FIT, HELD_OUT),
            n_columns=len(self._members),
            largest=largest_of_bounded(self._run, self._facts),
            members=members,
        )
        words = f"scales of the features, round {number}: statistics"
        parts = self._run.row_pass(CENTERS, task, self._pass(number, "statistics"), words=words).statistics()
        if not parts[FIT].weight_sum or not parts[HELD_OUT].weight_sum:
            raise InvalidDataError("--scale learned: all rows are held out, or none; set statistics.hold_out to 0.1")
        return parts[FIT], parts[HELD_OUT]

    def _slopes(self, number: int, done: Round, kind: str) -> NDArray[np.float64]:
        file, n = self._files(number).slopes(kind), self._run.shape.n_train
        if not file.exists():
            folder = self._pass(number, "derivatives")
            words = f"scales of the features, round {number}: derivatives"
            of_rows = self._squares if kind == DIAGONAL else self._products
            write_arrays(file, {SLOPES[kind]: of_rows(number, done, folder, words) / n})
            remove_folder(folder, durable=False)
        return np.asarray(read_arrays(file, remedy=REMEDY)[SLOPES[kind]])

    def _squares(self, number: int, _: Round, folder: Path, words: str) -> NDArray[np.float64]:
        task = BlockPass(self._task(number), self._blocks(), partial(_opened, self._files(number), DIAGONAL))
        values = self._run.row_pass(CENTERS, task, folder, words=words).in_order(SLOPES[DIAGONAL])
        return np.asarray(values.sum(axis=0))

    def _products(self, number: int, done: Round, folder: Path, words: str) -> NDArray[np.float64]:
        d, blocks = self._run.shape.n_features, self._blocks()
        opened = partial(_opened, self._files(number), METRIC)
        largest = blocks.block_rows * self._facts.heaviest * largest_product(done, self._sigma2)
        task = SumPass(self._task(number), blocks, opened, (d, d), largest)
        return self._run.row_pass(CENTERS, task, folder, words=words).values()

    def _blocks(self) -> RowGrid:
        return row_grid("train", self._run.shape.n_train, len(self._members) + self._run.shape.n_features)


def _opened(files: RoundFiles, kind: str, task: RowTask) -> OfBlock:
    points = open_features(task.features).take(read_arrays(files.scales)["members"])
    done = read_dataclass(files.fit, Round)
    derivatives = derivatives_of(done, points.astype(task.precision, copy=False), task.sigma2[0])
    return partial(_slopes_of, derivatives, kind)


def _slopes_of(derivatives: Derivatives, kind: str, block: RowBlock, _: Each) -> Values:
    """Return the sums of squares (1, d), or products (d, d), of the derivatives over the rows of a block."""
    if kind == DIAGONAL:
        return {SLOPES[kind]: derivatives.squares(block.X, block.weights)[None]}
    return {SLOPES[kind]: derivatives.products(block.X, block.weights)}
