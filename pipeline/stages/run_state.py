"""What the stages of one run share, and how a stage runs its items and counts what they cost."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureRequest, FeatureShape
from pipeline.datasets.features_on_the_fly import FeatureAccess
from pipeline.runtime import stopping
from pipeline.runtime.committed_sums import S, take_over
from pipeline.runtime.events import Events, repeating
from pipeline.runtime.executors import Executor, this_process
from pipeline.runtime.progress import Progress, Watch
from pipeline.runtime.row_pass import RowPass, Share, ShareResult, combine, compute_share, session_name, share_out
from pipeline.solvers.preselection import Preselection
from pipeline.stages.candidate_names import count_candidates, is_in_rounds, preselection_of
from storage.arrays import read_arrays
from storage.errors import CannotWriteError, CorruptDataError, MissingDataError, StorageError
from storage.files import make_folder
from storage.folder_layouts import FeatureLayout, RunLayout
from storage.records import read_markers, read_record, write_record

Item = TypeVar("Item")
Value = TypeVar("Value")
STATE_SECONDS = 2.0  # between two writes of the progress for whoever asks
STATE_REMEDY = "delete it: only the times that the stages took are lost"
FEATURES, CENTERS, STATISTICS, SOLVE, EVALUATE = STAGES = ("features", "centers", "statistics", "solve", "evaluate")
COMPILE = "compile"  # the first stage of a run that lacks compiled loops


@dataclass
class StageCost:
    """What a stage took so far, over all sessions of the run."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    items: int = 0


class _StageClock:
    """Counts the seconds of this process into the stage under way: at every switch, and whenever they are asked for."""

    def __init__(self, costs: dict[str, StageCost]) -> None:
        self._costs, self._lock = costs, threading.Lock()
        self._stage: str | None = None
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def switch(self, stage: str | None) -> str | None:
        """Begin to count into another stage (None: into none); return the one before."""
        with self._lock:
            self._count()
            before, self._stage = self._stage, stage
            return before

    def count(self) -> None:
        """Count the seconds until now, so that a kill loses no more than those that follow."""
        with self._lock:
            self._count()

    def _count(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        if self._stage is not None:
            self._costs[self._stage].wall_seconds += wall - self._wall
            self._costs[self._stage].cpu_seconds += cpu - self._cpu
        self._wall, self._cpu = wall, cpu


class RunData(Protocol):
    """What tells of the rows of a run, one under way or one that is done, and of its columns."""

    @property
    def layout(self) -> RunLayout:
        """Where it lives."""

    @property
    def features(self) -> FeatureAccess:
        """Where its features are."""

    @property
    def shape(self) -> FeatureShape:
        """What its data hold."""

    @property
    def config(self) -> TrainConfig:
        """Its settings."""


@dataclass(frozen=True)
class Run:
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

    @property
    def n_candidates(self) -> int:
        """Number of candidates: training rows, times kernel widths."""
        return count_candidates(self.config, self.shape.n_train)

    @property
    def in_rounds(self) -> bool:
        """Whether a working set grows, instead of a Gram of all candidates."""
        return is_in_rounds(self.config, self.shape.n_train)

    @cached_property
    def preselection(self) -> Preselection | None:
        """How the finalists of a selection are chosen; None where it has none, or is none."""
        return preselection_of(self.config, self.shape.n_train)

    def save_state(self, stage: str, progress: dict[str, Any] | None = None) -> None:
        """Commit STATE.json: the current stage and its progress, what every stage took, and the peak of the memory."""
        self._clock.count()
        costs = {name: asdict(cost) for name, cost in self.costs.items()}
        facts = {"stage": stage, "pid": os.getpid(), "stages": costs, "peak_rss_bytes": self.events.meter.peak_bytes}
        write_record(self.layout.state, facts | {"progress": progress})

    def done(self, markers: Path) -> dict[str, dict[str, Any]]:
        """Return the payloads of the items done, and warn of markers that are damaged."""
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
        before = self._clock.switch(name)
        self.save_state(name)
        try:
            yield cost
        except BaseException:
            self._clock.switch(before)
            with suppress(StorageError):  # what failed first is told, not that a full disk fails this too
                self.save_state(name)
            raise
        self._clock.switch(before)
        self.save_state(name)
        self.events.record("stage", stage=name, status="done", **asdict(cost))

    @contextmanager
    def charged(self, name: str) -> Iterator[None]:
        """Count what happens inside into another stage than the one that is under way."""
        before = self._clock.switch(name)
        try:
            yield
        finally:
            self._clock.switch(before)

    @cached_property
    def _clock(self) -> "_StageClock":
        return _StageClock(self.costs)

    def run_items(
        self,
        name: str,
        function: Callable[[Item], Value],
        items: Sequence[Item],
        *,
        part: Callable[[Item], Path] | None = None,
        unit: str = "items",
        size: Callable[[Item], float] = lambda item: 1,
        words: str = "",
        note: Callable[[], str] = str,
        address_of: Callable[[Item], str | None] = lambda item: None,
        on_value: Callable[[Item, Value], object] = lambda item, value: None,
    ) -> None:
        """Run a function over items in stage `name`, and show its progress.

        part : the file that the function commits for an item; items whose file is whole are not done again
        unit, size : the word for what is counted, and how many of it an item has; the function reports them as it goes
            (`pipeline.runtime.progress.advance`). An empty unit shows a share
        words, note : what is done, and a function that returns a few words on its state
        address_of : the process in which an item had best run; None where it does not matter
        on_value : called with each item and its value as it completes
        """
        cost = self.costs[name]
        stopping.check()
        if part is not None:
            items = [item for item in items if not is_whole(part(item))]
        if not items:
            return
        with Watch(self.layout.progress, items, unit, size, words) as watch, self._shown(name, watch.now, note):
            run = self.executor.run(
                watch.told(function), watch.numbered(), self.layout.turn, lambda numbered: address_of(numbered.item)
            )
            with closing(run):  # ends the other items before an error of `on_value` goes on
                for result in run:
                    if result.process != this_process():
                        cost.cpu_seconds += result.cpu_seconds
                    cost.items += 1
                    on_value(result.item.item, result.value)
                    watch.finished(result.item.index)

    def row_pass(self, name: str, task: RowPass[S], folder: Path, unit: str = "rows", words: str = "") -> S:
        """Return the sums of a pass over the rows, in stage `name`, and show its progress; see `runtime.row_pass`.

        folder : where it commits sums as it goes, and finds those of an earlier session; to be removed when what is
            made of the sums is committed
        unit, words : what is counted, and what is done
        """
        cost, results = self.costs[name], []
        make_folder(folder)
        earlier: dict[Path, set[int]] = {}
        if any(folder.iterdir()):
            with self.doing(name, "checking what an earlier session has committed"):
                earlier = take_over(folder, task.grid, session_name())
        every = self.config.resources.checkpoint_every
        shares = share_out(task, earlier, folder, self.executor.places(), every, self.together)

        def take(share: Share, result: ShareResult[S]) -> None:
            results.append(result)
            cost.items += len(share.pieces) - 1
            if not share.returned:
                cost.cpu_seconds += result.cpu_seconds

        self.run_items(
            name,
            partial(compute_share, task),
            shares,
            unit=unit,
            size=lambda share: sum(map(task.size, share.pieces.tolist())),
            words=words,
            address_of=lambda share: share.place.address,
            on_value=take,
        )
        with self.doing(name, "adding up what the processes have"):
            return combine(task, folder, results, sorted(earlier))

    @contextmanager
    def doing(self, name: str, words: str) -> Iterator[None]:
        """Tell what is done between the items of a stage, in this thread, which takes long and cannot be counted."""
        with (
            Watch[None](self.layout.progress, (), "", words=words) as watch,
            watch.here(),
            self._shown(name, watch.now),
        ):
            yield

    @contextmanager
    def _shown(self, name: str, now: Callable[[], Progress], note: Callable[[], str] = str) -> Iterator[None]:
        """Show progress to whoever watches, and commit it from time to time for whoever asks."""
        started = _now()

        def save() -> None:
            progress = now()
            facts = asdict(progress) | {"share": progress.share, "started": started, "updated": _now()}
            with suppress(CannotWriteError):  # a full disk is told where it matters
                self.save_state(name, facts)

        if now().total:
            save()
        with repeating(STATE_SECONDS, save), self.events.progress(name, now, note):
            yield


def is_whole(part: Path) -> bool:
    """Tell whether the file that an item commits is there and undamaged: each of its arrays has a checksum."""
    if not part.exists():
        return False
    try:
        read_arrays(part)
    except (CorruptDataError, MissingDataError):
        return False
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def saved_state(layout: RunLayout) -> tuple[dict[str, StageCost], int]:
    """Return what the stages of a run took in its earlier sessions, and its peak of memory; zeros for a new run."""
    saved: dict[str, Any] = {"stages": {}, "peak_rss_bytes": 0}
    if layout.state.exists():
        saved = read_record(layout.state, remedy=STATE_REMEDY)
    found = {name: StageCost(**cost) for name, cost in in_order(saved["stages"]).items()}
    return {name: StageCost() for name in STAGES} | found, saved["peak_rss_bytes"]


def in_order(stages: Mapping[str, Value]) -> dict[str, Value]:
    """Return what is known of each stage in the order in which they run: the keys of records are sorted."""
    return {name: stages[name] for name in (COMPILE, *STAGES) if name in stages}
