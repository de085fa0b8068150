"""`python -m pipeline.data list|fetch|verify [NAME ...]`: the published data sets on this machine.

Looks where training looks (`features.published.find`): `--data-dir` alone where it is given; else the folder that
SLKL_DATA_DIR names, where that holds the data set; else the cache of this user.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ACTIONS = ("list", "fetch", "verify")
GENERATED = ("digits", "synthetic", "sinc")
EPILOG = """\
list tells what is where, fetch downloads into your cache what it lacks, verify compares every sha256. Without a NAME:
all of mnist, usps, boston, abalone; verify then checks those that are here.
Exit codes: 0 done, 2 usage, 65 damaged files, 66 files missing, 69 no mirror answers, 73 the cache cannot be written,
75 stopped."""


@dataclass(frozen=True)
class Found:
    """Where a data set lies. `missing`: the names of its files that the folder lacks.

    source is data-dir, SLKL_DATA_DIR or cache.
    """

    name: str
    folder: Path
    source: str
    missing: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.data",
        description="List, download or check the published data sets.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets (default: all)")
    parser.add_argument("--data-dir", metavar="DIR", help="look here only, as train --data-dir does")
    arguments = parser.parse_args(argv)
    from pipeline.errors import answered

    def tell() -> int:
        code = 0
        for line, line_code in _lines(arguments):
            print(line, file=sys.stderr if line_code else sys.stdout, flush=True)
            code = min(filter(None, (code, line_code)), default=0)  # damaged (65) before missing (66)
        return code

    return answered(tell)


def locate(name: str, data_dir: str | None) -> Found | None:
    """Return where training would find a published data set without a download, None where it is not here.

    Reads the names of files only.
    """
    from features.downloads import cache_folder
    from features.published import PUBLISHED, folder_with

    named = os.environ.get("SLKL_DATA_DIR")
    places: list[tuple[str | Path, str]] = [(data_dir, "data-dir")] if data_dir else []
    if not data_dir:
        places = [(named, "SLKL_DATA_DIR")] if named else []
        places.append((cache_folder(name), "cache"))
    for place, source in places:
        folder = folder_with(name, place)
        if folder is not None:
            missing = tuple(file for file in PUBLISHED[name].files if not (folder / file).is_file())
            return Found(name, folder, source, missing)
    return None


def problems(found: Found) -> list[tuple[str, int]]:
    """Return what is wrong with the files of a data set, with the exit code of each; reads all their bytes."""
    from features.errors import DataError
    from features.published import PUBLISHED, check_digest
    from pipeline.errors import ExitCode
    from storage.errors import StorageError
    from storage.manifest import digest_file

    remedy = _remedy(found)
    lines = []
    for file, expected in PUBLISHED[found.name].files.items():
        path = found.folder / file
        if file in found.missing:
            lines.append((f"{path}: missing; {remedy}", int(ExitCode.MISSING_INPUT)))
            continue
        try:
            check_digest(path, digest_file(path).sha256, expected)
        except DataError:
            lines.append((f"{path}: damaged, its sha256 is not the published one; {remedy}", ExitCode.INVALID_DATA))
        except StorageError as error:
            lines.append((f"{error}; {remedy}", int(error.exit_code)))
    return lines


def _lines(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Do what was asked; yield a line for each thing there is to tell, with its exit code."""
    action, asked, data_dir = arguments.action, arguments.names, arguments.data_dir
    names = _published_names(asked)
    _check_data_dir(action, data_dir)
    if action == "list":
        yield from ((line, 0) for name in names for line in _description(name, data_dir))
    elif action == "fetch":
        for name in names:
            yield from _fetched(name)
    else:
        for name in names:
            yield from _verified(name, data_dir, asked=bool(asked))
    made = [name for name in GENERATED if name in asked or (action == "list" and not asked)]
    if made:
        yield f"{', '.join(made)}: made on this machine, nothing to download", 0


def _published_names(asked: Sequence[str]) -> list[str]:
    """Return the published data sets that were asked for, each once; all where none was. Raises ConfigError."""
    from features.published import PUBLISHED
    from pipeline.errors import ConfigError

    for name in asked:
        if name not in PUBLISHED and name not in GENERATED:
            raise ConfigError(f"data set {name!r} is unknown; give {', '.join((*PUBLISHED, *GENERATED))}")
    return [name for name in dict.fromkeys(asked or PUBLISHED) if name in PUBLISHED]


def _check_data_dir(action: str, data_dir: str | None) -> None:
    from features.errors import MissingInputError
    from pipeline.errors import ConfigError

    if data_dir and action == "fetch":
        raise ConfigError("fetch fills the cache only, never --data-dir; leave it out, and copy the files from there")
    if data_dir and not Path(data_dir).is_dir():
        raise MissingInputError(f"--data-dir {data_dir}: no such folder; name the one that holds the files")


def _description(name: str, data_dir: str | None) -> list[str]:
    """Return what `list` tells of a data set: where it is, and its files with their sizes."""
    from features.published import PUBLISHED

    found = locate(name, data_dir)
    files = PUBLISHED[name].files
    if found is None:
        advice = f"not in {data_dir}: copy the files there" if data_dir else f"not here: {_fetch_command(name)}"
        return [f"{name:<9}{advice}", *(f"  {file:<30}{'-':>12}" for file in files)]
    sizes = {file: (found.folder / file).stat().st_size for file in files if file not in found.missing}
    words = f"; incomplete: {_remedy(found)}" if found.missing else f", {sum(sizes.values()) / 2**20:.2f} MiB"
    lines = [f"{name:<9}{found.folder} ({found.source}){words}"]
    return lines + [f"  {file:<30}{f'{sizes[file]} bytes' if file in sizes else 'missing':>14}" for file in files]


def _fetched(name: str) -> Iterator[tuple[str, int]]:
    """Fill the cache with a data set; tell where it is, and of a folder that training looks into before it."""
    from features.downloads import cache_folder, fetch
    from features.errors import UnavailableError
    from features.published import PUBLISHED
    from pipeline.errors import ExitCode
    from storage.disk import cannot_write

    folder = cache_folder(name)
    try:
        fetch(name, PUBLISHED[name].files, PUBLISHED[name].mirrors, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    except UnavailableError as error:  # the next data set may have another mirror
        yield f"error: {error}", int(ExitCode.UNAVAILABLE)
        return
    yield f"{name}: {folder}, every sha256 as published", 0
    found = locate(name, None)
    if found is not None and found.source != "cache":
        yield f"{name}: but training takes it from {found.folder}, which SLKL_DATA_DIR names", 0


def _verified(name: str, data_dir: str | None, *, asked: bool) -> Iterator[tuple[str, int]]:
    """Compare every sha256 of a data set; that it is not here is an error where it was asked for by its name."""
    from features.published import PUBLISHED
    from pipeline.errors import ExitCode

    found = locate(name, data_dir)
    if found is None:
        where = f"not in {data_dir}" if data_dir else f"not here: {_fetch_command(name)}"
        yield f"{name}: {where}", int(ExitCode.MISSING_INPUT) if asked else 0
        return
    wrong = problems(found)
    yield from wrong
    if not wrong:
        yield f"{name}: {found.folder} ({found.source}), {len(PUBLISHED[name].files)} files, all as published", 0


def _remedy(found: Found) -> str:
    if found.source == "cache":
        return _fetch_command(found.name)
    return f"copy it there again, from where {_fetch_command(found.name)!r} puts it"


def _fetch_command(name: str) -> str:
    return f"python -m pipeline.data fetch {name}"


if __name__ == "__main__":
    sys.exit(main())
