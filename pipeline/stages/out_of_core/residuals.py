"""Residuals of the training rows at given weights: R = Y - K w - b, in one pass over the rows.

Those of rows with weights s are times √s, since the norms are weighted (mathematics.md, eq. 9).
"""

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.each_tile import Each, serially
from pipeline.stages.block_values import BlockPass, OfBlock
from pipeline.stages.run_state import SOLVE, Run, is_whole
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task
from storage.atomic_writes import make_folder, read_arrays, write_arrays

WEIGHTS = "weights.npz"
RESIDUALS = "residuals.npz"


def residual_pass(run: Run, name: str) -> Path:
    """Return the folder of the pass, to be removed when what the residuals are for is committed."""
    return run.layout.row_pass(f"{name}-residuals")


def compute_residuals(
    run: Run, name: str, centers: NDArray[np.int64], weights: NDArray[np.float64], intercept: NDArray[np.float64]
) -> tuple[NDArray[np.float64], int]:
    """Return the residuals (n, T) f8 of all training rows, and the kernel entries computed.

    centers (a,): the active candidates; weights (a, T); intercept (T,). Weights (a, k·T) of k solutions, one beside
    the other, have residuals (n, k·T).
    """
    folder, entries = residual_pass(run, name), run.shape.n_train * len(centers)
    done = folder / RESIDUALS
    if is_whole(done):  # they are wanted until the scores are done, and these take long
        return read_arrays(done)["residuals"], entries
    make_folder(folder)
    write_arrays(folder / WEIGHTS, {"centers": centers, "weights": weights, "intercept": intercept})
    blocks = row_grid("train", run.shape.n_train, len(centers))
    task = BlockPass(row_task(run), blocks, partial(_opened, folder / WEIGHTS))
    residuals = run.row_pass(SOLVE, task, folder, words="residuals").in_order("residuals")
    write_arrays(done, {"residuals": residuals})
    return residuals, entries


def _opened(path: Path, task: RowTask) -> OfBlock:
    arrays = read_arrays(path)
    return partial(residuals_of, task.generator(arrays["centers"]), arrays["weights"], arrays["intercept"])


def residuals_of(
    generator: ColumnGenerator,
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    block: RowBlock,
    each: Each = serially,
) -> dict[str, NDArray[np.float64]]:
    """Return the "residuals" (rows, T) of a block of rows (mathematics.md, eq. 26)."""
    targets = np.tile(block.targets, weights.shape[1] // block.targets.shape[1])
    residuals = targets - generator.block(block.X, out_dtype=np.float64, each=each) @ weights - intercept
    if block.weights is not None:
        residuals *= np.sqrt(block.weights)[:, None]
    return {"residuals": residuals}
