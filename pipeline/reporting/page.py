"""The page of a run, also of one that is not done: its numbers, plots and pictures in one HTML text.

It loads nothing from a network. What cannot be shown is named in it.
"""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import jinja2
import numpy as np

from pipeline.config.command_line import program
from pipeline.config.settings import MOST_TOML_BYTES
from pipeline.errors import ExitCode
from pipeline.prediction.streamed_prediction import Located, locate
from pipeline.reporting import examples, plots, run_facts
from pipeline.reporting.result_table import (
    before_words,
    by_recall,
    by_weight,
    kernel_rows,
    path_words,
    remarks,
    scale_words,
    weighting_lines,
)
from pipeline.runtime.answers import describe
from pipeline.runtime.run_folder import finished_report
from pipeline.stages.run_workspace import COMPILE, in_order
from storage.errors import CorruptDataError
from storage.files import open_plain, parse_json, read_plain
from storage.folder_layouts import RunLayout
from storage.records import read_record

MOST_LOG_LINES = 200
MOST_TAIL_BYTES = 64 * 2**20  # of log and metrics that are read, from their end
MOST_SHOWN_CLASSES = 30  # of a confusion matrix; the table of more classes is folded

IMAGE_SETTINGS = re.compile(r'(\[features\]\nname = "raw"\n)(?:(?:stride|deskew|power) = .*\n)+')

_Value = TypeVar("_Value")


def page(layout: RunLayout) -> str:
    """Return the whole page. Raises MissingRunError where there is no run."""
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.get_template("page.html.j2").render(gather(layout))


def gather(layout: RunLayout) -> dict[str, Any]:
    """Return what the page shows; what does not apply or is not there yet is None or empty.

    `notes` name what could not be read. Memory: 64 MiB of log and metrics each, and a block of predictions.
    """
    facts = run_facts.status(layout.root)
    notes: list[str] = list(facts["damaged"])
    done = facts["state"] == "finished"
    report = _tried(notes, "report", lambda: finished_report(layout)) if done else None
    located = _tried(notes, "model", lambda: locate(layout.root)) if layout.model.is_dir() else None
    records, log, settings = _records(layout), _tail(layout.log), _settings(layout, notes)
    return {
        "run": layout.root.resolve().name,
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "state": facts["state"],
        "status": run_facts.lines({**facts, "damaged": [], "warnings": []}),
        "report": report,
        "remarks": remarks(report) if report else [],
        "palettes": (plots.LIGHT, plots.DARK),
        "baseline_rmse": _baseline_rmse(report) if report else None,
        "before": before_words(report) if report else None,
        "path_words": path_words(report) if report and report["path"] else None,
        "by_weight": by_weight(report) if report else "",
        "weighting": weighting_lines(report) if report else [],
        "model_facts": _model_facts(located) if located else None,
        **plots.solves(records, _labels(located)),
        **plots.passes(records),
        **plots.of_report(report),
        "classes": _classes(report) if report else None,
        "kernel_rows": kernel_rows(report) if report and report.get("kernels_tried") else None,
        "scale_words": scale_words(report) if report else "",
        "confusion": _confusion(report, located.model.labels) if report and located else None,
        **_pictures(located, notes),
        "stages": _stages(layout, report, notes),
        "peak_bytes": (report or facts)["peak_rss_bytes"],
        **settings,
        "log": [_log_line(one) for one in log[-MOST_LOG_LINES:]],
        "notes": notes,
    }


def _baseline_rmse(report: dict[str, Any]) -> float | None:
    """Return the RMSE of predicting the mean of the test part for every row, which R² compares with."""
    r2 = report.get("r2")
    return None if r2 is None or r2 >= 1 else float(np.sqrt(report["mse"] / (1 - r2)))


def _tried(notes: list[str], what: str, make: Callable[[], _Value]) -> _Value | None:
    """Return what `make` returns; None where it meets an error that a user may meet, which is noted."""
    try:
        return make()
    except Exception as error:
        code, line = describe(error)
        if code == ExitCode.BUG and not isinstance(error, OSError | ValueError):
            raise
        notes.append(f"{what}: {line}")
        return None


def _model_facts(located: Located) -> dict[str, Any]:
    model = located.model
    norms = np.linalg.norm(model.weights, axis=1)
    return {
        "task": model.task,
        "n_centers": model.n_centers,
        "n_features": model.centers.shape[1],
        "n_weights": int(np.count_nonzero(model.weights)),
        "largest_norm": float(norms.max()) if len(norms) else 0.0,
    }


def _labels(located: Located | None) -> list[str] | None:
    """Return the name of every output, None where there is no model to ask."""
    if located is None:
        return None
    model = located.model
    if model.task == "multiclass":
        return [str(label) for label in model.labels]
    return [str(model.labels[1])] if model.task == "binary" else ["y"]


def _records(layout: RunLayout) -> list[dict[str, Any]]:
    """Return the iteration records so far: those of the solves that are done, then those of the ones under way."""
    under_way = [record for path in sorted(layout.solutions.glob("*.jsonl")) for record in _tail(path)]
    latest: dict[tuple[str, ...], dict[str, Any]] = {}
    for record in [*_tail(layout.metrics), *under_way]:  # a resumed run may tell of one twice
        key = ("statistics", "output", "penalty", "iteration", "round")
        latest[tuple(str(record.get(name)) for name in key)] = record
    return list(latest.values())


def _pictures(located: Located | None, notes: list[str]) -> dict[str, Any]:
    """Return the examples that the model is wrong about, and its centers as pictures."""
    empty: dict[str, Any] = {"mistakes": None, "scatter": None, "centers": None}
    if located is None or located.config is None:
        return empty
    remedy = examples.needs_download(located.config)
    if remedy:
        notes.append(f"pictures and examples: {remedy}")
        return empty
    mistakes = _tried(notes, "examples", lambda: examples.mistakes(located)) or {}
    centers = _tried(notes, "pictures of the centers", lambda: examples.centers(located))
    return {**empty, **mistakes, "centers": centers}


def _classes(report: dict[str, Any]) -> dict[str, Any] | None:
    """Return recall and precision of the classes of a report that has them; of many, those of low recall first."""
    by_class = report.get("by_class")
    if not by_class:
        return None
    many = len(by_class) > MOST_SHOWN_CLASSES
    return {"rows": [by_class[k] for k in by_recall(by_class)] if many else by_class, "folded": many}


def _confusion(report: dict[str, Any], labels: Sequence[Any]) -> dict[str, Any] | None:
    """Return the confusion matrix with the shade of each cell; of many classes only the commonest confusions."""
    matrix = report["confusion"]
    if not matrix:
        return None
    wrong = [(count, j, k) for j, row in enumerate(matrix) for k, count in enumerate(row) if j != k and count]
    most = max((count for count, _, _ in wrong), default=1)
    rows = [
        {
            "label": labels[j],
            "cells": [
                {"count": count, "shade": 0 if j == k else count / most, "right": j == k} for k, count in enumerate(row)
            ],
        }
        for j, row in enumerate(matrix)
    ]
    commonest = [
        {"count": c, "truth": labels[j], "predicted": labels[k]} for c, j, k in sorted(wrong, reverse=True)[:20]
    ]
    return {"labels": labels, "rows": rows if len(labels) <= MOST_SHOWN_CLASSES else [], "commonest": commonest}


def _stages(layout: RunLayout, report: dict[str, Any] | None, notes: list[str]) -> list[dict[str, Any]]:
    """Return the stages so far with their times, and each one's share of the longest but compiling."""
    if report is None and not layout.state.exists():
        return []
    stored = report or _tried(notes, "stages", lambda: read_record(layout.state, remedy="resume the run")) or {}
    stages = in_order(stored.get("stages") or {})
    longest = max((cost["wall_seconds"] for name, cost in stages.items() if name != COMPILE), default=0.0) or 1.0
    shares = {name: 0.0 if name == COMPILE else cost["wall_seconds"] / longest for name, cost in stages.items()}
    return [{"name": name, **cost, "share": shares[name]} for name, cost in stages.items()]


def _settings(layout: RunLayout, notes: list[str]) -> dict[str, Any]:
    """Return the frozen settings as text, the command of the first start, and what it ran with."""
    stored = _tried(notes, "environment", lambda: read_record(layout.environment, remedy="restore it")) or {}
    settings = _tried(notes, "settings", lambda: read_plain(layout.config, MOST_TOML_BYTES).decode())
    if settings is not None:
        settings = IMAGE_SETTINGS.sub(r"\1", settings)
    arguments = stored.get("arguments")
    versions = {"python": stored.get("python"), **(stored.get("libraries") or {})}
    pools = [
        " ".join(str(pool.get(key)) for key in ("internal_api", "version", "architecture"))
        for pool in stored.get("blas") or []
    ]
    return {
        "settings": settings,
        "command": f"{program('train')} {shlex.join(arguments)}" if arguments else None,
        "versions": {"slkl": stored.get("slkl"), **versions, "BLAS": ", ".join(pools) or None},
        "processors": stored.get("processors"),
    }


def _tail(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects at the end of a file of lines; torn lines, of a kill or of now, are left out."""
    try:
        with open_plain(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - MOST_TAIL_BYTES, 0))
            lines = stream.read().split(b"\n")
    except (OSError, CorruptDataError):  # not there yet, or the solve ended meanwhile
        return []
    records = []
    for line in lines:
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _log_line(record: dict[str, Any]) -> str:
    facts = {key: value for key, value in record.items() if key not in ("time", "event", "message")}
    words = " ".join(f"{key}={value}" for key, value in facts.items())
    parts = (str(record.get("time")), str(record.get("event")), str(record.get("message") or ""), words)
    return "  ".join(part for part in parts if part)
