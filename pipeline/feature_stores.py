"""`python -m pipeline.feature_stores list|remove`: the feature stores that runs share, and those that no run uses."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.command_line import command_parser
from pipeline.errors import ConfigError, FolderInUseError
from pipeline.runtime.answers import answered
from storage.errors import LockedError, MissingDataError, StorageError
from storage.files import aside_of, cannot_write, make_folder
from storage.lock import FolderLock, holder

if TYPE_CHECKING:  # imported late, so that --help answers at once
    from pipeline.datasets.store_users import User
    from storage.folder_layouts import FeatureLayout

_DIGEST = "[0-9a-f]{64}"
EPILOG = """\
A store is used by the runs that left their path beside it, and by those in --runs that were started on it. What is
being built is never removed. remove --unused takes the stores that no run folder names; a DIGEST, or its beginning,
also one that finished runs alone name: they do not need it, and another run on the same data builds it again.
A run on a disk that is not mounted counts as gone: its store may go as well, and is built again when it resumes.
Exit codes: 0 done, 2 usage, 66 no such store, 73 in use, being built, or cannot be removed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = command_parser("feature_stores", "List or remove the feature stores that runs share.", EPILOG)
    parser.add_argument("action", choices=("list", "remove"), help="what to do")
    parser.add_argument("digests", nargs="*", metavar="DIGEST", help="stores to remove (list: default all)")
    parser.add_argument("--unused", action="store_true", help="the stores that no run uses")
    parser.add_argument("--features-dir", type=Path, default=Path("runs/features"), metavar="DIR", help="their folder")
    parser.add_argument(
        "--runs",
        type=Path,
        action="append",
        metavar="DIR",
        help="folder of runs (default: the one --features-dir is in)",
    )
    arguments = parser.parse_intermixed_args(argv)

    def work() -> None:
        for line in _lines(arguments):
            print(line, flush=True)

    return answered(work)


def _lines(arguments: argparse.Namespace) -> Iterator[str]:
    """Do what was asked; yield a line for each thing there is to tell."""
    from pipeline.datasets.store_users import users  # brings numpy, which --help does without

    root: Path = arguments.features_dir.expanduser().absolute()
    runs: list[Path] = arguments.runs or [root.parent]
    if arguments.action == "remove" and bool(arguments.digests) == arguments.unused:
        raise ConfigError("remove: wanted either --unused or the DIGEST of a store; list shows them")
    stores = _stores(root, arguments.digests)
    if not stores:
        yield f"{root}: holds no feature stores"
    shown = False
    for store in stores:
        if arguments.action == "list":
            used_by = users(store, runs)
            lines = [] if arguments.unused and used_by else _description(store, used_by)
        else:
            lines = _removed(store, runs, only_unused=arguments.unused)
        yield from lines
        shown = shown or bool(lines)
    if stores and not shown:
        yield f"{root}: a run uses each of its feature stores"
    if arguments.action == "remove":
        _sweep(root)


def _stores(root: Path, digests: Sequence[str]) -> "list[FeatureLayout]":
    """Return the stores in a folder, or those whose names begin so. Raises MissingDataError, ConfigError."""
    from storage.folder_layouts import FeatureLayout  # which --help does without

    entries = sorted(root.iterdir()) if root.is_dir() else []
    names = [entry.name for entry in entries if re.fullmatch(_DIGEST, entry.name) and entry.is_dir()]
    if not digests:
        return [FeatureLayout(root, name) for name in names]
    chosen = []
    for digest in digests:
        fitting = [name for name in names if name.startswith(digest)]
        if not fitting:
            raise MissingDataError(f"{root}: holds no feature store {digest}; list shows those that are there")
        if len(fitting) > 1:
            raise ConfigError(f"DIGEST {digest}: the beginning of {len(fitting)} stores; give more of it")
        chosen += fitting
    return [FeatureLayout(root, name) for name in dict.fromkeys(chosen)]


def _description(store: "FeatureLayout", used_by: "Sequence[User]") -> list[str]:
    """Return what `list` tells of a store: size, data and state, and the runs that use it."""
    from storage.folders import read_manifest  # which --help does without

    held = holder(store.lock)
    if held is not None:
        state = f"being built by process {held['pid']} on {held['host']}"
    elif not store.manifest.exists():
        state = "half built"
    else:
        try:
            state = str(read_manifest(store.folder).metadata.get("dataset"))
        except StorageError:
            state = "damaged"
    words = [f"{'finished' if user.finished else 'unfinished'} {user.root}" for user in used_by] or ["no run uses it"]
    return [f"{store.digest[:16]}  {_size(store.folder) / 2**20:10.1f} MiB  {state}", *(f"  {word}" for word in words)]


def _removed(store: "FeatureLayout", runs: Sequence[Path], *, only_unused: bool) -> list[str]:
    """Remove a store under its lock, unless it is used; return lines for people, none where it stays.

    Raises FolderInUseError where an unfinished run uses it, LockedError where it is being built, CannotWriteError; with
    `only_unused` the first two stay without an error.
    """
    # Bring numpy, which --help does without.
    from pipeline.datasets.store_users import users
    from storage.folders import remove_folder

    def in_use() -> "list[User]":
        return [user for user in users(store, runs) if only_unused or not user.finished]

    make_folder(store.root)
    try:
        with FolderLock(store.lock, "removing features"):
            size = _size(store.folder)
            # Asked again once nobody can open it: a run tells that it uses a store before it looks whether it is there.
            gone = not in_use() and remove_folder(store.folder, unless=lambda: bool(in_use()))
            if gone:
                remove_folder(store.users)
    except LockedError:
        if only_unused:
            return [f"{store.digest[:16]}: being built, it stays"]
        raise
    if not gone and not only_unused:
        user = next(iter(in_use()), None)
        raise FolderInUseError(
            f"{store.folder}: an unfinished run uses it{f', {user.root}' if user else ''}; resume it"
        )
    return [f"{store.digest[:16]}: removed, {size / 2**20:.1f} MiB"] if gone else []


def _sweep(root: Path) -> None:
    """Remove what of stores a killed command, or one that found files still open, has left."""
    # These --help does without.
    from storage.folder_layouts import FeatureLayout
    from storage.folders import remove_aside

    for path in sorted(root.glob(".tmp-*")):
        aside = aside_of(path.name)
        if aside is None or not re.fullmatch(_DIGEST, aside.name):
            continue
        try:
            with FolderLock(FeatureLayout(root, aside.name).lock, "removing features"):
                remove_aside(path)
        except LockedError:
            continue
        except OSError as error:
            raise cannot_write(path, error) from error


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:
            continue  # gone meanwhile
    return total


if __name__ == "__main__":
    sys.exit(main())
