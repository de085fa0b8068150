"""What a user would pick instead: fit and prediction time, memory, size and error of each, on the same features.

COMMAND: python jobs/benchmarks/peers.py --out DIR [--dataset mnist] [--n-train N] [--methods svc,ridge-1000,...]
         [--cap SECONDS] [--threads N]

Methods: svc, nystroem-M, kernel-ridge-N, random-M are the peers (random centers and our own least squares); ridge-M and
greedy-K-M are ours (K centers of M candidates; with an intercept, as the peers have). `@SEED` after a method makes
another draw. `mnist` has the paper's features, `mnist-soft-hog` those of the default, for all methods. Tables, and
gradient boosting, are those of `table_peers.py`.

Each has a process of its own and the same number of threads, and is ended once its fit or its prediction takes longer
than the cap, which is shown as > cap. What is timed: fits begin with the features in memory (peers) or on disk (ours:
candidates, statistics and solve) and end with the model, predictions are those of all test rows in memory by a
model that has predicted before; start and imports are not counted. Peak memory is that of the largest process, for the
peers with the features that they need. Writes DIR/peers.json, whose rows are not run again.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from child_process import Facts, facts_of

METHODS = "svc,nystroem-1000,nystroem-3000,kernel-ridge-10000,random-2000,ridge-1000,greedy-1200-3500,greedy-2000-12000"
SIZED = r"svc|((nystroem|kernel-ridge|random|ridge)-\d+|greedy-\d+-\d+)(@\d+)?"
INTERCEPT = ("--set", "solver.intercept=true")  # The paper's settings have none.
COLUMNS = {"centers": 9, "error, %": 10, "fit, s": 10, "predict, s": 12, "peak, MiB": 11, "model, MiB": 12}
COLUMNS |= {"command, s": 12}  # header → width of the table's columns
START_SECONDS = 3600.0  # A start imports, and reads or builds the features.


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--dataset", choices=("mnist", "mnist-soft-hog", "digits"), default="mnist")
    parser.add_argument("--n-train", type=int, help="training rows: the first so many")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=METHODS.split(","))
    parser.add_argument("--cap", type=float, default=1800.0, help="seconds for each fit, and for each prediction")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    found = parser.parse_args()
    if unknown := [name for name in found.methods if not re.fullmatch(SIZED, name)]:
        parser.error(f"unknown: {', '.join(unknown)}; methods are such as {METHODS}")
    return found


def runs_of(asked: argparse.Namespace) -> Path:
    """Return the folder of our runs with these settings; the one named features built them."""
    return asked.out / "runs" / f"{asked.dataset}-{asked.n_train or 'all'}-{asked.threads}"


def spoken_by(asked: argparse.Namespace, settings: Facts, cap: float) -> tuple[Facts, str]:
    """Let a process of its own do what `settings` ask for; return all facts it gave, and how it ended."""
    paths = {"runs": str(runs_of(asked)), "features_dir": str(asked.out / "features")}
    libraries = (f"{name}_NUM_THREADS" for name in ("OPENBLAS", "OMP", "MKL", "NUMBA"))
    environment = {**os.environ, **dict.fromkeys(libraries, str(asked.threads))}
    command = [sys.executable, str(Path(__file__).with_name("peer_fits.py")), json.dumps(settings | paths)]
    facts, ended = facts_of(command, start_seconds=START_SECONDS, patience_seconds=cap, environment=environment)
    return {key: value for one in facts for key, value in one.items() if key != "ready"}, ended


def settings_of(common: Facts, name: str) -> Facts:
    """Return what the row of a method depends on."""
    called, _, seed = name.partition("@")
    kind, *numbers = re.sub(r"-(?=\d)", " ", called).split()
    size = int(numbers[0]) if numbers else 0
    arguments = {
        "ridge": ["--centers", str(size), "--penalty", "0.01", "--refit", "ridge", *INTERCEPT],
        "greedy": ["--centers", *numbers[1:], "--select", f"greedy:{size}", *INTERCEPT],
    }
    own = [*arguments[kind], "--seed", seed or "0"] if kind in arguments else None
    return common | {"name": name, "kind": kind, "size": size, "seed": int(seed or 0), "arguments": own}


def measured(asked: argparse.Namespace) -> Iterator[Facts]:
    """Yield the row of every method: those that the file has, and the others as they are done."""
    path = asked.out / "peers.json"
    kept: list[Facts] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    common = {"dataset": asked.dataset, "n_train": asked.n_train, "threads": asked.threads}
    if not (runs_of(asked) / "features" / "report.json").exists():
        _, ended = spoken_by(asked, common | {"kind": "features"}, START_SECONDS)
        if ended != "done":
            raise SystemExit(f"the features: {ended}")

    def row_of(settings: Facts) -> Facts:
        for row in kept:
            again = row["ended"] != "done" and not (row["ended"] == "capped" and row["cap_seconds"] >= asked.cap)
            if row["settings"] == settings and not again:
                return row
        facts, ended = spoken_by(asked, settings, asked.cap)
        names = {key: settings[key] for key in ("name", "kind")} | {"asked_size": settings["size"]}
        row = {**names, **facts, "ended": ended, "cap_seconds": asked.cap, "settings": settings}
        kept[:] = [*(one for one in kept if one["settings"] != settings), row]
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        return row

    for name in asked.methods:
        yield row_of(settings_of(common, name))


def line(row: Facts) -> str:
    """Return a row of the table; what the cap left out is the cap, or empty."""

    def seconds(key: str, due: bool) -> str:
        late = f"> {row['cap_seconds']:g}" if due and row["ended"] == "capped" else ""
        return f"{row[key]:.2f}" if key in row else late

    fit, predict = seconds("fit_seconds", True), seconds("predict_seconds", "fit_seconds" in row)
    size, error = row.get("size", ""), f"{row['error_percent']:.2f}" if "error_percent" in row else ""
    memory = [f"{row[key] / 2**20:.0f}" if key in row else "" for key in ("peak_bytes", "model_bytes")]
    cells = (str(size), error, fit, predict, *memory, seconds("command_seconds", False))
    text = row["name"].ljust(24) + "".join(cell.rjust(n) for cell, n in zip(cells, COLUMNS.values(), strict=True))
    return text.rstrip() + ("" if row["ended"] in ("done", "capped") else f"  {row['ended']}")


def main() -> None:
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    print("".join(["method".ljust(24), *(name.rjust(width) for name, width in COLUMNS.items())]), flush=True)
    for row in measured(asked):
        print(line(row), flush=True)
    print("command: the whole of ours, with start, imports and test error")


if __name__ == "__main__":
    main()
