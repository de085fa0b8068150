"""The page of a run, also of one that is not done: its numbers, plots and pictures in one HTML text.

It loads nothing from a network. What cannot be shown is named in it. Plots are places in pixels, of which
`drawing.html.j2` makes SVG.
"""

import base64
import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from features.open_source import PUBLISHED, cache_folder, given_folder, missing_files
from features.rows import Rows
from pipeline.config.command_line import program
from pipeline.config.settings import worded
from pipeline.config.train_config import TrainConfig
from pipeline.prediction.predictor import (
    ExampleRequest,
    Examples,
    Predictor,
    features_of,
    load_predictor,
    open_examples,
)
from pipeline.prediction.ranking import roc_curve
from pipeline.prediction.scores import by_class
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.reporting import run_facts
from pipeline.reporting.run_facts import status, tail, tried
from pipeline.runtime.run_folder import read_environment
from pipeline.work.events import in_order
from storage.errors import CorruptDataError
from storage.files import read_plain
from storage.folder_layouts import RunLayout

MOST_LOG_LINES = 200
MOST_TAIL_BYTES = 64 * 2**20  # Log and metrics are read from their end.
MOST_LISTED_CONFUSIONS = 20
MOST_MISTAKES = 40
MOST_CENTERS = 40
MOST_SHOWN_CLASSES = 30  # A larger confusion matrix is left out, and the table of the classes is folded.
LEAST_POINT_ROWS, MOST_CURVE_POINTS = 100, 10  # A point of the calibration curve stands for so many test rows.
MOST_HISTOGRAM_STEPS = 30
LEFT, RIGHT, TOP, BOTTOM = 64, 448, 12, 236  # The frame of a plot, in pixels.
MOST_POINTS = 400  # More points of a line would only make the file larger.
FEW_POINTS = 30  # A line with no more points has a mark at each.
MOST_LINES = 10  # A plot has no more colours.
PICTURE_SIDE, LARGE_SIDE = 64, 128  # Pictures have no more pixels a side.
SPREAD = 100.0  # If the largest value of a regression is this multiple of the smallest, axes are logarithmic.
SOLVE_KEYS = {
    *("statistics", "output", "penalty", "iteration", "seconds", "objective", "relative_gap", "n_active"),
    *("visits", "skipped_as_shrunk", "skipped_as_screened", "not_drawn"),
}
GROWTH_KEYS = {"candidates", "sigma2", "hold_out_error"}  # A line of the log with these tells of a candidate number.
Lines = Mapping[str, Sequence[tuple[float, float]]]  # Points (x, y) by name; the name of a lone line may be empty.
Figure = dict[str, Any]  # A plot in pixels.

IMAGE_SETTINGS = re.compile(r'(\[features\]\nname = "raw"\n)(?:(?!size).+\n)+')


def environment() -> jinja2.Environment:
    """Return the environment of the templates `page.html.j2` and `drawing.html.j2`, which escape every text."""
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    made = jinja2.Environment(loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    made.filters["worded"] = worded
    return made


def page(layout: RunLayout, damaged: list[str] | None = None) -> str:
    """Return the whole page; what does not apply or is not there yet is left out.

    Damage is added to `damaged`. Memory: 64 MiB each for log and metrics, and a block of predictions.
    """
    facts, notes = status(layout.root), list[str]()
    damaged = [] if damaged is None else damaged
    damaged += facts["damaged"]
    report = facts["report"]
    predictor = tried(notes, "model", lambda: load_predictor(layout.root), damaged) if layout.model.is_dir() else None
    solves = [record for record in _records(layout, damaged) if record.keys() >= SOLVE_KEYS]
    last = {key: solves[-1][key] for key in ("statistics", "penalty")} if solves else {}
    last_solves = [record for record in solves if record.items() >= last.items()]
    log = tail(layout.log, MOST_TAIL_BYTES, [])
    stored = tried(notes, "environment", lambda: read_environment(layout), damaged) or {}
    shown = {
        "run": layout.root.resolve().name,
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "state": facts["state"],
        "status": run_facts.lines({**facts, "damaged": [], "report": None}),
        "report": report,
        "words": run_facts,
        "plots": plots_of(report, last_solves, predictor.model.output_labels if predictor else ()),
        "solve_records": solves,
        "last_solves": last_solves,
        "many_classes": MOST_SHOWN_CLASSES,
        "confusion": _confusion(report) if report and report["confusion"] else None,
        "n_centers": predictor.model.n_centers if predictor else None,
        "columns": predictor.model.table_columns if predictor else None,
        "growth": list({one["candidates"]: one for one in log if one.keys() >= GROWTH_KEYS}.values()),
        "stages": in_order((report or facts)["stages"] or {}),
        "peak_bytes": (report or facts)["peak_rss_bytes"],
        "settings": tried(notes, "settings", lambda: IMAGE_SETTINGS.sub(r"\1", read_plain(layout.config).decode())),
        "command": stored.get("command"),
        "versions": stored.get("environment") or {},
        "warnings": _warnings(log),
        "log": [_log_line(one) for one in log[-MOST_LOG_LINES:]],
        **_of_predictions(predictor, notes, damaged),
        "notes": damaged + notes,
    }
    return environment().get_template("page.html.j2").render(shown)


def _records(layout: RunLayout, damaged: list[str]) -> list[dict[str, Any]]:
    """Return the iteration records of all solves; a resumed run may have written one twice."""
    key = ("statistics", "output", "penalty", "iteration", "round")
    told = tail(layout.metrics, MOST_TAIL_BYTES, damaged)
    return [*{tuple(str(record.get(name)) for name in key): record for record in told}.values()]


def _of_predictions(predictor: Predictor | None, notes: list[str], damaged: list[str]) -> dict[str, Any]:
    """Return the page's content on the predictions that a run keeps and, where its data are there, rows and centers."""
    shown: dict[str, Any] = dict.fromkeys(("mistakes", "values", "roc", "reliability", "centers"))
    if predictor is None or predictor.config is None:
        return shown
    kept = tried(notes, "predictions", lambda: _kept(predictor), damaged)
    remedy, test = needs_download(predictor.config), None
    if remedy:
        notes.append(f"pictures and examples: {remedy}")
    else:
        asked = ExampleRequest(None, labelled=True, part="test")
        test = tried(notes, "examples", lambda: open_examples(asked, predictor), damaged)
    if kept:
        shown |= {"mistakes": _mistakes(predictor, kept, test), "roc": _roc(predictor.model, kept)}
        shown["reliability"] = _reliability(predictor.model, kept)
        shown["values"] = None if predictor.model.labels else [_scatter(kept), _histogram(kept.truth)]
    if test is None:
        return shown
    return shown | {"centers": tried(notes, "pictures of the centers", lambda: _centers(predictor), damaged)}


def needs_download(config: TrainConfig) -> str:
    """Return what to do where the data of a run would have to be downloaded first, which a report does not do."""
    if config.dataset not in PUBLISHED:
        return ""
    folder = given_folder(config.dataset) or cache_folder(config.dataset)
    if not missing_files(config.dataset, folder):
        return ""
    return f"the data are not here: {program('train')} {config.dataset} --dry-run downloads them"


@dataclass(frozen=True, eq=False)
class Kept:
    """The predictions of the test part, or of some of its rows, that a run has written."""

    rows: NDArray[np.int64]  # (rows,): their numbers in the data as given
    names: list[str]
    truth: NDArray[Any]  # (rows,): classes by their index, or values
    found: NDArray[Any]
    decision: NDArray[np.float64]  # (rows, T)
    weights: NDArray[np.float64]  # (rows,)

    def shown(self, value: Any) -> str:
        """Return a number in the digits that tell truths from predictions, six at least."""
        size, off = np.abs(self.truth).max(initial=0.0), np.abs(self.found - self.truth).max(initial=0.0)
        digits = 3 + math.log10(size / off) if size > off > 0 else 0
        return f"{value:.{min(max(math.ceil(digits), 6), 17)}g}"


def _kept(predictor: Predictor) -> Kept | None:
    """Return the predictions that a run keeps; None where it has none yet. Raises CorruptDataError."""
    assert predictor.layout is not None
    path, model = predictor.layout.predictions, predictor.model
    if not path.exists():
        return None
    try:
        lines = list(csv.DictReader(io.StringIO(read_plain(path).decode(), newline="")))
        index = {str(label): k for k, label in enumerate(model.labels)}
        truth, found = (
            np.array([index[line[name]] if index else float(line[name]) for line in lines])
            for name in ("truth", "label")
        )
        decision = np.array([[float(line[name]) for name in model.decision_names()] for line in lines])
        rows = np.array([int(line["row"]) for line in lines])
        weights = np.array([float(line.get("weight", 1.0)) for line in lines])
    except (LookupError, TypeError, ValueError, csv.Error) as error:
        raise CorruptDataError(f"{path}: holds no predictions of this model ({error})") from None
    names = [line.get("file") or f"row {line['row']}" for line in lines]
    return Kept(rows, names, truth, found, decision, weights)


def _mistakes(predictor: Predictor, kept: Kept, test: Examples | None) -> dict[str, Any]:
    """Return the test rows that the model is most wrong about; with their data, pictures and centers that explain."""
    labels, truth, found, model = predictor.model.labels, kept.truth, kept.found, predictor.model
    excess, n_cancelled = found - truth, 0
    if labels:
        of_class = kept.decision if model.task == "multiclass" else np.hstack([-kept.decision, kept.decision])
        every = np.arange(len(truth))
        excess = of_class[every, found] - of_class[every, truth]
    wrong = np.flatnonzero(truth != found) if labels else np.arange(len(truth))
    worst = wrong[np.argsort(-np.abs(excess[wrong]), kind="stable")[:MOST_MISTAKES]]
    shown: list[dict[str, Any]] = [
        {
            **{"row": int(kept.rows[k]), "name": kept.names[k], "picture": None, "probability": None, "why": []},
            "truth": labels[truth[k]] if labels else kept.shown(truth[k]),
            "predicted": labels[found[k]] if labels else kept.shown(found[k]),
            "excess": float(excess[k]),
        }
        for k in worst.tolist()
    ]
    if test is not None and shown:
        piece = test.pieces[0]
        numbers = np.arange(len(piece)) if piece.numbers is None else piece.numbers[:]
        rows = np.argsort(numbers)[np.searchsorted(np.sort(numbers), kept.rows[worst])]
        of_worst, n_cancelled = _explained(predictor, test, rows, kept, worst)
        shown = [one | _told(piece, row, LARGE_SIDE) | why for one, row, why in zip(shown, rows, of_worst, strict=True)]
    n_wrong = len(wrong) if labels else None
    return {"shown": shown, "n_wrong": n_wrong, "n_scanned": len(truth), "n_cancelled": n_cancelled}


def _roc(model: SparseKernelModel, kept: Kept) -> Figure | None:
    """Return the ROC curve of the second of two classes, or one for each of a few classes against the rest."""
    n_classes = len(model.labels)
    if not 2 <= n_classes <= MOST_LINES:
        return None
    lines, f, s = dict[str, Sequence[tuple[float, float]]](), by_class(kept.decision), kept.weights
    for k in [1] if n_classes == 2 else range(n_classes):
        false, true = roc_curve(f[:, k], kept.truth == k, s)
        if false[-1] and true[-1]:
            lines[str(model.labels[k])] = list(zip(false / false[-1], true / true[-1], strict=True))
    false_share, true_share = "share of other rows at or above", "share of the class at or above"
    return plot(lines, Axis(false_share), Axis(true_share)) if lines else None


def _explained(
    predictor: Predictor, data: Examples, rows: NDArray[np.int64], kept: Kept, places: NDArray[np.int64]
) -> tuple[list[dict[str, Any]], int]:
    """Return for test rows the `probability` of the prediction, or None, and `why`: two centers that speak for it.

    With classes, a third one speaks for the true class. Centers that have moved have no row to show. places: those of
    the rows among the kept ones. Also returns the number of rows in which the parts of centers cancel.
    """
    model, piece, truth, found = predictor.model, data.pieces[0], kept.truth[places], kept.found[places]
    if not (len(rows) and model.n_centers) or (model.center_index < 0).any():
        return [{"probability": None, "why": []} for _ in rows], 0
    train = open_examples(ExampleRequest(None, labelled=True, part="train"), predictor).pieces[0]
    columns = model.columns(features_of(model, piece.X[rows], piece.name, 0, are_bytes=data.are_bytes))
    wanted = [(found, 2), *([(truth, 1)] if model.labels else [])]
    parts = [model.explained(columns, classes, n) for classes, n in wanted]
    p = None if model.calibration is None else model.probabilities_of(model.decision_at(columns)).tolist()
    told: list[dict[str, Any]] = [{"probability": p and p[k][found[k]], "why": []} for k in range(len(rows))]
    for (classes, _), part in zip(wanted, parts, strict=True):
        for k, n in np.ndindex(part.centers.shape):
            row, share = int(model.center_index[part.centers[k, n]]), part.shares[k, n].item()
            if model.labels and share <= 0:
                continue
            label, spoken_for = train.y[row : row + 1][0].item(), model.labels[classes[k]] if model.labels else None
            of_center = {"label": label if model.labels else kept.shown(label), "share": share, "for": spoken_for}
            told[k]["why"].append(_told(train, row) | of_center)
    return told, parts[0].n_cancelled


def _reliability(model: SparseKernelModel, kept: Kept) -> Figure | None:
    """Return the share that is right against the largest probability, averaged over groups of equal size."""
    rows = np.flatnonzero(kept.weights)
    n_groups = min(len(rows) // LEAST_POINT_ROWS, MOST_CURVE_POINTS)
    if model.calibration is None or n_groups < 2:
        return None
    p, s = model.probabilities_of(kept.decision), kept.weights
    largest, right = p.max(axis=1), p.argmax(axis=1) == kept.truth
    groups = np.array_split(rows[np.argsort(largest[rows], kind="stable")], n_groups)
    x, y = ([float(np.average(of[some], weights=s[some])) for some in groups] for of in (largest, right))
    least = min(*x, *y)
    sure = f"largest probability, mean of {len(groups[-1])} test rows"
    lines = {"calibrated": [(least, least), (1.0, 1.0)], "test rows": list(zip(x, y, strict=True))}
    return plot(lines, Axis(sure), Axis("share that is right"))


def _scatter(kept: Kept) -> Figure | None:
    y, f = kept.truth, kept.found
    ends = [float(min(y.min(), f.min())), float(max(y.max(), f.max()))]
    log = 0 < SPREAD * ends[0] <= ends[1]  # Both axes are alike, so that equal values lie on one line.
    lines = {"test rows": list(zip(y.tolist(), f.tolist(), strict=True)), "equal": [(end, end) for end in ends]}
    return plot(lines, Axis("truth", log), Axis("prediction", log), dots="test rows")


def _histogram(y: NDArray[np.float64]) -> Figure | None:
    counts, edges = np.histogram(y, min(max(math.isqrt(len(y)), 5), MOST_HISTOGRAM_STEPS))
    steps = [(edge, count) for k, count in enumerate(counts.tolist()) for edge in edges[k : k + 2].tolist()]
    steps = [(steps[0][0], 0), *steps, (steps[-1][0], 0)]
    return plot({"": steps}, Axis("truth"), Axis("test rows"), filled=True)


def _centers(predictor: Predictor) -> list[dict[str, Any]] | None:
    """Return the centers of the largest weights as pictures; None where inputs are no images, or centers were moved."""
    model, shown = predictor.model, list[dict[str, Any]]()
    if len(model.input_shape) < 2 or not model.n_centers or (model.center_index < 0).any():
        return None
    piece = open_examples(ExampleRequest(None, labelled=True, part="train"), predictor).pieces[0]
    names = [f" for {label}" for label in model.labels] if model.task == "multiclass" else [""]
    for m in np.argsort(-np.linalg.norm(model.weights, axis=1), kind="stable")[:MOST_CENTERS].tolist():
        row, weights = int(model.center_index[m]), list(zip(names, model.weights[m].tolist(), strict=True))
        name, weight = max(weights, key=lambda one: abs(one[1]))
        center = {"label": piece.y[row : row + 1][0].item(), "weights": weights, "largest": f"{weight:+.3g}{name}"}
        shown.append(_told(piece, row) | center)
    return shown


def _told(piece: Rows, row: int, side: int = PICTURE_SIDE) -> dict[str, Any]:
    """Return a row's number in the data as given, its name or its file's, and its picture."""
    number = row if piece.numbers is None else int(piece.numbers[row])
    name = f"row {number}" if piece.names is None else str(piece.names[row])
    shown = picture(piece.X[row : row + 1][0], side) if len(piece.X.shape) > 2 else None
    return {"row": number, "name": name, "picture": shown}


def _confusion(report: dict[str, Any]) -> dict[str, Any]:
    labels, matrix = [one["label"] for one in report["by_class"]], report["confusion"]
    wrong = [(count, j, k) for j, row in enumerate(matrix) for k, count in enumerate(row) if j != k and count]
    commonest = sorted(wrong, reverse=True)[:MOST_LISTED_CONFUSIONS]
    return {
        "labels": labels,
        "rows": list(zip(labels, matrix, strict=True)) if len(labels) <= MOST_SHOWN_CLASSES else [],
        "most": commonest[0][0] if commonest else 1,
        "commonest": [(labels[j], labels[k], count) for count, j, k in commonest],
    }


def _warnings(log: list[dict[str, Any]]) -> list[str]:
    """Return the warnings of a run, and its messages on data that it left out, each once."""
    told = ((one.get("event"), one.get("message", "")) for one in log)
    return [*dict.fromkeys(words for event, words in told if event == "warning" or " left out" in f" {words}")]


def _log_line(record: dict[str, Any]) -> str:
    facts = {key: value for key, value in record.items() if key not in ("time", "event", "message")}
    words = " ".join(f"{key}={value}" for key, value in facts.items())
    parts = (str(record.get("time")), str(record.get("event")), str(record.get("message") or ""), words)
    return "  ".join(part for part in parts if part)


@dataclass(frozen=True)
class Axis:
    """A labelled axis, linear or logarithmic."""

    label: str
    log: bool = False

    def place(self, value: float) -> float:
        """Return the place of a value; NaN for one that a logarithmic axis does not have."""
        return value if not self.log else math.log10(value) if value > 0 else math.nan

    def ticks(self, low: float, high: float) -> list[tuple[float, str]]:
        """Return place and text of some ticks between two places."""
        if not self.log:
            return _even_ticks(low, high)
        step = max(1, math.ceil((high - low) / 6))
        powers = [(float(k), f"1e{k}") for k in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, step)]
        if len(powers) >= 2:
            return powers
        return [(math.log10(value), text) for value, text in _even_ticks(10**low, 10**high) if value > 0]


def _even_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return about five multiples of 1, 2 or 5 times a power of ten between two values, with their texts."""
    raw = (high - low) / 5
    unit = 10 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(6, 1 + math.ceil(math.log10(max(abs(low), abs(high), step) / step)))  # As many tell ticks apart.
    return [(k * step, f"{k * step:.{digits}g}") for k in range(first, last + 1)]


def plot(lines: Lines, x: Axis, y: Axis, dots: str | None = None, *, filled: bool = False) -> Figure | None:
    """Return a plot of lines, the one named `dots` as points alone; None where no point has a place on the axes.

    filled: the area below lines, without points.
    """
    drawn = dict[str, list[tuple[float, float]]]()
    for name, values in lines.items():
        points = [point for a, b in values if all(map(math.isfinite, point := (x.place(a), y.place(b))))]
        some = np.linspace(0, len(points) - 1, min(MOST_POINTS, len(points))).round().astype(int)
        drawn |= {name: [points[k] for k in some]} if points else {}
    if not drawn:
        return None
    places = [point for points in drawn.values() for point in points]
    across, up = _range([a for a, _ in places], x), _range([b for _, b in places], y)

    def at_x(place: float) -> float:
        return LEFT + (place - across[0]) / (across[1] - across[0]) * (RIGHT - LEFT)

    def at_y(place: float) -> float:
        return BOTTOM - (place - up[0]) / (up[1] - up[0]) * (BOTTOM - TOP)

    return {
        "x": x.label,
        "y": y.label,
        "x_ticks": [(at_x(place), text) for place, text in x.ticks(*across)],
        "y_ticks": [(at_y(place), text) for place, text in y.ticks(*up)],
        "frame": (LEFT, RIGHT, TOP, BOTTOM),
        "lines": [
            {
                "name": name,
                "points": [(at_x(a), at_y(b)) for a, b in points],
                "joined": name != dots and len(points) > 1,
                "marked": name == dots or (len(points) <= FEW_POINTS and not filled),
                "filled": filled,
            }
            for name, points in drawn.items()
        ],
    }


def _range(places: Sequence[float], axis: Axis) -> tuple[float, float]:
    """Return the ends of an axis, with some room where all places are one."""
    low, high = min(places), max(places)
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-300):
        room = 0.03 * (high - low)
        return (low if low == 0 and not axis.log else low - room), high + room
    room = 0.5 if axis.log else max(abs(low) / 10, 1e-9)
    return low - room, high + room


def picture(image: NDArray[np.generic], most_side: int = PICTURE_SIDE) -> str:
    """Return a data URI of a PNG of an image (H, W) or (H, W, 3); bytes as they are, others from least to largest."""
    step = -(-max(image.shape[:2]) // most_side)
    pixels = image[::step, ::step]
    if pixels.dtype != np.uint8:
        values = np.asarray(pixels, np.float64)
        low, high = values.min(), values.max()
        pixels = np.round(255 * (values - low) / (high - low if high > low else 1.0)).astype(np.uint8)
    from PIL import Image  # Its import is slow.

    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def plots_of(
    report: dict[str, Any] | None, last_solves: Sequence[dict[str, Any]], labels: Sequence[object]
) -> dict[str, list[Figure | None]]:
    """Return the plots of each section of the page, from the report and the records of the last solves."""
    held_out, report = Axis("held-out mean squared error"), report or {}
    drawn: dict[str, list[Figure | None]] = {"path": [], "selection": [], "moves": []}
    drawn["solves"] = _solves(last_solves, labels)
    if path := report.get("path"):
        axes = {"hold_out_error": Axis("held-out error"), "n_centers": Axis("centers")}
        drawn["path"] = [plot({"": _points(path, "penalty", y)}, Axis("penalty", log=True), axes[y]) for y in axes]
    if selected := report.get("selection"):
        test = Axis("test mean squared error" if report["task"] == "regression" else "share of test rows that is wrong")
        axes, size = {"test_error": test, "hold_out_error": held_out}, Axis("centers", log=True)
        drawn["selection"] = [plot({"": _points(selected["curve"], "size", y)}, size, axes[y]) for y in axes]
    if moves := report.get("moves"):
        drawn["moves"] = [plot({"": list(enumerate(moves["held_out_errors"]))}, Axis("step"), held_out)]
    return drawn


def _solves(last_solves: Sequence[dict[str, Any]], labels: Sequence[object]) -> list[Figure | None]:
    drawn = dict[str, list[dict[str, Any]]]()
    for output in sorted({record["output"] for record in last_solves})[:MOST_LINES]:
        name = str(labels[output]) if output < len(labels) else f"output {output}"
        drawn[name] = [record for record in last_solves if record["output"] == output]
    axes = {"objective": Axis("objective"), "relative_gap": Axis("relative gap", log=True)}
    axes["n_active"] = Axis("active candidates")
    return [
        plot({name: _points(drawn[name], "iteration", y) for name in drawn}, Axis("sweeps and Newton rounds"), axes[y])
        for y in (axes if drawn else ())
    ]


def _points(records: Sequence[dict[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    return [(one[x], one[y]) for one in records if one.get(y) is not None]
