"""What a user would pick instead for a table: error and core seconds of each, untuned by hand, on one thread.

COMMAND: python jobs/benchmarks/table_peers.py --out DIR [--tables abalone,arm,five_of_28:2250000,...]
         [--methods slkl,boosting,...]

A generated table has as many training rows as a number after its name says. slkl: our estimators with their defaults,
the median of five seeds on the first split, and how far the worst is above it. boosting: HistGradientBoosting with its
defaults. CatBoost with its defaults, and LightGBM with 500 trees, are measured where they are installed: pip install
catboost lightgbm. Errors are those of the test rows, looked at once: % of them, or in units of the target's deviation
the root of the mean square; classes have the log loss of the probabilities besides. "-": not installed. Writes
DIR/table_peers.json, whose rows are not run again.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from generated_tables import GENERATED, Table
from measurement_tables import cells_of_fits
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits

from features.open_source import open_abalone, open_boston
from features.source import SourceSpec
from pipeline.estimators import SLKLClassifier, SLKLRegressor

DRAWS = {"abalone": 2, "boston": 5, "digits": 2}  # Tables without a test part of their own are split this often.
SEEDS = 5  # slkl is fitted with this number of seeds on the first split.
METHODS = ("slkl", "boosting", "CatBoost", "LightGBM")
PACKAGES = {"CatBoost": "catboost", "LightGBM": "lightgbm"}


def table_of(name: str, seed: int) -> Table:
    generated, _, n_train = name.partition(":")
    if generated in GENERATED:
        return GENERATED[generated](n_train=int(n_train)) if n_train else GENERATED[generated]()
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(y))
        return X[order[:1200]], y[order[:1200]], X[order[1200:]], y[order[1200:]]
    source = {"abalone": open_abalone, "boston": open_boston}[name](SourceSpec(name, seed=seed))
    parts = [(rows.X[:], rows.y[:]) for rows in source.parts.values()]
    X, y, X_test, y_test = (np.asarray(one) for part in parts for one in part)
    return X.astype(float), y.astype(float), X_test.astype(float), y_test.astype(float)


def error_of(machine: Any, X: np.ndarray, y: np.ndarray) -> float:
    predicted = np.ravel(machine.predict(X))  # CatBoost gives a column
    if classes(y):
        return 100 * float(np.mean(predicted != y))
    return float(np.sqrt(np.mean((predicted - y) ** 2)) / y.std())


def classes(y: np.ndarray) -> bool:
    return y.dtype.kind != "f"


def catboost(X: np.ndarray, y: np.ndarray, seed: int) -> Any:
    package = import_module("catboost")
    machine = package.CatBoostClassifier if classes(y) else package.CatBoostRegressor
    return machine(random_seed=seed, thread_count=1, verbose=False, allow_writing_files=False).fit(X, y)


def lightgbm(X: np.ndarray, y: np.ndarray, seed: int) -> Any:
    package = import_module("lightgbm")
    machine = package.LGBMClassifier if classes(y) else package.LGBMRegressor
    return machine(n_estimators=500, random_state=seed, n_jobs=1, verbose=-1).fit(X, y)


def fitted(method: str, X: np.ndarray, y: np.ndarray, seed: int) -> Any:
    ours = SLKLClassifier if classes(y) else SLKLRegressor
    boosting = HistGradientBoostingClassifier if classes(y) else HistGradientBoostingRegressor
    fits: dict[str, Callable[[], Any]] = {
        "slkl": lambda: ours(random_state=seed).fit(X, y),
        "boosting": lambda: boosting(random_state=seed).fit(X, y),
        "CatBoost": lambda: catboost(X, y, seed),
        "LightGBM": lambda: lightgbm(X, y, seed),
    }
    return fits[method]()


def is_installed(method: str) -> bool:
    return method not in PACKAGES or find_spec(PACKAGES[method]) is not None


def row_of(method: str, seed: int, table: Table) -> dict[str, Any]:
    X, y, X_test, y_test = table
    if classes(y):  # numbers, for those that take no words
        labels, y = np.unique(y, return_inverse=True)
        y_test = np.searchsorted(labels, y_test)
    with threadpool_limits(1):
        started = time.process_time()
        machine = fitted(method, X, y, seed)
        fit_seconds, started = time.process_time() - started, time.process_time()
        error = error_of(machine, X_test, y_test)
        row = {"fit_seconds": fit_seconds, "predict_seconds": time.process_time() - started}
        if classes(y):
            row["log_loss"] = float(log_loss(y_test, machine.predict_proba(X_test), labels=range(len(labels))))
    size = len(getattr(machine, "centers_", ()))
    return {"classes": classes(y), "error": error, "centers": size} | row


def fits_of(name: str, method: str) -> list[tuple[int, int]]:
    """Return the split and the seed of each fit."""
    more = range(1, SEEDS if method == "slkl" else 1)
    return [(split, split) for split in range(DRAWS.get(name, 1))] + [(0, seed) for seed in more]


def compare(out: Path, names: list[str], methods: list[str]) -> None:
    """Measure what DIR/table_peers.json lacks, and print one row for each table."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "table_peers.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    titles = [title for method in methods for title in [method, "worst seed"][: 1 + (method == "slkl")]]
    print("error (core seconds of the fit)".ljust(32) + "".join(title.rjust(20) for title in titles), flush=True)
    for name in names:
        tables, cells = [table_of(name, split) for split in range(DRAWS.get(name, 1))], []
        for method in methods:
            for split, seed in fits_of(name, method) if is_installed(method) else ():
                fit = {"table": name, "method": method, "split": split, "seed": seed}
                if not any(fit.items() <= row.items() for row in rows):
                    rows.append(fit | row_of(method, seed, tables[split]))
                    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            found = [row for row in rows if (row["table"], row["method"]) == (name, method)]
            cells += (cells_of_fits(found) if found else ["-"])[: 1 + (method == "slkl")]
        print(name.ljust(32) + "".join(cell.rjust(20) for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--tables", type=lambda text: text.split(","), default=[*DRAWS, *GENERATED])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=METHODS)
    asked = parser.parse_args()
    compare(asked.out, asked.tables, asked.methods)


if __name__ == "__main__":
    main()
