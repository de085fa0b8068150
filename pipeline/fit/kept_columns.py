"""The working set: the candidates that have a Gram, and their kernel columns, kept in files of a run or in memory.

Columns are computed when their candidates enter the working set, and read afterwards. Those that enter together are a
group, kept by blocks of rows, (rows, group), in the kernel's precision. Whoever finds a block missing or damaged
computes it again, to the same bits; where disk or memory have no room, none is kept. A group that most columns have
left dissolves: the rest of it enters the working set again, in the next group.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.fit.row_blocks import (
    Needs,
    RowBlock,
    RowGrid,
    RowTask,
    RunSize,
    block_pass,
    memory_of,
    row_grid,
    stream_blocks,
)
from pipeline.fit.statistics import ALL, STORING, name_of, no_sums, statistics_of
from pipeline.fit.workspace import Workspace
from pipeline.kernels.exact_sums import TILE_COLUMNS, ExactSums, ForEach
from pipeline.kernels.gram_statistics import GramStatistics, joined, statistics_by_part
from pipeline.kernels.kernel_functions import Kernel
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.work.events import STATISTICS
from pipeline.work.store import ColumnStore
from storage.arrays import Arrays, Stored, as_arrays

SPARSE = 1 / 3  # A group dissolves where a smaller share of its columns stays.
FREE_GRAMS, FREE_VALUES = 8, 32  # A disk must have room for as many Grams, and values of each row and output.
LEAST_ROWS = 128  # Each block is a file for each group: fewer rows would make too many files.
RESIDUALS = "residuals"
NOTHING = np.empty(0, np.int64)
ReadColumns = Callable[..., NDArray[np.float64]]  # See `open_columns`.


@dataclass(frozen=True)
class KeptColumns:
    """The columns of the candidates `members` (W,), by row, in the order of their Gram, and the groups they are in."""

    members: NDArray[np.int64]
    grouped: NDArray[np.int64]  # the candidates of all groups, one group after the other
    groups: NDArray[np.int64]  # the number of the group of each of these

    @staticmethod
    def of(arrays: Arrays) -> "KeptColumns":
        """Return the columns that `as_arrays` turned into arrays, in memory; other arrays may be among them."""
        return KeptColumns(*(np.array(arrays[field.name]) for field in fields(KeptColumns)))

    def cut(self, columns: NDArray[np.int64]) -> "KeptColumns":
        return replace(self, members=self.members[columns])

    @property
    def last_size(self) -> int:
        return int(np.count_nonzero(self.groups == self.groups.max(initial=0)))

    def places(self) -> NDArray[np.int64]:
        """Return the place of each column in `grouped`, (W,): that in the last group that has it."""
        order = np.argsort(self.grouped, kind="stable")
        return order[np.searchsorted(self.grouped[order], self.members, side="right") - 1]

    def by_group(self) -> list[tuple[NDArray[np.int64], slice | NDArray[np.int64], slice | NDArray[np.int64]]]:
        """Return for each group its candidates, the columns that are in it, and their places in the group."""
        places, found = self.places(), []
        for group in np.unique(self.groups[places]).tolist():
            in_group = np.flatnonzero(self.groups == group)
            columns = np.flatnonzero(self.groups[places] == group)
            of_columns = places[columns] - in_group[0]
            found.append((self.grouped[in_group], _as_slice(columns), _as_slice(of_columns)))
        return found

    def grown(self, stay: NDArray[np.int64], admitted: NDArray[np.int64]) -> "KeptColumns":
        """Return the columns that stay, then the candidates admitted, in one group with those of dissolved groups."""
        members = self.members[stay]
        groups = self.groups[self.cut(stay).places()]
        n_groups = int(self.groups.max(initial=-1)) + 1
        sizes, n_stay = (np.bincount(numbers, minlength=n_groups) for numbers in (self.groups, groups))
        dissolved = n_stay < SPARSE * sizes
        whole = ~dissolved[self.groups]
        entering = np.concatenate([members[dissolved[groups]], admitted])
        return KeptColumns(
            np.concatenate([members, admitted]),
            np.concatenate([self.grouped[whole], entering]),
            np.concatenate([self.groups[whole], np.full(len(entering), n_groups)]),
        )


NO_COLUMNS = KeptColumns(NOTHING, NOTHING, NOTHING)


def _as_slice(increasing: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Return a slice where the indices follow each other: it needs no copy."""
    first, last = int(increasing[0]), int(increasing[-1])
    return slice(first, last + 1) if last - first + 1 == len(increasing) else increasing


def kept_blocks(n_rows: int, capacity: int) -> RowGrid:
    """Return the one grid of all files, for working sets of at most `capacity` columns, half of them new.

    There is one grid since the bits of a value depend on the rows of its block.
    """
    blocks = row_grid("train", n_rows, capacity, 8 * capacity**2 // 2)
    return replace(blocks, block_rows=max(blocks.block_rows, LEAST_ROWS))


@dataclass(frozen=True)
class ColumnBlocks:
    """The files of kept columns, and the task that computes missing ones; small and picklable in a run."""

    rows: RowTask
    blocks: RowGrid
    kept: ColumnStore


def group_name(candidates: NDArray[np.int64]) -> str:
    """Return the name of a group, a digest of its candidates, so that no two groups mix."""
    return f"group-{blake2b(candidates.tobytes(), digest_size=8).hexdigest()}"


def column_blocks(work: Workspace) -> ColumnBlocks:
    """Return where a fit keeps its columns."""
    capacity = work.config.centers.working_set or work.n_candidates
    n, t = work.shape.n_train, work.shape.n_outputs
    free_bytes = 8 * (FREE_GRAMS * capacity**2 + FREE_VALUES * max(n, work.n_candidates) * (t + 1))
    return ColumnBlocks(work.row_task, kept_blocks(n, capacity), work.store.columns(free_bytes))


def open_columns(files: ColumnBlocks, columns: KeptColumns) -> ReadColumns:
    """Open kept columns in a process, for all its threads.

    Returns a function of the number of a block, of the function that shares out tiles, and of the features of its rows,
    which are read if they are not given and a file is missing. It returns the columns (rows, W) f8, C-contiguous;
    missing ones are computed and kept.
    """
    groups, kernels = columns.by_group(), dict[str, Kernel]()
    precision = np.dtype(files.rows.precision).type

    def of_group(
        candidates: NDArray[np.int64], number: int, each: ForEach, X: NDArray[np.floating] | None
    ) -> NDArray[np.floating[Any]]:
        name = group_name(candidates)
        found = files.kept.get(name, number)
        if found is not None:
            return found
        if X is None:
            ((_, block),) = stream_blocks(files.rows, files.blocks, range(number, number + 1))
            X = block.X
        if name not in kernels:  # Two threads may both make one: they are equal.
            kernels[name] = files.rows.kernel_of(candidates)
        values: NDArray[np.floating[Any]] = kernels[name].block(X, out_dtype=precision, each=each)
        files.kept.put(name, number, values)
        return values

    def read(number: int, each: ForEach, X: NDArray[np.floating] | None = None) -> NDArray[np.float64]:
        out = np.empty((int(files.blocks.size(number)), len(columns.members)))
        for candidates, of_columns, places in groups:
            out[:, of_columns] = of_group(candidates, number, each, X)[:, places]
        return out

    return read


@dataclass(frozen=True)
class WorkingSet:
    """The working set of a round: its columns in the order of the Gram, and their statistics."""

    name: str
    columns: KeptColumns
    statistics: GramStatistics

    @property
    def candidates(self) -> NDArray[np.int64]:
        return self.columns.members

    @property
    def index(self) -> int:
        return int(self.name.rpartition("-")[2])


def round_name(index: int) -> str:
    """Return the name under which a round is committed."""
    return f"round-{index:03d}"


def grow(
    work: Workspace, name: str, previous: WorkingSet | None, stay: NDArray[np.int64], admitted: NDArray[np.int64]
) -> WorkingSet:
    """Commit the statistics of the columns of `previous` that stay and of the candidates admitted; return the new set.

    Costs n·m·2d operations for m admitted columns and n·m·(2k + m) for their Gram, with k that stay.
    """
    with work.events.timed_as(STATISTICS):
        before = previous.columns if previous else NO_COLUMNS
        columns, new = add_columns(work, name, before, stay, admitted)
        with work.events.status(STORING):
            sums = joined(previous.statistics if previous else None, stay, new)
            sums.check_range()
            work.store.put(name_of(name), as_arrays(sums) | as_arrays(columns))
    return load(work, name)


def add_columns(
    work: Workspace, name: str, before: KeptColumns, stay: NDArray[np.int64], admitted: NDArray[np.int64]
) -> tuple[KeptColumns, GramStatistics]:
    """Return the columns that stay and those admitted, and the sums of the admitted ones: one pass over the rows.

    Columns that stay have a Gram: only products with new ones are added up (mathematics.md, eqs. 7 and 11).
    """
    columns, files, largest = before.grown(stay, admitted), column_blocks(work), work.facts.bounds()
    files.kept.keep({group_name(candidates) for candidates, *_ in columns.by_group()})
    given = work.store.put(f"passes/{name}/columns.npz", as_arrays(columns))
    n_columns, n_stay = len(columns.members), len(stay)
    task = block_pass(
        files.rows,
        replace(files.blocks, n_columns=n_columns, sums_bytes=8 * n_columns * (n_columns - n_stay)),
        partial(_open_columns, files, given),
        partial(no_sums, (ALL,), n_columns, largest, files.blocks, n_stay),
        (n_stay, largest, TILE_COLUMNS),
    )
    return columns, statistics_by_part(work.runner.add_up(task, name))[ALL]


def _open_columns(files: ColumnBlocks, given: Stored) -> AddPiece[ExactSums]:
    read = open_columns(files, KeptColumns.of(given.read()))

    def add(sums: ExactSums, block: RowBlock, each: ForEach) -> None:
        sums[ALL].add(read(block.number, each, block.X), block.targets, block.weights, each)

    return add


def load(work: Workspace, name: str) -> WorkingSet:
    """Return a committed working set, its Gram mapped, and remove leftovers of its pass. Raises CorruptDataError."""
    statistics = statistics_of(work, name_of(name))
    columns = KeptColumns.of(work.store.stored(name_of(name)).read(mapped=True))
    work.store.drop(f"passes/{name}")
    return WorkingSet(name, columns, statistics)


def latest(work: Workspace) -> WorkingSet | None:
    """Return the last committed working set, else None, and drop those before. Raises CorruptDataError."""
    rounds = [name for name in work.store.names("statistics") if name.removeprefix("round-").isdecimal()]
    for earlier in rounds[:-1]:  # A kill at the last moment leaves one.
        drop(work, earlier)
    return load(work, rounds[-1]) if rounds else None


def drop(work: Workspace, name: str) -> None:
    """Remove the statistics of a round and their centred copy, the largest files of a work."""
    for folder in (name, f"{name}-centred"):
        work.store.drop(name_of(folder))


def compute_residuals(
    work: Workspace, name: str, columns: KeptColumns, weights: NDArray[np.float64], intercept: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the residuals R = Y - K w - b of all training rows, (n, T) f8 (mathematics.md, eq. 25): one pass.

    columns (a,): those of the active candidates; weights (a, T); intercept (T,). Residuals of rows of weight s are
    multiplied by √s (eq. 9). They stay committed until the correlations are.
    """
    name, files = f"{name}-{RESIDUALS}", column_blocks(work)

    def make() -> Arrays:
        arrays = as_arrays(columns) | {"weights": weights, "intercept": intercept}
        opened = partial(_open_weights, files, work.store.put(f"passes/{name}/weights.npz", arrays))
        blocks = replace(files.blocks, n_columns=len(columns.members), sums_bytes=0)
        task = block_pass(files.rows, blocks, opened, BlockValues, (), features="none")
        return {RESIDUALS: work.runner.add_up(task, name, RESIDUALS).in_order(RESIDUALS)}

    return np.asarray(work.store.once(f"passes/{name}/residuals.npz", make)[RESIDUALS])


def _open_weights(files: ColumnBlocks, given: Stored) -> AddPiece[BlockValues]:
    arrays = given.read()
    read, weights = open_columns(files, KeptColumns.of(arrays)), arrays["weights"]

    def add(values: BlockValues, block: RowBlock, each: ForEach) -> None:
        residuals = block.targets - read(block.number, each) @ weights - arrays["intercept"]
        if block.weights is not None:
            residuals *= np.sqrt(block.weights)[:, None]
        values.put(block.number, {RESIDUALS: residuals})

    return add


def growth_needs(run: RunSize) -> Needs:
    """Return the needs of a larger working set: Gram rows of new columns in each group, or the old Gram and the new.

    At most half of the working set comes in at once (`choose_columns`), on demand all of it. Each thread has a block of
    the columns, in their dtype on disk. On disk are the Grams of the last round, the new one, and the sums of each
    process; columns are kept where there is room beside these.
    """
    n_columns, workers = run.n_columns, run.workers
    gram, blocks = 8 * n_columns**2, kept_blocks(run.shape.n_train, n_columns)
    rows = gram if run.config.centers.on_demand else gram // 2
    kept = run.itemsize * workers.threads * blocks.block_rows * n_columns
    streaming = gram // 4 + memory_of(replace(blocks, sums_bytes=rows), run) + kept
    joining = gram + gram // 4 + rows
    disk = (2 + workers.processes) * gram + (gram if run.config.solver.intercept else 0)
    return Needs(max(streaming, joining), disk)
