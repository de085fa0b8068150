"""The Gram of a working set, grown by the columns that are admitted: only their rows of it are computed."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.stages.accumulate_statistics import STORING, statistics_from_arrays, statistics_to_arrays
from pipeline.stages.largest_values import largest_values
from pipeline.stages.run_state import STATISTICS, Run
from pipeline.stages.statistics_pass import ALL, MEMBERS, StatisticsPass
from pipeline.stages.training_rows import row_task
from storage.atomic_writes import make_folder, read_arrays, remove_folder, write_arrays
from storage.manifest import read as read_manifest


@dataclass(frozen=True)
class WorkingSet:
    """The working set of a round: the round's name, its candidates in the order of the Gram, their statistics."""

    name: str
    candidates: NDArray[np.int64]
    statistics: GramStatistics


def grow(
    run: Run, name: str, previous: WorkingSet | None, stay: NDArray[np.int64], admitted: NDArray[np.int64]
) -> WorkingSet:
    """Compute and commit the statistics of the columns that stay and of those admitted; return the new working set.

    `stay` are columns of `previous`, `admitted` the candidates that come in. Costs n·(k + m)·2d operations for the
    columns and n·m·(2k + m) for their Gram, k that stay and m admitted.
    """
    with run.charged(STATISTICS):
        staying = previous.candidates[stay] if previous is not None else np.empty(0, np.int64)
        members = np.concatenate([staying, admitted])
        folder = run.layout.row_pass(name)
        make_folder(folder)
        write_arrays(folder / MEMBERS, {"members": members})
        task = StatisticsPass(
            row_task(run), (ALL,), len(members), largest_values(run), members=folder / MEMBERS, n_kept=len(staying)
        )
        new = run.row_pass(STATISTICS, task, folder).statistics()[ALL]
        with run.doing(STATISTICS, STORING):
            sums = joined(previous, stay, new)
            sums.check_range()
            entries = {"kernel_entries": run.shape.n_train * len(members)}
            arrays = statistics_to_arrays(sums) | {"rows": members}
            write_arrays(run.layout.statistics_file(name), arrays, metadata=entries)
        remove_folder(folder, durable=False)
    return load(run, name)


def load(run: Run, name: str) -> WorkingSet:
    """Return a committed working set, its Gram mapped read-only; what its pass left is removed."""
    remove_folder(run.layout.row_pass(name), durable=False)
    arrays = read_arrays(run.layout.statistics_file(name), mapped=True)
    members = np.asarray(arrays.pop("rows"))
    return WorkingSet(name, members, statistics_from_arrays(arrays))


def kernel_entries(run: Run, name: str) -> int:
    """Return how many kernel entries a round's statistics took."""
    return int(read_manifest(run.layout.statistics_file(name)).metadata["kernel_entries"])


def joined(previous: WorkingSet | None, stay: NDArray[np.int64], new: GramStatistics) -> GramStatistics:
    """Return the statistics of the columns that stay and of the new ones after them (mathematics.md, eq. 11).

    new: the last rows of the joined Gram, and the sums of the new columns.
    """
    if previous is None:
        return new
    old, k, size = previous.statistics, len(stay), new.gram.shape[1]
    gram = np.empty((size, size))
    for start in range(0, k, 512):  # by stripes: the old Gram is mapped, and may be as large as the new one
        gram[start : min(start + 512, k), :k] = old.gram[stay[start : start + 512]][:, stay]
    gram[k:] = new.gram
    gram[:k, k:] = new.gram[:, :k].T
    kty = np.concatenate([old.kty[stay], new.kty])
    return replace(new, gram=gram, kty=kty, column_sums=np.concatenate([old.column_sums[stay], new.column_sums]))
