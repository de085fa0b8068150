"""One pass over the rows: sums over pieces, added up by any number of workers, and resumed after a kill.

A pass reads pieces (row blocks, or tiles), and calls the function of a block with each: these two are all there is
between a step and its arrays. The pieces are fixed by the data alone, and sums are exact: who adds which, in what
order, changes no bit. Each process has an assignment of pieces; its threads add them, each into sums of its own, or
together into shared ones where sums are large. Every `every` seconds, and when asked to stop, it commits its sums with
the numbers of their pieces: one file a process. A resumed pass takes these files up and assigns the other pieces.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StoppedError
from pipeline.kernels.exact_sums import ForEach, serially
from pipeline.runtime import progress, stopping
from pipeline.runtime.executors import Item, WorkerProcess
from storage.arrays import Arrays, check_whole, commit, each_array, load
from storage.errors import CorruptDataError, MissingDataError
from storage.files import remove_file, rename_file

NamedArrays = Iterable[tuple[str, NDArray[Any]]]


class Sums(Protocol):
    """What a pass adds up."""

    def arrays(self) -> Arrays:
        """Return the sums as arrays that can be stored."""

    def absorb(self, arrays: NamedArrays) -> None:
        """Add what `arrays` of other sums of the same pass returned; in any order it gives the same."""


S = TypeVar("S", bound=Sums)
AddPiece = Callable[[S, Any, ForEach], None]  # the function of a block: adds it to sums; `ForEach` shares out its tiles


@dataclass(frozen=True)
class RowPass(Generic[S]):
    """What is added up, and over what: pieces, which are numbered from 0. Small and picklable."""

    read: Callable[[range], Iterator[tuple[int, Any]]]  # yields consecutive pieces, each with its number
    open: Callable[[], AddPiece[S]]  # called in each process, reads what all pieces need; threads share what it returns
    empty: Callable[[], S]  # returns sums of nothing
    size: Callable[[int], float]  # returns how much of what is counted a piece has: rows, or kernel entries
    n_pieces: int
    run_length: int  # how many consecutive pieces are best read together
    grid: tuple[object, ...]  # determines pieces and bounds: committed sums of another grid are made anew
    sums_bytes: int = 0  # bytes of the sums, which threads share if they are large
    threads_a_piece: int = 1  # threads that find work in one piece


class BlockValues:
    """The values of each block, by its number: arrays by name, the same names in each block."""

    def __init__(self) -> None:
        self._of_block: dict[int, Arrays] = {}

    def put(self, number: int, values: Arrays) -> None:
        self._of_block[number] = {name: np.atleast_1d(value) for name, value in values.items()}

    def in_order(self, name: str) -> NDArray[Any]:
        return np.concatenate([values[name] for values in self.by_block()])

    def by_block(self) -> list[Arrays]:
        return [values for _, values in sorted(self._of_block.items())]

    def arrays(self) -> Arrays:
        """Return all values, joined, with the numbers of the blocks and how many are of each."""
        numbers = sorted(self._of_block)
        arrays: Arrays = {"blocks": np.array(numbers, np.int64)}
        for name in self._of_block[numbers[0]] if numbers else ():
            arrays[f"values.{name}"] = self.in_order(name)
            arrays[f"lengths.{name}"] = np.array([len(self._of_block[number][name]) for number in numbers], np.int64)
        return arrays

    def absorb(self, stored: NamedArrays) -> None:
        arrays = dict(stored)
        names = [name.removeprefix("values.") for name in arrays if name.startswith("values.")]
        parts = {name: np.split(arrays[f"values.{name}"], np.cumsum(arrays[f"lengths.{name}"])[:-1]) for name in names}
        for i, number in enumerate(arrays["blocks"].tolist()):
            self.put(number, {name: parts[name][i] for name in names})


@contextmanager
def open_team(n_threads: int) -> Iterator[ForEach]:
    """Give a `ForEach` of `n_threads` threads, which raises the first error when all have ended."""
    if n_threads == 1:
        yield serially
        return
    with ThreadPoolExecutor(n_threads) as pool:

        def each(function: Callable[[Item], None], items: Iterable[Item], /) -> None:
            calls = [pool.submit(copy_context().run, function, item) for item in items]
            wait(calls)
            for call in calls:
                call.result()

        yield each


OWN_SUMS_BYTES = 2**28  # Each thread has its own sums up to this size; all threads of a process share larger ones.
FEW_PIECES = 4  # A group of threads has at least these: where there would be fewer, more threads work on each.
FORMAT = 2  # This names the form of the files, and all that determines the sums but what a pass names: tiles, units.
_GRID, _PIECES, _SUMS = "grid", "pieces", "sums."  # Entries are read in this order.
REMEDY = "run again with `resume=auto`: they are made again"


@dataclass
class Committed(Generic[S]):
    """Sums and the numbers of the pieces that are in them."""

    sums: S
    pieces: set[int] = field(default_factory=set)

    def absorb(self, path: Path) -> None:
        """Add what a file has, one array at a time. Raises CorruptDataError where it has pieces that are here too."""
        pieces: set[int] = set()
        try:
            self.sums.absorb(self._sums_in(path, pieces))
        except MissingDataError:
            raise CorruptDataError(f"{path}: sums are missing; {REMEDY}") from None
        self.pieces |= pieces

    def _sums_in(self, path: Path, pieces: set[int]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the sums in a file, which is opened once: whoever replaces it meanwhile changes nothing."""
        for name, values in each_array(path):
            if name == _PIECES:
                pieces.update(values.tolist())
                if not self.pieces.isdisjoint(pieces):
                    raise CorruptDataError(f"{path}: has sums of the same rows as another file; {REMEDY}")
            elif name.startswith(_SUMS):
                yield name.removeprefix(_SUMS), values

    def commit(self, path: Path, grid: tuple[object, ...], earlier: Iterable[Path]) -> None:
        """Commit the sums and the pieces in them, then remove the files that they went on from."""
        arrays = {f"{_SUMS}{name}": values for name, values in self.sums.arrays().items()}
        about = {_PIECES: np.array(sorted(self.pieces), np.int64), _GRID: signature(grid)}
        commit(path, arrays | about, durable=False)  # no fsync: what is lost with the power is made again
        for other in earlier:
            if other != path:
                remove_file(other)


def signature(grid: tuple[object, ...]) -> NDArray[np.int64]:
    """Return what tells the sums of one grid from all others, (1,) i8."""
    return np.frombuffer(blake2b(repr((FORMAT, *grid)).encode(), digest_size=8).digest(), np.int64)


def take_over(folder: Path, grid: tuple[object, ...], session: str) -> dict[Path, set[int]]:
    """Return the whole files of a grid that a folder has, with the pieces in each; all others are removed.

    Files are renamed after the session, so that a late worker of a killed one cannot write into them. Where files have
    pieces in common, the one with the most pieces stays.
    """
    paths = []
    for i, path in enumerate(sorted(folder.glob("sums-*.npz"))):
        paths.append(folder / f"sums-{session}-{i:04d}-earlier.npz")
        rename_file(path, paths[-1])
    found, kept = {path: pieces_in(path, grid) for path in paths}, dict[Path, set[int]]()
    for path in sorted(found, key=lambda path: len(found[path]), reverse=True):
        if found[path] and all(found[path].isdisjoint(pieces) for pieces in kept.values()):
            kept[path] = found[path]
    for path in set(paths) - set(kept):
        remove_file(path)
    return kept


def pieces_in(path: Path, grid: tuple[object, ...]) -> set[int]:
    """Return the pieces in a file; none of one that is missing, damaged anywhere, or of another grid."""
    with suppress(CorruptDataError, MissingDataError):
        check_whole(path)
        arrays = load(path, mapped=True).arrays
        if np.array_equal(arrays[_GRID], signature(grid)):
            return set(arrays[_PIECES].tolist())
    return set()


@dataclass(frozen=True)
class Assignment:
    """What one process does of a pass."""

    folder: Path
    name: str  # names its files; each attempt has its own, since a task that was taken for lost may run twice
    process: WorkerProcess
    pieces: NDArray[np.int64]  # what it adds
    earlier: tuple[Path, ...]  # the files of sums that it continues from
    every: float  # most seconds between two commits
    together: int  # least threads that share one set of sums
    returned: bool  # whether sums are given back in memory, made in the driver's own process

    def files(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}-*.npz"))


class AssignmentResult(NamedTuple, Generic[S]):
    """The sums of an assignment, or the file that has them, and the CPU seconds of its threads beside the task's."""

    sums: S | None
    file: Path
    cpu_seconds: float


def threads_together(sums_bytes: int) -> int:
    """Return how many threads share sums of `sums_bytes`: all, if they are large, lest memory grows with threads."""
    return 1 if sums_bytes <= OWN_SUMS_BYTES else 2**16


def n_groups_of(threads: int, together: int, n_pieces: int, threads_a_piece: int) -> int:
    """Return the number of groups of at least `together` threads in a process; each group has its own sums."""
    for_memory, for_balance = -(-threads // together), max(n_pieces // FEW_PIECES, -(-threads // threads_a_piece))
    return max(min(for_memory, for_balance, n_pieces), 1)


@dataclass(frozen=True)
class Workers:
    """Workers: `threads` in each of `processes`, together."""

    threads: int
    processes: int
    together: int  # least threads that share an accumulator

    def groups(self, sums_bytes: int, n_pieces: int, threads_a_piece: int = 1) -> int:
        """Return the number of accumulators of `sums_bytes` in a pass over `n_pieces`."""
        together, threads = max(threads_together(sums_bytes), self.together), self.threads // self.processes
        pieces = -(-n_pieces // self.processes)
        return self.processes * n_groups_of(threads, together, pieces, threads_a_piece)


def assign_pieces(
    task: RowPass[S],
    earlier: dict[Path, set[int]],
    folder: Path,
    processes: Sequence[WorkerProcess],
    every: float,
    together: int,
) -> list[Assignment]:
    """Return the assignments of the processes: consecutive pieces that no `earlier` file has, shared by threads."""
    waiting = np.setdiff1d(np.arange(task.n_pieces), [piece for done in earlier.values() for piece in done])
    threads = np.cumsum([0, *(process.threads for process in processes)])
    edges = -(-threads * len(waiting) // threads[-1])
    session, files = session_name(), sorted(earlier)
    some = [i for i in range(len(processes)) if edges[i + 1] > edges[i]]
    return [
        Assignment(
            folder=folder,
            name=f"sums-{session}-{i:04d}",
            process=processes[i],
            pieces=waiting[edges[i] : edges[i + 1]],
            earlier=tuple(files[number :: len(some)]),
            every=every,
            together=max(threads_together(task.sums_bytes), together),
            returned=len(some) == 1 and processes[i].address is None,
        )
        for number, i in enumerate(some)
    ]


def session_name() -> str:
    """Return a name for the files of a session, which sorts after those of earlier ones."""
    return f"{time.time_ns():016x}"


def compute_assignment(task: RowPass[S], assignment: Assignment) -> AssignmentResult[S]:
    """Add all pieces of an assignment, and commit the sums as it goes; one at a time in a process."""
    while not _one_at_a_time.acquire(timeout=0.1):
        stopping.check()
    with ExitStack() as stack:
        stack.callback(_one_at_a_time.release)
        beside = time.process_time() - time.thread_time()
        add = task.open()
        file = assignment.folder / f"{assignment.name}-{os.urandom(4).hex()}.npz"
        total, earlier = _taken_up(task, assignment)
        left = [piece for piece in assignment.pieces.tolist() if piece not in total.pieces]
        threads, n_pieces = assignment.process.threads, len(assignment.pieces)
        n_groups = n_groups_of(threads, assignment.together, n_pieces, task.threads_a_piece)
        waiting = _runs_of(left, task.run_length, n_groups)
        teams = [stack.enter_context(open_team(len(team))) for team in np.array_split(np.arange(threads), n_groups)]
        stops = list[bool]()
        leaders = stack.enter_context(open_team(len(teams)))
        while waiting:
            until = time.monotonic() + assignment.every
            parts = [total, *(Committed(task.empty()) for _ in teams[1:])]
            groups = zip(parts, teams, repeat(until))
            leaders(lambda group: stops.append(_add_until(task, add, waiting, *group)), groups)
            for part in parts[1:]:
                total.sums.absorb(part.sums.arrays().items())
                total.pieces |= part.pieces
            if waiting or any(stops) or not assignment.returned:
                progress.status("storing the sums so far")
                total.commit(file, task.grid, earlier)
                earlier = ()
                progress.status("")
            if any(stops):
                stopping.check()
                raise StoppedError("stopped by its driver")
        if not file.exists() and not assignment.returned:  # all was there already
            total.commit(file, task.grid, earlier)
        beside = time.process_time() - time.thread_time() - beside
        return AssignmentResult(total.sums if assignment.returned else None, file, beside)


_one_at_a_time = threading.Lock()


def _taken_up(task: RowPass[S], assignment: Assignment) -> tuple[Committed[S], tuple[Path, ...]]:
    total = Committed(task.empty())
    attempts = {path: pieces_in(path, task.grid) for path in assignment.files()}
    if any(attempts.values()):
        total.absorb(max(attempts, key=lambda path: len(attempts[path])))
        progress.advance(sum(task.size(piece) for piece in assignment.pieces.tolist() if piece in total.pieces))
        return total, (*attempts, *assignment.earlier)
    for path in assignment.earlier:
        total.absorb(path)
    return total, assignment.earlier


def combine(task: RowPass[S], folder: Path, results: Sequence[AssignmentResult[S]], earlier: Sequence[Path]) -> S:
    """Return the sums over all pieces: of the one assignment of this process, or of the files.

    earlier : the files of a pass that had no pieces left. Raises CorruptDataError where pieces are missing.
    """
    if results and results[0].sums is not None:
        return results[0].sums
    total = Committed(task.empty())
    for path in [result.file for result in results] or earlier:
        total.absorb(path)
    if total.pieces != set(range(task.n_pieces)):
        raise CorruptDataError(f"{folder}: sums are missing; {REMEDY}")
    return total.sums


def _runs_of(pieces: Sequence[int], run_length: int, n_groups: int) -> deque[range]:
    """Return sorted pieces as runs of consecutive ones: shorter runs at the end, so that the groups end together."""
    runs, first = deque[range](), 0
    while first < len(pieces):
        most = min(run_length, max((len(pieces) - first) // (4 * n_groups), 1))
        start = pieces[first]
        count = next((i for i in range(1, most) if pieces[first + i] != start + i), most)
        runs.append(range(start, start + count))
        first += count
    return runs


def _add_until(
    task: RowPass[S], add: AddPiece[S], waiting: deque[range], part: Committed[S], each: ForEach, deadline: float
) -> bool:
    """Add pieces, one at least, until there are no more or the deadline; return whether the run was asked to stop."""
    while True:
        try:
            left = pieces = waiting.popleft()
        except IndexError:
            return False
        try:
            for piece in add_pieces(task, add, pieces, part.sums, each):
                part.pieces.add(piece)
                left = range(piece + 1, pieces.stop)
                if time.monotonic() >= deadline:
                    return False
        except StoppedError:
            return True
        except BaseException:
            left = range(0)
            waiting.clear()  # the other groups end, too
            raise
        finally:
            if left:
                waiting.appendleft(left)


def add_pieces(task: RowPass[S], add: AddPiece[S], pieces: range, sums: S, each: ForEach) -> Iterator[int]:
    """Read some consecutive pieces and add them to sums; yield the number of each when all of it has been added."""
    for number, piece in task.read(pieces):
        add(sums, piece, each)
        progress.advance(task.size(number))
        yield number
