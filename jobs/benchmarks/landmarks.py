"""Test error against the number of Nyström landmarks: a uniform draw, and `GreedyNystroem` without and with y.

COMMAND: python jobs/benchmarks/landmarks.py --out DIR [--tables digits,...] [--sizes 50,...] [--data-dir DIR]

All have the same width (the median squared distance of the standardised rows) and the ridge of the lowest error on a
tenth of the training rows, which the choice of landmarks has not seen either; then all is fitted to all rows. Errors
are those of `table_peers.py`: % of the test rows, or in units of the target's deviation the root of the mean square;
means of three draws (splits too, where the table has no test part). Writes DIR/landmarks.json, whose rows are not run
again.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from generated_tables import Table, arm, letters
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.preprocessing import StandardScaler
from table_peers import RIDGES, classes, error_of, table_of
from threadpoolctl import threadpool_limits

from pipeline.estimators import GreedyNystroem
from pipeline.kernels.kernel_forms import GAUSSIAN, typical_sigma2

TABLES, DRAWS = ("digits", "boston", "abalone", "letters", "arm"), 3
SIZES = [50, 100, 200, 400]
GENERATED = {"letters": letters, "arm": arm}
N_GENERATED = 6000, 4000  # rows to train on and to test
WAYS = ("Nystroem", "GreedyNystroem", "GreedyNystroem, y")


def rows_of(name: str, seed: int, data_dir: str | None) -> Table:
    """Return the parts of a table, standardised."""
    X, y, X_test, y_test = GENERATED[name](*N_GENERATED) if name in GENERATED else table_of(name, seed, data_dir)
    scaler = StandardScaler().fit(X)
    return scaler.transform(X), y, scaler.transform(X_test), y_test


def landmarks(way: str, size: int, sigma2: float, seed: int, X: np.ndarray, y: np.ndarray) -> Any:
    if way == "Nystroem":
        return Nystroem(gamma=0.5 / sigma2, n_components=size, random_state=seed).fit(X)
    greedy = GreedyNystroem(size, sigma2=sigma2, random_state=seed)
    return greedy.fit(X, y) if way.endswith("y") else greedy.fit(X)


def row_of(table: Table, way: str, size: int, seed: int) -> dict[str, Any]:
    X, y, X_test, y_test = table
    sigma2 = typical_sigma2(X[np.random.default_rng(seed).permutation(len(X))], GAUSSIAN)
    ridge, tried = RidgeClassifier if classes(y) else Ridge, np.random.default_rng(seed).random(len(X)) < 0.1
    features = landmarks(way, size, sigma2, seed, X[~tried], y[~tried])
    C, C_tried = features.transform(X[~tried]), features.transform(X[tried])
    errors = [error_of(ridge(alpha=alpha).fit(C, y[~tried]), C_tried, y[tried]) for alpha in RIDGES]
    started = time.process_time()
    features = landmarks(way, size, sigma2, seed, X, y)
    seconds = time.process_time() - started
    machine = ridge(alpha=RIDGES[int(np.argmin(errors))]).fit(features.transform(X), y)
    return {"error": error_of(machine, features.transform(X_test), y_test), "fit_seconds": seconds}


def compare(out: Path, names: list[str], sizes: list[int], data_dir: str | None) -> None:
    """Measure what DIR/landmarks.json lacks, and print one row for each table and way."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "landmarks.json"
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    print("".ljust(32) + "".join(str(size).rjust(10) for size in sizes) + "   core seconds of the last", flush=True)
    for name in names:
        tables = [rows_of(name, seed, data_dir) for seed in range(DRAWS)]
        for way in WAYS:
            of = []
            for size in (size for size in sizes if size < 0.9 * len(tables[0][0])):
                keys = [f"{name}: {way} {size}, draw {seed}" for seed in range(DRAWS)]
                for seed, key in enumerate(keys):
                    if key not in rows:
                        with threadpool_limits(1):
                            rows[key] = row_of(tables[seed], way, size, seed)
                        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
                of.append([mean(rows[key][what] for key in keys) for what in ("error", "fit_seconds")])
            cells = [f"{error:.2f} %" if classes(tables[0][1]) else f"{error:.3f}" for error, _ in of]
            shown = "".join(cell.rjust(10) for cell in cells + [""] * (len(sizes) - len(cells)))
            print(f"{name}, {way}".ljust(32) + shown + f"{of[-1][1]:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--tables", type=lambda text: text.split(","), default=list(TABLES))
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES)
    parser.add_argument("--data-dir", type=lambda text: str(Path(text).absolute()))
    asked = parser.parse_args()
    compare(asked.out, asked.tables, asked.sizes, asked.data_dir)


if __name__ == "__main__":
    main()
