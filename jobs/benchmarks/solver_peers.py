"""One solver on one problem in a process of its own; `solvers.py` starts it, and ends it at the cap.

COMMAND: python jobs/benchmarks/solver_peers.py FOLDER SOLVER CLASS PENALTY CAP_SECONDS

FOLDER holds what `solvers.py` prepared: gram, kty, yty, root (R with RᵀR = gram) and root_targets (Rᵀ z = kty, one
column a class), and, where a solver wants them, the columns C, float64 and Fortran-ordered. Prints JSON lines: first
{"ready": true}, once imports, reading and just-in-time compilation are over, then one point each: seconds from a cold
start, relative gap, support, and the tolerance asked for.

No peer stops on our gap, so each runs down a ladder of its own tolerances and limits, anew at each, until our gap is
at most 1e-4. `-root` gives the solver R and z instead of C and y: M rows instead of n, the same Lasso (‖y - C w‖² and
‖z - R w‖² differ by a constant), which is kinder to it than anything its users have at hand.
"""

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

os.environ.update(dict.fromkeys((f"{name}_NUM_THREADS" for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from pipeline.solvers.duality_gap import certify_problem
from pipeline.solvers.problem import Problem
from pipeline.solvers.solve import solve
from pipeline.solvers.state import SolverOptions

TARGETS = (1e-3, 1e-4)
RUNGS = 20
REPEATS, REPEAT_BELOW_SECONDS = 3, 3.0  # short solves are repeated, and the median counts
Point = dict[str, Any]
Fit = Callable[["Rung"], np.ndarray]  # → weights (M,)


@dataclass(frozen=True)
class Rung:
    """What one fit may cost: its tolerance, and limits on iterations that grow √10 times a rung in all.

    Without the limits, a solver whose loosest tolerance is out of reach would have no point at all.
    """

    index: int

    @property
    def tolerance(self) -> float:
        """0.1, 0.0316, 0.01, …"""
        return 10.0 ** -(1 + self.index / 2)

    @property
    def max_iter(self) -> int:
        """Working sets, from 5."""
        return math.ceil(5 * 10 ** (self.index / 4))

    @property
    def max_epochs(self) -> int:
        """Epochs of coordinate descent in each, from 20."""
        return math.ceil(20 * 10 ** (self.index / 4))


@dataclass(frozen=True)
class Task:
    """The problem of one class and penalty, and the data in the forms that solvers take."""

    folder: Path
    output: int
    penalty: float
    cap_seconds: float

    def array(self, name: str) -> np.ndarray:
        """Return a prepared array, read into memory; the Fortran order is kept."""
        return np.load(self.folder / f"{name}.npy")

    @cached_property
    def problem(self) -> Problem:
        """The problem as the project's solver takes it."""
        kty = np.ascontiguousarray(self.array("kty")[:, self.output])
        return Problem(self.array("gram"), kty, float(self.array("yty")[self.output]), self.penalty)

    def data(self, form: str) -> tuple[np.ndarray, np.ndarray, float]:
        """Return design, targets and alpha = τ / rows of the Lasso; form is columns or root."""
        X, y = ("columns", "targets") if form == "columns" else ("root", "root_targets")
        design, targets = self.array(X), np.ascontiguousarray(self.array(y)[:, self.output])
        return design, targets, self.problem.tau / len(targets)


def emit(facts: Point) -> None:
    print(json.dumps(facts), flush=True)


def point(task: Task, weights: np.ndarray, seconds: float, tolerance: float | None) -> Point:
    """Return what is reported of weights (M,): the gap is the project's, from the Gram."""
    gap = certify_problem(task.problem, np.ascontiguousarray(weights, np.float64)).relative_gap
    support = int(np.count_nonzero(weights))
    return {"seconds": seconds, "relative_gap": gap, "n_active": support, "tolerance": tolerance}


def own_points(task: Task, schedule: str) -> Iterator[Point]:
    """Yield a point for each iteration of the project's solver, of one solve for each gap asked for.

    The cap is kept here: the solver stops on request.
    """

    def run(tolerance: float) -> list[tuple[float, np.ndarray]]:
        kept: list[tuple[float, np.ndarray]] = []
        options = SolverOptions(tolerance=tolerance, schedule=schedule, max_sweeps=10**6)
        started = time.perf_counter()
        solution = solve(
            task.problem,
            options,
            np.random.default_rng(0),
            on_record=lambda record, state: kept.append((record.seconds, state.weights)),
            should_stop=lambda: time.perf_counter() - started > task.cap_seconds,
        )
        return [*kept[:-1], (time.perf_counter() - started, solution.weights)]

    tiny = Problem(np.eye(3), np.ones(3), 9.0, 0.1)  # compiles, or reads the compiled code
    solve(tiny, SolverOptions(schedule=schedule), np.random.default_rng(0))
    certify_problem(task.problem, np.ones_like(task.problem.kty))
    yield {"ready": True}
    for tolerance in TARGETS if schedule == "shrinking" else TARGETS[-1:]:
        runs = [run(tolerance)]
        while len(runs) < REPEATS and runs[-1][-1][0] < REPEAT_BELOW_SECONDS:
            runs.append(run(tolerance))
        for seconds, weights in sorted(runs, key=lambda kept: kept[-1][0])[len(runs) // 2]:
            yield point(task, weights, seconds, tolerance)


def ladder_points(task: Task, fit: Fit, rungs: int = RUNGS) -> Iterator[Point]:
    """Yield a point for each rung, the fit cold each time, down to the smallest gap asked for."""
    for rung in map(Rung, range(rungs)):
        runs: list[float] = []
        while not runs or (len(runs) < REPEATS and runs[-1] < REPEAT_BELOW_SECONDS):
            started = time.perf_counter()
            weights = fit(rung)
            runs.append(time.perf_counter() - started)
        found = point(task, weights, median(runs), rung.tolerance if rungs > 1 else None)
        yield found
        if found["relative_gap"] <= TARGETS[-1]:
            return


def lars(task: Task, _: str) -> Iterator[Point]:
    """Homotopy on the Gram: it has no tolerance, and one point, at its end."""
    from sklearn.linear_model import lars_path_gram

    gram, kty = np.asfortranarray(task.problem.gram), task.problem.kty
    n = len(task.array("targets"))

    def fit(_: Rung) -> np.ndarray:
        found = lars_path_gram(
            kty.copy(), gram, n_samples=n, method="lasso", alpha_min=task.problem.tau / n, max_iter=20_000,
            copy_Gram=True, return_path=False,
        )  # fmt: skip
        return found[2]

    yield {"ready": True}
    yield from ladder_points(task, fit, rungs=1)


def lasso(task: Task, form: str) -> Iterator[Point]:
    """scikit-learn's coordinate descent on the Gram."""
    from sklearn.linear_model import Lasso

    X, y, alpha = task.data(form)
    gram = task.problem.gram

    def fit(rung: Rung) -> np.ndarray:
        sweeps = 10 * rung.max_iter * rung.max_epochs
        model = Lasso(
            alpha, fit_intercept=False, copy_X=False, precompute=gram, tol=rung.tolerance, max_iter=sweeps
        )  # fmt: skip
        return model.fit(X, y).coef_

    yield {"ready": True}
    yield from ladder_points(task, fit)


def celer(task: Task, form: str) -> Iterator[Point]:
    from celer import Lasso

    X, y, alpha = task.data(form)

    def fit(rung: Rung) -> np.ndarray:
        model = Lasso(
            alpha, fit_intercept=False, tol=rung.tolerance, max_iter=rung.max_iter, max_epochs=rung.max_epochs,
            p0=10, prune=True,
        )  # fmt: skip
        return model.fit(X, y).coef_

    yield {"ready": True}
    yield from ladder_points(task, fit)


def celer_path(task: Task, form: str) -> Iterator[Point]:
    """celer's favoured use: ten penalties down to ours, each started from the last."""
    from celer import celer_path as path

    X, y, alpha = task.data(form)
    largest = float(np.abs(task.problem.kty).max()) / len(y)

    def fit(rung: Rung) -> np.ndarray:
        alphas = np.geomspace(largest, alpha, 10)
        limits = {"tol": rung.tolerance, "max_iter": rung.max_iter, "max_epochs": rung.max_epochs}
        return path(X, y, pb="lasso", alphas=alphas, prune=True, **limits)[1][:, -1]

    yield {"ready": True}
    yield from ladder_points(task, fit)


def skglm(task: Task, form: str) -> Iterator[Point]:
    from skglm import GeneralizedLinearEstimator
    from skglm.datafits import Quadratic
    from skglm.penalties import L1
    from skglm.solvers import AndersonCD

    def model(alpha: float, rung: Rung) -> Any:  # its tolerance is a violation of the optimality conditions
        anderson = AndersonCD(rung.max_iter, rung.max_epochs, tol=rung.tolerance * alpha, fit_intercept=False)
        return GeneralizedLinearEstimator(Quadratic(), L1(alpha), anderson)

    X, y, alpha = task.data(form)
    small = np.random.default_rng(0).standard_normal((50, 20))
    model(0.01, Rung(4)).fit(np.asfortranarray(small), small[:, 0].copy())  # compiles
    yield {"ready": True}
    yield from ladder_points(task, lambda rung: model(alpha, rung).fit(X, y).coef_)


# Name → (function, what it is given). Those on `columns` need C itself: n·M·8 bytes.
SOLVERS: dict[str, tuple[Callable[[Task, str], Iterator[Point]], str]] = {
    "ours": (own_points, "shrinking"),
    "uniform": (own_points, "uniform"),
    "lars": (lars, "gram"),
    "lasso-gram": (lasso, "root"),
    "celer": (celer, "columns"),
    "celer-path": (celer_path, "columns"),
    "celer-root": (celer, "root"),
    "skglm": (skglm, "columns"),
    "skglm-root": (skglm, "root"),
}


def main(arguments: list[str]) -> None:
    folder, name, output, penalty, cap = arguments
    warnings.simplefilter("ignore")  # convergence is judged by the gap
    solver, form = SOLVERS[name]
    for facts in solver(Task(Path(folder), int(output), float(penalty), float(cap)), form):
        emit(facts)


if __name__ == "__main__":
    main(sys.argv[1:])
