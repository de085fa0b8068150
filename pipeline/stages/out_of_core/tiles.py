"""The tiles of a pass of correlations: the candidates of some points, at all widths, against a block of rows."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.training_rows import rows_and_widths
from storage.zarr_arrays import Block

TILE_ROWS = 2048  # of a tile, and its points: work for many, while reading both sides is little beside it
LINE_ROWS = 1024  # rows of a tile that are in memory as kernel values at once, of one width


def line_rows_of(widths: int) -> int:
    """Return the rows whose kernel values are in memory at once, of so many widths."""
    return max(LINE_ROWS // widths, 128)


@dataclass(frozen=True)
class Tiles:
    """How rows and candidates, grouped by point, are cut into tiles.

    starts : of the candidates of each tile of points, and the end of the last
    symmetric : every training row is a point, in order, at all widths: tile (i, j) serves (j, i) as well
    """

    n_rows: int
    starts: tuple[int, ...]
    symmetric: bool

    @property
    def n_candidates(self) -> int:
        """Number of candidates."""
        return self.starts[-1]

    @property
    def n_of_rows(self) -> int:
        """Number of blocks of rows, each of which meets every tile of points."""
        return -(-self.n_rows // TILE_ROWS)

    @property
    def n_tiles(self) -> int:
        """Number of tiles."""
        of_points = len(self.starts) - 1
        return of_points * (of_points + 1) // 2 if self.symmetric else of_points * self.n_of_rows

    @property
    def line_rows(self) -> int:
        """Rows whose kernel values are in memory at once: with several widths fewer, so that values are no more."""
        return line_rows_of(-(-max(map(int, np.diff(self.starts)), default=1) // TILE_ROWS))

    def tile(self, piece: int) -> tuple[Block, Block]:
        """Return the candidates and the rows of a tile; tiles of the same candidates follow each other."""
        if self.symmetric:  # row c of a triangle has the tiles 0 to c
            c = (math.isqrt(8 * piece + 1) - 1) // 2
            r = piece - c * (c + 1) // 2
        else:
            c, r = divmod(piece, self.n_of_rows)
        rows = Block(r, r * TILE_ROWS, min((r + 1) * TILE_ROWS, self.n_rows))
        return Block(c, self.starts[c], self.starts[c + 1]), rows

    def size(self, piece: int) -> int:
        """Return the kernel entries of a tile."""
        candidates, rows = self.tile(piece)
        return candidates.n_rows * rows.n_rows

    def points(self, candidates: Block) -> slice:
        """Return the points of a tile, of a symmetric pass."""
        return slice(candidates.index * TILE_ROWS, min((candidates.index + 1) * TILE_ROWS, self.n_rows))

    def mirrored(self, candidates: Block, rows: Block) -> list[tuple[slice, int]]:
        """Return, for each width, the columns of a tile and the candidate of its first row; None if not mirrored."""
        if not self.symmetric or rows.index == candidates.index:
            return []
        points, first = self.points(candidates), self.starts[rows.index]
        n = points.stop - points.start
        return [(slice(k * n, (k + 1) * n), first + k * rows.n_rows) for k in range(candidates.n_rows // n)]


def grouped_by_point(candidates: NDArray[np.int64], n_rows: int) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Return the order in which candidates (M,), by name, are tiled, and where each tile starts and ends.

    In a tile they are ordered by width, then by row.
    """
    rows, widths = rows_and_widths(candidates, n_rows)
    distinct, place = np.unique(rows, return_inverse=True)
    tile = place // TILE_ROWS
    order = np.lexsort((rows, widths, tile))
    starts = np.searchsorted(tile[order], np.arange(-(-len(distinct) // TILE_ROWS) + 1))
    return order, tuple(starts.tolist())
