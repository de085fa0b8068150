"""The penalties of a path that a working set was solved at, and the records of its rounds, as they are committed."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.out_of_core.working_set import PATH, ROUND, set_name
from pipeline.stages.penalty_path import PathPoint
from pipeline.stages.run_state import Run
from pipeline.stages.workspace import SOLVE
from storage.errors import ANEW, CorruptDataError
from storage.records import write_marker

MARKERS = "path-rounds"  # one for each round, with its record


@dataclass(frozen=True)
class SolvedPoint:
    """One penalty: what is described of it, and its weights on the fit rows, on the candidates that they are of.

    described.certified: the gap is over all candidates and small enough, so that it is not solved again; names (a,) i8
    rising, weights (a, T), intercept (T,).
    """

    described: PathPoint
    names: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]

    @staticmethod
    def of(
        described: PathPoint, table: NDArray[np.float64], members: NDArray[np.int64], intercept: NDArray[np.float64]
    ) -> "SolvedPoint":
        """Return the point of weights (members, T) on a working set."""
        columns = np.flatnonzero(table.any(axis=1))
        columns = columns[np.argsort(members[columns])]
        return SolvedPoint(described, members[columns], table[columns], intercept)

    def on(self, members: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights on the columns of a working set, (members, T); those of other candidates are left out."""
        table = np.zeros((len(members), self.weights.shape[1]))
        if len(self.names):
            places = np.minimum(np.searchsorted(self.names, members), len(self.names) - 1)
            known = self.names[places] == members
            table[known] = self.weights[places[known]]
        return table


@dataclass(frozen=True)
class PathRound:
    """What one round did: the penalty it would choose, which ones were scored, and their largest gaps over all.

    The other numbers are of candidates, as in a pass of the solve; kernel entries with those of the statistics.
    """

    path_round: int
    working_set: int
    penalty: float
    penalties: tuple[float, ...]
    relative_gaps: tuple[float, ...]
    violators: int
    admitted: int
    dropped: int
    kernel_entries: int


def save_points(run: Run, number: int, points: list[SolvedPoint]) -> None:
    """Commit the points of a round."""
    arrays: dict[str, NDArray[Any]] = {}
    for place, point in enumerate(points):
        values = {"names": point.names, "weights": point.weights, "intercept": point.intercept}
        arrays |= {f"{name}-{place}": value for name, value in values.items()}
    described = json.dumps([asdict(point.described) for point in points])
    arrays["described"] = np.frombuffer(described.encode(), np.uint8)
    run.commit(_points_name(number), arrays)


def _points_name(number: int) -> str:
    return f"solutions/{set_name(PATH, number)}.npz"


def load_points(run: Run, number: int) -> list[SolvedPoint]:
    """Return the points of a round. Raises CorruptDataError where they are damaged or missing."""
    arrays = run.stored(_points_name(number)).read()
    points = []
    for place, one in enumerate(json.loads(arrays["described"].tobytes())):
        described = PathPoint(**{**one, "n_active": tuple(one["n_active"])})
        values = (arrays[f"{name}-{place}"] for name in ("names", "weights", "intercept"))
        points.append(SolvedPoint(described, *values))
    return points


def save_round(run: Run, record: PathRound) -> None:
    """Commit and tell what a round did."""
    write_marker(run.layout.markers(MARKERS), set_name(ROUND, record.path_round), asdict(record))
    run.events.metric(stage=SOLVE, **asdict(record))
    gap = f"gap {max(record.relative_gaps):.1e} over all candidates at " if record.relative_gaps else "no gap of "
    run.events.say(
        f"path, round {record.path_round}: penalty {record.penalty:.4g}; {gap}{len(record.penalties)} penalties; "
        f"{record.working_set} in the working set, {record.violators} violators, {record.admitted} admitted, "
        f"{record.dropped} dropped; {record.kernel_entries:.3g} kernel entries"
    )


def earlier_rounds(run: Run, count: int) -> list[PathRound]:
    """Return the records of the first rounds. Raises CorruptDataError where one is damaged or missing."""
    records = (_marker(run, set_name(ROUND, number)) for number in range(count))
    lists = ("penalties", "relative_gaps")
    return [PathRound(**{**record, **{name: tuple(record[name]) for name in lists}}) for record in records]


def _marker(run: Run, name: str) -> dict[str, Any]:
    folder = run.layout.markers(MARKERS)
    done = run.done(folder)
    if name not in done:
        raise CorruptDataError(f"{folder}: the marker {name} is damaged or missing; {ANEW}", file=str(folder))
    return dict(done[name])
