"""What the steps of a fit tell: log.jsonl, metrics.jsonl, a line for each stage, and what each stage took.

STATE.json has the seconds, items and peak of memory of each stage, over all sessions of a run.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from features.words import printable
from pipeline.config.settings import FLAGS, worded
from pipeline.runtime import stopping
from pipeline.runtime.console import Console, StageLine
from pipeline.runtime.memory_limits import MemoryMeter
from pipeline.runtime.progress import Watch, repeating
from storage.errors import CannotWriteError, StorageError
from storage.files import LineFile, read_record, write_record
from storage.folder_layouts import RunLayout

Value = TypeVar("Value")
Callback = Callable[[dict[str, Any]], object]
STATE_SECONDS = 2.0  # The progress for `pipeline.status` is written at this interval.
READ = "read"  # A run begins with this stage on tables or images that were not read before.
COMPILE = "compile"  # This process compiles loops inside of the other stages.
STAGES = ("features", "candidates", "statistics", "solve", "evaluate")
FEATURES, CANDIDATES, STATISTICS, SOLVE, EVALUATE = STAGES


@dataclass
class StageCost:
    """What a stage took so far, over all sessions of the run."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    items: int = 0


class StepEvents:
    """What steps tell, and are asked of their stages. This base class is silent."""

    def log(self, message: str, **facts: Any) -> None:
        """Tell a message, with facts for programs."""

    def warn(self, message: str, **facts: Any) -> None:
        """Tell what makes a result doubtful, or was lost and made again."""

    def metric(self, **facts: Any) -> None:
        """Record an iteration or a round."""

    def record(self, event: str, **facts: Any) -> None:
        """Record what programs alone read."""

    def stage(self, name: str) -> AbstractContextManager[StageCost]:
        """Return a context whose time counts as that of a stage, with its cost."""
        return nullcontext(StageCost())

    def status(self, words: str) -> AbstractContextManager[None]:
        """Return a context that shows what is done inside, which takes long and cannot be counted."""
        return nullcontext()

    def timed_as(self, stage: str) -> AbstractContextManager[None]:
        """Return a context whose time counts as that of another stage than the one under way."""
        return nullcontext()


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


class Events(StepEvents):
    """Log, metrics, progress and costs of a run. Safe to use from several threads.

    costs : of each stage, over all sessions
    names : what messages call settings
    callback : gets every record of both files once it is written, one at a time; none after it has raised an error
    """

    def __init__(
        self,
        layout: RunLayout,
        costs: dict[str, StageCost],
        meter: MemoryMeter,
        *,
        quiet: bool,
        names: Mapping[str, str] = FLAGS,
        callback: Callback | None = None,
    ) -> None:
        self.costs, self.meter, self._layout = costs, meter, layout
        self._stream = Console(sys.stderr)
        self._quiet, self._names, self._callback, self._lock = quiet, names, callback, threading.Lock()
        self._line: StageLine | None = None  # line of the stage under way
        self._words: Callable[[], str] = meter.text  # what its line tells
        self._steps = Counter[str]()  # watched steps of each stage
        self._told = dict[str, dict[str, Any]]()  # how far each stage was told to be
        self.timed, self._timing = "", threading.Lock()  # the stage that seconds count as; none: empty
        self._counted = time.perf_counter(), time.process_time()  # until when they were counted
        self._log, self._metrics = LineFile(layout.log), LineFile(layout.metrics)

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._metrics.close()

    def log(self, message: str, **facts: Any) -> None:
        message = worded(message, self._names)
        self.record("message", message=message, **facts)
        if not self._quiet:
            self._print(message)

    def warn(self, message: str, **facts: Any) -> None:
        message = worded(message, self._names)
        self.record("warning", message=message, **facts)
        self._print(f"warning: {message}")

    def _print(self, message: str) -> None:
        line = self._line
        if line is None:
            print(printable(message), file=self._stream, flush=True)
        else:
            line.print_above(printable(message))

    def record(self, event: str, **facts: Any) -> None:
        self._append(self._log, {"event": event, **facts})

    def metric(self, **facts: Any) -> None:
        self._append(self._metrics, facts)

    def _append(self, file: LineFile, facts: dict[str, Any]) -> None:
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **facts}
        with self._lock:
            file.append(json.dumps(record))
            callback, self._callback = self._callback, None
            if callback is not None:
                callback(record)
                self._callback = callback

    @contextmanager
    def stage(self, name: str) -> Iterator[StageCost]:
        """Count the wall and CPU seconds of this process into a stage, show its line, and commit the state."""
        stopping.check()
        cost = self.costs.setdefault(name, StageCost())
        self.record("stage", stage=name, status="started")
        with self.timed_as(name), self._shown(name):
            self._save_state(name)
            try:
                yield cost
            except BaseException:
                with suppress(StorageError):  # what failed first is raised, not that a full disk fails this too
                    self._save_state(name, self._told.get(name))
                raise
            self._save_state(name)
        self.record("stage", stage=name, status="done", **asdict(cost))

    @contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        """Show a line for a stage while the block runs; it stays with the time that the stage took."""
        if self._quiet:
            yield
            return
        try:
            with StageLine(self._stream, name, lambda: self._words()) as self._line:
                yield
        finally:
            self._line = None

    @contextmanager
    def timed_as(self, stage: str) -> Iterator[None]:
        before = self._count(stage)
        try:
            yield
        finally:
            self._count(before)

    def _count(self, stage: str | None = None) -> str:
        """Count the seconds of this process until now; those that follow count as another stage. Return the one before.

        A kill loses no more than the seconds since the last call.
        """
        with self._timing:
            now, before = (time.perf_counter(), time.process_time()), self.timed
            if before:
                cost = self.costs.setdefault(before, StageCost())
                cost.wall_seconds += now[0] - self._counted[0]
                cost.cpu_seconds += now[1] - self._counted[1]
            self._counted, self.timed = now, before if stage is None else stage
            return before

    @contextmanager
    def status(self, words: str) -> Iterator[None]:
        with self.watching((), "", words):
            yield

    @property
    def cost(self) -> StageCost:
        """Of the stage that seconds count as."""
        return self.costs[self.timed]

    @contextmanager
    def watching(self, sizes: Sequence[float], unit: str, words: str) -> Iterator[Watch]:
        """Show how far the items of the stage are, and commit it with the state; see `runtime.progress.Watch`."""
        stage = self.timed
        self._steps[stage] += bool(sizes)
        with Watch(self._layout.progress, sizes, unit, words, self._steps[stage]) as watch:

            def save() -> None:
                self._told[stage] = asdict(watch.now())
                with suppress(CannotWriteError):  # a full disk is reported where it matters
                    self._save_state(stage, self._told[stage])

            if watch.now().total:
                save()
            before, self._words = self._words, lambda: ", ".join(filter(None, (watch.now().text(), self.meter.text())))
            try:
                with repeating(STATE_SECONDS, save):
                    yield watch
            finally:
                self._words = before

    def _save_state(self, stage: str, progress: dict[str, Any] | None = None) -> None:
        """Commit STATE.json: the current stage and its progress, what every stage took, and the peak of the memory."""
        self._count()
        costs = {name: asdict(cost) for name, cost in self.costs.items()}
        facts = {"stage": stage, "pid": os.getpid(), "stages": costs, "peak_rss_bytes": self.meter.peak_bytes}
        write_record(self._layout.state, facts | {"progress": progress})
