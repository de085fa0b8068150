"""Working sets: the candidates that have a Gram, which grows by the rows of those admitted; their residuals.

A round's working set is committed under its name.
"""

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.exact_sums import Each, ExactSums
from pipeline.kernels.gram_statistics import GramStatistics, joined, statistics_by_part
from pipeline.kernels.kernel_functions import COLUMNS_TILE
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.runtime.stored_arrays import Arrays, Stored, as_arrays
from pipeline.solvers.weights import Weights
from pipeline.stages.accumulate_statistics import (
    ALL,
    HELD_OUT,
    STORING,
    name_of,
    no_sums,
    statistics_of,
    statistics_to_arrays,
)
from pipeline.stages.out_of_core.kept_columns import (
    KeptColumns,
    KeptFiles,
    OpenedColumns,
    kept_blocks,
    kept_files,
    nothing_kept,
)
from pipeline.stages.penalised_solves import load_weights
from pipeline.stages.run_workspace import Run
from pipeline.stages.training_rows import PassBytes, RowBlock, RunSize, block_pass, block_pass_bytes
from pipeline.stages.workspace import SOLVE, STATISTICS
from storage.folder_layouts import MANIFEST_NAME

ENTRIES = "kernel_entries"  # the array with how many a round's statistics took
RESIDUALS = "residuals"
NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class WorkingSet:
    """The working set of a round: its columns in the order of the Gram, and their statistics.

    kernel_entries: that the new columns took.
    """

    name: str
    columns: KeptColumns
    statistics: GramStatistics
    kernel_entries: int

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Whose columns these are, by row."""
        return self.columns.members

    @property
    def index(self) -> int:
        """The number of the round, from 0."""
        return int(self.name.rpartition("-")[2])


def round_name(index: int) -> str:
    """Return the name under which a round is committed."""
    return f"round-{index:03d}"


def _open_columns(files: KeptFiles, given: Stored, parts: tuple[str, ...]) -> AddPiece[ExactSums]:
    """Open the kept columns; return what adds a block."""
    opened = OpenedColumns(files, KeptColumns.of(given.read()))

    def add(sums: ExactSums, block: RowBlock, each: Each) -> None:
        columns = opened.block(block.number, each, block.X)
        for part in parts:
            rows = slice(None) if part == ALL else block.held_out == (part == HELD_OUT)
            weights = None if block.weights is None else block.weights[rows]
            sums[part].add(columns[rows], block.targets[rows], weights, each)

    return add


def grow(
    run: Run, name: str, previous: WorkingSet | None, stay: NDArray[np.int64], admitted: NDArray[np.int64]
) -> WorkingSet:
    """Commit the statistics of the columns of `previous` that stay and of the candidates admitted; return the new set.

    Costs n·m·2d operations for m admitted columns and n·m·(2k + m) for their Gram, with k that stay.
    """
    with run.timed_as(STATISTICS):
        before = previous.columns if previous else nothing_kept()
        columns, new = add_columns(run, name, before, stay, admitted, (ALL,))
        with run.status(STATISTICS, STORING):
            sums = joined(previous.statistics if previous else None, stay, new.pop(ALL))
            sums.check_range()
            run.commit(name_of(name), statistics_to_arrays(sums) | columns_to_arrays(run, columns))
    return load(run, name)


def add_columns(
    run: Run,
    name: str,
    before: KeptColumns,
    stay: NDArray[np.int64],
    admitted: NDArray[np.int64],
    parts: tuple[str, ...],
) -> tuple[KeptColumns, dict[str, GramStatistics]]:
    """Return the columns that stay and those admitted, and the sums of the latter, by part: one pass over the rows.

    Columns that stay have a Gram: only products with new ones are added up (mathematics.md, eqs. 7 and 11).
    """
    columns, files, largest = before.grown(stay, admitted), kept_files(run), run.facts.bounds()
    files.begin(before.next_group, columns.last_group)
    given = run.commit(f"passes/{name}/columns.npz", as_arrays(columns))
    n_columns, n_stay = len(columns.members), len(stay)
    task = block_pass(
        files.rows,
        files.blocks,
        partial(_open_columns, files, given, parts),
        partial(no_sums, parts, n_columns, largest, files.blocks, n_stay),
        (n_columns, n_stay, parts, largest, COLUMNS_TILE, GRAM_TILE),
        sums_bytes=8 * len(parts) * n_columns * (n_columns - n_stay),
        threads_a_piece=max(-(-(n_columns - n_stay) // COLUMNS_TILE), 1),
    )
    return columns, statistics_by_part(run.add_up(STATISTICS, task, name))


def columns_to_arrays(run: Run, columns: KeptColumns) -> Arrays:
    """Return the columns of a round's statistics, of which the last group was made for it, ready to be stored."""
    made = {ENTRIES: np.array(run.shape.n_train * len(columns.last_group))}
    return kept_files(run).arrays(columns) | made


def load(run: Run, name: str) -> WorkingSet:
    """Return a committed working set, its Gram mapped, and remove leftovers of its pass. Raises CorruptDataError."""
    files, statistics = kept_files(run), statistics_of(run, name_of(name))
    arrays = run.stored(name_of(name)).read(mapped=True)
    columns = files.restored(arrays)
    run.drop(f"passes/{name}")
    files.remove_unused(columns)
    return WorkingSet(name, columns, statistics, int(arrays[ENTRIES]))


def latest(run: Run) -> WorkingSet | None:
    """Return the last committed working set, else None, and drop those before. Raises CorruptDataError."""
    folders = (path.parent.name for path in run.layout.statistics.glob(f"round-*/{MANIFEST_NAME}"))
    rounds = sorted(int(found[1]) for name in folders if (found := re.fullmatch(r"round-(\d+)", name)))
    if not rounds:
        return None
    for earlier in rounds[:-1]:  # left by a kill at the last moment
        drop(run, round_name(earlier))
    return load(run, round_name(rounds[-1]))


def drop(run: Run, name: str) -> None:
    """Remove statistics, and what the solves made of them: the largest files of a run."""
    for folder in (name, f"{name}-centred"):
        run.drop(name_of(folder))


def active_weights(run: Run, current: WorkingSet) -> Weights:
    """Return the committed weights of a round's solves, on the columns that are active."""
    table = load_weights(run, current.name, len(current.candidates))[-1]
    return Weights.of_support(table, current.statistics, intercept=run.intercept)


def compute_residuals(
    run: Run, name: str, columns: KeptColumns, weights: NDArray[np.float64], intercept: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the residuals R = Y - K w - b of all training rows, (n, T) f8 (mathematics.md, eq. 26): one pass.

    columns (a,): of the active candidates; weights (a, T); intercept (T,). Rows of weight s are times √s (eq. 9). They
    stay committed until the correlations are.
    """
    name, files = f"{name}-{RESIDUALS}", kept_files(run)

    def make() -> Arrays:
        arrays = as_arrays(columns) | {"weights": weights, "intercept": intercept}
        opened = partial(_open_weights, files, run.commit(f"passes/{name}/weights.npz", arrays))
        key = (len(columns.members),)
        task = block_pass(files.rows, files.blocks, opened, BlockValues, key, features="none")
        return {RESIDUALS: run.add_up(SOLVE, task, name, RESIDUALS).in_order(RESIDUALS)}

    return np.asarray(run.once(f"passes/{name}/residuals.npz", make)[RESIDUALS])


def _open_weights(files: KeptFiles, given: Stored) -> AddPiece[BlockValues]:
    arrays = given.read()
    columns, weights = OpenedColumns(files, KeptColumns.of(arrays)), arrays["weights"]

    def add(values: BlockValues, block: RowBlock, each: Each) -> None:
        residuals = block.targets - columns.block(block.number, each) @ weights - arrays["intercept"]
        if block.weights is not None:
            residuals *= np.sqrt(block.weights)[:, None]
        values.put(block.number, {RESIDUALS: residuals})

    return add


def growth_bytes(run: RunSize) -> PassBytes:
    """Return what a larger working set needs: Gram rows of what comes in, in each group, or the old Gram and the new.

    At most half of the working set comes in at once, on demand all of it. Each thread has a block of the columns, as
    the files have them. On disk are the Grams of the last round, the new one, and the sums of each process; columns are
    kept where there is room beside these.
    """
    n_columns, workers = run.n_columns, run.workers
    gram, blocks = 8 * n_columns**2, kept_blocks(run.shape.n_train, n_columns)
    rows = gram if run.config.centers.on_demand else gram // 2
    kept = run.value_bytes * workers.threads * blocks.block_rows * n_columns
    streaming = gram // 4 + block_pass_bytes(run, n_columns, rows, blocks=blocks) + kept
    joining = gram + gram // 4 + rows
    disk = (2 + workers.processes) * gram + (gram if run.config.solver.intercept else 0)
    return PassBytes(run.pieces(blocks, n_columns), max(streaming, joining), disk)
