"""Residuals of the training rows at given weights: R = Y - K w - b, one span of rows an item."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.stages import rows
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run, is_whole
from storage.blocks import Block
from storage.commit import make_folder, read_arrays, write_arrays


@dataclass(frozen=True)
class ResidualTask:
    """What a worker needs: the rows to stream and the name under which the weights are."""

    rows: RowTask
    name: str


def run(
    run: Run, name: str, centers: NDArray[np.int64], weights: NDArray[np.float64], intercept: NDArray[np.float64]
) -> tuple[NDArray[np.float64], int]:
    """Return the residuals (n, T) f8 of all training rows, and the kernel entries computed.

    centers (a,): the active candidates; weights (a, T); intercept (T,).
    """
    make_folder(run.layout.scores(name).parent)
    arrays = {"centers": centers, "weights": weights, "intercept": intercept}
    write_arrays(run.layout.residual_file(name), arrays)
    task = ResidualTask(rows.task_of(run), name)
    grid = rows.grid(task.rows, max(len(centers), 1))
    waiting = [span for span in grid if not is_whole(_part(task, span))]
    run.run_items("solve", partial(residual_span, task), waiting)
    residuals = np.empty((run.shape.n_train, len(intercept)))
    for span in grid:
        residuals[span.start : span.stop] = read_arrays(_part(task, span))["residuals"]
    return residuals, run.shape.n_train * len(centers)


def clean(run: Run, name: str) -> None:
    """Remove what was left for the items and by them, when what the residuals are for is committed."""
    run.layout.residual_file(name).unlink(missing_ok=True)
    for path in run.layout.residual_file(name).parent.glob(f"{name}-residual-part-*.npz"):
        path.unlink()


def _part(task: ResidualTask, span: Block) -> Path:
    return task.rows.layout.score_part(f"{task.name}-residual", span.index)


def residual_span(task: ResidualTask, span: Block) -> None:
    """Compute the residuals of one span and commit them."""
    arrays = read_arrays(task.rows.layout.residual_file(task.name))
    generator = task.rows.generator(arrays["centers"])
    parts = []
    for block in rows.blocks(task.rows, span):
        K = generator.block(block.X, out_dtype=np.float64)
        parts.append(block.targets - K @ arrays["weights"] - arrays["intercept"])
    write_arrays(_part(task, span), {"residuals": np.concatenate(parts)}, durable=False)
