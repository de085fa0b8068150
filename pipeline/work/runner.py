"""Who computes the steps of a fit: this thread, or an executor, which goes on after a kill, to the same bits.

A run that is killed keeps all that was committed, the partial sums of a pass (passes/NAME, at most --checkpoint-every
old), and the last checkpoint of a solve (checkpoints/NAME.npz). One that is stopped, by a signal or --time-limit,
commits these before it ends; a greedy selection begins anew.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pipeline.config.train_config import is_address
from pipeline.kernels.exact_sums import serially
from pipeline.runtime import stopping
from pipeline.runtime.executors import Executor, Item, Value, this_process
from pipeline.runtime.row_pass import (
    Assignment,
    AssignmentResult,
    RowPass,
    S,
    add_pieces,
    assign_pieces,
    combine,
    compute_assignment,
    session_name,
    take_over,
)
from pipeline.work.events import Events
from pipeline.work.store import RUN, CheckpointsOnDisk, FolderStore, Store, TaskCheckpoints
from storage.arrays import Arrays, commit, from_json, load
from storage.files import make_folder, remove_file

Named = tuple[Path, Item, CheckpointsOnDisk]  # the file of its result
RECORDS = "records"  # The array with the records of the iterations of an item, as JSON; they are told as metrics.
WHICH = "which"  # Records name here which of several penalties they are of; it is empty where there is one.


def note_of(record: Mapping[str, Any]) -> str:
    """Return objective and known gap of a record in a few words, and which of several penalties it is for."""
    which = f"penalty {record[WHICH]} ({record['penalty']:.3g}), " if record[WHICH] else ""
    gap = "" if record["relative_gap"] is None else f" gap {record['relative_gap']:.1e}"
    return f"{which}output {record['output']}: objective {record['objective']:.6g}{gap}"


class Here:
    """Computes passes over the rows and items in this thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add_up(self, task: RowPass[S], name: str, words: str = "", unit: str = "rows") -> S:
        """Return the sums of a pass over the rows, which continues from partial sums below passes/`name`.

        words, unit : for the line of progress
        """
        sums, add = task.empty(), task.open()
        for first in range(0, task.n_pieces, task.run_length):
            pieces = range(first, min(first + task.run_length, task.n_pieces))
            for _ in add_pieces(task, add, pieces, sums, serially):
                pass
        return sums

    def compute(
        self,
        function: Callable[[Item, TaskCheckpoints], Mapping[str, NDArray[Any]]],
        items: Mapping[str, Item],
        *,
        unit: str = "items",
        size: Callable[[Item], float] = lambda item: 1,
        words: str = "",
    ) -> list[Arrays]:
        """Return what a function makes of each item and its `TaskCheckpoints`, committed by name unless it is there.

        unit, size : what progress counts, and how much of it an item has; an empty unit shows percentages
        words : what is done, for the line of progress
        """
        of_item = {name: partial(function, item, self._store.checkpoints(name)) for name, item in items.items()}
        return [self._store.once(name, make) for name, make in of_item.items()]


class OnExecutor:
    """Has an executor compute, and tells how far it is.

    every : seconds between two commits of partial sums
    together : threads that share one set of sums, at least; see `runtime.row_pass`
    """

    def __init__(self, executor: Executor, store: FolderStore, events: Events, every: float, together: int = 1) -> None:
        self.executor, self._store, self._events = executor, store, events
        self._every, self._together = every, together

    def run_items(
        self,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        *,
        unit: str = "items",
        size: Callable[[Item], float] = lambda item: 1,
        words: str = "",
        on_value: Callable[[Item, Value], object] = lambda item, value: None,
        executor: Executor | None = None,
    ) -> None:
        """Run a function over items in the stage under way, and show its progress.

        unit, size : what progress counts, and how much of it an item has; an empty unit shows percentages
        words : what is done, for the line of progress
        on_value : called with each item and its value as it completes
        executor : who computes; None: that of the run
        """
        cost = self._events.cost
        stopping.check()
        if not items:
            return
        with self._events.watching([size(item) for item in items], unit, words) as watch:
            lease = self._store.layout.lease
            run = (executor or self.executor).run(watch.reporting(function), enumerate(items), lease)
            with closing(run):  # ends the other items before an error of `on_value` goes on
                for result in run:
                    if result.process != this_process():
                        cost.cpu_seconds += result.cpu_seconds
                    cost.items += 1
                    index, item = result.item
                    on_value(item, result.value)
                    watch.finished(index)

    def compute(
        self,
        function: Callable[[Item, CheckpointsOnDisk], Mapping[str, NDArray[Any]]],
        items: Mapping[str, Item],
        *,
        unit: str = "items",
        size: Callable[[Item], float] = lambda item: 1,
        words: str = "",
    ) -> list[Arrays]:
        store, events, stage = self._store, self._events, self._events.timed
        left = [(name, item) for name, item in items.items() if store.whole(name) is None]
        waiting = [(store.path(name), item, store.checkpoints(name)) for name, item in left]
        events.cost.items += len(items) - len(waiting)
        for folder in {path.parent for path, _, _ in waiting}:
            make_folder(folder)

        def tell(named: Named[Item], _: None) -> None:
            arrays = load(named[0]).arrays
            for record in from_json(arrays[RECORDS]) if RECORDS in arrays else ():
                events.metric(stage=stage, **record)

        self.run_items(
            partial(_compute_item, function, store.run),
            waiting,
            unit=unit,
            size=lambda named: size(named[1]),
            words=words,
            on_value=tell,
        )
        return [load(store.path(name)).arrays for name in items]

    def add_up(self, task: RowPass[S], name: str, words: str = "", unit: str = "rows") -> S:
        task = replace(task, grid=(self._store.run, *task.grid))
        folder, results = self._store.layout.passes / name, list[AssignmentResult[S]]()
        make_folder(folder)
        earlier: dict[Path, set[int]] = {}
        if any(folder.iterdir()):
            with self._events.status("checking what an earlier session has committed"):
                earlier = take_over(folder, task.grid, session_name())
        processes = self.executor.processes()
        assignments = assign_pieces(task, earlier, folder, processes, self._every, self._together)
        cost = self._events.cost

        def take(assignment: Assignment, result: AssignmentResult[S]) -> None:
            results.append(result)
            cost.items += len(assignment.pieces) - 1  # `run_items` counts one
            if not assignment.returned:
                cost.cpu_seconds += result.cpu_seconds

        self.run_items(
            partial(compute_assignment, task),
            assignments,
            unit=unit,
            size=lambda assignment: sum(map(task.size, assignment.pieces.tolist())),
            words=words,
            on_value=take,
        )
        with self._events.status("combining the sums of all processes"):
            return combine(task, folder, results, sorted(earlier))


Runner = Here | OnExecutor


def _compute_item(
    function: Callable[[Item, CheckpointsOnDisk], Mapping[str, NDArray[Any]]], run: str, named: Named[Item]
) -> None:
    """Compute an item from its last checkpoint on, and commit the result."""
    path, item, checkpoints = named
    arrays = function(item, checkpoints)
    stopping.check()  # it may have taken long, and the folder be another run's
    commit(path, arrays, {RUN: run})
    remove_file(checkpoints.path)


@contextmanager
def open_executor(
    scheduler: str, workers: int, processes: int, memory_bytes: int, patience: float = 300.0
) -> Iterator[Executor]:
    """Open the executor that `--scheduler` names, and close it afterwards.

    scheduler : serial, threads, processes, or tls://host:port
    workers, processes : tasks at once on this machine, and the processes that share them
    memory_bytes : what each of these processes may take
    patience : seconds to wait for a worker, or for an answer of the scheduler
    """
    import scipy.linalg  # noqa: F401  (scipy carries a BLAS of its own, which must be loaded to be pinned)

    with threadpool_limits(1):  # also for a cluster: the bits of what this process computes itself depend on it
        if scheduler in ("serial", "threads"):
            yield Executor(1 if scheduler == "serial" else workers)
            return
        from pipeline.runtime.dask_executor import DaskExecutor, open_local_client, open_remote_client

        is_remote, local = is_address(scheduler), (processes, workers, memory_bytes)
        with open_remote_client(scheduler) if is_remote else open_local_client(*local) as client:
            executor = DaskExecutor(client, workers, patience)
            if is_remote:
                executor.workers = sum(process.threads for process in executor.processes())
            yield executor
