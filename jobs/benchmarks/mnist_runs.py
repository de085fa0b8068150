"""What the benchmarks beside this file share: whole runs of the command, their features, and least squares on them."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from features.row_draws import draw_held_out, row_keys
from features.rows import Rows
from features.source import Part
from features.targets import outputs
from pipeline.config.settings import from_toml
from pipeline.datasets.feature_rows import describe, open_features, request_of, source_spec
from pipeline.kernels.gram_statistics import (
    GramStatistics,
    RowBounds,
    StatisticsSums,
    largest_terms,
)
from pipeline.kernels.kernel_functions import Kernel
from pipeline.solvers.ridge import refit
from pipeline.train import main as train
from storage.folder_layouts import FeatureLayout, RunLayout

PAPER = Path(__file__).resolve().parents[1] / "paper" / "mnist.toml"  # Runs have these settings by default.
NOT_CONVERGED = 3  # A run may end with this exit code; its report says so.
NO_INTERCEPT = ("--set", "solver.intercept=false")
# Name → the data set, the flags of its features and kernel, and σ². No intercept: `least_squares` has none.
SETTINGS = {
    "mnist": (["mnist", "--config", str(PAPER), "--sigma2", "2"], 2.0),
    "mnist-soft-hog": (["mnist", *NO_INTERCEPT, "--sigma2", "0.25"], 0.25),
    "digits": (["digits", "--features", "sphog", *NO_INTERCEPT, "--sigma2", "2"], 2.0),
}
BLOCK_ROWS, HOLD_OUT = 2048, 0.1


def run_mnist(out: Path, name: str, *arguments: str) -> tuple[RunLayout, dict[str, Any]]:
    """Train into a new folder of `out`, whose runs share their features; return its layout and report."""
    folder = out / f"{name}-{time.time():.0f}"
    common = ["--config", str(PAPER), "--features-dir", str(out / "features"), "--run-dir", str(folder), "-q"]
    code = train(["mnist", *common, *arguments])
    assert code in (0, NOT_CONVERGED), f"the run ended with exit code {code}"
    layout = RunLayout(folder)
    return layout, report_of(layout)


def report_of(layout: RunLayout) -> dict[str, Any]:
    """Return the report of a finished run."""
    report: dict[str, Any] = json.loads(layout.report.read_text(encoding="utf-8"))
    return report


def rows_of(layout: RunLayout, part: Part = "train") -> Rows:
    """Return the rows of a part in the feature store that a run used."""
    config = from_toml(layout.config)
    spec = source_spec(config)
    store = FeatureLayout(Path(config.resources.features_dir), describe(request_of(config, spec)).store)
    return open_features(store, part)


def read_part(layout: RunLayout, part: Part) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return all features (rows, d) f4 and class indices (rows,) i8 of one part that a finished run used."""
    rows = rows_of(layout, part)
    return rows.X[:], rows.y[:]


def least_squares(
    X: NDArray[np.float32], y: NDArray[np.int64], kernel: Kernel, workers: int = 2
) -> NDArray[np.float64]:
    """Return the weights (M, classes) of any centers, the ridge chosen on held-out rows; `workers` share the rows."""
    n_classes = int(y.max()) + 1
    targets = outputs(y, "multiclass", n_classes)
    share = -(-len(X) // (workers * BLOCK_ROWS)) * BLOCK_ROWS
    keys = row_keys(X)
    bounds = RowBounds.of(largest_terms(targets)), BLOCK_ROWS, share // BLOCK_ROWS

    def accumulated(start: int) -> list[GramStatistics]:
        parts = [StatisticsSums(kernel.n_centers, *bounds) for _ in range(2)]
        stop = min(start + share, len(X))
        for first in range(start, stop, BLOCK_ROWS):
            rows = slice(first, min(first + BLOCK_ROWS, stop))
            held_out = draw_held_out(0, HOLD_OUT, keys[rows])
            for part, chosen in zip(parts, (~held_out, held_out), strict=True):
                part.add(kernel.block(X[rows][chosen], out_dtype=np.float64), targets[rows][chosen])
        return [part.statistics() for part in parts]

    with threadpool_limits(1), ThreadPoolExecutor(workers) as threads:
        sums = list(threads.map(accumulated, range(0, len(X), share)))
    fit, hold_out = (reduce(add, parts) for parts in zip(*sums, strict=True))
    return refit(fit, hold_out, fit + hold_out, intercept=False).weights.weights
