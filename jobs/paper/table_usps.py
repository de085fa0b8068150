"""The paper's table of errors on USPS: digit 4 against the rest, regression on the labels, threshold at zero.

COMMAND: python jobs/paper/table_usps.py [--out runs/paper] [--runs 20]

Beside the paper's stopping rule: the certified optimum of the same problem, and that refitted. Writes
DIR/table_usps.json.
"""

import argparse
from collections.abc import Iterator

import cells
import paper

TABLE = "table_usps"
POSITIVE = 4  # Only the errors of this digit fit the paper's at every M.


def cell(asked: argparse.Namespace, size: int) -> Iterator[cells.Row]:
    """Run every seed, and yield a row for each method."""
    penalty = paper.PENALTY["usps"]
    data = cells.one_against_others(asked, "usps", POSITIVE)
    common = ["--sigma2", f"{paper.SIGMA2['usps']:g}", "--centers", str(size)]
    runs = [
        cells.all_ways(asked, *data, *common, "--seed", str(seed), penalty=penalty, store=True)
        for seed in range(asked.runs)
    ]
    for method in cells.METHODS:
        reports = [run[method].report for run in runs]
        errors, m0 = ([report[key] for report in reports] for key in ("n_errors", "model_n_centers"))
        facts = {"command": runs[0][method].command, "penalty": penalty}
        yield cells.row(TABLE, "usps", method, size, errors, m0=m0, **facts)


def main() -> None:
    parser = cells.parser(__doc__)
    parser.add_argument("--sizes", type=cells.whole_numbers, default=paper.SIZES["usps"], help="some of the M only")
    asked = parser.parse_args()
    rows = []
    for size in asked.sizes:
        for one in cell(asked, size):
            cells.print_row(one, " errors")
            rows.append(one)
    cells.save(asked, TABLE, rows)


if __name__ == "__main__":
    main()
