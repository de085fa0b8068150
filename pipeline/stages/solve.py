"""Stage 4: the weights of the model, from the statistics alone: penalty path, solves, refit.

Where a penalty path is asked for, it comes first: solved on the fit rows and scored on the held-out ones. Then the
solves run on all rows, and the centers they select may be refitted by least squares.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pipeline.errors import InvalidDataError
from pipeline.solvers.refit import Refit, refit
from pipeline.stages import group_solve, path, statistics
from pipeline.stages.run import Run
from storage.commit import read_arrays, write_arrays
from storage.layout import RunLayout
from storage.markers import read_markers, write_marker

STAGE = group_solve.STAGE
FINAL = "final"


@dataclass(frozen=True)
class FinalWeights:
    """The weights the model is made of, on its `active` candidates.

    active (a,) i8; weights (a, T), intercept (T,) f8; penalised: the same before a refit (equal without one).
    """

    active: NDArray[np.int64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    penalised_weights: NDArray[np.float64]
    penalised_intercept: NDArray[np.float64]


def run(run: Run) -> None:
    """Find the weights and commit them, with a summary of every solve.

    Raises InvalidDataError for statistics that no solver may start from, CorruptDataError for damaged ones.
    """
    with run.stage(STAGE) as cost:
        if FINAL in run.done(run.layout.markers(STAGE)):
            return
        cost.items = 0
        solver = run.config.solver
        points: list[path.PathPoint] = []
        penalty = solver.penalty
        if isinstance(penalty, str):
            penalty, points = path.run(run, penalty)
        solves = group_solve.solve_all(run, "all", [penalty])
        final, refitted = _final(run)
        write_arrays(run.layout.solution(f"{FINAL}.npz"), vars(final))
        summary = {
            "penalty": penalty,
            "solves": [_summary(solve) for solve in solves],
            "path": [asdict(point) for point in points] or None,
            "ridge": refitted.ridge if refitted else None,
            "ridges": [list(pair) for pair in refitted.hold_out_errors] if refitted else None,
        }
        write_marker(run.layout.markers(STAGE), FINAL, summary)


def summary(layout: RunLayout) -> dict[str, Any]:
    """Return the committed summary: penalty, solves, path, ridge."""
    return dict(read_markers(layout.markers(STAGE))[FINAL])


def final_weights(layout: RunLayout) -> FinalWeights:
    """Return the committed weights."""
    return FinalWeights(**read_arrays(layout.solution(f"{FINAL}.npz")))


def _final(run: Run) -> tuple[FinalWeights, Refit | None]:
    weights = group_solve.weights(run, "all")[-1]
    active = np.flatnonzero(weights.any(axis=1))
    weights = weights[active]
    solver, everything = run.config.solver, statistics.load(run.layout, "all").cut(active)
    intercept = everything.intercept(weights) if solver.intercept else np.zeros(run.shape.n_outputs)
    if solver.refit == "none" or not len(active):
        return FinalWeights(active, weights, intercept, weights, intercept), None
    fit, hold_out = (statistics.load(run.layout, part).cut(active) for part in ("fit", "hold_out"))
    try:
        found = refit(fit, hold_out, everything, intercept=solver.intercept)
    except LinAlgError as error:
        raise InvalidDataError(f"refit: {error}; use a larger --penalty, or --refit none") from None
    return FinalWeights(active, found.weights, found.intercept, weights, intercept), found


def _summary(solve: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a solve at its one penalty, flat."""
    return {"outputs": solve["outputs"], **solve["points"][-1], "wall_seconds": solve["wall_seconds"]}
