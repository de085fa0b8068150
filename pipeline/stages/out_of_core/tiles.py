"""The tiles of a pass of correlations: some candidates against a block of rows."""

import math
from dataclasses import dataclass

from storage.zarr_arrays import Block

TILE_ROWS = 2048  # of a tile, and its candidates: work for many, while reading both sides is little beside it
LINE_ROWS = 1024  # rows of a tile that are in memory as kernel values at once


@dataclass(frozen=True)
class Tiles:
    """How rows and candidates, in the order of their rows, are cut into tiles.

    symmetric : every training row is a candidate, in order: tile (i, j) serves (j, i) as well
    """

    n_rows: int
    n_candidates: int
    symmetric: bool

    @property
    def n_of_rows(self) -> int:
        """Number of blocks of rows, each of which meets every block of candidates."""
        return -(-self.n_rows // TILE_ROWS)

    @property
    def n_tiles(self) -> int:
        """Number of tiles."""
        of_candidates = -(-self.n_candidates // TILE_ROWS)
        return of_candidates * (of_candidates + 1) // 2 if self.symmetric else of_candidates * self.n_of_rows

    def tile(self, piece: int) -> tuple[Block, Block]:
        """Return the candidates and the rows of a tile; tiles of the same candidates follow each other."""
        if self.symmetric:  # row c of a triangle has the tiles 0 to c
            c = (math.isqrt(8 * piece + 1) - 1) // 2
            r = piece - c * (c + 1) // 2
        else:
            c, r = divmod(piece, self.n_of_rows)
        return _block(c, self.n_candidates), _block(r, self.n_rows)

    def size(self, piece: int) -> int:
        """Return the kernel entries of a tile."""
        candidates, rows = self.tile(piece)
        return candidates.n_rows * rows.n_rows

    def is_mirrored(self, candidates: Block, rows: Block) -> bool:
        """Return whether a tile serves the candidates that are its rows as well."""
        return self.symmetric and rows.index != candidates.index


def _block(index: int, n: int) -> Block:
    return Block(index, index * TILE_ROWS, min((index + 1) * TILE_ROWS, n))
