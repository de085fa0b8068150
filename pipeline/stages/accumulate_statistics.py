"""Stage 3: sufficient statistics of the kernel columns (mathematics.md, eqs. 7 and 8), in one pass over the rows.

Where rows were added to those of an earlier run, its statistics are taken, and the pass is over the new rows alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.exact_sums import Each
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, largest_terms
from pipeline.kernels.kernel_forms import column_bounds
from pipeline.runtime.stored_arrays import Arrays
from pipeline.stages.block_pass import OfBlock, value_pass
from pipeline.stages.final_weights import final_of
from pipeline.stages.statistics_pass import ALL, COLUMNS, FIT, HELD_OUT, MEMBERS, statistics_pass
from pipeline.stages.target_facts import RowData, TargetFacts, target_blocks
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task
from pipeline.stages.workspace import SOLVE, STATISTICS, Workspace
from storage.arrays import read_arrays
from storage.errors import ANEW, CorruptDataError
from storage.folder_layouts import RunLayout

STORING = "storing the sums of all rows"


def accumulate_statistics(work: Workspace) -> None:
    """Commit the statistics of all training rows on all candidates, where the solves need them: fit, hold_out, all."""
    with work.stage(STATISTICS):
        if final_of(work) is not None:
            return  # nothing reads them any more, and the run may have dropped them
        if work.in_rounds or work.preselection is not None:
            return  # the solve stage computes them, for the columns it needs
        with work.status(STATISTICS, "checking those of an earlier session"):
            is_done = work.committed(name_of(ALL), mapped=True) is not None
        if not is_done:
            parts = _sums(work, len(work.shape.added), _sums_before(work))
            commit_parts(work, parts[FIT], parts[HELD_OUT], (FIT, HELD_OUT, ALL))
        for number in range(len(work.shape.batches)):
            for name in (f"passes/{_pass_name(number)}", *_names(number).values()):
                work.drop(name)


def name_of(part: str) -> str:
    """Return the name under which the statistics of a part are committed."""
    return f"statistics/{part}"


def _sums_before(work: Workspace) -> Mapping[str, GramStatistics]:
    """Return the statistics of all rows before the last addition, by part; none where there was none.

    They are those of the earlier run; where it has not kept them, they are made again, to the same bits: one batch
    after the other, as the runs before it did (mathematics.md, eq. 90).
    """
    before = work.earlier_statistics() if work.shape.added else {}
    for number in range(0 if before else len(work.shape.added)):
        names = _names(number)
        if any(work.committed(name, mapped=True) is None for name in names.values()):
            for part, statistics in _sums(work, number, before).items():
                work.commit(names[part], statistics_to_arrays(statistics))
        before = {part: statistics_of(work, name) for part, name in names.items()}
    return before


def _sums(work: Workspace, number: int, before: Mapping[str, GramStatistics]) -> dict[str, GramStatistics]:
    """Return the statistics of a batch of rows, by part, with those of the batches before: one pass."""
    batch = work.shape.batches[number]
    task = statistics_pass(row_task(work), (FIT, HELD_OUT), work.n_candidates, largest_values(work, batch), batch=batch)
    parts = work.add_up(STATISTICS, task, _pass_name(number)).statistics()
    for part, statistics in before.items():
        parts[part] = parts[part].absorbing(statistics)
    return parts


def _names(number: int) -> dict[str, str]:
    return {part: name_of(f"{part}-{number}") for part in (FIT, HELD_OUT)}


def _pass_name(number: int) -> str:
    return f"{STATISTICS}-{number}" if number else STATISTICS


def commit_parts(
    work: Workspace,
    fit: GramStatistics,
    held_out: GramStatistics,
    names: tuple[str, str, str],
    members: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Commit the statistics of fit rows, held-out rows and all rows under these names; those of all rows last.

    They are what tells a resumed run that the others are there. `members` are further arrays of theirs. Those of the
    fit rows are spent: the others are added to them in place.
    """
    with work.status(STATISTICS, STORING):
        for name, statistics in zip(names, (fit, held_out), strict=False):
            work.commit(name_of(name), statistics_to_arrays(statistics))
        everything = fit.absorbing(held_out)
        everything.check_range()
        work.commit(name_of(names[2]), statistics_to_arrays(everything) | dict(members or {}))


def statistics_of(work: Workspace, name: str) -> GramStatistics:
    """Return the statistics that are committed under a name, the Gram mapped. Raises CorruptDataError."""
    found = work.committed(name, mapped=True)
    if found is None:
        raise CorruptDataError(f"{name}: the statistics are missing; {ANEW}")
    if COLUMNS in found:
        raise _not_there(name)
    return statistics_from_arrays(found)


def statistics_to_arrays(statistics: GramStatistics) -> dict[str, NDArray[np.float64]]:
    """Return statistics as named arrays, ready to be stored."""
    return {name: np.asarray(value) for name, value in vars(statistics).items()}


def statistics_from_arrays(arrays: dict[str, NDArray[np.float64]]) -> GramStatistics:
    """Return the statistics that `statistics_to_arrays` turned into arrays; other arrays may be among them."""
    return GramStatistics(
        gram=arrays["gram"],
        kty=arrays["kty"],
        yty=arrays["yty"],
        column_sums=arrays["column_sums"],
        target_sums=arrays["target_sums"],
        weight_sum=float(arrays["weight_sum"]),
        unit_errors=np.asarray(arrays["unit_errors"]),
    )


def load_statistics(layout: RunLayout, part: str) -> GramStatistics:
    """Return the committed statistics of a part (fit, hold_out or all), the Gram mapped read-only.

    Raises CorruptDataError also where a finished run has kept those of some columns alone.
    """
    arrays = read_arrays(layout.statistics_file(part), mapped=True)
    if COLUMNS in arrays:
        raise _not_there(str(layout.statistics_file(part)))
    return statistics_from_arrays(arrays)


def load_columns(layout: RunLayout, part: str, columns: NDArray[np.int64]) -> GramStatistics:
    """Return the committed statistics of some columns (k,), in memory; a finished run may have stored no others."""
    arrays = read_arrays(layout.statistics_file(part), mapped=True)
    if COLUMNS not in arrays:
        return statistics_from_arrays(arrays).cut(columns)
    stored = arrays[COLUMNS]
    if not np.isin(columns, stored).all():
        raise _not_there(str(layout.statistics_file(part)))
    return statistics_from_arrays(arrays).cut(np.searchsorted(stored, columns))


def _not_there(path: str) -> CorruptDataError:
    return CorruptDataError(f"{path}: holds the model's centers alone (--keep-statistics centers); {ANEW}")


def accumulate_held_out(work: Workspace, centers: NDArray[np.int64], name: str) -> GramStatistics:
    """Return the statistics of all held-out rows on the candidates `centers` (m,): one pass, named after `name`."""
    name = f"{name}-held-out"
    members = work.commit(f"passes/{name}/{MEMBERS}", {"members": centers})
    task = statistics_pass(row_task(work), (HELD_OUT,), len(centers), largest_values(work), members=members)
    return work.add_up(SOLVE, task, name, "held-out rows at the centers").statistics()[HELD_OUT]


NAME, TERMS = "largest-terms", "terms"


def largest_values(work: Workspace, batch: range | None = None) -> RowBounds:
    """Return the bounds for a batch of training rows (None: all).

    From targets and weights alone for a Gaussian, else from a pass over the rows, committed.
    """
    task, rows = row_task(work), range(work.shape.n_train) if batch is None else batch
    if task.kernel.is_bounded:
        return largest_of_bounded(work, task.facts, rows)
    name = NAME if len(rows) == work.shape.n_train else f"{NAME}-{rows.start}"

    def make() -> Arrays:
        blocks = replace(row_grid("train", len(rows), 1), first=rows.start)
        values = work.add_up(STATISTICS, value_pass(task, blocks, _of_rows), name, "bounding the sums")
        return {TERMS: values.in_order(TERMS).max(axis=0)}

    terms = work.once(f"statistics/{name}.npz", make)[TERMS]
    work.drop(f"passes/{name}")
    return RowBounds.of([terms])


def largest_of_bounded(run: RowData, facts: TargetFacts, rows: range | None = None) -> RowBounds:
    """Return the bounds where columns are at most 1, from targets and weights alone."""
    if run.shape.task != "regression":
        return RowBounds.of([largest_terms(1.0, np.ones((1, run.shape.n_outputs)), facts.heaviest)])
    blocks = ((y - facts.mean, facts.weights(y, weights)) for y, weights in target_blocks(run, rows))
    return RowBounds.of(largest_terms(1.0, y[:, None], weights) for y, weights in blocks)


def _of_rows(task: RowTask) -> OfBlock:
    return partial(_largest_of, task)


def _largest_of(task: RowTask, block: RowBlock, _: Each) -> dict[str, NDArray[np.float64]]:
    """Return the largest terms of the rows of one block, (1, 3 + 3 T)."""
    columns = column_bounds(task.kernel, block.X, min(task.sigma2))
    return {TERMS: largest_terms(columns, block.targets, block.weights)[None]}
