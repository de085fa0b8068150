"""`python -m pipeline.report RUN`: one HTML file that tells of a run, also of one that is not done. Takes no lock.

The page holds its plots and pictures and asks no network for anything. What cannot be shown is named in it.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # imported late, so that --help answers at once
    from pipeline.prediction import Located
    from storage.layout import RunLayout

MOST_LOG_LINES = 200
MOST_TAIL_BYTES = 64 * 2**20  # of log and metrics that are read, from their end
STAGES = ("features", "centers", "statistics", "solve", "evaluate")  # in the order in which they run
MOST_SHOWN_CLASSES = 30  # of a confusion matrix

PAGE_START = b"<!doctype html"

_Any = TypeVar("_Any")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.report",
        description="Write one HTML file that tells of a run, finished or not; it needs no network.",
        epilog="Exit codes: 0 done, 2 usage, 66 no such run, 69 the folder cannot be read, 73 cannot create.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: RUN/report.html)")
    arguments = parser.parse_args(argv)
    from pipeline.errors import answered

    return answered(lambda: print(write(arguments.run, arguments.out)))


def write(root: Path, out: Path | None) -> Path:
    """Write the page of a run in one step; return where it is.

    Raises MissingRunError where there is no run, ConfigError where `out` is a file of the run or none that was written
    here, CannotWriteError.
    """
    from pipeline.errors import ConfigError, MissingRunError
    from storage.commit import write_file
    from storage.layout import RunLayout

    layout = RunLayout(root)
    path = out or layout.report_html
    if path.resolve() != layout.report_html.resolve() and path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"--out {path}: lies in the run's folder, which only has room for {layout.report_html.name}")
    if not root.is_dir():
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    if path.is_file() and not _is_page(path):
        raise ConfigError(f"--out {path}: exists and is no report; choose another name")
    text = page(layout)
    write_file(path, text.encode("utf-8"))
    return path


def _is_page(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(PAGE_START)).lower() in (PAGE_START, b"")


def page(layout: "RunLayout") -> str:
    """Return the whole page. Raises MissingRunError where there is no run."""
    import jinja2

    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.get_template("report.html.j2").render(gather(layout))


def gather(layout: "RunLayout") -> dict[str, Any]:
    """Return what the page shows; what does not apply or is not there yet is None or empty.

    `notes` name what could not be read. Memory: 64 MiB of log and metrics each, and a block of predictions.
    """
    from pipeline.run_folder import finished_report
    from pipeline.status import lines, status

    status_facts = status(layout.root)
    notes: list[str] = list(status_facts["damaged"])
    done = status_facts["state"] == "finished"
    report = _tried(notes, "report", lambda: finished_report(layout)) if done else None
    located = _tried(notes, "model", lambda: _located(layout)) if layout.model.is_dir() else None
    records = _records(layout)
    return {
        "run": layout.root.resolve().name,
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "state": status_facts["state"],
        "status": lines({**status_facts, "damaged": []}),
        "report": report,
        "model_facts": _model_facts(located) if located else None,
        **_plots(records, report, _labels(located)),
        "confusion": _confusion(report, located.model.labels) if report and located else None,
        **_pictures(located, notes),
        "stages": _stages(layout, report, notes),
        "peak_bytes": (report or status_facts)["peak_rss_bytes"],
        **_settings(layout, notes),
        "log": [_log_line(one) for one in _tail(layout.log)[-MOST_LOG_LINES:]],
        "notes": notes,
    }


def _tried(notes: list[str], what: str, make: Callable[[], _Any]) -> _Any | None:
    """Return what `make` returns; None where it meets an error that a user may meet, which is noted."""
    from pipeline.errors import ExitCode, describe

    try:
        return make()
    except Exception as error:
        code, line = describe(error)
        if code == ExitCode.BUG and not isinstance(error, OSError | ValueError):
            raise
        notes.append(f"{what}: {line}")
        return None


def _located(layout: "RunLayout") -> "Located":
    from pipeline.prediction import locate

    return locate(layout.root)


def _model_facts(located: "Located") -> dict[str, Any]:
    import numpy as np

    model = located.model
    norms = np.linalg.norm(model.weights, axis=1)
    return {
        "task": model.task,
        "n_centers": model.n_centers,
        "n_features": model.centers.shape[1],
        "n_weights": int(np.count_nonzero(model.weights)),
        "largest_norm": float(norms.max()) if len(norms) else 0.0,
    }


def _labels(located: "Located | None") -> list[str] | None:
    """Return the name of every output, None where there is no model to ask."""
    if located is None:
        return None
    model = located.model
    if model.task == "multiclass":
        return [str(label) for label in model.labels]
    return [str(model.labels[1])] if model.task == "binary" else ["y"]


def _records(layout: "RunLayout") -> list[dict[str, Any]]:
    """Return the iteration records so far: those of the solves that are done, then those of the ones under way."""
    under_way = [record for path in sorted(layout.solutions.glob("*.jsonl")) for record in _tail(path)]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in [*_tail(layout.metrics), *under_way]:  # a resumed run may tell of one twice
        key = ("statistics", "outputs", "penalty", "iteration", "round")
        found[tuple(str(record.get(name)) for name in key)] = record
    return list(found.values())


def _plots(records: list[dict[str, Any]], report: dict[str, Any] | None, labels: list[str] | None) -> dict[str, Any]:
    from pipeline import report_plots as plots

    return {
        **plots.solves(records, labels),
        **plots.passes(records),
        **plots.path(report),
        **plots.selection(report),
    }


def _pictures(located: "Located | None", notes: list[str]) -> dict[str, Any]:
    """Return the examples that the model is wrong about, and its centers as pictures."""
    from pipeline import report_examples as examples

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
            "error": 1 - row[j] / sum(row) if sum(row) else None,
        }
        for j, row in enumerate(matrix)
    ]
    commonest = [
        {"count": c, "truth": labels[j], "predicted": labels[k]} for c, j, k in sorted(wrong, reverse=True)[:20]
    ]
    return {"labels": labels, "rows": rows if len(labels) <= MOST_SHOWN_CLASSES else [], "commonest": commonest}


def _stages(layout: "RunLayout", report: dict[str, Any] | None, notes: list[str]) -> list[dict[str, Any]]:
    """Return the stages so far with their times, and each one's share of the longest."""
    from storage.commit import read_record

    if report is None and not layout.state.exists():
        return []
    stored = report or _tried(notes, "stages", lambda: read_record(layout.state, remedy="resume the run")) or {}
    costs = stored.get("stages") or {}  # records have their keys sorted
    stages = {name: costs[name] for name in sorted(costs, key=lambda name: (*STAGES, name).index(name))}
    longest = max((cost["wall_seconds"] for cost in stages.values()), default=0.0) or 1.0
    return [{"name": name, **cost, "share": cost["wall_seconds"] / longest} for name, cost in stages.items()]


def _settings(layout: "RunLayout", notes: list[str]) -> dict[str, Any]:
    """Return the frozen settings as text, the command of the first start, and what it ran with."""
    from storage.commit import read_record

    stored = _tried(notes, "environment", lambda: read_record(layout.environment, remedy="restore it")) or {}
    settings = _tried(notes, "settings", lambda: layout.config.read_text(encoding="utf-8"))
    arguments = stored.get("arguments")
    versions = {"python": stored.get("python"), **(stored.get("libraries") or {})}
    pools = [
        " ".join(str(pool.get(key)) for key in ("internal_api", "version", "architecture"))
        for pool in stored.get("blas") or []
    ]
    return {
        "settings": settings,
        "command": f"python -m pipeline.train {shlex.join(arguments)}" if arguments else None,
        "versions": {"slkl": stored.get("slkl"), **versions, "BLAS": ", ".join(pools) or None},
        "processors": stored.get("processors"),
    }


def _tail(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects at the end of a file of lines; torn lines, of a kill or of now, are left out."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - MOST_TAIL_BYTES, 0))
            lines = stream.read().split(b"\n")
    except OSError:  # not there yet, or the solve ended meanwhile
        return []
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _log_line(record: dict[str, Any]) -> str:
    facts = {key: value for key, value in record.items() if key not in ("time", "event", "message")}
    words = " ".join(f"{key}={value}" for key, value in facts.items())
    parts = (str(record.get("time")), str(record.get("event")), str(record.get("message") or ""), words)
    return "  ".join(part for part in parts if part)


if __name__ == "__main__":
    sys.exit(main())
