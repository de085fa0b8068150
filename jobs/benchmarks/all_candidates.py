"""Every training point of MNIST a candidate, against the arithmetic of one bare pass and against random centers.

COMMAND: python jobs/benchmarks/all_candidates.py --out DIR [--penalty 1] [--seeds 0,1,2]

The bare pass is one symmetric pass over all pairs of training points, sgemm and exp alone, in the same tiles and on as
many threads; it is timed before and after the run, and the time of the run is given in units of their mean. The
controls are as many random centers as the model has, refitted in the same way, and the run with 1000 random
candidates at the same penalty. Writes DIR/all-candidates-<penalty>.json.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from mnist_runs import rows_of, run_mnist
from threadpoolctl import threadpool_limits

from pipeline.fit.pricing import LINE_ROWS, TILE_ROWS

WIDTH, WORKERS = ("--sigma2", "2"), 2


def bare_pass(X: np.ndarray) -> float:
    """Seconds of sgemm and exp over the lower half of the tiles."""

    def stripe(start: int) -> None:
        Z = X[start : start + TILE_ROWS]
        for first in range(0, min(start + TILE_ROWS, len(X)), LINE_ROWS):
            K = X[first : first + LINE_ROWS] @ Z.T
            np.exp(K, out=K)

    started = time.perf_counter()
    with threadpool_limits(1), ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(stripe, reversed(range(0, len(X), TILE_ROWS))))
    return time.perf_counter() - started


def random_error(asked: argparse.Namespace, count: int, seed: int) -> float:
    """Return the test error of least squares on random centers."""
    arguments = [*WIDTH, "--centers", str(count), "--seed", str(seed), "--penalty", "none"]
    error: float = run_mnist(asked.out, f"random-{count}-{seed}", *arguments)[1]["error_rate"]
    return error


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--penalty", default="1")
    parser.add_argument("--seeds", type=lambda text: [int(item) for item in text.split(",")], default=[0, 1, 2])
    return parser.parse_args()


def main() -> None:
    asked = options()
    common = [*WIDTH, "--penalty", asked.penalty, "--refit", "ridge"]
    layout, few = run_mnist(asked.out, f"random-1000-{asked.penalty}", *common)
    X = rows_of(layout).X[:]
    bare = [bare_pass(X)]
    arguments = [*common, "--centers", "all", "--memory-limit", "4GiB", "--workers", str(WORKERS)]
    started = time.perf_counter()
    _, report = run_mnist(asked.out, f"all-{asked.penalty}", *arguments)
    seconds = time.perf_counter() - started
    bare.append(bare_pass(X))
    count = report["model_n_centers"]
    controls = [random_error(asked, count, seed) for seed in asked.seeds]
    facts: dict[str, Any] = {
        "seconds": seconds,
        "bare_pass_seconds": bare,
        "ratio": seconds / float(np.mean(bare)),
        "kernel_entries_of_n_squared": report["kernel_entries"] / report["n_train"] ** 2,
        "peak_bytes": report["peak_rss_bytes"],
        "gaps": [max(record["relative_gaps"]) for record in report["rounds"] or []],
        "rounds": report["rounds"],
        "columns_never_made": report["columns"]["columns_never_made"] if report["columns"] else 0,
        "n_centers": report["n_centers"],
        "converged": report["converged"],
        "model_n_centers": count,
        "error": report["penalised"]["error_rate"],
        "error_refitted": report["error_rate"],
        "errors_random_refitted": controls,
        "error_of_1000": few["penalised"]["error_rate"],
        "error_of_1000_refitted": few["error_rate"],
    }
    (asked.out / f"all-candidates-{asked.penalty}.json").write_text(json.dumps(facts, indent=2))
    for key, value in facts.items():
        if key != "rounds":
            print(f"{key:<28} {value}")


if __name__ == "__main__":
    main()
