"""Image sources: MNIST, any folder in MNIST's IDX layout, and scikit-learn's digits."""

import hashlib
from pathlib import Path

import numpy as np

from features import published
from features.errors import DataError, MissingInputError
from features.idx import parse_idx
from features.input_files import open_plain
from features.row_source import Examples, source_of
from features.source import Source, SourceSpec

# The four files of MNIST's layout, without ".gz", and their dimensions.
IDX_FILES = {
    "train-images-idx3-ubyte": 3,
    "train-labels-idx1-ubyte": 1,
    "t10k-images-idx3-ubyte": 3,
    "t10k-labels-idx1-ubyte": 1,
}
DIGITS_SIDE = 28


def open_mnist(spec: SourceSpec) -> Source:
    """Open MNIST: 60 000 and 10 000 images of 28 x 28 bytes, ten classes.

    Looked for as `features.published.find` says. Every file's sha256 is checked on every opening. Memory: 55 MB.

    Raises
    ------
    MissingInputError
        `spec.data_dir` lacks a file.
    DataError
        A file has another sha256 than the published one.
    UnavailableError
        The cache is not filled and no mirror answers.
    """
    folder = published.find("mnist", spec.data_dir)
    paths = {name: folder / f"{name}.gz" for name in IDX_FILES}
    expected = {name: published.PUBLISHED["mnist"].files[f"{name}.gz"] for name in IDX_FILES}
    return _open_files(spec, "mnist", paths, expected)


def open_idx_folder(spec: SourceSpec, folder: Path) -> Source:
    """Open a folder with MNIST's four file names, raw or with ``.gz``; any size, any labels.

    Raises
    ------
    MissingInputError
        A file is not there.
    DataError
        A file is damaged, or numbers of images and labels differ.
    """
    paths = {}
    for name in IDX_FILES:
        path = idx_file(folder, name)
        if path is not None:
            paths[name] = path
    missing = [name for name in IDX_FILES if name not in paths]
    if missing:
        raise MissingInputError(
            f"{folder}: lacks {', '.join(missing)} (raw or .gz); an image folder needs MNIST's four IDX files"
        )
    return _open_files(spec, folder.resolve().name, paths, {})


def idx_file(folder: Path, name: str) -> Path | None:
    """Return where a folder has one of `IDX_FILES`, raw or with ``.gz``; None where it lacks it."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def open_digits(spec: SourceSpec) -> Source:
    """Open scikit-learn's 1797 digits, resized to 28 x 28 bytes and split by seed; no download."""
    # Imported here: for these two, slow to import, only whoever reads the digits shall wait.
    from skimage.transform import resize
    from sklearn.datasets import load_digits

    data = load_digits()
    small = data.images / 16.0
    large = resize(small, (len(small), DIGITS_SIDE, DIGITS_SIDE), order=3, mode="constant", anti_aliasing=False)
    images = np.rint(np.clip(large, 0.0, 1.0) * 255.0).astype(np.uint8)
    # The digest of the pixels, not of a version: a library that resizes differently makes other data.
    identity = {"source": "digits", "sha256": hashlib.sha256(images).hexdigest()}
    return source_of(spec, "digits", [Examples(images, data.target.astype(np.int64))], False, identity)


def _open_files(spec: SourceSpec, name: str, paths: dict[str, Path], expected: dict[str, str]) -> Source:
    arrays, digests = {}, {}
    for key, path in paths.items():
        arrays[key], digests[key] = _read_checked(path, IDX_FILES[key], expected.get(key))
    examples = []
    for part in ("train", "t10k"):
        images, labels = arrays[f"{part}-images-idx3-ubyte"], arrays[f"{part}-labels-idx1-ubyte"]
        if len(images) != len(labels):
            raise DataError(f"{name}: {part}-images holds {len(images)} images, {part}-labels {len(labels)} labels")
        examples.append(Examples(images, labels.astype(np.int64)))
    return source_of(spec, name, examples, False, {"source": "idx", "sha256": digests})


def _read_checked(path: Path, n_dimensions: int, expected: str | None) -> tuple[np.ndarray, str]:
    """Read one file after comparing its sha256, taken from the same open file."""
    with open_plain(path) as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        if expected is not None:
            published.check_digest(path, sha256, expected)
        stream.seek(0)
        return parse_idx(stream, n_dimensions, str(path)), sha256
