"""Working sets: the candidates that have a Gram, which grows by the rows of those admitted; their residuals.

A round's working set is committed under its name: statistics of all rows, or of fit and held-out rows for a path.
"""

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.distance_forms import TILE_COLUMNS as COLUMNS_TILE
from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.exact_sums import Each
from pipeline.kernels.gram_statistics import GramStatistics, joined
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
from pipeline.stages.block_pass import Add, BlockValues, ExactSums, block_pass
from pipeline.stages.one_vs_all import load_weights
from pipeline.stages.out_of_core.kept_columns import KeptColumns, KeptFiles, OpenedColumns, kept_files, nothing_kept
from pipeline.stages.run_workspace import Run
from pipeline.stages.training_rows import RowBlock, RowTask
from pipeline.stages.workspace import SOLVE, STATISTICS
from storage.folder_layouts import MANIFEST_NAME

ENTRIES = "kernel_entries"  # the array with how many a round's statistics took
RESIDUALS = "residuals"
NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class WorkingSet:
    """The working set of a round: its columns in the order of the Gram, and their statistics by part.

    The solves use the first part: ALL, or FIT before HELD_OUT. kernel_entries: that the new columns took.
    """

    name: str
    columns: KeptColumns
    parts: dict[str, GramStatistics]
    kernel_entries: int = 0

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Whose columns these are, by row."""
        return self.columns.members

    @property
    def statistics(self) -> GramStatistics:
        """The statistics that the solves use."""
        return next(iter(self.parts.values()))

    @property
    def index(self) -> int:
        """The number of the round, from 0."""
        return int(self.name.rpartition("-")[2])

    def part(self, part: str) -> str:
        """Return the name of the statistics of a part."""
        return part_name(self.name, part)


def round_name(kind: str, index: int) -> str:
    """Return the name under which a round is committed: of the kind "round", on all rows, or "path"."""
    return f"{kind}-{index:03d}"


def part_name(name: str, part: str) -> str:
    """Return the name of the statistics of a part, of a round."""
    return name if part == ALL else f"{name}-{part}"


def _open_columns(files: KeptFiles, given: Stored, parts: tuple[str, ...], _: RowTask) -> Add[ExactSums]:
    """Open the kept columns; return what adds a block."""
    opened = OpenedColumns(files, KeptColumns.of(given.read()))

    def add(sums: ExactSums, number: int, block: RowBlock, each: Each) -> None:
        columns = opened.block(number, each, block.X)
        for part in parts:
            rows = slice(None) if part == ALL else block.held_out == (part == HELD_OUT)
            weights = None if block.weights is None else block.weights[rows]
            sums[part].add(columns[rows], block.targets[rows], weights, each)

    return add


def grow(
    run: Run,
    name: str,
    previous: WorkingSet | None,
    stay: NDArray[np.int64],
    admitted: NDArray[np.int64],
    parts: tuple[str, ...] = (ALL,),
) -> WorkingSet:
    """Commit the statistics of the columns of `previous` that stay and of the candidates admitted; return the new set.

    Costs n·m·2d operations for m admitted columns and n·m·(2k + m) for their Gram, with k that stay.
    """
    with run.timed_as(STATISTICS):
        before = previous.columns if previous else nothing_kept()
        columns, new = add_columns(run, name, before, stay, admitted, parts)
        with run.status(STATISTICS, STORING):
            for part in reversed(parts):  # the first part is committed last: it means that all are there
                sums = joined(previous.parts[part] if previous else None, stay, new.pop(part))
                sums.check_range()
                commit(run, part_name(name, part), columns, sums, len(columns.last_group))
    return load(run, name, parts)


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
    return columns, run.add_up(STATISTICS, task, name).statistics()


def commit(run: Run, name: str, columns: KeptColumns, sums: GramStatistics, n_new: int) -> None:
    """Commit the statistics of columns under a name, of which the last ones were made for it."""
    arrays = statistics_to_arrays(sums) | kept_files(run).arrays(columns)
    run.commit(name_of(name), arrays | {ENTRIES: np.array(run.shape.n_train * n_new)})


def load(run: Run, name: str, parts: tuple[str, ...] = (ALL,)) -> WorkingSet:
    """Return a committed working set, its Grams mapped, and remove leftovers of its pass. Raises CorruptDataError."""
    names, files = {part: name_of(part_name(name, part)) for part in parts}, kept_files(run)
    found = {part: statistics_of(run, names[part]) for part in parts}
    first = run.stored(names[parts[0]]).read(mapped=True)
    columns = files.restored(first)
    run.drop(f"passes/{name}")
    files.remove_unused(columns)
    return WorkingSet(name, columns, found, int(first[ENTRIES]))


def latest(run: Run, kind: str, parts: tuple[str, ...]) -> WorkingSet | None:
    """Return the last committed working set of a kind, else None, and drop those before. Raises CorruptDataError."""
    pattern = re.compile(part_name(rf"{kind}-(\d+)", parts[0]))
    folders = (path.parent.name for path in run.layout.statistics.glob(f"{kind}-*/{MANIFEST_NAME}"))
    rounds = sorted(int(found[1]) for name in folders if (found := pattern.fullmatch(name)))
    if not rounds:
        return None
    for earlier in rounds[:-1]:  # left by a kill at the last moment
        drop(run, round_name(kind, earlier), parts)
    return load(run, round_name(kind, rounds[-1]), parts)


def drop(run: Run, name: str, parts: tuple[str, ...]) -> None:
    """Remove the statistics of a round, and what the solves made of them: the largest files of a run."""
    for part in parts:
        for folder in (part_name(name, part), f"{part_name(name, part)}-centred"):
            run.drop(name_of(folder))


def active_weights(run: Run, current: WorkingSet) -> Weights:
    """Return the committed weights of a round's solves at one penalty, on the columns that are active."""
    table = load_weights(run, current.name, len(current.candidates))[-1]
    return Weights.of_support(table, current.statistics, intercept=run.intercept)


def compute_residuals(
    run: Run,
    name: str,
    columns: KeptColumns,
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    *,
    fit_only: bool = False,
) -> NDArray[np.float64]:
    """Return the residuals R = Y - K w - b of all training rows, (n, T) f8 (mathematics.md, eq. 26): one pass.

    columns (a,): of the active candidates; weights (a, T); intercept (T,). Rows of weight s are times √s (eq. 9). They
    stay committed until the correlations are. fit_only: held-out rows have 0.
    """
    name, files = f"{name}-{RESIDUALS}", kept_files(run)

    def make() -> Arrays:
        arrays = as_arrays(columns) | {"weights": weights, "intercept": intercept}
        opened = partial(_open_weights, files, run.commit(f"passes/{name}/weights.npz", arrays), fit_only)
        key = len(columns.members), fit_only
        task = block_pass(files.rows, files.blocks, opened, BlockValues, key, features="none")
        return {RESIDUALS: run.add_up(SOLVE, task, name, RESIDUALS).in_order(RESIDUALS)}

    return np.asarray(run.once(f"passes/{name}/residuals.npz", make)[RESIDUALS])


def _open_weights(files: KeptFiles, given: Stored, fit_only: bool, _: RowTask) -> Add[BlockValues]:
    arrays = given.read()
    columns, weights = OpenedColumns(files, KeptColumns.of(arrays)), arrays["weights"]

    def add(values: BlockValues, number: int, block: RowBlock, each: Each) -> None:
        targets = np.tile(block.targets, weights.shape[1] // block.targets.shape[1])
        residuals = targets - columns.block(number, each) @ weights - arrays["intercept"]
        if block.weights is not None:
            residuals *= np.sqrt(block.weights)[:, None]
        if fit_only:
            residuals[block.held_out] = 0.0
        values.put(number, {RESIDUALS: residuals})

    return add


def growth_bytes(gram_bytes: int, parts: int, *, on_demand: bool) -> tuple[int, int]:
    """Return the bytes of the Gram rows that come in at once, and of joining them to the Gram.

    At most half of the working set comes in at once, on demand all of it.
    """
    rows = gram_bytes if on_demand else parts * gram_bytes // 2
    return rows, gram_bytes + gram_bytes // 4 + rows
