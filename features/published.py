"""Published data sets: their files by sha256, where they are looked for, and mirrors that have them.

A file is trusted for its sha256 and nothing else, wherever it lies; a folder that was given is never filled.
"""

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from features.errors import DataError, MissingInputError, UnavailableError
from features.input_files import open_plain

# Faults of the cache folder, where another mirror would not help.
CACHE_FAULTS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Published:
    """A data set of a few small files: name → sha256 in hexadecimal digits, and base URLs of mirrors, in order."""

    files: Mapping[str, str]
    mirrors: tuple[str, ...]


PUBLISHED: dict[str, Published] = {
    "mnist": Published(
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
    "usps": Published(
        {
            "zip.train.gz": "66ebf231ab51f2cf6ac1a892d0f98ccffee1079d7a5db638c1f11f366046ca16",
            "zip.test.gz": "8dacc3c6e136af6c3488de9e5113a7daf140c8c2f1f0b61c54ee02f03f1a962f",
        },
        (
            "https://hastie.su.domains/ElemStatLearn/datasets/",
            "https://raw.githubusercontent.com/tdhock/2023-08-deep-learning/27722edd4db50ad840a2c16bd16e1b9ca608ce4b/data/",
        ),
    ),
    "boston": Published(
        {"housing.data": "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a"},
        (
            "https://archive.ics.uci.edu/ml/machine-learning-databases/housing/",
            "https://raw.githubusercontent.com/jbrownlee/Datasets/master/",
        ),
    ),
    "abalone": Published(
        {"abalone.data": "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f"},
        (
            "https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/",
            "https://ftp.ics.uci.edu/pub/machine-learning-databases/abalone/",
        ),
    ),
}


def given_folder(name: str, place: str | Path | None = None) -> Path | None:
    """Return `place` (by default SLKL_DATA_DIR), or its folder called `name`, if it holds a file of the data set."""
    place = place or os.environ.get("SLKL_DATA_DIR")
    if not place:
        return None
    folders, files = (Path(place) / name, Path(place)), PUBLISHED[name].files
    return next((folder for folder in folders if any((folder / file).is_file() for file in files)), None)


def missing_files(name: str, folder: Path) -> list[str]:
    """Return the names of the files of a data set that a folder lacks."""
    return [file for file in PUBLISHED[name].files if not (folder / file).is_file()]


def find(name: str, place: str | None) -> Path:
    """Return the folder that holds the data set `name`: one given (see `given_folder`), else the cache, filled.

    Raises MissingInputError where the folder that was given lacks a file, UnavailableError where no mirror answers.
    """
    folder = given_folder(name, place)
    if folder is None:
        return fetch(name, PUBLISHED[name].files, PUBLISHED[name].mirrors, cache_folder(name))
    if missing := missing_files(name, folder):
        raise MissingInputError(f"{name}: {folder} lacks {', '.join(missing)}; copy them there or unset SLKL_DATA_DIR")
    return folder


def read_files(name: str, folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a data set by its name; DataError where a sha256 is not as published."""
    contents = {}
    for file, expected in PUBLISHED[name].files.items():
        with open_plain(folder / file) as stream:
            contents[file] = stream.read()
        if (found := hashlib.sha256(contents[file]).hexdigest()) != expected:
            told = f"sha256 is {found}, expected {expected}"
            raise DataError(f"{folder / file}: {told}; delete the file and get it again")
    return contents


def cache_folder(dataset: str) -> Path:
    """Return the folder of a data set in the cache of this user; it need not exist."""
    import pooch  # slow to import, and a machine that has the files needs none

    return Path(pooch.os_cache("slkl")) / dataset


def fetch(
    dataset: str, files: Mapping[str, str], mirrors: Sequence[str], folder: Path, *, silence_seconds: float = 15.0
) -> Path:
    """Return the folder, with all `files` (name → sha256 in hexadecimal digits), after downloading those that it lacks.

    Each comes from the first mirror, a URL with "/" at its end, that has the right bytes and is not silent for so long.
    Raises UnavailableError where no mirror has some file, OSError where the folder cannot be written.
    """
    import pooch  # slow to import, as above

    folder.mkdir(parents=True, exist_ok=True)
    download = pooch.HTTPDownloader(timeout=silence_seconds)
    for name, sha256 in files.items():
        failures = []
        for mirror in mirrors:
            try:
                pooch.retrieve(mirror + name, f"sha256:{sha256}", fname=name, path=folder, downloader=download)
                break
            except (OSError, ValueError) as error:
                if getattr(error, "errno", None) in CACHE_FAULTS:
                    raise
                failures.append(f"{mirror}: {_cause(error)}")
        else:
            remedy = f"copy {', '.join(files)} to {folder} or to the folder that SLKL_DATA_DIR names"
            told = f"{dataset}: no mirror delivered {name} ({'; '.join(failures)}); {remedy}"
            raise UnavailableError(f"{told}, or train on digits, which needs no download")
    return folder


def _cause(error: Exception) -> str:
    """Return why a mirror did not deliver, in a line: of what requests raises, the reason."""
    cause = getattr(error.args[0] if error.args else None, "reason", error)
    return str(cause).splitlines()[0] if str(cause) else type(cause).__name__
