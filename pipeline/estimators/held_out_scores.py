"""What the held-out rows of an estimator tell of models: how many they get wrong, and the temperature they want."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from features.row_draws import Keys
from features.targets import labels_from_decision
from pipeline.estimators.fit_data import Rows
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.models.calibration import best_temperature, loss_slopes
from pipeline.solvers.delivered_weights import UnseenWeights
from pipeline.solvers.leave_one_out import FEW_ROWS, LeftOut


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Rows with class targets (n,) i8, weights (n,) that are 0 for those not held out, and keys (n,)."""

    rows: Rows
    targets: NDArray[np.int64]
    weights: NDArray[np.float64]
    keys: Keys
    task: str

    def errors(
        self, generator: ColumnGenerator, models: NDArray[np.float64], intercepts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the weight of the rows that each of P models misclassifies, (P,): one pass over the data.

        models (P, a, T) weights of the generator's columns, intercepts (P, T).
        """
        n_models, n_columns, n_outputs = models.shape
        stacked = models.transpose(1, 0, 2).reshape(n_columns, n_models * n_outputs)
        wrong = np.zeros(n_models)
        for index, columns in self._blocks(generator, self.weights):
            decisions = (columns @ stacked).reshape(-1, n_models, n_outputs) + intercepts
            truth, weights = self.targets[index], self.weights[index]
            for model in range(n_models):
                wrong[model] += weights @ (labels_from_decision(decisions[:, model], self.task) != truth)
        return wrong

    def temperature(
        self, generator: ColumnGenerator, tried: UnseenWeights, fitted: NDArray[np.float64]
    ) -> float | None:
        """Return the temperature of a model's probabilities: one pass over the data (mathematics.md, eq. 76).

        generator: of the active columns; fitted (n,): weights of the fit rows, which join the others where all are few.
        """
        everyone = self.weights + fitted
        if tried.fit is not None and np.count_nonzero(everyone) < FEW_ROWS:
            left_out = LeftOut(tried.fit)
            for index, columns in self._blocks(generator, everyone):
                left_out.add(self.keys[index], columns, self.targets[index], everyone[index], self.weights[index] > 0)
            return best_temperature(loss_slopes(*left_out.values()))
        slopes = (
            loss_slopes(columns @ tried.weights + tried.intercept, self.targets[index], self.weights[index])
            for index, columns in self._blocks(generator, self.weights)
        )
        n_different = len(np.unique(self.keys[self.weights > 0]))
        return best_temperature(replace(reduce(add, slopes), rows=n_different))

    def _blocks(
        self, generator: ColumnGenerator, weights: NDArray[np.float64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.floating]]]:
        """Yield rows of weight above 0 by blocks: their index and columns."""
        for span, X in self.rows.blocks(generator.n_centers):
            counted = np.flatnonzero(weights[span] > 0)
            yield counted + span.start, generator.block(X[counted], None, np.float64)
