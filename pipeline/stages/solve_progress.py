"""The progress of one solve along its penalties: what is done, and the state of the solver at the one under way."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime import stopping
from pipeline.solvers.solve import Solution
from pipeline.solvers.state import Record, SolverState
from pipeline.stages.workspace import Unfinished

REACHED = 1e-3  # relative gap that a solve to rounding has to reach
EXHAUSTED = 20  # iterations without half the gap, after which rounding holds it


class SolveProgress:
    """Takes a solve up from its last checkpoint, makes others, and hands on the records of its iterations.

    Attributes: `weights` (M, T) and `summaries` of the penalties done; `state` of the one under way, None at its begin.

    Parameters
    ----------
    unfinished : where checkpoints and records go
    penalties : what is solved at, in turn; a checkpoint of others is not gone on from
    facts : written with every record
    """

    def __init__(self, unfinished: Unfinished, penalties: Sequence[float], facts: dict[str, Any]) -> None:
        self._unfinished, self._penalties, self._facts = unfinished, list(penalties), facts
        self.weights: list[NDArray[np.float64]] = []
        self.summaries: list[dict[str, Any]] = []
        self.state: SolverState | None = None
        self._past: list[dict[str, Any]] = []  # the records of the penalties done
        self._load()
        for line in self._past:
            unfinished.record(line)
        if self.state is not None:
            for record in self.state.records:
                unfinished.record(self._line(self._penalty, record))

    def on_record(self, penalty: float, record: Record, state: SolverState) -> None:
        """Hand on a record; save the state where a checkpoint is due. Raises StoppedError, after saving, on request."""
        self.state = state
        self._unfinished.record(self._line(penalty, record))
        if self._unfinished.is_due():
            self._save()
        stopping.check()

    def on_solution(self, solution: Solution) -> None:
        """Count a penalty as done."""
        penalty = self._penalty
        self._past += [self._line(penalty, record) for record in solution.state.records]
        self.weights.append(solution.weights)
        self.summaries.append(_summary(penalty, solution))
        self.state = None

    def is_exhausted(self) -> bool:
        """Tell whether the gap of the solve under way has stopped falling: rounding holds it (see `EXHAUSTED`)."""
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
        metadata = {
            "penalties": self._penalties,
            "summaries": self.summaries,
            "records": self._past,
            "state": scalars,
        }
        step = len(self._past) + self.state.iterations
        self._unfinished.save(step, arrays, metadata)

    def _load(self) -> None:
        checkpoint = self._unfinished.load()
        if checkpoint is None or checkpoint.metadata["penalties"] != self._penalties:
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
        "sweeps": solution.state.iterations,
        "visits": solution.state.visits,
        "moves": solution.state.moves,
        "evaluations": solution.state.evaluations,
        "wall_seconds": solution.state.records[-1].seconds if solution.state.records else 0.0,
    }
