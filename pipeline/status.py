"""`python -m pipeline.status RUN`: what a run is doing, or how it ended. Reads only, and takes no lock."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 66 where there is no such run."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.status",
        description="Tell what a run is doing, or how it ended. Reads only.",
        epilog="Exit codes: 0 done, 66 no such run, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print the facts as one JSON object, for programs")
    arguments = parser.parse_args(argv)
    from pipeline.errors import describe

    try:
        facts = status(arguments.run)
    except (Exception, KeyboardInterrupt) as error:
        code, line = describe(error)
        print(f"error: {line}", file=sys.stderr)
        return int(code)
    print(json.dumps(facts, indent=2) if arguments.json else "\n".join(lines(facts)))
    return 0


def status(root: Path) -> dict[str, Any]:
    """Return the facts; what is not known (yet) is None. Raises MissingRunError where there is no run.

    state is running (someone holds the lock), finished (there is a report), or stopped (neither: killed or asked to).
    """
    from pipeline.config import read_toml
    from pipeline.errors import MissingRunError
    from pipeline.run_folder import resume_command
    from storage.layout import RunLayout
    from storage.lock import holder

    layout = RunLayout(root)
    if not layout.config.exists():
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    dataset = str(read_toml(layout.config).get("dataset"))
    held_by, report, stored = holder(layout.lock), _read(layout.report), _read(layout.state)
    state = "running" if held_by else "finished" if report else "stopped"
    progress = stored.get("progress") if state == "running" else None
    return {
        "run": str(root),
        "dataset": dataset,
        "state": state,
        "held_by": held_by,
        "stage": stored.get("stage"),
        "progress": progress,
        "seconds_left": _seconds_left(progress),
        "solve": _solve_note(layout, report),
        "last_pass": _last_pass(layout, report),
        "checkpoint_age_seconds": _age(layout.root.glob("checkpoints/*/step-*/MANIFEST.json")),
        "last_commit_age_seconds": _age([layout.state, *layout.root.glob("markers/*/*.json")]),
        "peak_rss_bytes": stored.get("peak_rss_bytes"),
        "last_error": _last_error(layout) if state == "stopped" else None,
        "error_rate": report.get("error_rate"),
        "mse": report.get("mse"),
        "resume": resume_command(dataset, root) if state == "stopped" else None,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people."""
    held = facts["held_by"]
    by = f" by process {held['pid']} on {held['host']} since {held.get('started', 'unknown')}" if held else ""
    found = [f"{facts['run']}: {facts['dataset']}, {facts['state']}{by}"]
    stage = facts["stage"]
    if stage and facts["state"] != "finished":
        found.append(f"stage: {stage}{_progress_words(facts)}")
    for name in ("solve", "last_pass", "last_error"):
        if facts[name]:
            found.append(f"{name.replace('_', ' ')}: {facts[name]}")
    if facts["checkpoint_age_seconds"] is not None:
        found.append(f"last checkpoint inside a solve: {_duration(facts['checkpoint_age_seconds'])} ago")
    if facts["last_commit_age_seconds"] is not None and facts["state"] != "finished":
        found.append(f"last item committed: {_duration(facts['last_commit_age_seconds'])} ago")
    if facts["peak_rss_bytes"]:
        found.append(f"peak memory: {facts['peak_rss_bytes'] / 2**20:.0f} MiB")
    if facts["error_rate"] is not None:
        found.append(f"test error: {100 * facts['error_rate']:.2f} %")
    if facts["mse"] is not None:
        found.append(f"test mean squared error: {facts['mse']:.6g}")
    if facts["resume"]:
        found.append(f"continue with: {facts['resume']}")
    return found


def _progress_words(facts: dict[str, Any]) -> str:
    progress = facts["progress"]
    if not progress:
        return ""
    left = facts["seconds_left"]
    return f", item {progress['done']} of {progress['total']}" + (f", {_duration(left)} left" if left else "")


def _seconds_left(progress: dict[str, Any] | None) -> float | None:
    """Return the time left of the stage's items, at the rate of those done; None where there is none to go by."""
    if not progress or not progress["done"]:
        return None
    started, updated = (datetime.fromisoformat(progress[name]) for name in ("started", "updated"))
    each = (updated - started).total_seconds() / progress["done"]
    since = (datetime.now(UTC) - updated).total_seconds()
    return max(each * (progress["total"] - progress["done"]) - since, 0.0)


def _solve_note(layout: Any, report: dict[str, Any]) -> str | None:
    """Return objective and gap: of the solve under way, or the worst of a finished run."""
    from pipeline.stages.solve_progress import latest_note

    if report:
        worst = max(report["solves"], key=lambda one: one["relative_gap"])
        return f"{len(report['solves'])} done, the largest relative gap {worst['relative_gap']:.1e}"
    return latest_note(list(layout.solutions.glob("*.jsonl"))) or None


def _last_pass(layout: Any, report: dict[str, Any]) -> str | None:
    """Return what the last pass over all candidates found, in a run whose working set grows."""
    from storage.markers import read_markers

    done = read_markers(layout.markers("passes"))
    if report or not done:
        return None
    record = done[max(done)]
    return (
        f"{record['round']}: gap {max(record['relative_gaps']):.1e} over all candidates, {record['n_active']} active, "
        f"{record['violators']} violators"
    )


def _last_error(layout: Any) -> str | None:
    """Return the kind of the error that ended the last session, from the end of the log; None after a kill."""
    try:
        last = layout.log.read_text(encoding="utf-8", errors="replace").splitlines()[-1]
        return str(json.loads(last).get("error") or "") or None
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _age(paths: Any) -> float | None:
    """Return the seconds since the newest of some files was written; None where there is none."""
    newest = 0.0
    for path in paths:
        try:
            newest = max(newest, path.stat().st_mtime)
        except OSError:  # removed meanwhile
            continue
    return max(time.time() - newest, 0.0) if newest else None


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _read(path: Path) -> dict[str, Any]:
    """Return a record, empty where it is missing or damaged: a status is no verdict (`pipeline.verify` is)."""
    from storage.commit import read_record
    from storage.errors import StorageError

    try:
        return read_record(path)
    except StorageError:
        return {}


if __name__ == "__main__":
    sys.exit(main())
