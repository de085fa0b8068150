"""One kernel for all classes against one-vs-all, and both against random centers, on real MNIST.

COMMAND: python jobs/benchmarks/coupling.py --out DIR [--centers 1000] [--penalties 1,0.1,0.01] [--sigma2 2]
         [--data-dir DIR]

Whole runs of the command, with and without `--refit ridge`: seconds of the solve stage, centers in the model, errors;
on several pools of candidates, one for each seed, since pools of 1000 differ by more (1.1 to 1.3 % refitted) than what
is to be seen. The control: as many random centers as the model has, refitted in the same way (ridge chosen on held-out
rows), drawn from the same pool, which is the fair comparison, and from the others, which shows the luck of the draw.
Writes DIR/coupling.json and DIR/coupling.png.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from mnist_runs import feature_store_of, run_mnist

from features.targets import labels_from_decision
from pipeline.kernels.kernel_forms import ColumnGenerator
from pipeline.solvers.ridge import refit
from pipeline.stages import accumulate_statistics as statistics
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

COUPLINGS = ("one-vs-all", "shared")
SUBSETS = 3  # random subsets of a pool
Facts = dict[str, Any]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--centers", type=lambda text: [int(item) for item in text.split(",")], default=[1000])
    parser.add_argument("--penalties", type=lambda text: text.split(","), default=["1", "0.1", "0.01"])
    parser.add_argument("--sigma2", default="2")
    parser.add_argument("--pools", type=int, default=3, help="draws of candidates: seeds 0, 1, …")
    parser.add_argument("--data-dir")
    return parser.parse_args()


def run(asked: argparse.Namespace, name: str, *arguments: str) -> tuple[RunLayout, Facts]:
    """Train with the kernel width asked for, and return layout and report."""
    return run_mnist(asked.out, asked.data_dir, name, "--sigma2", asked.sigma2, *arguments)


@dataclass(frozen=True)
class Pool:
    """The M candidates of one seed: their statistics (in a run), and their columns over the test rows."""

    layout: RunLayout
    columns: np.ndarray
    truth: np.ndarray

    def error(self, chosen: np.ndarray) -> float:
        """Return the test error of least squares on some candidates, the ridge chosen on held-out rows."""
        parts = (statistics.load_statistics(self.layout, part).cut(chosen) for part in ("fit", "hold_out", "all"))
        found = refit(*parts, intercept=False).weights
        decision = self.columns[:, chosen] @ found.weights + found.intercept
        return float(np.mean(labels_from_decision(decision, "multiclass") != self.truth))

    def random_errors(self, count: int, draws: int = SUBSETS) -> list[float]:
        """Return the errors of random subsets of `count` candidates."""
        generators = [np.random.default_rng([count, draw]) for draw in range(draws)]
        size = self.columns.shape[1]
        return [self.error(np.sort(generator.permutation(size)[:count])) for generator in generators]


def open_pool(asked: argparse.Namespace, n_centers: int, seed: int) -> Pool:
    """Return the candidates that every run of this seed and this many centers has."""
    arguments = ["--centers", str(n_centers), "--seed", str(seed), "--penalty", "100"]
    layout, report = run(asked, f"pool-{n_centers}-{seed}", *arguments)
    store = feature_store_of(layout)
    generator = ColumnGenerator(read_arrays(layout.centers)["X"], float(asked.sigma2))
    X, truth = store.read("test", 0, report["n_test"]), store.targets("test", 0, report["n_test"])
    return Pool(layout, generator.block(X, out_dtype=np.float64), truth)


def compare(asked: argparse.Namespace, n_centers: int) -> Iterator[Facts]:
    """Run both couplings at every penalty on every pool; print and yield a row for each, and one for each pool."""
    pools = [open_pool(asked, n_centers, seed) for seed in range(asked.pools)]
    for penalty in asked.penalties:
        for coupling in COUPLINGS:
            for seed in range(asked.pools):
                row = compared_row(asked, n_centers, penalty, coupling, seed)
                count = row["model_n_centers"]
                row["errors_random"] = pools[seed].random_errors(count)
                others = [pool for index, pool in enumerate(pools) if index != seed]
                row["errors_random_elsewhere"] = [error for pool in others for error in pool.random_errors(count, 1)]
                print_row(row)
                yield row
    for seed, pool in enumerate(pools):
        error = pool.error(np.arange(n_centers))
        yield {"n_centers": n_centers, "coupling": None, "pool": seed, "error_refitted": error}
        print(f"{n_centers:>5}  pool {seed}, all {n_centers} candidates refitted: {_percent([error])} %")


def compared_row(asked: argparse.Namespace, n_centers: int, penalty: str, coupling: str, seed: int) -> Facts:
    """Run one coupling at one penalty on one pool; without the refit, which is for the seconds, on the first only."""
    arguments = ["--centers", str(n_centers), "--seed", str(seed), "--penalty", penalty, "--coupling", coupling]
    name = f"{coupling}-{n_centers}-{penalty}-{seed}"
    plain = run(asked, name, *arguments)[1] if seed == 0 else None
    _, report = run(asked, f"{name}-refit", *arguments, "--refit", "ridge")
    if plain:
        assert plain["error_rate"] == report["penalised"]["error_rate"], "two runs, two answers"
    return {
        "n_centers": n_centers,
        "penalty": float(penalty),
        "coupling": coupling,
        "pool": seed,
        "solve_seconds": plain["stages"]["solve"]["wall_seconds"] if plain else None,
        "solve_seconds_with_refit": report["stages"]["solve"]["wall_seconds"],
        "statistics_seconds": report["stages"]["statistics"]["wall_seconds"],
        "relative_gaps": [one["relative_gap"] for one in report["solves"]],
        "converged": report["converged"],
        "model_n_centers": report["model_n_centers"],
        "error": report["penalised"]["error_rate"],
        "error_refitted": report["error_rate"],
        "ridge": report["hold_out"]["ridge"],
    }


def print_header() -> None:
    print(f"{'M':>5}{'penalty':>9} {'coupling':<11}{'pool':>5}{'stat. s':>9}{'solve s':>9}{'+ refit':>9}", end="")
    print(f"{'rel. gap':>10}{'centers':>9}{'error %':>9}{'refit %':>9}  random of the pool, refitted | of other pools")


def print_row(row: Facts) -> None:
    solve = "" if row["solve_seconds"] is None else f"{row['solve_seconds']:.2f}"
    print(
        f"{row['n_centers']:>5}{row['penalty']:>9g} {row['coupling']:<11}{row['pool']:>5}"
        f"{row['statistics_seconds']:>9.2f}{solve:>9}{row['solve_seconds_with_refit']:>9.2f}"
        f"{max(row['relative_gaps']):>10.1e}{row['model_n_centers']:>9}"
        f"{100 * row['error']:>9.2f}{100 * row['error_refitted']:>9.2f}  {_percent(row['errors_random'])} |"
        f" {_percent(row['errors_random_elsewhere'])}{'' if row['converged'] else '  NOT CONVERGED'}",
        flush=True,
    )


def print_means(rows: list[Facts]) -> None:
    """Print the means over the pools: what the rows come to."""
    solved = [row for row in rows if row["coupling"]]
    print("\nmeans over the pools")
    for n_centers, penalty, coupling in dict.fromkeys((r["n_centers"], r["penalty"], r["coupling"]) for r in solved):
        own = [r for r in solved if (r["n_centers"], r["penalty"], r["coupling"]) == (n_centers, penalty, coupling)]
        error, refitted = (100 * float(np.mean([row[key] for row in own])) for key in ("error", "error_refitted"))
        control = 100 * float(np.mean([row["errors_random"] for row in own]))
        count = float(np.mean([row["model_n_centers"] for row in own]))
        seconds = float(np.mean([row["solve_seconds_with_refit"] for row in own]))
        print(
            f"M {n_centers}, penalty {penalty:g}, {coupling}: {count:.0f} centers in {seconds:.2f} s,"
            f" error {error:.2f} %, refitted {refitted:.2f} %, random of the same pool, refitted {control:.2f} %"
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
        for key, style, word in (("error", "+", "penalised"), ("error_refitted", "o", "refitted")):
            values = [100 * row[key] for row in own]
            errors.plot(counts, values, style, color=f"C{index}", markersize=4, label=f"{coupling}, {word}")
        seconds.plot(counts, [row["solve_seconds_with_refit"] for row in own], "o", color=f"C{index}", label=coupling)
    control = sorted((row["model_n_centers"], 100 * e) for row in solved for e in row["errors_random"])
    errors.plot(*zip(*control, strict=True), "kx", markersize=4, label="random of the same pool, refitted")
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
    rows: list[Facts] = []
    for n_centers in asked.centers:
        for row in compare(asked, n_centers):
            rows.append(row)  # a run that is broken off leaves what it has
            text = json.dumps({"sigma2": float(asked.sigma2), "rows": rows}, indent=2)
            (asked.out / "coupling.json").write_text(text + "\n", encoding="utf-8")
    print_means(rows)
    plot(rows, asked.out / "coupling.png")


if __name__ == "__main__":
    main()
