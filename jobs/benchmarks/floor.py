"""How far a run is from the bare arithmetic it contains, stage by stage, and what a second thread brings.

COMMAND: python jobs/benchmarks/floor.py --out DIR [--centers 1000,3000] [--workers 1,2] [--repeats 3] [--rows N]
         [--dataset mnist] [--config FILE] [--data-dir DIR]

The floor is what nobody can save: sgemm of (rows, d) by (d, M), exp, and float64 K'K of one triangle (dsyrk, added in
place), in blocks of 1024 rows, which is where they are quickest. Every thread has a block and a Gram of its own, at any
M, and one BLAS thread; adding those Grams up is not in it. Runs are commands of their own, with features built and code
compiled; `start` is what they take outside their stages, interpreter and imports among it. Floor and runs take turns,
sizes and threads within each repeat, so that a machine whose speed drifts hits all of them. Ratios are medians of the
repeats'.

Runs on MNIST have the paper's features unless --config says otherwise. For these and 1000 candidates the ratios in MOST
are asked for. The largest number of threads is to be at least 0.9 times as many times sooner than the smallest as it is
larger (2 threads: 1.8); beside it stands what the machine gives to the floor itself.

The full question is --centers 1000,3000,12000. At 12 000 floor and run need about 1.3 GiB for each thread and ten
minutes a repeat. --rows shortens both, but what a run stores does not shrink with the rows, and weighs more. Writes
DIR/floor.json.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numba.extending import get_cython_function_address
from threadpoolctl import threadpool_limits

from storage.zarr_arrays import open_arrays

BLOCK_ROWS = 1024
MOST = {"run": 2.6, "statistics": 1.25, "solve": 0.4, "evaluate": 0.3, "candidates": 0.05, "start": 0.5}  # times floor
LEAST_EFFICIENCY = 0.9
ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT / "jobs/paper/mnist.toml"
# scipy's own wrapper holds the interpreter lock, numpy's K.T @ K needs a temporary and mirrors it.
DSYRK = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)(
    get_cython_function_address("scipy.linalg.cython_blas", "dsyrk")
)


@dataclass(frozen=True)
class Turn:
    """Wall and CPU seconds of the floor, wall seconds of a run and its stages, CPU seconds of the statistics stage."""

    repeat: int
    centers: int
    workers: int
    floor: float
    floor_cpu: float
    seconds: dict[str, float]  # by the names in MOST
    statistics_cpu: float

    def times(self, what: str) -> float:
        return self.seconds[what] / self.floor


def add_gram(K: np.ndarray, gram: np.ndarray) -> None:
    """Add one triangle of K'K, K (rows, M) f8, to gram (M, M) f8 in place."""
    rows, size = (ctypes.c_int(n) for n in K.shape)
    one = ctypes.c_double(1)
    n, k, alpha = (ctypes.addressof(value) for value in (size, rows, one))
    DSYRK(b"U", b"N", n, k, alpha, K.ctypes.data, n, alpha, gram.ctypes.data, n)


def bare_arithmetic(X: np.ndarray, n_centers: int, workers: int) -> tuple[float, float]:
    """Wall and CPU seconds of the floor with some rows of X (rows, d) f4 as centers; the threads share the rows."""
    transposed = X[np.random.default_rng(0).integers(len(X), size=n_centers)].T

    def span(start: int, stop: int) -> None:
        gram, K, K64 = buffers[start]
        for first in range(start, stop, BLOCK_ROWS):
            rows = slice(0, min(BLOCK_ROWS, stop - first))
            np.matmul(X[first : first + rows.stop], transposed, out=K[rows])
            np.exp(K[rows], out=K[rows])
            K64[rows] = K[rows]
            add_gram(K64[rows], gram)

    edges = [int(edge) for edge in np.linspace(0, len(X), workers + 1)]
    gram, block = (n_centers, n_centers), (BLOCK_ROWS, n_centers)
    # Filled, since memory is not there before it is written to.
    buffers = {
        start: (np.full(gram, 0.0), np.full(block, 0.0, np.float32), np.full(block, 0.0)) for start in edges[:-1]
    }
    wall, cpu = time.perf_counter(), time.process_time()
    with threadpool_limits(1), ThreadPoolExecutor(workers) as threads:
        list(threads.map(span, edges[:-1], edges[1:]))
    return time.perf_counter() - wall, time.process_time() - cpu


class WarmRuns:
    """Commands on one data set, in folders of their own."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._place = asked.out / f"runs-{time.time():.0f}"
        self._features = asked.out / "features"
        self._arguments = [asked.dataset, "-q", "--features-dir", str(self._features)]
        self._arguments += ["--set", f"data.n_train={asked.rows}"] if asked.rows else []
        config = asked.config or (PAPER if asked.dataset == "mnist" else None)
        self._arguments += ["--config", str(config.absolute())] if config else []
        self._arguments += ["--data-dir", asked.data_dir] if asked.data_dir else []

    def __call__(self, n_centers: int, workers: int) -> tuple[dict, float]:
        """Return the report of one run, and its wall seconds."""
        folder = self._place / f"{n_centers}-{workers}-{time.time_ns()}"
        sizes = ["--centers", str(n_centers), "--workers", str(workers), "--run-dir", str(folder)]
        started = time.perf_counter()
        code = subprocess.run([sys.executable, "-m", "pipeline.train", *self._arguments, *sizes], cwd=ROOT).returncode
        seconds = time.perf_counter() - started
        if code not in (0, 3):
            raise SystemExit(f"the run ended with exit code {code}")
        report = json.loads((folder / "report.json").read_text())
        if report["rounds"]:
            raise SystemExit(f"{n_centers} candidates do not fit this machine's memory: their run went in rounds")
        return report, seconds

    def features(self, n_rows: int) -> np.ndarray:
        """Return the features (rows, d) f4 that the runs computed."""
        stores = [open_arrays(path)["train/X"] for path in self._features.glob("*/arrays.zarr")]
        return next(X.read(0, n_rows) for X in stores if X.n_rows == n_rows)


def turns(asked: argparse.Namespace) -> Iterator[Turn]:
    """Yield floor and run of every size and number of threads, one turn after the other."""
    run = WarmRuns(asked)
    report, _ = run(min(500, *asked.centers), max(asked.workers))  # builds features and compiles
    X = run.features(report["n_train"])
    for repeat in range(asked.repeats):
        for n_centers in asked.centers:
            for workers in asked.workers:
                floor, floor_cpu = bare_arithmetic(X, n_centers, workers)
                report, run_seconds = run(n_centers, workers)
                stages = {name: stage["wall_seconds"] for name, stage in report["stages"].items()}
                seconds = stages | {"run": run_seconds, "start": run_seconds - sum(stages.values())}
                statistics_cpu = report["stages"]["statistics"]["cpu_seconds"]
                yield Turn(repeat, n_centers, workers, floor, floor_cpu, seconds, statistics_cpu)


def summary(found: list[Turn]) -> Iterator[str]:
    """Yield the ratios of every size, and whether they are what is asked for."""
    few, many = min(turn.workers for turn in found), max(turn.workers for turn in found)
    for n_centers in dict.fromkeys(turn.centers for turn in found):
        of_size = [turn for turn in found if turn.centers == n_centers]
        for workers in dict.fromkeys(turn.workers for turn in of_size):
            alike = [turn for turn in of_size if turn.workers == workers]
            yield f"M = {n_centers}, {workers} threads, in units of the floor ({median(t.floor for t in alike):.2f} s):"
            for what, most in MOST.items():
                times = median(turn.times(what) for turn in alike)
                yield f"{yes(times <= most)}   {what:<11}{times:5.2f}   (at most {most:g})"
            cpu = median(turn.statistics_cpu / turn.floor_cpu for turn in alike)
            yield f"      CPU seconds of the statistics in units of the floor's: {cpu:.2f}"
        if few < many:
            sooner, by_machine = (speed_up(of_size, what, few, many) for what in ("statistics", "floor"))
            least = LEAST_EFFICIENCY * many / few
            yield (
                f"{yes(sooner >= least)} M = {n_centers}, {few} to {many} threads: statistics {sooner:.2f} times "
                f"sooner (at least {least:g}), floor {by_machine:.2f} times"
            )


def speed_up(found: list[Turn], what: str, few: int, many: int) -> float:
    """Return how many times sooner something is with many threads, as the median of the repeats."""
    seconds = {(turn.repeat, turn.workers): turn.floor if what == "floor" else turn.seconds[what] for turn in found}
    return median(seconds[repeat, few] / seconds[repeat, many] for repeat, workers in seconds if workers == few)


def yes(holds: bool) -> str:
    return "yes" if holds else "NO "


def whole_numbers(text: str) -> list[int]:
    return [int(item) for item in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--centers", type=whole_numbers, default=[1000, 3000])
    parser.add_argument("--workers", type=whole_numbers, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, help="training rows of runs and floor (default: all)")
    parser.add_argument("--dataset", default="mnist", help="one of image features, such as digits")
    parser.add_argument("--config", type=Path, help="settings of the runs (mnist: jobs/paper/mnist.toml)")
    parser.add_argument("--data-dir")
    asked = parser.parse_args()
    asked.out = asked.out.absolute()
    asked.out.mkdir(parents=True, exist_ok=True)
    found = []
    print(f"{'centers':>8}{'threads':>9}{'floor, s':>11}{'statistics':>12}{'run':>9}")
    for turn in turns(asked):
        print(
            f"{turn.centers:>8}{turn.workers:>9}{turn.floor:>11.2f}{turn.seconds['statistics']:>12.2f}"
            f"{turn.seconds['run']:>9.2f}",
            flush=True,
        )
        found.append(turn)
    lines = list(summary(found))
    print("\n".join(lines))
    facts = {
        "rows": asked.rows,
        "dataset": asked.dataset,
        "config": str(asked.config),
        "turns": [asdict(turn) for turn in found],
        "summary": lines,
    }
    (asked.out / "floor.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
