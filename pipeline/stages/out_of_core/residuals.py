"""Residuals of the training rows at given weights: R = Y - K w - b, in one pass over kept columns.

Those of rows with weights s are times √s, since the norms are weighted (mathematics.md, eq. 9).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.feature_request import encoded_targets
from pipeline.datasets.features_on_the_fly import open_features
from pipeline.runtime import progress, stopping
from pipeline.runtime.thread_team import ThreadTeam
from pipeline.stages.block_values import BlockValues
from pipeline.stages.out_of_core.kept_columns import (
    KeptColumns,
    KeptPass,
    OpenedColumns,
    kept_files,
    write_input,
)
from pipeline.stages.run_state import Run, is_whole
from pipeline.stages.workspace import SOLVE
from storage.arrays import read_arrays, write_arrays

RESIDUALS = "residuals.npz"


def residual_pass(run: Run, name: str) -> Path:
    """Return the folder of the pass, to be removed when what the residuals are for is committed."""
    return run.layout.row_pass(f"{name}-residuals")


def compute_residuals(
    run: Run, name: str, columns: KeptColumns, weights: NDArray[np.float64], intercept: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the residuals (n, T) f8 of all training rows (mathematics.md, eq. 26).

    columns (a,): those of the active candidates; weights (a, T); intercept (T,). Weights (a, k·T) of k solutions, one
    beside the other, have residuals (n, k·T).
    """
    folder = residual_pass(run, name)
    done = folder / RESIDUALS
    if is_whole(done):  # they are wanted until the scores are done, and these take long
        return read_arrays(done)["residuals"]
    write_input(folder, columns, weights=weights, intercept=intercept)
    task = ResidualPass(kept_files(run), folder, len(columns.members))
    residuals = np.asarray(run.row_pass(SOLVE, task, folder, words="residuals").in_order("residuals"))
    write_arrays(done, {"residuals": residuals})
    return residuals


@dataclass(frozen=True)
class ResidualPass(KeptPass):
    """The residuals of weights on so many kept columns."""

    @property
    def grid(self) -> tuple[object, ...]:
        """What determines the blocks, and what is computed of them."""
        return (self.blocks, self.n_columns)

    @property
    def threads_a_piece(self) -> int:
        """One: blocks are many."""
        return 1

    @property
    def sums_bytes(self) -> int:
        """Nothing that threads would have to share: each has the values of its own blocks."""
        return 0

    def empty(self) -> BlockValues:
        """Return the residuals of no blocks."""
        return BlockValues()

    def open(self) -> "ResidualAdder":
        """Open the kept columns and the weights."""
        columns, arrays = self.opened()
        return ResidualAdder(self, columns, arrays["weights"], arrays["intercept"])


@dataclass(frozen=True)
class ResidualAdder:
    """The pass in a process: weights (a, T), intercept (T,)."""

    task: ResidualPass
    columns: OpenedColumns
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]

    def add(self, pieces: range, values: BlockValues, team: ThreadTeam) -> Iterator[int]:
        """Compute the residuals of some blocks, and yield the number of each when it has them; no feature is read."""
        rows, blocks = self.task.rows, self.task.blocks
        store = open_features(rows.features)
        for number in pieces:
            stopping.check()
            span = blocks.rows(range(number, number + 1))
            y = store.targets(blocks.part, span.start, span.stop)
            weights = rows.facts.weights(y, store.weights(blocks.part, span.start, span.stop))
            targets = encoded_targets(y, rows.shape) - rows.facts.mean
            targets = np.tile(targets, self.weights.shape[1] // targets.shape[1])
            residuals = targets - self.columns.block(number, team.each) @ self.weights - self.intercept
            if weights is not None:
                residuals *= np.sqrt(weights)[:, None]
            values.put(number, {"residuals": residuals})
            progress.advance(len(residuals))
            yield number
