"""What the held-out rows of an estimator tell of models: how many they get wrong, and the temperature they want."""

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
        for span, X in self.rows.blocks(n_columns):
            counted = np.flatnonzero(self.weights[span] > 0)
            columns = generator.block(X[counted], None, np.float64)
            decisions = (columns @ stacked).reshape(-1, n_models, n_outputs) + intercepts
            truth, weights = self.targets[span][counted], self.weights[span][counted]
            for model in range(n_models):
                wrong[model] += weights @ (labels_from_decision(decisions[:, model], self.task) != truth)
        return wrong

    def temperature(
        self, generator: ColumnGenerator, weights: NDArray[np.float64], intercept: NDArray[np.float64]
    ) -> float | None:
        """Return the temperature of a model's probabilities: one pass over the data (mathematics.md, eq. 76).

        weights (a, T) of the generator's columns, intercept (T,).
        """
        blocks = []
        for span, X in self.rows.blocks(len(weights)):
            counted = np.flatnonzero(self.weights[span] > 0)
            decision = generator.block(X[counted], None, np.float64) @ weights + intercept
            blocks.append(loss_slopes(decision, self.targets[span][counted], self.weights[span][counted]))
        n_different = len(np.unique(self.keys[self.weights > 0]))
        return best_temperature(replace(reduce(add, blocks), rows=n_different))
