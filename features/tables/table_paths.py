"""Which files are tables, by their names: a file, a folder of parts, or a pattern such as ``parts/*.parquet``."""

import glob
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from features.errors import DataError, MissingInputError
from features.input_files import PACKED_SUFFIXES

CSV_SUFFIXES = (".csv", ".tsv")
SUFFIXES = (*CSV_SUFFIXES, ".parquet")
KNOWN = ".csv, .tsv (also .gz, .zst) or .parquet, or a folder of such"
MOST_FILES = 100_000  # of a table
_SURROGATES = re.compile("[\\ud800-\\udfff]")  # which stand for bytes of a name that are no UTF-8


def suffix_of(path: Path) -> str:
    """Return the suffix that tells what a file holds: that before .gz or .zst, if it is packed."""
    name = path.name.lower()
    for packed in PACKED_SUFFIXES:
        name = name.removesuffix(packed)
    return Path(name).suffix


def is_csv(path: Path) -> bool:
    """Return whether a file is lines of text, by its name."""
    return suffix_of(path) in CSV_SUFFIXES


def is_parquet(path: Path) -> bool:
    """Return whether a file is parquet, by its name."""
    return path.suffix.lower() == ".parquet"


def is_table_file(name: str) -> bool:
    """Return whether a file is a table, by its name."""
    return is_csv(Path(name)) or is_parquet(Path(name))


def is_table(path: Path) -> bool:
    """Return whether a path names a table: a file by its name, a pattern of such names, or a folder with parts."""
    if path.suffix.lower() in (".zarr", ".npz"):
        return False
    if is_table_file(path.name):
        return True
    if is_pattern(path):
        return bool(table_files(path))
    return path.is_dir() and not _has_images(path) and next(_parts_below(path), None) is not None


def is_pattern(path: Path) -> bool:
    """Return whether a path that does not exist has one of the signs ``*?[``."""
    return glob.has_magic(str(path)) and not path.exists()


def exists(path: Path) -> bool:
    """Return whether a path, or a file that its pattern names, is there."""
    return bool(table_files(path)) if is_pattern(path) else path.exists()


def table_name(path: Path) -> str:
    """Return the name of a table without what tells its type."""
    name = path.parent.name if is_pattern(path) else path.name
    for suffix in (*PACKED_SUFFIXES, *SUFFIXES):
        name = name.removesuffix(suffix)
    return name


def table_files(path: Path) -> list[Path]:
    """Return the files of a table in the order of their names. Raises DataError where they are of several types."""
    if is_pattern(path):
        named = glob.iglob(str(path), recursive=True)  # noqa: PTH207 -- Path.glob takes no absolute patterns
        files = sorted(file for file in map(Path, named) if is_table_file(file.name) and file.is_file())
    elif path.is_dir():
        files = sorted(_parts_below(path))
    else:
        return [path] if path.exists() else []
    if len({is_parquet(file) for file in files}) > 1:
        raise DataError(f"{path}: has .csv and .parquet files; name one kind, as in *.parquet")
    bad = next((file for file in files if _SURROGATES.search(str(file))), None)
    if bad is not None:
        raise DataError(f"{path}: the name of {str(bad)!r:.200} is no UTF-8 text; rename it")
    if len(files) > MOST_FILES:
        raise DataError(f"{path}: has {len(files)} files, at most {MOST_FILES} are read as one table")
    return files


def existing_files(path: Path) -> list[Path]:
    """Return the files of a table. Raises MissingInputError where there are none."""
    files = table_files(path)
    if not files:
        raise MissingInputError(f"{path}: no such file")
    return files


def partitions_of(file: Path, table: Path) -> dict[str, str]:
    """Return the columns that the folders between a table and one of its files stand for: NAME=VALUE, as Hive has it.

    Of a pattern they begin at its first sign. Raises DataError where a name is there twice.
    """
    found: dict[str, str] = {}
    root = next((path for path in (table, *table.parents) if not is_pattern(path)), table)
    below = file.relative_to(root).parts[:-1] if root in file.parents else ()
    for part in below:
        name, sign, value = (unquote(word) for word in part.partition("="))
        if sign and name in found:
            raise DataError(f"{file}: the folder {part} repeats the column {name}")
        if sign:
            found[name] = "" if value == "__HIVE_DEFAULT_PARTITION__" else value
    return found


def _has_images(folder: Path) -> bool:
    """Return whether a folder has files in MNIST's IDX layout: tables beside them are others."""
    return next(folder.glob("*-idx?-ubyte*"), None) is not None


def _parts_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are parts of a table; names that begin with . or _ are of other programs."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
        if not hidden and path.suffix and is_table_file(path.name) and path.is_file():
            yield path
