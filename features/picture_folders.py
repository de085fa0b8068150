"""Which files are pictures, by their names, and whose they are: DIR/CLASS, or DIR/train/CLASS and DIR/test/CLASS."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

from features import picture_forms
from features.cell_text import composed, shown
from features.errors import DataError, MissingInputError
from features.input_files import check_text, walk
from features.source import PARTS

SUFFIXES = tuple(chain(*picture_forms.SUFFIXES.values()))
# Names of parts, or with such a word.
PART_NAMES = re.compile(
    r"(.*[\W\d_])?(train(ing)?|tests?|testing|val(id(ation)?)?|dev|eval(uation)?|pred(ict(ions?)?)?|folds?)([\W\d_].*)?",
    re.IGNORECASE,
)
KNOWN_PICTURES = f"a folder of pictures ({', '.join(SUFFIXES)}) for each class"


def class_of(name: str) -> str:
    """Return the name of the folder that a path in a folder begins with, in one form of Unicode."""
    return composed(name.partition("/")[0])


class PictureList(NamedTuple):
    """What is below a folder: pictures, the folders in it that have none, and other files; sorted paths in it."""

    names: list[str]
    empty: list[str]
    others: list[str]

    def told_of_empty(self) -> str:
        """Return what the folders without pictures have, and what to do about it."""
        told = list[str]()
        for folder in self.empty:
            kinds = Counter(Path(name).suffix or "files" for name in self.others if name.startswith(f"{folder}/"))
            counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(3))
            told.append(f"{folder} ({counts or 'nothing'})")
        return f"{shown(told)}; convert pictures to .png, and take folders that are no class elsewhere"


def is_picture(name: str, suffixes: tuple[str, ...] = SUFFIXES) -> bool:
    """Return whether a file is a picture, by its name; "._" begins what macOS keeps beside one."""
    return name.lower().endswith(suffixes) and not name.startswith(".")


def n_picture_folders(folder: Path, most: int = 2) -> int:
    """Return how many folders have pictures: itself, and those at most three deep in it; at most `most`."""
    n_found, level = 0, [folder]
    for _ in range(4):
        for path in level:
            with os.scandir(path) as entries:
                n_found += any(is_picture(entry.name, SUFFIXES + picture_forms.OTHER_SUFFIXES) for entry in entries)
            if n_found >= most:
                return n_found
        level = [inner for path in level for inner in _folders_in(path)]
    return n_found


def _folders_in(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith((".", "_")))
    yield from (folder / name for name in names)


def part_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of the parts by name, {} where it has none; DataError where it has others beside them."""
    inner = {path.name: path for path in _folders_in(folder)}
    if "train" not in inner or not any(_folders_in(inner["train"])):
        return {}
    if more := sorted(inner.keys() - set(PARTS)):
        told = f"has the folder {more[0]} beside {' and '.join(sorted(set(PARTS) & inner.keys(), reverse=True))}"
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
            told = f"{first.name} and {second.name} have the same folders of pictures ({shown(alike, 3)})"
            if len(alike) < 2:
                told = f"{first.name} has folders of pictures, and {second.name} is beside it"
            remedy = "put the pictures of each class into one folder"
            if are_parts or not any(PART_NAMES.fullmatch(name) or name.isdecimal() for name in alike):
                remedy = f"if they are parts, train on {first} with `data.test={second}`; if classes, {remedy}"
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
