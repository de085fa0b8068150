"""What a solve under way leaves on the disk: its iteration records for whoever watches, checkpoints to go on from."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime import stopping
from pipeline.solvers import Record, Solution, SolverState
from storage import checkpoints
from storage.files import LineFile


class SolveProgress:
    """The progress of one solve along its penalties, taken up from its last checkpoint.

    Inside a `with` block, every record is appended to the records file. Attributes: `weights` (M, T) and `summaries`
    of the penalties done; `state` of the one under way, None at its begin; `warnings` of damaged checkpoints.

    Parameters
    ----------
    records, folder : files of the records, and of the checkpoints, of this solve
    penalties : what is solved at, in turn; a checkpoint of others is not gone on from
    every, keep : seconds between checkpoints, and how many are kept
    facts : written with every record
    """

    def __init__(
        self, records: Path, folder: Path, penalties: Sequence[float], *, every: float, keep: int, facts: dict[str, Any]
    ) -> None:
        self._path, self._folder, self._penalties = records, folder, list(penalties)
        self._every, self._keep, self._facts = every, keep, facts
        self.weights: list[NDArray[np.float64]] = []
        self.summaries: list[dict[str, Any]] = []
        self.state: SolverState | None = None
        self.warnings: tuple[str, ...] = ()
        self._past: list[dict[str, Any]] = []  # the records of the penalties done
        self._load()
        self._saved = time.monotonic()

    def __enter__(self) -> "SolveProgress":
        """Open the records file, with the records so far."""
        self._file = LineFile(self._path, fresh=True)
        for facts in self._past:
            self._write(facts)
        if self.state is not None:
            for record in self.state.records:
                self._write(self._line(self._penalty, record))
        return self

    def __exit__(self, *_: object) -> None:
        """Close the records file."""
        self._file.close()

    def on_record(self, penalty: float, record: Record, state: SolverState) -> None:
        """Append a record; save the state where a checkpoint is due. Raises StoppedError, after saving, on request."""
        self._write(self._line(penalty, record))
        self.state = state
        if stopping.requested() or time.monotonic() - self._saved >= self._every:
            self._save()
        stopping.check()

    def on_solution(self, solution: Solution) -> None:
        """Count a penalty as done."""
        penalty = self._penalty
        self._past += [self._line(penalty, record) for record in solution.records]
        self.weights.append(solution.weights)
        self.summaries.append(_summary(penalty, solution))
        self.state = None

    @property
    def _penalty(self) -> float:
        return self._penalties[len(self.summaries)]

    def _line(self, penalty: float, record: Record) -> dict[str, Any]:
        return {**self._facts, "penalty": penalty, **asdict(record)}

    def _write(self, facts: dict[str, Any]) -> None:
        self._file.append(json.dumps(facts))

    def _save(self) -> None:
        assert self.state is not None
        arrays, scalars = self.state.to_arrays()
        if self.weights:
            arrays["weights_done"] = np.stack(self.weights)
        metadata = {
            "penalties": self._penalties,
            "summaries": self.summaries,
            "records": self._past,
            "state": scalars,
        }
        step = len(self._past) + self.state.iterations
        checkpoints.save(self._folder, step, arrays, metadata, keep=self._keep)
        self._saved = time.monotonic()

    def _load(self) -> None:
        checkpoint = checkpoints.load(self._folder)
        if checkpoint is None:
            return
        self.warnings = checkpoint.warnings
        if checkpoint.metadata["penalties"] != self._penalties:
            return
        arrays = dict(checkpoint.arrays)
        self.weights = list(arrays.pop("weights_done", np.empty(0)))
        self.summaries, self._past = list(checkpoint.metadata["summaries"]), list(checkpoint.metadata["records"])
        self.state = SolverState.from_arrays(arrays, checkpoint.metadata["state"])


def _summary(penalty: float, solution: Solution) -> dict[str, Any]:
    return {
        "penalty": penalty,
        "objective": solution.objective,
        "relative_gap": solution.certificate.relative_gap,
        "converged": solution.converged,
        "status": solution.status.value,
        "n_active": solution.n_active,
        "sweeps": solution.sweeps,
        "visits": solution.visits,
        "moves": solution.moves,
        "evaluations": solution.evaluations,
        "wall_seconds": solution.records[-1].seconds if solution.records else 0.0,
    }


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
