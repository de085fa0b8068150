"""What a run says while it works: log.jsonl, metrics.jsonl, and progress for whoever watches.

On a terminal tqdm draws a bar; elsewhere one line every few seconds tells stage, item, rate, time left and memory.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import psutil

LINE_SECONDS = 5.0  # between two progress lines where there is no terminal
SAMPLE_SECONDS = 0.1  # between two samples of the memory of the process tree


class MemoryMeter:
    """Samples the memory of this process and its children; `peak_bytes` is the largest seen."""

    def __init__(self, peak_bytes: int = 0) -> None:
        self.peak_bytes = peak_bytes  # of the earlier sessions of a run
        self._process = psutil.Process()
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
        children = self._process.children(recursive=True)
        used = self._process.memory_info().rss if not children else _tree_bytes([self._process, *children])
        self.peak_bytes = max(self.peak_bytes, used)
        return used

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.sample()


class Events:
    """The voice of one run. Safe to use from several threads."""

    def __init__(
        self, log: Path, metrics: Path, meter: MemoryMeter, *, quiet: bool, stream: TextIO | None = None
    ) -> None:
        self.meter = meter
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._lock = threading.Lock()
        self._log, self._metrics = _appended(log), _appended(metrics)

    def __enter__(self) -> "Events":
        """Return the events, open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._log.close()
        self._metrics.close()

    def say(self, message: str, **facts: Any) -> None:
        """Log a message with facts, and print it unless the run is quiet."""
        self.record("message", message=message, **facts)
        if not self._quiet:
            print(message, file=self._stream, flush=True)

    def warn(self, message: str, **facts: Any) -> None:
        """Log a warning and print it, quiet or not."""
        self.record("warning", message=message, **facts)
        print(f"warning: {message}", file=self._stream, flush=True)

    def record(self, event: str, **facts: Any) -> None:
        """Write one line to log.jsonl."""
        self._append(self._log, {"time": _now(), "event": event, **facts})

    def metric(self, **facts: Any) -> None:
        """Write one line to metrics.jsonl."""
        self._append(self._metrics, {"time": _now(), **facts})

    def _append(self, file: TextIO, record: dict[str, Any]) -> None:
        with self._lock:
            file.write(json.dumps(record) + "\n")
            file.flush()

    @contextmanager
    def progress(self, stage: str, n_items: int, note: Callable[[], str] = str) -> Iterator[Callable[[], None]]:
        """Show the progress of a stage; call what is yielded once for each finished item.

        `note` returns a few words on the state of the work (objective and gap while solving).
        """
        if self._quiet:
            yield lambda: None
        elif self._stream.isatty():
            with self._bar(stage, n_items, note) as advance:
                yield advance
        else:
            with self._lines(stage, n_items, note) as advance:
                yield advance

    @contextmanager
    def _bar(self, stage: str, n_items: int, note: Callable[[], str]) -> Iterator[Callable[[], None]]:
        from tqdm import tqdm

        with tqdm(total=n_items, desc=f"{stage:<10}", file=self._stream, leave=True, dynamic_ncols=True) as bar:

            def refresh() -> None:
                bar.set_postfix_str(" ".join(filter(None, (note(), _size(self.meter.sample())))))

            def advance() -> None:
                bar.update()
                refresh()

            with _repeating(1.0, refresh):
                yield advance

    @contextmanager
    def _lines(self, stage: str, n_items: int, note: Callable[[], str]) -> Iterator[Callable[[], None]]:
        done, started = 0, time.perf_counter()

        def advance() -> None:
            nonlocal done
            done += 1

        def line() -> None:
            rate = done / (time.perf_counter() - started)
            left = f"{(n_items - done) / rate:.0f} s left" if done else "time left unknown"
            words = (f"{stage}: item {done} of {n_items}", f"{rate:.3g}/s", left, note(), _size(self.meter.sample()))
            print(", ".join(filter(None, words)), file=self._stream, flush=True)

        with _repeating(LINE_SECONDS, line):
            yield advance


def _appended(path: Path) -> TextIO:
    """Open a file of lines to append to; a last line that a kill cut off is removed."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
    return path.open("a", encoding="utf-8")


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


@contextmanager
def _repeating(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call `action` every few seconds from a thread while the block runs."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(seconds):
            with suppress(OSError, ValueError):  # progress is told again soon; a full disk is the run's to report
                action()

    thread = threading.Thread(target=loop, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
