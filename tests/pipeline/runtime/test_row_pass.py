"""One pass over the rows: whoever adds the pieces, however often it is stopped, each piece is in the sums once."""

import itertools
import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import flip
from pipeline.errors import InvalidDataError, StoppedError
from pipeline.fit import row_blocks as rows
from pipeline.kernels.exact_sums import ForEach
from pipeline.runtime import row_pass, stopping
from pipeline.runtime.executors import WorkerProcess
from pipeline.runtime.row_pass import assign_pieces, combine, compute_assignment
from storage.arrays import commit, load
from storage.errors import CannotWriteError, CorruptDataError

WIDTH = 8


class Counts:
    """How often each piece was added."""

    def __init__(self, n_pieces: int) -> None:
        self.counts = np.zeros(n_pieces, np.int64)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"counts": self.counts}

    def absorb(self, arrays: row_pass.NamedArrays) -> None:
        for _, values in arrays:
            self.counts += values


@dataclass(frozen=True)
class Counting:
    """A pass whose sums count its pieces; after so many of a process, the run is asked to stop, or something breaks."""

    n_pieces: int = 20
    run_length: int = 3
    grid: tuple[int, ...] = (20, 3)
    sums_bytes: int = 0
    threads_a_piece: int = 1
    stop_after: float = math.inf
    break_after: float = math.inf
    seconds: float = 0.0
    runs: list[range] = field(default_factory=list)

    def size(self, piece: int) -> float:
        return 1.0

    def empty(self) -> Counts:
        return Counts(self.n_pieces)

    def read(self, pieces: range) -> Iterator[tuple[int, int]]:
        self.runs.append(pieces)
        for piece in pieces:
            stopping.check()
            yield piece, piece

    def open(self) -> row_pass.AddPiece[Counts]:
        """Tiles of a piece are shared out by the team, each its part of eight."""
        numbers = itertools.count(1)

        def add(sums: Counts, piece: int, each: ForEach) -> None:
            added = next(numbers)
            if added > self.stop_after:
                stopping.current().reason = "a test"
            if added > self.break_after:
                raise InvalidDataError("broken")
            time.sleep(self.seconds)
            parts = np.zeros(WIDTH, np.int64)

            def fill(tile: int) -> None:
                parts[tile] += 1

            each(fill, range(WIDTH))
            assert parts.tolist() == [1] * WIDTH
            sums.counts[piece] += 1

        return add


def places(*threads: int) -> list[WorkerProcess]:
    """Processes of a cluster: here each of them is this one, which keeps no sums."""
    return [WorkerProcess(f"tcp://{i}", n) for i, n in enumerate(threads)]


def committed(task: Counting, folder: Path) -> dict[Path, set[int]]:
    """Take over what a folder has, as a new session does."""
    return row_pass.take_over(folder, task.grid, row_pass.session_name())


def passed(
    task: Counting, folder: Path, where: Sequence[WorkerProcess], every: float = 60.0, together: int = 1
) -> tuple[Counts, list[row_pass.Assignment]]:
    """Do what is left of a pass as a run does it."""
    folder.mkdir(exist_ok=True)
    earlier = committed(task, folder)
    assignments = assign_pieces(task, earlier, folder, where, every, together)
    results = [compute_assignment(task, assignment) for assignment in assignments]
    return combine(task, folder, results, sorted(earlier)), assignments


def stopped(task: Counting, folder: Path, where: Sequence[WorkerProcess], every: float = 60.0) -> None:
    """Do a part of a pass: every process is asked to stop after a few pieces, if it has so many."""
    folder.mkdir(exist_ok=True)
    for assignment in assign_pieces(task, committed(task, folder), folder, where, every, 1):
        with stopping.listening() as stop, stop.working(), suppress(StoppedError):
            compute_assignment(replace(task, stop_after=2), assignment)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def pieces_in(folder: Path) -> list[int]:
    """All pieces that are in some file, those of two files twice."""
    return sorted(itertools.chain.from_iterable(load(path).arrays["pieces"].tolist() for path in files(folder)))


def whole(counts: Counts) -> bool:
    return counts.counts.tolist() == [1] * len(counts.counts)


@given(
    threads=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    n_pieces=st.integers(1, 40),
    run_length=st.integers(1, 12),
    together=st.integers(1, 4),
    large=st.booleans(),
)
def test_however_the_pieces_are_shared_out_each_is_added_once(
    tmp_path_factory, threads, n_pieces, run_length, together, large
):
    folder = tmp_path_factory.mktemp("pass")
    task = Counting(n_pieces, run_length, (n_pieces,), sums_bytes=2 * row_pass.OWN_SUMS_BYTES if large else 0)
    counts, assignments = passed(task, folder, places(*threads), together=together)
    assert whole(counts)
    assert sorted(piece for assignment in assignments for piece in assignment.pieces.tolist()) == list(range(n_pieces))
    assert len(files(folder)) == len(assignments) <= len(threads)
    assert all(len(assignment.pieces) for assignment in assignments)
    assert pieces_in(folder) == list(range(n_pieces))
    by_thread = [len(assignment.pieces) / assignment.process.threads for assignment in assignments]
    assert max(by_thread) - min(by_thread) <= 1 + 1e-9 or n_pieces < sum(threads)


def damage(first: Path, others: list[Path], how: str) -> None:
    """Damage the first of the files of a pass."""
    if how == "gone":
        first.unlink()
    elif how == "of another grid":
        commit(first, load(first).arrays | {"grid": np.array([99])})
    elif how == "flipped":
        flip(first)
    elif how == "cut":
        os.truncate(first, first.stat().st_size // 2)
    elif others:
        first.write_bytes(others[0].read_bytes())  # the same pieces twice


FULL = Mock(side_effect=CannotWriteError("the disk is full"))
ENDS = {"stopped": (), "killed before the removal": ("remove_file", lambda path: None), "full": ("commit", FULL)}
DAMAGED = ("cut", "flipped", "gone", "of another grid", "twice")
PROCESSES = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(sessions=st.lists(st.tuples(PROCESSES, st.sampled_from([*ENDS, *DAMAGED])), max_size=5), last=PROCESSES)
def test_however_a_pass_ends_and_whoever_takes_it_up_each_piece_is_added_once(tmp_path_factory, sessions, last):
    """By more or fewer processes; what is damaged or of another grid is removed, and made again."""
    task, folder, kept = Counting(60, grid=(60,)), tmp_path_factory.mktemp("pass"), set[int]()
    for threads, how in sessions:
        with pytest.MonkeyPatch.context() as patch, suppress(CannotWriteError):
            if ENDS.get(how):
                patch.setattr(row_pass, *ENDS[how])
            stopped(task, folder, places(*threads), every=0.0)
        found = pieces_in(folder)
        assert kept < set(found) or (how == "full" and kept == set(found)) or len(kept) == 60
        assert len(found) == len(set(found)) or how == "killed before the removal"
        assert len(files(folder)) <= len(threads) or how in ("killed before the removal", "full")
        if how in DAMAGED and files(folder):
            damage(files(folder)[0], files(folder)[1:], how)
        names, taken_over = set(files(folder)), committed(task, folder)
        assert names.isdisjoint(taken_over), "a late worker of a killed session writes beside them"
        assert sorted(taken_over) == files(folder)
        kept = set[int]().union(*taken_over.values())
        assert kept == set(found) or how in DAMAGED
    counts, assignments = passed(task, folder, places(*last))
    assert whole(counts)
    assert assignments == [] or [[path] for path in files(folder)] == [each.files() for each in assignments]


def test_a_lost_task_goes_on_from_its_own_file(tmp_path):
    """The same assignment runs again, in another process: the files it went on from are gone by then."""
    stopped(Counting(), tmp_path, places(1, 1))
    task = Counting()
    (assignment,) = assign_pieces(task, committed(task, tmp_path), tmp_path, places(1), 0.0, 1)
    assert len(assignment.earlier) == 2
    with pytest.raises(InvalidDataError):
        compute_assignment(replace(task, break_after=3), assignment)
    assert not any(path.exists() for path in assignment.earlier)
    (attempt,) = assignment.files()
    assert whole(combine(task, tmp_path, [compute_assignment(task, assignment)], ()))
    assert assignment.files() != [attempt], "the lost one may live and write once more"
    assert len(files(tmp_path)) == 1
    assert whole(combine(task, tmp_path, [compute_assignment(replace(task, break_after=0), assignment)], ()))


def test_a_lost_task_that_lives_on_changes_nothing(tmp_path):
    """Its process was slow, not dead: it commits after its successor has ended."""
    task = Counting()
    (assignment,) = assign_pieces(task, {}, tmp_path, places(1), 0.0, 1)
    with pytest.raises(InvalidDataError):
        compute_assignment(replace(task, break_after=3), assignment)
    (attempt,) = assignment.files()
    late = attempt.read_bytes()
    result = compute_assignment(task, assignment)
    attempt.write_bytes(late)
    assert whole(combine(task, tmp_path, [result], ()))
    # A third one goes on from that of the two which has most, so that nothing is added again.
    again = replace(task, runs=[])
    assert whole(combine(task, tmp_path, [compute_assignment(again, assignment)], ()))
    assert again.runs == []
    assert whole(passed(task, tmp_path, places(1, 1))[0])


def test_shares_of_one_process_take_turns(tmp_path):
    """A assignment whose process was lost waits for that of the process where it runs again: each takes its memory."""
    task = Counting(seconds=0.01)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(partial(compute_assignment, task), assign_pieces(task, {}, tmp_path, places(1, 1), 60.0, 1)))
    of_second = [run[0] >= 10 for run in task.runs]
    assert of_second in (sorted(of_second), sorted(of_second, reverse=True))
    assert pieces_in(tmp_path) == list(range(20))


def test_files_that_other_processes_write_alone_make_no_whole(tmp_path):
    task = Counting()
    assignments = assign_pieces(task, {}, tmp_path, places(1, 1), 60.0, 1)
    results = [compute_assignment(task, assignment) for assignment in assignments]
    with pytest.raises(CorruptDataError, match=r"sums are missing.*`resume=auto`"):
        combine(task, tmp_path, results[:1], ())
    with pytest.raises(CorruptDataError, match="same rows"):
        combine(task, tmp_path, [results[0], results[0]], ())
    results[1].file.unlink()
    with pytest.raises(CorruptDataError, match=r"sums are missing.*`resume=auto`"):
        combine(task, tmp_path, results, ())
    counts, _ = passed(task, tmp_path, places(1))
    assert whole(counts)


@given(n_rows=st.integers(0, 10**7), n_columns=st.integers(1, 10**6), sums_bytes=st.integers(0, 2**36))
def test_blocks_cover_each_row_once_and_are_bounded(n_rows, n_columns, sums_bytes):
    grid = rows.row_grid("train", n_rows, n_columns, sums_bytes)
    assert grid.block_rows % 32 == 0
    assert 32 <= grid.block_rows <= rows.MOST_ROWS
    assert grid.block_rows == 32 or grid.block_rows * n_columns <= rows.MOST_VALUES
    assert (grid.n_blocks - 1) * grid.block_rows < max(n_rows, 1) <= max(grid.n_blocks * grid.block_rows, 1)
    if grid.n_blocks:
        assert sum(grid.size(block) for block in (0, grid.n_blocks - 1)) <= 2 * grid.block_rows
        assert grid.rows(range(grid.n_blocks)) == slice(0, n_rows)
        last = grid.n_blocks - 1
        assert grid.rows(range(last, grid.n_blocks)).stop - last * grid.block_rows == grid.size(last)


@pytest.mark.parametrize(("n_rows", "n_columns"), [(10_000, 1000), (10_000, 4000), (60_000, 2000), (60_000, 4000)])
def test_blocks_are_enough_for_many_workers(n_rows, n_columns):
    assert rows.row_grid("train", n_rows, n_columns, 16 * n_columns**2).n_blocks >= 16
