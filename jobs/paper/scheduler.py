"""The paper's complaint, measured: most iterations pick coordinates that stay at zero.

COMMAND: python jobs/paper/scheduler.py [--out runs/paper] [--datasets sinc,usps,mnist] [--tol 1e-3]

The uniform schedule (the paper's, with its Newton steps and with exact ones) against the shrinkage-aware one, each to
the same certified gap: coordinates visited, scores evaluated (each needs a column of the Gram), seconds of the solve.
Writes DIR/scheduler.json.
"""

import json
from typing import Any

import cells
import paper

DATA = {"sinc": ([], 1000), "usps": (["--set", "data.positive=4"], 1024), "mnist": ([], 1000)}
WAYS = {
    "uniform, Newton steps": ("--schedule", "uniform", "--step", "newton"),
    "uniform, exact steps": ("--schedule", "uniform", "--step", "exact"),
    "shrinkage-aware": ("--schedule", "shrinking"),
}


def main() -> None:
    parser = cells.parser(__doc__, runs=1)
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=list(DATA))
    parser.add_argument("--tol", default="1e-3")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'data':<8}{'schedule':<24}{'visits':>12}{'scores':>12}{'seconds':>10}{'largest gap':>13}")
    for name in asked.datasets:
        data, size = DATA[name]
        for way, arguments in WAYS.items():
            settings = ["--sigma2", f"{paper.SIGMA2[name]:g}", "--penalty", f"{paper.PENALTY[name]:g}"]
            run = cells.trained(
                asked, name, *data, *settings, "--centers", str(size), "--tol", asked.tol, "--max-sweeps", "20000",
                *arguments, store=name != "sinc",
            )  # fmt: skip
            solves = run.report["solves"]
            facts: dict[str, Any] = {key: sum(one[key] for one in solves) for key in ("visits", "evaluations")}
            facts["seconds"] = sum(one["wall_seconds"] for one in solves)
            facts["relative_gap"] = max(one["relative_gap"] for one in solves)
            rows.append({"dataset": name, "M": size, "schedule": way, **facts, "command": run.command})
            print(
                f"{name:<8}{way:<24}{facts['visits']:>12}{facts['evaluations']:>12}{facts['seconds']:>10.2f}"
                f"{facts['relative_gap']:>13.1e}",
                flush=True,
            )
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "scheduler.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
