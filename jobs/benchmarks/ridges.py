"""The ridge of least squares on weights, ρ ‖w‖², beside one in the norm of the kernel's space, ρ wᵀ k(P, P) w.

COMMAND: python jobs/benchmarks/ridges.py --out DIR [--datasets mnist,mnist-4,usps,abalone,synthetic] [--draws 2]
         [--rows 15000] [--pool 4000] [--sizes 300,1000,3000] [--data-dir DIR]

Training rows alone: `--rows` of them (or three quarters) are fitted on, a tenth of these held out to choose ρ, and
the errors printed are those of the others (10 000 at most), which no choice has seen. Centers are random, or chosen
greedily on the fit rows from a pool of candidates. Ridges are half a decade apart, as fractions of the mean diagonal
of the Gram, and end a decade and a half beyond the best. Writes DIR/ridges.json.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from mnist_runs import BLOCK_ROWS, HOLD_OUT, PAPER, read_part, report_of
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from features.targets import labels_from_decision, outputs
from pipeline.kernels.gram_statistics import GramStatistics, RowBounds, StatisticsSums, largest_terms
from pipeline.kernels.kernel_forms import ColumnGenerator
from pipeline.solvers.forward_backward_selection import select
from pipeline.train import main as train
from storage.folder_layouts import RunLayout

# Data set → the flags of its features and kernel.
SETTINGS = {
    "mnist": ["mnist", "--config", str(PAPER), "--sigma2", "2"],
    "mnist-4": ["mnist", "--config", str(PAPER), "--sigma2", "4"],
    "usps": ["usps", "--features", "raw", "--sigma2", "64"],
    "abalone": ["abalone"],
    "synthetic": ["synthetic", "--features", "sphog", "--set", "data.n_train=25000", "--sigma2", "2"],
}
UNSEEN = 10_000
LEAST, MOST = -13.0, 6.0  # powers of ten
BEYOND = 3  # ridges on either side of the best


@dataclass(frozen=True)
class Parts:
    """Columns and statistics of the candidates of one draw: targets of the rows that no choice has seen (n, T)."""

    gram_of_points: NDArray[np.float64]
    fit: GramStatistics
    held_out: GramStatistics
    unseen: GramStatistics
    columns: NDArray[np.float32]
    targets: NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One fit: the ridge that the held-out rows prefer, as a fraction, and the errors on unseen rows."""

    dataset: str
    draw: int
    centers: str
    size: int
    norm: str
    fraction: float
    squared: float
    error_percent: float


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=list(SETTINGS))
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--pool", type=int, default=4000)
    parser.add_argument("--sizes", type=lambda text: [int(item) for item in text.split(",")], default=[300, 1000, 3000])
    parser.add_argument("--data-dir")
    return parser.parse_args()


def opened(asked: argparse.Namespace, dataset: str) -> tuple[NDArray[np.float32], NDArray[np.float64], float, str]:
    """Return features and targets (n, T) of the training rows, σ² and the task, of a short run."""
    layout = RunLayout(asked.out / dataset)
    command = [*SETTINGS[dataset], "--centers", "200", "--penalty", "10", "--tol", "0.1", "-q", "--resume", "auto"]
    command += ["--run-dir", str(layout.root), "--features-dir", str(asked.out / "features")]
    command += ["--data-dir", asked.data_dir] if asked.data_dir else []
    if code := train(command):
        raise SystemExit(code)
    X, y = read_part(layout, "train")
    task = report_of(layout)["task"]
    targets = outputs(y, task, 1 if task == "regression" else int(y.max()) + 1)
    return X, targets - targets.mean(axis=0) * (task == "regression"), report_of(layout)["sigma2"][0], task


def accumulated(
    asked: argparse.Namespace, X: NDArray[np.float32], targets: NDArray[np.float64], sigma2: float, draw: int
) -> Parts:
    """Draw rows and candidates, and make one pass over the rows."""
    order = np.random.default_rng([6, draw]).permutation(len(X))
    n_rows = min(asked.rows, 3 * len(X) // 4)
    n_held_out = int(HOLD_OUT * n_rows)
    pool = min(asked.pool, n_rows - n_held_out)
    parts = order[n_held_out:n_rows], order[:n_held_out], order[n_rows : n_rows + UNSEEN]
    generator = ColumnGenerator(X[parts[0][:pool]], sigma2)
    bounds = RowBounds.of(largest_terms(1.0, targets)), BLOCK_ROWS, -(-len(X) // BLOCK_ROWS)
    sums, columns = [StatisticsSums(pool, *bounds) for _ in parts], []
    for part, rows in zip(sums, parts, strict=True):
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            values = generator.block(X[block], out_dtype=np.float64)
            part.add(values, targets[block])
            if part is sums[-1]:
                columns.append(values.astype(np.float32))
    exact = ColumnGenerator(X[parts[0][:pool]], sigma2, np.float64).block(X[parts[0][:pool]])
    found = (part.statistics() for part in sums)
    return Parts((exact + exact.T) / 2, *found, np.concatenate(columns), targets[parts[2]])


def fits(parts: Parts, chosen: NDArray[np.int64], norm: str) -> Iterator[tuple[float, float, NDArray, NDArray]]:
    """Yield fraction, held-out error, weights and intercept of ridges, until the best is well inside."""
    fit, held_out = parts.fit.cut(chosen), parts.held_out.cut(chosen)
    metric = np.eye(len(chosen)) if norm == "weights" else parts.gram_of_points[np.ix_(chosen, chosen)]
    centred, scale = fit.centred(), float(np.mean(np.diagonal(fit.gram)))
    errors: list[float] = []
    for exponent in np.arange(LEAST, MOST, 0.5):
        damped = centred.gram + 10**exponent * scale * metric
        damped[np.diag_indices_from(damped)] += 1e-14 * scale
        try:
            weights = cho_solve(cho_factor(damped, lower=True, overwrite_a=True), centred.kty)
        except LinAlgError:
            continue
        intercept = fit.intercept(weights)
        errors.append(float(held_out.squared_error(weights, intercept).sum() / held_out.weight_sum))
        yield 10**exponent, errors[-1], weights, intercept
        if exponent >= -1 and len(errors) - 1 - int(np.argmin(errors)) >= BEYOND:
            return


def compared(parts: Parts, chosen: NDArray[np.int64], norm: str, task: str) -> tuple[float, float, float]:
    """Return the fraction that the held-out rows prefer, and squared error and % of errors on unseen rows."""
    fraction, _, weights, intercept = min(fits(parts, chosen, norm), key=lambda fit: fit[1])
    decision = parts.columns[:, chosen].astype(np.float64) @ weights + intercept
    squared = float(((parts.targets - decision) ** 2).sum(axis=1).mean())
    if task == "regression":
        return fraction, squared, float("nan")
    wrong = labels_from_decision(decision, task) != labels_from_decision(parts.targets, task)
    return fraction, squared, 100 * float(np.mean(wrong))


def main() -> int:
    """Run the benchmark; print the table."""
    asked, rows = options(), []
    asked.out.mkdir(parents=True, exist_ok=True)
    print(f"{'data':<10}{'centers':<8}{'size':>6}{'draw':>5}   fraction, mean squared error, error %: weights; kernel")
    for dataset in asked.datasets:
        X, targets, sigma2, task = opened(asked, dataset)
        for draw in range(asked.draws):
            parts = accumulated(asked, X, targets, sigma2, draw)
            sizes = [size for size in asked.sizes if size <= parts.fit.n_centers]
            greedy = select(parts.fit, max(sizes), intercept=True).chosen
            for centers, ordered in (("random", np.arange(parts.fit.n_centers)), ("greedy", greedy)):
                for size in sizes:
                    found = {norm: compared(parts, ordered[:size], norm, task) for norm in ("weights", "kernel")}
                    rows += [Row(dataset, draw, centers, size, norm, *values) for norm, values in found.items()]
                    words = "; ".join(f"{f:.1e} {s:.5g} {e:.2f}" for f, s, e in found.values())
                    print(f"{dataset:<10}{centers:<8}{size:>6}{draw:>5}   {words}", flush=True)
            (asked.out / "ridges.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
