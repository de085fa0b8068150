"""The Gram of a working set, grown by the columns that are admitted: only these are computed, and their rows of it."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.each_tile import Each
from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, SumBounds
from pipeline.kernels.kernel_forms import TILE_COLUMNS as COLUMNS_TILE
from pipeline.runtime.stored_arrays import Stored
from pipeline.stages.accumulate_statistics import STORING, largest_values, statistics_from_arrays, statistics_to_arrays
from pipeline.stages.block_pass import Add, BlockPass, ExactSums
from pipeline.stages.out_of_core.kept_columns import (
    INPUT,
    KeptColumns,
    KeptFiles,
    OpenedColumns,
    columns_from_arrays,
    columns_to_arrays,
    commit_arrays,
    kept_files,
    nothing_kept,
    restored,
)
from pipeline.stages.run_state import Run
from pipeline.stages.statistics_pass import ALL, HELD_OUT
from pipeline.stages.training_rows import RowBlock, RowTask
from pipeline.stages.workspace import STATISTICS
from storage.arrays import read_arrays, write_arrays
from storage.folders import read_manifest, remove_folder


@dataclass(frozen=True)
class WorkingSet:
    """The working set of a round: the round's name, its columns in the order of the Gram, their statistics."""

    name: str
    columns: KeptColumns
    statistics: GramStatistics

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Whose columns these are, by name."""
        return self.columns.members


def growth_pass(
    files: KeptFiles, given: Stored, n_columns: int, parts: tuple[str, ...], n_stay: int, largest: RowBounds
) -> BlockPass[ExactSums]:
    """Return a pass over the Gram rows of the columns that enter, and their other sums (mathematics.md, eqs. 7 and 11).

    given : has the kept columns, so many
    parts : FIT and HELD_OUT, or ALL
    n_stay : of the first of the columns, which have a Gram already, only the products with the others are added up
    """
    bounds = SumBounds(files.blocks.block_rows, files.blocks.n_blocks, largest)
    return BlockPass(
        files.rows,
        files.blocks,
        partial(_opened, files, given, parts),
        partial(_no_sums, parts, n_columns, bounds, n_stay),
        (n_columns, n_stay, parts, largest, COLUMNS_TILE, GRAM_TILE),
        sums_bytes=8 * len(parts) * n_columns * (n_columns - n_stay),
        threads_a_piece=max(-(-(n_columns - n_stay) // COLUMNS_TILE), 1),
    )


def _no_sums(parts: tuple[str, ...], n_columns: int, bounds: SumBounds, n_stay: int) -> ExactSums:
    return ExactSums({part: StatisticsSums(n_columns, bounds, n_stay) for part in parts})


def _opened(files: KeptFiles, given: Stored, parts: tuple[str, ...], _: RowTask) -> Add[ExactSums]:
    """Open the kept columns; return what adds a block."""
    opened = OpenedColumns(files, columns_from_arrays(given.read()))

    def add(sums: ExactSums, number: int, block: RowBlock, each: Each) -> None:
        columns = opened.block(number, each, block.X)
        for part in parts:
            rows = slice(None) if part == ALL else block.held_out == (part == HELD_OUT)
            weights = None if block.weights is None else block.weights[rows]
            sums[part].add(columns[rows], block.targets[rows], weights, each)

    return add


def grow(
    run: Run, name: str, previous: WorkingSet | None, stay: NDArray[np.int64], admitted: NDArray[np.int64]
) -> WorkingSet:
    """Compute and commit the statistics of the columns that stay and of those admitted; return the new working set.

    `stay` are columns of `previous`, `admitted` the candidates that come in. Costs n·m·2d operations for the columns
    of m that are admitted and n·m·(2k + m) for their Gram, k that stay.
    """
    with run.charged(STATISTICS):
        columns, new = add_columns(run, name, previous.columns if previous else nothing_kept(), stay, admitted, (ALL,))
        with run.doing(STATISTICS, STORING):
            sums = joined(previous.statistics if previous else None, stay, new[ALL])
            sums.check_range()
            commit(run, name, columns, sums, len(columns.last_group))
    return load(run, name)


def add_columns(
    run: Run,
    name: str,
    before: KeptColumns,
    stay: NDArray[np.int64],
    admitted: NDArray[np.int64],
    parts: tuple[str, ...],
) -> tuple[KeptColumns, dict[str, GramStatistics]]:
    """Return the columns that stay and those admitted, and the sums of the latter, by part: their rows of the Gram."""
    columns, files = before.grown(stay, admitted), kept_files(run)
    files.begin(before.next_group, columns.last_group)
    given = run.commit(f"passes/{name}/{INPUT}", columns_to_arrays(columns))
    task = growth_pass(files, given, len(columns.members), parts, len(stay), largest_values(run))
    return columns, run.add_up(STATISTICS, task, name).statistics()


def commit(run: Run, name: str, columns: KeptColumns, sums: GramStatistics, n_new: int) -> None:
    """Commit the statistics of columns under a name, of which the last ones were made for it."""
    arrays = statistics_to_arrays(sums) | commit_arrays(kept_files(run), columns)
    write_arrays(run.layout.statistics_file(name), arrays, metadata={"kernel_entries": run.shape.n_train * n_new})


def load(run: Run, name: str) -> WorkingSet:
    """Return a committed working set, its Gram mapped read-only; what its pass left is removed."""
    arrays = read_arrays(run.layout.statistics_file(name), mapped=True)
    columns = restored(kept_files(run), arrays)
    clean(run, name, columns)
    return WorkingSet(name, columns, statistics_from_arrays(arrays))


def clean(run: Run, name: str, columns: KeptColumns) -> None:
    """Remove what the pass of a committed set left, and the columns that it needs no more."""
    remove_folder(run.layout.row_pass(name), durable=False)
    kept_files(run).remove_unused(columns)


def kernel_entries(run: Run, name: str) -> int:
    """Return how many kernel entries a round's statistics took."""
    return int(read_manifest(run.layout.statistics_file(name)).metadata["kernel_entries"])


def joined(old: GramStatistics | None, stay: NDArray[np.int64], new: GramStatistics) -> GramStatistics:
    """Return the statistics of the columns that stay and of the new ones after them (mathematics.md, eq. 11).

    new: the last rows of the joined Gram, and the sums of the new columns.
    """
    if old is None:
        return new
    k, size = len(stay), new.gram.shape[1]
    gram = np.empty((size, size))
    for start in range(0, k, 512):  # by stripes: the old Gram is mapped, and may be as large as the new one
        gram[start : min(start + 512, k), :k] = old.gram[stay[start : start + 512]][:, stay]
    gram[k:] = new.gram
    gram[:k, k:] = new.gram[:, :k].T
    kty = np.concatenate([old.kty[stay], new.kty])
    return replace(new, gram=gram, kty=kty, column_sums=np.concatenate([old.column_sums[stay], new.column_sums]))
