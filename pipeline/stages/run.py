"""What the stages of one run share, and how a stage runs its items and counts what they cost."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline import stopping
from pipeline.config import TrainConfig
from pipeline.events import Events
from pipeline.executors import Executor, this_process
from pipeline.feature_store import FeatureRequest, FeatureShape
from pipeline.live_features import FeatureAccess
from storage.commit import read_arrays, read_record, write_record
from storage.errors import CorruptDataError, MissingDataError
from storage.layout import FeatureLayout, RunLayout
from storage.markers import read_markers

STATE_SECONDS = 2.0  # between two writes of the progress for whoever asks
STATE_REMEDY = "delete it: only the times that the stages took are lost"
STAGES = ("features", "centers", "statistics", "solve", "evaluate")


@dataclass
class StageCost:
    """What a stage took so far, over all sessions of the run."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    items: int = 0


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

    def save_state(self, stage: str, progress: dict[str, Any] | None = None) -> None:
        """Commit STATE.json: the current stage and its progress, what every stage took, and the peak of the memory."""
        costs = {name: asdict(cost) for name, cost in self.costs.items()}
        facts = {"stage": stage, "pid": os.getpid(), "stages": costs, "peak_rss_bytes": self.events.meter.peak_bytes}
        write_record(self.layout.state, facts | {"progress": progress})

    def done(self, markers: Path) -> dict[str, dict[str, Any]]:
        """Return the payloads of the items done, and warn of markers that are damaged."""
        found = read_markers(markers)
        for warning in found.warnings:
            self.events.warn(warning)
        return found

    @contextmanager
    def stage(self, name: str) -> Iterator[StageCost]:
        """Count the wall and CPU seconds of this process into a stage, and commit the state at both ends."""
        stopping.check()
        cost = self.costs[name]
        self.events.record("stage", stage=name, status="started")
        self.save_state(name)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield cost
        finally:
            cost.wall_seconds += time.perf_counter() - wall
            cost.cpu_seconds += time.process_time() - cpu
            self.save_state(name)
        self.events.record("stage", stage=name, status="done", **asdict(cost))

    @contextmanager
    def charged(self, name: str, instead_of: str) -> Iterator[None]:
        """Count what happens inside into another stage than the one that is under way."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            for stage, sign in ((name, 1), (instead_of, -1)):
                self.costs[stage].wall_seconds += sign * (time.perf_counter() - wall)
                self.costs[stage].cpu_seconds += sign * (time.process_time() - cpu)

    def run_items(
        self,
        name: str,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        note: Callable[[], str] = str,
        on_value: Callable[[Any, Any], None] = lambda item, value: None,
    ) -> None:
        """Run a function over items, with progress; `on_value(item, value)` takes each result as it completes."""
        cost = self.costs[name]
        stopping.check()
        started, saved = _now(), time.monotonic()
        progress = {"done": 0, "total": len(items), "started": started, "updated": started}
        if items:
            self.save_state(name, progress)
        with self.events.progress(name, len(items), note) as advance:
            for done, result in enumerate(self.executor.run(function, items, self.layout.turn), 1):
                if result.process != this_process():
                    cost.cpu_seconds += result.cpu_seconds
                cost.items += 1
                on_value(result.item, result.value)
                advance()
                if time.monotonic() - saved >= STATE_SECONDS:
                    saved = time.monotonic()
                    self.save_state(name, progress | {"done": done, "updated": _now()})


def is_whole(part: Path) -> bool:
    """Tell whether what an item committed is all there (every array has a checksum): it need not be done again."""
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
    found: dict[str, Any] = {"stages": {}, "peak_rss_bytes": 0}
    if layout.state.exists():
        found = read_record(layout.state, remedy=STATE_REMEDY)
    return {name: StageCost(**found["stages"].get(name, {})) for name in STAGES}, found["peak_rss_bytes"]
