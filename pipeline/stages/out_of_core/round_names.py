"""Rounds of a growing working set: how they are named, and what a resumed run finds of those before."""

import re
from typing import Any

from pipeline.stages.run_state import Run
from storage.errors import ANEW, CorruptDataError
from storage.folder_layouts import MANIFEST_NAME
from storage.records import read_markers

MARKERS = "passes"  # one for each round, with its record


def round_name(index: int) -> str:
    """Return the name under which a round is committed."""
    return f"round-{index:03d}"


def round_index(name: str) -> int:
    """Return which round a name is of."""
    return int(name.removeprefix("round-"))


def committed_rounds(run: Run) -> list[str]:
    """Return the names of the rounds whose statistics are committed, the earliest first."""
    folders = (path.parent.name for path in run.layout.statistics.glob(f"round-*/{MANIFEST_NAME}"))
    return sorted(name for name in folders if re.fullmatch(r"round-\d+", name))


def earlier_records(run: Run, name: str) -> list[dict[str, Any]]:
    """Return the records of the rounds before a round; they are not done again, so none may be lost.

    Raises CorruptDataError where one is damaged or missing.
    """
    folder = run.layout.markers(MARKERS)
    done = read_markers(folder)
    records = []
    for earlier in map(round_name, range(round_index(name))):
        if earlier not in done:
            raise CorruptDataError(f"{folder}: the marker of {earlier} is damaged or missing; {ANEW}", file=str(folder))
        records.append(dict(done[earlier]))
    for warning in done.warnings:  # of the marker of this round, which is done again
        run.events.warn(warning)
    return records
