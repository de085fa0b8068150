"""What can go wrong with bytes on disk, each with its exit code, and what to do about damaged files of a run.

Imports nothing of weight, so that a command's --help may.
"""

from pathlib import Path

ANEW = (
    "delete the folders statistics, solutions, correlations and rounds, and report.json, then resume the run: it does \
its stages again, to the same bytes"
)
LINES = "no number comes from it: remove the line; where the file is gone, delete report.json and resume the run"
_RESTORE = "restore it, or start a new run"
_REMEDIES = {  # by how the name begins; the first that fits
    "config.toml": _RESTORE,
    "env.json": _RESTORE,
    "lease": "delete it: the next start makes it again",
    "STATE.json": "delete it and report.json, then resume the run: only the times that the stages took are lost",
    "report.json": "delete it and resume the run: it is made again",
    "log.jsonl": LINES,
    "metrics.jsonl": LINES,
    "model": "delete the folder model and report.json, then resume the run: they are made again",
    "candidates": "delete it and report.json, then resume the run: they are drawn again, the same",
    "scales": (
        "delete the folders scales, statistics, solutions, correlations, rounds and model, and candidates.npz and "
        "report.json, then resume the run: it does its stages again, to the same bytes"
    ),
    "passes": "delete the folder passes and resume the run: what was under way is made again",
    "scores": "delete it and report.json, then resume the run: it is made again",
    "checkpoints": "an older one is used where there is one; else delete the folder to start that solve anew",
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


def remedy_at(path: Path, elsewhere: str = "restore it or build it again") -> str:
    """Return what to do about a damaged file or folder, in a run or elsewhere."""
    for root in path.parents:
        if (root / "config.toml").is_file() and (root / "env.json").is_file():
            name = path.relative_to(root).as_posix()
            return next((remedy for start, remedy in _REMEDIES.items() if name.startswith(start)), ANEW)
    return elsewhere
