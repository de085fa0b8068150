"""Runs of the main command for the paper's tables: resumable, one folder each, and their rows for the report."""

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import paper
from numpy.typing import NDArray

from features.source import PARTS
from pipeline.config.command_line import parse
from pipeline.config.settings import load
from pipeline.datasets.feature_rows import describe, live, open_features, request_of, source_spec
from pipeline.datasets.open_data import open_data
from pipeline.fit.filled_settings import fill_in_features
from pipeline.train import main as train
from storage.arrays import StoredFile
from storage.files import read_record, write_json
from storage.folder_layouts import RunLayout

# Algorithm 2 as it is, with the slips of its print mended: random visits, Newton steps, the paper's stopping rule.
PAPER_WAY = ("--schedule", "paper")
CERTIFIED = ("--tol", "1e-4")
METHODS = ("SLKL", "SLKL, certified", "SLKL, refitted")
ROOT, SETTINGS = Path(__file__).resolve().parents[2], "jobs/paper/{}.toml"  # Named data have the paper's settings.
NOT_CONVERGED = 3  # A run may end with this exit code: the paper's rule does not look at the gap.
Row = dict[str, Any]  # one cell of a table: ours and the paper's, and the command of its first run


@dataclass(frozen=True)
class Trained:
    """What is kept of a finished run: its report, its iteration records, its candidates' rows, and its command."""

    report: dict[str, Any]
    records: list[dict[str, Any]]
    centers: list[int]
    command: str


def whole_numbers(text: str) -> list[int]:
    """Return the numbers of a list such as 64,256."""
    return [int(item) for item in text.split(",")]


def parser(description: str | None, runs: int = 20) -> argparse.ArgumentParser:
    """Return the options that every table has."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, default=Path("runs/paper"), help="folder of runs and results")
    found.add_argument("--runs", type=int, default=runs, help="seeds 0, 1, … of splits, noise and centers")
    return found


def trained(asked: argparse.Namespace, dataset: str, *arguments: str, store: bool = False) -> Trained:
    """Train, or take what is kept of the finished run of the same arguments; a run that was cut off goes on.

    Of a finished run the folder is removed: the statistics of hundreds of them would fill a disk.
    """
    words = [dataset, *_settings_of(dataset), *arguments]
    name = f"{Path(dataset).stem}-{hashlib.sha256(' '.join(words).encode()).hexdigest()[:12]}"
    kept = asked.out / "runs" / f"{name}.json"
    if kept.exists():
        return Trained(**json.loads(kept.read_text(encoding="utf-8")))
    # Small data: their features are computed again more quickly than a store is written for each of their splits.
    more = ["--features-dir", str(asked.out / "features")] if store else ["--features-dir", "none"]
    more += [] if store else ["--scheduler", "serial"]
    folder = asked.out / "runs" / name
    code = train([*_from_here(words), *more, "--run-dir", str(folder), "--resume", "auto", "-q"])
    if code not in (0, NOT_CONVERGED):
        raise SystemExit(code)
    layout = RunLayout(folder)
    records = [json.loads(line) for line in layout.metrics.read_text(encoding="utf-8").splitlines()]
    found = Trained(
        read_record(layout.report),
        [record for record in records if "iteration" in record],
        StoredFile(layout.candidates).read()["index"].tolist(),
        "python -m pipeline.train " + " ".join(words),
    )
    write_json(kept, asdict(found))
    shutil.rmtree(folder)
    return found


def _settings_of(dataset: str) -> list[str]:
    """Return the words that give a data set by name the paper's settings; none for a path."""
    file = SETTINGS.format(dataset)
    return ["--config", file] if dataset.isalnum() and (ROOT / file).exists() else []


def _from_here(words: Sequence[str]) -> list[str]:
    """Return words of a command in the checkout as they are in any folder."""
    return [str(ROOT / word) if word.startswith("jobs/paper/") else word for word in words]


def all_ways(
    asked: argparse.Namespace, dataset: str, *arguments: str, penalty: float, store: bool = False
) -> dict[str, Trained]:
    """Return a run of the paper's way, of the certified optimum, and of that refitted."""
    solved = [*arguments, "--penalty", f"{penalty:g}"]
    ours = trained(asked, dataset, *solved, *CERTIFIED, "--refit", "ridge", store=store)
    return {
        "SLKL": trained(asked, dataset, *solved, *PAPER_WAY, store=store),
        "SLKL, certified": replace(ours, report={**ours.report, **ours.report["penalised"]}),
        "SLKL, refitted": ours,
    }


@dataclass(frozen=True)
class Split:
    """The data of one run, as its kernel saw them: train and test features, and targets."""

    X: NDArray[np.float32]
    y: NDArray[np.float64]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.float64]


def split_of(dataset: str, *arguments: str) -> Split:
    """Return the split that a run of the same arguments sees, for the baselines."""
    typed = parse(_from_here([dataset, *_settings_of(dataset), *arguments]))
    config = load(dataset, typed.config, typed.assignments).config
    spec = source_spec(config)
    request = request_of(fill_in_features(config, open_data(spec)), spec)
    shape = describe(request)
    train, test = (open_features(live(request, shape), part) for part in PARTS)
    return Split(train.X[:], train.y[:], test.X[:], test.y[:])


def one_against_others(asked: argparse.Namespace, dataset: str, label: int) -> list[str]:
    """Return the words that train on a data set as its kernel sees it, whose labels are 1 for a digit, else -1."""
    path, split = asked.out / f"{dataset}-{label}.npz", split_of(dataset)
    parts = {"train": (split.X, split.y), "test": (split.X_test, split.y_test)}
    arrays = {f"X_{part}": X for part, (X, _) in parts.items()}
    arrays |= {f"y_{part}": np.where(y == label, 1, -1) for part, (_, y) in parts.items()}
    asked.out.mkdir(parents=True, exist_ok=True)
    np.savez(path, allow_pickle=False, **arrays)
    return [str(path), "--set", "data.standardise=false", "--set", "solver.intercept=false"]


def row(
    table: str,
    dataset: str,
    method: str,
    size: int,
    values: Sequence[float],
    *,
    command: str,
    m0: Sequence[int] | None = None,
    penalty: float | None = None,
    sigma2: float | None = None,
) -> Row:
    """Return a cell from the values of its runs, beside the paper's."""
    name = dataset.split(" ")[0]
    mean, std = paper.numbers(name, method, size)
    found: Row = {"table": table, "dataset": dataset, "method": method, "M": size, "runs": len(values)}
    found |= {"mean": float(np.mean(values)), "std": float(np.std(values))}
    found |= {"m0_mean": float(np.mean(m0)) if m0 else None, "paper_mean": mean, "paper_std": std}
    return found | {"penalty": penalty, "sigma2": sigma2 or paper.SIGMA2[name], "command": command}


def save(asked: argparse.Namespace, table: str, rows: Sequence[Row]) -> None:
    """Write the rows of a table, for `report`; rows of other cells that are there already stay."""
    path = asked.out / f"{table}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    new = {_cell(row): row for row in rows}
    write_json(path, [new.pop(_cell(row), row) for row in before] + list(new.values()))


def _cell(row: Row) -> tuple[Any, ...]:
    return row["dataset"], row.get("method") or row["schedule"], row["M"]


def print_row(one: Row, unit: str = "") -> None:
    """Print a cell beside the paper's."""
    theirs = "" if one["paper_mean"] is None else f"   paper {one['paper_mean']:g}"
    theirs += f" ± {one['paper_std']:g}" if one["paper_std"] is not None else ""
    m0 = "" if one["m0_mean"] is None else f"  m0 {one['m0_mean']:.0f}"
    start = f"{one['dataset']:<18}{one['method']:<18}M {one['M']:<6}"
    print(f"{start}{one['mean']:.4g} ± {one['std']:.2g}{unit}{m0}{theirs}", flush=True)
