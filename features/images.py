"""Arrays of images: which of them are read, and the one scale on which all become bytes. And IDX files.

The largest value of the training images decides what white is: 2^k - 1, whatever the dtype. So the same images give the
same bytes as uint8, int64 or float32, from 0 to 255 or from 0 to 1.
"""

import gzip
import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from features.errors import DataError, MissingInputError
from features.input_files import KNOWN_PICTURES, open_plain

SCALES = (1.0, 255.0, 1023.0, 4095.0, 16383.0, 65535.0)  # White is 2^k - 1 in images of k bits; cameras have 8 or more.
BYTE_SCALE = 255.0
MOST_BITS = 16
ONE_SCALE = "shift, multiply or divide, so that both are on one scale"
LEAST_FRACTION = 1 / 16  # Images whose largest fraction is smaller are on another scale.
LEAST_FRACTION_OF_BYTES = 127  # So are images whose largest fraction is above 1, and not above this.
N_COLOURS = 3
# The four files of MNIST's layout, without ".gz", and their dimensions.
IDX_PARTS = ("train", "t10k")
IDX_FILES = {
    "train-images-idx3-ubyte": 3,
    "train-labels-idx1-ubyte": 1,
    "t10k-images-idx3-ubyte": 3,
    "t10k-labels-idx1-ubyte": 1,
}


def input_shape(shape: Sequence[int], name: str) -> tuple[int, ...]:
    """Return the shape of one input: (d,), (H, W) of images, with or without one channel, or (H, W, 3) of colour.

    Raises DataError for other shapes.
    """
    sizes = tuple(map(int, shape[1:]))
    if len(sizes) == 3 and 1 in (sizes[0], sizes[2]):
        return sizes[1:] if sizes[0] == 1 else sizes[:2]
    if len(sizes) in (1, 2) or (len(sizes) == 3 and sizes[2] == N_COLOURS):
        return sizes
    remedy = f"{name}.reshape(len({name}), -1) gives columns, {name}.transpose(0, 2, 3, 1) brings channels to the end"
    raise DataError(f"{name} has shape {tuple(shape)}; give (n, d), (n, H, W) or (n, H, W, 3): {remedy}")


def image_scale(name: str, pieces: Iterable[np.ndarray]) -> float:
    """Return the value that is white in images, read piece by piece; NaN and infinity are passed over.

    Raises DataError for images on a scale that is not known: below 0, above 16 bits, so dark that they would be black.
    """
    largest, counts, are_whole = 0.0, np.zeros(MOST_BITS + 1, np.int64), True
    for piece in pieces:
        values = piece[np.isfinite(piece)] if piece.dtype.kind == "f" else piece
        if (least := values.min(initial=0)) < 0:
            raise DataError(f"{name} holds {least:g}, and black is 0; shift and divide images, so that white is 1")
        largest = max(largest, float(values.max(initial=0)))
        if piece.dtype == np.uint8 and largest > 1:
            return BYTE_SCALE
        are_whole = are_whole and (piece.dtype.kind != "f" or not (values % 1).any())
        counts += bit_counts(values)
    return scale_of(name, largest, counts, are_whole=are_whole)


def bit_counts(values: np.ndarray) -> np.ndarray:
    """Return how many values above 0 have each number of bits before the point, (17,) i8."""
    bits = np.frexp(values[values > 0].astype(np.float32))[1]
    return np.bincount(np.clip(bits, 0, MOST_BITS), minlength=MOST_BITS + 1)


def scale_of(name: str, largest: float, counts: np.ndarray, *, are_whole: bool = True) -> float:
    """Return the value of white for pixels with a largest value and `bit_counts`. Raises DataError as `image_scale`.

    More than 8 bits are too dark where most pixels that are not black would have fewer than two bits of a byte.
    """
    scale = next((scale for scale in SCALES if largest <= scale), math.inf)
    told, most = f"{name} has pixels up to {largest:g}", 2 ** int(np.searchsorted(counts.cumsum(), counts.sum() / 2))
    if scale == math.inf:
        raise DataError(f"{told}, more than 16 bits; divide them, so that white is 1 or 255")
    if not are_whole and (0 < largest < LEAST_FRACTION or 1 < largest <= LEAST_FRACTION_OF_BYTES):
        raise DataError(f"{told}, and fractions of them; divide them, so that white is 1")
    if scale > BYTE_SCALE and most * 256 <= 4 * scale:
        told += f", but most are below {most}, which is black beside them"
        raise DataError(f"{told}; make the few that are so bright darker")
    return scale


def scale_of_parts(parts: Sequence[tuple[str, Iterable[np.ndarray]]]) -> float:
    """Return the value of white in the images of parts, by name and in pieces; DataError where they have two scales."""
    scale, *others = (image_scale(name, pieces) for name, pieces in parts)
    for (name, _), other in zip(parts[1:], others, strict=True):
        if other != scale and not BYTE_SCALE < other < scale:
            told = f"{parts[0][0]} has images from 0 to {scale:g}, {name} from 0 to {other:g}"
            raise DataError(f"{told}; {ONE_SCALE}")
    return scale


def to_bytes(images: np.ndarray, scale: float, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return images (n, …) as bytes, where `scale` is white: fractions rounded, the upper 8 of more bits.

    Raises DataError naming the row, one of `rows` (n,), and the pixel of a value that is not from 0 to `scale`.
    """
    if images.dtype == np.uint8 and scale == BYTE_SCALE:
        return images
    flat = images.reshape(len(images), -1)
    if (bad := np.argwhere(~((flat >= 0) & (flat <= scale)))).size:
        row, pixel = bad[0]
        told = f"row {rows[row]}, pixel {pixel} is {flat[row, pixel]:g}"
        if not np.isfinite(flat[row, pixel]):
            raise DataError(f"{told}; fill it in, or leave the image out")
        raise DataError(f"{told}, and the images trained on are from 0 to {scale:g}; {ONE_SCALE}")
    return rescaled(images, scale)


def rescaled(images: np.ndarray, scale: float) -> np.ndarray:
    """Return images as `to_bytes` does, unchecked: values that are not finite become any byte."""
    with np.errstate(invalid="ignore"):
        if scale > BYTE_SCALE:
            return np.floor(images * (256 / (scale + 1))).astype(np.uint8)  # A power of two is an exact factor.
        return np.rint(images * (BYTE_SCALE / scale)).astype(np.uint8)


def check_scale(images: np.ndarray, scale: float) -> None:
    """Raise DataError for images to predict that are on a scale far below that of the training."""
    largest, are_bytes = float(images.max(initial=0)), images.dtype == np.uint8 and scale > BYTE_SCALE
    if are_bytes or 0 < largest <= scale / BYTE_SCALE:
        told = "are bytes" if are_bytes else f"have pixels up to {largest:g}"
        raise DataError(f"images {told}, and those trained on are from 0 to {scale:g}; {ONE_SCALE}")


def idx_files(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return the paths of some of `IDX_FILES` in a folder. Raises MissingInputError naming all that it lacks."""
    found = {name: path for name in names if (path := idx_file(folder, name)) is not None}
    if missing := [name for name in names if name not in found]:
        words = "give MNIST's four IDX files, or"
        raise MissingInputError(f"{folder}: lacks {', '.join(missing)} (raw or .gz); {words} {KNOWN_PICTURES}")
    return found


def idx_file(folder: Path, name: str) -> Path | None:
    """Return the path of one of `IDX_FILES` in a folder, raw or with ``.gz``; None where it is missing."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_idx(path: Path, n_dimensions: int) -> np.ndarray:
    """Read an IDX file, raw or gzip by its first bytes: uint8, images with 3 dimensions or labels with 1.

    The format is big-endian: two zero bytes, a type (8 = unsigned byte, the only one read here), the number of
    dimensions, a uint32 for each, then the bytes in C order.

    Raises FileNotFoundError where there is no such file, DataError where it is damaged, or not as its header says.
    """
    shape, content = _idx_content(path, n_dimensions, None)
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_idx_shape(path: Path, n_dimensions: int) -> tuple[int, ...]:
    """Return the shape that the header of an IDX file promises. Raises as `read_idx`."""
    return _idx_content(path, n_dimensions, 0)[0]


def _idx_content(path: Path, n_dimensions: int, n_bytes: int | None) -> tuple[tuple[int, ...], bytearray]:
    """Return the shape in the header of an IDX file, and so many bytes after it; None: all, as the shape wants."""
    with open_plain(path) as stream:
        is_packed = stream.peek(2).startswith(b"\x1f\x8b")
        try:
            unpacked = gzip.GzipFile(fileobj=stream) if is_packed else stream
            header = unpacked.read(4 + 4 * n_dimensions)
            if n_bytes is None and not is_packed:  # `read` would hold the content twice.
                content = bytearray(path.stat().st_size - len(header))
                stream.readinto(content)
            else:
                content = bytearray(unpacked.read(n_bytes))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: damaged gzip stream, cut short or with bytes after its end ({error})") from error
    shape = tuple(np.frombuffer(header[4:].ljust(4 * n_dimensions, b"\0"), ">u4").tolist())
    is_whole = n_bytes is not None or len(content) == math.prod(shape)
    if header[:4] != bytes((0, 0, 8, n_dimensions)) or not is_whole or 0 in shape:
        told = f"its {len(header + content)} bytes begin with 0x{header[:4].hex()} and promise the shape {shape}"
        raise DataError(f"{path}: is no IDX file of unsigned bytes in {n_dimensions} dimensions; {told}")
    return shape, content
