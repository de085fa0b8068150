"""`python -m pipeline.status RUN`: what a run is doing, or how it ended. Reads only, and takes no lock."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOG_TAIL_BYTES = 2**16  # more than the last line, which may carry a traceback


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 66 where there is no such run."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.status",
        description="Tell what a run is doing, or how it ended. Reads only.",
        epilog="Exit codes: 0 done, 66 no such run, 69 the folder cannot be read, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print the facts as one JSON object, for programs")
    arguments = parser.parse_args(argv)
    from pipeline.errors import answered

    def tell() -> None:
        facts = status(arguments.run)
        print(json.dumps(facts, indent=2) if arguments.json else "\n".join(lines(facts)))

    return answered(tell)


def status(root: Path) -> dict[str, Any]:
    """Return the facts; what is not known (yet) is None. Raises MissingRunError where there is no run.

    `state` is running (a process holds the lock), finished (there is a report), stopped (on request), failed (with an
    error: see `last_error`), or killed (none of these: the last session ended without a word). `damaged` lists what
    could not be read; a status is no verdict on the rest, `pipeline.verify` is.
    """
    from pipeline.errors import MissingRunError
    from pipeline.run_folder import resume_command
    from storage.layout import RunLayout
    from storage.lock import holder

    layout = RunLayout(root)
    damaged: list[str] = []
    # Who holds the lock is asked first: a run that ends meanwhile is told as running once more, never as killed.
    held_by = holder(layout.lock)
    if not (layout.config.exists() or held_by):
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    dataset = _dataset(layout, damaged)
    stored, report = _record(layout.state, damaged), _record(layout.report, damaged)
    error = _last_error(layout)
    state = _state(held_by is not None, layout.report.exists(), error)
    progress = stored.get("progress") if state == "running" else None
    return {
        "run": str(root),
        "dataset": dataset,
        "state": state,
        "held_by": held_by,
        "stage": None if state == "finished" else stored.get("stage"),
        "progress": progress,
        "seconds_left": _seconds_left(progress),
        **(_finished_solves(report) if state == "finished" else _latest_solve(layout, state)),
        "last_pass": None if state == "finished" else _last_pass(layout),
        "checkpoint_age_seconds": _age(layout.root.glob("checkpoints/*/step-*/MANIFEST.json")),
        "last_commit_age_seconds": _age([layout.state, *layout.root.glob("markers/*/*.json")]),
        "peak_rss_bytes": stored.get("peak_rss_bytes"),
        "last_error": error if state == "failed" else None,
        "converged": report.get("converged"),
        "error_rate": report.get("error_rate"),
        "mse": report.get("mse"),
        "resume": resume_command(dataset or "DATASET", root) if state in ("stopped", "failed", "killed") else None,
        "damaged": damaged,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people."""
    found = [f"{facts['run']}: {facts['dataset'] or 'unknown data'}, {facts['state']}{_holder_words(facts['held_by'])}"]
    if facts["stage"]:
        found.append(f"stage: {facts['stage']}{_progress_words(facts)}")
    shown = {
        "solve": facts["solve"],
        "last pass": facts["last_pass"],
        "last error": facts["last_error"],
        "converged": {True: "yes", False: "no", None: None}[facts["converged"]],
        "last checkpoint inside a solve": _ago(facts["checkpoint_age_seconds"]),
        "last item committed": _ago(facts["last_commit_age_seconds"]),
        "peak memory": _form("{:.0f} MiB", facts["peak_rss_bytes"], 1 / 2**20),
        "test error": _form("{:.2f} %", facts["error_rate"], 100),
        "test mean squared error": _form("{:.6g}", facts["mse"]),
        "continue with": facts["resume"],
    }
    found += [f"{name}: {text}" for name, text in shown.items() if text is not None]
    return found + [f"damaged: {line}" for line in facts["damaged"]]


def _state(held: bool, reported: bool, last_error: str | None) -> str:
    if held:
        return "running"
    if reported:
        return "finished"
    return {None: "killed", "StoppedError": "stopped"}.get(last_error, "failed")


def _seconds_left(progress: dict[str, Any] | None) -> float | None:
    """Return the time left of the stage's items, at the rate of those done; None where there is none to go by."""
    if not progress or not progress["done"]:
        return None
    started, updated = (datetime.fromisoformat(progress[name]) for name in ("started", "updated"))
    each = (updated - started).total_seconds() / progress["done"]
    since = (datetime.now(UTC) - updated).total_seconds()
    return max(each * (progress["total"] - progress["done"]) - since, 0.0)


def _latest_solve(layout: Any, state: str) -> dict[str, str | None]:
    """Return objective and gap of the solve whose records grew last; of a run that ended, where it was."""
    paths = list(layout.solutions.glob("*.jsonl"))
    if not paths:
        return {"solve": None}
    from pipeline.stages.solve_progress import latest_note  # brings numba, which takes longer than all else here

    note = latest_note(paths)
    return {"solve": (note if state == "running" else f"{note} when it ended") if note else None}


def _finished_solves(report: dict[str, Any]) -> dict[str, str | None]:
    """Return the objective and the worst gap of the solves of a finished run."""
    solves = report.get("solves") or []
    if not solves:
        return {"solve": None}
    objective = sum(one["objective"] for one in solves)
    gap = max(one["relative_gap"] for one in solves)
    words = f"objective {objective:.6g}" if len(solves) == 1 else f"{len(solves)} done, objectives' sum {objective:.6g}"
    return {"solve": f"{words} gap {gap:.1e}" + (" (the largest)" if len(solves) > 1 else "")}


def _last_pass(layout: Any) -> str | None:
    """Return what the last pass over all candidates found, in a run whose working set grows."""
    from storage.markers import read_markers

    done = read_markers(layout.markers("passes"))
    if not done:
        return None
    record = done[max(done)]
    return (
        f"{record['round']}: gap {max(record['relative_gaps']):.1e} over all candidates, {record['n_active']} active, "
        f"{record['violators']} violators"
    )


def _last_error(layout: Any) -> str | None:
    """Return the kind of the error that ended the last session, from the end of the log; None where it told of none."""
    try:
        with layout.log.open("rb") as stream:
            stream.seek(max(stream.seek(0, os.SEEK_END) - LOG_TAIL_BYTES, 0))
            last = json.loads(stream.read().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return None
    return str(last["error"]) if isinstance(last, dict) and last.get("event") == "error" else None


def _age(paths: Iterable[Path]) -> float | None:
    """Return the seconds since the newest of some files was written; None where there is none."""
    newest = 0.0
    for path in paths:
        try:
            newest = max(newest, path.stat().st_mtime)
        except OSError:  # removed meanwhile
            continue
    return max(time.time() - newest, 0.0) if newest else None


def _dataset(layout: Any, damaged: list[str]) -> str | None:
    from pipeline.config import read_toml
    from pipeline.errors import PipelineError

    try:
        return str(read_toml(layout.config)["dataset"])
    except (PipelineError, OSError, KeyError, ValueError) as error:
        if layout.config.exists():
            damaged.append(f"{layout.config}: {error}")
        return None


def _record(path: Path, damaged: list[str]) -> dict[str, Any]:
    """Return a record, empty where it is missing; also where it cannot be read, which is noted."""
    from storage.commit import read_record
    from storage.errors import MissingDataError, StorageError

    try:
        return read_record(path, remedy="python -m pipeline.verify tells what to do")
    except MissingDataError:
        return {}
    except StorageError as error:
        damaged.append(str(error))
        return {}


def _holder_words(held: dict[str, Any] | None) -> str:
    return f" by process {held['pid']} on {held['host']} since {held.get('started', 'unknown')}" if held else ""


def _progress_words(facts: dict[str, Any]) -> str:
    progress, left = facts["progress"], facts["seconds_left"]
    if not progress:
        return ""
    words = f", item {progress['done']} of {progress['total']}"
    return words if left is None else f"{words}, {_duration(left)} left"


def _ago(seconds: float | None) -> str | None:
    return None if seconds is None else f"{_duration(seconds)} ago"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _form(template: str, value: float | None, factor: float = 1.0) -> str | None:
    return None if value is None else template.format(value * factor)


if __name__ == "__main__":
    sys.exit(main())
