"""Folders of pictures, a folder for each class: read once to check and hash them, then decoded block by block.

Pillow decodes them, as it does for scikit-image and imageio. It is called directly: that takes a sixth of the time for
small pictures and a twentieth to resize large ones, lets other threads go on, and decodes the very bytes that were
hashed.

Only forms on a list are read (`PICTURES`): Pillow's name of the format, the mode of the decoded pixels, and the way in
which the file stores them. The list lacks forms that Pillow decodes wrongly: colour of 16 bits (it keeps 8, whatever is
in them), signed pixels (it takes them for unsigned), and one transparent grey of other than 8 bits (it compares that
with other values).
"""

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageOps

from features.errors import CHANGED, DataError, UnavailableError
from features.images import BYTE_SCALE, bit_counts, rescaled, scale_of
from features.input_files import (
    OTHER_PICTURES,
    PICTURE_FORMATS,
    PictureList,
    check_classes,
    class_of,
    open_plain,
    part_folders,
    pictures_below,
)
from features.row_draws import RowKeys, row_keys
from features.rows import Rows, Some
from features.source import PARTS, Keeper, Source, SourceSpec, Tick, first_reading, source_of
from features.targets import check_spellings
from features.words import counted, shown

LUMINANCE = (0.2125, 0.7154, 0.0721)  # Rec. 709 and scikit-image's rgb2gray have these weights of red, green and blue.
LARGEST_SIDE = 128  # Larger pictures are shrunk to as many pixels a side, unless a size is asked for.
MOST_PIXELS, MOST_FILE_BYTES = 1 << 26, 1 << 28
Image.MAX_IMAGE_PIXELS = None  # Pillow would warn of pictures that `MOST_PIXELS` refuses.
LARGE_BYTES = 1 << 25  # A picture that takes more while it is decoded is decoded alone.
GAP_BYTES = 512  # A block of a disk has as many; pictures of one colour may have as many zeros in a row.
BLOCK_BYTES = 4 << 20  # Pixels that are decoded at once take about as much.
TOGETHER = 32  # A thread decodes as many pictures in one go.
THREADS = min(4, len(os.sched_getaffinity(0)))
MOST_NAMED = 20  # An error names no more pictures for each reason.
_TURNED = 274  # This tag of Exif says how a camera was held.
_SCAN, _END = b"\xff\xda", b"\xff\xd9"  # The pixels of a JPEG begin and end with these, and hold neither.
JPEGS = ("JPEG", "MPO")
LOSSY = (*JPEGS, "WEBP")  # Grey pixels of these formats may come out with a little colour.
LEAST_COLOUR = {True: 4, False: 1}  # Channels of a coloured pixel differ by as much, in lossy formats and in others.
_alone = Lock()
# Bytes that a pixel of a mode takes while it is decoded.
PIXEL_BYTES = {"1": 3, "L": 2, "I;16": 10, "I;16B": 10, "I": 14, "LA": 14, "P": 14, "RGB": 12, "RGBA": 16}
PICTURES: dict[tuple[str, str], tuple[str, ...]] = {  # The ways to store pixels, by (format, mode).
    ("PNG", "1"): ("1",),
    ("PNG", "L"): ("L;2", "L;4", "L"),
    ("PNG", "I;16"): ("I;16B",),
    ("PNG", "LA"): ("LA",),
    ("PNG", "P"): ("P;1", "P;2", "P;4", "P"),
    ("PNG", "RGB"): ("RGB",),
    ("PNG", "RGBA"): ("RGBA",),
    ("JPEG", "L"): ("L",),
    ("JPEG", "RGB"): ("RGB",),
    ("BMP", "1"): ("1",),
    ("BMP", "L"): ("L",),
    ("BMP", "P"): ("P;4", "P"),
    ("BMP", "RGB"): ("BGR", "BGRX"),
    ("TIFF", "1"): ("1", "1;I"),
    ("TIFF", "L"): ("L", "L;I"),
    ("TIFF", "I;16"): ("I;16", "I;16N"),
    ("TIFF", "I;16B"): ("I;16B",),
    ("TIFF", "LA"): ("LA",),
    ("TIFF", "P"): ("P",),
    ("TIFF", "RGB"): ("RGB", "R"),
    ("TIFF", "RGBA"): ("RGBA", "RGBa"),
    ("PPM", "1"): ("1;I",),
    ("PPM", "L"): ("L",),
    ("PPM", "I"): ("I;16B", "L;16"),
    ("PPM", "RGB"): ("RGB",),
    ("WEBP", "RGB"): ("",),
    ("WEBP", "RGBA"): ("",),
    ("GIF", "L"): ("",),
    ("GIF", "P"): ("",),
}
GREY_MODES, DEEP_MODES = ("1", "L", "I;16", "I;16B", "I"), ("I;16", "I;16B", "I")
_SAMPLE_FORMAT, _PHOTOMETRIC, _WHITE_IS_0 = 339, 262, 0  # Two tags of TIFF, and a value of the second.
_REMEDY = "save it as PNG with pixels from 0 on: grey of 8 or 16 bits, or colour of 8"


class Decoded(NamedTuple):
    """A picture that was read from a file."""

    pixels: NDArray[np.uint8]  # (H, W) or (H, W, 3)
    sha256: NDArray[np.uint64]  # (4,): that of the file
    n_bytes: int  # what decoding took
    has_gap: bool  # whether zeros stand in a row in a JPEG, as where a block of a disk was lost


@dataclass(frozen=True)
class Decoder:
    """Decodes files to pictures of one size, (height, width), to which others are stretched.

    Pictures are grey by luminance unless in `colour`. Transparent pixels are on white; a picture is turned as its
    camera says; pixels of 16 bits become bytes, with `scale` as white.
    """

    size: tuple[int, int]
    colour: bool = False
    scale: float = BYTE_SCALE

    @classmethod
    def of(cls, shape: Sequence[int], scale: float) -> "Decoder":
        """Return the decoder to pictures of a shape, (height, width) or (height, width, 3); scale: what is white."""
        return cls((shape[0], shape[1]), len(shape) > 2, max(scale, BYTE_SCALE))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.size, 3) if self.colour else self.size

    def read(self, path: Path) -> Decoded:
        """Return the picture of a file. Raises whatever decoders do, UnavailableError where the disk fails."""
        with open_plain(path) as stream:
            if os.fstat(stream.fileno()).st_size > MOST_FILE_BYTES:
                raise DataError(f"has more than {MOST_FILE_BYTES >> 20} MiB; save a smaller one")
            content = stream.read()
        picture = _opened(io.BytesIO(content))
        if picture.format == "PNG":
            Image.open(io.BytesIO(content), formats=("PNG",)).verify()  # It compares checksums.
        has_gap = picture.format in JPEGS and bytes(GAP_BYTES) in _scan_of(content)
        picture.draft(None, (2 * max(self.size),) * 2)  # A JPEG far larger is decoded at a half, quarter or eighth.
        n_bytes = len(content) + PIXEL_BYTES[picture.mode] * picture.width * picture.height
        with _room(n_bytes):
            pixels = self.pixels(picture)
        return Decoded(pixels, np.frombuffer(hashlib.sha256(content).digest(), "<u8"), n_bytes, has_gap)

    def pixels(self, picture: Image.Image) -> NDArray[np.uint8]:
        """Return the pixels (H, W), or (H, W, 3) in colour, of an opened picture."""
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode in DEEP_MODES:
            values = np.asarray(picture)
            if (largest := values.max()) > self.scale:
                raise DataError(f"has pixels up to {largest}, those of the training part are up to {self.scale:g}")
            picture = Image.fromarray(rescaled(values, self.scale))
        picture = _on_white(picture)
        if self.colour:
            picture = picture.convert("RGB")
        elif picture.mode != "L":
            picture = picture.convert("RGB").convert("L", matrix=(*LUMINANCE, 0.0))
        if picture.size != self.size[::-1]:  # A triangle as wide as a new pixel leaves no aliases.
            picture = picture.resize(self.size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(picture)


def _scan_of(content: bytes) -> bytes:
    """Return the stored pixels of the first picture in a JPEG. Raises DataError where they do not end."""
    begin = 2
    while (
        content[begin : begin + 1] == b"\xff" and content[begin : begin + 2] != _SCAN
    ):  # Headers may hold a thumbnail.
        is_filled = content[begin + 1 : begin + 2] == b"\xff"
        begin += 1 if is_filled else 2 + int.from_bytes(content[begin + 2 : begin + 4])
    end = content.find(_END, begin)
    if end < 0:
        raise DataError("ends before its last pixel; copy it again")
    return content[begin:end]


def _room(n_bytes: int) -> AbstractContextManager[Any]:
    """Return the context to decode a picture that takes so many bytes: large ones are decoded one by one."""
    return _alone if n_bytes > LARGE_BYTES else nullcontext()


def _on_white(picture: Image.Image) -> Image.Image:
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("L") if picture.mode == "1" else picture


def _opened(stream: Any) -> Image.Image:
    """Return a picture with only its head read. Raises DataError where it is too large, or in no known form."""
    picture = Image.open(stream, formats=tuple(PICTURE_FORMATS))
    if picture.width * picture.height > MOST_PIXELS:
        told = f"has {picture.width} x {picture.height} pixels, at most {MOST_PIXELS >> 20} million are read"
        raise DataError(f"{told}; save a smaller one")
    check_form(picture)
    return picture


def check_form(picture: Image.Image) -> None:
    """Raise DataError where an opened picture is not on the list, or one of several in a file."""
    if picture.format != "MPO" and getattr(picture, "is_animated", False):  # The first of an MPO is the photograph.
        raise DataError("has several pictures or pages; save each as a picture of its own")
    kind, stored = "JPEG" if picture.format == "MPO" else str(picture.format), _stored(picture)
    fault = "" if stored in PICTURES.get((kind, picture.mode), ()) else "other pixels"
    if (picture.mode in ("1", *DEEP_MODES) or stored in ("L;2", "L;4")) and "transparency" in picture.info:
        fault = "one transparent grey"
    if kind == "TIFF":
        tags = picture.tag_v2  # type: ignore[attr-defined]
        if tags.get(_PHOTOMETRIC) == _WHITE_IS_0 and not stored.endswith(";I"):
            fault = "0 as white, at more than 8 bits"
        samples = max(tags.get(_SAMPLE_FORMAT, (1,)))
        fault = fault if samples == 1 else {2: "signed pixels", 3: "fractions"}.get(samples, "other pixels")
    if fault:
        raise DataError(f"has {fault} (in Pillow {kind}, {picture.mode}, {stored}), which are not read; {_REMEDY}")


def _stored(picture: Image.Image) -> str:
    """Return Pillow's name of how the pixels are stored, "" where it has none; with ;16 for PPM of over 8 bits."""
    tiles = getattr(picture, "tile", None)
    given = tiles[0][3] if tiles else ""
    name, *more = given if isinstance(given, tuple) else (given,)
    is_deep_ppm = picture.format == "PPM" and bool(more) and isinstance(more[0], int) and more[0] > 255
    return f"{name};16" if is_deep_ppm else name if isinstance(name, str) else ""


def _each(work: Callable[[Path], Any], paths: Sequence[Path]) -> Iterator[Any]:
    """Yield the result of `work` for each file, by a few threads, or as text the reason why it cannot be read."""

    def tried(path: Path) -> Any:
        try:
            return work(path)
        except (UnavailableError, MemoryError):
            raise
        except Exception as error:  # Decoders raise whatever they like.
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if "cannot identify" in said:
                return "is no picture that can be read; save it as PNG"
            is_told = isinstance(error, DataError) or getattr(error, "filename", None)  # Else a decoder says it.
            return said if is_told else f"is damaged: {said}"

    pieces = (paths[begin : begin + TOGETHER] for begin in range(0, len(paths), TOGETHER))
    for done in _pool(os.getpid()).map(lambda piece: list(map(tried, piece)), pieces):
        yield from done


@lru_cache(maxsize=1)
def _pool(_: int) -> ThreadPoolExecutor:
    """Return the threads of a process, which all readers share: they bound how many pictures are decoded at once."""
    return ThreadPoolExecutor(THREADS, "pictures")


@dataclass(frozen=True, eq=False)
class ReadPictures:
    """What the first reading of a folder found."""

    names: Sequence[str]  # paths of the pictures in the folder
    checks: NDArray[np.uint64]  # (n,): the first number of the sha256 of each
    keys: RowKeys  # (n,): keys of the pixels
    shape: Sequence[int]  # (height, width) or (height, width, 3) of each picture
    scale: float  # what is white in pictures with more than 8 bits, else 255
    sha256: str  # the digest of names, files and pixels
    decoding_bytes: int  # what decoding the largest picture takes
    notes: Sequence[str]  # files that were passed over, and how pictures were resized
    warnings: Sequence[str]  # pictures that may be damaged


class Pictures:
    """The pictures of files: an array-like (n, ...) u1 whose rows a few threads decode when they are read.

    found: what a first reading found, None without one. Reading raises DataError where a file has changed since; where
    a picture cannot be read, it names all of the folder that cannot.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, folder: Path, names: NDArray[Any], decoder: Decoder, found: ReadPictures | None = None) -> None:
        self._folder, self._names, self._decoder = folder, names, decoder
        self._checks = None if found is None else found.checks
        self.shape = (len(names), *decoder.shape)
        self.nbytes = 0 if found is None else names.nbytes + found.checks.nbytes
        largest = 0 if found is None else found.decoding_bytes  # Each thread decodes one picture, unless it is large.
        self.decoding_bytes = largest + (THREADS - 1) * min(largest, LARGE_BYTES)

    def __getitem__(self, rows: Some) -> NDArray[np.uint8]:
        rows = np.arange(len(self._names))[rows]
        pixels = np.empty((len(rows), *self._decoder.shape), np.uint8)
        paths = [self._folder / str(self._names[row]) for row in rows.tolist()]
        for k, found in enumerate(_each(self._decoder.read, paths)):
            if isinstance(found, str) and self._checks is None:
                decode_all(self._folder, [*map(str, self._names)], self._decoder)  # It names all that are bad.
            if isinstance(found, str) or (self._checks is not None and found.sha256[0] != self._checks[rows[k]]):
                raise DataError(f"{paths[k]}: {CHANGED}")
            pixels[k] = found.pixels
        return pixels


def open_pictures(spec: SourceSpec, folder: Path, keeper: Keeper | None = None) -> Source:
    """Open a folder of pictures; `spec.test` is the one of the test part, in place of DIR/test.

    In colour where one of the training part is. The names of the class folders are labels: whole numbers if all are,
    words otherwise. Sizes that differ become `spec.size`, by default the median height and width of the pictures to
    train on, at most 128 pixels. Memory is some 100 bytes a picture, and what the threads decode.

    Raises DataError with all pictures that cannot be read, unless `spec.skip_bad`, for class folders without pictures,
    pictures outside of them, and a class that only the test part has; MissingInputError.
    """
    parts = part_folders(folder)
    if not parts:
        check_classes(folder)
    folders = [parts.get("train", folder), *(parts[part] for part in parts if part == "test")]
    folders[1:] = folders[1:] if spec.test is None else [Path(spec.test)]
    size = None if spec.size is None else tuple(map(int, spec.size.split("x")))
    read, given = list[ReadPictures](), list[Rows]()
    for path in folders:
        asked = Decoder.of(read[0].shape, read[0].scale) if read else size
        found = _found(path, asked, keeper, skip_bad=spec.skip_bad)
        labels, names = np.array(list(map(class_of, found.names))), np.array(found.names, np.dtypes.StringDType())
        pictures = Pictures(path, names, Decoder.of(found.shape, found.scale), found)
        given.append(Rows(pictures, labels, keys=found.keys, names=names))
        read.append(found)
    classes = np.unique(given[0].y)
    task = spec.task or ("binary" if len(classes) == 2 else "multiclass")
    if task != "regression":
        check_spellings(classes, str(folders[0]), lambda k: f"the folder {classes[k]}")
        if unknown := np.setdiff1d(given[-1].y, classes).tolist():
            remedy = f"correct its name, or, where it is no class, train on {folders[0]} and predict {folders[-1]}"
            raise DataError(f"{folders[-1]}: has the class {unknown[0]}, which {folders[0]} lacks; {remedy}")
    if all(one.removeprefix("-").isdecimal() and len(one) < 19 and str(int(one)) == one for one in classes.tolist()):
        given = [replace(rows, y=rows.y.astype(np.int64)) for rows in given]
    sha256s: Any = {part: one.sha256 for part, one in zip(PARTS, read, strict=False)}
    sha256s = sha256s if len(read) > 1 else read[0].sha256
    identity = {"source": "pictures", "shape": tuple(read[0].shape), "sha256": sha256s}
    spec, called = replace(spec, task=task), [*map(str, folders)]
    source = source_of(spec, folder.resolve().name, given, False, identity, BYTE_SCALE, called)
    notes = [note for one in read for note in one.notes]
    warnings = tuple(warning for one in read for warning in one.warnings)
    return replace(source, image_scale=read[0].scale, notes=(*notes, *source.notes), warnings=warnings)


def _found(
    folder: Path, asked: "Decoder | tuple[int, ...] | None", keeper: Keeper | None, *, skip_bad: bool
) -> ReadPictures:
    """Return what is known of a folder, or read it now.

    asked: the decoder of the training part; for that part itself the size asked for, or None.
    """
    listed = pictures_below(folder)
    if outside := [name for name in listed.names if "/" not in name]:
        told = f"has pictures that are in no folder of a class: {shown(outside, MOST_NAMED)}"
        raise DataError(f"{folder}: {told}; put each into a folder with its class, or predict those without one")
    others = [name for name in listed.others if name.lower().endswith(OTHER_PICTURES)]
    if others and not skip_bad:
        remedy = "convert them to .png, or leave them out with `data.skip_bad=true`"
        raise DataError(f"{folder}: has pictures of formats that are not read: {shown(others, MOST_NAMED)}; {remedy}")
    if listed.empty or not listed.names:
        told = f"has folders of classes without pictures that are read: {shown(listed.empty) or 'all'}"
        raise DataError(f"{folder}: {told}; convert pictures to .png, and take folders that are no class elsewhere")
    read_now = partial(_read, folder, listed, asked, skip_bad=skip_bad)
    request = {"pictures": repr(asked), "skip_bad": skip_bad, "pillow": PIL.__version__}
    return first_reading(keeper, folder, partial(_files_in, folder), request, read_now, ReadPictures)


def _files_in(folder: Path) -> list[Path]:
    return [file for name in pictures_below(folder).names if (file := folder / name).exists()]


def _read(
    folder: Path, listed: PictureList, asked: "Decoder | tuple[int, ...] | None", tick: Tick, *, skip_bad: bool
) -> ReadPictures:
    notes = list[str]()
    if listed.others:
        notes.append(f"{folder.name}: files that are no pictures are passed over: {shown(listed.others, MOST_NAMED)}")
    looks = _looks_at(folder, listed.names, tick)
    decoder = asked if isinstance(asked, Decoder) else _decoder_for(folder, looks, asked, notes)
    height, width = decoder.size
    sizes = {look[:2] for look in looks.values()}
    if sizes - {(height, width)}:
        told = f"{len(sizes)} sizes" if len(sizes) > 1 else "{} x {} pixels".format(*sizes.pop())
        notes.append(f"pictures of {told} are resized to {height} x {width} (`features.size={height}x{width}`)")
    found = decode_all(folder, listed.names, decoder, tick, skip_bad=skip_bad)
    if lacking := set(map(class_of, listed.names)) - set(map(class_of, found.names)):
        none = shown(sorted(lacking), MOST_NAMED)
        raise DataError(f"{folder}: no picture of {none} can be read; mend or convert them")
    return replace(found, notes=(*notes, *found.notes))


def _decoder_for(folder: Path, looks: Mapping[str, "Look"], size: tuple[int, ...] | None, notes: list[str]) -> Decoder:
    coloured = [name for name, look in looks.items() if look.is_in_colour]
    if coloured:
        notes.append(f"{folder.name}: in colour: {shown(coloured, 1)} of {len(looks)} pictures, and all are read so")
    scale, counts = BYTE_SCALE, [look.counts for look in looks.values() if look.counts is not None]
    if counts:
        largest = max(look.largest for look in looks.values())
        scale = max(scale_of(f"{folder}: files of 16 bits", largest, np.sum(counts, axis=0)), BYTE_SCALE)
        told = f"{counted(len(counts), 'picture')} of 16 bits"
        notes.append(f"{told}: up to {largest:g}, read so that {scale:g} is white")
    height, width = size[:2] if size else _median_size(list(looks.values()))
    return Decoder((height, width), bool(coloured), scale)


def decode_all(
    folder: Path, listed: list[str], decoder: Decoder, tick: Tick = lambda n_rows: None, *, skip_bad: bool = False
) -> ReadPictures:
    """Read all pictures. Raises DataError naming those that cannot be read; `skip_bad` leaves them out, with a note."""
    paths, names, bad = [folder / name for name in listed], list[str](), dict[str, list[str]]()
    gaps = list[str]()
    read, digest, keys = list[tuple[np.uint64, int]](), hashlib.sha256(), list[RowKeys]()
    together = max(1, BLOCK_BYTES // math.prod(decoder.shape))
    for begin in range(0, len(paths), together):
        block, pixels = paths[begin : begin + together], list[NDArray[np.uint8]]()
        for k, found in enumerate(_each(decoder.read, block), begin):
            if isinstance(found, str):
                bad.setdefault(found, []).append(str(paths[k]))
                continue
            names.append(listed[k])
            gaps += [listed[k]] if found.has_gap else []
            read.append((found.sha256[0], found.n_bytes))
            pixels.append(found.pixels)
            digest.update(f"{names[-1]}\0".encode() + found.sha256.tobytes() + found.pixels.tobytes())
        keys += [row_keys(np.stack(pixels))] if pixels else []
        tick(len(block))
    n_bad = len(paths) - len(names)
    told = ", ".join(f"{shown(of_reason, MOST_NAMED)} ({reason})" for reason, of_reason in bad.items())
    if bad and not (skip_bad and names):
        remedy = "mend or convert them" + ("" if skip_bad else ", or leave them out with `data.skip_bad=true`")
        raise DataError(f"{n_bad} of {len(paths)} pictures cannot be read: {told}; {remedy}")
    notes = (f"{counted(n_bad, 'picture')} left out, which cannot be read: {told}",) if bad else ()
    what = f"pictures with zeros among their pixels, which may be damage: {shown(gaps, MOST_NAMED)}; look at them"
    warnings = (what,) if gaps else ()
    checks, n_bytes = zip(*read, strict=True)
    arrays = np.array(checks, np.uint64), np.concatenate(keys)
    return ReadPictures(names, *arrays, decoder.shape, decoder.scale, digest.hexdigest(), max(n_bytes), notes, warnings)


class Look(NamedTuple):
    """The size of a picture, turned as its camera says; whether it is in colour; the range of pixels of 16 bits."""

    height: int
    width: int
    is_in_colour: bool = False
    largest: float = 0.0
    counts: NDArray[np.int64] | None = None


def _looks_at(folder: Path, names: Sequence[str], tick: Tick) -> dict[str, Look]:
    looks = dict[str, Look]()
    for begin in range(0, len(names), together := 64 * TOGETHER):
        some = names[begin : begin + together]
        found = zip(some, _each(_look, [folder / name for name in some]), strict=True)
        looks |= {name: look for name, look in found if not isinstance(look, str)}
        tick(0)
    return looks


def _look(path: Path) -> Look:
    """Return what the head of a picture tells, or its pixels where they matter: for those a small JPEG is enough."""
    with open_plain(path) as stream:
        picture = _opened(stream)
        is_known = picture.format == "TIFF" or (picture.format == "PNG" and "exif" not in picture.info)
        is_turned = not is_known and picture.getexif().get(_TURNED, 1) > 4  # Else Pillow decodes a whole PNG.
        look = Look(*(picture.size if is_turned else picture.size[::-1]))
        if picture.mode in GREY_MODES and picture.mode not in DEEP_MODES:
            return look
        picture.draft(None, (LARGEST_SIDE, LARGEST_SIDE))
        with _room(PIXEL_BYTES[picture.mode] * picture.width * picture.height):
            if picture.mode in DEEP_MODES:
                values = np.asarray(picture)
                return look._replace(largest=float(values.max()), counts=bit_counts(values))
            pixels = np.asarray(_on_white(picture).convert("RGB"))
            most = int(np.ptp(pixels, axis=2).max())
            return look._replace(is_in_colour=most >= LEAST_COLOUR[picture.format in LOSSY])


def _median_size(looks: Sequence[Look]) -> tuple[int, int]:
    height, width = np.median(np.array([look[:2] for look in looks] or [(1, 1)]), axis=0).tolist()
    shrunk = min(1.0, LARGEST_SIDE / max(height, width))
    return max(1, round(shrunk * height)), max(1, round(shrunk * width))
