"""Kernel columns that are kept: computed when candidates enter a working set, and read afterwards.

Columns that enter together are a group; a file has those of a block of rows, (rows, group), in the kernel's precision.
A process that lacks a file, or finds it damaged, computes it again, to the same bits. Where the disk has no room for a
group, none of its files are written. What is left of a group that most have left moves to the next one.
"""

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.exact_sums import Each
from pipeline.kernels.kernel_functions import Kernel
from pipeline.runtime.stored_arrays import Arrays, as_arrays
from pipeline.stages.run_workspace import Run, is_whole
from pipeline.stages.training_rows import RowGrid, RowTask, row_grid, stream_blocks
from storage.arrays import read_arrays, write_arrays
from storage.errors import ANEW, CannotWriteError, CorruptDataError, MissingDataError
from storage.files import make_folder
from storage.folders import remove_folder

FOLDER = "columns"  # among the passes under way, which are removed when the weights are committed
SPARSE = 1 / 3  # of a group: where fewer stay, they come in again
ROOM_GRAMS, ROOM_VALUES = 8, 32  # for which a disk has room besides: of the working set, and a value of each output
MEMBERS = "members.npz"  # of a group
LEAST_ROWS = 128  # of a block: each is a file for each group


@dataclass(frozen=True)
class KeptColumns:
    """Which columns are kept: of the candidates `members` (W,), by row, in the order of their Gram.

    groups (W,): the group of each column; places (W,): its position in the group; sizes (W,): the size of the group.
    """

    members: NDArray[np.int64]
    groups: NDArray[np.int64]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @staticmethod
    def of(arrays: Arrays) -> "KeptColumns":
        """Return the columns that `as_arrays` made arrays of, in memory; other arrays may be among them."""
        return KeptColumns(*(np.array(arrays[name]) for name in ("members", "groups", "places", "sizes")))

    def cut(self, columns: NDArray[np.int64]) -> "KeptColumns":
        """Return some of them."""
        return KeptColumns(*(values[columns] for values in vars(self).values()))

    @property
    def next_group(self) -> int:
        """The number of a group that comes in."""
        return int(self.groups.max(initial=-1)) + 1

    @property
    def last_group(self) -> NDArray[np.int64]:
        """The candidates of the last group, in its order; none of it may have left."""
        last = np.flatnonzero(self.groups == self.next_group - 1)
        return self.members[last[np.argsort(self.places[last])]]

    def grown(self, stay: NDArray[np.int64], admitted: NDArray[np.int64]) -> "KeptColumns":
        """Return the columns that stay, then the candidates admitted: one group, with the rest of dissolved ones."""
        old = self.cut(stay)
        again = np.flatnonzero(np.bincount(old.groups, minlength=1)[old.groups] < SPARSE * old.sizes)
        new = np.concatenate([again, np.arange(len(stay), len(stay) + len(admitted))])
        columns = KeptColumns(*(np.resize(values, len(stay) + len(admitted)) for values in vars(old).values()))
        columns.members[len(stay) :] = admitted
        columns.groups[new], columns.places[new], columns.sizes[new] = self.next_group, np.arange(len(new)), len(new)
        return columns


def nothing_kept() -> KeptColumns:
    """Return no columns."""
    return KeptColumns(*(np.empty(0, np.int64) for _ in range(4)))


def kept_blocks(n_rows: int, capacity: int) -> RowGrid:
    """Return the one grid of all files, for working sets of at most `capacity` columns, half of them new.

    The bits of a value depend on the rows of its block.
    """
    blocks = row_grid("train", n_rows, capacity, 8 * capacity**2 // 2)
    return replace(blocks, block_rows=max(blocks.block_rows, LEAST_ROWS))


@dataclass(frozen=True)
class KeptFiles:
    """The files, a folder below `folder` for each group, and what makes missing ones. Small and picklable.

    room : bytes that stay free on the disk
    """

    rows: RowTask
    blocks: RowGrid
    folder: Path
    room: int

    def group(self, number: int) -> Path:
        """Return the folder of a group."""
        return self.folder / f"group-{number:03d}"

    def file(self, number: int, members: NDArray[np.int64], block: int) -> Path:
        """Return the file of a group's columns of a block; its name has the candidates, so that no groups mix."""
        digest = blake2b(members.tobytes(), digest_size=8).hexdigest()
        return self.group(number) / f"block-{block:06d}-{digest}.npz"

    def begin(self, number: int, candidates: NDArray[np.int64]) -> None:
        """Write whose columns a group has, and whether they are kept; files of an interrupted pass stay."""
        folder = self.group(number)
        if is_whole(folder / MEMBERS) and np.array_equal(read_arrays(folder / MEMBERS)["members"], candidates):
            return
        remove_folder(folder)
        make_folder(folder)
        needed = self.blocks.n_rows * len(candidates) * np.dtype(self.rows.precision).itemsize
        keeps = shutil.disk_usage(folder).free >= needed + self.room
        write_arrays(folder / MEMBERS, {"members": candidates, "keeps": np.array(keeps)})

    def remove_unused(self, columns: KeptColumns) -> None:
        """Remove the groups that none of the columns is of; one that comes in after them may be under way."""
        for number in np.setdiff1d(np.arange(columns.next_group), columns.groups).tolist():
            remove_folder(self.group(number), durable=False)

    def arrays(self, columns: KeptColumns) -> Arrays:
        """Return what is committed of columns, enough to compute the files again, to the same bits."""
        groups = (self.group(number) / MEMBERS for number in np.unique(columns.groups).tolist())
        members = [read_arrays(group, remedy=ANEW)["members"] for group in groups]
        return as_arrays(columns) | {"grouped": np.concatenate([np.empty(0, np.int64), *members])}

    def restored(self, arrays: Arrays) -> KeptColumns:
        """Return the columns of `arrays`, their groups begun where they are lost; other arrays may be among them."""
        columns, first = KeptColumns.of(arrays), 0
        for number in np.unique(columns.groups).tolist():
            size = int(columns.sizes[columns.groups == number][0])
            self.begin(number, np.array(arrays["grouped"][first : first + size]))
            first += size
        return columns


def kept_files(run: Run) -> KeptFiles:
    """Return where a run keeps its columns: while the disk has room for what else the run writes."""
    rows, capacity = run.row_task, run.config.centers.working_set or run.n_candidates
    n, t = run.shape.n_train, run.shape.n_outputs
    room = 8 * (ROOM_GRAMS * capacity**2 + ROOM_VALUES * max(n, run.n_candidates) * (t + 1))
    return KeptFiles(rows, kept_blocks(n, capacity), run.layout.row_pass(FOLDER), room)


class OpenedColumns:
    """The kept columns in a process: all its threads read them."""

    def __init__(self, files: KeptFiles, columns: KeptColumns) -> None:
        self._files, self._columns = files, columns
        self._groups: dict[int, Arrays] = {}
        self._generators: dict[int, Kernel] = {}

    def block(self, number: int, each: Each, X: NDArray[np.floating] | None = None) -> NDArray[np.float64]:
        """Return the columns of a block of rows, (rows, W) f8 C-contiguous; missing ones are computed and kept.

        X : the features of its rows; None: they are read if a file is missing
        """
        columns = self._columns
        out = np.empty((int(self._files.blocks.size(number)), len(columns.members)))
        for group in np.unique(columns.groups).tolist():
            values, here = self._values(group, number, each, X), np.flatnonzero(columns.groups == group)
            places = columns.places[here]
            values = values if len(places) == values.shape[1] else values[:, places]
            together = here[-1] - here[0] + 1 == len(here)
            out[:, slice(here[0], here[-1] + 1) if together else here] = values
        return out

    def _values(self, group: int, number: int, each: Each, X: NDArray[np.floating] | None) -> NDArray[np.floating[Any]]:
        """Return all columns of a group, of a block."""
        path = self._files.file(group, self._group(group)["members"], number)
        try:
            return read_arrays(path)["columns"]
        except (MissingDataError, CorruptDataError):
            rows = self._files.rows
            if X is None:
                ((_, block),) = stream_blocks(rows, self._files.blocks, range(number, number + 1))
                X = block.X
            values = self._generator(group).block(X, out_dtype=np.dtype(rows.precision).type, each=each)
            if self._group(group)["keeps"]:
                with suppress(CannotWriteError):  # it can be computed again
                    write_arrays(path, {"columns": values}, durable=False)
            return values

    def _generator(self, number: int) -> Kernel:
        if number not in self._generators:  # two threads may both make one: they are equal
            self._generators[number] = self._files.rows.generator(self._group(number)["members"])
        return self._generators[number]

    def _group(self, number: int) -> Arrays:
        if number not in self._groups:
            self._groups[number] = read_arrays(self._files.group(number) / MEMBERS, remedy=ANEW)
        return self._groups[number]
