"""Opening what a `SourceSpec` describes: a published data set, a generated one, or files of the user.

A file of a published data set is trusted for its sha256 and nothing else, wherever it lies; a folder that was given is
never filled.
"""

import gzip
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import distribution
from pathlib import Path
from threading import Lock

import numpy as np

from features.array_sources import open_arrays, open_idx
from features.errors import CHANGED, DataError, MissingInputError, UnavailableError, UsageError
from features.images import BYTE_SCALE, IDX_FILES, idx_files
from features.input_files import (
    KNOWN_PICTURES,
    KNOWN_TABLES,
    data_files,
    is_of_arrays,
    is_picture_folder,
    is_table,
    is_zarr,
    open_plain,
    stamp,
    walk,
)
from features.row_draws import row_keys
from features.rows import Rows, digest_rows
from features.source import NAMED, Keeper, Source, SourceSpec, source_of

_opening = Lock()
SINC_ROWS, SINC_NOISE = 1000, 0.1  # Each part has this number of rows; the noise has this variance.


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
    Raises UnavailableError where no mirror has some file, with what each said.
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
                failures.append(f"{mirror}: {' '.join(str(error).split())[:200]}")
        else:
            remedy = f"copy {', '.join(files)} to {folder} or to the folder that SLKL_DATA_DIR names"
            told = f"{dataset}: no mirror delivered {name} ({'; '.join(failures)}); {remedy}"
            raise UnavailableError(f"{told}, or train on digits, which needs no download")
    return folder


def open_mnist(spec: SourceSpec, keeper: Keeper | None) -> Source:
    """Open MNIST: 60 000 and 10 000 images of 28 x 28 bytes, ten classes; 55 MB. Errors as `find` and `read_files`."""
    folder = find("mnist", spec.data_dir)
    files = {name: folder / f"{name}.gz" for name in IDX_FILES}
    return open_idx(spec, "mnist", files, keeper, partial(read_files, "mnist", folder))


def open_digits(spec: SourceSpec) -> Source:
    """Open scikit-learn's 1797 digits, resized to 28 x 28 bytes and split by seed; no download."""
    from scipy.ndimage import zoom  # slow to import

    # The file of sklearn.datasets.load_digits: to import that takes a second.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), np.uint8, delimiter=",")
    small, labels = rows[:, :-1].reshape(-1, 8, 8) / 16.0, rows[:, -1].astype(np.int64)
    # Cubic splines are linear in the pixels: a matrix (28, 8) for the lines, and the same for the columns.
    resize = zoom(np.eye(8), (28 / 8, 1), order=3, mode="grid-constant", grid_mode=True)
    large = resize @ small @ resize.T
    images = np.rint(np.clip(large, 0.0, 1.0) * 255.0).astype(np.uint8)
    # The digest of the pixels, not of a version: a library that resizes differently makes other data.
    identity = {"source": "digits", "sha256": hashlib.sha256(images).hexdigest()}
    return source_of(spec, "digits", [Rows(images, labels, keys=row_keys(images))], False, identity, BYTE_SCALE)


def open_usps(spec: SourceSpec) -> Source:
    """Open USPS: 7291 and 2007 digits, images of 16 x 16 float32 in [-1, 1] (-1 is the background), ten classes.

    Its parts are its own, and inputs not standardised unless asked for. Errors as `find`.
    """
    contents = read_files("usps", find("usps", spec.data_dir))
    given = []
    for file in ("zip.train.gz", "zip.test.gz"):
        table = np.array(gzip.decompress(contents[file]).split(), dtype=np.float32).reshape(-1, 1 + 16 * 16)
        images = np.ascontiguousarray(table[:, 1:]).reshape(-1, 16, 16)
        given.append(Rows(images, table[:, 0].astype(np.int64)))
    identity = {"source": "usps", "sha256": dict(PUBLISHED["usps"].files)}
    return source_of(spec, "usps", given, False, identity)


def open_boston(spec: SourceSpec) -> Source:
    """Open Boston housing: 506 rows of 13 numbers, 156 of them the test part; the target is a value in 1000 dollars."""
    content = read_files("boston", find("boston", spec.data_dir))["housing.data"]
    table = np.array(content.split(), dtype=np.float64).reshape(506, 14)
    return _regression(spec, "boston", table[:, :-1], table[:, -1], 156)


def open_abalone(spec: SourceSpec) -> Source:
    """Open abalone: 4177 rows, 1177 of them the test part: the sex in three inputs, 7 numbers; the target are rings."""
    content = read_files("abalone", find("abalone", spec.data_dir))["abalone.data"]
    cells = np.array([line.split(",") for line in content.decode("ascii").split()])
    numbers = cells[:, 1:].astype(np.float64)
    sexes = (cells[:, :1] == np.array(["M", "F", "I"])).astype(np.float64)
    return _regression(spec, "abalone", np.hstack([sexes, numbers[:, :-1]]), numbers[:, -1], 1177)


def open_sinc(spec: SourceSpec) -> Source:
    """Generate sinc: x uniform in [-5, 5]², y = sin|x| / |x|; training targets with Gaussian noise, test ones clean.

    1000 rows each. The noise has the variance 0.1, 10 dB below unit power, as fits the paper. Inputs are not z-scored
    unless asked for.
    """
    given: list[Rows] = []
    streams = np.random.SeedSequence(spec.seed).spawn(2)
    for stream, n_rows in zip(streams, (spec.n_train or SINC_ROWS, SINC_ROWS), strict=True):
        rng = np.random.default_rng(stream)
        X = rng.uniform(-5.0, 5.0, (n_rows, 2))
        radius = np.hypot(X[:, 0], X[:, 1])
        noise = rng.standard_normal(n_rows) * np.sqrt(SINC_NOISE)
        given.append(Rows(X, np.sinc(radius / np.pi) + (0.0 if given else noise)))
    generated = replace(spec, n_train=None, task="regression")
    digests = [digest_rows(one.X) for one in given] + [digest_rows(one.y) for one in given]
    return source_of(generated, "sinc", given, False, {"source": "sinc", "sha256": digests})


def _regression(spec: SourceSpec, name: str, inputs: np.ndarray, targets: np.ndarray, n_test: int) -> Source:
    asked = replace(spec, test_fraction=n_test / len(targets), task=spec.task or "regression")
    identity = {"source": name, "sha256": dict(PUBLISHED[name].files)}
    return source_of(asked, name, [Rows(inputs, targets, keys=row_keys(inputs))], True, identity)


_OPENERS = {
    "digits": open_digits,
    "usps": open_usps,
    "boston": open_boston,
    "abalone": open_abalone,
    "sinc": open_sinc,
}


def open_source(spec: SourceSpec, keeper: Keeper | None = None) -> Source:
    """Open what `spec` describes; kept open in this process for as long as the files keep size and time stamps.

    `keeper` keeps what was found in files; without one the inputs of tables are in memory.

    Raises UsageError for an unknown data set or file type, or more rows asked for than there are; MissingInputError
    where a file is not there; DataError where one is damaged or invalid; UnavailableError where no mirror answers.
    """
    with _opening:  # threads that start together must not each read the same 55 MB
        return _opened(spec, os.environ.get("SLKL_DATA_DIR"), stamp_of(spec), keeper)


def with_copies(source: Source, spec: SourceSpec) -> Source:
    """Return a source with the deformed copies of its training images that `spec` asks for. Raises UsageError."""
    if spec.copies == 1 and spec.deform is None:
        return source
    from features.deformed_copies import copied  # with numba, which data without copies do without

    return copied(source, spec)


@lru_cache(maxsize=2)  # the tasks of a run do not read a file again for every block
def _opened(spec: SourceSpec, data_dir: str | None, stamps: tuple, keeper: Keeper | None) -> Source:
    source = with_copies(_open(spec, keeper), spec)
    if stamp_of(spec) != stamps:
        raise changed(spec)
    return source


def changed(spec: SourceSpec) -> DataError:
    """Return the error for data that do not stay as they were."""
    return DataError(f"{' or '.join(filter(None, (spec.dataset, spec.test)))}: {CHANGED}")


def close_files() -> None:
    """Close the files that this process has open."""
    _opened.cache_clear()


def _open(spec: SourceSpec, keeper: Keeper | None) -> Source:
    if spec.dataset == "mnist":
        return open_mnist(spec, keeper)
    if spec.dataset in NAMED:
        return _OPENERS[spec.dataset](spec)
    path = Path(spec.dataset)
    if is_picture_folder(path):
        from features.pictures import open_pictures  # with what decodes them

        return open_pictures(spec, path, keeper)
    if is_table(path):
        from features.tables.table_source import open_table  # with pyarrow, which takes a while to import

        return open_table(spec, path, keeper)
    if is_of_arrays(path):
        return open_arrays(spec, path, keeper if path.is_dir() else None)
    if path.is_dir() and not is_zarr(path):
        return open_idx(spec, path.resolve().name, idx_files(path, IDX_FILES), keeper)
    raise unknown_data(spec.dataset)


def unknown_data(name: str) -> Exception:
    """Return the error for a name that is none of the data sets, and not the path of data that are read."""
    path = Path(name)
    if is_zarr(path) and path.exists():
        remedy = f"save its arrays as .npy files of one folder: numpy.save('X.npy', zarr.open({path.name!r})['X'])"
        return UsageError(f"{name}: zarr stores are not read; {remedy}")
    if path.exists():
        known = f".npz, a folder of .npy, {KNOWN_TABLES}, an IDX folder, or {KNOWN_PICTURES}"
        return UsageError(f"{name}: file type not known; give {known}")
    if path.suffix or len(path.parts) > 1:
        return MissingInputError(f"{name}: no such file or folder")
    return UsageError(f"data set {name!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")


def stamp_of(spec: SourceSpec) -> tuple:
    """Return sizes and times of the files, so that the same process reads a changed file again.

    Of pictures those of their folders: the content of each is compared whenever it is decoded. Of published data none:
    each of their files has its sha256.
    """
    if spec.dataset in NAMED:
        return ()
    path, stamps = Path(spec.dataset), []
    tops = [path, *([Path(spec.test)] if spec.test else [])]
    if is_picture_folder(path):
        files = [folder for top in tops if top.is_dir() for folder, _, _ in walk(top)]
    else:
        files = [file for top in tops for file in data_files(top)]
    for file in files:
        with suppress(OSError):  # Opening a dangling link will say so.
            stamps.append(stamp(file))
    return tuple(stamps)
