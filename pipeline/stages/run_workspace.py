"""The workspace of a run: a folder in which steps commit what they make, and an executor that computes it.

A run that is killed keeps all that was committed, the partial sums of a pass (passes/NAME, at most --checkpoint-every
old), and the last checkpoints of a solve (checkpoints/NAME). One that is stopped, by a signal or --time-limit, commits
these before it ends; a greedy selection keeps every 256 centers. STATE.json has the seconds, items and peak of memory
of each stage, over all sessions of the run.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureRequest, FeatureShape
from pipeline.datasets.feature_rows import FeatureAccess
from pipeline.kernels.jit import read_only
from pipeline.runtime import stopping
from pipeline.runtime.events import Events
from pipeline.runtime.executors import Executor, this_process
from pipeline.runtime.progress import Watch, repeating
from pipeline.runtime.row_pass import (
    Assignment,
    AssignmentResult,
    RowPass,
    S,
    assign_pieces,
    combine,
    compute_assignment,
    session_name,
    take_over,
)
from pipeline.runtime.stored_arrays import Arrays, Stored, StoredFile
from pipeline.stages.workspace import CANDIDATES, FINAL, STAGES, FinalWeights, TaskCheckpoints, Workspace, note_of
from storage import checkpoints as checkpoint_files
from storage.arrays import read_arrays, write_arrays
from storage.checkpoints import Checkpoint
from storage.errors import CannotWriteError, CorruptDataError, StorageError
from storage.files import LineFile, make_folder, remove_file
from storage.folder_layouts import MANIFEST_NAME, FeatureLayout, RunLayout
from storage.folders import check_folder, remove_folder
from storage.records import read_markers, read_record, write_record

Item = TypeVar("Item")
Value = TypeVar("Value")
STATE_SECONDS = 2.0  # between two writes of the progress for `pipeline.status`
READ = "read"  # the first stage of a run on a table that was not read before
COMPILE = "compile"  # the first stage of a run that lacks compiled loops


@dataclass
class StageCost:
    """What a stage took so far, over all sessions of the run."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    items: int = 0


class StageClock:
    """Counts the seconds of this process into the stage under way: at every switch, and whenever `count` is called."""

    def __init__(self, costs: dict[str, StageCost]) -> None:
        self._costs, self._lock = costs, threading.RLock()
        self._stage: str | None = None
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def switch(self, stage: str | None) -> str | None:
        """Begin to count into another stage (None: into none); return the one before."""
        with self._lock:
            self.count()
            before, self._stage = self._stage, stage
            return before

    def count(self) -> None:
        """Count the seconds until now, so that a kill loses no more than those that follow."""
        with self._lock:
            wall, cpu = time.perf_counter(), time.process_time()
            if self._stage is not None:
                self._costs[self._stage].wall_seconds += wall - self._wall
                self._costs[self._stage].cpu_seconds += cpu - self._cpu
            self._wall, self._cpu = wall, cpu


def saved_state(layout: RunLayout) -> tuple[dict[str, StageCost], int]:
    """Return what the stages of a run took in its earlier sessions, and its peak of memory; zeros for a new run."""
    if not layout.state.exists():
        return {name: StageCost() for name in STAGES}, 0
    saved = read_record(layout.state)
    found = {name: StageCost(**cost) for name, cost in in_order(saved["stages"]).items()}
    return {name: StageCost() for name in STAGES} | found, saved["peak_rss_bytes"]


def in_order(stages: Mapping[str, Value]) -> dict[str, Value]:
    """Return the mapping by the order of the stages: the keys of records are sorted."""
    return {name: stages[name] for name in (READ, COMPILE, *STAGES) if name in stages}


@dataclass
class CheckpointsOnDisk(TaskCheckpoints):
    """Checkpoints in a folder, and a file of records, which is written anew inside a `with` block."""

    folder: Path
    records: Path
    every: float  # seconds between checkpoints
    warnings: tuple[str, ...] = ()
    _saved: float = field(default_factory=time.monotonic, init=False)
    _file: LineFile | None = field(default=None, init=False)

    def __enter__(self) -> "CheckpointsOnDisk":
        self._saved, self._file = time.monotonic(), LineFile(self.records, fresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None

    def load(self) -> Checkpoint | None:
        """Return the last whole checkpoint; None where there is none. Raises CorruptDataError where none is whole."""
        checkpoint = checkpoint_files.load(self.folder)
        self.warnings = () if checkpoint is None else checkpoint.warnings
        return checkpoint

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        checkpoint_files.save(self.folder, step, arrays, facts)
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        return bool(stopping.current().requested()) or time.monotonic() - self._saved >= self.every

    def record(self, facts: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.append(json.dumps(facts))


def latest_note(paths: Sequence[Path]) -> str:
    """Return objective and gap of the solve whose records grew last, in a few words; empty where none has begun.

    The driver removes the records of a finished solve while another thread may ask: a file may be gone at any step.
    """
    written = []
    for path in paths:
        with suppress(OSError):
            written.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(written, reverse=True):
        with suppress(OSError, ValueError, IndexError):  # gone, half written, or empty
            record = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
            return note_of(record)
    return ""


@dataclass(frozen=True, eq=False)
class Run(Workspace):
    """One run: where it lives, what it computes, and who computes it. Never sent to a worker."""

    layout: RunLayout
    feature_layout: FeatureLayout
    features: FeatureAccess
    request: FeatureRequest
    shape: FeatureShape
    config: TrainConfig
    events: Events
    executor: Executor
    costs: dict[str, StageCost]
    together: int = 1  # threads that share one set of sums, at least; see `runtime.row_pass`
    _checked: set[str] = field(default_factory=set)  # folders written or checked since it was opened
    _kept: dict[str, Arrays] = field(default_factory=dict)  # the choices, once they were read: many steps ask for them
    _told: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each stage, how far it was when last committed

    def path(self, name: str) -> Path:
        """Return the file, or the folder to be mapped, that has what is committed under a name."""
        return self.layout.root / name

    def committed(self, name: str, *, mapped: bool = False) -> Arrays | None:
        """Return what is committed under a name; every byte is checked once a session."""
        path = self.path(name)
        if not (path if path.suffix == ".npz" else path / MANIFEST_NAME).exists():
            return None
        if path.suffix != ".npz" and name not in self._checked:
            check_folder(path)
            self._checked.add(name)
        return StoredFile(path).read(mapped=mapped)

    @property
    def choices(self) -> Arrays:
        """What is committed with the candidates, in memory: no file stays mapped."""
        if CANDIDATES not in self._kept:
            found = super().choices.items()
            self._kept[CANDIDATES] = {name: read_only(np.array(values)) for name, values in found}
        return self._kept[CANDIDATES]

    def commit(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> Stored:
        path = self.path(name)
        self._kept.pop(name, None)
        make_folder(path.parent)
        write_arrays(path, arrays)
        self._checked.add(name)
        return StoredFile(path)

    def stored(self, name: str) -> Stored:
        return StoredFile(self.path(name))

    def drop(self, name: str) -> None:
        path = self.path(name)
        self._checked.discard(name)
        self._kept.pop(name, None)
        if path.suffix == ".npz":
            remove_file(path)
        else:
            remove_folder(path, durable=False)

    def checkpoints(self, name: str) -> CheckpointsOnDisk:
        resources, stem = self.config.resources, "-".join(name.removesuffix(".npz").split("/")[1:]) or name
        folder, records = self.layout.checkpoints(stem), self.layout.solution_records(stem)
        return CheckpointsOnDisk(folder, records, resources.checkpoint_every)

    def compute(
        self,
        stage: str,
        function: Callable[[Item, CheckpointsOnDisk], Mapping[str, NDArray[Any]]],
        items: Mapping[str, Item],
        *,
        unit: str = "items",
        size: Callable[[Item], float] = lambda item: 1,
        words: str = "",
    ) -> list[Arrays]:
        waiting = dict(items)
        for name in items:
            try:
                if self.committed(name) is not None:
                    del waiting[name]
            except CorruptDataError:
                self.events.warn(f"{self.path(name)}: damaged; it is made again")
        self.costs[stage].items += len(items) - len(waiting)
        for folder in {self.layout.solutions, *(self.path(name).parent for name in waiting)}:
            make_folder(folder)
        checkpoints = {name: self.checkpoints(name) for name in waiting}

        def close(named: tuple[str, Item], warnings: tuple[str, ...]) -> None:
            for warning in warnings:
                self.events.warn(warning)
            records = checkpoints[named[0]].records
            for line in records.read_text(encoding="utf-8").splitlines() if records.exists() else ():
                self.events.metric(stage=stage, **json.loads(line))
            remove_file(records)

        self.run_items(
            stage,
            partial(_compute_item, function, self.layout.root, checkpoints),
            list(waiting.items()),
            unit=unit,
            size=lambda named: size(named[1]),
            words=words,
            note=partial(latest_note, [one.records for one in checkpoints.values()]),
            on_value=close,
        )
        return [StoredFile(self.path(name)).read() for name in items]

    def save_state(self, stage: str, progress: dict[str, Any] | None = None) -> None:
        """Commit STATE.json: the current stage and its progress, what every stage took, and the peak of the memory."""
        self._clock.count()
        costs = {name: asdict(cost) for name, cost in self.costs.items()}
        facts = {"stage": stage, "pid": os.getpid(), "stages": costs, "peak_rss_bytes": self.events.meter.peak_bytes}
        write_record(self.layout.state, facts | {"progress": progress})

    def read_done(self, markers: Path) -> dict[str, dict[str, Any]]:
        payloads = read_markers(markers)
        for warning in payloads.warnings:
            self.events.warn(warning)
        return payloads

    @contextmanager
    def stage(self, name: str) -> Iterator[StageCost]:
        """Count the wall and CPU seconds of this process into a stage, and commit the state at both ends."""
        stopping.check()
        cost = self.costs[name]
        self.events.record("stage", stage=name, status="started")
        with self.timed_as(name), self.events.stage(name):
            self.save_state(name)
            try:
                yield cost
            except BaseException:
                with suppress(StorageError):  # what failed first is raised, not that a full disk fails this too
                    self.save_state(name, self._told.get(name))
                raise
            self.save_state(name)
        self.events.record("stage", stage=name, status="done", **asdict(cost))

    @contextmanager
    def timed_as(self, stage: str) -> Iterator[None]:
        before = self._clock.switch(stage)
        try:
            yield
        finally:
            self._clock.switch(before)

    @cached_property
    def _clock(self) -> "StageClock":
        return StageClock(self.costs)

    def run_items(
        self,
        name: str,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        *,
        unit: str = "items",
        size: Callable[[Item], float] = lambda item: 1,
        words: str = "",
        note: Callable[[], str] = str,
        on_value: Callable[[Item, Value], object] = lambda item, value: None,
        executor: Executor | None = None,
    ) -> None:
        """Run a function over items in stage `name`, and show its progress.

        unit, size : what progress counts, and how much of it an item has; an empty unit shows percentages
        words, note : what is done, and a function that returns a few words on its state, for the line of progress
        on_value : called with each item and its value as it completes
        executor : who computes; None: that of the run
        """
        cost = self.costs[name]
        stopping.check()
        if not items:
            return
        sizes = [size(item) for item in items]
        with Watch(self.layout.progress, sizes, unit, words, note) as watch, self._shown(name, watch):
            run = (executor or self.executor).run(watch.reporting(function), enumerate(items), self.layout.lease)
            with closing(run):  # ends the other items before an error of `on_value` goes on
                for result in run:
                    if result.process != this_process():
                        cost.cpu_seconds += result.cpu_seconds
                    cost.items += 1
                    index, item = result.item
                    on_value(item, result.value)
                    watch.finished(index)

    def add_up(self, stage: str, task: RowPass[S], name: str, words: str = "", unit: str = "rows") -> S:
        folder, results = self.layout.row_pass(name), list[AssignmentResult[S]]()
        make_folder(folder)
        earlier: dict[Path, set[int]] = {}
        if any(folder.iterdir()):
            with self.status(stage, "checking what an earlier session has committed"):
                earlier = take_over(folder, task.grid, session_name())
        every = self.config.resources.checkpoint_every
        assignments = assign_pieces(task, earlier, folder, self.executor.processes(), every, self.together)

        def take(assignment: Assignment, result: AssignmentResult[S]) -> None:
            results.append(result)
            self.costs[stage].items += len(assignment.pieces) - 1  # `run_items` counts one
            if not assignment.returned:
                self.costs[stage].cpu_seconds += result.cpu_seconds

        self.run_items(
            stage,
            partial(compute_assignment, task),
            assignments,
            unit=unit,
            size=lambda assignment: sum(map(task.size, assignment.pieces.tolist())),
            words=words,
            on_value=take,
        )
        with self.status(stage, "combining the sums of all processes"):
            return combine(task, folder, results, sorted(earlier))

    @contextmanager
    def status(self, stage: str, words: str) -> Iterator[None]:
        with Watch(self.layout.progress, unit="", words=words) as watch, self._shown(stage, watch):
            yield

    @contextmanager
    def _shown(self, name: str, watch: Watch) -> Iterator[None]:

        def save() -> None:
            self._told[name] = asdict(watch.now())
            with suppress(CannotWriteError):  # a full disk is reported where it matters
                self.save_state(name, self._told[name])

        if watch.now().total:
            save()
        with repeating(STATE_SECONDS, save), self.events.progress(name, lambda: watch.now().text()):
            yield


def _compute_item(
    function: Callable[[Item, CheckpointsOnDisk], Mapping[str, NDArray[Any]]],
    root: Path,
    checkpoints: Mapping[str, CheckpointsOnDisk],
    named: tuple[str, Item],
) -> tuple[str, ...]:
    """Compute an item from its last checkpoint on and commit the result; return warnings of damaged checkpoints."""
    name, item = named
    with checkpoints[name] as kept:
        write_arrays(root / name, function(item, kept))
    remove_folder(kept.folder)
    return kept.warnings


def load_final(layout: RunLayout) -> FinalWeights:
    """Return the committed weights of a run. Raises CorruptDataError where they are missing or damaged."""
    return FinalWeights.of_arrays(read_arrays(layout.root / FINAL, required=True))
