"""The schedules of the solver beside celer and skglm, on real problems: what they visit, evaluate, and take.

COMMAND: python jobs/benchmarks/solvers.py --out DIR [--problems paper,default,abalone] [--centers 1000,4000]
         [--penalties 100,1,0.01] [--solvers newton,shrinking,...] [--cap 40] [--data-dir DIR]

Problems: the first class of MNIST with the paper's features (σ² = 4, no intercept) and with the default's, at some
numbers of candidates, and abalone with all its 3000 training rows (σ² = 2.5). Each solver runs in a process of its own
on one BLAS thread (`solver_peers.py` says how each is called), and is ended at about the cap. Counted are seconds,
visits, and gradients evaluated, those of certificates included, until the relative gap is 1e-2, 1e-3, 1e-4 and 1e-6.
The gap is the project's own from each one's weights. Statistics are not counted. Writes DIR/solvers.json.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from child_process import facts_of
from mnist_runs import PAPER, feature_store_of, report_of
from solver_peers import OWN, PEERS, TARGETS

from features.targets import outputs
from pipeline.kernels.gram_statistics import RowBounds, StatisticsSums, largest_terms
from pipeline.kernels.kernel_functions import GaussianKernel
from pipeline.stages.fit_model import draw_rows
from pipeline.train import main as train
from storage.folder_layouts import RunLayout

# Name → the data set with the flags of its features, σ², and whether an intercept is fitted.
PROBLEMS = {
    "paper": (["mnist", "--config", str(PAPER)], 4.0, False),
    "default": (["mnist"], 0.25, True),
    "abalone": (["abalone"], 2.5, True),
}
BLOCK_ROWS, START_SECONDS = 2048, 300.0  # start: imports, reading, just-in-time compilation
COUNTED = ("seconds", "visits", "evaluations")
Facts = dict[str, Any]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=_words, default=list(PROBLEMS))
    parser.add_argument("--centers", type=_words, default=["1000", "4000"])
    parser.add_argument("--penalties", type=_words, default=["100", "1", "0.01"])
    parser.add_argument("--solvers", type=_words, default=[*OWN, *PEERS])
    parser.add_argument("--cap", type=float, default=40.0, help="seconds for each solve")
    parser.add_argument("--data-dir")
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
    code = train(words + (["--data-dir", asked.data_dir] if asked.data_dir else []))
    assert code == 0, f"the run ended with exit code {code}"
    layout = RunLayout(folder)
    store, report = feature_store_of(layout), report_of(layout)
    rows = "train", 0, report["n_train"]
    return store.read(*rows), outputs(store.targets(*rows), report["task"], 10)[:, :1]


def prepare(folder: Path, name: str, X: np.ndarray, Y: np.ndarray, n_centers: int) -> None:
    """Write what `solver_peers.py` reads."""
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
    script = Path(__file__).with_name("solver_peers.py")
    command = [sys.executable, str(script), str(folder), solver, penalty, str(cap)]
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


def line_of(row: Facts) -> str:
    """Return a row as a line: seconds, visits and gradients at each target."""
    start = f"{row['problem']:<8}{row['n_centers']:>6}{row['penalty']:>7} {row['solver']:<12}"
    cells = []
    for counted in row["at"].values():
        numbers = [f"{counted[name]:.3g}" for name in COUNTED if name in counted] if counted else ["-"]
        cells.append(f"{' '.join(numbers):>26}")
    return f"{start}{''.join(cells)}{row['n_active'] or '-':>6}  {row['ended']}"


def main() -> None:
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
