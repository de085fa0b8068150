"""What a user would pick instead: fit and prediction time, memory, size and error of each, on the same features.

COMMAND: python jobs/benchmarks/peers.py --out DIR [--dataset mnist] [--n-train N] [--methods svc,greedy-1000,...]
         [--cap SECONDS] [--threads N] [--features-dir DIR] [--data-dir DIR]

Methods: svc, nystroem-M, kernel-ridge-N, random-M are the peers (random centers and our own least squares); ridge-M,
all, greedy-K and greedy-K-M are ours (K centers of M candidates, 6 K unless given; all but `all` with an intercept, as
the peers have). `@SEED` after a method makes another draw. `mnist` has the paper's features, `mnist-soft-hog`
those of the default, for all methods. Tables, and gradient boosting, are those of `table_peers.py`.

Each has a process of its own and the same number of threads, and is ended once its fit or its prediction takes longer
than the cap, which is shown as > cap. What is timed: fits begin with the features in memory (peers) or on disk (ours:
candidates, statistics and solve) and end with the model, predictions are those of all test rows in memory by a
model that has predicted before; start and imports are not counted. Peak memory is that of the largest process, for the
peers with the features that they need. Writes DIR/peers.json, whose rows are not run again, and DIR/peers.png.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, variance
from typing import Any

from child_process import Facts, facts_of

METHODS = "svc,nystroem-1000,nystroem-3000,kernel-ridge-10000,random-1000,random-2000,ridge-1000,greedy-1000,"
METHODS += "greedy-2000-12000,greedy-1200-3500,all"
METHODS += "".join(f",nystroem-1000@{seed},ridge-1000@{seed}" for seed in range(1, 5))
SIZED = r"svc|all|(nystroem|kernel-ridge|random|ridge|greedy)-\d+(@\d+)?|greedy-\d+-\d+(@\d+)?"
OWN = ("ridge", "all", "greedy")
WORDS = {"svc": "SVC", "nystroem": "Nystroem({}) + ridge", "kernel-ridge": "kernel ridge, {} rows"}
WORDS |= {"random": "{} random centers", "ridge": "{} candidates", "all": "all candidates", "greedy": "greedy {}"}
PAIR = ("ridge", "nystroem")  # whose times and errors are compared, over all draws
INTERCEPT = ("--set", "solver.intercept=true")  # the paper's settings have none
POOL = 6  # candidates of a greedy selection for each center
WITHIN_POINTS, SMALLER, FASTER_FIT, FASTER_PREDICT = 0.2, 3, 5, 20
TIMES = {"fit_seconds": "fit", "predict_seconds": "predict the test part"}
COLUMNS = {"centers": 9, "error, %": 10, "fit, s": 10, "predict, s": 12, "peak, MiB": 11, "model, MiB": 12}
COLUMNS |= {"command, s": 12}  # header → width of the table's columns
START_SECONDS = 3600.0  # imports, and reading or building the features


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--dataset", choices=("mnist", "mnist-soft-hog", "digits", "usps"), default="mnist")
    parser.add_argument("--n-train", type=int, help="training rows: the first so many")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=METHODS.split(","))
    parser.add_argument("--cap", type=float, default=1800.0, help="seconds for each fit, and for each prediction")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--features-dir", type=lambda text: Path(text).absolute(), help="(default: DIR/features)")
    parser.add_argument("--data-dir", type=lambda text: str(Path(text).absolute()))
    found = parser.parse_args()
    if unknown := [name for name in found.methods if not re.fullmatch(SIZED, name)]:
        parser.error(f"unknown: {', '.join(unknown)}; methods are such as {METHODS}, greedy-1000-4000")
    return found


def runs_of(asked: argparse.Namespace) -> Path:
    """Return the folder of our runs with these settings; the one named features built them."""
    return asked.out / "runs" / f"{asked.dataset}-{asked.n_train or 'all'}-{asked.threads}"


def spoken_by(asked: argparse.Namespace, settings: Facts, cap: float) -> tuple[Facts, str]:
    """Let a process of its own do what `settings` ask for; return all facts it gave, and how it ended."""
    paths = {"runs": str(runs_of(asked))}
    paths |= {"features_dir": str(asked.features_dir or asked.out / "features"), "data_dir": asked.data_dir}
    libraries = (f"{name}_NUM_THREADS" for name in ("OPENBLAS", "OMP", "MKL", "NUMBA"))
    environment = {**os.environ, **dict.fromkeys(libraries, str(asked.threads))}
    command = [sys.executable, str(Path(__file__).with_name("peer_fits.py")), json.dumps(settings | paths)]
    facts, ended = facts_of(command, start_seconds=START_SECONDS, patience_seconds=cap, environment=environment)
    return {key: value for one in facts for key, value in one.items() if key != "ready"}, ended


def settings_of(common: Facts, name: str, n_train: int) -> Facts:
    """Return what the row of a method depends on."""
    called, _, seed = name.partition("@")
    kind, *numbers = re.sub(r"-(?=\d)", " ", called).split()
    size = int(numbers[0]) if numbers else 0
    arguments = {
        "ridge": ["--centers", str(size), "--penalty", "0.01", "--refit", "ridge", *INTERCEPT],
        "all": ["--centers", "all", "--penalty", "1", "--refit", "ridge", "--memory-limit", "4GiB"],
        "greedy": [
            "--centers",
            str(min(int((numbers[1:] or [POOL * size])[0]), n_train)),
            "--select",
            f"greedy:{size}",
            *INTERCEPT,
        ],
    }
    own = [*arguments[kind], "--seed", seed or "0"] if kind in arguments else None
    return common | {"name": name, "kind": kind, "size": size, "seed": int(seed or 0), "arguments": own}


def measured(asked: argparse.Namespace) -> Iterator[Facts]:
    """Yield the row of every method: those that the file has, and the others as they are done."""
    path = asked.out / "peers.json"
    kept: list[Facts] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    common = {"dataset": asked.dataset, "n_train": asked.n_train, "threads": asked.threads}
    if not (report := runs_of(asked) / "features" / "report.json").exists():
        _, ended = spoken_by(asked, common | {"kind": "features"}, START_SECONDS)
        if ended != "done":
            raise SystemExit(f"the features: {ended}")
    n_train = json.loads(report.read_text(encoding="utf-8"))["n_train"]

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
        yield row_of(settings_of(common, name, n_train))


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


def claims(rows: list[Facts]) -> Iterator[str]:
    """Yield whether each claim of the project holds, with its numbers."""
    done = {row["name"]: row for row in rows if row["ended"] == "done"}
    for size in sorted({row["asked_size"] for row in done.values() if row["kind"] == "ridge"}):
        drawn = [[row for row in done.values() if row["name"].partition("@")[0] == f"{kind}-{size}"] for kind in PAIR]
        if all(drawn):
            yield from sooner(*drawn)
    most = done["svc"]["error_percent"] + WITHIN_POINTS + 1e-9 if "svc" in done else 0.0
    small = [row for row in done.values() if row["kind"] == "greedy" and row["error_percent"] <= most]
    if not small:
        yield "NO  claim about SVC: it has no error here, or no greedy model comes near it"
        return
    svc = done["svc"]
    for ours in sorted(small, key=lambda row: row["size"]):
        errors = f"{ours['error_percent']:.2f} %, SVC {svc['error_percent']:.2f} %"
        yield f"yes within {WITHIN_POINTS} points: {ours['name']} {errors}"
        parts = (("size", SMALLER, "smaller"), ("fit_seconds", FASTER_FIT, "faster to fit"))
        for key, asked, words in (*parts, ("predict_seconds", FASTER_PREDICT, "faster to predict")):
            times, values = svc[key] / ours[key], f"{ours[key]:.4g} against {svc[key]:.4g}"
            yield f"{yes(times >= asked)} at least {asked} times {words}: {times:.1f} times ({values})"


def sooner(ours: list[Facts], others: list[Facts]) -> Iterator[str]:
    """Yield whether ours are fitted sooner than the others, at errors that are no higher than what draws differ by."""
    times, errors = (
        [[row[key] for row in rows] for rows in (ours, others)] for key in ("fit_seconds", "error_percent")
    )
    doubt = sum(variance(one) / len(one) for one in errors) ** 0.5 if min(map(len, errors)) > 1 else 0.0
    holds = mean(times[0]) < mean(times[1]) and mean(errors[0]) <= mean(errors[1]) + doubt
    cells = [f"{mean(t):.2f} s, {mean(e):.3f} % ({len(e)} draws)" for t, e in zip(times, errors, strict=True)]
    yield f"{yes(holds)} sooner fitted at no more errors (within {doubt:.3f}): {ours[0]['name']} {cells[0]}; "
    yield f"    {others[0]['name']} {cells[1]}"


def yes(holds: bool) -> str:
    return "yes" if holds else "NO "


def plot(rows: list[Facts], title: str, path: Path) -> None:
    """Draw error against the seconds of the fit and of the prediction, ours and theirs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5.5), layout="constrained", sharey=True)
    done = sorted((row for row in rows if row["ended"] == "done"), key=lambda row: row["error_percent"])
    for axis, key in zip(axes, TIMES, strict=True):
        axis.set(xscale="log", yscale="log", xlabel="seconds", title=f"error against time to {TIMES[key]}")
        for own, marker, color, owner in ((False, "s", "C7", "others"), (True, "o", "C0", "slkl")):
            points = [(row[key], row["error_percent"]) for row in done if (row["kind"] in OWN) == own]
            if points:
                axis.plot(*zip(*points, strict=True), marker, color=color, markersize=7, alpha=0.8, label=owner)
        axis.grid(True, which="both", alpha=0.15)
        axis.margins(0.15)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 3, 5, 7)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("test error, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(title)
    figure.draw_without_rendering()
    named = [row for row in done if "@" not in row["name"]]  # of several draws the first has a label
    texts = [(WORDS[row["kind"]].format(row["asked_size"]), row["kind"] in OWN) for row in named]
    for axis, key in zip(axes, TIMES, strict=True):
        put_labels(axis, [(row[key], row["error_percent"], *text) for row, text in zip(named, texts, strict=True)])
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def put_labels(axis: Any, points: list[tuple[float, float, str, bool]]) -> None:
    """Write each text beside its point (x, y, text, own), where it covers no other point or text and stays inside."""
    from matplotlib.transforms import Bbox

    inside = axis.get_window_extent()
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in axis.transData.transform([p[:2] for p in points])]
    places = [(x, y) for far in range(0, 60, 9) for y in (far, -far) for x in (9, -9)]
    for x, y, text, own in points:
        for dx, dy in places:
            side = {"ha": "left" if dx > 0 else "right", "va": "center", "fontsize": 8.5}
            color = "C0" if own else "0.35"
            note = axis.annotate(text, (x, y), (dx, dy), textcoords="offset points", color=color, **side)
            box = note.get_window_extent()
            free = not any(box.overlaps(other) for other in taken)
            if (free and inside.contains(*box.min) and inside.contains(*box.max)) or (dx, dy) == places[-1]:
                taken.append(box)
                break
            note.remove()


def main() -> None:
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    print("".join(["method".ljust(24), *(name.rjust(width) for name, width in COLUMNS.items())]), flush=True)
    rows = []
    for row in measured(asked):
        print(line(row), flush=True)
        rows.append(row)
    print("command: the whole of ours, with start, imports and test error")
    print("\n".join(["", *claims(rows)]))
    count = f"the first {asked.n_train} rows of " if asked.n_train else ""
    plot(rows, f"{count}{asked.dataset}, {asked.threads} threads", asked.out / "peers.png")


if __name__ == "__main__":
    main()
