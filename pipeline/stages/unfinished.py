"""What is kept of a solve, or of a choice of centers, while it is computed: checkpoints, and records of iterations."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pipeline.runtime import stopping
from storage import checkpoints
from storage.checkpoints import Checkpoint
from storage.files import LineFile


@dataclass
class UnfinishedOnDisk:
    """Checkpoints in a folder, and a file of records, which is written anew inside a `with` block.

    every, keep : seconds between checkpoints, and how many of them are kept
    """

    folder: Path
    records: Path
    every: float
    keep: int
    warnings: tuple[str, ...] = ()
    _saved: float = field(default_factory=time.monotonic, init=False)
    _file: LineFile | None = field(default=None, init=False)

    def __enter__(self) -> "UnfinishedOnDisk":
        """Open the file of records, empty."""
        self._saved, self._file = time.monotonic(), LineFile(self.records, fresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        assert self._file is not None
        self._file.close()
        self._file = None

    def load(self) -> Checkpoint | None:
        """Return the last whole checkpoint; None where there is none. Raises CorruptDataError where none is whole."""
        checkpoint = checkpoints.load(self.folder)
        self.warnings = () if checkpoint is None else checkpoint.warnings
        return checkpoint

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Make a checkpoint."""
        checkpoints.save(self.folder, step, arrays, facts, keep=self.keep)
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        """Tell whether it is time for a checkpoint, or the run is to stop."""
        return bool(stopping.requested()) or time.monotonic() - self._saved >= self.every

    def record(self, facts: Mapping[str, Any]) -> None:
        """Append the record of an iteration."""
        assert self._file is not None
        self._file.append(json.dumps(facts))

    def chosen(self, part: str, rows: str, n_chosen: int, most: int) -> None:
        """Do nothing: progress shows how far a choice is."""


def records_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in a file; none where it is gone."""
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def latest_note(paths: Sequence[Path], penalties: Sequence[float] = (), number: int | None = None) -> str:
    """Return objective and gap of the solve whose records grew last, in a few words; empty where none has begun.

    Where it is one of several penalties, or the one of a `number`, they say which. The driver removes the records of a
    finished solve while another thread may ask: a file may be gone at any step.
    """
    files = [(written, path) for path in paths if (written := _last_written(path)) is not None]
    for _, path in sorted(files, reverse=True):
        record = _last_record(path)
        if record is not None:
            return note_of(record, penalties, number)
    return ""


def note_of(record: Mapping[str, Any], penalties: Sequence[float] = (), number: int | None = None) -> str:
    """Return objective and gap of a record in a few words, and which of several penalties it is for."""
    gap = "unknown" if record["relative_gap"] is None else f"{record['relative_gap']:.1e}"
    outputs = ",".join(map(str, record["outputs"]))
    return f"{_which(record, penalties, number)}output {outputs}: objective {record['objective']:.6g} gap {gap}"


def _which(record: Mapping[str, Any], penalties: Sequence[float], number: int | None) -> str:
    if number is not None:
        return f"penalty {number + 1} ({record['penalty']:.3g}), "
    if len(penalties) > 1:
        return f"penalty {penalties.index(record['penalty']) + 1} of {len(penalties)} ({record['penalty']:.3g}), "
    return ""


def _last_written(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _last_record(path: Path) -> dict[str, Any] | None:
    """Return the last record of a file, or None where it is gone, empty or only half written."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return dict(json.loads(lines[-1])) if lines else None
    except (OSError, ValueError):
        return None
