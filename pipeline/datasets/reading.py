"""What the reading of tables takes and tells: time, memory, notes, and lines of progress while it goes on."""

import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

SILENT_SECONDS = 3.0  # before the first line of progress
LINE_SECONDS = 5.0  # between two lines


@dataclass
class ReadingCost:
    """What reading tables took since the last `take`; notes: what was seen."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    n_tables: int = 0
    notes: list[str] = field(default_factory=list)


_cost = ReadingCost()
_tells, _writes = ContextVar("tells", default=False), ContextVar("writes", default=True)


def writes() -> bool:
    """Return whether tables that are read are kept."""
    return _writes.get()


def take() -> ReadingCost:
    """Return what reading took so far, and begin to count anew."""
    global _cost
    taken, _cost = _cost, ReadingCost()
    return taken


def note(line: str) -> None:
    """Tell something that was seen."""
    _cost.notes.append(line)


@contextmanager
def preparing(*, quiet: bool, writes: bool) -> Iterator[None]:
    """Tell the progress of tables that are read in the block, unless `quiet`; keep them if `writes` says so."""
    take()  # of what was prepared before
    tells, kept = _tells.set(not quiet), _writes.set(writes)
    try:
        yield
    finally:
        _tells.reset(tells)
        _writes.reset(kept)


@contextmanager
def reading(path: Path, n_bytes: int) -> Iterator[None]:
    """Count what the reading of a table takes, and tell that it goes on."""
    wall, cpu, stop = time.perf_counter(), time.process_time(), threading.Event()

    def tell() -> None:
        pause = SILENT_SECONDS
        while not stop.wait(pause):
            seconds = time.perf_counter() - wall
            print(f"read: {path.name}, {n_bytes / 2**20:.0f} MiB, {seconds:.0f} s so far", file=sys.stderr, flush=True)
            pause = LINE_SECONDS

    thread = threading.Thread(target=tell, name="reading", daemon=True)
    if _tells.get():
        thread.start()
    try:
        yield
    finally:
        stop.set()
        _cost.wall_seconds += time.perf_counter() - wall
        _cost.cpu_seconds += time.process_time() - cpu
        _cost.n_tables += 1


def peak_bytes() -> int:
    """Return the most memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
