"""Which paths are tables, by their names: a file, or a folder of parts; and which are folders of pictures."""

from collections.abc import Iterator
from pathlib import Path

from features.errors import DataError, MissingInputError
from features.input_files import PACKED_SUFFIXES, check_text, read_twice, walk
from features.picture_folders import n_picture_folders

CSV_SUFFIXES = (".csv", ".tsv")
SUFFIXES = (*CSV_SUFFIXES, ".parquet")
KNOWN = ".csv, .tsv (also .gz, .zst) or .parquet, or a folder of such"


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
    """Return whether a path names a table: a file by its name, or a folder with parts."""
    if is_table_file(path.name):
        return True
    if path.suffix.lower() in (".zarr", ".npz") or not path.is_dir() or _has_idx_files(path) or is_picture_folder(path):
        return False
    return next(_parts_below(path), None) is not None


def table_name(path: Path) -> str:
    """Return the name of a table without what tells its type."""
    name = path.name
    for suffix in (*PACKED_SUFFIXES, *SUFFIXES):
        name = name.removesuffix(suffix)
    return name


def table_files(path: Path) -> list[Path]:
    """Return the files of a table in the order of their names.

    Nothing that may be a part of it is passed over. Raises DataError where they are of several types, MissingInputError
    for a link to nothing, PermissionError for a folder that cannot be listed.
    """
    if not path.is_dir():
        return [path] if path.exists() else []
    files = sorted(_parts_below(path))
    if len({is_parquet(file) for file in files}) > 1:
        raise DataError(f"{path}: has .csv and .parquet files; give each kind a folder")
    check_text(path, map(str, files))
    known = dict[tuple[int, int], Path]()
    for file in files:
        status = file.stat()
        other = known.setdefault((status.st_dev, status.st_ino), file)
        if other is not file and other.resolve() == file.resolve():
            raise read_twice(file, other)
    return files


def existing_files(path: Path) -> list[Path]:
    """Return the files of a table. Raises MissingInputError where there are none."""
    files = table_files(path)
    if not files:
        raise MissingInputError(f"{path}: no such file")
    return files


def is_picture_folder(path: Path) -> bool:
    """Return whether a path names a folder of pictures. Tables beside a single folder of pictures are meant instead."""
    if path.suffix == ".zarr" or is_table_file(path.name) or not path.is_dir() or _has_idx_files(path):
        return False
    return n_picture_folders(path) > any(is_table_file(entry.name) for entry in path.iterdir())


def _has_idx_files(folder: Path) -> bool:
    """Return whether a folder has files in MNIST's IDX layout: tables beside them are others."""
    return next(folder.glob("*-idx?-ubyte*"), None) is not None


def _parts_below(folder: Path) -> Iterator[Path]:
    """Yield what a folder has under the names of tables; names that begin with . or _ are of other programs."""
    for path, folders, names in walk(folder):
        files = [one for one in names if not one.startswith((".", "_"))]
        if columns := [one for one in folders if "=" in one]:
            raise DataError(f"{path}: has folders that stand for columns, as {columns[0]}; give its files that column")
        is_bare = not folders and not any(map(is_table_file, files))
        if is_bare and is_table_file(path.name) and path != folder:
            raise DataError(f"{path}: is a folder without tables under the name of one; restore the file, or remove it")
        for file in map(path.joinpath, files):
            if file.is_symlink() and not file.exists():
                raise MissingInputError(f"{file}: is a link to what is not there; restore that, or remove the link")
            if is_table_file(file.name):
                yield file
