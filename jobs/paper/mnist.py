"""The paper's MNIST experiment, error at M = 1000 over several draws, and beyond it: more candidates, and a refit.

COMMAND: python jobs/paper/mnist.py [--out runs/paper] [--runs 5] [--beyond]

`--beyond` adds 3000 candidates and all 60 000 (about ten minutes each on two cores). Writes DIR/mnist.json.
"""

import cells
import paper

TABLE = "mnist"
REFIT = ("--refit", "ridge")


def main() -> None:
    parser = cells.parser(__doc__, runs=5)
    parser.add_argument("--beyond", action="store_true", help="M = 3000 and all training points too")
    parser.add_argument("--memory-limit", default="4GiB")
    asked = parser.parse_args()
    penalty = paper.PENALTY["mnist"]
    common = ["--sigma2", "4", "--penalty", f"{penalty:g}"]
    cells: list[tuple[str, int, list[str], int]] = [
        ("SLKL", 1000, [*common, "--centers", "1000"], asked.runs),
        ("SLKL, refitted", 1000, [*common, "--centers", "1000", *REFIT], asked.runs),
    ]
    if asked.beyond:
        cells += [
            ("SLKL, refitted", 3000, [*common, "--centers", "3000", *REFIT], 1),
            # With every training point a candidate, the narrower kernel and a larger penalty: fewer centers.
            ("σ² 2, λν 1, refitted", 60000, ["--sigma2", "2", "--penalty", "1", "--centers", "all", *REFIT], 1),
        ]
    rows = []
    for method, size, arguments, count in cells:
        limit = ["--memory-limit", asked.memory_limit] if size == 60000 else []
        found = [
            cells.trained(asked, "mnist", *arguments, *limit, "--seed", str(seed), store=True) for seed in range(count)
        ]
        errors = [100 * run.report["error_rate"] for run in found]
        m0 = [run.report["model_n_centers"] for run in found]
        one = cells.row(
            TABLE, "mnist", method, size, errors, command=found[0].command, m0=m0, penalty=found[0].report["penalty"]
        )
        rows.append(cells.with_paper(one, 100 * paper.MNIST_ERROR) if method == "SLKL" else one)
        cells.print_row(rows[-1], " %")
    cells.save(asked, TABLE, rows)


if __name__ == "__main__":
    main()
