"""Settings of image features on held-out rows: how far images are made upright, and powers of the histograms.

COMMAND: python jobs/benchmarks/descriptors.py --out DIR [--datasets mnist,usps,digits,synthetic] [--draws 2]
         [--centers 1000] [--size 300] [--data-dir DIR]

Never the test part: of the training rows of a data set, a quarter is what these runs are tested on, another quarter for
each draw (seeds 0, 1, …), the same for all settings, as are the candidates. Each run chooses its σ² (`--sigma2 auto`)
and `--size` of its `--centers` candidates. Prints the share of errors on that quarter, and the mean squared error of
the tenth of the other rows that the run held out. A second call goes on where the first was cut off. Writes
DIR/descriptors.json.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from mnist_runs import report_of

from features.open_source import open_source
from features.source import SourceSpec
from pipeline.train import main as train
from storage.folder_layouts import RunLayout

RENDERED = 20_000  # rows of `synthetic`
DESKEW = (0.0, 0.25, 0.5, 0.75, 1.0)
# Features, deskew, power.
SETTINGS = [("sphog", deskew, power) for power in (1.0, 0.5) for deskew in DESKEW]
SETTINGS += [("sphog", 0.0, 0.7), ("sphog", 0.0, 0.35), ("raw", 0.0, 1.0), ("raw", 1.0, 1.0)]


@dataclass(frozen=True)
class Row:
    """One run: what it was asked for, the width that it chose, and its errors on rows that no choice has seen."""

    dataset: str
    features: str
    deskew: float
    power: float
    draw: int
    sigma2: float
    n_rows: int
    error_percent: float
    held_out_error: float


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--datasets", type=lambda text: text.split(","), default=["mnist", "usps", "digits", "synthetic"]
    )
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--centers", default="1000")
    parser.add_argument("--size", default="300")
    parser.add_argument("--data-dir")
    return parser.parse_args()


def training_rows(asked: argparse.Namespace, dataset: str) -> Path:
    """Return a file of the training rows of a data set."""
    path: Path = asked.out / f"{dataset}.npz"
    if not path.exists():
        n_train = RENDERED if dataset == "synthetic" else None
        data_dir = asked.data_dir or os.environ.get("SLKL_DATA_DIR")
        source = open_source(SourceSpec(dataset, data_dir if dataset in ("mnist", "usps") else None, n_train))
        images, labels = source.read("train", 0, source.n_train)
        np.savez(path, X=images, y=labels)
    return path


def measured(asked: argparse.Namespace, dataset: str, setting: tuple[str, float, float], draw: int) -> Row:
    """Train with one setting on one draw."""
    name, deskew, power = setting
    layout = RunLayout(asked.out / f"{dataset}-{name}-{deskew:g}-{power:g}-{draw}")
    command = [str(training_rows(asked, dataset)), "--run-dir", str(layout.root), "-q", "--resume", "auto"]
    command += ["--features", name, "--set", f"features.deskew={deskew}", "--features-store", "none"]
    command += [] if power == 1.0 else ["--set", f"features.power={power}"]
    command += ["--seed", str(draw), "--sigma2", "auto", "--centers", asked.centers, "--select", f"greedy:{asked.size}"]
    command += ["--keep-statistics", "none"]
    if code := train(command):
        raise SystemExit(code)
    report = report_of(layout)
    held_out = report["selection"]["curve"][-1]["hold_out_error"]
    error = 100 * report["error_rate"]
    return Row(dataset, name, deskew, power, draw, report["sigma2"][0], report["n_test"], error, held_out)


def main() -> int:
    """Run the benchmark; print the tables."""
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for dataset in asked.datasets:
        print(f"{dataset}: {asked.size} of {asked.centers} candidates, mean of {asked.draws} draws")
        print(f"{'features':<10}{'deskew':>8}{'power':>8}{'error %':>10}{'squared':>10}   of each draw, σ²")
        for setting in SETTINGS:
            found = [measured(asked, dataset, setting, draw) for draw in range(asked.draws)]
            rows += found
            errors, squared = (
                np.mean([getattr(row, key) for row in found]) for key in ("error_percent", "held_out_error")
            )
            each = ", ".join(f"{row.error_percent:.2f} ({row.sigma2:.3g})" for row in found)
            print(
                f"{setting[0]:<10}{setting[1]:>8g}{setting[2]:>8g}{errors:>10.2f}{squared:>10.4f}   {each}", flush=True
            )
            (asked.out / "descriptors.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
