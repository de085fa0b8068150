"""What a run prints and logs: log.jsonl, metrics.jsonl, and progress.

Progress is one line for each stage (`console`); in a notebook tqdm draws bars.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import psutil

from pipeline.runtime.console import StageLine, repeating
from pipeline.runtime.progress import Pace, Progress, duration
from storage.files import LineFile

SAMPLE_SECONDS = 0.1  # between two samples of the memory of the process tree
SEARCH_SECONDS = 1.0  # between two searches for its processes: each reads all that the machine has

Callback = Callable[[dict[str, Any]], object]


class MemoryMeter:
    """Samples the memory of this process and its children, found within a second; `peak_bytes` is the largest seen."""

    def __init__(self, peak_bytes: int = 0) -> None:
        self.peak_bytes = peak_bytes  # of the earlier sessions of a run
        self._process = psutil.Process()
        self._children: list[psutil.Process] = []
        self._search_again = 0.0  # time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-meter", daemon=True)

    def __enter__(self) -> "MemoryMeter":
        """Start sampling."""
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()
        self.sample()

    def sample(self) -> int:
        """Return the bytes in use now: resident memory alone, or the proportional share of each process of a tree."""
        if time.monotonic() >= self._search_again:
            self._children = self._process.children(recursive=True)
            self._search_again = time.monotonic() + SEARCH_SECONDS
        tree = [self._process, *self._children]
        used = _tree_bytes(tree) if self._children else self._process.memory_info().rss
        self.peak_bytes = max(self.peak_bytes, used)
        return used

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.sample()


class Events:
    """Log, metrics and progress of one run. Safe to use from several threads.

    callback : gets every record of both files once it is written, one at a time; none after it has raised an error
    """

    def __init__(
        self,
        log: Path,
        metrics: Path,
        meter: MemoryMeter,
        *,
        quiet: bool,
        stream: TextIO | None = None,
        callback: Callback | None = None,
    ) -> None:
        self.meter = meter
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._callback = callback
        self._lock = threading.Lock()
        self._line: StageLine | None = None  # of the stage under way
        self._told: list[Callable[[], str]] = []  # what tells how far it is, the innermost last
        self._log, self._metrics = LineFile(log), LineFile(metrics)

    def __enter__(self) -> "Events":
        """Return the events, open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._log.close()
        self._metrics.close()

    def log(self, message: str, **facts: Any) -> None:
        """Log a message with facts, and print it unless the run is quiet."""
        self.record("message", message=message, **facts)
        if not self._quiet:
            self._print(message)

    def warn(self, message: str, **facts: Any) -> None:
        """Log a warning and print it, quiet or not."""
        self.record("warning", message=message, **facts)
        self._print(f"warning: {message}")

    def _print(self, message: str) -> None:
        stream, line = self._stream, self._line
        print(message, file=line.above(stream) if line else stream, flush=True)

    def record(self, event: str, **facts: Any) -> None:
        """Write one line to log.jsonl. Raises CannotWriteError."""
        self._append(self._log, {"time": _now(), "event": event, **facts})

    def metric(self, **facts: Any) -> None:
        """Write one line to metrics.jsonl. Raises CannotWriteError."""
        self._append(self._metrics, {"time": _now(), **facts})

    def _append(self, file: LineFile, record: dict[str, Any]) -> None:
        with self._lock:
            file.append(json.dumps(record))
            callback, self._callback = self._callback, None
            if callback is not None:
                callback(record)
                self._callback = callback

    @contextmanager
    def progress(self, stage: str, now: Callable[[], Progress], note: Callable[[], str] = str) -> Iterator[None]:
        """Show the progress of a stage while the block runs, as `now` tells it.

        `note` returns a few words on the state of the work (objective and gap while solving).
        """
        if self._quiet:
            yield
            return
        told = self._words_from(now, note)
        if _in_notebook():
            with self._bar(stage, now, told):
                yield
            return
        with nullcontext() if self._line else self.stage(stage):
            self._told.append(told)
            try:
                yield
            finally:
                self._told.remove(told)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show a line for a stage while the block runs; it stays with the time that the stage took."""
        if self._quiet or _in_notebook():
            yield
            return

        def words() -> str:
            told = self._told[-1:]
            return told[0]() if told else _size(self.meter.sample())

        before = self._line
        try:
            with StageLine(self._stream, name, words) as self._line:
                yield
        finally:
            self._line = before

    def _words_from(self, now: Callable[[], Progress], note: Callable[[], str]) -> Callable[[], str]:
        """Return a function that tells progress, time left, rate, state and memory in one line."""
        pace = Pace()

        def words() -> str:
            progress = now()
            left, rate = pace.seconds_left(progress), pace.rate(progress)
            said = (
                f"{progress.share:3.0%}" if progress.total else "",
                "" if left is None else f"{duration(left)} left",
                progress.text() if progress.unit else progress.words,
                f"{rate:.3g}/s" if progress.unit and rate else "",
                note(),
                _size(self.meter.sample()),
            )
            return ", ".join(filter(None, said))

        return words

    @contextmanager
    def _bar(self, stage: str, now: Callable[[], Progress], words: Callable[[], str]) -> Iterator[None]:
        from tqdm.auto import tqdm  # only where there is something to draw on

        total = now().total
        form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}" if total else "{desc}: {elapsed}{postfix}"
        shown = {"desc": f"{stage:<10}", "bar_format": form, "dynamic_ncols": True}
        # What cannot be counted leaves no bar, and is not worth one where it takes a moment.
        with tqdm(total=total or None, file=self._stream, leave=bool(total), delay=0 if total else 1, **shown) as bar:

            def refresh() -> None:
                bar.n = now().done
                bar.set_postfix_str(words())

            with repeating(1.0, refresh):
                yield
            if total:
                refresh()


def _in_notebook() -> bool:
    return "ipykernel.zmqshell" in sys.modules  # as tqdm.auto tells


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"


def _tree_bytes(processes: list[psutil.Process]) -> int:
    used = 0
    for process in processes:
        try:
            used += process.memory_full_info().pss
        except (psutil.Error, AttributeError):
            continue  # gone meanwhile, or a system without proportional shares
    return used
