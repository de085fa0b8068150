"""The working set of a penalty path: statistics of its columns on the fit rows and on the held-out rows.

A pass adds up both parts at once. When a penalty is chosen their sum is the first working set of the solve on all rows,
which needs no pass.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.accumulate_statistics import STORING, load_statistics, statistics_from_arrays
from pipeline.stages.out_of_core import grown_gram
from pipeline.stages.out_of_core.grown_gram import WorkingSet, joined
from pipeline.stages.out_of_core.kept_columns import KeptColumns, kept_files, nothing_kept, restored
from pipeline.stages.penalty_path import PathColumns
from pipeline.stages.run_state import Run
from pipeline.stages.statistics_pass import FIT, HELD_OUT
from pipeline.stages.workspace import STATISTICS
from storage.arrays import read_arrays
from storage.errors import ANEW
from storage.folder_layouts import MANIFEST_NAME
from storage.folders import check_folder, read_manifest, remove_folder


@dataclass(frozen=True)
class PathSet:
    """The working set of a round of a path: its columns in the order of the Gram, and where its statistics are."""

    round: int
    kept: KeptColumns

    @property
    def candidates(self) -> NDArray[np.int64]:
        """Whose columns these are, by name."""
        return self.kept.members

    @property
    def name(self) -> str:
        """What the round is committed under."""
        return set_name(self.round)

    @property
    def columns(self) -> PathColumns:
        """What penalties are tried on."""
        return PathColumns(f"{self.name}-fit", f"{self.name}-held-out", self.name, self.candidates)


def set_name(number: int) -> str:
    """Return what a round of a path is committed under."""
    return f"path-{number:03d}"


def grow(run: Run, before: PathSet | None, stay: NDArray[np.int64], admitted: NDArray[np.int64]) -> PathSet:
    """Compute and commit the statistics of the columns of a set that stay and of those admitted; return the new set.

    Those of the fit rows are written last, with the names of the candidates: they tell that both are there.
    """
    number, kept = (before.round + 1, before.kept) if before else (0, nothing_kept())
    with run.charged(STATISTICS):
        columns, new = grown_gram.add_columns(run, set_name(number), kept, stay, admitted, (FIT, HELD_OUT))
        grown = PathSet(number, columns)
        with run.doing(STATISTICS, STORING):
            for part in (HELD_OUT, FIT):
                old = load_statistics(run.layout, _name(before, part)) if before else None
                sums = joined(old, stay, new.pop(part))
                sums.check_range()
                grown_gram.commit(run, _name(grown, part), columns, sums, len(columns.last_group))
        grown_gram.clean(run, grown.name, columns)
    return grown


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
    columns = PathSet(rounds[-1], nothing_kept()).columns
    for folder in (columns.fit, columns.held_out):
        check_folder(run.layout.statistics_file(folder), remedy=ANEW)
    arrays = read_arrays(run.layout.statistics_file(columns.fit), mapped=True, remedy=ANEW)
    return PathSet(rounds[-1], restored(kept_files(run), arrays))


def kernel_entries(run: Run, of: PathSet) -> int:
    """Return how many kernel entries the statistics of a set took."""
    return int(read_manifest(run.layout.statistics_file(of.columns.fit)).metadata["kernel_entries"])


def on_all_rows(run: Run, of: PathSet, name: str) -> WorkingSet:
    """Commit the statistics of a set on all rows, the sum of both parts, under another name; return that set."""
    with run.charged(STATISTICS), run.doing(STATISTICS, STORING):
        fit = statistics_from_arrays(read_arrays(run.layout.statistics_file(of.columns.fit)))
        everything = fit.absorbing(load_statistics(run.layout, of.columns.held_out))
        grown_gram.commit(run, name, of.kept, everything, 0)
    del fit, everything
    return grown_gram.load(run, name)


def drop(run: Run, number: int) -> None:
    """Remove the statistics of a round; they are the largest files of a run."""
    columns = PathSet(number, nothing_kept()).columns
    for old in (columns.fit, f"{columns.fit}-centred", columns.held_out):
        remove_folder(run.layout.statistics_file(old), durable=False)
