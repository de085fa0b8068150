"""Which runs use a feature store: each leaves its path beside it, and counts while its folder names the store."""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage.errors import CannotWriteError, MissingDataError, StorageError
from storage.files import make_folder, write_file
from storage.folder_layouts import FeatureLayout, RunLayout
from storage.records import read_record


@dataclass(frozen=True)
class User:
    """A run that uses a store; one that is finished does not need it any more."""

    root: Path
    finished: bool


def register(layout: FeatureLayout, run: Path) -> None:
    """Leave the path of a run beside the store it is about to use, where the store's folder can be written."""
    path = layout.users / hashlib.sha256(os.fsencode(run)).hexdigest()[:16]
    if not path.exists():
        with suppress(CannotWriteError):
            make_folder(path.parent)
            write_file(path, os.fsencode(run) + b"\n")


def users(layout: FeatureLayout, folders: Iterable[Path]) -> list[User]:
    """Return the runs that use a store: those registered, and those that lie in some folders."""
    roots = [path.parent for folder in folders for path in folder.glob("*/env.json")]
    for path in layout.users.glob("[!.]*"):
        with suppress(OSError):  # gone meanwhile
            roots.append(Path(os.fsdecode(path.read_bytes()[:-1])))
    used_by = sorted({root.absolute() for root in roots if _uses(root, layout.digest)})
    return [User(root, RunLayout(root).report.exists()) for root in used_by]


def _uses(root: Path, digest: str) -> bool:
    try:
        return bool(read_record(RunLayout(root).environment)["features"] == digest)
    except MissingDataError:
        return False
    except (StorageError, KeyError):
        return True  # nobody can tell
