"""`python -m pipeline.data list|fetch|verify [NAME ...]`: the published data sets on this machine.

Looks where training looks (`features.published.find`): `--data-dir` alone where it is given; else the folder that
SLKL_DATA_DIR names, where that holds the data set; else the cache of this user.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from features.errors import DataError, MissingInputError, UnavailableError
from features.published import PUBLISHED, DataFolder, cache_folder, check_digest, fetch, locate
from pipeline.config.command_line import command_parser, program
from pipeline.errors import ConfigError, ExitCode
from pipeline.runtime.answers import answered
from storage.errors import StorageError
from storage.files import cannot_write

ACTIONS = ("list", "fetch", "verify")
GENERATED = ("digits", "synthetic", "sinc")
EPILOG = """\
list tells what is where, fetch downloads into your cache what it lacks, verify compares every sha256. Without a NAME:
all of mnist, usps, boston, abalone; verify then checks those that are here.
Exit codes: 0 done, 2 usage, 65 damaged files, 66 files missing, 69 no mirror answers, 73 the cache cannot be written,
75 stopped."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = command_parser("data", "List, download or check the published data sets.", EPILOG)
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets (default: all)")
    parser.add_argument("--data-dir", metavar="DIR", help="look here only, as train --data-dir does")
    arguments = parser.parse_args(argv)

    def work() -> int:
        code = 0
        for line, line_code in _lines(arguments):
            print(line, file=sys.stderr if line_code else sys.stdout, flush=True)
            code = min(filter(None, (code, line_code)), default=0)  # damaged (65) before missing (66)
        return code

    return answered(work)


def problems(data: "DataFolder") -> list[tuple[str, int]]:
    """Return what is wrong with the files of a data set, with the exit code of each; reads all their bytes."""
    from storage.folders import digest_file  # which --help does without

    remedy = _remedy(data)
    lines = []
    for file, expected in PUBLISHED[data.name].files.items():
        path = data.folder / file
        if file in data.missing:
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
    for name in asked:
        if name not in PUBLISHED and name not in GENERATED:
            raise ConfigError(f"data set {name!r} is unknown; give {', '.join((*PUBLISHED, *GENERATED))}")
    return [name for name in dict.fromkeys(asked or PUBLISHED) if name in PUBLISHED]


def _check_data_dir(action: str, data_dir: str | None) -> None:
    if data_dir and action == "fetch":
        raise ConfigError("fetch fills the cache only, never --data-dir; leave it out, and copy the files from there")
    if data_dir and not Path(data_dir).is_dir():
        raise MissingInputError(f"--data-dir {data_dir}: no such folder; name the one that holds the files")


def _description(name: str, data_dir: str | None) -> list[str]:
    """Return what `list` tells of a data set: where it is, and its files with their sizes."""
    data = locate(name, data_dir)
    files = PUBLISHED[name].files
    if data is None:
        advice = f"not in {data_dir}: copy the files there" if data_dir else f"not here: {_fetch_command(name)}"
        return [f"{name:<9}{advice}", *(f"  {file:<30}{'-':>12}" for file in files)]
    sizes = {file: (data.folder / file).stat().st_size for file in files if file not in data.missing}
    words = f"; incomplete: {_remedy(data)}" if data.missing else f", {sum(sizes.values()) / 2**20:.2f} MiB"
    lines = [f"{name:<9}{data.folder} ({data.source}){words}"]
    return lines + [f"  {file:<30}{f'{sizes[file]} bytes' if file in sizes else 'missing':>14}" for file in files]


def _fetched(name: str) -> Iterator[tuple[str, int]]:
    """Fill the cache with a data set; tell where it is, and of a folder that training looks into before it."""
    folder = cache_folder(name)
    try:
        fetch(name, PUBLISHED[name].files, PUBLISHED[name].mirrors, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    except UnavailableError as error:  # the next data set may have another mirror
        yield f"error: {error}", int(ExitCode.UNAVAILABLE)
        return
    yield f"{name}: {folder}, every sha256 as published", 0
    data = locate(name, None)
    if data is not None and data.source != "cache":
        yield f"{name}: but training takes it from {data.folder}, which SLKL_DATA_DIR names", 0


def _verified(name: str, data_dir: str | None, *, asked: bool) -> Iterator[tuple[str, int]]:
    """Compare every sha256 of a data set; that it is not here is an error where it was asked for by its name."""
    data = locate(name, data_dir)
    if data is None:
        where = f"not in {data_dir}" if data_dir else f"not here: {_fetch_command(name)}"
        yield f"{name}: {where}", int(ExitCode.MISSING_INPUT) if asked else 0
        return
    wrong = problems(data)
    yield from wrong
    if not wrong:
        yield f"{name}: {data.folder} ({data.source}), {len(PUBLISHED[name].files)} files, all as published", 0


def _remedy(data: "DataFolder") -> str:
    if data.source == "cache":
        return _fetch_command(data.name)
    return f"copy it there again, from where {_fetch_command(data.name)!r} puts it"


def _fetch_command(name: str) -> str:
    return f"{program('data')} fetch {name}"


if __name__ == "__main__":
    sys.exit(main())
