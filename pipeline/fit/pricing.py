"""Correlations c_mᵀr of candidates with the residuals, which price them; bounds of those not evaluated; certificates.

A pass streams tiles: a block of rows against some candidates. No column is kept. Where the candidates are all training
rows, tile (i, j) serves (j, i) too: half of the tiles are computed. A column of ones beside R gives Kᵀ1, which bounds
the norms (mathematics.md, eq. 49). With row weights s, R is s times the residuals, and the column beside it is s.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.rows import digest_rows
from pipeline.datasets.feature_rows import open_features
from pipeline.fit.filled_settings import count_candidates
from pipeline.fit.kept_columns import WorkingSet, compute_residuals, kept_blocks
from pipeline.fit.row_blocks import Needs, RowTask, RunSize, positions_of
from pipeline.fit.target_facts import row_weights
from pipeline.fit.workspace import Workspace
from pipeline.kernels.exact_sums import TILE_COLUMNS, ExactSum, ForEach
from pipeline.kernels.gram_statistics import RowBounds
from pipeline.kernels.kernel_functions import Kernel
from pipeline.runtime import stopping
from pipeline.runtime.row_pass import AddPiece, RowPass
from pipeline.solvers.problem import Certificate, Problem, certify, gap_safe_screen
from pipeline.solvers.ridge import Weights
from storage.arrays import Stored

TILE_ROWS = 2048  # A tile has as many candidates too: enough tiles for all workers, and little reading for the work.
LINE_ROWS = 1024  # As many rows of a tile are in memory as kernel values at once.
CORRELATIONS = "correlations"  # The name of a pass ends so; it is dropped when its result is committed.
Tile = tuple[Kernel, slice, slice]  # The kernel of some candidates, their slice, and a slice of rows.


@dataclass(frozen=True)
class Tiles:
    """How rows and candidates, in the order of their rows, are cut into tiles."""

    n_rows: int
    n_candidates: int
    symmetric: bool  # whether every training row is a candidate, in order: tile (i, j) serves (j, i) as well

    @property
    def n_of_rows(self) -> int:
        """Number of blocks of rows, each of which meets every block of candidates."""
        return -(-self.n_rows // TILE_ROWS)

    @property
    def n_tiles(self) -> int:
        of_candidates = -(-self.n_candidates // TILE_ROWS)
        return of_candidates * (of_candidates + 1) // 2 if self.symmetric else of_candidates * self.n_of_rows

    def tile(self, piece: int) -> tuple[slice, slice]:
        """Return the candidates and the rows of a tile; tiles of the same candidates follow each other."""
        if self.symmetric:  # Row c of a triangle has the tiles 0 to c.
            c = (math.isqrt(8 * piece + 1) - 1) // 2
            r = piece - c * (c + 1) // 2
        else:
            c, r = divmod(piece, self.n_of_rows)
        return _block(c, self.n_candidates), _block(r, self.n_rows)

    def size(self, piece: int) -> int:
        """Return the kernel entries of a tile."""
        candidates, rows = self.tile(piece)
        return (candidates.stop - candidates.start) * (rows.stop - rows.start)


def _block(index: int, n: int) -> slice:
    return slice(index * TILE_ROWS, min((index + 1) * TILE_ROWS, n))


def correlate(
    work: Workspace, name: str, residuals: NDArray[np.float64], candidates: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return c_mᵀR (M, T) of candidates (M,), bounds (M,) of their ‖c_m‖², and the number of kernel entries.

    residuals: (n, T), as `compute_residuals` returns them.
    """
    name, order = f"{name}-{CORRELATIONS}", np.argsort(candidates)
    tiles = Tiles(work.shape.n_train, len(candidates), is_symmetric(work, candidates))
    weights, largest = row_weights(work.features, work.shape, work.facts), work.facts.bounds()
    counts = np.ones((len(residuals), 1)) if weights is None else weights[:, None]
    bounds = (*_largest_terms(largest, residuals).tolist(), largest.weight)
    residuals = residuals if weights is None else residuals * np.sqrt(counts)
    with work.events.status("storing the residuals"):
        arrays = {"residuals": np.hstack([residuals, counts]), "candidates": candidates[order]}
        given = work.store.put(f"passes/{name}/input", arrays)
        digests = map(digest_rows, arrays.values())  # Other blocks of the round have the same name.
    shape = tiles.n_candidates, len(bounds)
    task = RowPass(
        partial(_read_tiles, work.row_task, given, tiles),
        partial(_open_tiles, work.row_task, given, tiles),
        partial(ExactSum, shape, TILE_ROWS * np.array(bounds), _most_terms(tiles.n_rows)),
        tiles.size,
        tiles.n_tiles,
        tiles.n_of_rows,
        (tiles, TILE_ROWS, LINE_ROWS, TILE_COLUMNS, bounds, *digests),
        sums_bytes=8 * math.prod(shape),
        threads_a_piece=-(-TILE_ROWS // TILE_COLUMNS),
    )
    total = np.empty(shape)
    total[order] = work.runner.add_up(task, name, "correlations of the candidates", unit="").values()
    return total[:, :-1], total[:, -1], sum(map(tiles.size, range(tiles.n_tiles)))


def _read_tiles(task: RowTask, given: Stored, tiles: Tiles, pieces: range) -> Iterator[tuple[int, Tile]]:
    members, before = given.read(mapped=True)["candidates"], None
    for piece in pieces:
        candidates, rows = tiles.tile(piece)
        if before != candidates:
            kernel, before = task.kernel_of(members[candidates]), candidates
        stopping.check()
        yield piece, (kernel, candidates, rows)


def _open_tiles(task: RowTask, given: Stored, tiles: Tiles) -> AddPiece[ExactSum]:
    """Return the function that adds a tile; given: "residuals" (n, T + 1), row weights last, "candidates" (M,)."""
    residuals = given.read(mapped=True)["residuals"]

    def add(total: ExactSum, tile: Tile, each: ForEach) -> None:
        """Add a tile, line by line (mathematics.md, eq. 69)."""
        kernel, candidates, rows = tile
        X = open_features(task.features).X[rows]
        mirrored = tiles.symmetric and rows.start != candidates.start
        for first in range(0, len(X), LINE_ROWS):
            line = X[first : first + LINE_ROWS]
            start = rows.start + first
            of_line = slice(start, start + len(line))
            K = kernel.block(line, out_dtype=np.float64, each=each)
            sums = (residuals[of_line].T @ K).T  # This is faster than Kᵀ times few columns.
            total.add(sums, candidates)
            if mirrored:
                total.add(K @ residuals[candidates], of_line)

    return add


def correlation_errors(work: Workspace, residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most (T,) by which the units of exact sums change c_mᵀR, for residuals (n, T)."""
    most = TILE_ROWS * _largest_terms(work.facts.bounds(), residuals)
    return ExactSum(most.shape, most, _most_terms(len(residuals))).error


def pricing_needs(run: RunSize) -> Needs:
    """Return the needs of a pass beside the Gram, or of the residuals, which are made of the kept columns.

    Each thread has both sides of a tile and a line of its values, each group of threads sums of all candidates; on disk
    are the sums of each process, and those that are committed.
    """
    n, d, workers, n_columns = run.shape.n_train, run.shape.n_features, run.workers, run.n_columns
    side, line = min(TILE_ROWS, n), min(LINE_ROWS, n)
    tile = 2 * 4 * side * d + 12 * line * side
    if run.itemsize == 8:
        tile += 8 * (side + line) * d + 4 * line * side
    values = 8 * max(n, count_candidates(run.config, n)) * (run.shape.n_outputs + 1)
    tiles = -(-n // TILE_ROWS)
    groups = workers.groups(values, tiles * tiles, -(-TILE_ROWS // TILE_COLUMNS))
    kept = (8 + run.itemsize) * workers.threads * kept_blocks(n, n_columns).block_rows * n_columns
    memory = 8 * n_columns**2 + max(workers.threads * tile + (groups + 5) * values, kept + 2 * values)
    return Needs(memory, 2 * (workers.processes + 2) * values)


def _largest_terms(largest: RowBounds, residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most (T,) that a row adds to c_mᵀR: √s times √s |R|."""
    return np.asarray(np.sqrt(largest.weight) * np.abs(residuals).max(axis=0, initial=0.0))


def _most_terms(n_rows: int) -> int:
    """Return the most terms of a candidate: one from each line of rows, and from each tile of its row."""
    return 2 * -(-n_rows // LINE_ROWS) + 2


def is_symmetric(work: Workspace, candidates: NDArray[np.int64]) -> bool:
    """Return whether these candidates are all training rows, so that a pass over them costs half."""
    return bool(np.array_equal(candidates, np.arange(work.shape.n_train)))


@dataclass(frozen=True)
class Correlations:
    """Correlations c_mᵀr (M, T) of all candidates: exact where evaluated this round, else the last with a bound."""

    values: NDArray[np.float64]
    norm_bounds: NDArray[np.float64]  # (M,) ≥ ‖c_m‖
    residuals: NDArray[np.float64]  # (n, T): those of the last pass
    errors: NDArray[np.float64]  # (M, T): bounds of the errors of the values, 0 where evaluated now
    screened: NDArray[np.bool_]  # (M,): zero in every solution, never evaluated again
    made: NDArray[np.bool_]  # (M,): have been in a working set, which has made their columns
    evaluated: int  # the number of candidates evaluated this round
    kernel_entries: int

    @staticmethod
    def unknown(n_candidates: int, residuals: NDArray[np.float64]) -> "Correlations":
        shape = n_candidates, residuals.shape[1]
        infinite, none = np.full(n_candidates, np.inf), np.zeros(n_candidates, bool)
        return Correlations(np.zeros(shape), infinite, residuals, np.full(shape, np.inf), none, none, 0, 0)

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Whether candidates were evaluated at the present weights, (M,) bool."""
        return np.asarray(self.errors.max(axis=1) == 0.0)

    def moved_to(self, residuals: NDArray[np.float64]) -> "Correlations":
        """Return the values, with their errors at other residuals (n, T): mathematics.md, eq. 48."""
        moved = np.linalg.norm(residuals - self.residuals, axis=0)
        with np.errstate(invalid="ignore"):  # Candidates that were never evaluated give 0 times infinity.
            errors = np.where(np.isinf(self.errors), np.inf, self.errors + np.multiply.outer(self.norm_bounds, moved))
        return replace(self, residuals=residuals, errors=errors)

    def with_values(self, which: NDArray[np.int64], values: NDArray[np.float64]) -> "Correlations":
        found, errors = self.values.copy(), self.errors.copy()
        found[which], errors[which] = values, 0.0
        return replace(self, values=found, errors=errors)

    def evaluated_on(
        self, work: Workspace, name: str, candidates: NDArray[np.int64], block: NDArray[np.int64]
    ) -> "Correlations":
        """Return the correlations after a pass that evaluates a block of the candidates at the residuals."""
        values, square_bounds, kernel_entries = correlate(work, name, self.residuals, candidates[block])
        norm_bounds = self.norm_bounds.copy()
        norm_bounds[block] = np.minimum(norm_bounds[block], np.sqrt(square_bounds))
        return replace(
            self.with_values(block, values),
            norm_bounds=norm_bounds,
            evaluated=self.evaluated + len(block),
            kernel_entries=self.kernel_entries + kernel_entries,
        )

    def bounded(self, tau: float) -> NDArray[np.bool_]:
        """Return whether candidates cannot violate |c_mᵀr| ≤ τ, evaluated or not, (M,) bool (eq. 48)."""
        return np.asarray((np.abs(self.values) + self.errors).max(axis=1) <= tau)


@dataclass(frozen=True)
class PricedRound:
    """A round: a working set that was solved on at a penalty, and the correlations of all candidates (M,), by row."""

    work: Workspace
    candidates: NDArray[np.int64]
    penalty: float
    working_set: WorkingSet
    weights: Weights  # the weights of its active columns
    summaries: Sequence[dict[str, Any]]  # one for the solve of each output
    correlations: Correlations

    @cached_property
    def inside(self) -> NDArray[np.int64]:
        """The positions of the working set among the candidates, (W,) i8."""
        return positions_of(self.candidates, self.working_set.candidates)

    @property
    def tau(self) -> float:
        return float(np.sqrt(self.penalty))

    def residuals(self) -> NDArray[np.float64]:
        current, weights = self.working_set, self.weights
        active = current.columns.cut(weights.columns)
        return compute_residuals(self.work, current.name, active, weights.weights, weights.intercept)

    def of_gram(self) -> NDArray[np.float64]:
        """Return c_mᵀr of the working set, (W, T), from its statistics; 512 rows of the Gram at a time.

        Tiles of another shape round float32 columns otherwise: the gap of weights that are exact for the Gram would end
        at that rounding instead of near zero.
        """
        statistics, weights = self.working_set.statistics, self.weights
        found = statistics.kty - np.outer(statistics.column_sums, weights.intercept)
        for start in range(0, len(found), 512):
            rows = slice(start, start + 512)
            found[rows] -= statistics.gram[rows][:, weights.columns] @ weights.weights
        return found

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether candidates need no evaluation: in the working set, evaluated or screened, (M,) bool."""
        known = self.correlations.screened | self.correlations.exact
        known[self.inside] = True
        return known

    def waiting(self) -> NDArray[np.int64]:
        return np.flatnonzero(~(self.correlations.bounded(self.tau) | self.known))

    def violations(self) -> NDArray[np.float64]:
        """Return |c_mᵀr| / τ, (M, T) (mathematics.md, eq. 70): above 1 a candidate violates.

        0 for candidates not evaluated now, and for solves whose gap is within the tolerance.
        """
        gaps = np.array([one.relative_gap for one in self.certificates])
        violations = np.abs(self.correlations.values) / self.tau * (gaps > self.work.config.solver.tolerance)
        violations[~self.correlations.exact] = 0.0
        return violations

    def violators(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.flatnonzero((self.violations() > 1.0).any(axis=1)), self.inside)

    @cached_property
    def certificates(self) -> list[Certificate]:
        """The certificate of every solve over the candidates that were evaluated (mathematics.md, eqs. 42 and 43).

        Candidates that a bound keeps below τ do not scale the dual point.
        """
        weights, statistics, found = self.weights, self.working_set.statistics, self.correlations
        kty, yty = statistics.centred_targets() if self.work.intercept else (statistics.kty, statistics.yty)
        kty, active = kty[weights.columns], found.values[self.inside[weights.columns]]
        gram, rounding, errors = statistics.gram, statistics.rounding(), np.zeros(len(yty))
        if len(self.inside) < len(self.candidates):
            errors = correlation_errors(self.work, found.residuals)
        return [
            certify(
                # Scores have units of their own.
                Problem(gram, kty[:, output], float(yty[output]), self.penalty, rounding._replace(always=always)),
                weights.weights[:, output].copy(),
                active[:, output].copy(),
                float(np.abs(found.values[found.errors[:, output] <= 0, output]).max(initial=0.0)),
            )
            for output, always in enumerate((rounding.always + errors).tolist())
        ]

    @cached_property
    def valid_certificates(self) -> list[Certificate]:
        """The certificates that hold: of the dual point 0 while candidates are unknown (mathematics.md, eq. 94)."""
        if not len(self.waiting()):
            return self.certificates
        nothing = {"dual": 0.0, "relative_gap": 1.0, "theta_scale": 0.0}
        return [replace(one, gap=one.primal, **nothing) for one in self.certificates]

    def screened(self) -> NDArray[np.bool_]:
        """Return whether candidates are zero in every solution by the Gap Safe test, (M,) bool (eq. 47)."""
        found, excluded = self.correlations, np.ones(len(self.candidates), bool)
        for output, certificate in enumerate(self.certificates):
            safe = gap_safe_screen(found.values[:, output], found.norm_bounds, certificate, self.tau)
            excluded &= safe & (found.errors[:, output] <= 0)
        return found.screened | excluded
