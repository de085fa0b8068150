"""How far a run on MNIST is from the bare arithmetic it contains, stage by stage, and what a second worker brings.

COMMAND: python jobs/benchmarks/speed.py --out DIR [--runs default,paper] [--repeats 3] [--rows N]

The floor is what nobody can save: sgemm of (rows, d) by (d, M), exp, and float64 K'K of one triangle (dsyrk, added in
place), in blocks of 1024 rows, which is where they are quickest; every thread has a block and a Gram of its own, and
one BLAS thread. Runs are commands of their own, with features built and code compiled; `start` is what they take
outside their stages, interpreter and imports among it. Floor, threads and processes take turns within each repeat, so
that a machine whose speed drifts hits all of them. Ratios are medians of the repeats'; beside them stands what is asked
for. Writes DIR/speed.json.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numba.extending import get_cython_function_address
from threadpoolctl import threadpool_limits

from storage.zarr_arrays import open_arrays

ROOT = Path(__file__).resolve().parents[2]
BLOCK_ROWS, CENTERS, WORKERS = 1024, 1000, (1, 2)
WAYS = {"default": [], "paper": ["--config", str(ROOT / "jobs/paper/mnist.toml")]}  # "paper" has the paper's features.
MOST = {  # Stages take at most these multiples of the floor of one thread.
    "default": {"run": 2.6, "statistics": 1.25, "solve": 0.5},
    "paper": {"run": 2.2, "statistics": 1.25, "solve": 0.3},
}
LEAST = {"threads": 1.75, "processes": 1.6}  # Two workers are faster by these factors at least.
# scipy's own wrapper holds the interpreter lock, numpy's K.T @ K needs a temporary and mirrors it.
DSYRK = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)(
    get_cython_function_address("scipy.linalg.cython_blas", "dsyrk")
)
Turn = dict[str, Any]


def add_gram(K: np.ndarray, gram: np.ndarray) -> None:
    """Add one triangle of K'K, K (rows, M) f8, to gram (M, M) f8 in place."""
    rows, size = (ctypes.c_int(n) for n in K.shape)
    one = ctypes.c_double(1)
    n, k, alpha = (ctypes.addressof(value) for value in (size, rows, one))
    DSYRK(b"U", b"N", n, k, alpha, K.ctypes.data, n, alpha, gram.ctypes.data, n)


def bare_seconds(X: np.ndarray, workers: int) -> float:
    """Return the seconds of the floor with some rows of X (rows, d) f4 as centers; the threads share the rows."""
    transposed = X[np.random.default_rng(0).integers(len(X), size=CENTERS)].T

    def span(start: int, stop: int) -> None:
        gram, K, K64 = buffers[start]
        for first in range(start, stop, BLOCK_ROWS):
            rows = slice(0, min(BLOCK_ROWS, stop - first))
            np.matmul(X[first : first + rows.stop], transposed, out=K[rows])
            np.exp(K[rows], out=K[rows])
            K64[rows] = K[rows]
            add_gram(K64[rows], gram)

    edges = [int(edge) for edge in np.linspace(0, len(X), workers + 1)]
    gram, block = (CENTERS, CENTERS), (BLOCK_ROWS, CENTERS)
    # Filled, since memory is not there before it is written to.
    buffers = {start: (np.full(gram, 0.0), np.full(block, 0.0, np.float32), np.full(block, 0.0)) for start in edges}
    started = time.perf_counter()
    with threadpool_limits(1), ThreadPoolExecutor(workers) as threads:
        list(threads.map(span, edges[:-1], edges[1:]))
    return time.perf_counter() - started


def run(asked: argparse.Namespace, way: str, scheduler: str, workers: int) -> Turn:
    """Return the seconds of a run, and of its stages."""
    folder = asked.out / f"run-{time.time_ns()}"
    words = ["mnist", "-q", *WAYS[way], "--features-dir", str(asked.out / way), "--run-dir", str(folder)]
    words += ["--centers", str(CENTERS), "--scheduler", scheduler, "--workers", str(workers)]
    words += ["--set", f"data.n_train={asked.rows}"] if asked.rows else []
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pipeline.train", *words], cwd=ROOT, check=True)
    seconds = {"run": time.perf_counter() - started}
    report = json.loads((folder / "report.json").read_text())
    seconds |= {name: stage["wall_seconds"] for name, stage in report["stages"].items()}
    return seconds | {"start": 2 * seconds["run"] - sum(seconds.values())}


def turns(asked: argparse.Namespace, way: str) -> Iterator[Turn]:
    """Yield what floor, threads and processes take, one turn after the other."""
    run(asked, way, "threads", WORKERS[1])  # builds features and compiles
    (store,) = (asked.out / way).glob("*/arrays.zarr")
    X = open_arrays(store)["train/X"]
    rows = X[:]
    for repeat in range(asked.repeats):
        for workers in WORKERS:
            same = {"way": way, "repeat": repeat, "workers": workers}
            yield same | {"who": "floor", "run": bare_seconds(rows, workers)}
            for scheduler in ("threads", "processes"):
                yield same | {"who": scheduler, **run(asked, way, scheduler, workers)}


def summary(found: list[Turn], way: str) -> Iterator[str]:
    """Yield the ratios, and whether they are what is asked for."""
    seconds = {(turn["who"], turn["workers"], turn["repeat"]): turn for turn in found if turn["way"] == way}
    repeats, (few, many) = sorted({turn["repeat"] for turn in found}), WORKERS
    for what in ("run", "features", "candidates", "statistics", "solve", "evaluate", "start"):
        floors = [seconds["floor", few, k]["run"] for k in repeats]
        times = median(
            seconds["threads", few, k].get(what, 0.0) / floor for k, floor in zip(repeats, floors, strict=True)
        )
        most = MOST[way].get(what)
        yield f"{way}: {what:<11}{times:5.2f} times the floor" + (f", at most {most:g}" if most else "")
    for who in ("floor", *LEAST):
        times = median(seconds[who, few, k]["run"] / seconds[who, many, k]["run"] for k in repeats)
        least = f", at least {LEAST[who]:g}" if who in LEAST else ""
        yield f"{way}: {who} with {many} workers {times:.2f} times as quick as with {few}{least}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--runs", type=lambda text: text.split(","), default=list(WAYS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, help="training rows (default: all)")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    found, lines = list[Turn](), list[str]()
    for way in asked.runs:
        for turn in turns(asked, way):
            found.append(turn)
            print(f"{way} {turn['who']}, {turn['workers']} workers: {turn['run']:.2f} s", flush=True)
        lines += summary(found, way)
    print("\n".join(lines))
    (asked.out / "speed.json").write_text(json.dumps({"turns": found, "summary": lines}, indent=2) + "\n")


if __name__ == "__main__":
    main()
