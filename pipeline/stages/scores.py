"""One pass of scores: c_mᵀR of every candidate and output, streamed tile by tile; no column is kept.

A tile is a block of rows against a block of candidates. Where the candidates are the training rows themselves, the
kernel is symmetric: tile (i, j) serves rows i against candidates j and rows j against candidates i, so that only
half of the tiles are computed. A column of ones beside R gives the column sums Kᵀ1 at no cost, which bound the norms
of a Gaussian: ‖c_m‖² = Σ k² ≤ Σ k, since 0 ≤ k ≤ 1. Columns of other kernels, divided by √k(x_m, x_m), are not
symmetric, and their squares are summed as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline import stopping
from pipeline.feature_store import FeatureStore
from pipeline.live_features import LiveStore, open_features
from pipeline.stages.chosen_widths import kernel_of
from pipeline.stages.rows import RowTask, task_of
from pipeline.stages.run import Run, is_whole
from storage.blocks import Block, row_blocks
from storage.commit import make_folder, read_arrays, remove_folder, write_arrays

LINE_ROWS = 1024  # rows of a tile that are in memory as kernel values at once


@dataclass(frozen=True)
class ScoreTask:
    """What a worker needs to score any block of candidates: residuals and candidates are read from `folder`."""

    rows: RowTask
    tile_rows: int
    round_name: str
    symmetric: bool


@dataclass(frozen=True)
class Pass:
    """What one pass found: scores (M, T) f8 and bounds of ‖c_m‖² (M,) f8 of the evaluated candidates, and its cost."""

    scores: NDArray[np.float64]
    square_bounds: NDArray[np.float64]
    kernel_entries: int


def run_pass(
    run: Run, round_name: str, residuals: NDArray[np.float64], candidates: NDArray[np.int64], tile_rows: int, stage: str
) -> Pass:
    """Score some candidates (M,) against residuals (n, T), and return what was found.

    All training rows in order, of one width, make the pass of a Gaussian symmetric: half the kernel entries.
    """
    n_train, task_rows, symmetric = len(residuals), task_of(run), is_symmetric(run, candidates)
    folder = run.layout.scores(round_name)
    make_folder(folder.parent)
    ones = np.ones((n_train, 1))
    write_arrays(folder, {"residuals": np.hstack([residuals, ones]), "candidates": candidates})
    task = ScoreTask(rows=task_rows, tile_rows=tile_rows, round_name=round_name, symmetric=symmetric)
    blocks = row_blocks(len(candidates), tile_rows)
    # The longest first, so that the workers end together.
    order = sorted(blocks, key=lambda block: -block.index) if symmetric else blocks
    waiting = [block for block in order if not is_whole(run.layout.score_part(round_name, block.index))]
    run.run_items(stage, partial(score_block, task), waiting)
    total, entries = np.zeros((len(candidates), residuals.shape[1] + 1)), 0
    for block in blocks:
        part = read_arrays(run.layout.score_part(round_name, block.index))
        total += part["scores"]
        entries += int(part["kernel_entries"])
    return Pass(total[:, :-1], total[:, -1], entries)


def is_symmetric(run: Run, candidates: NDArray[np.int64]) -> bool:
    """Tell whether a pass over these candidates costs half: all training rows in order, one width, a Gaussian."""
    n_train = run.shape.n_train
    all_rows = len(candidates) == n_train and bool(np.array_equal(candidates, np.arange(n_train)))
    return all_rows and kernel_of(run).is_bounded


def clean(run: Run, round_name: str) -> None:
    """Remove what a pass left for its items, when what it found is committed."""
    remove_folder(run.layout.scores(round_name), durable=False)
    for path in run.layout.scores(round_name).parent.glob(f"{round_name}-part-*.npz"):
        path.unlink()


def score_block(task: ScoreTask, block: Block) -> None:
    """Score one block of candidates against its rows, and commit the sums and the count of kernel entries.

    Where the kernel is symmetric, the rows are those of this block and the ones before it, and the sums serve both.
    """
    store = open_features(task.rows.features)
    arrays = read_arrays(task.rows.layout.scores(task.round_name), mapped=True)
    residuals, candidates = arrays["residuals"], arrays["candidates"]
    generator, bounded = task.rows.generator(candidates[block.start : block.stop]), task.rows.kernel.is_bounded
    scores = np.zeros((len(candidates), residuals.shape[1]))
    own = np.ascontiguousarray(residuals[block.start : block.stop]) if task.symmetric else None
    entries = 0
    for start, X in _lines(store, task, block.stop if task.symmetric else task.rows.shape.n_train):
        stop = start + len(X)
        K: NDArray[np.float64] = generator.block(X, out_dtype=np.float64)  # type: ignore[assignment]
        found = K.T @ residuals[start:stop]
        if not bounded:
            found[:, -1] = np.einsum("ij,ij->j", K, K)
        scores[block.start : block.stop] += found
        if own is not None and start < block.start:
            scores[start:stop] += K @ own
        entries += K.size
    arrays = {"scores": scores, "kernel_entries": np.array(entries)}
    write_arrays(task.rows.layout.score_part(task.round_name, block.index), arrays, durable=False)


def _lines(store: FeatureStore | LiveStore, task: ScoreTask, n_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (first row, features) of the lines of the first `n_rows` rows; a tile's rows are read at once."""
    for block in row_blocks(n_rows, task.tile_rows):
        X = store.read("train", block.start, block.stop)
        for first in range(0, block.n_rows, LINE_ROWS):
            stopping.check()
            yield block.start + first, X[first : first + LINE_ROWS]
