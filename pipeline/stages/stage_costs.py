"""What the stages of a run took: wall and CPU seconds, items, and the peak of memory, over all its sessions."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.stages.workspace import STAGES
from storage.folder_layouts import RunLayout
from storage.records import read_record

Value = TypeVar("Value")
COMPILE = "compile"  # the first stage of a run that lacks compiled loops
STATE_REMEDY = "delete it: only the times that the stages took are lost"


@dataclass
class StageCost:
    """What a stage took so far, over all sessions of the run."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    items: int = 0


class StageClock:
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
