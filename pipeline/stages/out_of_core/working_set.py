"""The working set: columns with a Gram, which grows by the columns that are admitted; each round commits its own.

Only the columns that enter are computed, and their rows of the Gram. A set of one penalty has statistics of all rows;
that of a path has those of fit rows and held-out rows, whose sum is the first set of the solve on all rows.
"""

import re
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.each_tile import Each
from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, SumBounds
from pipeline.kernels.kernel_forms import TILE_COLUMNS as COLUMNS_TILE
from pipeline.runtime.stored_arrays import Stored
from pipeline.stages.accumulate_statistics import (
    STORING,
    largest_values,
    name_of,
    statistics_from_arrays,
    statistics_to_arrays,
)
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
from pipeline.stages.statistics_pass import ALL, FIT, HELD_OUT, MEMBERS, statistics_pass
from pipeline.stages.training_rows import RowBlock, RowTask, row_task
from pipeline.stages.workspace import SOLVE, STATISTICS, Workspace
from storage.errors import ANEW, CorruptDataError
from storage.folder_layouts import MANIFEST_NAME

ENTRIES = "kernel_entries"  # the array that tells what the statistics of a round took
ROUND, PATH = "round", "path"  # kinds of working sets: of one penalty on all rows, of a path on the fit rows
PARTS: dict[str, tuple[str, ...]] = {ROUND: (ALL,), PATH: (FIT, HELD_OUT)}  # those that solves are on first


@dataclass(frozen=True)
class WorkingSet:
    """The working set of a round: its columns in the order of the Gram, and their statistics by part, mapped."""

    kind: str
    number: int
    columns: KeptColumns
    parts: dict[str, GramStatistics]

    @property
    def name(self) -> str:
        """What the round is committed under."""
        return set_name(self.kind, self.number)

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Whose columns these are, by name."""
        return self.columns.members

    @property
    def statistics(self) -> GramStatistics:
        """The statistics that solves are on."""
        return self.parts[PARTS[self.kind][0]]


def set_name(kind: str, number: int) -> str:
    """Return what a round is committed under."""
    return f"{kind}-{number:03d}"


def part_name(name: str, part: str) -> str:
    """Return what the statistics of a part of a round are committed under."""
    return {ALL: name, FIT: f"{name}-fit", HELD_OUT: f"{name}-held-out"}[part]


def solved_name(kind: str, number: int) -> str:
    """Return what the statistics that the solves of a round are on are committed under."""
    return part_name(set_name(kind, number), PARTS[kind][0])


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
    run: Run, kind: str, previous: WorkingSet | None, stay: NDArray[np.int64], admitted: NDArray[np.int64]
) -> WorkingSet:
    """Compute and commit the statistics of the columns that stay and of those admitted; return the new working set.

    `stay` are columns of `previous`, `admitted` the candidates that come in. Costs n·m·2d operations for the columns
    of m that are admitted and n·m·(2k + m) for their Gram, k that stay.
    """
    number = previous.number + 1 if previous else 0
    name, parts = set_name(kind, number), PARTS[kind]
    with run.charged(STATISTICS):
        before = previous.columns if previous else nothing_kept()
        columns, new = add_columns(run, name, before, stay, admitted, parts)
        with run.doing(STATISTICS, STORING):
            for part in reversed(parts):  # the first, which tells that all are there, last
                sums = joined(previous.parts[part] if previous else None, stay, new.pop(part))
                sums.check_range()
                _commit(run, part_name(name, part), columns, sums, len(columns.last_group))
    return load(run, kind, number)


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


def _commit(run: Run, name: str, columns: KeptColumns, sums: GramStatistics, n_new: int) -> None:
    """Commit the statistics of columns under a name, of which the last ones were made for it."""
    entries = {ENTRIES: np.array(run.shape.n_train * n_new)}
    run.commit(name_of(name), statistics_to_arrays(sums) | commit_arrays(kept_files(run), columns) | entries)


def load(run: Run, kind: str, number: int) -> WorkingSet:
    """Return a committed working set; what its pass left is removed. Raises CorruptDataError."""
    name, parts = set_name(kind, number), {}
    for part in PARTS[kind]:
        arrays = run.committed(name_of(part_name(name, part)), mapped=True)
        if arrays is None:
            raise CorruptDataError(f"statistics/{part_name(name, part)}: missing; {ANEW}")
        parts[part] = arrays
    columns = restored(kept_files(run), parts[PARTS[kind][0]])
    run.drop(f"passes/{name}")
    kept_files(run).remove_unused(columns)
    return WorkingSet(kind, number, columns, {part: statistics_from_arrays(arrays) for part, arrays in parts.items()})


def committed_sets(run: Run, kind: str) -> list[int]:
    """Return the numbers of the rounds whose statistics are committed, the earliest first."""
    names = {path.parent.name for path in run.layout.statistics.glob(f"{kind}-*/{MANIFEST_NAME}")}
    numbers = (int(found[1]) for name in names if (found := re.match(rf"{kind}-(\d+)", name)))
    return sorted({number for number in numbers if solved_name(kind, number) in names})


def kernel_entries(run: Run, of: WorkingSet) -> int:
    """Return how many kernel entries the statistics of a round took."""
    found = run.committed(name_of(solved_name(of.kind, of.number)), mapped=True)
    assert found is not None
    return int(found[ENTRIES])


def drop_set(run: Run, kind: str, number: int) -> None:
    """Remove the statistics of an earlier round; they are the largest files of a run."""
    name = set_name(kind, number)
    for old in (*(part_name(name, part) for part in PARTS[kind]), f"{solved_name(kind, number)}-centred"):
        run.drop(name_of(old))


def on_all_rows(run: Run, of: WorkingSet) -> WorkingSet:
    """Commit the statistics of a path's set on all rows, the sum of both parts, as the first round of one penalty."""
    with run.charged(STATISTICS), run.doing(STATISTICS, STORING):
        found = run.committed(name_of(part_name(of.name, FIT)))
        assert found is not None
        everything = statistics_from_arrays(found).absorbing(of.parts[HELD_OUT])
        _commit(run, set_name(ROUND, 0), of.columns, everything, 0)
    return load(run, ROUND, 0)


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


def accumulate_held_out(work: Workspace, centers: NDArray[np.int64], name: str) -> GramStatistics:
    """Return the statistics of all held-out rows on the candidates `centers` (m,): one pass over the held-out rows.

    The pass is named after `name`: other centers need another.
    """
    name = f"{name}-held-out"
    members = work.commit(f"passes/{name}/{MEMBERS}", {"members": centers})
    task = statistics_pass(row_task(work), (HELD_OUT,), len(centers), largest_values(work), members=members)
    return work.add_up(SOLVE, task, name, "held-out rows at the centers").statistics()[HELD_OUT]
