"""A penalty path where the Gram may not hold all candidates: it is followed on the first working set, a random draw.

The sums of the fit rows and of the held-out rows are kept apart until the penalty is chosen. The solve at this penalty,
on all rows, starts with the same working set and is over all candidates.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime.stored_arrays import Arrays
from pipeline.solvers.weights import Weights
from pipeline.stages.accumulate_statistics import FIT, HELD_OUT, commit_parts, name_of, statistics_of
from pipeline.stages.out_of_core.kept_columns import nothing_kept
from pipeline.stages.out_of_core.working_set import (
    NOTHING,
    add_columns,
    columns_to_arrays,
    drop,
    latest,
    load,
    round_name,
)
from pipeline.stages.penalised_solves import follow_penalty_path, start_name
from pipeline.stages.run_workspace import Run
from pipeline.stages.workspace import STATISTICS

FOLLOWED = "solutions/path.npz"  # of a path that is done


@dataclass(frozen=True)
class FollowedPath:
    """What a path comes to: the penalty, the points that were tried, the weights of the fit rows there.

    n_candidates: of the draw
    """

    penalty: float
    points: list[dict[str, Any]]
    of_fit: Weights
    n_candidates: int


def follow_path_on_subset(
    run: Run, setting: str, candidates: NDArray[np.int64], drawn: NDArray[np.int64]
) -> FollowedPath:
    """Choose the penalty of a path on the candidates `drawn` (k,), by their positions among all (M,), which are rows.

    Commits the first working set, and the weights from which the solve on it starts.
    """

    def make() -> Arrays:
        members, first = candidates[drawn], round_name(0)
        if latest(run) is None:
            _commit_sums(run, members, first)
        chosen, points = follow_penalty_path(run, setting, members)
        run.commit(start_name(first), {"weights": chosen.weights})
        of_fit = Weights.of_support(chosen.weights, statistics_of(run, name_of(FIT)), intercept=run.intercept)
        how = "chosen" if setting == "auto" else "reached by a path"
        run.log(
            f"penalty {chosen.penalty:.4g} {how} on {len(drawn)} of the {len(candidates)} candidates, "
            "then solved over all"
        )
        facts = json.dumps([asdict(point) for point in points])
        told = {"penalty": np.array(chosen.penalty), "points": np.frombuffer(facts.encode(), np.uint8)}
        return told | vars(of_fit.named(drawn))

    found = run.once(FOLLOWED, make)
    for part in (FIT, HELD_OUT):
        drop(run, part)
    of_fit = Weights(found["columns"], found["weights"], found["intercept"])
    return FollowedPath(float(found["penalty"]), json.loads(found["points"].tobytes()), of_fit, len(drawn))


def _commit_sums(run: Run, members: NDArray[np.int64], name: str) -> None:
    """Commit the sums of fit rows, of held-out rows, and of all as the working set of a name: one pass."""
    with run.timed_as(STATISTICS):
        columns, sums = add_columns(run, name, nothing_kept(), NOTHING, members, (FIT, HELD_OUT))
        arrays = columns_to_arrays(run, columns)
        commit_parts(run, sums.pop(FIT), sums.pop(HELD_OUT), (FIT, HELD_OUT, name), arrays)
    load(run, name)
