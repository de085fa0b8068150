"""Error against number of centers: greedy selection, penalised selection refitted, random centers, k-means, and SVC.

COMMAND: python jobs/benchmarks/size.py --out DIR [--datasets mnist,usps] [--pool 6000]
         [--sizes 100,200,400,700,1000,1500,3000] [--methods greedy,penalised,random,kmeans,svc] [--svc-cap 3600]

All methods see the same features, and all but SVC end in least squares with a ridge chosen on the same held-out rows.
Greedy and penalised selections choose from one pool of random candidates; a greedy selection of the largest size is cut
to the others. Penalised selections have the sizes that their penalties give.
Writes DIR/size.json, DIR/size-mnist.png, …; a method that is there already with the same settings is not run again.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from mnist_runs import SETTINGS, least_squares, read_part, report_of
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.kernels.kernel_forms import ColumnGenerator
from pipeline.prediction.model_folder import load_model
from pipeline.resize import resize_run
from pipeline.solvers.problem import problem_of
from pipeline.solvers.regularization_path import penalty_max, solve_path, spaced
from pipeline.solvers.ridge import refit
from pipeline.solvers.state import SolverOptions
from pipeline.stages import accumulate_statistics as statistics
from pipeline.train import main as train
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

# Method → the options that its rows depend on.
METHODS = {
    "greedy": ("pool", "sizes"),
    "penalised": ("pool", "largest_penalised", "penalised_cap"),
    "random": ("sizes",),
    "kmeans": ("sizes",),
    "svc": (),
}
SEEDS, SVC_C = (0, 1, 2), 10.0
Facts = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One model: its size, its errors on the test part, what it took to fit (features aside) and to predict."""

    dataset: str
    method: str
    size: int
    seed: int
    error_percent: float
    fit_seconds: float
    predict_seconds: float
    note: str = ""


@dataclass(frozen=True)
class Data:
    """Features and targets of both parts, in memory, and the run that chose from the pool."""

    dataset: str
    sigma2: float
    X: NDArray[np.float32]
    y: NDArray[np.int64]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    layout: RunLayout
    report: Facts

    def error(self, decision: NDArray[np.float64]) -> float:
        return 100 * float(np.mean(labels_from_decision(decision, "multiclass") != self.y_test))


def whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(","))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=["mnist", "usps"])
    parser.add_argument("--pool", type=int, default=6000)
    parser.add_argument("--sizes", type=whole_numbers, default=(100, 200, 400, 700, 1000, 1500, 3000))
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--largest-penalised", type=int, default=1500, help="end of the penalty paths, in centers")
    parser.add_argument("--penalised-cap", type=float, default=150.0, help="seconds of solving of each penalty path")
    parser.add_argument("--svc-cap", type=float, default=3600.0, help="seconds for fit and prediction of SVC")
    parser.add_argument("--data-dir")
    return parser.parse_args()


def opened(asked: argparse.Namespace, dataset: str) -> Data:
    """Choose from the pool, or take the run that did, and read its features."""
    size = max(asked.sizes)
    layout = trained(asked, dataset, f"{dataset}-{asked.pool}-{size}", "--select", f"greedy:{size}")
    sigma2, parts = SETTINGS[dataset][1], (read_part(layout, "train"), read_part(layout, "test"))
    return Data(dataset, sigma2, *parts[0], *parts[1], layout, report_of(layout))


def trained(asked: argparse.Namespace, dataset: str, name: str, *arguments: str) -> RunLayout:
    """Train on the pool, or take the run that did."""
    command = [*SETTINGS[dataset][0], "--centers", str(asked.pool), *arguments, "-q", "--resume", "auto"]
    command += ["--run-dir", str(asked.out / name), "--features-dir", str(asked.out / "features")]
    command += ["--data-dir", asked.data_dir] if asked.data_dir else []
    if code := train(command):
        raise SystemExit(code)
    return RunLayout(asked.out / name)


def greedy(data: Data, asked: argparse.Namespace) -> Iterator[Point]:
    """Cut the run to every size. All sizes take the time of the one selection."""
    stages = data.report["stages"]
    seconds = stages["statistics"]["wall_seconds"] + stages["solve"]["wall_seconds"]
    selecting = data.report["selection"]["wall_seconds"]
    for size in asked.sizes:
        out = asked.out / "cut"
        started = time.perf_counter()
        found = resize_run(data.layout.root, size, out)
        note = f"selection {selecting:.1f} s, cut {time.perf_counter() - started:.1f} s"
        model = load_model(out)
        model.decision_function(data.X_test[:100])
        started = time.perf_counter()
        decision = model.decision_function(data.X_test)
        predicting = time.perf_counter() - started
        yield Point(data.dataset, "greedy", found.n_centers, 0, data.error(decision), seconds, predicting, note)
        shutil.rmtree(out)


def penalised(data: Data, asked: argparse.Namespace) -> Iterator[Point]:
    """Solve along a path of penalties on the pool's statistics, and refit each support."""
    layout = trained(asked, data.dataset, f"{data.dataset}-{asked.pool}-statistics", "--penalty", "max:0.99")
    everything, fit, hold_out = (statistics.load_statistics(layout, part) for part in ("all", "fit", "hold_out"))
    pool = read_arrays(layout.centers)["index"]
    columns = ColumnGenerator(data.X[pool], data.sigma2).block(data.X_test, out_dtype=np.float64)
    stage, n_classes = report_of(layout)["stages"]["statistics"]["wall_seconds"], everything.kty.shape[1]
    largest = penalty_max(everything.kty)
    penalties = spaced(largest * 1e-3, largest * 1e-9, 19)  # three a decade, until the supports are large enough
    problems = [problem_of(everything, output, penalties[-1]) for output in range(n_classes)]
    paths = [solve_path(p, penalties, SolverOptions(tolerance=5e-3), np.random.default_rng(0)) for p in problems]
    seconds = stage
    for penalty in penalties:
        started = time.perf_counter()
        weights = np.column_stack([next(path).weights for path in paths])
        support = np.flatnonzero(weights.any(axis=1))
        found = refit(fit.cut(support), hold_out.cut(support), everything.cut(support), intercept=False)
        seconds += time.perf_counter() - started
        error = data.error(columns[:, support] @ found.weights.weights)
        yield Point(data.dataset, "penalised, refitted", len(support), 0, error, seconds, 0.0, f"penalty {penalty:g}")
        if len(support) > asked.largest_penalised or seconds - stage > asked.penalised_cap:
            break


def fitted(data: Data, centers: NDArray[np.float32]) -> tuple[float, float]:
    """Fit least squares on any centers, two threads over the rows; return the error and the seconds to predict."""
    generator = ColumnGenerator(centers, data.sigma2)
    weights = least_squares(data.X, data.y, generator)
    started = time.perf_counter()
    decision = generator.block(data.X_test, out_dtype=np.float64) @ weights
    return data.error(decision), time.perf_counter() - started


def random(data: Data, asked: argparse.Namespace) -> Iterator[Point]:
    """Fit on random training points."""
    for size in asked.sizes:
        for seed in SEEDS:
            started = time.perf_counter()
            rows = np.random.default_rng(seed).permutation(len(data.X))[:size]
            error, predicting = fitted(data, data.X[rows])
            seconds = time.perf_counter() - started - predicting
            yield Point(data.dataset, "random", size, seed, error, seconds, predicting)


def kmeans(data: Data, asked: argparse.Namespace) -> Iterator[Point]:
    """Fit on the means of scikit-learn's MiniBatchKMeans."""
    from sklearn.cluster import MiniBatchKMeans

    for size in asked.sizes:
        if size > len(data.X) // 2:
            continue
        started = time.perf_counter()
        means = MiniBatchKMeans(size, random_state=0, batch_size=max(1024, 2 * size), n_init=1, max_iter=20).fit(data.X)
        error, predicting = fitted(data, np.ascontiguousarray(means.cluster_centers_, np.float32))
        seconds = time.perf_counter() - started - predicting
        yield Point(data.dataset, "k-means", size, 0, error, seconds, predicting)


def svc(data: Data, asked: argparse.Namespace) -> Iterator[Point]:
    """Fit scikit-learn's SVC in a process of its own, which ends at the cap."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_svc, args=(data, sender))
    process.start()
    sender.close()  # ours; where the process dies, its end closes too, and we need not wait
    try:
        if receiver.poll(asked.svc_cap):
            yield Point(data.dataset, "SVC", *receiver.recv())
        else:
            print(f"SVC: not done after {asked.svc_cap:g} s", flush=True)
    except EOFError:
        process.join()
        print(f"SVC: its process died, exit code {process.exitcode}", flush=True)
    finally:
        process.kill()
        process.join()


def _svc(data: Data, sender: Connection) -> None:
    from sklearn.svm import SVC

    started = time.perf_counter()
    machine = SVC(C=SVC_C, gamma=1 / (2 * data.sigma2), cache_size=4000).fit(data.X, data.y)
    fitting = time.perf_counter() - started
    started = time.perf_counter()
    error = 100 * float(np.mean(machine.predict(data.X_test) != data.y_test))
    note = f"C {SVC_C:g}, support vectors"
    sender.send((len(machine.support_), 0, error, fitting, time.perf_counter() - started, note))


def settings_of(asked: argparse.Namespace, method: str) -> Facts:
    """Return what the rows of a method depend on, beside the data set."""
    settings = {"method": method} | {name: getattr(asked, name) for name in METHODS[method]}
    found: Facts = json.loads(json.dumps(settings))  # as it comes back from the file: lists
    return found


def table(points: list[Facts]) -> list[str]:
    """Return one line for each method and size: mean error and its range over the seeds, seconds."""
    lines = [f"{'data':<15}{'method':<24}{'centers':>8}{'error, %':>18}{'fit, s':>9}{'predict, s':>12}"]
    for key in dict.fromkeys((p["dataset"], p["method"], p["size"]) for p in points):
        own = [p for p in points if (p["dataset"], p["method"], p["size"]) == key]
        errors = [p["error_percent"] for p in own]
        spread = f" ({min(errors):.2f}-{max(errors):.2f})" if len(errors) > 1 else ""
        means = [float(np.mean([p[name] for p in own])) for name in ("error_percent", "fit_seconds", "predict_seconds")]
        predicting = f"{means[2]:.2f}" if means[2] else ""
        lines.append(
            f"{key[0]:<15}{key[1]:<24}{key[2]:>8}{f'{means[0]:.2f}{spread}':>18}{means[1]:>9.1f}{predicting:>12}"
        )
    return lines


def plot(points: list[Facts], dataset: str, path: Path) -> None:
    """Draw error against number of centers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 4.2), layout="constrained")
    own = [p for p in points if p["dataset"] == dataset]
    for method in dict.fromkeys(p["method"] for p in own):
        sizes = sorted({p["size"] for p in own if p["method"] == method})
        errors = [np.mean([p["error_percent"] for p in own if (p["method"], p["size"]) == (method, s)]) for s in sizes]
        axes.plot(
            sizes, errors, "k*" if method == "SVC" else "o-", markersize=9 if method == "SVC" else 4, label=method
        )
    axes.set(xscale="log", yscale="log", xlabel="centers (kernel values for one prediction)", ylabel="test error, %")
    axes.set_title(f"{dataset}: error against the size of the model")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "size.json"
    points: list[Facts] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    methods: dict[str, Callable[[Data, argparse.Namespace], Iterator[Point]]]
    methods = {"greedy": greedy, "penalised": penalised, "random": random, "kmeans": kmeans, "svc": svc}
    for dataset in asked.datasets:
        data = opened(asked, dataset)
        wanted = [settings_of(asked, name) for name in METHODS]
        for name in asked.methods:
            settings = settings_of(asked, name)
            if any((p["dataset"], p.get("settings")) == (dataset, settings) for p in points):
                continue
            found = [asdict(point) | {"settings": settings} for point in methods[name](data, asked)]
            print("\n".join(table(found)), flush=True)
            points += found
            path.write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
        plot([p for p in points if p.get("settings") in wanted], dataset, asked.out / f"size-{dataset}.png")


if __name__ == "__main__":
    main()
