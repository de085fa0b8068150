"""The files of the user: which are tables or pictures, by their names, and how they are opened.

Plain files only are opened: a device has no end, and a pipe waits for a writer. A table is a file, or a folder of
parts; pictures are in DIR/CLASS, or in DIR/train/CLASS and DIR/test/CLASS.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil

from features.errors import DataError, MissingInputError, UnavailableError
from features.words import composed, has_controls, shown

_PIECE_BYTES = 1 << 20
PACKED_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}  # Arrow has these names for them.
_PARTS = {"train", "test"}
_ZARR_FILES = ("zarr.json", ".zgroup", ".zarray")
_IDX_NAMES = "*-idx?-ubyte*"  # The pattern of the names of MNIST's files.
_ARRAYS = re.compile(rf"[^.].*\.npy|.*-idx.-ubyte.*|{'|'.join(map(re.escape, _ZARR_FILES))}")
CSV_SUFFIXES = (".csv", ".tsv")
TABLE_SUFFIXES = (*CSV_SUFFIXES, ".parquet")
KNOWN_TABLES = ".csv, .tsv (also .gz, .zst) or .parquet, or a folder of such"
PICTURE_FORMATS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jfif"),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".pgm", ".ppm", ".pbm", ".pnm"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
}
OTHER_PICTURES = (".avif", ".dcm", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".psd", ".svg", ".tga")  # None is read.
PICTURE_SUFFIXES = tuple(chain(*PICTURE_FORMATS.values()))
# Names of parts, or with such a word.
PART_NAMES = re.compile(
    r"(.*[\W\d_])?(train(ing)?|tests?|testing|val(id(ation)?)?|dev|eval(uation)?|pred(ict(ions?)?)?|folds?)([\W\d_].*)?",
    re.IGNORECASE,
)
ONE_TIME = ("vfat", "msdos", "exfat", "fuse")  # Such file systems, sshfs among them, show that of the content as both.
KNOWN_PICTURES = f"a folder of pictures ({', '.join(PICTURE_SUFFIXES)}) for each class"


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file for reading, by way of links if there are any; nothing else is waited for.

    Raises DataError for a pipe, a device or a socket, OSError where it is not there, a folder, or cannot be opened. Its
    reads raise UnavailableError where the disk fails.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` refuses a folder
        raise DataError(f"{path}: is a pipe, a device or a socket; name a plain file")
    return BufferedReader(_File(path))


class _File(FileIO):
    """A file whose disk may fail while it is read: an error that names it, and that no reader takes for damage."""

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise self._failure(error) from error

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> UnavailableError:
        advice = "see whether its disk is whole and connected, or use a copy elsewhere"
        return UnavailableError(f"{self.name}: cannot be read ({error.strerror}); {advice}")


def stamp(path: Path) -> tuple[str, int, int, int]:
    """Return what tells whether a file was written to since: path, size, times of its content and of its entry.

    Programs set the first time back, as `cp -p` and `tar` do, but not the second. Raises OSError.
    """
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns


def content_stamp(path: Path) -> str:
    """Return a digest of a file on a file system that has one time for content and entry; else "". Raises OSError."""
    status, place = path.stat(), path.resolve()
    mounted = [one for one in psutil.disk_partitions(all=True) if place.is_relative_to(one.mountpoint)]
    kind = max(mounted, key=lambda one: len(one.mountpoint)).fstype if mounted else ""
    if status.st_mtime_ns != status.st_ctime_ns or not kind.startswith(ONE_TIME):
        return ""
    with open_plain(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def walk(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield a folder and each below it, by way of links too, with the names of the folders and of the files in it.

    Folders that begin with . or _ are of other programs; the caller may take others off the list. Raises DataError for
    a link to a folder that is read anyhow, PermissionError for a folder that cannot be listed.
    """
    met = {parent: parent for parent in folder.resolve().parents}
    for name, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        path = Path(name)
        if other := met.get(path.resolve()):
            raise read_twice(path, other)
        met[path.resolve()] = path
        folders[:] = [one for one in folders if not one.startswith((".", "_"))]
        yield path, folders, files


def read_twice(path: Path, other: Path) -> DataError:
    """Return the error for two paths of one file or folder, which names the one that is, or is in, a link."""
    both = {*path.parents} & {*other.parents}
    apart = (one for one in (path, other, *path.parents, *other.parents) if one not in both)
    link = next(filter(Path.is_symlink, apart), path)
    real = other if path.is_relative_to(link) else path
    return DataError(f"{link}: is a link, by which {real} would be read twice; remove the link, not what it points to")


def _refuse(error: OSError) -> NoReturn:
    raise error


def check_text(folder: Path, names: Iterable[str]) -> None:
    """Raise DataError for a name of a file with control characters, or bytes that are no UTF-8."""
    if bad := next(filter(has_controls, names), None):
        raise DataError(f"{folder}: the name of {bad!r:.200} is no UTF-8 text, or has control characters; rename it")


@contextmanager
def open_unpacked(path: Path) -> Iterator[BufferedReader]:
    """Open a plain file to read front to back, .gz and .zst unpacked; reads of damage raise DataError."""
    packed = path.suffix.lower()
    with open_plain(path) as file:
        if packed not in PACKED_SUFFIXES:
            yield file
            return
        import pyarrow  # takes 0.1 s, and images need none

        stream: Any = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), PACKED_SUFFIXES[packed])
        try:
            yield BufferedReader(stream, _PIECE_BYTES)
        except OSError as error:
            remedy = f"copy it again, or take {packed} off its name if it is not packed"
            raise DataError(f"{path}: damaged {packed} file ({error}); {remedy}") from error


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
    if not path.is_dir() or _has_arrays(path) or is_picture_folder(path):
        return False
    return next(_parts_below(path), None) is not None


def table_name(path: Path) -> str:
    """Return the name of a table without what tells its type."""
    name = path.name
    for suffix in (*PACKED_SUFFIXES, *TABLE_SUFFIXES):
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
    check_text(path, (str(file.relative_to(path)) for file in files))
    known = dict[tuple[int, int], Path]()
    for file in files:
        status = file.stat()
        other = known.setdefault((status.st_dev, status.st_ino), file)
        if other is not file and other.resolve() == file.resolve():
            raise read_twice(file, other)
    return files


def data_files(path: Path) -> list[Path]:
    """Return the .npy and IDX files of a folder, else those of a table, or a file itself. Raises as `table_files`."""
    return [*npy_files(path), *sorted(path.glob(_IDX_NAMES))] or table_files(path)


def is_picture_folder(path: Path) -> bool:
    """Return whether a path names a folder of pictures. Tables beside a single folder of pictures are meant instead."""
    if is_table_file(path.name) or not path.is_dir() or _has_arrays(path):
        return False
    return n_picture_folders(path) > any(is_table_file(entry.name) for entry in path.iterdir())


def _has_arrays(folder: Path) -> bool:
    """Return whether a folder has arrays: tables and pictures beside MNIST's IDX files are others, or are refused."""
    with os.scandir(folder) as entries:
        return any(_ARRAYS.fullmatch(entry.name) for entry in entries)


def is_zarr(path: Path) -> bool:
    """Return whether a path is a zarr store."""
    return path.suffix == ".zarr" or any((path / name).exists() for name in _ZARR_FILES)


def npy_files(folder: Path) -> list[Path]:
    """Return the .npy files of a folder, sorted; [] of a file."""
    return sorted(folder.glob("[!.]*.npy")) if folder.is_dir() else []


def is_of_arrays(path: Path) -> bool:
    """Return whether a path is an .npz or an .npy file, or a folder of .npy files."""
    return bool(npy_files(path)) or (path.suffix in (".npz", ".npy") and path.exists() and not path.is_dir())


def check_npy_folder(folder: Path) -> None:
    """Raise DataError where a folder of .npy files has tables, pictures or IDX files as well."""
    others = sorted(file.name for file in folder.iterdir() if is_table_file(file.name) or is_picture(file.name))
    others += sorted(file.name for file in folder.glob(_IDX_NAMES))
    if others or n_picture_folders(folder) > 1:
        told = f"has {npy_files(folder)[0].name} beside {others[0] if others else 'folders of pictures'}"
        raise DataError(f"{folder}: {told}; give each kind a folder of its own")


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


def class_of(name: str) -> str:
    """Return the name of the folder that a path in a folder begins with, in one form of Unicode."""
    return composed(name.partition("/")[0])


class PictureList(NamedTuple):
    """What is below a folder: pictures, the folders in it that have none, and other files; sorted paths in it."""

    names: list[str]
    empty: list[str]
    others: list[str]


def is_picture(name: str, suffixes: tuple[str, ...] = PICTURE_SUFFIXES) -> bool:
    """Return whether a file is a picture, by its name; "._" begins what macOS keeps beside one."""
    return name.lower().endswith(suffixes) and not name.startswith(".")


def n_picture_folders(folder: Path, most: int = 2) -> int:
    """Return how many folders have pictures: itself, and those at most three deep in it; at most `most`."""
    n_found, level = 0, [folder]
    for _ in range(4):
        for path in level:
            with os.scandir(path) as entries:
                n_found += any(is_picture(entry.name, PICTURE_SUFFIXES + OTHER_PICTURES) for entry in entries)
            if n_found >= most:
                return n_found
        level = [inner for path in level for inner in _folders_in(path)]
    return n_found


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(folder / entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "._")


def part_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of the parts by name, {} where it has none; DataError where it has others beside them."""
    inner = {path.name: path for path in _folders_in(folder)}
    if "train" not in inner or not any(_folders_in(inner["train"])):
        return {}
    if more := sorted(inner.keys() - _PARTS):
        told = f"has the folder {more[0]} beside {' and '.join(sorted(_PARTS & inner.keys(), reverse=True))}"
        test = "test" if "test" in inner else more[0]
        remedy = f"name the folders of the two parts, such as {folder}/train `data.test={folder}/{test}`"
        raise DataError(f"{folder}: {told}; {remedy}")
    return inner


def check_classes(folder: Path) -> None:
    """Raise DataError where folders that would be classes are parts: by their names, or with several folders alike."""
    inner = sorted(_folders_in(folder), key=lambda path: ("train" not in path.name.lower(), path.name))
    if len(inner) == 1 and n_picture_folders(inner[0]) > 1:
        raise DataError(f"{folder}: has one folder, {inner[0].name}; name {inner[0]}, if its folders are the classes")
    for first, second in combinations(inner, 2):
        alike = sorted(_picture_folders(first) & _picture_folders(second))
        are_parts = all(PART_NAMES.fullmatch(path.name) for path in (first, second))
        if len(alike) > 1 or (are_parts and _picture_folders(first)):
            told = f"{first.name} and {second.name} look like parts"
            told += f" (folders of pictures in both: {shown(alike, 3)})" if alike else ""
            remedy = f" with `data.test={second}`" if _picture_folders(second) else f", then predict {second}"
            remedy = f"if they are, train on {first}{remedy}, else put each class into one folder"
            raise DataError(f"{folder}: {told}; {remedy}")


def _picture_folders(folder: Path) -> set[str]:
    """Return the names of the folders with pictures in a folder, or in the only one that it has, alone."""
    inner = [*_folders_in(folder)]
    if len(inner) == 1 and any(_folders_in(inner[0])):
        return _picture_folders(inner[0])
    return {one.name for one in inner if n_picture_folders(one, 1)}


def pictures_below(folder: Path) -> PictureList:
    """Return what is below a folder; folders that begin with . or _ and files that begin with . are left out.

    Raises MissingInputError where there is no such folder, DataError for a name that is no UTF-8 text, and a link to a
    folder that is read anyhow.
    """
    if not folder.is_dir():
        raise MissingInputError(f"{folder}: no such folder")
    every, inner = list[str](), list[str]()
    for path, folders, files in walk(folder):
        inner = folders if path == folder else inner
        place = "" if path == folder else f"{path.relative_to(folder).as_posix()}/"
        every += [place + name for name in files if not name.startswith(".")]
    check_text(folder, every)
    names = sorted(filter(is_picture, every))
    with_pictures = {name.partition("/")[0] for name in names}
    return PictureList(names, sorted(set(inner) - with_pictures), sorted(set(every) - set(names)))
