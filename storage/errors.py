"""Errors of bytes on disk, each with its exit code, and what to do about damaged files of a run.

Imports are light: the --help of commands needs this file.
"""

from pathlib import Path

ANEW = (
    "delete the folders statistics, solutions, correlations and rounds, and report.json, then resume the run: it does "
    "its stages again, to the same bytes"
)
_LINES = "no number comes from it: remove the line; where the file is gone, delete report.json and resume the run"
_REMEDIES = {  # The keys are names in the folder of a run.
    **dict.fromkeys(("config.toml", "env.json"), "restore it, or start a new run"),
    **dict.fromkeys(("log.jsonl", "metrics.jsonl"), _LINES),
    **dict.fromkeys(("statistics", "solutions", "correlations", "rounds"), ANEW),
    "checkpoints": "delete that file, then resume the run: this work begins anew, to the same bytes",
    "scales": "delete scales, candidates.npz and model, " + ANEW.removeprefix("delete "),
}


class StorageError(Exception):
    """Base of all errors of this package: one line of what was wanted, what was found and what to do; an exit code."""

    exit_code: int = 70

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        cls.exit_code = exit_code or cls.exit_code


class CorruptDataError(StorageError, exit_code=65):
    """Stored data is damaged, incomplete or not in a form we accept (exit 65)."""


class MissingDataError(StorageError, exit_code=66):
    """A file or folder that was asked for does not exist (exit 66)."""


class UnavailableStoreError(StorageError, exit_code=69):
    """The data exists but cannot be read now: permission, I/O error, lost mount (exit 69)."""


class LockedError(StorageError, exit_code=73):
    """Another process holds the lock of a folder (exit 73); names its host and pid."""


class CannotWriteError(StorageError, exit_code=73):
    """A file cannot be created or written (exit 73): disk full, permission, read-only, I/O error."""


def remedy_at(path: Path) -> str:
    """Return what to do about a damaged file or folder, in a run or elsewhere."""
    for root in path.parents:
        if (root / "config.toml").is_file() and (root / "env.json").is_file():
            name = path.relative_to(root).parts[0]
            others = " and ".join(dict.fromkeys((name, "report.json")))
            return _REMEDIES.get(name, f"delete {others}, then resume the run: it is made again, the same")
    return "restore it or build it again"
