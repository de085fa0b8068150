"""Features of images on held-out rows: their powers and widths, and how far images are made upright.

COMMAND: python jobs/benchmarks/descriptors.py --out DIR [--datasets mnist,usps,digits]
         [--draws 3] [--centers 1000] [--widths 0.35,0.5,0.7]

Never the test part. Of at most 36 000 training rows of a data set, a third is what models are tested on, another third
for each draw (seeds 0, 1, …), the same for all settings, as are the candidates. A model is least squares on `--centers`
random candidates, its ridge chosen on a tenth of the other rows. Widths σ² are parts of the median squared distance.
Prints, for each width, the mean squared error (summed over classes), which is the steadier figure, and the share of
errors. Writes DIR/descriptors.json.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from mnist_runs import least_squares
from numpy.typing import NDArray

from features.descriptors import FeatureSpec, extract
from features.open_source import open_source
from features.source import SourceSpec
from features.targets import outputs
from pipeline.kernels.kernel_functions import GaussianKernel

Setting = dict[str, Any]
Row = dict[str, Any]  # one model: its features, its width, its errors
MOST_ROWS = 36_000
SPHOG: Setting = {"name": "sphog"}
SOFT: Setting = {"name": "soft-hog"}
SETTINGS: list[Setting] = [
    *({"name": "raw", "deskew": deskew, "power": 1.0} for deskew in (0.0, 1.0)),
    *(SPHOG | {"deskew": deskew, "power": power} for power in (1.0, 0.5) for deskew in (0.0, 1.0)),
    *(SOFT | {"deskew": deskew} for deskew in (0.0, 0.5, 0.75, 1.0)),
    *(SOFT | {"power": power} for power in (0.4, 0.6, 1.0)),
]


def options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=["mnist", "usps", "digits"])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--centers", type=int, default=1000)
    parser.add_argument("--widths", type=lambda text: [*map(float, text.split(","))], default=[0.35, 0.5, 0.7])
    return parser.parse_args()


def training_rows(dataset: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return images (n, H, W) and class indices (n,) of the training part of a data set."""
    source = open_source(SourceSpec(dataset))
    images, labels = source.train.X[:MOST_ROWS], source.train.y[:MOST_ROWS]
    return images, labels.astype(np.int64)


def tried(asked: argparse.Namespace, X: NDArray[np.float32], y: NDArray[np.int64], draw: int) -> Iterator[Row]:
    """Yield the widths, with the errors of a model on rows that no choice has seen, on one draw."""
    order = np.random.default_rng(draw).permutation(len(X))
    rows, judged = order[: 2 * len(X) // 3], order[2 * len(X) // 3 :]
    centers, some = X[rows[: asked.centers]], X[rows[-1000:]].astype(np.float64)
    squares = np.square(some).sum(axis=1)[:, None] + np.square(centers.astype(np.float64)).sum(axis=1)
    median = float(np.median(squares - 2 * some @ centers.T))
    targets = outputs(y[judged], "multiclass", int(y.max()) + 1)
    for width in asked.widths:
        kernel = GaussianKernel(centers, width * median, np.float32)
        weights = least_squares(X[rows], y[rows], kernel)
        decisions = np.concatenate(
            [kernel.block(X[some_rows]) @ weights for some_rows in np.array_split(judged, 1 + len(judged) // 2048)]
        )
        squared = float(np.square(decisions - targets).sum(axis=1).mean())
        error = 100 * float(np.mean(decisions.argmax(axis=1) != y[judged]))
        yield {"width": width, "sigma2": width * median, "squared_error": squared, "error_percent": error}


def measured(asked: argparse.Namespace, dataset: str, images: NDArray[Any], y: NDArray[np.int64]) -> Iterator[Row]:
    """Yield the rows of all settings on one data set, and print the means of their draws."""
    print(
        f"{dataset}: {len(images)} rows, {asked.centers} random candidates, mean of {asked.draws} draws; at each width"
    )
    print(f"{'features':<44}{'length':>7}{'s':>5}   squared error and % of errors at widths {asked.widths}")
    for setting in SETTINGS:
        named = " ".join(f"{key}={value}" for key, value in setting.items() if key != "name")
        started = time.perf_counter()
        X = extract(FeatureSpec(**{"deskew": 1.0, "power": 0.5, **setting}), images)
        shared = {"dataset": dataset, "setting": f"{setting['name']} {named}", "n_features": X.shape[1]}
        found = [shared | {"draw": k} | errors for k in range(asked.draws) for errors in tried(asked, X, y, k)]
        yield from found
        means = []
        for width in asked.widths:
            alike = [row for row in found if row["width"] == width]
            squared, percent = (np.mean([row[key] for row in alike]) for key in ("squared_error", "error_percent"))
            means.append(f"{squared:.4f} {percent:5.2f}")
        seconds = time.perf_counter() - started
        print(f"{setting['name'] + ' ' + named:<44}{X.shape[1]:>7}{seconds:>5.0f}   {'   '.join(means)}", flush=True)


def main() -> int:
    """Run the benchmark; print the tables."""
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for dataset in asked.datasets:
        rows += measured(asked, dataset, *training_rows(dataset))
        (asked.out / "descriptors.json").write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
