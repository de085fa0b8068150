"""The paper's complaint, measured: most iterations pick coordinates that stay at zero.

COMMAND: python jobs/paper/scheduler.py [--out runs/paper] [--datasets sinc,usps,mnist] [--tol 1e-3]

The uniform schedule (the paper's, with exact steps) against those that leave coordinates out, each to the same
certified gap: coordinates visited and left out, scores evaluated, columns whose Gram was computed, seconds of the
solve. The last way starts from a small working set and computes the Gram of those candidates only that violate the
optimality conditions; its seconds contain those columns and the passes over the data that find them.
Writes DIR/scheduler.json.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import cells
import paper

# Arguments, number of candidates, and the working set of the last way.
DATA = {
    "sinc": ([], 1000, 200),
    "usps": ([], 1024, 700),
    "mnist": ([], 1000, None),  # ten classes need nearly all of their 1000 candidates
}
WAYS = {
    "uniform": ("--schedule", "uniform"),
    "shrinking": ("--schedule", "shrinking"),
    "newton": ("--schedule", "newton"),
}
HEAD = (
    f"{'data':<8}{'schedule':<22}{'visits':>12}{'left out':>10}{'scores':>12}{'columns':>9}{'seconds':>10}{'gap':>13}"
)


def compared(asked: argparse.Namespace, name: str) -> Iterator[dict[str, Any]]:
    """Run every way on a data set."""
    data, size, working_set = DATA[name]
    ways = WAYS | ({"newton, few columns": ("--set", f"centers.working_set={working_set}")} if working_set else {})
    dataset = cells.one_against_others(asked, name, 4) if name == "usps" else [name]
    settings = [*dataset, *data, "--sigma2", f"{paper.SIGMA2[name]:g}", "--penalty", f"{paper.PENALTY[name]:g}"]
    settings += ["--centers", str(size), "--tol", asked.tol, "--max-sweeps", "20000"]
    for way, arguments in ways.items():
        run = cells.trained(asked, *settings, *arguments, store=name != "sinc")
        solves, rounds = run.report["solves"], run.report["rounds"]
        facts: dict[str, Any] = {key: sum(one[key] for one in solves) for key in ("visits", "evaluations")}
        facts["left_out"] = sum(one[f"skipped_as_{why}"] for one in solves for why in ("shrunk", "screened"))
        facts["evaluations"] += sum(one["evaluated"] for one in rounds or [])
        facts["columns"] = max(one["working_set"] for one in rounds) if rounds else size
        stages = ("statistics", "solve") if rounds else ("solve",)
        facts["seconds"] = sum(run.report["stages"][stage]["wall_seconds"] for stage in stages)
        facts["relative_gap"] = max(one["relative_gap"] for one in solves)
        yield {"dataset": name, "M": size, "schedule": way, **facts, "command": run.command}


def main() -> None:
    parser = cells.parser(__doc__, runs=1)
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=list(DATA))
    parser.add_argument("--tol", default="1e-3")
    asked = parser.parse_args()
    rows = []
    print(HEAD)
    for name in asked.datasets:
        for row in compared(asked, name):
            rows.append(row)
            print(
                f"{name:<8}{row['schedule']:<22}{row['visits']:>12}{row['left_out']:>10}{row['evaluations']:>12}{row['columns']:>9}"
                f"{row['seconds']:>10.2f}{row['relative_gap']:>13.1e}",
                flush=True,
            )
    cells.save(asked, "scheduler", rows)


if __name__ == "__main__":
    main()
