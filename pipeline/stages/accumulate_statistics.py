"""Stage 3: sufficient statistics of the kernel columns (mathematics.md, eqs. 7 and 8), in one pass over the rows.

Where rows were added to those of an earlier run, its statistics are taken, and the pass is over the new rows alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.stages import earlier_run, final_weights
from pipeline.stages.largest_values import largest_values
from pipeline.stages.run_state import STATISTICS, Run
from pipeline.stages.statistics_pass import ALL, COLUMNS, FIT, HELD_OUT, StatisticsPass
from pipeline.stages.training_rows import row_task
from storage.arrays import read_arrays, write_arrays
from storage.errors import ANEW, CorruptDataError
from storage.files import make_folder
from storage.folder_layouts import MANIFEST_NAME, RunLayout
from storage.folders import check_folder, remove_folder, verify

STORING = "storing the sums of all rows"


def accumulate_statistics(run: Run) -> None:
    """Accumulate the statistics of all training rows and commit them as fit, hold_out and all."""
    with run.stage(STATISTICS):
        if final_weights.is_done(run.layout):
            _clean(run)  # of what a kill left at the last moment
            return  # nothing reads them any more, and the run may have dropped them
        if run.in_rounds or run.preselection is not None:
            return  # the solve stage computes them, for the columns it needs
        if (run.layout.statistics_file(ALL) / MANIFEST_NAME).exists():
            with run.doing(STATISTICS, "checking those of an earlier session"):
                for name in (FIT, HELD_OUT, ALL):  # least squares on all candidates read them unchecked
                    check_folder(run.layout.statistics_file(name), remedy=ANEW)
            _clean(run)
            return
        make_folder(run.layout.statistics)
        parts = _sums(run, len(run.shape.added), _sums_before(run))
        commit_parts(run, parts[FIT], parts[HELD_OUT], (FIT, HELD_OUT, ALL))
        _clean(run)


def _sums_before(run: Run) -> dict[str, Path]:
    """Return the folders of the statistics of all rows before the last addition, by part; none where there was none.

    They are those of the earlier run; where it has not kept them, they are made again, to the same bits: one batch
    after the other, as the runs before it did (mathematics.md, eq. 90).
    """
    folders = earlier_run.kept_statistics(run) if run.shape.added else {}
    for number in range(0 if folders else len(run.shape.added)):
        before, folders = folders, _folders(run, number)
        if any(verify(folder, contents=True) for folder in folders.values()):
            for part, statistics in _sums(run, number, before).items():
                write_arrays(folders[part], statistics_to_arrays(statistics))
    return folders


def _sums(run: Run, number: int, before: Mapping[str, Path]) -> dict[str, GramStatistics]:
    """Return the statistics of a batch of rows, by part: one pass, and what whole folders have of others."""
    batch = run.shape.batches[number]
    task = StatisticsPass(row_task(run), (FIT, HELD_OUT), run.n_candidates, largest_values(run, batch), batch=batch)
    parts = run.row_pass(STATISTICS, task, _pass_folder(run, number)).statistics()
    for part, folder in before.items():
        parts[part] = parts[part].absorbing(statistics_from_arrays(read_arrays(folder, mapped=True)))
    return parts


def _folders(run: Run, number: int) -> dict[str, Path]:
    return {part: run.layout.statistics_file(f"{part}-{number}") for part in (FIT, HELD_OUT)}


def _pass_folder(run: Run, number: int) -> Path:
    return run.layout.row_pass(f"{STATISTICS}-{number}" if number else STATISTICS)


def _clean(run: Run) -> None:
    """Remove what the sums of all rows were made of."""
    for number in range(len(run.shape.batches)):
        for folder in (_pass_folder(run, number), *_folders(run, number).values()):
            remove_folder(folder, durable=False)


def commit_parts(
    run: Run,
    fit: GramStatistics,
    held_out: GramStatistics,
    names: tuple[str, str, str],
    members: Mapping[str, NDArray[Any]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Commit the statistics of fit rows, held-out rows and all rows under these names; those of all rows last.

    They are what tells a resumed run that the others are there. `members` are further arrays, and `facts` the metadata,
    of theirs. Those of the fit rows are spent: the others are added to them in place.
    """
    with run.doing(STATISTICS, STORING):
        for name, statistics in zip(names, (fit, held_out), strict=False):
            write_arrays(run.layout.statistics_file(name), statistics_to_arrays(statistics))
        everything = fit.absorbing(held_out)
        everything.check_range()
        arrays = statistics_to_arrays(everything) | dict(members or {})
        write_arrays(run.layout.statistics_file(names[2]), arrays, metadata=facts)


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
        unit_errors=np.asarray(arrays.get("unit_errors", np.zeros(3))),  # those of an earlier version have none
    )


def load_statistics(layout: RunLayout, part: str) -> GramStatistics:
    """Return the committed statistics of a part (fit, hold_out or all), the Gram mapped read-only.

    Raises CorruptDataError also where a finished run has kept those of some columns alone.
    """
    arrays = read_arrays(layout.statistics_file(part), mapped=True)
    if COLUMNS in arrays:
        raise _not_there(layout, part)
    return statistics_from_arrays(arrays)


def load_columns(layout: RunLayout, part: str, columns: NDArray[np.int64]) -> GramStatistics:
    """Return the committed statistics of some columns (k,), in memory; a finished run may have stored no others."""
    arrays = read_arrays(layout.statistics_file(part), mapped=True)
    if COLUMNS not in arrays:
        return statistics_from_arrays(arrays).cut(columns)
    stored = arrays[COLUMNS]
    if not np.isin(columns, stored).all():
        raise _not_there(layout, part)
    return statistics_from_arrays(arrays).cut(np.searchsorted(stored, columns))


def _not_there(layout: RunLayout, part: str) -> CorruptDataError:
    path = layout.statistics_file(part)
    return CorruptDataError(f"{path}: holds the model's centers alone (--keep-statistics centers); {ANEW}")
