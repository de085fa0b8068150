"""One pass over the rows: sums over pieces, added up by any number of workers, and resumed after a kill.

The pieces (row blocks, or tiles) are fixed by the data alone, and sums are exact: who adds which, in what order,
changes no bit. Each process has an assignment of pieces; its threads add them, each into sums of its own, or together
into shared ones where sums are large. Every `every` seconds, and when asked to stop, it commits its sums with the
numbers of their pieces: one file a process. A resumed pass takes these files up and assigns the other pieces.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StoppedError
from pipeline.runtime import progress, stopping
from pipeline.runtime.committed_sums import REMEDY, Committed, S, pieces_in
from pipeline.runtime.executors import WorkerProcess
from storage.errors import CorruptDataError

Item = TypeVar("Item")
Value = TypeVar("Value")


class ThreadTeam:
    """Some threads beside the one that asks, which waits for them; of one thread, it is that one itself."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool
        self._lease, self._task = stopping.current_lease(), progress.current_task()
        self.cpu_seconds = 0.0  # of the threads beside the one that asks

    def map(self, function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
        """Return what a function gives for each item; when all have ended, the first error is raised."""
        if self._pool is None:
            return [function(item) for item in items]
        futures = [self._pool.submit(self._run, function, item) for item in items]
        outcomes = [(future.exception(), future) for future in futures]
        error = next((error for error, _ in outcomes if error is not None), None)
        if error is not None:
            raise error
        results = [future.result() for _, future in outcomes]
        self.cpu_seconds += sum(seconds for _, seconds in results)
        return [value for value, _ in results]

    def each(self, function: Callable[[Item], None], items: Iterable[Item], /) -> None:
        """Call a function on every item; as `pipeline.kernels.exact_sums.Each`."""
        self.map(function, items)

    def _run(self, function: Callable[[Item], Value], item: Item) -> tuple[Value, float]:
        started = time.thread_time()
        with stopping.obeying(self._lease), progress.helping(self._task):
            value = function(item)
        return value, time.thread_time() - started


@contextmanager
def open_team(n_threads: int) -> Iterator[ThreadTeam]:
    """Open a team of so many threads, and end them afterwards. They serve the task that this thread runs."""
    if n_threads == 1:
        yield ThreadTeam(None)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        yield ThreadTeam(pool)


OWN_SUMS_BYTES = 2**28  # of sums that a thread has to itself; larger ones are shared by all threads of a process
_ALL_THREADS = 2**16
FEW_PIECES = 4  # for a group of threads; where there would be fewer, more threads work on each
_WAIT_SECONDS = 0.1  # between two looks of an assignment that waits for another in a process
# Adds some consecutive pieces to sums, and yields the number of each when all of it has been added.
AddPieces = Callable[[range, S, ThreadTeam], Iterator[int]]


@dataclass(frozen=True)
class RowPass(Generic[S]):
    """What is added up, and over what: pieces, which are numbered from 0. Small and picklable.

    opened : called in each process, reads what all pieces need and returns what adds some of them
    empty : returns sums of nothing
    size : returns how much of what is counted a piece has: rows, or kernel entries
    run_length : how many consecutive pieces are best read together
    grid : what determines the pieces and the bounds of their sums; committed sums of another grid are made anew
    sums_bytes, threads_a_piece : of the sums, which threads share if they are large; that find work in one piece
    """

    opened: Callable[[], AddPieces[S]]
    empty: Callable[[], S]
    size: Callable[[int], float]
    n_pieces: int
    run_length: int
    grid: tuple[object, ...]
    sums_bytes: int = 0
    threads_a_piece: int = 1

    def open(self) -> AddPieces[S]:
        """Open the pass in this process; all its threads use it."""
        return self.opened()


@dataclass(frozen=True)
class Assignment:
    """What one process does of a pass.

    name : of the files that it commits, each attempt its own: a task whose process was taken for lost may run twice
    pieces, earlier : what it adds, and the files of sums that it continues from
    every : most seconds between two commits
    together, threads_a_piece : least threads that share one set of sums, and most that find work in one piece
    returned : the sums are given back in memory, since they are made in the driver's own process
    """

    folder: Path
    name: str
    process: WorkerProcess
    pieces: NDArray[np.int64]
    earlier: tuple[Path, ...]
    every: float
    together: int
    threads_a_piece: int
    returned: bool

    @property
    def groups(self) -> list[int]:
        """The threads of each group that has sums of its own."""
        threads = self.process.threads
        n_groups = n_groups_of(threads, self.together, len(self.pieces), self.threads_a_piece)
        return [len(part) for part in np.array_split(np.arange(threads), n_groups)]

    def files(self) -> list[Path]:
        """Return the files that earlier attempts have committed."""
        return sorted(self.folder.glob(f"{self.name}-*.npz"))


@dataclass(frozen=True)
class AssignmentResult(Generic[S]):
    """The sums of an assignment, or the file that has them, and the CPU seconds of its threads beside the task's."""

    sums: S | None
    file: Path
    cpu_seconds: float


def threads_together(sums_bytes: int) -> int:
    """Return how many threads share sums of so many bytes: all, if they are large, lest memory grows with threads."""
    return 1 if sums_bytes <= OWN_SUMS_BYTES else _ALL_THREADS


def n_groups_of(threads: int, together: int, n_pieces: int, threads_a_piece: int) -> int:
    """Return how many groups the threads of a process form, each with sums of its own.

    At least `together` threads each, and few groups where pieces are few and several threads can work on one.
    """
    for_memory, for_balance = -(-threads // together), max(n_pieces // FEW_PIECES, -(-threads // threads_a_piece))
    return max(min(for_memory, for_balance, n_pieces), 1)


def assign_pieces(
    task: RowPass[S],
    earlier: dict[Path, set[int]],
    folder: Path,
    processes: Sequence[WorkerProcess],
    every: float,
    together: int,
) -> list[Assignment]:
    """Return the assignments of the processes: consecutive pieces that no `earlier` file has, as many as threads.

    together : least threads that share one set of sums
    """
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
            threads_a_piece=task.threads_a_piece,
            returned=len(some) == 1 and processes[i].address is None,
        )
        for number, i in enumerate(some)
    ]


def session_name() -> str:
    """Return a name for the files of a session, which sorts after those of earlier ones."""
    return f"{time.time_ns():016x}"


def compute_assignment(task: RowPass[S], assignment: Assignment) -> AssignmentResult[S]:
    """Add all pieces of an assignment, and commit the sums as it goes; one at a time in a process.

    Raises StoppedError on request, when the sums are committed; what the pieces raise.
    """
    while not _one_at_a_time.acquire(timeout=_WAIT_SECONDS):
        stopping.check()
    try:
        return _compute(task, assignment)
    finally:
        _one_at_a_time.release()


_one_at_a_time = threading.Lock()


def _compute(task: RowPass[S], assignment: Assignment) -> AssignmentResult[S]:
    add = task.open()
    file = assignment.folder / f"{assignment.name}-{os.urandom(4).hex()}.npz"
    total, earlier = _taken_up(task, assignment)
    left = [piece for piece in assignment.pieces.tolist() if piece not in total.pieces]
    waiting = _Waiting(left, task.run_length, len(assignment.groups))
    with ExitStack() as stack:
        teams = [stack.enter_context(open_team(threads)) for threads in assignment.groups]
        leaders = stack.enter_context(open_team(len(teams)))
        while waiting:
            stopped = _add_for_a_while(task, add, waiting, total, (leaders, teams), assignment.every)
            if waiting or stopped or not assignment.returned:
                progress.status("storing the sums so far")
                total.commit(file, task.grid, earlier)
                earlier = ()
                progress.status("")
            if stopped:
                stopping.check()
                raise StoppedError("stopped by its driver")
        if not file.exists() and not assignment.returned:  # all was there already
            total.commit(file, task.grid, earlier)
        cpu_seconds = sum(team.cpu_seconds for team in (*teams, leaders))
    return AssignmentResult(total.sums if assignment.returned else None, file, cpu_seconds)


def _taken_up(task: RowPass[S], assignment: Assignment) -> tuple[Committed[S], tuple[Path, ...]]:
    """Return committed sums, and their files: of a lost attempt, or else of the earlier files."""
    total = Committed(task.empty())
    attempts = {path: pieces_in(path, task.grid) for path in assignment.files()}
    if any(attempts.values()):
        total.absorb(max(attempts, key=lambda path: len(attempts[path])))
        progress.advance(sum(task.size(piece) for piece in assignment.pieces.tolist() if piece in total.pieces))
        return total, (*attempts, *assignment.earlier)
    for path in assignment.earlier:
        total.absorb(path)
    return total, assignment.earlier


def _add_for_a_while(
    task: RowPass[S],
    add: AddPieces[S],
    waiting: _Waiting,
    total: Committed[S],
    threads: tuple[ThreadTeam, Sequence[ThreadTeam]],
    seconds: float,
) -> bool:
    """Add waiting pieces to `total` for so many seconds; return whether the run was asked to stop.

    threads : a team of leaders, and for each of them the team of its group; all but the first have sums of their own.
    """
    leaders, teams = threads
    parts = [Committed(sums) for sums in (total.sums, *(task.empty() for _ in teams[1:]))]
    until = partial(_add_until, add, waiting, time.monotonic() + seconds)
    stopped = leaders.map(until, zip(parts, teams, strict=True))
    total.pieces.update(*(part.pieces for part in parts))
    for part in parts[1:]:
        total.sums.absorb(part.sums.arrays().items())
    return any(stopped)


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


class _Waiting:
    """The pieces of an assignment that no thread has taken yet."""

    def __init__(self, pieces: list[int], run_length: int, n_groups: int) -> None:
        self._pieces, self._lock = pieces, threading.Lock()
        self._run_length, self._n_groups = run_length, n_groups
        self._closed = False

    def __len__(self) -> int:
        return len(self._pieces)

    def take(self) -> range:
        """Return some pieces in a row: fewer at the end, so that the groups end together."""
        with self._lock:
            if self._closed:
                return range(0)
            most = min(self._run_length, max(len(self._pieces) // (4 * self._n_groups), 1), len(self._pieces))
            first = self._pieces[0] if most else 0
            count = next((i for i in range(1, most) if self._pieces[i] != first + i), most)
            del self._pieces[:count]
            return range(first, first + count)

    def close(self) -> None:
        """Give nothing out any more: one of the threads has failed."""
        self._closed = True

    def give_back(self, pieces: Sequence[int]) -> None:
        """Take pieces back that were not added."""
        with self._lock:
            self._pieces = sorted([*self._pieces, *pieces])


def _add_until(
    add: AddPieces[S], waiting: _Waiting, deadline: float, part_and_team: tuple[Committed[S], ThreadTeam]
) -> bool:
    """Add pieces, one at least, until there are no more or the deadline; return whether the run was asked to stop."""
    part, team = part_and_team
    while pieces := waiting.take():
        left = list(pieces)
        try:
            for piece in add(pieces, part.sums, team):
                part.pieces.add(piece)
                left.remove(piece)
                if time.monotonic() >= deadline:
                    break
        except StoppedError:
            return True
        except BaseException:
            waiting.close()
            raise
        finally:
            waiting.give_back(left)
        if time.monotonic() >= deadline:
            break
    return False
