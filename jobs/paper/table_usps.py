"""The paper's table of errors on USPS: digit 4 against the rest, regression on the labels, threshold at zero.

COMMAND: python jobs/paper/table_usps.py [--out runs/paper] [--runs 20]

Beside the paper's stopping rule: the certified optimum of the same problem, and that refitted. Writes
DIR/table_usps.json.
"""

import cells
import paper

TABLE = "table_usps"
POSITIVE = "4"  # the one digit whose errors fit the paper's at every M


def main() -> None:
    parser = cells.parser(__doc__)
    parser.add_argument("--sizes", type=cells.whole_numbers, default=paper.SIZES["usps"], help="some of the M only")
    asked = parser.parse_args()
    penalty, rows = paper.PENALTY["usps"], []
    ways = {
        "SLKL": cells.PAPER_WAY,
        "SLKL, certified": cells.CERTIFIED,
        "SLKL, refitted": (*cells.CERTIFIED, "--refit", "ridge"),
    }
    for size in asked.sizes:
        for method, way in ways.items():
            data = ["--set", f"data.positive={POSITIVE}", "--sigma2", f"{paper.SIGMA2['usps']:g}"]
            settings = [*data, "--centers", str(size), "--penalty", f"{penalty:g}", *way]
            found = [
                cells.trained(asked, "usps", *settings, "--seed", str(seed), store=True) for seed in range(asked.runs)
            ]
            errors = [run.report["n_errors"] for run in found]
            m0 = [run.report["model_n_centers"] for run in found]
            rows.append(
                cells.row(TABLE, "usps", method, size, errors, command=found[0].command, m0=m0, penalty=penalty)
            )
            cells.print_row(rows[-1], " errors")
    cells.save(asked, TABLE, rows)


if __name__ == "__main__":
    main()
