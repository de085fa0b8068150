"""One kernel for all classes against one-vs-all, and both against random centers, on real MNIST.

COMMAND: python jobs/benchmarks/coupling.py --out DIR [--centers 1000] [--penalties 1,0.1,0.01] [--sigma2 2]
         [--data-dir DIR]

Whole runs of the command, with and without `--refit ridge`: seconds of the solve stage, centers in the model, errors.
The control: as many random centers as the model has, refitted in the same way (ridge chosen on held-out rows), three
seeds. The first N of a draw of M are the draw of N, so one run a seed has the statistics for every N up to M.
Writes DIR/coupling.json and DIR/coupling.png.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from features.targets import labels_from_decision
from pipeline.columns import ColumnGenerator
from pipeline.feature_store import FeatureStore
from pipeline.solvers.refit import refit
from pipeline.stages import statistics
from pipeline.train import main as train
from storage.commit import read_arrays
from storage.layout import FeatureLayout, RunLayout

COUPLINGS = ("one-vs-all", "shared")
NOT_CONVERGED = 3  # exit code; the table shows the gap
Facts = dict[str, Any]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--centers", type=lambda text: [int(item) for item in text.split(",")], default=[1000])
    parser.add_argument("--penalties", type=lambda text: text.split(","), default=["1", "0.1", "0.01"])
    parser.add_argument("--sigma2", default="2")
    parser.add_argument("--seeds", type=int, default=3, help="draws of random centers")
    parser.add_argument("--data-dir")
    return parser.parse_args()


def run(asked: argparse.Namespace, name: str, *arguments: str) -> tuple[RunLayout, Facts]:
    """Train on MNIST into a new folder, and return its layout and report."""
    folder = asked.out / f"{name}-{time.time():.0f}"
    common = ["--features-dir", str(asked.out / "features"), "--run-dir", str(folder), "--sigma2", asked.sigma2, "-q"]
    common += ["--data-dir", asked.data_dir] if asked.data_dir else []
    code = train(["mnist", *common, *arguments])
    assert code in (0, NOT_CONVERGED), f"the run ended with exit code {code}"
    layout = RunLayout(folder)
    return layout, json.loads(layout.report.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class RandomCenters:
    """The run of one seed: statistics of M random centers, and their columns over the test rows."""

    layout: RunLayout
    columns: np.ndarray
    truth: np.ndarray

    def error(self, count: int) -> float:
        """Return the test error of least squares on the first `count` centers, the ridge chosen on held-out rows."""
        chosen = np.arange(count)
        parts = (statistics.load(self.layout, part).cut(chosen) for part in ("fit", "hold_out", "all"))
        found = refit(*parts, intercept=False)
        decision = self.columns[:, :count] @ found.weights + found.intercept
        return float(np.mean(labels_from_decision(decision, "multiclass") != self.truth))


def random_centers(asked: argparse.Namespace, n_centers: int, seed: int) -> RandomCenters:
    """Return the control of one seed; the candidates of the compared runs are those of seed 0."""
    arguments = ["--centers", str(n_centers), "--seed", str(seed), "--penalty", "100"]
    layout, report = run(asked, f"random-{n_centers}-{seed}", *arguments)
    (arrays,) = (asked.out / "features").glob("*/arrays.zarr")
    store = FeatureStore(FeatureLayout(asked.out / "features", arrays.parent.name))
    generator = ColumnGenerator(read_arrays(layout.centers)["X"], float(asked.sigma2))
    X, truth = store.read("test", 0, report["n_test"]), store.targets("test", 0, report["n_test"])
    return RandomCenters(layout, generator.block(X, out_dtype=np.float64), truth)


def compare(asked: argparse.Namespace, n_centers: int) -> list[Facts]:
    """Run both couplings at every penalty, with and without the refit; print and return a row for each."""
    controls = [random_centers(asked, n_centers, seed) for seed in range(1, asked.seeds + 1)]
    rows = []
    for penalty in asked.penalties:
        for coupling in COUPLINGS:
            arguments = ["--centers", str(n_centers), "--penalty", penalty, "--coupling", coupling]
            name = f"{coupling}-{n_centers}-{penalty}"
            _, plain = run(asked, name, *arguments)
            _, refitted = run(asked, f"{name}-refit", *arguments, "--refit", "ridge")
            count = refitted["model_n_centers"]
            assert count == plain["model_n_centers"]
            row = {
                "n_centers": n_centers,
                "penalty": float(penalty),
                "coupling": coupling,
                "solve_seconds": plain["stages"]["solve"]["wall_seconds"],
                "solve_seconds_with_refit": refitted["stages"]["solve"]["wall_seconds"],
                "statistics_seconds": plain["stages"]["statistics"]["wall_seconds"],
                "worst_relative_gap": max(one["relative_gap"] for one in plain["solves"]),
                "converged": plain["converged"],
                "model_n_centers": count,
                "error": plain["error_rate"],
                "error_before_refit": refitted["penalised"]["error_rate"],
                "error_refitted": refitted["error_rate"],
                "errors_random": [control.error(count) for control in controls],
                "ridge": refitted["hold_out"]["ridge"],
            }
            print_row(row)
            rows.append(row)
    everything = [control.error(n_centers) for control in controls]
    print(f"{n_centers:>5}  all {n_centers} random centers, refitted: {_percent(everything)}")
    return [*rows, {"n_centers": n_centers, "coupling": None, "errors_random": everything}]


def print_header() -> None:
    print(f"{'M':>5}{'penalty':>9} {'coupling':<11}{'solve s':>9}{'+ refit':>9}{'rel. gap':>10}{'centers':>9}", end="")
    print(f"{'error %':>9}{'refit %':>9}  random, refitted %")


def print_row(row: Facts) -> None:
    print(
        f"{row['n_centers']:>5}{row['penalty']:>9g} {row['coupling']:<11}{row['solve_seconds']:>9.2f}"
        f"{row['solve_seconds_with_refit']:>9.2f}{row['worst_relative_gap']:>10.1e}{row['model_n_centers']:>9}"
        f"{100 * row['error']:>9.2f}{100 * row['error_refitted']:>9.2f}  {_percent(row['errors_random'])}"
        f"{'' if row['converged'] else '  NOT CONVERGED'}",
        flush=True,
    )


def _percent(errors: list[float]) -> str:
    return " ".join(f"{100 * error:.2f}" for error in sorted(errors))


def plot(rows: list[Facts], path: Path) -> None:
    """Draw error and solve seconds against the number of centers in the model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (errors, seconds) = pyplot.subplots(1, 2, figsize=(11, 4))
    solved = [row for row in rows if row["coupling"]]
    for index, coupling in enumerate(COUPLINGS):
        own = sorted((row for row in solved if row["coupling"] == coupling), key=lambda row: row["model_n_centers"])
        counts = [row["model_n_centers"] for row in own]
        for key, style, word in (("error", "o--", "penalised"), ("error_refitted", "o-", "refitted")):
            values = [100 * row[key] for row in own]
            errors.plot(counts, values, style, color=f"C{index}", markersize=4, label=f"{coupling}, {word}")
        seconds.plot(counts, [row["solve_seconds"] for row in own], "o-", color=f"C{index}", label=coupling)
    control = sorted((row["model_n_centers"], 100 * e) for row in solved for e in row["errors_random"])
    errors.plot(*zip(*control, strict=True), "kx", markersize=4, label="random centers, refitted")
    errors.set(xlabel="centers in the model", ylabel="test error, %", xscale="log")
    seconds.set(xlabel="centers in the model", ylabel="solve stage, seconds", xscale="log", yscale="log")
    for axis in (errors, seconds):
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    for coupling in COUPLINGS:  # features built, code compiled
        run(asked, f"warm-up-{coupling}", "--centers", "100", "--penalty", "1", "--coupling", coupling)
    print_header()
    rows = [row for n_centers in asked.centers for row in compare(asked, n_centers)]
    plot(rows, asked.out / "coupling.png")
    facts = {"sigma2": float(asked.sigma2), "rows": rows}
    (asked.out / "coupling.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
