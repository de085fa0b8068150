"""How far the main job is from its arithmetic floor, on real MNIST.

COMMAND: python jobs/benchmarks/floor.py --out DIR [--repeats 3] [--workers 2] [--data-dir DIR]

The floor is what nobody can save: sgemm of 60000x2172 by 2172x1000, exp, and numpy's float64 K'K, in the same blocks
and on as many threads, each with one BLAS thread. It takes turns with the whole warm run (features built, compiled
code cached) in this process, so that a machine whose speed drifts hits both. Writes DIR/floor.json.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from threadpoolctl import threadpool_limits

from pipeline.config import from_toml
from pipeline.train import main as train
from storage.arrays import open_arrays
from storage.commit import read_arrays
from storage.layout import RunLayout


def bare_arithmetic(X: np.ndarray, centers: np.ndarray, block_rows: int, workers: int) -> float:
    """Seconds of the floor: blocks on `workers` threads, one Gram sum a thread."""

    def span(start: int, stop: int) -> np.ndarray:
        gram = np.zeros((len(centers), len(centers)))
        for first in range(start, stop, block_rows):
            K = X[first : min(first + block_rows, stop)] @ centers.T
            np.exp(K, out=K)
            K64 = K.astype(np.float64)
            gram += K64.T @ K64
        return gram

    edges = np.linspace(0, len(X), workers + 1).astype(int)
    started = time.perf_counter()
    with threadpool_limits(1), ThreadPoolExecutor(workers) as pool:
        sum(pool.map(span, edges[:-1], edges[1:]))
    return time.perf_counter() - started


def warm_run(arguments: list[str], folder: Path) -> tuple[dict, float]:
    """Report and wall seconds of one run in this process."""
    started = time.perf_counter()
    code = train(["mnist", "--run-dir", str(folder), "-q", *arguments])
    seconds = time.perf_counter() - started
    assert code == 0, f"the run ended with exit code {code}"
    return json.loads(RunLayout(folder).report.read_text()), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data-dir")
    found = parser.parse_args()
    found.out.mkdir(parents=True, exist_ok=True)
    stamp = f"{time.time():.0f}"
    arguments = ["--workers", str(found.workers), "--features-dir", str(found.out / "features")]
    arguments += ["--data-dir", found.data_dir] if found.data_dir else []
    warm_run(arguments, found.out / f"warm-up-{stamp}")

    first = RunLayout(found.out / f"warm-up-{stamp}")
    block_rows = from_toml(first.config).statistics.block_rows
    centers = read_arrays(first.centers)["X"]
    (store,) = list((found.out / "features").glob("*/arrays.zarr"))
    X = open_arrays(store)["train/X"]
    X = X.read(0, X.n_rows)

    rows = []
    for repeat in range(found.repeats):
        floor = bare_arithmetic(X, centers, block_rows, found.workers)
        report, seconds = warm_run(arguments, found.out / f"run-{stamp}-{repeat}")
        command = [sys.executable, "-m", "pipeline.train", "mnist", "-q", *arguments]
        started = time.perf_counter()
        subprocess.run([*command, "--run-dir", str(found.out / f"process-{stamp}-{repeat}")], check=True)
        process = time.perf_counter() - started
        statistics = report["stages"]["statistics"]["wall_seconds"]
        rows.append({"floor": floor, "statistics": statistics, "run": seconds, "process": process})
        rows[-1] |= {name: report["stages"][name]["wall_seconds"] for name in ("solve", "evaluate")}

    print(f"{'seconds':<12}" + "".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        print(f"{'':<12}" + "".join(f"{row[name]:>12.2f}" for name in rows[0]))
    print(f"{'times floor':<12}" + "".join(f"{median(row[n] / row['floor'] for row in rows):>12.2f}" for n in rows[0]))
    print("statistics should be at most 1.5 times the floor, the run at most 6 times (process adds start and imports)")
    facts = {"rows": rows, "block_rows": block_rows, "workers": found.workers, "error_rate": report["error_rate"]}
    (found.out / "floor.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
