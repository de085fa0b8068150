"""The paper's MNIST experiment, error at M = 1000 over several draws, and beyond it: more candidates, and a refit.

COMMAND: python jobs/paper/mnist.py [--out runs/paper] [--runs 5] [--beyond]

`--beyond` adds 3000 candidates and all 60 000 (about ten minutes each on two cores). Writes DIR/mnist.json.
"""

import argparse

import cells
import paper

TABLE = "mnist"
REFIT = ("--refit", "ridge")


def experiments(asked: argparse.Namespace) -> list[tuple[str, int, list[str], int]]:
    """Return method, number of candidates, arguments and number of runs of each experiment."""
    common = ["--sigma2", "4", "--penalty", f"{paper.PENALTY['mnist']:g}"]
    found = [
        ("SLKL", 1000, common, asked.runs),
        ("SLKL, refitted", 1000, [*common, *REFIT], asked.runs),
    ]
    if asked.beyond:
        # With every training point a candidate, the narrower kernel and a larger penalty: fewer centers.
        everything = ["--sigma2", "2", "--penalty", "1", *REFIT, "--memory-limit", asked.memory_limit]
        found += [("SLKL, refitted", 3000, [*common, *REFIT], 1), ("SLKL at σ² 2, refitted", 60000, everything, 1)]
    return found


def main() -> None:
    parser = cells.parser(__doc__, runs=5)
    parser.add_argument("--beyond", action="store_true", help="M = 3000 and all training points too")
    parser.add_argument("--memory-limit", default="4GiB", help="of the run with all training points")
    asked = parser.parse_args()
    rows = []
    for method, size, arguments, count in experiments(asked):
        centers = ["--centers", "all" if size == 60000 else str(size)]
        found = [
            cells.trained(asked, "mnist", *arguments, *centers, "--seed", str(seed), store=True)
            for seed in range(count)
        ]
        errors = [100 * run.report["error_rate"] for run in found]
        m0 = [run.report["model_n_centers"] for run in found]
        facts = {"m0": m0, "penalty": found[0].report["penalty"], "sigma2": found[0].report["sigma2"][0]}
        one = cells.row(TABLE, "mnist", method, size, errors, command=found[0].command, **facts)
        rows.append(cells.with_paper(one, 100 * paper.MNIST_ERROR) if method == "SLKL" else one)
        cells.print_row(rows[-1], " %")
    cells.save(asked, TABLE, rows)


if __name__ == "__main__":
    main()
