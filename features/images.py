"""Image sources: MNIST, any folder in MNIST's IDX layout, and scikit-learn's digits; a reader of IDX files."""

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from features import published
from features.errors import DataError, MissingInputError
from features.image_arrays import BYTE_SCALE, rescaled, scale_of_parts
from features.input_files import KNOWN_PICTURES, open_plain
from features.row_draws import row_keys
from features.row_source import LabelledRows, digest_rows, source_of
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
    """Open MNIST: 60 000 and 10 000 images of 28 x 28 bytes, ten classes; 55 MB. Errors as `features.published`."""
    contents = published.read_files("mnist", published.find("mnist", spec.data_dir))
    arrays = {name: _parse_idx(contents[f"{name}.gz"], n, name) for name, n in IDX_FILES.items()}
    return _source_of(spec, "mnist", arrays, are_published=True)


def open_idx_folder(spec: SourceSpec, folder: Path) -> Source:
    """Open a folder with MNIST's four file names, raw or with ``.gz``; any size, any labels. Raises as `read_idx`."""
    arrays = {name: read_idx(path, IDX_FILES[name]) for name, path in idx_files(folder, IDX_FILES).items()}
    return _source_of(spec, folder.resolve().name, arrays)


def idx_files(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return where a folder has some of `IDX_FILES`. Raises MissingInputError with all that it lacks."""
    found = {name: idx_file(folder, name) for name in names}
    if missing := [name for name, path in found.items() if path is None]:
        words = "give MNIST's four IDX files, or"
        raise MissingInputError(f"{folder}: lacks {', '.join(missing)} (raw or .gz); {words} {KNOWN_PICTURES}")
    return {name: path for name, path in found.items() if path is not None}


def idx_file(folder: Path, name: str) -> Path | None:
    """Return where a folder has one of `IDX_FILES`, raw or with ``.gz``; None where it lacks it."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def open_digits(spec: SourceSpec) -> Source:
    """Open scikit-learn's 1797 digits, resized to 28 x 28 bytes and split by seed; no download."""
    from scipy.ndimage import zoom  # slow to import

    # The file of sklearn.datasets.load_digits: to import that takes a second.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), np.uint8, delimiter=",")
    small, labels = rows[:, :-1].reshape(-1, 8, 8) / 16.0, rows[:, -1].astype(np.int64)
    # Cubic splines are linear in the pixels: a matrix (28, 8) for the lines, and the same for the columns.
    resize = zoom(np.eye(8), (DIGITS_SIDE / 8, 1), order=3, mode="grid-constant", grid_mode=True)
    large = resize @ small @ resize.T
    images = np.rint(np.clip(large, 0.0, 1.0) * 255.0).astype(np.uint8)
    # The digest of the pixels, not of a version: a library that resizes differently makes other data.
    identity = {"source": "digits", "sha256": hashlib.sha256(images).hexdigest()}
    given = LabelledRows(images, labels, keys=row_keys(images), scale=BYTE_SCALE)
    return source_of(spec, "digits", [given], False, identity)


def _source_of(spec: SourceSpec, name: str, arrays: dict[str, np.ndarray], *, are_published: bool = False) -> Source:
    digests = {key: digest_rows(array) for key, array in arrays.items()}
    scale = scale_of_parts([(key, arrays[key]) for key in IDX_FILES if IDX_FILES[key] > 1])
    assert scale is not None
    given = []
    for part in ("train", "t10k"):
        images, labels = arrays[f"{part}-images-idx3-ubyte"], arrays[f"{part}-labels-idx1-ubyte"]
        if len(images) != len(labels):
            raise DataError(f"{name}: {part}-images holds {len(images)} images, {part}-labels {len(labels)} labels")
        keys = None if are_published else row_keys(rescaled(images, scale))
        given.append(LabelledRows(images, labels.astype(np.int64), keys=keys, scale=scale))
    return source_of(spec, name, given, False, {"source": "idx", "sha256": digests})


def read_idx(path: Path, n_dimensions: int) -> np.ndarray:
    """Read an IDX file, raw or gzip by its first bytes: uint8, images with 3 dimensions or labels with 1.

    The format is big-endian: two zero bytes, a type (8 = unsigned byte, the only one read here), the number of
    dimensions, a uint32 for each, then the bytes in C order.

    Raises MissingInputError where there is no such file, DataError where it is damaged, or not as its header says.
    """
    try:
        with open_plain(path) as stream:
            return _parse_idx(stream.read(), n_dimensions, str(path))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise MissingInputError(f"{path}: no such file; expected an IDX file") from error


def _parse_idx(content: bytes, n_dimensions: int, name: str) -> np.ndarray:
    try:
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: damaged gzip stream, cut short or with bytes after its end ({error})") from error
    header_bytes, expected = 4 + 4 * n_dimensions, bytes((0, 0, 8, n_dimensions))
    if len(content) < header_bytes:
        raise DataError(f"{name}: ends inside its IDX header ({len(content)} of {header_bytes} bytes)")
    if content[:4] != expected:
        wanted = f"unsigned bytes, {n_dimensions} dimension{'s' if n_dimensions > 1 else ''}"
        raise DataError(f"{name}: IDX magic is 0x{content[:4].hex()}, expected 0x{expected.hex()} ({wanted})")
    shape = struct.unpack(f">{n_dimensions}I", content[4:header_bytes])
    if 0 in shape:
        raise DataError(f"{name}: its IDX header says shape {shape}, which is empty")
    if math.prod(shape) != len(content) - header_bytes:
        told = f"its IDX header promises {math.prod(shape)} bytes"
        raise DataError(f"{name}: {told}, the file holds {len(content) - header_bytes}")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)
