"""The page of a run, also of one that is not done: its numbers, plots and pictures in one HTML text.

It loads nothing from a network. What cannot be shown is named in it.
"""

import re
import shlex
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from pipeline.config.command_line import program
from pipeline.config.settings import MOST_TOML_BYTES
from pipeline.prediction.streamed_prediction import ModelLocation, locate
from pipeline.reporting import examples, plots, result_table
from pipeline.reporting.run_facts import lines, status, tail, tried
from pipeline.stages.run_workspace import in_order
from storage.files import read_plain
from storage.folder_layouts import RunLayout
from storage.records import read_record

MOST_LOG_LINES = 200
MOST_TAIL_BYTES = 64 * 2**20  # of log and metrics that are read, from their end
MOST_CONFUSIONS = 20  # that are listed
MOST_SHOWN_CLASSES = 30  # of a confusion matrix; the table of more classes is folded

IMAGE_SETTINGS = re.compile(r'(\[features\]\nname = "raw"\n)(?:(?:stride|deskew|power) = .*\n)+')


def page(layout: RunLayout) -> str:
    """Return the whole page. Raises MissingRunError where there is no run."""
    return environment().get_template("page.html.j2").render(gather(layout))


def environment() -> jinja2.Environment:
    """Return what reads the templates, `page.html.j2` and `drawing.html.j2`, which escape every text."""
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)


def gather(layout: RunLayout) -> dict[str, Any]:
    """Return what the page shows; what does not apply or is not there yet is None or empty.

    `notes` name what could not be read. Memory: 64 MiB of log and metrics each, and a block of predictions.
    """
    facts = status(layout.root)
    notes: list[str] = list(facts["damaged"])
    report = facts["report"]
    located = tried(notes, "model", lambda: locate(layout.root)) if layout.model.is_dir() else None
    records = _records(layout)
    return {
        "run": layout.root.resolve().name,
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "state": facts["state"],
        "status": lines({**facts, "damaged": [], "report": None}),
        "report": report,
        "words": result_table,
        "palettes": (plots.LIGHT, plots.DARK),
        "plots": defaultdict(list, plots.of_run(report, records, located.model.output_labels if located else ())),
        "solve_records": plots.of_solves(records),
        "last_solves": plots.last_solves(records),
        "many_classes": MOST_SHOWN_CLASSES,
        "confusion": _confusion(report) if report and report["confusion"] else None,
        "n_centers": located.model.n_centers if located else None,
        **_pictures(located, notes),
        "stages": in_order((report or facts)["stages"] or {}),
        "peak_bytes": (report or facts)["peak_rss_bytes"],
        **_settings(layout, notes),
        "log": [_log_line(one) for one in tail(layout.log, MOST_TAIL_BYTES)[-MOST_LOG_LINES:]],
        "notes": notes,
    }


def _records(layout: RunLayout) -> list[dict[str, Any]]:
    """Return the iteration records so far: those of the solves that are done, then those of the ones under way."""
    under_way = [record for path in sorted(layout.solutions.glob("*.jsonl")) for record in tail(path, MOST_TAIL_BYTES)]
    latest: dict[tuple[str, ...], dict[str, Any]] = {}
    for record in [*tail(layout.metrics, MOST_TAIL_BYTES), *under_way]:  # a resumed run may tell of one twice
        key = ("statistics", "output", "penalty", "iteration", "round")
        latest[tuple(str(record.get(name)) for name in key)] = record
    return list(latest.values())


def _pictures(located: ModelLocation | None, notes: list[str]) -> dict[str, Any]:
    """Return the examples that the model is wrong about, and its centers as pictures."""
    empty: dict[str, Any] = {"mistakes": None, "scatter": None, "centers": None}
    if located is None or located.config is None:
        return empty
    remedy = examples.needs_download(located.config)
    if remedy:
        notes.append(f"pictures and examples: {remedy}")
        return empty
    mistakes = tried(notes, "examples", lambda: examples.mistakes(located)) or {}
    centers = tried(notes, "pictures of the centers", lambda: examples.centers(located))
    return {**empty, **mistakes, "centers": centers}


def _confusion(report: dict[str, Any]) -> dict[str, Any]:
    """Return the confusion matrix with the shade of each cell; of many classes only the commonest confusions."""
    labels, matrix = [one["label"] for one in report["by_class"]], report["confusion"]
    wrong = [(count, j, k) for j, row in enumerate(matrix) for k, count in enumerate(row) if j != k and count]
    commonest = sorted(wrong, reverse=True)[:MOST_CONFUSIONS]
    return {
        "labels": labels,
        "rows": list(zip(labels, matrix, strict=True)) if len(labels) <= MOST_SHOWN_CLASSES else [],
        "most": commonest[0][0] if commonest else 1,
        "commonest": [(labels[j], labels[k], count) for count, j, k in commonest],
    }


def _settings(layout: RunLayout, notes: list[str]) -> dict[str, Any]:
    """Return the frozen settings as text, the command of the first start, and what it ran with."""
    stored = tried(notes, "environment", lambda: read_record(layout.environment, remedy="restore it")) or {}
    settings = tried(notes, "settings", lambda: read_plain(layout.config, MOST_TOML_BYTES).decode())
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


def _log_line(record: dict[str, Any]) -> str:
    facts = {key: value for key, value in record.items() if key not in ("time", "event", "message")}
    words = " ".join(f"{key}={value}" for key, value in facts.items())
    parts = (str(record.get("time")), str(record.get("event")), str(record.get("message") or ""), words)
    return "  ".join(part for part in parts if part)
