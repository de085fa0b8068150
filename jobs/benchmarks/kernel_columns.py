"""Kernel columns on one core: nanoseconds of an entry, and differences a second beside what the core allows.

COMMAND: python jobs/benchmarks/kernel_columns.py --out DIR [--features 8,28,100,500] [--repeats 100]

Blocks of 512 float32 rows and 512 centers; the least of the repeats, which take turns. The product-laplace kernel adds
up |x - z|, two additions a feature. "allowed" is the rate at which the core could add: half of the operations a second
of a matrix product, which does two in the time of one addition, over the two; "writing" is what it takes to write an
entry at the rate of copying. The last columns are the operations that an entry costs where a second has 4e10, as in
candidate_budget.py of the solvers, and those that this file counts. Writes DIR/kernel_columns.json.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from threadpoolctl import threadpool_limits

from pipeline.kernels.kernel_functions import KERNELS
from pipeline.kernels.kernel_loops import direct_distances
from pipeline.solvers.candidate_budget import OPERATIONS_A_SECOND, VALUE_OPERATIONS

SIZE = 512  # rows, and centers


def least_seconds(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the least time of each way, in turns after one that is not counted, which compiles."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return {name: min(every[1:]) for name, every in seconds.items()}


def of_the_core(repeats: int) -> tuple[float, float]:
    """Return the additions a second that the core allows, and its seconds to write a byte."""
    A = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
    long, copy, product = np.ones(2**22, np.float32), np.empty(2**22, np.float32), np.empty_like(A)
    ways = {"product": lambda: np.matmul(A, A, out=product), "copying": lambda: np.copyto(copy, long)}
    least = least_seconds(ways, repeats)
    return SIZE**3 / least["product"], least["copying"] / long.nbytes


def rows_of(d: int, repeats: int, additions: float) -> list[dict[str, Any]]:
    X, Z = np.random.default_rng(d).normal(size=(2, SIZE, d)).astype(np.float32)
    distances = np.empty((SIZE, SIZE), np.float32)
    columns = {one.name: one(Z, one.typical_sigma2(Z)) for one in KERNELS}
    ways: dict[str, Callable[[], Any]] = {name: (lambda made=made: made.block(X)) for name, made in columns.items()}
    ways["1-norm"] = lambda: direct_distances(X, Z, False, distances)
    least, rows = least_seconds(ways, repeats), []
    for name in columns:
        row = {"features": d, "kernel": name, "ns": least[name] / SIZE**2 * 1e9}
        if name == "product-laplace":
            row |= {"distance_ns": least["1-norm"] / SIZE**2 * 1e9, "differences": SIZE**2 * d / least["1-norm"]}
            row["share_of_allowed"] = row["differences"] / (additions / 2)
        row["operations"] = least[name] / SIZE**2 * OPERATIONS_A_SECOND
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--features", type=lambda text: [int(d) for d in text.split(",")], default=[8, 28, 100, 500])
    parser.add_argument("--repeats", type=int, default=100)
    asked = parser.parse_args()
    with threadpool_limits(1):
        additions, byte = of_the_core(asked.repeats)
        rows = [row for d in asked.features for row in rows_of(d, asked.repeats, additions)]
    facts = {"additions": additions, "writing_ns": 4 * byte * 1e9, "rows": rows}
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "kernel_columns.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"allowed: {additions / 2e9:.1f}e9 differences a second; writing: {facts['writing_ns']:.2f} ns an entry")
    print(
        "inputs  kernel            ns an entry   of it distances   e9 differences/s   of allowed   operations  counted"
    )
    for row in rows:
        of = f"{row['features']:6d}  {row['kernel']:<16} {row['ns']:12.2f}"
        if "differences" in row:
            share = f"{row['share_of_allowed']:.0%}"
            of += f"{row['distance_ns']:18.2f}{row['differences'] / 1e9:19.1f}{share:>13}"
        counted = 2 * row["features"] + VALUE_OPERATIONS
        print(of.ljust(88) + f"{row['operations']:12.0f}{counted:9d}")


if __name__ == "__main__":
    main()
