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
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")
WRITE_SECONDS = 1.0  # A task in another process reports at this interval.
MEASURED_SECONDS, MEASURED_SHARE = 5.0, 0.02  # A forecast needs both: seconds of work, and a share of all work.
COMPILING = "compiling, once on this machine"


@dataclass(frozen=True)
class Progress:
    """What is done of a stage's items."""

    done: float
    total: float
    unit: str = ""  # the word for what is counted; empty: a share
    words: str = ""  # what is being done
    seconds_left: float | None = None
    step: int = 1  # the step of the stage; each counts from nothing

    def text(self) -> str:
        told = (
            f"step {self.step}" if self.step > 1 else "",
            f"{self.done / self.total:3.0%}" if self.total else "",
            "" if self.seconds_left is None else f"{duration(self.seconds_left)} left",
            f"{self.done:.0f} of {self.total:.0f} {self.unit}" if self.unit else "",
            self.words,
        )
        return ", ".join(filter(None, told))


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class _Here(dict[int, tuple[float, str]]):
    """How far items are by their index, as units that are done and words; sent to another process, it is None."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


class _Task:
    def __init__(self, files: str, here: _Here | None, index: int) -> None:
        self._here, self._index, self._file = here, index, Path(f"{files}-{index}.json")
        self._done, self._words = 0.0, ""
        self._written, self._lock = time.monotonic(), threading.Lock()

    def tell(self, units: float = 0.0, words: str | None = None, *, at_once: bool) -> None:
        with self._lock:
            self._done += units
            self._words = self._words if words is None else words
            if self._here is not None:
                self._here[self._index] = self._done, self._words
            elif at_once or time.monotonic() - self._written >= WRITE_SECONDS:
                self._written = time.monotonic()
                with suppress(OSError):
                    self._file.parent.mkdir(exist_ok=True)
                    self._file.write_text(json.dumps([self._done, self._words]), encoding="utf-8")


_task: ContextVar[_Task | None] = ContextVar("task", default=None)  # the task that a thread runs, or helps with


def advance(units: float = 1, words: str | None = None) -> None:
    """Count units of the item that this thread runs as done; with words, say so."""
    if (task := _task.get()) is not None:
        task.tell(units, words, at_once=False)


def status(words: str) -> None:
    """Say what the item that this thread runs is about to do."""
    if (task := _task.get()) is not None:
        task.tell(words=words, at_once=True)


def _run_item(files: str, here: _Here | None, function: Callable[[Item], Value], numbered: tuple[int, Item]) -> Value:
    index, item = numbered
    before = _task.set(_Task(files, here, index))
    try:
        return function(item)
    finally:
        _task.reset(before)


class Watch:
    """The driver's view of the items of one call; inside a `with` block, `now` tells how far they are.

    folder : where tasks of other processes leave their reports
    sizes : of each item, how much of the `unit` that is counted it has
    words : shown while no task has any of its own
    step : how many such calls its stage has made
    """

    def __init__(self, folder: Path, sizes: Sequence[float], unit: str, words: str = "", step: int = 1) -> None:
        self._folder, self._unit, self._here = folder, unit, _Here()
        # Part of the names of files is drawn: a late task of an earlier call, or of a killed session, is none of these.
        self._files = str(folder / os.urandom(8).hex())
        self._words, self._step = words, step
        self._sizes, self._done, self._total = dict(enumerate(sizes)), 0.0, float(sum(sizes))
        self._began = self._moved = time.monotonic()
        self._last = 0.0  # what was done when it moved

    def __enter__(self) -> "Watch":
        """Begin to listen; what a killed session left is removed."""
        rmtree(self._folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        rmtree(self._folder, ignore_errors=True)

    def reporting(self, function: Callable[[Item], Value]) -> Callable[[tuple[int, Item]], Value]:
        """Return a function that runs an item, given with its index, and reports to this watch wherever it runs."""
        return partial(_run_item, self._files, self._here, function)

    def finished(self, index: int) -> None:
        self._done += self._sizes.pop(index)
        self._here.pop(index, None)
        with suppress(OSError):
            Path(f"{self._files}-{index}.json").unlink()

    def now(self) -> Progress:
        """Return how far the items are; safe in every thread."""
        for path in self._folder.glob(f"{Path(self._files).name}-*.json"):
            with suppress(OSError, ValueError, TypeError):  # one that is gone or being written: the last report stands
                done, words = json.loads(path.read_text(encoding="utf-8"))
                self._here[int(path.stem.rpartition("-")[2])] = float(done), str(words)
        sizes = self._sizes.copy()
        reports = [(sizes[index], *report) for index, report in sorted(self._here.copy().items()) if index in sizes]
        under_way = sum(min(done, size) for size, done, _ in reports)
        said = [words for _, _, words in reports if words]
        words = next(iter(said), self._words)
        done = min(self._done + under_way, self._total)
        return Progress(done, self._total, self._unit, words, self._seconds_left(done), self._step)

    def _seconds_left(self, done: float) -> float | None:
        """Return the seconds left at the pace so far, which fall while nothing moves; None before enough is done."""
        now = time.monotonic()
        if done != self._last:
            self._last, self._moved = done, now
        seconds = self._moved - self._began
        if seconds < MEASURED_SECONDS or done < MEASURED_SHARE * self._total:
            return None
        return max(seconds * (self._total - done) / done - (now - self._moved), 0.0)


@contextmanager
def repeating(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` every few seconds from a thread while the block runs."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(seconds):
            with suppress(Exception):  # progress is told again soon, and no error of it may end what is told after
                action()

    thread = threading.Thread(target=loop, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
