"""Image sources: MNIST, any folder in MNIST's IDX layout, and scikit-learn's digits."""

import hashlib
import os
from pathlib import Path

import numpy as np

from features.errors import DataError, MissingInputError
from features.idx import parse_idx
from features.rows import RowSource, parts_source, split_source
from features.sources import SourceSpec

# File name without ".gz" → (dimensions, sha256 of the published gzip file).
MNIST_FILES = {
    "train-images-idx3-ubyte": (3, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1-ubyte": (1, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3-ubyte": (3, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1-ubyte": (1, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
DIGITS_SIDE = 28


def open_mnist(spec: SourceSpec) -> RowSource:
    """Open MNIST: 60 000 and 10 000 images of 28 x 28 bytes, ten classes.

    Looked for in `spec.data_dir` or its folder ``mnist``; without `data_dir` in the folder that the
    environment variable SLKL_DATA_DIR names, likewise; else in a per-user cache that mirrors fill. Every
    file's sha256 is checked on every opening. Memory: 55 MB.

    Raises
    ------
    MissingInputError
        `spec.data_dir` lacks a file.
    DataError
        A file has another sha256 than the published one.
    UnavailableError
        The cache is not filled and no mirror answers.
    """
    folder = _mnist_folder(spec.data_dir)
    if folder is None:
        from features.downloads import fetch_mnist

        folder = fetch_mnist({f"{name}.gz": sha256 for name, (_, sha256) in MNIST_FILES.items()})
    paths = {name: folder / f"{name}.gz" for name in MNIST_FILES}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise MissingInputError(f"mnist: {folder} lacks {', '.join(missing)}; copy them there or leave out --data-dir")
    return _open_files(spec, "mnist", paths, {name: sha256 for name, (_, sha256) in MNIST_FILES.items()})


def open_idx_folder(spec: SourceSpec, folder: Path) -> RowSource:
    """Open a folder with MNIST's four file names, raw or with ``.gz``; any size, any labels.

    Raises
    ------
    MissingInputError
        A file is not there.
    DataError
        A file is damaged, or numbers of images and labels differ.
    """
    paths = {}
    for name in MNIST_FILES:
        found = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
        if found:
            paths[name] = found[0]
    missing = [name for name in MNIST_FILES if name not in paths]
    if missing:
        raise MissingInputError(
            f"{folder}: lacks {', '.join(missing)} (raw or .gz); an image folder needs MNIST's four IDX files"
        )
    return _open_files(spec, folder.resolve().name, paths, {})


def open_digits(spec: SourceSpec) -> RowSource:
    """Open scikit-learn's 1797 digits, resized to 28 x 28 bytes and split by seed; no download."""
    from skimage.transform import resize
    from sklearn.datasets import load_digits

    data = load_digits()
    small = data.images / 16.0
    large = resize(small, (len(small), DIGITS_SIDE, DIGITS_SIDE), order=3, mode="constant", anti_aliasing=False)
    images = np.rint(np.clip(large, 0.0, 1.0) * 255.0).astype(np.uint8)
    # The digest of the pixels, not of a version: a library that resizes differently makes other data.
    identity = {"source": "digits", "sha256": hashlib.sha256(images).hexdigest()}
    return split_source(spec, "digits", images, data.target.astype(np.int64), False, identity)


def _mnist_folder(data_dir: str | None) -> Path | None:
    """Return the folder to read MNIST from, or None where the cache is to be used."""
    given = data_dir if data_dir is not None else os.environ.get("SLKL_DATA_DIR")
    if not given:
        return None
    for folder in (Path(given), Path(given) / "mnist"):
        if any((folder / f"{name}.gz").is_file() for name in MNIST_FILES):
            return folder
    if data_dir is None:
        return None  # SLKL_DATA_DIR may well hold other data sets only
    wanted = ", ".join(f"{name}.gz" for name in MNIST_FILES)
    raise MissingInputError(f"mnist: neither {given} nor {Path(given) / 'mnist'} holds {wanted}; copy them there")


def _open_files(spec: SourceSpec, name: str, paths: dict[str, Path], expected: dict[str, str]) -> RowSource:
    arrays, digests = {}, {}
    for key, path in paths.items():
        arrays[key], digests[key] = _read_checked(path, MNIST_FILES[key][0], expected.get(key))
    for part in ("train", "t10k"):
        n_images, n_labels = (
            len(arrays[f"{part}-images-idx3-ubyte"]),
            len(arrays[f"{part}-labels-idx1-ubyte"]),
        )
        if n_images != n_labels:
            raise DataError(f"{name}: {part}-images holds {n_images} images, {part}-labels {n_labels} labels")
    inputs = (arrays["train-images-idx3-ubyte"], arrays["t10k-images-idx3-ubyte"])
    labels = (
        arrays["train-labels-idx1-ubyte"].astype(np.int64),
        arrays["t10k-labels-idx1-ubyte"].astype(np.int64),
    )
    return parts_source(spec, name, inputs, labels, False, {"source": "idx", "sha256": digests})


def _read_checked(path: Path, n_dimensions: int, expected: str | None) -> tuple[np.ndarray, str]:
    """Read one file after comparing its sha256, taken from the same open file."""
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
        if expected is not None and found != expected:
            raise DataError(f"{path}: sha256 is {found}, expected {expected}; delete the file and get it again")
        stream.seek(0)
        return parse_idx(stream, n_dimensions, str(path)), found
