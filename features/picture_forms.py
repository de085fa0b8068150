"""Which pictures are read: a list of formats, and of how their pixels are stored. All others are refused by name.

A form is what Pillow calls the format, the mode of the decoded pixels, and the way in which the file stores them. What
Pillow decodes by halves is not on the list: colour of 16 bits (it keeps 8, whatever is in them), signed pixels (it
takes them for unsigned), and one transparent grey of other than 8 bits (it compares that with other values).
"""

from typing import TYPE_CHECKING, NamedTuple

from features.errors import DataError
from features.input_files import OTHER_PICTURES as OTHER_SUFFIXES
from features.input_files import PICTURE_FORMATS as SUFFIXES

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["OTHER_SUFFIXES", "SUFFIXES"]


class Mode(NamedTuple):
    """What pixels of a mode are, what becomes of them, and the bytes that one takes while it is decoded."""

    pixels: str
    becomes: str
    pixel_bytes: int


MODES = {
    "1": Mode("black and white", "0 or 255", 3),
    "L": Mode("grey of at most 8 bits", "itself; what is transparent, white", 2),
    "I;16": Mode("grey of 16 bits", "the upper 8 of its bits", 10),
    "I;16B": Mode("grey of 16 bits, most significant byte first", "the upper 8 of its bits", 10),
    "I": Mode("grey of more than 8 bits", "the upper 8 of its bits", 14),
    "LA": Mode("grey and alpha", "grey on white", 14),
    "P": Mode("a palette", "its colours; what is transparent, white", 14),
    "RGB": Mode("colour", "itself; what is transparent, white", 12),
    "RGBA": Mode("colour and alpha", "colour on white", 16),
}
PICTURES: dict[tuple[str, str], tuple[str, ...]] = {  # (format, mode): ways in which pixels are stored
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
_NOT_READ = {
    "I": "whole numbers of 32 bits",
    "F": "fractions",
    "CMYK": "inks (CMYK)",
    "LAB": "colours as LAB",
    "YCbCr": "colours as YCbCr",
}
_SAMPLE_FORMAT, _PHOTOMETRIC, _WHITE_IS_0 = 339, 262, 0  # tags of TIFF
_REMEDY = "save it as PNG with pixels from 0 on: grey of 8 or 16 bits, or colour of 8"


def check_form(picture: "Image") -> Mode:
    """Return what an opened picture is. Raises DataError where it is not on the list, or one of several in a file."""
    if picture.format != "MPO" and getattr(picture, "is_animated", False):  # of those the first is the photograph
        raise DataError("has several pictures or pages; save each as a picture of its own")
    kind, stored = "JPEG" if picture.format == "MPO" else str(picture.format), _stored(picture)
    fault = None if stored in PICTURES.get((kind, picture.mode), ()) else _NOT_READ.get(picture.mode, "other pixels")
    if fault and "16" in stored:
        fault = "colour or alpha of 16 bits" if picture.mode[0] in "RL" else "pixels of 16 bits"
    if picture.mode in ("1", *DEEP_MODES) or stored in ("L;2", "L;4"):
        fault = "one transparent grey" if "transparency" in picture.info else fault
    if kind == "TIFF":
        tags = picture.tag_v2  # type: ignore[attr-defined]
        samples = set(tags.get(_SAMPLE_FORMAT, (1,)))
        if tags.get(_PHOTOMETRIC) == _WHITE_IS_0 and not stored.endswith(";I"):
            fault = "0 as white, at more than 8 bits"
        if samples != {1}:
            fault = {2: "signed pixels", 3: "fractions"}.get(min(samples), "other pixels")
    if fault:
        raise DataError(f"has {fault} ({kind}, {picture.mode}, {stored}), which are not read; {_REMEDY}")
    return MODES[picture.mode]


def _stored(picture: "Image") -> str:
    """Return Pillow's name of how the pixels are stored, "" where it has none; of PPM with more than 8 bits ;16."""
    tiles = getattr(picture, "tile", None)
    given = tiles[0][3] if tiles else ""
    name, *more = given if isinstance(given, tuple) else (given,)
    is_deep_ppm = picture.format == "PPM" and bool(more) and isinstance(more[0], int) and more[0] > 255
    return f"{name};16" if is_deep_ppm else name if isinstance(name, str) else ""
