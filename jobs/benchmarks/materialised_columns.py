"""Columns on demand against the Gram of all candidates: how many are materialised, and what either takes.

COMMAND: python jobs/benchmarks/materialised_columns.py --out DIR [--centers 1000,10000] [--penalties 1,0.1]
         [--workers 2] [--data FILE.npz]

MNIST, the paper's features, sigma2 = 2, ten classes. Each run is a process of its own, after one that builds the
features and compiles. Columns made on the fly were scored and dropped again, each visit of a candidate counted;
materialised ones are kept and have a row of the Gram; m0 have a weight. Seconds are those of the whole run, of the
stages statistics and solve, and of their processors. Writes DIR/materialised-columns.json.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT / "jobs" / "paper" / "mnist.toml"
MODES = ("at-once", "on-demand")
STAGES = ("statistics", "solve")
HEAD = (
    f"{'M':>7}{'penalty':>9}  {'columns':<10}{'on the fly':>11}{'materialised':>13}{'m0':>7}{'gap':>9}"
    f"{'run s':>8}{'stages s':>10}{'CPU s':>8}{'GiB':>7}"
)


def trained(asked: argparse.Namespace, mode: str, *arguments: str) -> dict[str, Any]:
    """Train in a process of its own; return its report, with the seconds of the process."""
    folder = asked.out / f"{mode}-{time.time_ns()}"
    command = [sys.executable, "-m", "pipeline.train", asked.data, "--config", str(PAPER), "--sigma2", "2", "-q"]
    command += ["--features-dir", str(asked.out / "features"), "--run-dir", str(folder), "--workers", asked.workers]
    started = time.perf_counter()
    subprocess.run([*command, "--set", f"centers.columns={mode}", *arguments], check=True, cwd=ROOT)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report | {"process_seconds": time.perf_counter() - started, "command": " ".join(command[1:])}


def row_of(report: dict[str, Any], mode: str) -> dict[str, Any]:
    """Return what the table shows of a run."""
    candidates, costs = report["n_centers"], [report["stages"][stage] for stage in STAGES]
    whole = {"on_the_fly": 0, "materialised": candidates, "columns_never_made": 0}
    whole |= {"active": report["model_n_centers"], "candidates": candidates}
    return {
        "columns": mode,
        "penalty": report["penalty"],
        **(report["columns"] or whole),
        "rounds": len(report["rounds"] or []),
        "kernel_entries": report["kernel_entries"],
        "relative_gap": max(solve["relative_gap"] for solve in report["solves"]),
        "objective": sum(solve["objective"] for solve in report["solves"]),
        "seconds": report["process_seconds"],
        "stage_seconds": sum(cost["wall_seconds"] for cost in costs),
        "cpu_seconds": sum(cost["cpu_seconds"] for cost in costs),
        "peak_bytes": report["peak_rss_bytes"],
        "n_train": report["n_train"],
        "command": report["command"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--centers", type=lambda text: text.split(","), default=["1000", "10000"])
    parser.add_argument("--penalties", type=lambda text: text.split(","), default=["1", "0.1"])
    parser.add_argument("--workers", default="2")
    parser.add_argument("--data", default="mnist")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for mode in MODES:  # builds the features, and compiles
        trained(asked, mode, "--centers", "100", "--penalty", "10")
    rows = []
    print(HEAD)
    for size in asked.centers:
        for penalty in asked.penalties:
            for mode in MODES:
                rows.append(row_of(trained(asked, mode, "--centers", size, "--penalty", penalty), mode))
                one = rows[-1]
                print(
                    f"{one['candidates']:>7}{one['penalty']:>9g}  {mode:<10}{one['on_the_fly']:>11}"
                    f"{one['materialised']:>13}{one['active']:>7}{one['relative_gap']:>9.1e}{one['seconds']:>8.1f}"
                    f"{one['stage_seconds']:>10.1f}{one['cpu_seconds']:>8.1f}{one['peak_bytes'] / 2**30:>7.2f}",
                    flush=True,
                )
                (asked.out / "materialised-columns.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
