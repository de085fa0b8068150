"""What a run is doing, or how it ended: facts for programs, and lines for people. Reads only, and takes no lock."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from features.cell_text import printable
from pipeline.errors import ExitCode, MissingRunError
from pipeline.reporting.result_table import error_words, remarks
from pipeline.runtime.console import describe
from pipeline.runtime.progress import Progress, duration
from pipeline.runtime.run_folder import frozen_config, resume_command
from storage.errors import CorruptDataError
from storage.files import open_plain, parse_json, read_record
from storage.folder_layouts import RunLayout
from storage.folders import holder

LOG_TAIL_BYTES = 2**16  # more than the last line, which may carry a traceback
SAVED = ("passes/*/sums-*.npz", "checkpoints/*/step-*/MANIFEST.json", "scores/*.npz", "solutions/*.npz")

_Value = TypeVar("_Value")


def status(root: Path) -> dict[str, Any]:
    """Return the facts; what is not known is None. Raises MissingRunError where there is no run.

    `state`: running (a process holds the lock), finished (has a report), stopped (on request), failed (see
    `last_error`), or killed. `damaged` lists what could not be read.
    """
    layout = RunLayout(root)
    damaged: list[str] = []
    # Who holds the lock is asked first: a run that ends meanwhile counts as running once more, never as killed.
    held_by = holder(layout.lock)
    if not (layout.config.exists() or held_by):
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    config = tried(damaged, "settings", lambda: frozen_config(layout)) if layout.config.exists() else None
    stored: dict[str, Any] = {}
    if layout.state.exists():
        stored = tried(damaged, "progress", lambda: read_record(layout.state)) or {}
    log = tail(layout.log, LOG_TAIL_BYTES, damaged)
    error = log[-1].get("error") if log else None
    state, report = {None: "killed", "StoppedError": "stopped"}.get(error, "failed"), None
    if held_by:
        state = "running"
    elif layout.report.exists():
        state, report = "finished", tried(damaged, "report", lambda: read_record(layout.report))
    under_way = stored if state != "finished" else {}
    progress = under_way.get("progress")
    if progress and state != "running":
        progress["seconds_left"] = None
    return {
        "run": str(root),
        "dataset": config.dataset if config else None,
        "state": state,
        "held_by": held_by,
        "stage": under_way.get("stage"),
        "progress": progress,
        "last_message": next((one["message"] for one in reversed(log) if "message" in one), None),
        "saved_seconds_ago": _age(layout),
        "stages": stored.get("stages"),
        "peak_rss_bytes": stored.get("peak_rss_bytes"),
        "last_error": error if state == "failed" else None,
        "report": report,
        "resume": resume_command(config.dataset if config else "DATASET", root)
        if state in ("stopped", "failed", "killed")
        else None,
        "damaged": damaged,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people."""
    held, peak, report = facts["held_by"], facts["peak_rss_bytes"], facts["report"]
    by = f" by process {held['pid']} on {held['host']} since {held['started']}" if held else ""
    text = [f"{facts['run']}: {facts['dataset'] or 'unknown data'}, {facts['state']}{by}"]
    if facts["stage"]:
        told = Progress(**facts["progress"]).text() if facts["progress"] else ""
        text.append(", ".join(filter(None, (f"stage: {facts['stage']}", told))))
    shown = {
        "last message": None if facts["state"] == "finished" else facts["last_message"],
        "last error": facts["last_error"],
        "finished" if report else "saved last": None
        if facts["saved_seconds_ago"] is None
        else f"{duration(facts['saved_seconds_ago'])} ago",
        "peak memory": None if peak is None else f"{peak / 2**20:.0f} MiB",
        "continue with": facts["resume"],
    }
    text += [f"{name}: {words}" for name, words in shown.items() if words is not None]
    text += [error_words(report, report), *remarks(report)] if report else []
    return [printable(line) for line in (*text, *(f"damaged: {line}" for line in facts["damaged"]))]


def tried(notes: list[str], what: str, make: Callable[[], _Value], damaged: list[str] | None = None) -> _Value | None:
    """Return what `make` returns; None where it meets an error that a user may meet, which is noted, damage apart."""
    try:
        return make()
    except Exception as error:
        code, line = describe(error)
        if code == ExitCode.BUG and not isinstance(error, OSError | ValueError):
            raise
        (notes if damaged is None or code != ExitCode.INVALID_DATA else damaged).append(f"{what}: {line}")
        return None


def tail(path: Path, most_bytes: int, damaged: list[str]) -> list[dict[str, Any]]:
    """Return the JSON objects at the end of a file of lines; torn lines, of a kill or of now, are left out."""
    try:
        with open_plain(path) as stream:
            stream.seek(max(stream.seek(0, os.SEEK_END) - most_bytes, 0))
            found = stream.read().split(b"\n")
    except OSError:  # not there yet, or the solve ended meanwhile
        return []
    except CorruptDataError as error:
        damaged.append(f"lines: {error}")
        return []
    records = []
    for line in found:
        with suppress(ValueError):
            records.append(parse_json(line))
    return [record for record in records if isinstance(record, dict)]


def _age(layout: RunLayout) -> float | None:
    written = []
    for path in (path for pattern in (*SAVED, layout.report.name) for path in layout.root.glob(pattern)):
        with suppress(OSError):  # removed meanwhile
            written.append(path.stat().st_mtime)
    return max(time.time() - max(written), 0.0) if written else None
