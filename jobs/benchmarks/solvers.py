"""The solver against what a user would pick instead, on the statistics of real MNIST.

COMMAND: python jobs/benchmarks/solvers.py --out DIR [--centers 1000,2000] [--penalties 1,0.1,0.01] [--cap 600]
         [--classes 0] [--solvers ours,uniform,lars,...] [--parts peers,evaluations,speed] [--data-dir DIR]

Three parts. `peers`: each solver in a process of its own on one BLAS thread (`solver_peers.py` says how each is
called), killed once a solve is silent for the cap; seconds to a relative gap, which is the project's own from each
one's weights. `evaluations`: scores evaluated by the default schedule and by the paper's uniform one, ten classes.
`speed`: ten solves against the statistics stage of the same run. Writes DIR/solvers.json and DIR/solvers.png.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from child_process import facts_of
from mnist_runs import feature_store_of, run_mnist
from threadpoolctl import threadpool_limits

from features.targets import outputs
from pipeline.kernels.gram_statistics import RowBounds, StatisticsSums, largest_terms
from pipeline.kernels.kernel_functions import GaussianKernel
from pipeline.solvers.problem import Problem, check_gram
from pipeline.solvers.solve import solve
from pipeline.solvers.state import SolverOptions
from pipeline.stages.fit_model import draw_rows

TARGETS = (1e-3, 1e-4)
SOLVERS = ("ours", "uniform", "lars", "lasso-gram", "celer", "celer-path", "celer-root", "skglm", "skglm-root")
OWN, ON_COLUMNS = ("ours", "uniform"), ("celer", "celer-path", "skglm")
SIGMA2, BLOCK_ROWS, START_SECONDS = 4.0, 2048, 300.0  # start: imports, reading columns, just-in-time compilation
Facts = dict[str, Any]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--centers", type=_whole_numbers, default=(1000, 2000))
    parser.add_argument("--penalties", type=_numbers, default=(1.0, 0.1, 0.01))
    parser.add_argument("--cap", type=float, default=600.0, help="seconds for each solve of a peer")
    parser.add_argument("--classes", type=_whole_numbers, default=(0,), help="classes of the part peers")
    parser.add_argument("--solvers", type=lambda text: text.split(","), default=SOLVERS)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=("peers", "evaluations", "speed"))
    parser.add_argument("--sweep-cap", type=int, default=200, help="sweeps of the uniform schedule")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the part speed")
    parser.add_argument("--data-dir")
    found = parser.parse_args()
    unknown = set(found.solvers) - set(SOLVERS) | set(found.parts) - {"peers", "evaluations", "speed"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; solvers are {', '.join(SOLVERS)}")
    return found


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(item) for item in text.split(","))


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(","))


def training_rows(asked: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return all training features (n, d) f4 and ±1 targets (n, 10) f8, from a feature store built where needed."""
    arguments = ["--centers", "10", "--penalty", "100"]
    layout, report = run_mnist(asked.out, asked.data_dir, "features-run", *arguments)
    store, n_rows = feature_store_of(layout), report["n_train"]
    return store.read("train", 0, n_rows), outputs(store.targets("train", 0, n_rows), "multiclass", 10)


def prepare(folder: Path, X: np.ndarray, Y: np.ndarray, n_centers: int, keep_columns: bool) -> Facts:
    """Write what `solver_peers.py` reads for a number of centers; return the seconds of each part, on one thread."""
    kernel = GaussianKernel(X[draw_rows(np.arange(len(X)), n_centers, 0)], SIGMA2)
    sums = StatisticsSums(n_centers, RowBounds.of(largest_terms(Y)), BLOCK_ROWS, -(-len(X) // BLOCK_ROWS))
    columns = np.empty((len(X), n_centers), order="F") if keep_columns else None
    seconds = dict.fromkeys(("columns", "gram", "gram_check", "root"), 0.0)

    def spent(part: str, since: float) -> float:
        seconds[part] += time.perf_counter() - since
        return time.perf_counter()

    with threadpool_limits(1):
        for start in range(0, len(X), BLOCK_ROWS):
            rows, now = slice(start, start + BLOCK_ROWS), time.perf_counter()
            block = kernel.block(X[rows], out_dtype=np.float64)
            now = spent("columns", now)
            sums.add(block, Y[rows])
            spent("gram", now)
            if columns is not None:
                columns[rows] = block
        found, now = sums.statistics(), time.perf_counter()
        check_gram(found.gram)
        now = spent("gram_check", now)
        values, vectors = np.linalg.eigh(found.gram)
        kept = values > 1e-15 * values[-1]
        root = np.asfortranarray((vectors[:, kept] * np.sqrt(values[kept])).T)
        root_targets = (vectors[:, kept].T @ found.kty) / np.sqrt(values[kept])[:, None]
        spent("root", now)
    arrays = {"gram": found.gram, "kty": found.kty, "yty": found.yty, "targets": Y}
    arrays |= {"root": root, "root_targets": root_targets} | ({} if columns is None else {"columns": columns})
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return seconds


def run_peer(folder: Path, name: str, output: int, penalty: float, cap: float) -> Facts:
    """Return the points of one solver, and how it ended: done, capped, or the error it died of."""
    script = Path(__file__).with_name("solver_peers.py")
    command = [sys.executable, str(script), str(folder), name, str(output), str(penalty), str(cap)]
    # The project's own schedules stop by themselves, with all their points at the end.
    patience = 2 * cap + 60 if name in OWN else cap
    points, ended = facts_of(command, start_seconds=START_SECONDS, patience_seconds=patience)
    return {"solver": name, "class": output, "ended": ended, "points": [p for p in points if "seconds" in p]}


def seconds_to(points: list[Facts], target: float) -> float | None:
    """Return the seconds of the fastest point within a relative gap, None where there is none."""
    return min((point["seconds"] for point in points if point["relative_gap"] <= target), default=None)


def compare_with_peers(asked: argparse.Namespace, n_centers: int, folder: Path) -> Iterator[Facts]:
    """Run every solver at every penalty and class; print and yield each row as it comes."""
    print(f"{'M':>6}{'penalty':>9}{'class':>6} {'solver':<12}{'s to 1e-3':>11}{'s to 1e-4':>11}", end="")
    print(f"{'best gap':>10}{'support':>8}  ended")
    for penalty in asked.penalties:
        for output in asked.classes:
            for name in asked.solvers:
                row = run_peer(folder, name, output, penalty, asked.cap)
                points, cap = row["points"], f"> {asked.cap:g} s"
                row |= {"n_centers": n_centers, "penalty": penalty, "seconds_to": {}}
                row["seconds_to"] = {f"{target:g}": seconds_to(points, target) for target in TARGETS}
                best = min(points, key=lambda point: point["relative_gap"], default=None)
                missed = cap if row["ended"] == "capped" or name == "uniform" else "never"
                cells = [missed if s is None else f"{s:.3f}" for s in row["seconds_to"].values()]
                gap, support = (f"{best['relative_gap']:.1e}", best["n_active"]) if best else ("none", "-")
                print(f"{n_centers:>6}{penalty:>9g}{output:>6} {name:<12}{cells[0]:>11}{cells[1]:>11}", end="")
                print(f"{gap:>10}{support:>8}  {row['ended']}", flush=True)
                yield row


def verdicts(rows: list[Facts], cap: float) -> list[Facts]:
    """Return for each problem and gap how many times faster ours is than the best of the peers."""
    found = []
    for ours in (row for row in rows if row["solver"] == "ours" and row["points"]):
        key = ("n_centers", "penalty", "class")
        peers = [row for row in rows if row["solver"] not in OWN and all(row[k] == ours[k] for k in key)]
        for target, own in ours["seconds_to"].items():
            times = {row["solver"]: row["seconds_to"][target] for row in peers}
            reached = {name: seconds for name, seconds in times.items() if seconds is not None}
            best = min(reached, key=lambda name: reached[name], default=None)
            seconds = cap if best is None else reached[best]
            support = ours["points"][-1]["n_active"]
            fact = {k: ours[k] for k in key} | {"gap": target, "support": support, "ours": own}
            fact |= {"best": best, "best_seconds": seconds, "times_ahead": seconds / own if own else None}
            found.append(fact | {"asked_times": 3.0 if support > 500 else 1.0})
    return found


def print_verdicts(facts: list[Facts]) -> None:
    print("\nours against the best of the others")
    for fact in facts:
        if fact["ours"] is None:
            words = "ours did not reach it"
        elif fact["best"] is None:
            words = f"ours {fact['ours']:.3f} s, no other reached it within the cap"
        else:
            words = f"{fact['times_ahead']:.2f} times ahead of {fact['best']} ({fact['best_seconds']:.3f} s)"
        short = fact["times_ahead"] is None or fact["times_ahead"] < fact["asked_times"]
        words += f"  FALLS SHORT of {fact['asked_times']:g}" if short else ""
        place = f"M {fact['n_centers']}, penalty {fact['penalty']:g}, class {fact['class']}, gap {fact['gap']}"
        print(f"{place}, support {fact['support']}: {words}")


def own_evaluations(problem: Problem, target: float) -> int:
    """Return the scores that the default schedule evaluates, certificates and Newton rounds included."""
    solution = solve(problem, SolverOptions(tolerance=target, max_sweeps=10_000), np.random.default_rng(0))
    assert solution.converged, solution.status.value
    return solution.state.evaluations


def uniform_visits(sweep_cap: int, problem: Problem) -> list[int | None]:
    """Return for each gap the visits of the uniform schedule, None where its sweeps did not do.

    It certifies after each sweep (M more scores), which is how we know when to stop, and not what the method needs.
    """
    options = SolverOptions(tolerance=TARGETS[-1], schedule="uniform", max_sweeps=sweep_cap)
    gaps = [record.relative_gap for record in solve(problem, options, np.random.default_rng(0)).state.records]
    sweeps = [next((i for i, gap in enumerate(gaps, 1) if gap is not None and gap <= t), None) for t in TARGETS]
    return [None if count is None else count * problem.n_candidates for count in sweeps]


def count_evaluations(asked: argparse.Namespace, folder: Path) -> list[Facts]:
    """Count evaluations of both schedules over ten classes; the sum where uniform is capped is a lower bound."""
    gram, kty, yty = (np.load(folder / f"{name}.npy") for name in ("gram", "kty", "yty"))
    print(f"\nscore evaluations, ten classes, M = {len(gram)}; uniform is given {asked.sweep_cap} sweeps")
    print(f"{'penalty':>8}{'gap':>7}{'ours':>9}", end="")
    print(f"{'uniform visits':>16}{'times':>7}{'+ certificates':>16}{'times':>7}  capped")
    facts = []
    for penalty in asked.penalties:
        problems = [Problem(gram, np.ascontiguousarray(kty[:, k]), float(yty[k]), penalty) for k in range(len(yty))]
        with threadpool_limits(1), ThreadPoolExecutor(2) as pool:
            uniform = list(pool.map(partial(uniform_visits, asked.sweep_cap), problems))
        for index, target in enumerate(TARGETS):
            with threadpool_limits(1):
                own = [own_evaluations(problem, target) for problem in problems]
            found = [one[index] for one in uniform]
            visits = sum(asked.sweep_cap * len(gram) if count is None else count for count in found)
            fact = {
                "penalty": penalty,
                "gap": target,
                "sweep_cap": asked.sweep_cap,
                "classes_capped": found.count(None),
            }
            fact |= {"own": sum(own), "uniform_visits": visits, "uniform_certificates": visits}
            fact |= {"own_by_class": own, "uniform_visits_by_class": found}
            facts.append(fact)
            print_evaluations(fact)
    return facts


def print_evaluations(fact: Facts) -> None:
    every, visits = fact["own"], fact["uniform_visits"]
    mark = ">" if fact["classes_capped"] else ""
    print(
        f"{fact['penalty']:>8g}{fact['gap']:>7g}{every:>9}"
        f"{mark + str(visits):>16}{visits / every:>7.2f}{mark + str(2 * visits):>16}{2 * visits / every:>7.2f}"
        f"  {fact['classes_capped']} of {len(fact['own_by_class'])}",
        flush=True,
    )


def measure_speed(asked: argparse.Namespace) -> list[Facts]:
    """Run the whole command at penalty 0.01 to a gap of 1e-4; solve stage against statistics stage."""
    print("\nten classes, M = 1000, penalty 0.01, gap 1e-4, two workers")
    rows = []
    for repeat in range(asked.repeats):
        arguments = ["--centers", "1000", "--sigma2", str(SIGMA2), "--penalty", "0.01", "--tol", "1e-4"]
        _, report = run_mnist(asked.out, asked.data_dir, f"speed-{repeat}", "--workers", "2", *arguments)
        row = {name: report["stages"][name]["wall_seconds"] for name in ("statistics", "solve")}
        row |= {"times": row["solve"] / row["statistics"]}
        row |= {"worst_gap": max(one["relative_gap"] for one in report["solves"])}
        rows.append(row)
        print("  ".join(f"{name} {value:.3g}" for name, value in row.items()), "(at most 2 times is asked for)")
    return rows


def plot(rows: list[Facts], path: Path) -> None:
    """Draw gap against seconds, one panel for each number of centers and penalty."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = sorted({row["n_centers"] for row in rows})
    widths = sorted({row["penalty"] for row in rows}, reverse=True)
    figure, axes = pyplot.subplots(
        len(heights), len(widths), figsize=(5 * len(widths), 4 * len(heights)), squeeze=False, sharey=True
    )
    for row in (row for row in rows if row["points"]):
        axis = axes[heights.index(row["n_centers"])][widths.index(row["penalty"])]
        # Ours solves once for each gap asked for: the curve is that of the smallest.
        shown = [p for p in row["points"] if row["solver"] not in OWN or p["tolerance"] == TARGETS[-1]]
        points = sorted((point["seconds"], max(point["relative_gap"], 1e-12)) for point in shown)
        color = f"C{SOLVERS.index(row['solver'])}"
        label = row["solver"] if row["class"] == rows[0]["class"] else None
        axis.loglog(*zip(*points, strict=True), "o-", markersize=3, color=color, label=label)
        axis.set_title(f"M = {row['n_centers']}, penalty {row['penalty']:g}")
    for axis in axes.flat:
        axis.axhline(TARGETS[0], color="0.8", zorder=0)
        axis.axhline(TARGETS[1], color="0.8", zorder=0)
        axis.set(xlabel="seconds, from cold", ylabel="relative gap")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    facts: Facts = {
        "sigma2": SIGMA2,
        "cap_seconds": asked.cap,
        "preparation": {},
        "peers": [],
        "processors": os.cpu_count(),
    }

    def save() -> None:  # after each row: a long run that is broken off leaves what it has
        (asked.out / "solvers.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    if "speed" in asked.parts:
        # Features built, code compiled.
        run_mnist(asked.out, asked.data_dir, "warm-up", "--centers", "100", "--penalty", "0.01")
        facts["speed"] = measure_speed(asked)
        save()
    X, Y = training_rows(asked)
    for n_centers in asked.centers:
        with tempfile.TemporaryDirectory(dir=asked.out, prefix="statistics-") as name:
            keep = "peers" in asked.parts and bool(set(asked.solvers) & set(ON_COLUMNS))
            seconds = prepare(Path(name), X, Y, n_centers, keep)
            facts["preparation"][n_centers] = seconds
            words = ", ".join(f"{part.replace('_', ' ')} {value:.2f} s" for part, value in seconds.items())
            print(f"\nM = {n_centers}, one thread, not counted below: {words}")
            if "evaluations" in asked.parts and n_centers == asked.centers[0]:
                facts["evaluations"] = count_evaluations(asked, Path(name))
            if "peers" in asked.parts:
                for row in compare_with_peers(asked, n_centers, Path(name)):
                    facts["peers"].append(row)
                    save()
            save()
    if facts["peers"]:
        facts["verdicts"] = verdicts(facts["peers"], asked.cap)
        print_verdicts(facts["verdicts"])
        plot(facts["peers"], asked.out / "solvers.png")
    save()


if __name__ == "__main__":
    main()
