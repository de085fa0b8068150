"""A run that is done, when it is asked for again: its report, and statistics that it is no longer to keep."""

from pathlib import Path
from typing import Any

from pipeline.config.train_config import TrainConfig
from pipeline.runtime.run_folder import finished_report
from pipeline.stages import kept_statistics
from storage.errors import CorruptDataError
from storage.files import aside_of
from storage.folder_layouts import RunLayout
from storage.folders import remove_stale, verify
from storage.lock import FolderLock


def report_of(layout: RunLayout) -> dict[str, Any] | None:
    """Return the report of a finished run, None where there is something left to do.

    Raises CorruptDataError where its model or its report is damaged.
    """
    if not layout.report.exists():
        return None
    problems = verify(layout.model, contents=True)
    if problems:
        raise CorruptDataError(
            f"model {layout.model}: {problems[0]}; restore it, or delete the folder model and report.json and "
            "resume: they are made again"
        )
    return finished_report(layout)


def drop_statistics(root: Path, config: TrainConfig, report: dict[str, Any]) -> None:
    """Drop the statistics of a finished run that it is no longer to keep, after what a kill amid that has left aside.

    Raises LockedError, CannotWriteError.
    """
    layout = RunLayout(root.absolute())
    aside = layout.statistics.is_dir() and any(aside_of(path.name) for path in layout.statistics.iterdir())
    if aside or kept_statistics.excess(layout, config):
        with FolderLock(layout.lock, "dropping statistics"):
            remove_stale(layout.statistics)
            kept_statistics.finish(layout, config, report)
