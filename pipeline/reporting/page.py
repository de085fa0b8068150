"""The page of a run, also of one that is not done: its numbers, plots and pictures in one HTML text.

It loads nothing from a network. What cannot be shown is named in it.
"""

import re
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from features.open_source import PUBLISHED, cache_folder, given_folder, missing_files
from features.rows import Rows
from features.targets import encode, labels_from_decision
from pipeline.config.command_line import program
from pipeline.config.train_config import TrainConfig
from pipeline.prediction.predictor import ExampleRequest, Predictor, load_predictor, open_examples, predictions
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.reporting import plots, result_table
from pipeline.reporting.run_facts import lines, status, tail, tried
from pipeline.runtime.run_folder import read_environment
from pipeline.work.events import in_order
from storage.files import read_plain
from storage.folder_layouts import RunLayout
from storage.zarr_arrays import row_blocks

MOST_LOG_LINES = 200
MOST_TAIL_BYTES = 64 * 2**20  # of log and metrics that are read, from their end
MOST_CONFUSIONS = 20  # that are listed
MOST_SCANNED_ROWS = 20_000  # of a part, so that a report of any run takes seconds
MOST_MISTAKES = 40
MOST_CENTERS = 40
COMPARED_TOGETHER = 500  # rows of the training part, with moved centers
MOST_DRAWN = 1000  # of a plot of predictions
MOST_SHOWN_CLASSES = 30  # of a confusion matrix; the table of more classes is folded

IMAGE_SETTINGS = re.compile(r'(\[features\]\nname = "raw"\n)(?:(?!size).+\n)+')


def page(layout: RunLayout, damaged: list[str] | None = None) -> str:
    """Return the whole page; add to `damaged` what it leaves out for that."""
    return environment().get_template("page.html.j2").render(gather(layout, [] if damaged is None else damaged))


def environment() -> jinja2.Environment:
    """Return what reads the templates, `page.html.j2` and `drawing.html.j2`, which escape every text."""
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)


def gather(layout: RunLayout, damaged: list[str]) -> dict[str, Any]:
    """Return what the page shows; what does not apply or is not there yet is None or empty.

    What is damaged comes into `damaged`. Memory: 64 MiB of log and metrics each, and a block of predictions.
    """
    facts = status(layout.root)
    damaged += facts["damaged"]
    notes = list[str]()
    report = facts["report"]
    predictor = tried(notes, "model", lambda: load_predictor(layout.root), damaged) if layout.model.is_dir() else None
    records = _records(layout, damaged)
    return {
        "run": layout.root.resolve().name,
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "state": facts["state"],
        "status": lines({**facts, "damaged": [], "report": None}),
        "report": report,
        "words": result_table,
        "palettes": (plots.LIGHT, plots.DARK),
        "plots": defaultdict(list, plots.of_run(report, records, predictor.model.output_labels if predictor else ())),
        "solve_records": plots.of_solves(records),
        "last_solves": plots.last_solves(records),
        "many_classes": MOST_SHOWN_CLASSES,
        "confusion": _confusion(report) if report and report["confusion"] else None,
        "n_centers": predictor.model.n_centers if predictor else None,
        "most_compared": MOST_SCANNED_ROWS,
        **_pictures(predictor, notes, damaged),
        "stages": in_order((report or facts)["stages"] or {}),
        "peak_bytes": (report or facts)["peak_rss_bytes"],
        **_settings(layout, notes, damaged),
        "log": [_log_line(one) for one in tail(layout.log, MOST_TAIL_BYTES, [])[-MOST_LOG_LINES:]],
        "notes": damaged + notes,
    }


def _records(layout: RunLayout, damaged: list[str]) -> list[dict[str, Any]]:
    """Return the iteration records so far: those of the solves that are done, then those of the ones under way."""
    files = [layout.metrics, *sorted(layout.solutions.glob("*.jsonl"))]
    latest: dict[tuple[str, ...], dict[str, Any]] = {}
    for record in (one for path in files for one in tail(path, MOST_TAIL_BYTES, damaged)):
        # A resumed run may tell of one twice.
        key = ("statistics", "output", "penalty", "iteration", "round")
        latest[tuple(str(record.get(name)) for name in key)] = record
    return list(latest.values())


def _pictures(predictor: Predictor | None, notes: list[str], damaged: list[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {"mistakes": None, "scatter": None, "centers": None}
    if predictor is None or predictor.config is None:
        return shown
    if remedy := needs_download(predictor.config):
        notes.append(f"pictures and examples: {remedy}")
        return shown
    shown |= tried(notes, "examples", lambda: _mistakes(predictor), damaged) or {}
    return shown | {"centers": tried(notes, "pictures of the centers", lambda: _centers(predictor), damaged)}


def needs_download(config: TrainConfig) -> str:
    """Return what to do where the data of a run would have to be downloaded first, which a report does not do."""
    if config.dataset not in PUBLISHED:
        return ""
    folder = given_folder(config.dataset) or cache_folder(config.dataset)
    if not missing_files(config.dataset, folder):
        return ""
    return f"the data are not here: {program('train')} {config.dataset} --dry-run downloads them"


def _mistakes(predictor: Predictor) -> dict[str, Any]:
    """Return `mistakes`, the test rows that the model is most wrong about, and `scatter`, a plot for a regression."""
    data, model = open_examples(ExampleRequest(None, labelled=True, part="test"), predictor), predictor.model
    piece, labels, blocks, scanned = data.pieces[0], model.labels, [], 0
    for block in predictions(model, data):
        assert block.labels is not None
        truth = encode(block.labels, labels, block.name, block.piece_start)
        found = labels_from_decision(block.decision, model.task)
        excess = found - truth
        if labels:
            of_class = block.decision if model.task == "multiclass" else np.hstack([-block.decision, block.decision])
            rows = np.arange(len(truth))
            excess = of_class[rows, found] - of_class[rows, truth]
        blocks.append((truth, found, excess))
        scanned += len(truth)
        if scanned >= MOST_SCANNED_ROWS:
            break
    truth, found, excess = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    wrong = np.flatnonzero(truth != found) if labels else np.arange(scanned)
    shown = [
        {
            **_told(piece, row),
            "truth": labels[truth[row]] if labels else f"{truth[row]:.6g}",
            "predicted": labels[found[row]] if labels else f"{found[row]:.6g}",
            "excess": float(excess[row]),
        }
        for row in wrong[np.argsort(-np.abs(excess[wrong]), kind="stable")[:MOST_MISTAKES]].tolist()
    ]
    n_wrong = len(wrong) if labels else None
    told = {"shown": shown, "n_wrong": n_wrong, "n_scanned": scanned, "n_rows": data.n_rows}
    return {"mistakes": told, "scatter": None if labels else _scatter(truth, found)}


def _scatter(y: np.ndarray, f: np.ndarray) -> plots.Figure | None:
    some = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_DRAWN)).round().astype(int))
    dots = list(zip(y[some].tolist(), f[some].tolist(), strict=True))
    ends = [float(min(y.min(), f.min())), float(max(y.max(), f.max()))]
    log = plots.Axis("").over([*y.tolist(), *f.tolist()]).log  # of both, so that equal values lie on one line
    lines = {"test rows": dots, "equal": [(end, end) for end in ends]}
    return plots.plot(lines, plots.Axis("truth", log), plots.Axis("prediction", log), dots="test rows")


def _centers(predictor: Predictor) -> list[dict[str, Any]] | None:
    """Return the centers of the largest weight norm as pictures with their weights; None where inputs are no images."""
    model = predictor.model
    if len(model.input_shape) < 2 or not model.n_centers:
        return None
    piece = open_examples(ExampleRequest(None, labelled=True, part="train"), predictor).pieces[0]
    names = [str(label) for label in model.labels] if model.task == "multiclass" else ["weight"]
    norms = np.linalg.norm(model.weights, axis=1)
    largest = np.argsort(-norms, kind="stable")[:MOST_CENTERS]
    is_moved, rows = model.center_index[largest] < 0, model.center_index[largest]
    if is_moved.any():
        rows[is_moved] = _nearest_rows(model, largest[is_moved], piece)
    shown = []
    for m, row, moved in zip(largest.tolist(), rows.tolist(), is_moved.tolist(), strict=True):
        weights, label = model.weights[m].tolist(), piece.y[row : row + 1]
        strongest = int(np.argmax(np.abs(model.weights[m])))
        center = _told(piece, row) | {"label": label[0].item(), "moved": moved, "norm": float(norms[m])}
        center["strongest"] = f"{names[strongest]}: {weights[strongest]:+.3g}"
        shown.append(center | {"weights": list(zip(names, weights, strict=True))})
    return shown


def _nearest_rows(model: SparseKernelModel, some: NDArray[np.int64], piece: Rows) -> NDArray[np.int64]:
    """Return the row nearest to each of some centers, of MOST_SCANNED_ROWS at most: of blocks spread evenly."""
    probe = replace(model, centers=model.centers[some], weights=model.weights[some])
    rows, values = np.zeros(len(some), np.int64), np.full(len(some), -1.0)
    step = -(-len(piece) // MOST_SCANNED_ROWS)
    for block in row_blocks(len(piece), COMPARED_TOGETHER)[::step]:
        inputs = piece.X[block]
        found = probe.columns(probe.features_of(inputs, are_bytes=model.image_scale is not None))
        nearer = found.max(axis=0) > values
        rows[nearer], values[nearer] = block.start + found.argmax(axis=0)[nearer], found.max(axis=0)[nearer]
    return rows


def _told(piece: Rows, row: int) -> dict[str, Any]:
    """Return what is shown of a row: its number in the data as given, its name, that of its file, and its picture."""
    number = row if piece.numbers is None else int(piece.numbers[row])
    name = f"row {number}" if piece.names is None else str(piece.names[row])
    picture = plots.picture(piece.X[row : row + 1][0]) if len(piece.X.shape) > 2 else None
    return {"row": number, "name": name, "picture": picture}


def _confusion(report: dict[str, Any]) -> dict[str, Any]:
    labels, matrix = [one["label"] for one in report["by_class"]], report["confusion"]
    wrong = [(count, j, k) for j, row in enumerate(matrix) for k, count in enumerate(row) if j != k and count]
    commonest = sorted(wrong, reverse=True)[:MOST_CONFUSIONS]
    return {
        "labels": labels,
        "rows": list(zip(labels, matrix, strict=True)) if len(labels) <= MOST_SHOWN_CLASSES else [],
        "most": commonest[0][0] if commonest else 1,
        "commonest": [(labels[j], labels[k], count) for count, j, k in commonest],
    }


def _settings(layout: RunLayout, notes: list[str], damaged: list[str]) -> dict[str, Any]:
    stored = tried(notes, "environment", lambda: read_environment(layout), damaged) or {}
    settings = tried(notes, "settings", lambda: read_plain(layout.config).decode())
    if settings is not None:
        settings = IMAGE_SETTINGS.sub(r"\1", settings)
    return {
        "settings": settings,
        "command": stored.get("command"),
        "versions": stored.get("environment") or {},
    }


def _log_line(record: dict[str, Any]) -> str:
    facts = {key: value for key, value in record.items() if key not in ("time", "event", "message")}
    words = " ".join(f"{key}={value}" for key, value in facts.items())
    parts = (str(record.get("time")), str(record.get("event")), str(record.get("message") or ""), words)
    return "  ".join(part for part in parts if part)
