"""What README and docs/ quote: each measurement's commands, and the table that is read from what they wrote.

A table is a head and rows of texts, as the pages show them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

Table = tuple[list[str], list[list[str]]]
Report = dict[str, Any]
TRAIN = "python -m pipeline.train "


@dataclass(frozen=True)
class Measurement:
    """Commands as they are typed, DIR being a folder for what they write, and the reader of their table."""

    commands: tuple[str, ...]
    table: Callable[[Path], Table]
    told: str = ""  # in the place of the commands, where the rows name them


def json_of(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def trainings(data: str, rows: Sequence[str], columns: dict[str, Callable[[Report], str]]) -> Measurement:
    """Return the measurement of runs of one command whose rows are its options, in the order of `rows`."""
    commands = tuple(
        f"{TRAIN}{data} --run-dir DIR/{k} --features-dir DIR/features -q {row}".rstrip() for k, row in enumerate(rows)
    )

    def table(folder: Path) -> Table:
        reports = [json_of(folder / str(k) / "report.json") for k in range(len(rows))]
        cells = [[f"`{row}`" if row else "(defaults)", *(column(report) for column in columns.values())]
                 for row, report in zip(rows, reports, strict=True)]  # fmt: skip
        return ["options", *columns], cells

    return Measurement(commands, table, f"`{TRAIN}{data}` with the options of each row")


def cpu_seconds(report: Report) -> str:
    """Return the processor seconds of a run whose code is compiled and whose features are stored."""
    seconds = sum(stage["cpu_seconds"] for name, stage in report["stages"].items() if name not in AT_FIRST)
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"


def whole(number: int) -> str:
    return f"{number:,}".replace(",", " ") if number >= 10_000 else str(number)


AT_FIRST = ("compile", "reading", "features")  # Only the first run on some data takes these.
CENTERS = {"centers": lambda report: f"{report['model_n_centers']}"}
ERROR = {"test error": lambda report: f"{100 * report['error_rate']:.2f} %"}
SECONDS = {"CPU s": cpu_seconds}
ROWS = {"rows": lambda report: whole(report["n_train"])}
MEMORY = {"memory": lambda report: f"{report['peak_rss_bytes'] / 2**30:.1f} GiB"}
CERTIFICATE = {"certificate": lambda report: gap_of(report)}
PROBABILITIES = {
    "log loss": lambda report: f"{report['probabilities']['log_loss']:.3f}",
    "Brier score": lambda report: f"{report['probabilities']['brier_score']:.3f}",
    "calibration error": lambda report: f"{100 * report['probabilities']['calibration_error']:.2f} %",
}
RMSE = {"RMSE": lambda report: f"{report['rmse']:.3f}"}


def gap_of(report: Report) -> str:
    gaps = [solve["relative_gap"] for solve in report["solves"] or [] if solve["relative_gap"] is not None]
    return f"gap {max(gaps):.0e}" if gaps else "none"


def sizes_of_selections(folder: Path) -> Table:
    """Read the errors of some sizes of greedy runs that differ in their seed."""
    curves = [json_of(folder / str(seed) / "report.json")["selection"]["curve"] for seed in range(3)]
    near = [[min(curve, key=lambda point: abs(point["size"] - size)) for curve in curves] for size in SIZES]
    errors = [f"{100 * means(points, 'test_error'):.2f} %" for points in near]
    return ["centers", *(f"{points[0]['size']}" for points in near)], [["test error", *errors]]


SIZES = (100, 200, 400, 1000, 2000, 2500)


def pivot(
    rows: Sequence[Any],
    line: str,
    column: str,
    cell: Callable[[list[Any]], str],
    lines: dict[str, str],
    columns: dict[str, str],
) -> Table:
    """Return a table with a line for each value of one key and a column for each of another; "" where there is none."""

    def at(a: str, b: str) -> str:
        found = [row for row in rows if str(row[line]) == a and str(row[column]) == b]
        return cell(found) if found else ""

    return ["", *columns.values()], [[title, *(at(name, one) for one in columns)] for name, title in lines.items()]


def means(rows: list[Any], key: str) -> float:
    return mean(row[key] for row in rows)


def descriptors(folder: Path) -> Table:
    rows = [row for row in json_of(folder / "descriptors.json") if row["width"] == 0.5]
    lines = {
        "sphog deskew=0.0 power=0.5": "sphog, square roots",
        "sphog deskew=1.0 power=0.5": "sphog, square roots, upright",
        "soft-hog deskew=0.0": "soft-hog",
        "soft-hog deskew=0.5": "soft-hog, half upright",
        "soft-hog deskew=1.0": "soft-hog, upright",
    }
    columns = {"mnist": "MNIST", "usps": "USPS"}

    def cell(found: list[Any]) -> str:
        return f"{means(found, 'squared_error'):.3f}, {means(found, 'error_percent'):.2f} %"

    return pivot(rows, "setting", "dataset", cell, lines, columns)


FORMS = {"csv": "csv", "parquet": "parquet", "parts": "parquet in 64 parts", "npy": "npy"}


def tables_reading(folder: Path) -> Table:
    lines = {
        "pyarrow_csv": "pyarrow's own reader",
        "array": "an array, stored as features",
        "learned": "read once, to learn",
        "stored": "read twice, and stored as features",
    }
    rows = json_of(folder / "tables.json")
    head, cells = pivot(rows, "what", "form", lambda found: f"{means(found, 'seconds'):.1f}", lines, FORMS)
    return ["3 million rows of 28 numbers, CPU s", *head[1:]], cells


def tables_training(folder: Path) -> Table:
    rows, lines = json_of(folder / "tables.json"), []
    for form in FORMS:
        own = [row for row in rows if row["form"] == form]
        lines.append([FORMS[form], f"{means(own, 'seconds'):.0f}", *(f"{means(own, key):.0f} MiB" for key in MIB)])
    return ["3 million rows of 28 numbers, 1000 candidates", "CPU s", "peak memory", "forecast of `--dry-run`"], lines


MIB = ("peak", "forecast")


def all_candidates(folder: Path) -> Table:
    facts = json_of(folder / "all-candidates-1.json")
    controls = facts["errors_random_refitted"]
    return ["", "value"], [
        ["rounds", f"{len(facts['gaps'])}"],
        ["largest relative gap", f"{facts['gaps'][-1]:.0e}"],
        ["time, in bare passes over all pairs", f"{facts['ratio']:.1f}"],
        ["peak memory", f"{facts['peak_bytes'] / 2**30:.1f} GiB"],
        ["columns never materialised", f"{whole(facts['columns_never_made'])} of {whole(facts['n_centers'])}"],
        ["centers", f"{facts['model_n_centers']}"],
        ["test error", f"{100 * facts['error']:.2f} %"],
        ["test error with 1000 random candidates", f"{100 * facts['error_of_1000']:.2f} %"],
        ["test error after `--refit ridge`", f"{100 * facts['error_refitted']:.2f} %"],
        ["of as many random centers, refitted", f"{100 * min(controls):.2f} to {100 * max(controls):.2f} %"],
    ]


def on_demand(folder: Path) -> Table:
    rows, lines = json_of(folder / "materialised-columns.json"), []
    for one in (row for row in rows if row["columns"] == "on-demand"):
        key = (one["candidates"], one["penalty"])
        (other,) = [row for row in rows if (row["candidates"], row["penalty"]) == key and row is not one]
        counted = ("candidates", "on_the_fly", "materialised", "columns_never_made", "active")
        first, *counts = [whole(one[name]) for name in counted]
        costs = [f"{row['cpu_seconds']:.1f} s, {row['peak_bytes'] / 2**30:.1f} GiB" for row in (one, other)]
        lines.append([first, f"{one['penalty']:g}", *counts, *costs])
    columns = ["times priced", "materialised", "never materialised", "with a weight"]
    return ["candidates", "λν", *columns, "on demand (CPU)", "Gram matrix of all (CPU)"], lines


def table_peers(folder: Path) -> Table:
    rows = json_of(folder / "table_peers.json")
    rows += [row | {"method": "worst"} for row in rows if row["method"] == "slkl"]
    columns = {
        "slkl": "slkl",
        "worst": "worst of 5 seeds",
        "boosting": "gradient boosting",
        "CatBoost": "CatBoost",
        "LightGBM": "LightGBM, 500 trees",
    }
    if missing := columns.keys() - {row["method"] for row in rows}:
        raise SystemExit(f"not measured: {', '.join(sorted(missing))}; python -m pip install catboost lightgbm")
    lines = {name: TABLES.get(name, name) for name in dict.fromkeys(row["table"] for row in rows)}
    return pivot(rows, "table", "method", lambda of: cells_of_fits(of)[of[0]["method"] == "worst"], lines, columns)


def cells_of_fits(rows: list[Any]) -> list[str]:
    """Return error and seconds, means over splits of medians over seeds, and how far the worst seed is above."""
    splits = [[row for row in rows if row["split"] == split] for split in {row["split"] for row in rows}]
    errors, seconds = ([[row[key] for row in of] for of in splits] for key in ("error", "fit_seconds"))
    error, worst = mean(map(median, errors)), max(max(of) / median(of) for of in errors)
    shown = f"{error:.2f} %" if rows[0]["classes"] else f"{error:.4f}"
    return [f"{shown} ({mean(map(median, seconds)):.1f} s)", f"+{100 * worst - 100:.0f} %"]


TABLES = {
    "abalone": "abalone (3000 rows)",
    "boston": "boston (350)",
    "digits": "digits, 8×8 pixels (1200)",
    "arm": "arm of 8 joints (10 000)",
    "arm36": "the same (36 000)",
    "letters": "letters (15 000)",
    "irrelevant": "5 of 32 inputs matter (6000)",
    "few": "few: the same, faster and noisier (7400)",
    "sums": "3 sums of 20 inputs (6000)",
    "smooth": "smooth, 18 inputs (8000)",
    "friedman1": "friedman1 (4000)",
    "friedman2": "friedman2 (4000)",
    "friedman3": "friedman3 (4000)",
    "friedman1_noise": "friedman1, 25 inputs of noise (10 000)",
    "steps": "steps along 4 of 10 axes (10 000)",
    "ridges": "kinks along axes (10 000)",
    "houses": "houses-like (15 000)",
    "protein": "rough, 9 inputs (40 000)",
    "five_of_28": "2 classes, 5 of 28 inputs (225 000)",
    "rare": "1 % of one class (15 000)",
}


def image_peers(folder: Path) -> Table:
    """Read what the methods give on the default's features, and their errors on the paper's."""
    on_default, on_paper = (draws_of(json_of(folder / name / "peers.json")) for name in ("soft-hog", "paper"))
    lines = []
    for name, draws in on_default.items():
        costs = [f"{means(draws, 'fit_seconds'):.1f} s", f"{means(draws, 'predict_seconds'):.1f} s"]
        lines.append(
            [
                PEERS.get(name, name) + (f" ({len(draws)} draws)" if len(draws) > 1 else ""),
                whole(round(means(draws, "size"))),
                error_of(on_paper[name]) if name in on_paper else "",
                error_of(draws),
                *costs,
                f"{means(draws, 'peak_bytes') / 2**30:.1f} GiB",
            ]
        )
    errors = ("test error, paper's features", "test error, default's")
    return ["method", "centers", *errors, "fit", "predict 10 000", "peak memory"], lines


def draws_of(rows: list[Any]) -> dict[str, list[Any]]:
    """Return the rows of each method, one for each of its draws."""
    named = [(row["name"].partition("@")[0], row) for row in rows if row["ended"] == "done"]
    return {name: [row for other, row in named if other == name] for name, _ in named}


def error_of(draws: list[Any]) -> str:
    spread = f" ± {stdev(row['error_percent'] for row in draws):.2f}" if len(draws) > 1 else ""
    return f"{means(draws, 'error_percent'):.2f}{spread} %"


PEERS = {
    "ridge-1000": "slkl, `--refit ridge`",
    "greedy-1200-3500": "slkl, `--centers 3500 --select greedy:1200`",
    "greedy-2000-12000": "slkl, `--centers 12000 --select greedy:2000`",
    "svc": "SVC, C = 10",
    "nystroem-1000": "Nystroem(1000), RidgeClassifier",
    "nystroem-3000": "Nystroem(3000), RidgeClassifier",
    "kernel-ridge-10000": "KernelRidge on 10 000 rows",
    "random-2000": "2000 random centers, least squares",
}


def paper_cells(*names: str) -> Callable[[Path], Table]:
    """Return the reader of cells of the paper's tables, ours above the paper's."""

    def cell(found: list[Any]) -> str:
        (row,) = found
        centers = "" if row["m0_mean"] is None else f" ({row['m0_mean']:.0f})"
        theirs = "" if row["paper_mean"] is None else f"<br>*{row['paper_mean']:g}*"
        spread = f" ± {row['std']:.2g}" if row["runs"] > 1 else ""
        return f"{row['mean']:.3g}{spread}{centers}{theirs}"

    def table(folder: Path) -> Table:
        rows = [row | {"place": f"{row['dataset']} {row['M']}"} for name in names for row in json_of(folder / name)]
        rows = [row for row in rows if "(" not in row["dataset"]]  # the other reading of sinc's noise
        lines, columns = ({str(row[key]): str(row[key]) for row in rows} for key in ("method", "place"))
        return pivot(rows, "method", "place", cell, lines, columns)

    return table


def schedules(folder: Path) -> Table:
    head, lines = ["data", "schedule", "visits", "left out", "scores evaluated", "seconds"], []
    for row in (row for row in json_of(folder / "scheduler.json") if row["schedule"] in WAYS):
        counts = [whole(row[name]) for name in ("visits", "left_out", "evaluations")]
        lines.append([row["dataset"], WAYS[row["schedule"]], *counts, f"{row['seconds']:.1f}"])
    return head, lines


WAYS = {"uniform": "`uniform`: the paper's", "shrinking": "`shrinking`", "newton": "`newton`: the default"}


def solvers(counted: str, names: Sequence[str]) -> Callable[[Path], Table]:
    """Return the reader of what solvers took until the gap was 1e-2, 1e-3, 1e-4 and 1e-6, a cell for each of them."""

    def cell(row: dict[str, Any]) -> str:
        found = [at[counted] if at else None for at in row["at"].values()]
        return " ".join("–" if one is None else short(one) for one in found)

    def table(folder: Path) -> Table:
        rows, lines = json_of(folder.parent / "solvers" / "solvers.json"), []
        for first in (row for row in rows if row["solver"] == "newton"):
            of = {row["solver"]: row for row in rows if all(row[key] == first[key] for key in PROBLEM)}
            problem = f"{PROBLEMS[first['problem']]}, {first['n_centers']}"
            lines.append([problem, first["penalty"], f"{first['n_active']}", *(cell(of[name]) for name in names)])
        return ["problem, candidates", "λν", "active", *names], lines

    return table


def short(number: float) -> str:
    """Return seconds in two digits, or a count in about three."""
    if isinstance(number, float):
        return f"{number:.2g}"
    return f"{number / 1e6:.2f}M" if number >= 1e6 else f"{number / 1000:.3g}k" if number >= 1000 else f"{number}"


PROBLEM = ("problem", "n_centers", "penalty")
PROBLEMS = {"paper": "MNIST, the paper's features", "default": "MNIST, the default's", "abalone": "abalone"}
OURS = ("newton", "shrinking", "all visited", "uniform")
SAME_RUNS = "the same runs of `python jobs/benchmarks/solvers.py --out DIR`"
PAPER = "--config jobs/paper/mnist.toml"
SELECT = "--centers 8000 --select greedy:2500"
COPIES = "--features-dir none --memory-limit 2GiB --copies"
MEASUREMENTS = {
    "digits": trainings("digits", [""], CENTERS | ERROR | CERTIFICATE | SECONDS | MEMORY),
    "mnist": trainings(
        "mnist",
        [
            "",
            "--penalty none --centers 4000",
            "--centers 4000 --select greedy:400 --move-centers 60",
            f"{COPIES} 18",
            f"{COPIES} 135",
        ],
        ROWS | CENTERS | ERROR | CERTIFICATE | SECONDS | MEMORY,
    ),
    "mnist-long": trainings(
        "mnist",
        [
            "--centers 4000 --select greedy:1000 --move-centers 60",
            "--centers all --penalty 1 --refit ridge --memory-limit 4GiB",
        ],
        CENTERS | ERROR | CERTIFICATE | SECONDS | MEMORY,
    ),
    "mnist-paper": trainings(
        "mnist",
        [
            f"{PAPER} --refit none",
            f"{PAPER} --sigma2 2 --refit none",
            f"{PAPER} --sigma2 2",
            f"{PAPER} --sigma2 2 --centers 6000 --select greedy:1000",
        ],
        CENTERS | ERROR | CERTIFICATE | SECONDS,
    ),
    "probabilities": trainings(
        "mnist", ["--refit none", "--refit ridge", "--select greedy:300"], CENTERS | ERROR | PROBABILITIES
    ),
    "mnist-sizes": Measurement(
        tuple(
            f"{TRAIN}mnist --run-dir DIR/{seed} --features-dir DIR/features -q {SELECT} --seed {seed}"
            for seed in range(3)
        ),
        sizes_of_selections,
        f"`{TRAIN}mnist {SELECT}` with the seeds 0, 1 and 2",
    ),
    "moved-mnist": trainings(
        "mnist",
        [
            "--set data.n_train=10000 --centers 2000 --select greedy:100",
            "--set data.n_train=10000 --centers 2000 --select greedy:100 --move-centers 60",
        ],
        CENTERS | ERROR | SECONDS,
    ),
    "moved-abalone": trainings(
        "abalone --sigma2 2.5 --set solver.intercept=false",
        ["--centers 3000 --select greedy:30", "--centers 3000 --select greedy:30 --move-centers 100"],
        CENTERS | RMSE | SECONDS,
    ),
    "descriptors": Measurement(("python jobs/benchmarks/descriptors.py --out DIR",), descriptors),
    "tables-reading": Measurement(("python jobs/benchmarks/tables.py --out DIR",), tables_reading),
    "tables-training": Measurement(("python jobs/benchmarks/tables.py --out DIR --train",), tables_training),
    "all-candidates": Measurement(("python jobs/benchmarks/all_candidates.py --out DIR",), all_candidates),
    "on-demand": Measurement(("python jobs/benchmarks/materialised_columns.py --out DIR",), on_demand),
    "table-peers": Measurement(
        ("python jobs/benchmarks/table_peers.py --out DIR --methods slkl,boosting,CatBoost,LightGBM",), table_peers
    ),
    "image-peers": Measurement(
        tuple(
            f"python jobs/benchmarks/peers.py --out DIR/{folder} --dataset {data} --methods ridge-1000,"
            "greedy-1200-3500,greedy-2000-12000,svc,nystroem-1000,nystroem-3000,kernel-ridge-10000,random-2000"
            + "".join(f",ridge-1000@{seed},nystroem-1000@{seed}" for seed in range(1, 5))
            for folder, data in (("paper", "mnist"), ("soft-hog", "mnist-soft-hog"))
        ),
        image_peers,
    ),
    "paper-regression": Measurement(
        ("python jobs/paper/table_regression.py --out DIR",), paper_cells("table_regression.json")
    ),
    "paper-usps": Measurement(("python jobs/paper/table_usps.py --out DIR",), paper_cells("table_usps.json")),
    "paper-mnist": Measurement(("python jobs/paper/mnist.py --out DIR",), paper_cells("mnist.json")),
    "solvers": Measurement(
        ("python jobs/benchmarks/solvers.py --out DIR",), solvers("seconds", (*OURS, "paper", "celer", "skglm"))
    ),
    "solvers-visits": Measurement((), solvers("visits", OURS), SAME_RUNS),
    "solvers-gradients": Measurement((), solvers("evaluations", OURS), SAME_RUNS),
    "paper-schedules": Measurement(("python jobs/paper/scheduler.py --out DIR",), schedules),
}
