"""How a run grows with rows and workers, on threads, processes and a loopback cluster.

COMMAND: python jobs/benchmarks/scaling.py --out DIR [--rows 60000,600000] [--executors threads,processes,cluster]
         [--workers 1,2] [--repeats 1] [--centers 500] [--features-store none]

Deformed copies of scikit-learn's digits, whose features are computed whenever they are read, as they are. Every
run is a process of its own, in turns: all executors and numbers of workers (default: 1, 2, 4, ... up to the processors
here) on the first number of rows, then on the next. The cluster is a dask scheduler in this process and a worker
process for each worker, on loopback behind TLS with a key of its start; memory is that of the processes of a run and of
its workers, shared pages counted once (this process, with the scheduler in it, is left out). All runs on as many rows
must end with the same model, or the benchmark fails.

Cost a row is the statistics stage's CPU seconds a row. Asked of a growing number of rows, from 600 000 on, are a cost
within 10 % and memory within 5 %. The full question is --rows 60000,600000,10000000: half an hour on 2 cores for each
executor. Speed-ups for more workers than were tried are COMPUTED, not measured: seconds of each stage are fitted by
a serial share and one that is divided, by items, among the workers (amdahl.py). Neither memory bandwidth nor the
network of many machines is in that.

Writes DIR/scaling.json and DIR/scaling.png.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from amdahl import fit
from loopback_cluster import cluster

ROOT = Path(__file__).resolve().parents[2]
EXECUTORS = ("threads", "processes", "cluster")
PREDICTED = (16, 64)
SAMPLE_SECONDS = 0.2
MOST_DIGITS = 1347  # of the training part, each with as many copies as make the rows that are asked for
MOST_COST, MOST_MEMORY, SETTLED_ROWS = 1.10, 1.05, 600_000
REST = "start and end"  # of a run, outside its stages


@dataclass(frozen=True)
class Measured:
    """One run: wall seconds from start to end, CPU seconds and the most memory of its processes, its stages' costs."""

    rows: int
    executor: str
    workers: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    stages: dict[str, dict[str, float]]
    error_rate: float
    model_sha256: str

    @property
    def statistics(self) -> float:
        """Wall seconds of the statistics stage."""
        return self.stages["statistics"]["wall_seconds"]

    @property
    def stage_seconds(self) -> float:
        """Wall seconds of all stages."""
        return sum(stage["wall_seconds"] for stage in self.stages.values())

    @property
    def cost(self) -> float:
        """CPU seconds of the statistics stage for a row."""
        return self.stages["statistics"]["cpu_seconds"] / self.rows


class Peak(threading.Thread):
    """Looks at the memory of all children of this process, again and again, while its block runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._end = threading.Event()

    def run(self) -> None:
        this = psutil.Process()
        while not self._end.wait(SAMPLE_SECONDS):
            self.bytes = max(self.bytes, sum(map(proportional_bytes, this.children(recursive=True))))

    def __enter__(self) -> "Peak":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()


def proportional_bytes(process: psutil.Process) -> int:
    """Return the memory of a process, what it shares divided by those that share it; 0 where it has ended."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def measure(asked: argparse.Namespace, rows: int, executor: str, workers: int) -> Measured:
    """Train once, in a process of its own."""
    folder = asked.out / f"run-{time.time_ns()}"
    copies = -(-rows // MOST_DIGITS)
    command = [sys.executable, "-m", "pipeline.train", "digits", "-q", "--run-dir", str(folder)]
    command += ["--copies", str(copies), "--set", f"data.n_train={rows // copies}", "--features", "soft-hog"]
    command += ["--features-dir", str(asked.out / "features"), "--features-store", asked.features_store]
    command += ["--centers", str(asked.centers), "--sigma2", "4", "--penalty", "1", "--workers", str(workers)]
    before = cpu_of_children()
    with ExitStack() as stack:
        address, variables = executor, dict[str, str]()
        if executor == "cluster":
            address, variables = stack.enter_context(cluster(workers))
        peak = stack.enter_context(Peak())
        started = time.perf_counter()
        subprocess.run([*command, "--scheduler", address], cwd=ROOT, env=os.environ | variables, check=True)
        seconds = time.perf_counter() - started
    cpu = cpu_of_children() - before  # those of a cluster have ended with it
    report = json.loads((folder / "report.json").read_text())
    model = b"".join((folder / "model" / name).read_bytes() for name in ("model.json", "arrays.npz"))
    facts = (report["stages"], report["error_rate"], hashlib.sha256(model).hexdigest())
    return Measured(rows, executor, workers, seconds, cpu, peak.bytes, *facts)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def middle(runs: list[Measured]) -> Measured:
    """Return the run of median statistics seconds among the repeats of one."""
    return sorted(runs, key=lambda run: run.statistics)[(len(runs) - 1) // 2]


def all_runs(asked: argparse.Namespace) -> list[Measured]:
    """Return the median run of every size, executor and number of workers; prints each run."""
    places = [(rows, executor, n) for rows in asked.rows for executor in asked.executors for n in asked.workers]
    measure(asked, min(2000, *asked.rows), "threads", 1)  # compiles
    found: dict[tuple[int, str, int], list[Measured]] = {place: [] for place in places}
    print(f"{'rows':>10}{'executor':>11}{'workers':>9}{'statistics':>12}{'CPU':>9}{'run':>9}{'CPU':>9}{'peak MiB':>10}")
    for _ in range(asked.repeats):
        for place in places:
            run = measure(asked, *place)
            found[place].append(run)
            cpu = run.stages["statistics"]["cpu_seconds"]
            times = f"{run.statistics:>12.2f}{cpu:>9.2f}{run.seconds:>9.2f}{run.cpu_seconds:>9.2f}"
            print(f"{run.rows:>10}{run.executor:>11}{run.workers:>9}{times}{run.peak_bytes / 2**20:>10.0f}", flush=True)
    return [middle(runs) for runs in found.values()]


def growth(runs: list[Measured]) -> list[dict[str, Any]]:
    """Return cost a row and memory of every run, beside those of the fewest rows and of the fewest settled rows."""
    rows = []
    for run in runs:
        alike = [one for one in runs if (one.executor, one.workers) == (run.executor, run.workers)]
        first = min(alike, key=lambda one: one.rows)
        settled = min((one for one in alike if one.rows >= SETTLED_ROWS), key=lambda one: one.rows, default=run)
        rows.append(
            {
                "rows": run.rows,
                "executor": run.executor,
                "workers": run.workers,
                "cost_us": 1e6 * run.cost,
                "cost_to_first": run.cost / first.cost,
                "memory_to_first": run.peak_bytes / first.peak_bytes,
                "cost_to_settled": run.cost / settled.cost,
                "memory_to_settled": run.peak_bytes / settled.peak_bytes,
            }
        )
    return rows


def growth_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"\n{'rows':>10}{'executor':>11}{'workers':>9}{'us a row':>10}{'vs first':>10}{'memory vs first':>17}"
    for row in rows:
        line = f"{row['rows']:>10}{row['executor']:>11}{row['workers']:>9}{row['cost_us']:>10.1f}"
        line += f"{row['cost_to_first']:>10.2f}{row['memory_to_first']:>17.2f}"
        if row["rows"] > SETTLED_ROWS:
            cost, memory = row["cost_to_settled"], row["memory_to_settled"]
            holds = cost <= MOST_COST and memory <= MOST_MEMORY
            line += f"   {'yes' if holds else 'NO '} cost {cost:.2f}, memory {memory:.2f} times that of {SETTLED_ROWS}"
        yield line


def predictions(runs: list[Measured]) -> list[dict[str, Any]]:
    """Return measured and computed speed-ups over one worker, of the statistics and of the whole run."""
    rows = []
    for n_rows, executor in dict.fromkeys((run.rows, run.executor) for run in runs):
        alike = sorted((r for r in runs if (r.rows, r.executor) == (n_rows, executor)), key=lambda run: run.workers)
        if len(alike) < 2 or alike[0].workers != 1:
            continue
        stages = {
            name: fit(int(stage["items"]), {run.workers: run.stages[name]["wall_seconds"] for run in alike})
            for name, stage in alike[0].stages.items()
        }
        stages[REST] = fit(1, {run.workers: run.seconds - run.stage_seconds for run in alike})
        statistics = stages["statistics"]
        whole = [sum(fit.seconds(n) for fit in stages.values()) for n in (1, *PREDICTED)]
        alone = [statistics.seconds(n) for n in (1, *PREDICTED)]
        rows.append(
            {
                "rows": n_rows,
                "executor": executor,
                "items": statistics.items,
                "serial_share_statistics": statistics.serial / alone[0],
                "serial_share_run": sum(fit.serial for fit in stages.values()) / whole[0],
                "measured_statistics": {run.workers: alike[0].statistics / run.statistics for run in alike},
                "measured_run": {run.workers: alike[0].seconds / run.seconds for run in alike},
                "computed_statistics": {n: alone[0] / t for n, t in zip(PREDICTED, alone[1:], strict=True)},
                "computed_run": {n: whole[0] / t for n, t in zip(PREDICTED, whole[1:], strict=True)},
                "stages": {name: asdict(fit) for name, fit in stages.items()},
            }
        )
    return rows


def prediction_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield f"\n{row['rows']} rows, {row['executor']}, {row['items']} items of statistics; times as soon as 1 worker:"
        for what in ("statistics", "run"):
            measured = ", ".join(f"{n}: {times:.2f}" for n, times in row[f"measured_{what}"].items())
            computed = ", ".join(f"{n}: {times:.1f}" for n, times in row[f"computed_{what}"].items())
            serial = f"serial {100 * row[f'serial_share_{what}']:.1f} %"
            yield f"  {what:<12}measured {measured}; computed, not measured, {computed} ({serial})"


def plot(runs: list[Measured], predicted: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    most = max(run.rows for run in runs)
    for color, row in enumerate(row for row in predicted if row["rows"] == most):
        measured, computed = row["measured_statistics"], row["computed_statistics"]
        left.loglog(list(measured), list(measured.values()), "o-", color=f"C{color}", label=row["executor"])
        left.loglog(list(computed), list(computed.values()), "x:", color=f"C{color}", label="computed")
    ends = [1, max(PREDICTED)]
    left.loglog(ends, ends, "k--", linewidth=0.7, label="ideal")
    left.set(xlabel="workers", ylabel="times sooner", title=f"statistics, {most} rows")
    ticks(left, [2**k for k in range(max(PREDICTED).bit_length())])
    left.legend(fontsize="small")
    for executor, workers in dict.fromkeys((run.executor, run.workers) for run in runs):
        alike = [run for run in runs if (run.executor, run.workers) == (executor, workers)]
        sizes, name = [run.rows for run in alike], f"{executor}, {workers}"
        middle.semilogx(sizes, [1e6 * run.cost for run in alike], "o-", label=name)
        right.semilogx(sizes, [run.peak_bytes / 2**20 for run in alike], "o-", label=name)
    middle.set(xlabel="training rows", ylabel="µs of CPU a row, statistics")
    right.set(xlabel="training rows", ylabel="peak memory, MiB")
    for axes in (middle, right):
        ticks(axes, sorted({run.rows for run in runs}))
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def ticks(axes: Any, places: list[int]) -> None:
    axes.minorticks_off()
    axes.set_xticks(places, [f"{place:,}" for place in places])


def options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return sorted({int(item) for item in text.split(",")})

    def executors(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(EXECUTORS):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(EXECUTORS)}")
        return text.split(",")

    processors = len(psutil.Process().cpu_affinity() or [0])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), required=True)
    parser.add_argument("--rows", type=numbers, default=[60_000, 600_000])
    parser.add_argument("--executors", type=executors, default=list(EXECUTORS))
    parser.add_argument("--workers", type=numbers, default=[2**k for k in range(processors.bit_length())])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--centers", type=int, default=500)
    parser.add_argument("--features-store", choices=("zarr", "none"), default="none")
    return parser.parse_args()


def main() -> None:
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    runs = all_runs(asked)
    grown, predicted = growth(runs), predictions(runs)
    print("\n".join([*growth_lines(grown), *prediction_lines(predicted)]))
    facts = {"centers": asked.centers, "features_store": asked.features_store, "runs": [asdict(run) for run in runs]}
    facts |= {"growth": grown, "speed_up": predicted}
    (asked.out / "scaling.json").write_text(json.dumps(facts, indent=2) + "\n")
    plot(runs, predicted, asked.out / "scaling.png")
    for rows in asked.rows:
        if len({run.model_sha256 for run in runs if run.rows == rows}) > 1:
            sys.exit(f"the runs on {rows} rows ended with different models; scaling.json has their digests")


if __name__ == "__main__":
    main()
