"""The working set of a penalty path: statistics of its columns on the fit rows and on the held-out rows.

A pass adds up both parts at once. When a penalty is chosen their sum is the first working set of the solve on all rows,
which needs no pass.
"""

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.stages.accumulate_statistics import (
    STORING,
    load_statistics,
    statistics_from_arrays,
    statistics_to_arrays,
)
from pipeline.stages.largest_values import largest_values
from pipeline.stages.out_of_core import grown_gram
from pipeline.stages.out_of_core.grown_gram import WorkingSet, joined
from pipeline.stages.penalty_path import PathColumns
from pipeline.stages.run_state import STATISTICS, Run
from pipeline.stages.statistics_pass import FIT, HELD_OUT, MEMBERS, StatisticsPass
from pipeline.stages.training_rows import row_task
from storage.atomic_writes import check_folder, make_folder, read_arrays, remove_folder, write_arrays
from storage.manifest import MANIFEST_NAME
from storage.manifest import read as read_manifest
from storage.remedies import ANEW


@dataclass(frozen=True)
class PathSet:
    """The working set of a round of a path: its candidates in the order of the Gram, and where its statistics are."""

    round: int
    candidates: NDArray[np.int64]

    @property
    def name(self) -> str:
        """What the round is committed under."""
        return f"path-{self.round:03d}"

    @property
    def columns(self) -> PathColumns:
        """What penalties are tried on."""
        return PathColumns(f"{self.name}-fit", f"{self.name}-held-out", self.name, self.candidates)


def grow(run: Run, before: PathSet | None, stay: NDArray[np.int64], admitted: NDArray[np.int64]) -> PathSet:
    """Compute and commit the statistics of the columns of a set that stay and of those admitted; return the new set.

    Those of the fit rows are written last, with the names of the candidates: they tell that both are there.
    """
    staying = np.empty(0, np.int64) if before is None else before.candidates[stay]
    grown = PathSet(0 if before is None else before.round + 1, np.concatenate([staying, admitted]))
    with run.charged(STATISTICS):
        folder = run.layout.row_pass(grown.name)
        make_folder(folder)
        write_arrays(folder / MEMBERS, {"members": grown.candidates})
        task = partial(StatisticsPass, members=folder / MEMBERS, n_kept=len(staying))
        sums = run.row_pass(
            STATISTICS, task(row_task(run), (FIT, HELD_OUT), len(grown.candidates), largest_values(run)), folder
        )
        new = sums.statistics()
        with run.doing(STATISTICS, STORING):
            _commit(run, before, grown, stay, new.pop(HELD_OUT), HELD_OUT)
            _commit(run, before, grown, stay, new.pop(FIT), FIT)
        remove_folder(folder, durable=False)
    return grown


def _commit(
    run: Run, before: PathSet | None, grown: PathSet, stay: NDArray[np.int64], new: GramStatistics, part: str
) -> None:
    name, old = _name(grown, part), None
    if before is not None:
        old = load_statistics(run.layout, _name(before, part))
    sums = joined(old, stay, new)
    sums.check_range()
    members = {"rows": grown.candidates} if part == FIT else {}
    entries = {"kernel_entries": run.shape.n_train * len(grown.candidates)}
    write_arrays(run.layout.statistics_file(name), statistics_to_arrays(sums) | members, metadata=entries)


def _name(of: PathSet, part: str) -> str:
    return of.columns.fit if part == FIT else of.columns.held_out


def latest(run: Run) -> PathSet | None:
    """Return the last set of a path that is committed, and drop those before; None where there is none.

    Raises CorruptDataError where its statistics are damaged.
    """
    folders = (path.parent.name for path in run.layout.statistics.glob(f"path-*/{MANIFEST_NAME}"))
    rounds = sorted(int(found[1]) for name in folders if (found := re.fullmatch(r"path-(\d+)-fit", name)))
    if not rounds:
        return None
    for earlier in range(rounds[-1]):
        drop(run, earlier)
    columns = PathSet(rounds[-1], np.empty(0, np.int64)).columns
    check_folder(run.layout.statistics_file(columns.held_out), remedy=ANEW)  # the solves check those of the fit rows
    members = read_arrays(run.layout.statistics_file(columns.fit), mapped=True, remedy=ANEW)["rows"]
    return PathSet(rounds[-1], np.array(members))


def kernel_entries(run: Run, of: PathSet) -> int:
    """Return how many kernel entries the statistics of a set took."""
    return int(read_manifest(run.layout.statistics_file(of.columns.fit)).metadata["kernel_entries"])


def on_all_rows(run: Run, of: PathSet, name: str) -> WorkingSet:
    """Commit the statistics of a set on all rows, the sum of both parts, under another name; return that set."""
    with run.charged(STATISTICS), run.doing(STATISTICS, STORING):
        fit = statistics_from_arrays(read_arrays(run.layout.statistics_file(of.columns.fit)))
        everything = fit.absorbing(load_statistics(run.layout, of.columns.held_out))
        arrays = statistics_to_arrays(everything) | {"rows": of.candidates}
        write_arrays(run.layout.statistics_file(name), arrays, metadata={"kernel_entries": 0})
    del fit, everything, arrays
    return grown_gram.load(run, name)


def drop(run: Run, number: int) -> None:
    """Remove the statistics of a round; they are the largest files of a run."""
    columns = PathSet(number, np.empty(0, np.int64)).columns
    for old in (columns.fit, f"{columns.fit}-centred", columns.held_out):
        remove_folder(run.layout.statistics_file(old), durable=False)
