"""Where a run is stopped: amid its passes over the rows, or at its commits; and its sessions until it is done."""

import itertools
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cases import SERIAL
from pipeline.runtime import row_pass, stopping
from pipeline.train import main
from storage import files

STOPS = [int(4 * 1.4**k) for k in range(20)]  # 4, 5, 7, 10 … runs of pieces, or commits, of all sessions together


def stop_amid_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a session to stop when it takes certain runs of pieces, wherever in whatever pass that is."""
    add_pieces, taken = row_pass.add_pieces, itertools.count(1)

    def interrupted(*run: Any) -> Iterator[int]:
        if next(taken) in STOPS:
            stopping.current().reason = "a test"
        return add_pieces(*run)

    monkeypatch.setattr(row_pass, "add_pieces", interrupted)


def stop_at_commits(monkeypatch: pytest.MonkeyPatch, run: Path, stops: Container[int]) -> None:
    """Interrupt a session before or after certain files and folders of the run get their names for the first time.

    Names that begin with a dot are of what is not whole yet.
    """
    rename, seen = files.low_rename, set[Path]()

    def interrupted(source: Path, target: Path) -> None:
        aside = any(part.startswith(".") for part in target.parts[len(run.parts) :])
        in_threads = threading.current_thread() is not threading.main_thread()
        if run not in target.parents or aside or in_threads or target in seen:
            return rename(source, target)
        seen.add(target)
        if len(seen) in stops and len(seen) % 2:
            raise KeyboardInterrupt
        rename(source, target)
        if len(seen) in stops:
            raise KeyboardInterrupt
        return None

    monkeypatch.setattr(files, "low_rename", interrupted)


def until_done(
    line: Sequence[str | Path], ways: Sequence[tuple[str, ...]] = (SERIAL,), after: Callable[[], None] = lambda: None
) -> int:
    """Go on with a run of the main command until it is not stopped; return how many sessions that took.

    ways : what the sessions have in turn;  after : is called after each session
    """
    for session in range(1000):
        code = main([*map(str, line), "--resume", "auto", "-q", *ways[session % len(ways)]])
        after()
        if code != 75:
            assert code == 0
            return session + 1
    raise AssertionError("a session goes on from where the last one was stopped")
