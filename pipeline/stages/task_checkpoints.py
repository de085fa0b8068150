"""Checkpoints of tasks, such as a solve or a greedy selection, and records of their iterations."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime import stopping
from pipeline.solvers.solve import Solution
from pipeline.solvers.state import Record, SolverState
from pipeline.stages.workspace import TaskCheckpoints
from storage import checkpoints as checkpoint_files
from storage.checkpoints import Checkpoint
from storage.files import LineFile


@dataclass
class CheckpointsOnDisk(TaskCheckpoints):
    """Checkpoints in a folder, and a file of records, which is written anew inside a `with` block.

    every : seconds between checkpoints
    """

    folder: Path
    records: Path
    every: float
    warnings: tuple[str, ...] = ()
    _saved: float = field(default_factory=time.monotonic, init=False)
    _file: LineFile | None = field(default=None, init=False)

    def __enter__(self) -> "CheckpointsOnDisk":
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
        checkpoint = checkpoint_files.load(self.folder)
        self.warnings = () if checkpoint is None else checkpoint.warnings
        return checkpoint

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Make a checkpoint."""
        checkpoint_files.save(self.folder, step, arrays, facts)
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        """Return whether it is time for a checkpoint, or the run is to stop."""
        return bool(stopping.requested()) or time.monotonic() - self._saved >= self.every

    def record(self, facts: Mapping[str, Any]) -> None:
        """Append the record of an iteration."""
        assert self._file is not None
        self._file.append(json.dumps(facts))


def records_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in a file; none where it is gone."""
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def latest_note(paths: Sequence[Path], penalties: Sequence[float] = (), number: int | None = None) -> str:
    """Return objective and gap of the solve whose records grew last, in a few words; empty where none has begun.

    Where it is one of several penalties, or the one of a `number`, they say which. The driver removes the records of a
    finished solve while another thread may ask: a file may be gone at any step.
    """
    written = []
    for path in paths:
        with suppress(OSError):
            written.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(written, reverse=True):
        with suppress(OSError, ValueError, IndexError):  # gone, half written, or empty
            record = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
            return note_of(record, penalties, number)
    return ""


def note_of(record: Mapping[str, Any], penalties: Sequence[float] = (), number: int | None = None) -> str:
    """Return objective and gap of a record in a few words, and which of several penalties it is for."""
    which = ""
    if number is not None:
        which = f"penalty {number + 1} ({record['penalty']:.3g}), "
    elif len(penalties) > 1:
        position = penalties.index(record["penalty"]) + 1
        which = f"penalty {position} of {len(penalties)} ({record['penalty']:.3g}), "
    gap = "unknown" if record["relative_gap"] is None else f"{record['relative_gap']:.1e}"
    return f"{which}output {record['output']}: objective {record['objective']:.6g} gap {gap}"


REACHED = 1e-3  # relative gap that a solve to rounding has to reach
EXHAUSTED = 20  # iterations without half the gap, after which rounding holds it


class SolveProgress:
    """Takes a solve up from its last checkpoint, makes others, and hands on the records of its iterations.

    Attributes: `weights` (M,) and `summaries` of the penalties done; `state` of the one under way, None at its begin.

    Parameters
    ----------
    checkpoints : where checkpoints and records go
    penalties : what is solved at, one after the other; a checkpoint of others is left alone
    facts : written with every record
    """

    def __init__(self, checkpoints: TaskCheckpoints, penalties: Sequence[float], facts: dict[str, Any]) -> None:
        self._checkpoints, self._penalties, self._facts = checkpoints, list(penalties), facts
        self.weights: list[NDArray[np.float64]] = []
        self.summaries: list[dict[str, Any]] = []
        self.state: SolverState | None = None
        self._past: list[dict[str, Any]] = []  # the records of the penalties done
        checkpoint = checkpoints.load()
        if checkpoint is not None and checkpoint.metadata["penalties"] == self._penalties:
            arrays, stored = dict(checkpoint.arrays), checkpoint.metadata
            self.weights = list(arrays.pop("weights_done", np.empty(0)))
            self.summaries, self._past = list(stored["summaries"]), list(stored["records"])
            self.state = SolverState.from_arrays(arrays, stored["state"])
        for line in self._past:
            checkpoints.record(line)
        if self.state is not None:
            for record in self.state.records:
                checkpoints.record(self._line(self._penalty, record))

    def on_record(self, penalty: float, record: Record, state: SolverState) -> None:
        """Hand on a record; save the state where a checkpoint is due. Raises StoppedError, after saving, on request."""
        self.state = state
        self._checkpoints.record(self._line(penalty, record))
        if self._checkpoints.is_due():
            self._save()
            stopping.check()  # what is asked for after this look is seen at the next record: nothing ends unsaved

    def on_solution(self, solution: Solution) -> None:
        """Count a penalty as done."""
        penalty = self._penalty
        self._past += [self._line(penalty, record) for record in solution.state.records]
        self.weights.append(solution.weights)
        summary = {
            "penalty": penalty,
            "objective": solution.objective,
            "relative_gap": solution.certificate.relative_gap,
            "converged": solution.converged,
            "status": solution.status.value,
            "n_active": solution.n_active,
            "sweeps": solution.state.iterations,
            "visits": solution.state.visits,
            "moves": solution.state.moves,
            "evaluations": solution.state.evaluations,
            "wall_seconds": solution.state.records[-1].seconds if solution.state.records else 0.0,
        }
        self.summaries.append(summary)
        self.state = None

    def is_exhausted(self) -> bool:
        """Return whether the gap of the solve under way has stopped falling: rounding holds it (see `EXHAUSTED`)."""
        assert self.state is not None
        least, least_at, records = np.inf, 0, self.state.records
        for number, record in enumerate(records, 1):
            if record.relative_gap is not None and record.relative_gap < 0.5 * least:
                least, least_at = record.relative_gap, number
        return least <= REACHED and len(records) - least_at >= EXHAUSTED

    @property
    def _penalty(self) -> float:
        return self._penalties[len(self.summaries)]

    def _line(self, penalty: float, record: Record) -> dict[str, Any]:
        return {**self._facts, "penalty": penalty, **asdict(record)}

    def _save(self) -> None:
        assert self.state is not None
        arrays, scalars = self.state.to_arrays()
        if self.weights:
            arrays["weights_done"] = np.stack(self.weights)
        facts = {"penalties": self._penalties, "summaries": self.summaries, "records": self._past, "state": scalars}
        self._checkpoints.save(len(self._past) + self.state.iterations, arrays, facts)
