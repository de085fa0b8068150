"""The pass of correlations: c_mᵀR of every candidate and output, streamed tile by tile; no column is kept.

A tile is a block of rows against some candidates (`tiles`). Where the candidates are all training rows, tile (i, j)
serves (j, i) too: half of the tiles are computed. A column of ones beside R gives Kᵀ1, which bounds the norms
(mathematics.md, eq. 49). With row weights s, R is s times the residuals, and the column beside it is s.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.feature_rows import open_features
from pipeline.kernels.exact_sums import Each, ExactSum
from pipeline.kernels.gram_statistics import RowBounds
from pipeline.kernels.kernel_functions import COLUMNS_TILE, Kernel
from pipeline.runtime import progress, stopping
from pipeline.runtime.row_pass import AddPiece, RowPass
from pipeline.runtime.stored_arrays import Stored
from pipeline.stages.filled_settings import count_candidates
from pipeline.stages.out_of_core.kept_columns import kept_blocks
from pipeline.stages.out_of_core.tiles import LINE_ROWS, TILE_ROWS, Tiles
from pipeline.stages.run_workspace import Run
from pipeline.stages.training_rows import PassBytes, RowTask, RunSize, row_weights
from pipeline.stages.workspace import SOLVE
from storage.zarr_arrays import Block


class PassResult(NamedTuple):
    """c_mᵀR (M, T) f8 of some candidates, bounds (M,) f8 of their ‖c_m‖², and the kernel entries that it took."""

    values: NDArray[np.float64]
    square_bounds: NDArray[np.float64]
    kernel_entries: int


class Tile(NamedTuple):
    """A block of rows against some candidates, whose columns the generator computes."""

    generator: Kernel
    candidates: Block
    of: Block


def _read_tiles(rows: RowTask, given: Stored, tiles: Tiles, pieces: range) -> Iterator[tuple[int, Tile]]:
    """Yield the number of each tile and the tile; tiles of the same candidates share a generator."""
    members, tile = given.read(mapped=True)["candidates"], None
    for piece in pieces:
        candidates, of = tiles.tile(piece)
        if tile is None or tile.candidates != candidates:
            tile = Tile(rows.generator(members[candidates.start : candidates.stop]), candidates, of)
        stopping.check()
        yield piece, tile._replace(of=of)


def _open_tiles(rows: RowTask, given: Stored, tiles: Tiles) -> AddPiece[ExactSum]:
    """Return what adds a tile.

    given : has the "residuals" (n, T + 1), with a column of row weights last, and the "candidates" (M,), in order
    """
    residuals = given.read(mapped=True)["residuals"]

    def add(total: ExactSum, tile: Tile, each: Each) -> None:
        """Add a tile, line by line (mathematics.md, eq. 69)."""
        generator, candidates, of = tile
        X = open_features(rows.features).read("train", of.start, of.stop)
        of_candidates, mirrored = slice(candidates.start, candidates.stop), tiles.is_mirrored(candidates, of)
        for first in range(0, of.n_rows, LINE_ROWS):
            line = X[first : first + LINE_ROWS]
            start = of.start + first
            of_line = slice(start, start + len(line))
            K = generator.block(line, out_dtype=np.float64, each=each)
            sums = (residuals[of_line].T @ K).T  # faster than Kᵀ times few columns
            total.add(sums, of_candidates)
            if mirrored:
                total.add(K @ residuals[of_candidates], of_line)
            progress.advance(K.size)

    return add


def correlate(run: Run, name: str, residuals: NDArray[np.float64], candidates: NDArray[np.int64]) -> PassResult:
    """Return c_mᵀR of some candidates (M,) and residuals (n, T) as `compute_residuals` has them.

    All training rows in order make the pass symmetric: half the kernel entries.
    """
    name, order = pass_name(name), np.argsort(candidates)
    tiles = Tiles(run.shape.n_train, len(candidates), is_symmetric(run, candidates))
    weights, largest = row_weights(run, run.facts), run.facts.bounds()
    counts = np.ones((len(residuals), 1)) if weights is None else weights[:, None]
    bounds = (*_most(largest, residuals).tolist(), largest.weight)
    residuals = residuals if weights is None else residuals * np.sqrt(counts)
    with run.status(SOLVE, "storing the residuals"):
        arrays = {"residuals": np.hstack([residuals, counts]), "candidates": candidates[order]}
        given = run.commit(f"passes/{name}/input", arrays)
    # Each candidate gets a term from each line of rows, and from each tile of its row.
    shape, n_terms = (tiles.n_candidates, len(bounds)), _most_terms(tiles.n_rows)
    task = RowPass(
        partial(_read_tiles, run.row_task, given, tiles),
        partial(_open_tiles, run.row_task, given, tiles),
        partial(ExactSum, shape, TILE_ROWS * np.array(bounds), n_terms),
        tiles.size,
        tiles.n_tiles,
        tiles.n_of_rows,
        (tiles, TILE_ROWS, LINE_ROWS, COLUMNS_TILE, bounds),
        sums_bytes=8 * math.prod(shape),
        threads_a_piece=-(-TILE_ROWS // COLUMNS_TILE),
        counts=True,
    )
    grouped = run.add_up(SOLVE, task, name, "correlations of the candidates", unit="").values()
    total = np.empty_like(grouped)
    total[order] = grouped
    entries = sum(map(tiles.size, range(tiles.n_tiles)))
    return PassResult(total[:, :-1], total[:, -1], entries)


def correlation_errors(run: Run, residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most that the units of exact sums change c_mᵀR by, for residuals (n, T): (T,)."""
    most = TILE_ROWS * _most(run.facts.bounds(), residuals)
    return ExactSum(most.shape, most, _most_terms(len(residuals))).error


def correlation_bytes(run: RunSize) -> PassBytes:
    """Return what the pass needs beside the Gram that it prices with; then residuals are made of the kept columns.

    Each thread has both sides of a tile and a line of its values, each group of threads sums of all candidates; on disk
    are those of each process, and what is committed.
    """
    n, d, workers, n_columns = run.shape.n_train, run.shape.n_features, run.workers, run.n_columns
    side, line = min(TILE_ROWS, n), min(LINE_ROWS, n)
    tile = 2 * 4 * side * d + 12 * line * side
    if run.value_bytes == 8:
        tile += 8 * (side + line) * d + 4 * line * side
    values = 8 * max(n, count_candidates(run.config, n)) * (run.shape.n_outputs + 1)
    tiles = -(-n // TILE_ROWS)
    groups = workers.groups(values, tiles * tiles, -(-TILE_ROWS // COLUMNS_TILE))
    kept = (8 + run.value_bytes) * workers.threads * kept_blocks(n, n_columns).block_rows * n_columns
    memory = 8 * n_columns**2 + max(workers.threads * tile + (groups + 5) * values, kept + 2 * values)
    return PassBytes(tiles * (tiles + 1) // 2, memory, 2 * (workers.processes + 2) * values)


def _most(largest: RowBounds, residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most that a row adds to c_mᵀR, of √s times √s |R|, (T,)."""
    return np.asarray(np.sqrt(largest.weight) * np.abs(residuals).max(axis=0, initial=0.0))


def _most_terms(n_rows: int) -> int:
    return 2 * -(-n_rows // LINE_ROWS) + 2


def pass_name(name: str) -> str:
    """Return the name of a pass; it is to be dropped when its correlations are committed."""
    return f"{name}-correlations"


def is_symmetric(run: Run, candidates: NDArray[np.int64]) -> bool:
    """Return whether a pass over these candidates costs half: all training rows."""
    return bool(np.array_equal(candidates, np.arange(run.shape.n_train)))
