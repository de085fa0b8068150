"""One pass of scores: c_mᵀR of every candidate and output, streamed tile by tile; no column is kept.

A tile is a block of rows against the candidates of some points, at all their widths (`score_tiles`). Where the points
are the training rows themselves, the kernel is symmetric: tile (i, j) serves rows j against candidates i and rows i
against candidates j, so that only half of the tiles are computed. A column of ones beside R gives the column sums Kᵀ1
at no cost, which bound the norms of a Gaussian, since 0 ≤ k ≤ 1 (mathematics.md, eq. 49). Columns of other kernels,
divided by √k(x_m, x_m), are not symmetric, and their squares are summed as they are. Of rows with weights s, R is s
times the residuals, and the column beside it is s in place of ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.features_on_the_fly import open_features
from pipeline.kernels.column_generator import ColumnGenerator
from pipeline.kernels.exact_sums import ExactSum, error_of, unit_of
from pipeline.kernels.gram_statistics import RowBounds
from pipeline.kernels.kernel_forms import TILE_COLUMNS as COLUMNS_TILE
from pipeline.runtime import progress, stopping
from pipeline.runtime.stored_arrays import Stored
from pipeline.runtime.thread_team import ThreadTeam
from pipeline.stages.accumulate_statistics import largest_values
from pipeline.stages.block_pass import ExactSums
from pipeline.stages.candidate_names import read_widths
from pipeline.stages.out_of_core.coarse_features import (
    as_centers,
    as_rows,
    coarse_points,
    pay_off,
    read_points,
)
from pipeline.stages.out_of_core.score_tiles import (
    LINE_ROWS,
    TILE_ROWS,
    ScoreTiles,
    grouped_by_point,
    line_rows_of,
)
from pipeline.stages.run_state import Run
from pipeline.stages.target_facts import row_weights
from pipeline.stages.training_rows import RowTask, row_task
from pipeline.stages.workspace import SOLVE
from storage.zarr_arrays import Block

INPUT = "input"  # the folder of what a pass reads


@dataclass(frozen=True)
class CandidateScores:
    """Scores (M, T) f8 of some candidates, bounds (M,) f8 of their ‖c_m‖², and the kernel entries that it took."""

    scores: NDArray[np.float64]
    square_bounds: NDArray[np.float64]
    kernel_entries: int


@dataclass(frozen=True)
class ScorePass:
    """The tiles of a pass; given: has the "residuals" and the "candidates".

    largest : bounds of |c_m(x) r| for each column of the residuals; of c_m(x)² in place of the last
    """

    rows: RowTask
    given: Stored
    tiles: ScoreTiles
    largest: tuple[float, ...]
    coarse: Path | None = None  # the folder of the coarse features that take the place of all

    @property
    def n_pieces(self) -> int:
        """Number of tiles."""
        return self.tiles.n_tiles

    @property
    def run_length(self) -> int:
        """How many tiles are best done in a row: those of the same candidates."""
        return self.tiles.n_of_rows

    @property
    def grid(self) -> tuple[object, ...]:
        """What determines the tiles."""
        return (self.tiles, TILE_ROWS, LINE_ROWS, COLUMNS_TILE, self.largest, self.coarse is not None)

    @property
    def sums_bytes(self) -> int:
        """Bytes of the scores."""
        return 8 * self.tiles.n_candidates * len(self.largest)

    @property
    def threads_a_piece(self) -> int:
        """How many tiles of columns a tile of candidates has."""
        return -(-TILE_ROWS // COLUMNS_TILE)

    def size(self, piece: int) -> float:
        """Return the kernel entries of a tile."""
        candidates, rows = self.tiles.tile(piece)
        return candidates.n_rows * rows.n_rows

    def empty(self) -> ExactSums:
        """Return scores of no tiles: a score gets a term from each line of rows, and from each tile of its row."""
        tiles, largest = self.tiles, TILE_ROWS * np.array(self.largest)
        n_terms = _most_terms(tiles.n_rows, tiles.line_rows)
        return ExactSums({"sum": ExactSum((tiles.n_candidates, len(self.largest)), largest, n_terms)})

    def open(self) -> "ScoreAdder":
        """Map the residuals and the names of the candidates."""
        arrays = self.given.read(mapped=True)
        return ScoreAdder(self, arrays["residuals"], arrays["candidates"])


@dataclass(frozen=True)
class ScoreAdder:
    """The pass in a process: residuals (n, T + 1), a column of row weights last, and candidates (M,) i8.

    The residuals are f8, f4 for coarse scores, whose products are as coarse.
    """

    task: ScorePass
    residuals: NDArray[np.floating]
    candidates: NDArray[np.int64]

    def add(self, pieces: range, sums: ExactSums, team: ThreadTeam) -> Iterator[int]:
        """Add some tiles, and yield the number of each when it is added."""
        generator, of = None, -1
        for piece in pieces:
            candidates, rows = self.task.tiles.tile(piece)
            if generator is None or of != candidates.index:
                generator, of = self._generator(candidates), candidates.index
            stopping.check()
            self._add(generator, candidates, rows, sums["sum"], team)
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
        of_candidates, tiles = slice(candidates.start, candidates.stop), self.task.tiles
        mirrored, of_points = tiles.mirrored(candidates, rows), tiles.points(candidates)
        for first in range(0, rows.n_rows, tiles.line_rows):
            line = X[first : first + tiles.line_rows]
            start = rows.start + first
            of_rows = slice(start, start + len(line))
            K = generator.block(line, out_dtype=dtype, each=team.each)
            sums = (self.residuals[of_rows].T @ K).T  # faster than Kᵀ times few columns
            if not self.task.rows.kernel.is_bounded:
                K *= np.sqrt(self.residuals[of_rows, -1:])
                sums[:, -1] = np.einsum("ij,ij->j", K, K)
            scores.add(sums, of_candidates)
            for columns, of_first in mirrored:
                of_line = slice(of_first + first, of_first + first + len(line))
                scores.add(K[:, columns] @ self.residuals[of_points], of_line)
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

    Those of one point share its inner products with the rows. All training rows in order, at every width, make the
    pass of a Gaussian symmetric: half the kernel entries. Of these, at one width, `coarse` scores may be asked for
    (mathematics.md, eqs. 92 and 93), the norms of which are no bounds.
    """
    n_train = run.shape.n_train
    order, starts = grouped_by_point(candidates, n_train)
    tiles = ScoreTiles(n_train, starts, is_symmetric(run, candidates))
    weights, largest = row_weights(run, run.facts), largest_values(run)
    counts = np.ones((len(residuals), 1)) if weights is None else weights[:, None]
    most = _most(largest, residuals)
    residuals = residuals if weights is None else residuals * np.sqrt(counts)
    with run.doing(SOLVE, "storing the residuals"):
        stored = np.hstack([residuals, counts]).astype(np.float32 if coarse else np.float64)
        given = run.commit(f"{score_pass(name)}/{INPUT}", {"residuals": stored, "candidates": candidates[order]})
    bounds = (*most.tolist(), max(largest.columns, largest.gram))
    points = coarse_points(run) if coarse else None
    task = ScorePass(row_task(run), given, tiles, bounds, points)
    grouped = run.add_up(SOLVE, task, f"{name}-scores", "scoring the candidates", unit="")["sum"].values()
    total = np.empty_like(grouped)
    total[order] = grouped
    entries = sum(int(task.size(piece)) for piece in range(task.n_pieces))
    return CandidateScores(total[:, :-1], total[:, -1], entries)


def score_errors(run: Run, residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most that the units of exact sums change scores against residuals (n, T) by, (T,)."""
    n_terms = _most_terms(len(residuals), line_rows_of(len(read_widths(run.layout))))
    return error_of(unit_of(TILE_ROWS * _most(largest_values(run), residuals), n_terms), n_terms)


def _most(largest: RowBounds, residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most that a row adds to a score, of √s κ times √s |R|, (T,)."""
    return np.asarray(np.sqrt(largest.gram) * np.abs(residuals).max(axis=0, initial=0.0))


def _most_terms(n_rows: int, line_rows: int) -> int:
    return 2 * -(-n_rows // line_rows) + 2


def score_pass(name: str) -> str:
    """Return what a pass of scores leaves, to be dropped when they are committed."""
    return f"passes/{name}-scores"


def is_symmetric(run: Run, candidates: NDArray[np.int64]) -> bool:
    """Tell whether a pass over these candidates costs half: all training rows in order, at every width; a Gaussian."""
    all_there_are = run.shape.n_train * len(read_widths(run.layout))
    return run.kernel.is_bounded and bool(np.array_equal(candidates, np.arange(all_there_are)))


def has_coarse_scores(run: Run, candidates: NDArray[np.int64]) -> bool:
    """Tell whether coarse scores of these candidates may be asked for, and pay off."""
    one_width = len(read_widths(run.layout)) == 1
    return one_width and pay_off(run.shape.n_features) and is_symmetric(run, candidates)
