"""The schedules of the solver beside celer and skglm, on real problems: what they visit, evaluate, and take.

COMMAND: python jobs/benchmarks/solvers.py --out DIR [--problems paper,default,abalone] [--centers 1000,4000]
         [--penalties 100,1,0.01] [--solvers newton,shrinking,...] [--cap 40]

Problems: the first class of MNIST with the paper's features (σ² = 4, no intercept) and with the default's, at some
numbers of candidates, and abalone with all its 3000 training rows (σ² = 2.5). Each solver runs in a process of its own
on one BLAS thread, and is ended at about the cap. Counted are seconds, visits, and gradients evaluated, those of
certificates included, until the relative gap is 1e-2, 1e-3, 1e-4 and 1e-6. The gap is the project's own from each
one's weights. Statistics are not counted. Writes DIR/solvers.json.

celer and skglm do not stop on our gap: each runs down a ladder of its own tolerances and limits, anew at each, until
our gap is at most 1e-6, or the cap has passed. They get R and z instead of C and y, with RᵀR = CᵀC: M rows instead of
n, the same Lasso (‖y - C w‖² and ‖z - R w‖² differ by a constant), which is kinder to them than anything their users
have at hand.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys((f"{name}_NUM_THREADS" for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from child_process import facts_of
from mnist_runs import PAPER, report_of, rows_of

from features.targets import outputs
from pipeline.fit.fit_model import draw_rows
from pipeline.kernels.gram_statistics import RowBounds, StatisticsSums, largest_terms
from pipeline.kernels.kernel_functions import GaussianKernel
from pipeline.solvers import solve as solving
from pipeline.solvers.problem import Problem, certify
from pipeline.solvers.solve import Record, SolverOptions, SolverState, solve
from pipeline.train import main as train
from storage.folder_layouts import RunLayout

# Name → the data set with the flags of its features, σ², and whether an intercept is fitted.
PROBLEMS = {
    "paper": (["mnist", "--config", str(PAPER)], 4.0, False),
    "default": (["mnist"], 0.25, True),
    "abalone": (["abalone"], 2.5, True),
}
BLOCK_ROWS, START_SECONDS = 2048, 300.0  # A start imports, reads and compiles.
TARGETS = (1e-2, 1e-3, 1e-4, 1e-6)
ALL_VISITED = "all visited"  # This is the schedule shrinking, with nothing left out.
OWN = ("newton", "shrinking", ALL_VISITED, "uniform", "paper")
PEERS = ("celer", "skglm")
COUNTED = ("seconds", "visits", "evaluations")
Facts = dict[str, Any]
Point = dict[str, Any]  # seconds of a solve from a cold start, relative gap, active candidates, and what is counted


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=_words, default=list(PROBLEMS))
    parser.add_argument("--centers", type=_words, default=["1000", "4000"])
    parser.add_argument("--penalties", type=_words, default=["100", "1", "0.01"])
    parser.add_argument("--solvers", type=_words, default=[*OWN, *PEERS])
    parser.add_argument("--cap", type=float, default=40.0, help="seconds for each solve")
    found = parser.parse_args()
    for name, known in (("problems", PROBLEMS), ("solvers", (*OWN, *PEERS))):
        if unknown := set(getattr(found, name)) - set(known):
            parser.error(f"--{name}: unknown {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return found


def _words(text: str) -> list[str]:
    return text.split(",")


def training_rows(asked: argparse.Namespace, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the training features (n, d) f4 of a problem and its targets (n, 1) f8, those of the first class."""
    folder = asked.out / f"features-of-{name}"
    words = [*PROBLEMS[name][0], "--sigma2", "1", "--centers", "10", "--penalty", "100", "--refit", "none", "-q"]
    words += ["--features-dir", str(asked.out / "features"), "--run-dir", str(folder), "--resume", "auto"]
    code = train(words)
    assert code == 0, f"the run ended with exit code {code}"
    layout = RunLayout(folder)
    rows = rows_of(layout)
    return rows.X[:], outputs(rows.y[:], report_of(layout)["task"], 10)[:, :1]


def prepare(folder: Path, name: str, X: np.ndarray, Y: np.ndarray, n_centers: int) -> None:
    """Write what `solve_one` reads."""
    _, sigma2, intercept = PROBLEMS[name]
    kernel = GaussianKernel(X[draw_rows(np.arange(len(X)), n_centers, 0)], sigma2)
    sums = StatisticsSums(n_centers, RowBounds.of(largest_terms(Y)), BLOCK_ROWS, -(-len(X) // BLOCK_ROWS))
    for start in range(0, len(X), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        sums.add(kernel.block(X[rows], out_dtype=np.float64), Y[rows])
    found = sums.statistics().centred() if intercept else sums.statistics()
    values, vectors = np.linalg.eigh(found.gram)
    kept = values > 1e-15 * values[-1]
    arrays = {"gram": found.gram, "kty": found.kty[:, 0].copy(), "yty": found.yty[0]}
    arrays["root"] = np.asfortranarray((vectors[:, kept] * np.sqrt(values[kept])).T)
    arrays["root_targets"] = (vectors[:, kept].T @ found.kty[:, 0]) / np.sqrt(values[kept])
    for part, array in arrays.items():
        np.save(folder / f"{part}.npy", array)


def measured(folder: Path, solver: str, penalty: str, cap: float) -> Facts:
    """Return how a solver ended (done, capped, or the error it died of), and what it had counted at each target."""
    command = [sys.executable, __file__, "--solve", str(folder), solver, penalty, str(cap)]
    # Ours stop by themselves, and print their points at the end.
    patience = 2 * cap + 60 if solver in OWN else cap / 2
    printed, ended = facts_of(command, start_seconds=START_SECONDS, patience_seconds=patience)
    points, at = [point for point in printed if "seconds" in point], dict[str, Facts | None]()
    for target in TARGETS:
        within = [point for point in points if point["relative_gap"] <= target]
        best = min(within, key=lambda point: point["seconds"], default=None)
        at[f"{target:g}"] = best and {name: best[name] for name in COUNTED if name in best}
    last = points[-1] if points else {"relative_gap": None, "n_active": None}
    return {"ended": ended, "relative_gap": last["relative_gap"], "n_active": last["n_active"], "at": at}


def own_points(problem: Problem, name: str, cap_seconds: float) -> Iterator[Point]:
    """Yield a point for each certificate of a schedule of ours, which stops at the cap on request."""
    points, started, visits = list[Point](), time.perf_counter(), 0
    if name == ALL_VISITED:
        solving.LEAST_VIOLATION = 0.0
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
        seconds, gap = time.perf_counter() - started, certify(problem, weights).relative_gap
        yield {"seconds": seconds, "relative_gap": gap, "n_active": int(np.count_nonzero(weights))}
        if gap <= TARGETS[-1] or time.perf_counter() - begun > cap_seconds:
            return


def solve_one(folder: Path, name: str, penalty: float, cap: float) -> None:
    """Print the points of a solver on what `prepare` wrote: first {"ready": true}, once nothing is left to compile."""
    warnings.simplefilter("ignore")  # convergence is judged by the gap
    gram, kty, yty, R, z = (np.load(folder / f"{part}.npy") for part in ("gram", "kty", "yty", "root", "root_targets"))
    problem = Problem(gram, kty, float(yty), penalty)
    points = own_points(problem, name, cap) if name in OWN else peer_points(problem, name, R, z, cap)
    for point in points:
        print(json.dumps(point), flush=True)


def line_of(row: Facts) -> str:
    """Return a row as a line: seconds, visits and gradients at each target."""
    start = f"{row['problem']:<8}{row['n_centers']:>6}{row['penalty']:>7} {row['solver']:<12}"
    cells = []
    for counted in row["at"].values():
        numbers = [f"{counted[name]:.3g}" for name in COUNTED if name in counted] if counted else ["-"]
        cells.append(f"{' '.join(numbers):>26}")
    return f"{start}{''.join(cells)}{row['n_active'] or '-':>6}  {row['ended']}"


def main() -> None:
    if sys.argv[1:2] == ["--solve"]:
        folder, solver, penalty, cap = sys.argv[2:]
        solve_one(Path(folder), solver, float(penalty), float(cap))
        return
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = list[Facts]()
    print(f"{'problem':<8}{'M':>6}{'λν':>7} {'solver':<12}", *(f"{f'to {target:g}':>25}" for target in TARGETS))
    for name in asked.problems:
        X, Y = training_rows(asked, name)
        for n_centers in sorted({min(int(size), len(X)) for size in asked.centers} if name != "abalone" else {len(X)}):
            with tempfile.TemporaryDirectory(dir=asked.out, prefix="statistics-") as place:
                prepare(Path(place), name, X, Y, n_centers)
                for penalty in asked.penalties:
                    for solver in asked.solvers:
                        facts = {"problem": name, "n_centers": n_centers, "penalty": penalty, "solver": solver}
                        rows.append(facts | measured(Path(place), solver, penalty, asked.cap))
                        print(line_of(rows[-1]), flush=True)
                        # After each: a long run that is broken off leaves what it has.
                        (asked.out / "solvers.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
