"""What a run is doing, or how it ended: facts for programs, and lines for people. Reads only, and takes no lock."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.config.command_line import program
from pipeline.config.settings import read_toml
from pipeline.errors import MissingRunError, PipelineError
from pipeline.runtime.progress import Progress, duration, remaining
from pipeline.runtime.run_folder import resume_command
from storage.errors import CorruptDataError, MissingDataError, StorageError
from storage.files import open_plain, parse_json
from storage.folder_layouts import RunLayout
from storage.lock import holder
from storage.records import read_markers, read_record

LOG_TAIL_BYTES = 2**16  # more than the last line, which may carry a traceback


def status(root: Path) -> dict[str, Any]:
    """Return the facts; what is not known is None. Raises MissingRunError where there is no run.

    `state`: running (a process holds the lock), finished (has a report), stopped (on request), failed (see
    `last_error`), or killed. `damaged` lists what could not be read; `pipeline.verify` checks everything.
    """
    layout = RunLayout(root)
    damaged: list[str] = []
    # Who holds the lock is asked first: a run that ends meanwhile counts as running once more, never as killed.
    held_by = holder(layout.lock)
    if not (layout.config.exists() or held_by):
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    dataset = _dataset(layout, damaged)
    stored, report = _record(layout.state, damaged), _record(layout.report, damaged)
    error = _last_error(layout)
    state = {None: "killed", "StoppedError": "stopped"}.get(error, "failed")
    if held_by or layout.report.exists():
        state = "running" if held_by else "finished"
    progress = stored.get("progress") if state == "running" else None
    return {
        "run": str(root),
        "dataset": dataset,
        "state": state,
        "held_by": held_by,
        "stage": None if state == "finished" else stored.get("stage"),
        "progress": progress,
        "seconds_left": _seconds_left(progress) if progress else None,
        "solve": _finished_solves(report) if state == "finished" else _latest_solve(layout, state),
        "last_pass": None if state == "finished" else _last_pass(layout),
        "checkpoint_age_seconds": _age(layout.root.glob("checkpoints/*/step-*/MANIFEST.json")),
        "last_commit_age_seconds": _age(
            [layout.state, *layout.root.glob("markers/*/*.json"), *layout.solutions.glob("*.npz")]
        ),
        "peak_rss_bytes": stored.get("peak_rss_bytes"),
        "last_error": error if state == "failed" else None,
        **{name: report.get(name) for name in ("converged", "error_rate", "mse", "rmse", "r2")},
        "test_weighted": bool((report.get("weighting") or {}).get("test_weighted")),
        "warnings": report.get("warnings", []),
        "resume": resume_command(dataset or "DATASET", root) if state in ("stopped", "failed", "killed") else None,
        "damaged": damaged,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people."""
    text = [f"{facts['run']}: {facts['dataset'] or 'unknown data'}, {facts['state']}{_holder_words(facts['held_by'])}"]
    if facts["stage"]:
        text.append(f"stage: {facts['stage']}{_progress_words(facts)}")
    weighted = " by weight" if facts["test_weighted"] else ""
    shown = {
        "solve": facts["solve"],
        "last pass": facts["last_pass"],
        "last error": facts["last_error"],
        "converged": {True: "yes", False: "no", None: None}[facts["converged"]],
        "last checkpoint inside a solve": _ago(facts["checkpoint_age_seconds"]),
        "last item committed": _ago(facts["last_commit_age_seconds"]),
        "peak memory": _form("{:.0f} MiB", facts["peak_rss_bytes"], 1 / 2**20),
        f"test error{weighted}": _form("{:.2f} %", facts["error_rate"], 100),
        f"test mean squared error{weighted}": _form("{:.6g}", facts["mse"]),
        f"test RMSE{weighted}": _form("{:.6g}", facts["rmse"]),
        f"test R2{weighted}": _form("{:.4f}", facts["r2"]),
        "continue with": facts["resume"],
    }
    text += [f"{name}: {words}" for name, words in shown.items() if words is not None]
    text += [f"warning: {line}" for line in facts["warnings"]]
    return text + [f"damaged: {line}" for line in facts["damaged"]]


def _seconds_left(progress: dict[str, Any]) -> float | None:
    """Return the time left of what the stage counts, at the rate of what is done; None where there is none to go by."""
    started, updated = (datetime.fromisoformat(progress[name]) for name in ("started", "updated"))
    since = (datetime.now(UTC) - updated).total_seconds()
    return remaining(progress["share"], (updated - started).total_seconds(), since, progress["begun"])


def _latest_solve(layout: RunLayout, state: str) -> str | None:
    """Return objective and gap of the solve whose records grew last; of a run that ended, where it was."""
    paths = list(layout.solutions.glob("*.jsonl"))
    if not paths:
        return None
    from pipeline.stages.run_workspace import latest_note  # brings numba, which takes longer than all else here

    note = latest_note(paths)
    return (note if state == "running" else f"{note} when it ended") if note else None


def _finished_solves(report: dict[str, Any]) -> str | None:
    """Return the objective and the worst gap of the solves of a finished run."""
    solves = report.get("solves") or []
    if not solves:
        return None
    objective = sum(one["objective"] for one in solves)
    gap = max(one["relative_gap"] for one in solves)
    words = f"objective {objective:.6g}" if len(solves) == 1 else f"{len(solves)} done, objectives' sum {objective:.6g}"
    return f"{words} gap {gap:.1e}" + (" (the largest)" if len(solves) > 1 else "")


def _last_pass(layout: RunLayout) -> str | None:
    """Return what the last pass over all candidates found, in a run whose working set grows."""
    done = read_markers(layout.markers("passes"))
    if not done:
        return None
    record = done[max(done)]
    return (
        f"{record['round']}: gap {max(record['relative_gaps']):.1e} over all candidates, {record['n_active']} active, "
        f"{record['violators']} violators"
    )


def _last_error(layout: RunLayout) -> str | None:
    """Return the kind of the error that ended the last session, from the end of the log; None where there is none."""
    try:
        with open_plain(layout.log) as stream:
            stream.seek(max(stream.seek(0, os.SEEK_END) - LOG_TAIL_BYTES, 0))
            last = parse_json(stream.read().splitlines()[-1])
    except (OSError, ValueError, IndexError, CorruptDataError):
        return None
    return str(last["error"]) if isinstance(last, dict) and last.get("event") == "error" else None


def _age(paths: Iterable[Path]) -> float | None:
    """Return the seconds since the newest of some files was written; None where there is none."""
    written = []
    for path in paths:
        with suppress(OSError):  # removed meanwhile
            written.append(path.stat().st_mtime)
    return max(time.time() - max(written), 0.0) if written else None


def _dataset(layout: RunLayout, damaged: list[str]) -> str | None:
    try:
        return str(read_toml(layout.config)["dataset"])
    except (PipelineError, OSError, KeyError, ValueError) as error:
        if layout.config.exists():
            damaged.append(f"{layout.config}: {error}")
        return None


def _record(path: Path, damaged: list[str]) -> dict[str, Any]:
    """Return a record, empty where it is missing; also where it cannot be read, which is noted."""
    try:
        return read_record(path, remedy=f"{program('verify')} tells what to do")
    except MissingDataError:
        return {}
    except StorageError as error:
        damaged.append(str(error))
        return {}


def _holder_words(held: dict[str, Any] | None) -> str:
    if not held:
        return ""
    return f" by process {held['pid']} on {held['host']} since {held['started']}"


def _progress_words(facts: dict[str, Any]) -> str:
    progress, left = facts["progress"], facts["seconds_left"]
    if not progress:
        return ""
    words = Progress(*(progress[name] for name in ("done", "total", "unit", "words"))).text()
    return f", {words}" + ("" if left is None else f", {duration(left)} left")


def _ago(seconds: float | None) -> str | None:
    return None if seconds is None else f"{duration(seconds)} ago"


def _form(template: str, value: float | None, factor: float = 1.0) -> str | None:
    return None if value is None else template.format(value * factor)
