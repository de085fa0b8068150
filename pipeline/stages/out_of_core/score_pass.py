"""One pass of scores: c_mᵀR of every candidate and output, streamed tile by tile; no column is kept.

A tile is a block of rows against a block of candidates. Where the candidates are the training rows themselves, the
kernel is symmetric: tile (i, j) serves rows j against candidates i and rows i against candidates j, so that only
half of the tiles are computed. A column of ones beside R gives the column sums Kᵀ1 at no cost, which bound the norms
of a Gaussian, since 0 ≤ k ≤ 1 (mathematics.md, eq. 49). Columns of other kernels, divided by √k(x_m, x_m), are not
symmetric, and their squares are summed as they are. Of rows with weights s, R is s times the residuals, and the
column beside it is s in place of ones.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.features_on_the_fly import open_features
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.exact_sums import ExactSum
from pipeline.kernels.kernel_forms import TILE_COLUMNS as COLUMNS_TILE
from pipeline.runtime import progress, stopping
from pipeline.runtime.committed_sums import Arrays
from pipeline.runtime.thread_team import ThreadTeam
from pipeline.stages.choose_bandwidth import kernel_of
from pipeline.stages.largest_values import largest_values
from pipeline.stages.out_of_core.coarse_features import as_centers, as_rows, coarse_points, pay_off, read_points
from pipeline.stages.run_state import SOLVE, Run
from pipeline.stages.target_facts import row_weights
from pipeline.stages.training_rows import RowTask, row_task
from storage.atomic_writes import make_folder, read_arrays, write_arrays
from storage.blocks import Block

TILE_ROWS = 2048  # of a tile, and its candidates: work for many, while reading both sides is little beside it
LINE_ROWS = 1024  # rows of a tile that are in memory as kernel values at once
INPUT = "input"  # the folder of what a pass reads


@dataclass(frozen=True)
class CandidateScores:
    """Scores (M, T) f8 of some candidates, bounds (M,) f8 of their ‖c_m‖², and the kernel entries that it took."""

    scores: NDArray[np.float64]
    square_bounds: NDArray[np.float64]
    kernel_entries: int


@dataclass(frozen=True)
class ScorePass:
    """The tiles of a pass: residuals and candidates are in its folder.

    largest : bounds of |c_m(x) r| for each column of the residuals; of c_m(x)² in place of the last
    """

    rows: RowTask
    folder: Path
    n_candidates: int
    largest: tuple[float, ...]
    symmetric: bool
    coarse: Path | None = None  # the folder of the coarse features that take the place of all

    def tile(self, piece: int) -> tuple[Block, Block]:
        """Return the candidates and the rows of a tile; tiles of the same candidates follow each other."""
        if self.symmetric:  # row c of a triangle has the tiles 0 to c
            c = (math.isqrt(8 * piece + 1) - 1) // 2
            r = piece - c * (c + 1) // 2
        else:
            c, r = divmod(piece, self._row_tiles)
        return _side(c, self.n_candidates), _side(r, self.rows.shape.n_train)

    @property
    def _row_tiles(self) -> int:
        return -(-self.rows.shape.n_train // TILE_ROWS)

    @property
    def n_pieces(self) -> int:
        """Number of tiles."""
        tiles = -(-self.n_candidates // TILE_ROWS)
        return tiles * (tiles + 1) // 2 if self.symmetric else tiles * self._row_tiles

    @property
    def run_length(self) -> int:
        """How many tiles are best done in a row: those of the same candidates."""
        return self._row_tiles

    @property
    def grid(self) -> tuple[object, ...]:
        """What determines the tiles."""
        sizes = (self.rows.shape.n_train, self.n_candidates, TILE_ROWS, LINE_ROWS, COLUMNS_TILE)
        return (*sizes, self.largest, self.symmetric, self.coarse is not None)

    @property
    def sums_bytes(self) -> int:
        """Bytes of the scores."""
        return 8 * self.n_candidates * (self.rows.shape.n_outputs + 1)

    @property
    def threads_a_piece(self) -> int:
        """How many tiles of columns a tile of candidates has."""
        return -(-TILE_ROWS // COLUMNS_TILE)

    def size(self, piece: int) -> float:
        """Return the kernel entries of a tile."""
        candidates, rows = self.tile(piece)
        return candidates.n_rows * rows.n_rows

    def empty(self) -> "ScoreSums":
        """Return scores of no tiles: a score gets a term from each line of rows, and from each tile of its row."""
        largest, n_terms = TILE_ROWS * np.array(self.largest), 2 * -(-self.rows.shape.n_train // LINE_ROWS) + 2
        return ScoreSums(ExactSum((self.n_candidates, len(self.largest)), largest, n_terms))

    def open(self) -> "ScoreAdder":
        """Map the residuals and the names of the candidates."""
        arrays = read_arrays(self.folder / INPUT, mapped=True)
        return ScoreAdder(self, arrays["residuals"], arrays["candidates"])


def _side(index: int, n: int) -> Block:
    """Return one of the blocks of a side of all tiles."""
    return Block(index, index * TILE_ROWS, min((index + 1) * TILE_ROWS, n))


def _sides(n: int) -> list[Block]:
    return [_side(index, n) for index in range(-(-n // TILE_ROWS))]


class ScoreSums:
    """Scores of all candidates against each column of the residuals, the last one of which are the row weights."""

    def __init__(self, scores: ExactSum) -> None:
        self.scores = scores

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the scores in units."""
        return {"scores": self.scores.units}

    def absorb(self, arrays: Arrays) -> None:
        """Add those of other tiles."""
        for _, units in arrays:
            self.scores.units += units


@dataclass(frozen=True)
class ScoreAdder:
    """The pass in a process: residuals (n, T + 1), a column of row weights last, and candidates (M,) i8.

    The residuals are f8, f4 for coarse scores, whose products are as coarse.
    """

    task: ScorePass
    residuals: NDArray[np.floating]
    candidates: NDArray[np.int64]

    def add(self, pieces: range, sums: ScoreSums, team: ThreadTeam) -> Iterator[int]:
        """Add some tiles, and yield the number of each when it is added."""
        generator, of = None, -1
        for piece in pieces:
            candidates, rows = self.task.tile(piece)
            if generator is None or of != candidates.index:
                generator, of = self._generator(candidates), candidates.index
            stopping.check()
            self._add(generator, candidates, rows, sums.scores, team)
            yield piece

    def _generator(self, block: Block) -> ColumnGenerator:
        if self.task.coarse is None:
            return self.task.rows.generator(self.candidates[block.start : block.stop])
        return self.task.rows.generator_of(as_centers(read_points(self.task.coarse, block)))

    def _rows(self, block: Block) -> NDArray[np.float32]:
        if self.task.coarse is None:
            return open_features(self.task.rows.features).read("train", block.start, block.stop)
        return as_rows(read_points(self.task.coarse, block))

    def _add(
        self, generator: ColumnGenerator, candidates: Block, rows: Block, scores: ExactSum, team: ThreadTeam
    ) -> None:
        """Add a tile, line by line (mathematics.md, eq. 69)."""
        X, dtype = self._rows(rows), self.residuals.dtype.type
        of_candidates = slice(candidates.start, candidates.stop)
        for first in range(0, rows.n_rows, LINE_ROWS):
            line = X[first : first + LINE_ROWS]
            start = rows.start + first
            of_rows = slice(start, start + len(line))
            K = generator.block(line, out_dtype=dtype, each=team.each)
            sums = K.T @ self.residuals[of_rows]
            if not self.task.rows.kernel.is_bounded:
                K *= np.sqrt(self.residuals[of_rows, -1:])
                sums[:, -1] = np.einsum("ij,ij->j", K, K)
            scores.add(sums, of_candidates)
            if self.task.symmetric and rows.index < candidates.index:
                scores.add(K @ self.residuals[of_candidates], of_rows)
            progress.advance(K.size)


def score_candidates(
    run: Run,
    name: str,
    residuals: NDArray[np.float64],
    candidates: NDArray[np.int64],
    *,
    coarse: bool = False,
) -> CandidateScores:
    """Return the scores of some candidates (M,), by name, against residuals (n, T) as `compute_residuals` has them.

    All training rows in order, of one width, make the pass of a Gaussian symmetric: half the kernel entries. Of
    these, `coarse` scores may be asked for (mathematics.md, eqs. 92 and 93): they bound nothing.
    """
    folder, symmetric = score_pass(run, name), is_symmetric(run, candidates)
    make_folder(folder)
    weights, largest = row_weights(run), largest_values(run)
    counts = np.ones((len(residuals), 1)) if weights is None else weights[:, None]
    residuals = residuals if weights is None else residuals * np.sqrt(counts)
    with run.doing(SOLVE, "storing the residuals"):
        stored = np.hstack([residuals, counts]).astype(np.float32 if coarse else np.float64)
        write_arrays(folder / INPUT, {"residuals": stored, "candidates": candidates})
    column = largest.column
    bounds = (*(column * np.abs(residuals).max(axis=0)).tolist(), max(column, column**2) * largest.weight)
    points = coarse_points(run, _sides(len(candidates))) if coarse else None
    task = ScorePass(row_task(run), folder, len(candidates), bounds, symmetric, points)
    total = run.row_pass(SOLVE, task, folder, unit="", words="scoring the candidates").scores.values()
    entries = sum(int(task.size(piece)) for piece in range(task.n_pieces))
    return CandidateScores(total[:, :-1], total[:, -1], entries)


def score_pass(run: Run, name: str) -> Path:
    """Return the folder of the pass, to be removed when its scores are stored."""
    return run.layout.row_pass(f"{name}-scores")


def is_symmetric(run: Run, candidates: NDArray[np.int64]) -> bool:
    """Tell whether a pass over these candidates costs half: all training rows in order, one width, a Gaussian."""
    n_train = run.shape.n_train
    all_rows = len(candidates) == n_train and bool(np.array_equal(candidates, np.arange(n_train)))
    return all_rows and kernel_of(run).is_bounded


def has_coarse_scores(run: Run, candidates: NDArray[np.int64]) -> bool:
    """Tell whether coarse scores of these candidates may be asked for, and pay off."""
    return pay_off(run.shape.n_features) and is_symmetric(run, candidates)
