"""The paper's MNIST experiment, error at M = 1000 over several draws, and beyond it: more candidates, and a refit.

COMMAND: python jobs/paper/mnist.py [--out runs/paper] [--runs 5] [--all]

Beyond the paper there are 3000 candidates, once, and with `--all` all 60 000 (about ten minutes on two cores). Writes
DIR/mnist.json.
"""

import argparse
from dataclasses import dataclass

import cells
import paper

TABLE = "mnist"
N_TRAIN = 60_000


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in their seed."""

    size: int
    sigma2: float
    penalty: float
    runs: int

    def arguments(self, seed: int) -> list[str]:
        """Return the arguments of one run."""
        words = ["--sigma2", f"{self.sigma2:g}", "--penalty", f"{self.penalty:g}", "--refit", "ridge"]
        size = ["all", "--memory-limit", "4GiB"] if self.size == N_TRAIN else [str(self.size)]
        return [*words, "--centers", *size, "--seed", str(seed)]


def experiments(asked: argparse.Namespace) -> list[Experiment]:
    """Return what was asked for: the paper's setting, and what goes beyond it."""
    penalty = paper.PENALTY["mnist"]
    found = [Experiment(1000, paper.SIGMA2["mnist"], penalty, asked.runs)]
    found.append(Experiment(3000, paper.SIGMA2["mnist"], penalty, 1))
    if asked.all:
        # With every training point a candidate, the narrower kernel and a larger penalty: fewer centers.
        found.append(Experiment(N_TRAIN, 2.0, 1.0, 1))
    return found


def main() -> None:
    parser = cells.parser(__doc__, runs=5)
    parser.add_argument("--all", action="store_true", help="all training points as candidates too")
    asked = parser.parse_args()
    rows = []
    for experiment in experiments(asked):
        runs = [
            cells.trained(asked, "mnist", *experiment.arguments(seed), store=True) for seed in range(experiment.runs)
        ]
        m0 = [run.report["model_n_centers"] for run in runs]
        facts = {"m0": m0, "penalty": experiment.penalty, "sigma2": experiment.sigma2}
        for method, reports in (
            ("SLKL", [run.report["penalised"] for run in runs]),
            ("SLKL, refitted", [run.report for run in runs]),
        ):
            errors = [100 * report["error_rate"] for report in reports]
            one = cells.row(TABLE, "mnist", method, experiment.size, errors, command=runs[0].command, **facts)
            is_papers = method == "SLKL" and experiment.size == 1000
            rows.append(one | {"paper_mean": 100 * paper.MNIST_ERROR} if is_papers else one)
            cells.print_row(rows[-1], " %")
    cells.save(asked, TABLE, rows)


if __name__ == "__main__":
    main()
