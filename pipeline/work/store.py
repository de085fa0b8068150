"""What the steps of a fit commit, by name: kept in this process, or in the folder of a run, which survives a kill.

A name has slashes, such as `statistics/fit` or `solutions/final.npz`; in a run it is the path below the run's folder,
of a file that ends with .npz, whether the name does or not.

A resumed run goes through the same steps: `once` returns what is committed whole, and makes the rest. A step that takes
long goes on from its last checkpoint (`CheckpointsOnDisk`), a pass over the rows from its partial sums
(`runtime.row_pass`).
"""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime import stopping
from storage.arrays import Arrays, Contents, Stored, StoredFile, StoredInMemory, check_whole, commit, load
from storage.errors import CannotWriteError, CorruptDataError, MissingDataError, remedy_at
from storage.files import make_folder, remove_file
from storage.folder_layouts import RunLayout
from storage.folders import remove_folder

COLUMNS = "passes/columns"  # Columns go with the passes when the weights are committed.
RUN = "run"  # The fact that tells which run has committed a file.


class TaskCheckpoints:
    """Checkpoints of a task, and records of its iterations. This base class keeps nothing."""

    def load(self) -> Contents | None:
        """Return the last checkpoint; None where there is none."""
        return None

    def save(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Make a checkpoint: arrays, and facts as JSON knows them."""

    def is_due(self) -> bool:
        """Return whether it is time for a checkpoint, or the fit is to stop."""
        return False

    def add_record(self, facts: Mapping[str, Any]) -> None:
        """Add the record of an iteration of a solve."""

    def report_selection(self, part: str, rows: str, n_chosen: int, most: int) -> None:
        """Report the progress of a greedy selection on a part of the rows: `n_chosen` of at most `most` centers."""


class ColumnsInMemory:
    """Kernel columns in this process by group of candidates and block of rows, of at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._left, self._blocks = most_bytes, dict[tuple[str, int], NDArray[Any]]()

    def get(self, group: str, block: int) -> NDArray[Any] | None:
        """Return the columns of a block (rows, group); None where they are missing or damaged."""
        return self._blocks.get((group, block))

    def put(self, group: str, block: int, columns: NDArray[np.floating]) -> None:
        """Keep columns where there is room."""
        if columns.nbytes <= self._left:
            self._left -= columns.nbytes
            self._blocks[group, block] = columns

    def keep(self, groups: set[str]) -> None:
        """Make room for these groups, and remove all others."""
        for key in [key for key in self._blocks if key[0] not in groups]:
            self._left += self._blocks.pop(key).nbytes


@dataclass(frozen=True)
class ColumnsOnDisk:
    """Columns in files, one for each block of a group, while the disk has room. Small and picklable."""

    folder: Path
    run: str  # the run they are of
    free_bytes: int  # bytes that stay free on the disk

    def get(self, group: str, block: int) -> NDArray[Any] | None:
        with suppress(MissingDataError, CorruptDataError):
            return load_of(self._path(group, block), self.run)["columns"]
        return None

    def put(self, group: str, block: int, columns: NDArray[np.floating]) -> None:
        path = self._path(group, block)
        with suppress(CannotWriteError, FileNotFoundError):  # A worker may come too late for a group.
            if shutil.disk_usage(path.parent).free >= columns.nbytes + self.free_bytes:
                commit(path, {"columns": columns}, {RUN: self.run}, durable=False)

    def keep(self, groups: set[str]) -> None:
        for unused in {path.name for path in self.folder.glob("group-*")} - groups:
            remove_folder(self.folder / unused, durable=False)
        for group in groups:
            make_folder(self.folder / group)

    def _path(self, group: str, block: int) -> Path:
        return self.folder / group / f"block-{block:06d}.npz"


ColumnStore = ColumnsInMemory | ColumnsOnDisk


class MemoryStore:
    """Keeps all in this process; who hears of the iterations of a fit is its `TaskCheckpoints`."""

    def __init__(self, checkpoints: TaskCheckpoints | None = None, column_bytes: int = 0) -> None:
        self._arrays, self._checkpoints = dict[str, Arrays](), checkpoints or TaskCheckpoints()
        self._columns = ColumnsInMemory(column_bytes)

    def get(self, name: str, *, mapped: bool = False) -> Arrays | None:
        """Return what is committed under a name; None where nothing is. Raises CorruptDataError for damage."""
        return self._arrays.get(name)

    def once(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]], *, mapped: bool = False) -> Arrays:
        """Return what is committed under a name; make and commit it where nothing is, or where that is damaged."""
        if name not in self._arrays:
            self.put(name, make())
        return self._arrays[name]

    def put(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> Stored:
        """Commit arrays under a name, in place of what was there; they become read-only."""
        kept = {key: np.asarray(values) for key, values in arrays.items()}
        for values in kept.values():
            values.setflags(write=False)
        self._arrays[name] = kept
        return self.stored(name)

    def stored(self, name: str) -> Stored:
        """Return a reference to what is committed under a name, which tasks of any process can read."""
        return StoredInMemory(self._arrays, name)

    def drop(self, name: str) -> None:
        """Remove what is committed under a name, and below it."""
        for key in [key for key in self._arrays if key == name or key.startswith(f"{name}/")]:
            del self._arrays[key]
        if COLUMNS.startswith(name):
            self._columns.keep(set())

    def names(self, folder: str) -> list[str]:
        """Return the sorted last parts of the names that are committed in a folder, without .npz."""
        inside = (name.removeprefix(f"{folder}/") for name in self._arrays if name.startswith(f"{folder}/"))
        return sorted(name.removesuffix(".npz") for name in inside)

    def columns(self, free_bytes: int) -> ColumnStore:
        """Return where kernel columns are kept; `free_bytes` stay free on a disk."""
        return self._columns

    def checkpoints(self, name: str) -> TaskCheckpoints:
        """Return the checkpoints of a task, by the name of its result."""
        return self._checkpoints


def load_of(path: Path, run: str, *, mapped: bool = False) -> Arrays:
    """Return the arrays that a run has committed. Raises as `load`, CorruptDataError where they are of another run."""
    arrays, facts = load(path, mapped=mapped)
    if facts.get(RUN) != run:
        raise CorruptDataError(f"{path}: is of another run; {remedy_at(path)}")
    return arrays


class FolderStore:
    """Keeps all in the folder of a run; every byte of a file is checked when it is first mapped in a session.

    run : its identity, which all that it commits has
    every, warn : seconds between checkpoints; told of what is damaged and made again
    """

    def __init__(self, layout: RunLayout, run: str, every: float, warn: Callable[[str], object]) -> None:
        self.layout, self.run, self._every, self._warn = layout, run, every, warn
        self._checked = set[Path]()  # files that were written or checked since it was opened

    def path(self, name: str) -> Path:
        """Return the file that has what is committed under a name."""
        return self.layout.root / f"{name.removesuffix('.npz')}.npz"

    def get(self, name: str, *, mapped: bool = False) -> Arrays | None:
        path = self.path(name)
        with suppress(MissingDataError):
            if mapped and path not in self._checked:
                check_whole(path)
                self._checked.add(path)
            return load_of(path, self.run, mapped=mapped)
        return None

    def whole(self, name: str, *, mapped: bool = False) -> Arrays | None:
        """Return what is committed under a name; None, and a warning, also where that is damaged."""
        try:
            return self.get(name, mapped=mapped)
        except CorruptDataError as error:
            self._warn(f"{str(error).partition('; ')[0]}; it is made again")
            return None

    def once(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]], *, mapped: bool = False) -> Arrays:
        found = self.whole(name, mapped=mapped)
        return self.put(name, make()).read(mapped=mapped) if found is None else found

    def put(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> Stored:
        path = self.path(name)
        make_folder(path.parent)
        commit(path, arrays, {RUN: self.run})
        self._checked.add(path)
        return StoredFile(path)

    def stored(self, name: str) -> Stored:
        return StoredFile(self.path(name))

    def drop(self, name: str) -> None:
        path = self.path(name)
        self._checked.discard(path)
        remove_file(path)
        remove_folder(self.layout.root / name, durable=False)

    def names(self, folder: str) -> list[str]:
        return sorted(path.stem for path in (self.layout.root / folder).glob("*.npz"))

    def columns(self, free_bytes: int) -> ColumnStore:
        return ColumnsOnDisk(self.layout.root / COLUMNS, self.run, free_bytes)

    def checkpoints(self, name: str) -> "CheckpointsOnDisk":
        stem = "-".join(name.removesuffix(".npz").split("/")[1:]) or name
        return CheckpointsOnDisk(self.layout.checkpoints / f"{stem}.npz", self.run, self._every)


@dataclass
class CheckpointsOnDisk(TaskCheckpoints):
    """The last checkpoint, in a file. A task begins with loading it."""

    path: Path
    run: str  # the run it is of
    every: float  # seconds between checkpoints
    _saved: float = 0.0

    def load(self) -> Contents | None:
        """Return the last checkpoint of this run, None where there is none. Raises CorruptDataError for damage."""
        self._saved = time.monotonic()
        with suppress(MissingDataError):
            found = load(self.path)
            return found if found.facts.get(RUN) == self.run else None
        return None

    def save(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Commit a checkpoint in place of the one before. Raises CannotWriteError; that one is then untouched."""
        make_folder(self.path.parent, parents=False)  # a run that is gone is not made anew
        commit(self.path, arrays, {**facts, RUN: self.run})
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        return bool(stopping.current().requested()) or time.monotonic() - self._saved >= self.every


Store = MemoryStore | FolderStore
