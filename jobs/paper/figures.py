"""The paper's three figures, on sinc: the objective and m0 along the iterations, and the final m0 against M.

COMMAND: python jobs/paper/figures.py [--out runs/paper] [--runs 20]

The certified optimum of each problem is drawn in. Writes DIR/objective.png, DIR/excess.png, DIR/m0_iterations.png,
DIR/m0_size.png and DIR/figures.json.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import cells
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

PENALTIES = (1.0, 0.1, 0.01, 0.001)
SIZES = (64, 128, 256, 512, 1000)
LARGEST, NU = 1000, 0.01
VISITS = "iterations (coordinates visited)"


def sinc(asked: argparse.Namespace, size: int, penalty: float, seed: int, *way: str) -> cells.Trained:
    """Train on sinc."""
    settings = ["--sigma2", "1", "--centers", str(size), "--penalty", f"{penalty:g}", "--seed", str(seed)]
    return cells.trained(asked, "sinc", *settings, *way)


def along(asked: argparse.Namespace) -> dict[str, Any]:
    """Return objective and m0 after every sweep of the paper's method, and the optimum's, for each seed."""
    curves = []
    for seed in range(asked.runs):
        paper_way = sinc(asked, LARGEST, NU, seed, *cells.PAPER_WAY)
        certified = sinc(asked, LARGEST, NU, seed, "--tol", "1e-6")
        records = paper_way.records
        curves.append(
            {
                "visits": np.cumsum([record["visits"] for record in records]).tolist(),
                "objective": [record["objective"] for record in records],
                "m0": [record["n_active"] for record in records],
                "optimum": certified.report["solves"][0]["objective"],
                "optimum_m0": certified.report["model_n_centers"],
                "command": paper_way.command,
            }
        )
    return {"curves": curves}


def sizes(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the mean final m0 of the paper's method and of the certified optimum for every penalty and M."""
    found = []
    for penalty in PENALTIES:
        for size in SIZES:
            point: dict[str, Any] = {"penalty": penalty, "M": size}
            for name, way in (("paper", cells.PAPER_WAY), ("certified", cells.CERTIFIED)):
                runs = [sinc(asked, size, penalty, seed, *way) for seed in range(asked.runs)]
                m0 = [run.report["model_n_centers"] for run in runs]
                point |= {name: float(np.mean(m0)), f"{name}_std": float(np.std(m0)), "command": runs[0].command}
            found.append(point)
    return found


@contextmanager
def plot(path: Path, title: str, **labels: str) -> Iterator[Axes]:
    """Yield the axes of a figure, which is saved at the end."""
    figure, axes = pyplot.subplots(figsize=(5.5, 3.5), layout="constrained")
    yield axes
    axes.set(**labels)
    axes.set_title(title, fontsize=9)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_along(curves: list[dict[str, Any]], value: str, optimum: str, label: str, path: Path) -> None:
    """Draw one curve for each run, with the optima as dotted lines."""
    title = f"sinc, M = {LARGEST}, ν = {NU}, {len(curves)} runs; dotted: certified optimum"
    with plot(path, title, xlabel=VISITS, ylabel=label) as axes:
        for curve in curves:
            axes.plot(curve["visits"], curve[value], color="C0", alpha=0.4, linewidth=1)
            axes.axhline(curve[optimum], color="k", alpha=0.2, linewidth=0.8, linestyle=":")


def plot_excess(curves: list[dict[str, Any]], path: Path) -> None:
    """Draw how far the objective of each run is above its certified optimum."""
    title = f"sinc, M = {LARGEST}, ν = {NU}, {len(curves)} runs of the paper's method"
    with plot(path, title, xlabel=VISITS, ylabel="objective above the optimum, relative") as axes:
        for curve in curves:
            excess = np.array(curve["objective"]) / curve["optimum"] - 1
            axes.semilogy(curve["visits"], excess, color="C0", alpha=0.4, linewidth=1)


def plot_sizes(points: list[dict[str, Any]], runs: int, path: Path) -> None:
    """Draw the final m0 against M, a line for each penalty."""
    with plot(path, f"sinc, {runs} runs; dotted: certified optimum", xlabel="M", ylabel="m0") as axes:
        for k, penalty in enumerate(PENALTIES):
            own = [point for point in points if point["penalty"] == penalty]
            for name, style, label in (("paper", "-", f"ν = {penalty:g}"), ("certified", ":", None)):
                values = [[point[key] for point in own] for key in ("M", name, f"{name}_std")]
                axes.errorbar(*values, color=f"C{k}", linestyle=style, marker="o", markersize=3, capsize=2, label=label)
        axes.legend()


def main() -> None:
    asked = cells.parser(__doc__).parse_args()
    facts = along(asked)
    plot_along(facts["curves"], "objective", "optimum", "objective F", asked.out / "objective.png")
    plot_excess(facts["curves"], asked.out / "excess.png")
    plot_along(facts["curves"], "m0", "optimum_m0", "m0", asked.out / "m0_iterations.png")
    facts["sizes"] = sizes(asked)
    plot_sizes(facts["sizes"], asked.runs, asked.out / "m0_size.png")
    along_command, names = facts["curves"][0]["command"], ("objective.png", "excess.png", "m0_iterations.png")
    facts["commands"] = dict.fromkeys(names, along_command)
    facts["commands"]["m0_size.png"] = f"python jobs/paper/figures.py --runs {asked.runs}"
    (asked.out / "figures.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    print(f"figures: {asked.out / 'objective.png'}, excess.png, m0_iterations.png, m0_size.png")


if __name__ == "__main__":
    main()
