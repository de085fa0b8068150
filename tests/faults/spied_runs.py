"""Trainings on the small tables whose passes last long enough to be killed in their midst.

Each piece of a pass is noted, and lasts longer than it needs: see spy/sitecustomize.py.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from runs import ROOT, wait_until

SPY = Path(__file__).parent / "spy"
EVERY = 0.5  # seconds of --checkpoint-every
PIECE = 0.1  # seconds that a piece lasts at least
Command = Callable[..., list[str]]  # of the fixtures `command`
Whole = Callable[[str], dict[str, bytes]]  # and `whole`


class Note(NamedTuple):
    """A piece that was added: when, by which process, the kind of its pass (grid and folder), its number."""

    seconds: float
    process: int
    kind: str
    piece: int


def notes_in(path: Path) -> list[Note]:
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split() for line in lines if len(line.split()) == 4]
    return [Note(float(seconds), int(process), kind, int(piece)) for seconds, process, kind, piece in words]


def first_pass(session: list[Note]) -> list[Note]:
    """Return the notes of the pass that the first one is of."""
    return list(takewhile(lambda note: note.kind == session[0].kind, session))


def spying(notes: Path, seconds: float = PIECE) -> dict[str, str]:
    """Return the variables of a process whose pieces are noted, and last so long."""
    path = f"{SPY}{os.pathsep}{ROOT}"
    return {"SLKL_SPY": str(notes), "SLKL_SPY_SECONDS": str(seconds), "PYTHONPATH": path}


@contextmanager
def started(line: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a training with a session of its own, and kill all of its processes at the end."""
    command, environment = [sys.executable, "-m", "pipeline.train", *line], os.environ | variables
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_notes(notes: Path, count: int, process: subprocess.Popen[Any]) -> None:
    """Wait until so many pieces are noted; fail if the process ends before."""
    wait_until(lambda: len(notes_in(notes)) >= count or process.poll() is not None, 240)
    assert len(notes_in(notes)) >= count
