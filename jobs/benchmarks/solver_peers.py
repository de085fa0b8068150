"""One solver on one problem in a process of its own; `solvers.py` starts it, and ends it at the cap.

COMMAND: python jobs/benchmarks/solver_peers.py FOLDER SOLVER PENALTY CAP_SECONDS

FOLDER holds what `solvers.py` prepared: gram, kty, yty, and R with RᵀR = gram and z with Rᵀz = kty. Prints JSON lines:
first {"ready": true}, once imports, reading and just-in-time compilation are over, then one point each: seconds from a
cold start, relative gap, active candidates, and of our own schedules visits and scores evaluated.

celer and skglm do not stop on our gap: each runs down a ladder of its own tolerances and limits, anew at each, until
our gap is at most 1e-6, or the cap has passed. They get R and z instead of C and y: M rows instead of n, the same
Lasso (‖y - C w‖² and ‖z - R w‖² differ by a constant), which is kinder to them than anything their users have at hand.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys((f"{name}_NUM_THREADS" for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from pipeline.solvers import shrinking
from pipeline.solvers.duality_gap import certify_problem
from pipeline.solvers.problem import Problem
from pipeline.solvers.solve import solve
from pipeline.solvers.state import Record, SolverOptions, SolverState

TARGETS = (1e-2, 1e-3, 1e-4, 1e-6)
ALL_VISITED = "all visited"  # the schedule shrinking, with nothing left out
OWN = ("newton", "shrinking", ALL_VISITED, "uniform", "paper")
PEERS = ("celer", "skglm")
Point = dict[str, Any]


def own_points(problem: Problem, name: str, cap_seconds: float) -> Iterator[Point]:
    """Yield a point for each certificate of a schedule of ours, which stops at the cap on request."""
    points, started, visits = list[Point](), time.perf_counter(), 0
    if name == ALL_VISITED:
        shrinking.LEAST_VIOLATION = 0.0
    schedule = "shrinking" if name == ALL_VISITED else name

    def keep(record: Record, _: SolverState) -> None:
        nonlocal visits
        visits += record.visits
        if record.relative_gap is not None:
            seconds = time.perf_counter() - started
            facts = {"seconds": seconds, "relative_gap": record.relative_gap, "n_active": record.n_active}
            points.append(facts | {"visits": visits, "evaluations": record.evaluations})

    solve(Problem(np.eye(3), np.ones(3), 9.0, 0.1), SolverOptions(schedule=schedule), np.random.default_rng(0))
    yield {"ready": True}
    started = time.perf_counter()
    options = SolverOptions(tolerance=TARGETS[-1], schedule=schedule, max_sweeps=10**6)
    stop = {"should_stop": lambda: time.perf_counter() - started > cap_seconds}
    solve(problem, options, np.random.default_rng(0), on_record=keep, **stop)
    yield from points


def peer_points(problem: Problem, name: str, R: np.ndarray, z: np.ndarray, cap_seconds: float) -> Iterator[Point]:
    """Yield a point for each rung, the fit cold each time; limits grow √10 times a rung with the tolerance.

    Without limits, a solver whose loosest tolerance is out of reach would have no point at all.
    """
    alpha = problem.tau / len(z)

    def fit(rung: int, R: np.ndarray, z: np.ndarray, alpha: float) -> np.ndarray:
        tolerance = 10.0 ** -(1 + rung / 2)
        max_iter, max_epochs = (int(np.ceil(first * 10 ** (rung / 4))) for first in (5, 20))
        if name == "celer":
            from celer import Lasso

            limits = {"max_iter": max_iter, "max_epochs": max_epochs}
            found = Lasso(alpha, fit_intercept=False, tol=tolerance, p0=10, prune=True, **limits).fit(R, z)
        else:
            from skglm import GeneralizedLinearEstimator
            from skglm.datafits import Quadratic
            from skglm.penalties import L1
            from skglm.solvers import AndersonCD

            # Its tolerance is a violation of the optimality conditions.
            anderson = AndersonCD(max_iter, max_epochs, tol=tolerance * alpha, fit_intercept=False)
            found = GeneralizedLinearEstimator(Quadratic(), L1(alpha), anderson).fit(R, z)
        return np.ascontiguousarray(found.coef_, np.float64)

    small = np.random.default_rng(0).standard_normal((50, 20))
    fit(4, np.asfortranarray(small), small[:, 0].copy(), 0.01)  # compiles
    yield {"ready": True}
    begun = time.perf_counter()
    for rung in count():
        started = time.perf_counter()
        weights = fit(rung, R, z, alpha)
        seconds, gap = time.perf_counter() - started, certify_problem(problem, weights).relative_gap
        yield {"seconds": seconds, "relative_gap": gap, "n_active": int(np.count_nonzero(weights))}
        if gap <= TARGETS[-1] or time.perf_counter() - begun > cap_seconds:
            return


def main(arguments: list[str]) -> None:
    folder, name, penalty, cap = Path(arguments[0]), arguments[1], float(arguments[2]), float(arguments[3])
    warnings.simplefilter("ignore")  # convergence is judged by the gap
    gram, kty, yty, R, z = (np.load(folder / f"{part}.npy") for part in ("gram", "kty", "yty", "root", "root_targets"))
    problem = Problem(gram, kty, float(yty), penalty)
    points = own_points(problem, name, cap) if name in OWN else peer_points(problem, name, R, z, cap)
    for point in points:
        print(json.dumps(point), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
