"""How far the items of a stage are: rows, centers or penalties done inside them, and words for what has no number.

Code of an item calls `advance` where something countable is done, and `status` before what takes long. In the watcher's
process a report is an entry of a dictionary; elsewhere a small file in the folder of the run, written at most once a
second. Only what is shown depends on it.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")
WRITE_SECONDS = 1.0  # between two reports of a task in another process
MEASURED_SECONDS, MEASURED_SHARE = 5.0, 0.02  # of work, before a forecast is made from it
COMPILING = "compiling, once on this machine"
_HERE = -1  # in place of the index of an item: the watching thread itself


@dataclass(frozen=True)
class Progress:
    """What is done of a stage's items: `done` of `total` units, a word for the unit (empty: a share), and words."""

    done: float
    total: float
    unit: str = ""
    words: str = ""

    @property
    def share(self) -> float | None:
        """The part that is done, 0 to 1; None of what cannot be counted."""
        return self.done / self.total if self.total else None

    def text(self) -> str:
        """Return it in a few words."""
        count = f"{self.done:.0f} of {self.total:.0f} {self.unit}" if self.unit else ""
        if self.total and not self.unit:
            count = f"{self.share:.0%}"
        return ", ".join(filter(None, (count, self.words)))


class Pace:
    """Estimates the time left from what was done since the last compilation."""

    def __init__(self) -> None:
        self._start(Progress(0.0, 0.0))

    def _start(self, progress: Progress) -> None:
        self._started = self._moved = time.monotonic()
        self._first = self._last = progress

    def seconds_left(self, progress: Progress) -> float | None:
        """Return the seconds left; None while loops compile, and before enough is done.

        They fall while nothing moves.
        """
        if progress.words == COMPILING:
            self._start(progress)
            return None
        now = time.monotonic()
        if progress.share is not None and progress.share != (self._last.share or 0.0):
            self._last, self._moved = progress, now
        return remaining(self._last.share, self._moved - self._started, now - self._moved, self._first.share or 0.0)

    def rate(self, progress: Progress) -> float:
        """Return the units done a second since the last compilation."""
        return (progress.done - self._first.done) / max(time.monotonic() - self._started, 1e-9)


def remaining(share: float | None, seconds: float, since: float, begun: float = 0.0) -> float | None:
    """Return the seconds left where a share took `seconds`, `since` seconds ago, and `begun` was done before them.

    None where too little was done to go by.
    """
    gained = (share or 0.0) - begun
    if share is None or seconds < MEASURED_SECONDS or gained < MEASURED_SHARE:
        return None
    return max(seconds * (1.0 - share) / gained - since, 0.0)


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class _Report:
    done: float
    words: str


@dataclass(frozen=True)
class _Channel:
    """Where the tasks of one call report to: a dictionary of the process that watches, or files. Picklable."""

    folder: Path
    process: int
    name: str  # drawn: a late task of an earlier call, or of a killed session, is not taken for one of this

    def file(self, index: int) -> Path:
        return self.folder / f"{self.name}-{index}.json"


@dataclass(frozen=True)
class Numbered(Generic[Item]):
    """An item and its place among those of one call."""

    index: int
    item: Item


_reports: dict[str, dict[int, _Report]] = {}  # of the channels that this process watches


class _Task:
    """One item under way, in the thread that runs it and in those that help it."""

    def __init__(self, channel: _Channel, index: int) -> None:
        self._channel, self._index = channel, index
        self._done, self._words, self._compilations = 0.0, "", 0
        self._written, self._lock = time.monotonic(), threading.Lock()

    def advance(self, units: float, words: str | None) -> None:
        with self._lock:
            self._done += units
            self._words = self._words if words is None else words
            self._tell(at_once=False)

    def status(self, words: str) -> None:
        self._words = words
        self._tell(at_once=True)

    def compiling(self, step: int) -> None:
        with self._lock:
            self._compilations += step
            self._tell(at_once=True)

    def _tell(self, *, at_once: bool) -> None:
        report = _Report(self._done, COMPILING if self._compilations > 0 else self._words)
        reports = _reports.get(self._channel.name) if self._channel.process == os.getpid() else None
        if reports is not None:
            reports[self._index] = report
        elif at_once or time.monotonic() - self._written >= WRITE_SECONDS:
            self._written = time.monotonic()
            with suppress(OSError):
                self._channel.folder.mkdir(exist_ok=True)
                self._channel.file(self._index).write_text(json.dumps([report.done, report.words]), encoding="utf-8")


class _Here(threading.local):
    task: _Task | None = None


_here = _Here()


def advance(units: float = 1, words: str | None = None) -> None:
    """Count units of the item that this thread runs as done; with words, say so."""
    if _here.task is not None:
        _here.task.advance(units, words)


def current_task() -> "_Task | None":
    """Return the item that this thread runs, for `helping` in threads that work on the same item."""
    return _here.task


@contextmanager
def helping(task: "_Task | None") -> Iterator[None]:
    """Have this thread report to an item that another thread runs."""
    before, _here.task = _here.task, task
    try:
        yield
    finally:
        _here.task = before


def status(words: str) -> None:
    """Say what the item that this thread runs is about to do."""
    if _here.task is not None:
        _here.task.status(words)


@cache
def _hear_of_compilations() -> None:
    """Have numba's events say, in the thread that compiles, that a compilation begins or has ended."""
    from numba.core import event  # with the first item, since --help and status shall not wait for numba

    class Compiling(event.Listener):
        def on_start(self, _: object) -> None:
            if _here.task is not None:
                _here.task.compiling(1)

        def on_end(self, _: object) -> None:
            if _here.task is not None:
                _here.task.compiling(-1)

    event.register("numba:compile", Compiling())


@contextmanager
def _telling(channel: _Channel, index: int) -> Iterator[None]:
    _hear_of_compilations()
    before, _here.task = _here.task, _Task(channel, index)
    try:
        yield
    finally:
        _here.task = before


def _run_reporting(channel: _Channel, function: Callable[[Item], Value], numbered: Numbered[Item]) -> Value:
    with _telling(channel, numbered.index):
        return function(numbered.item)


@dataclass
class Watch(Generic[Item]):
    """The driver's view of the items of one call; inside a `with` block, `now` tells how far they are.

    folder : where tasks of other processes leave their reports
    items : what is run
    unit, size : what is counted, and how many of it an item has
    words : shown while no task has any of its own
    """

    folder: Path
    items: Sequence[Item]
    unit: str = "items"
    size: Callable[[Item], float] = lambda item: 1
    words: str = ""
    _done: float = field(default=0.0, init=False)

    def __enter__(self) -> "Watch[Item]":
        """Begin to listen; what a killed session left is removed."""
        self._channel = _Channel(self.folder, os.getpid(), os.urandom(8).hex())
        self._sizes = {index: float(self.size(item)) for index, item in enumerate(self.items)}
        self._total, self._reports = sum(self._sizes.values()), _reports.setdefault(self._channel.name, {})
        clear(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        del _reports[self._channel.name]
        clear(self.folder)

    def numbered(self) -> list[Numbered[Item]]:
        """Return the items as the function that `reporting` returns takes them."""
        return [Numbered(index, item) for index, item in enumerate(self.items)]

    def reporting(self, function: Callable[[Item], Value]) -> Callable[[Numbered[Item]], Value]:
        """Return a function that runs one of the items, and reports to this watch wherever it runs."""
        return partial(_run_reporting, self._channel, function)

    def here(self) -> AbstractContextManager[None]:
        """Return a context in which this thread reports as if it ran an item of its own."""
        return _telling(self._channel, _HERE)

    def finished(self, index: int) -> None:
        """Count an item as done, whatever it has reported."""
        self._done += self._sizes.pop(index)
        self._reports.pop(index, None)
        with suppress(OSError):
            self._channel.file(index).unlink()

    def now(self) -> Progress:
        """Return how far the items are; safe in every thread."""
        self._read_files()
        sizes = {_HERE: 0.0, **self._sizes.copy()}
        reports = [(sizes[index], report) for index, report in sorted(self._reports.copy().items()) if index in sizes]
        under_way = sum(min(report.done, size) for size, report in reports)
        said = [report.words for _, report in reports if report.words]
        words = COMPILING if COMPILING in said else next(iter(said), self.words)
        return Progress(min(self._done + under_way, self._total), self._total, self.unit, words)

    def _read_files(self) -> None:
        for path in self.folder.glob(f"{self._channel.name}-*.json"):
            with suppress(OSError, ValueError, TypeError):  # one that is gone or being written: the last report stands
                done, words = json.loads(path.read_text(encoding="utf-8"))
                self._reports[int(path.stem.rpartition("-")[2])] = _Report(float(done), str(words))


def clear(folder: Path) -> None:
    """Remove the reports in a folder, and the folder."""
    with suppress(OSError):
        for path in folder.glob("*.json"):
            path.unlink(missing_ok=True)
        folder.rmdir()
