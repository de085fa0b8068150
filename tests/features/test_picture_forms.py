"""Each form of pictures on the list is read as numpy, tifffile or Pillow wrote its pixels; others are refused."""

import io
import runpy
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from skimage.color import rgb2gray, rgba2rgb
from skimage.transform import resize

from features.pictures import DEEP_MODES, PICTURES, Decoder, _each, _look, _stored

Pixels = np.ndarray[Any, np.dtype[Any]]
GREY = np.rint(np.outer(np.hanning(70)[:40], np.hanning(90)[:60]) * 255).astype(np.uint8)
RGB = np.stack([GREY, GREY[::-1], 255 - GREY], axis=2)
RGBA = np.dstack([RGB, GREY.T.reshape(40, 60)])
DEEP = GREY * np.uint16(257)
PALETTE = np.random.default_rng(0).integers(0, 256, (256, 3), np.uint8)


def packed(values: Pixels, bits: int) -> Pixels:
    """Return rows of numbers of so many bits as bytes, most significant first."""
    if bits == 16:
        return values.astype(">u2").view(np.uint8).reshape(len(values), -1)
    digits = np.unpackbits(values.reshape(len(values), -1, 1).astype(np.uint8), axis=2)[..., 8 - bits :]
    return np.packbits(digits.reshape(len(values), -1), axis=1)


def png(kind: int, bits: int, values: Pixels, *more: tuple[bytes, bytes]) -> bytes:
    rows = b"".join(b"\0" + row.tobytes() for row in packed(values, bits))
    head = struct.pack(">IIBBBBB", values.shape[1], len(values), bits, kind, 0, 0, 0)
    chunks = [(b"IHDR", head), *more, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    pieces = (struct.pack(">I", len(body)) + name + body for name, body in chunks)
    sums = (struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(piece + sum_ for piece, sum_ in zip(pieces, sums, strict=True))


def bmp(bits: int, values: Pixels, palette: Pixels | None = None) -> bytes:
    rows = packed(values, bits) if bits < 24 else values.reshape(len(values), -1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))[::-1]
    colours = b"" if palette is None else np.pad(palette[: 2**bits, ::-1], ((0, 0), (0, 1))).tobytes()
    begin = 54 + len(colours)
    head = b"BM" + struct.pack("<IHHI", begin + rows.size, 0, 0, begin)
    return (
        head
        + struct.pack("<IiiHHIIiiII", 40, values.shape[1], len(values), 1, bits, *[0] * 6)
        + colours
        + rows.tobytes()
    )


def tif(values: Pixels, photometric: str = "minisblack", **options: Any) -> bytes:
    tifffile.imwrite(stream := io.BytesIO(), values, photometric=photometric, **options)
    return stream.getvalue()


def pnm(kind: str, values: Pixels, most: int = 255) -> bytes:
    return f"{kind} {values.shape[1]} {len(values)} {most}\n".encode() + values.tobytes()


def saved(values: Pixels, kind: str, palette: Pixels | None = None, **options: Any) -> bytes:
    picture = Image.fromarray(values)
    if palette is not None:
        picture.putpalette(palette.tobytes())
    picture.save(stream := io.BytesIO(), kind, **options)
    return stream.getvalue()


BW, FEW, ALPHA = GREY > 99, GREY >> 4, np.dstack([GREY, RGBA[..., 3]])
INVERTED = np.linspace(255, 0, 16).astype(np.uint8).repeat(3).reshape(16, 3)
PREMULTIPLIED = np.dstack([np.rint(RGB * (RGBA[..., 3:] / 255)).astype(np.uint8), RGBA[..., 3]])
# (format, mode, stored): a file, and its pixels: grey, colour, or with alpha.
FILES: dict[tuple[str, str, str], tuple[bytes, Pixels]] = {
    ("PNG", "1", "1"): (png(0, 1, BW), BW * 255),
    ("PNG", "L", "L;2"): (png(0, 2, GREY >> 6), (GREY >> 6) * 85),
    ("PNG", "L", "L;4"): (png(0, 4, FEW), FEW * 17),
    ("PNG", "L", "L"): (png(0, 8, GREY, (b"gAMA", struct.pack(">I", 45455))), GREY),
    ("PNG", "I;16", "I;16B"): (png(0, 16, DEEP), GREY),
    ("PNG", "LA", "LA"): (png(4, 8, ALPHA), ALPHA[..., [0, 0, 0, 1]]),
    **{
        ("PNG", "P", f"P;{bits}" if bits < 8 else "P"): (
            png(3, bits, GREY >> (8 - bits), (b"PLTE", PALETTE[: 2**bits].tobytes())),
            PALETTE[GREY >> (8 - bits)],
        )
        for bits in (1, 2, 4, 8)
    },
    ("PNG", "RGB", "RGB"): (png(2, 8, RGB), RGB),
    ("PNG", "RGBA", "RGBA"): (png(6, 8, RGBA), RGBA),
    ("JPEG", "L", "L"): (saved(GREY, "JPEG", quality=100), GREY),
    ("JPEG", "RGB", "RGB"): (saved(RGB, "JPEG", quality=100, subsampling=0), RGB),
    ("BMP", "1", "1"): (bmp(1, BW, INVERTED[[15, 0]]), BW * 255),
    ("BMP", "L", "L"): (bmp(8, GREY, np.arange(256, dtype=np.uint8).repeat(3).reshape(256, 3)), GREY),
    ("BMP", "P", "P;4"): (bmp(4, FEW, PALETTE), PALETTE[FEW]),
    ("BMP", "P", "P"): (bmp(8, GREY, PALETTE), PALETTE[GREY]),
    ("BMP", "RGB", "BGR"): (bmp(24, RGB[..., ::-1]), RGB),
    ("BMP", "RGB", "BGRX"): (bmp(32, RGB[..., [2, 1, 0, 0]]), RGB),
    ("TIFF", "1", "1"): (tif(BW), BW * 255),
    ("TIFF", "1", "1;I"): (tif(BW, "miniswhite"), ~BW * 255),
    ("TIFF", "L", "L"): (tif(GREY), GREY),
    ("TIFF", "L", "L;I"): (tif(GREY, "miniswhite"), 255 - GREY),
    ("TIFF", "I;16", "I;16"): (tif(DEEP), GREY),
    ("TIFF", "I;16", "I;16N"): (tif(DEEP, compression="deflate"), GREY),
    ("TIFF", "I;16B", "I;16B"): (tif(DEEP, byteorder=">"), GREY),
    ("TIFF", "LA", "LA"): (tif(ALPHA, extrasamples=["unassalpha"]), ALPHA[..., [0, 0, 0, 1]]),
    ("TIFF", "P", "P"): (tif(GREY, "palette", colormap=PALETTE.T * np.uint16(257)), PALETTE[GREY]),
    ("TIFF", "RGB", "RGB"): (tif(RGB, "rgb"), RGB),
    ("TIFF", "RGB", "R"): (tif(np.moveaxis(RGB, 2, 0), "rgb", planarconfig="separate"), RGB),
    ("TIFF", "RGBA", "RGBA"): (tif(RGBA, "rgb", extrasamples=["unassalpha"]), RGBA),
    ("TIFF", "RGBA", "RGBa"): (tif(PREMULTIPLIED, "rgb", extrasamples=["assocalpha"]), RGBA),
    ("PPM", "1", "1;I"): (b"P4 60 40\n" + packed(~BW, 1).tobytes(), BW * 255),
    ("PPM", "L", "L"): (pnm("P5", GREY), GREY),
    ("PPM", "I", "I;16B"): (pnm("P5", DEEP.astype(">u2"), 65535), GREY),
    ("PPM", "I", "L;16"): (pnm("P5", (GREY * np.uint16(16)).astype(">u2"), 4095), GREY),
    ("PPM", "RGB", "RGB"): (pnm("P6", RGB), RGB),
    ("WEBP", "RGB", ""): (saved(RGB, "WEBP", lossless=True), RGB),
    ("WEBP", "RGBA", ""): (saved(RGBA, "WEBP", lossless=True, exact=True), RGBA),
    ("GIF", "L", ""): (saved(BW, "GIF"), BW * 255),
    ("GIF", "P", ""): (saved(GREY, "GIF", PALETTE), PALETTE[GREY]),
}
FORMS = [(kind, mode, way) for (kind, mode), ways in PICTURES.items() for way in ways]


def decoded(content: bytes, path: Path, **options: Any) -> Pixels:
    path.write_bytes(content)
    return Decoder((40, 60), **options).read(path).pixels


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_pixels_are_those_that_were_written(tmp_path, form):
    content, truth = FILES[form]
    opened = Image.open(io.BytesIO(content))
    assert (opened.format, opened.mode, _stored(opened)) == form
    scale = 65535.0 if form[1] in DEEP_MODES else 255.0
    if truth.ndim == 2:
        truth = np.stack([truth] * 3, axis=2)
    on_white = 255 * rgba2rgb(truth) if truth.shape[2] == 4 else truth.astype(float)
    error = {"JPEG": 3.0}.get(form[0], 1.6 if truth.shape[2] == 4 else 0.0)
    grey, colour = (decoded(content, tmp_path / "file", colour=one, scale=scale) for one in (False, True))
    np.testing.assert_allclose(colour, on_white, atol=error)
    np.testing.assert_allclose(grey, rgb2gray(on_white), atol=error + 0.501)
    (cut := tmp_path / "cut").write_bytes(content[: len(content) * 3 // 5])
    (said,) = _each(Decoder((40, 60), scale=scale).read, [cut])
    assert isinstance(said, str), "a file that was cut was read"


MORE: dict[str, Any] = {"save_all": True, "append_images": [Image.fromarray(RGB[..., ::-1])]}
REFUSED = [
    ("colour or alpha of 16 bits", png(2, 16, RGB * np.uint16(257))),
    ("colour or alpha of 16 bits", tif(RGB * np.uint16(257), "rgb")),
    ("colour or alpha of 16 bits", pnm("P6", RGB.astype(">u2"), 4095)),
    ("one transparent grey", png(0, 16, DEEP, (b"tRNS", struct.pack(">H", 0)))),
    ("signed pixels", tif(GREY.astype(np.int16))),
    ("whole numbers of 32 bits", tif(GREY.astype(np.uint32))),
    ("fractions", tif(GREY.astype(np.float32))),
    ("0 as white", tif(DEEP, "miniswhite")),
    ("LAB", tif(RGB, 8)),
    ("CMYK", tif(RGBA, "separated")),
    ("YCbCr", tif(RGB, "ycbcr")),
    ("other pixels", tif(RGBA, "rgb", extrasamples=["unspecified"])),
    *(("several pictures", saved(RGB, kind, **MORE)) for kind in ("TIFF", "GIF", "PNG", "WEBP")),
    ("ends before its last pixel", saved(RGB, "JPEG")[:-100] + bytes(900)),
    ("is no picture that can be read", saved(RGB, "JPEG2000")),
]


@pytest.mark.parametrize(("told", "content"), REFUSED)
def test_other_forms_are_refused_by_what_they_are(tmp_path, told, content):
    (tmp_path / "file").write_bytes(content)
    (said,) = _each(Decoder((40, 60), scale=65535.0).read, [tmp_path / "file"])
    assert told in said


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_pictures_are_turned_as_the_camera_says(tmp_path, kind):
    (exif := Image.Exif())[274] = 6  # a quarter to the right
    path = tmp_path / "file"
    path.write_bytes(saved(GREY, kind, exif=exif, quality=100))
    size = _look(path)[:2]
    np.testing.assert_allclose(Decoder(size).read(path).pixels, np.rot90(GREY, -1), atol=3)
    small = Decoder((10, 7)).read(path).pixels
    np.testing.assert_allclose(small, resize(np.rot90(GREY, -1) * 1.0, (10, 7), anti_aliasing=True), atol=9)


def test_one_transparent_colour_is_white(tmp_path):
    of_palette = png(3, 8, GREY, (b"PLTE", PALETTE.tobytes()), (b"tRNS", b"\xff" * 9 + b"\0"))
    of_colour = png(2, 8, PALETTE[GREY], (b"tRNS", PALETTE[9].astype(">u2").tobytes()))
    of_grey = png(0, 8, GREY, (b"tRNS", struct.pack(">H", 9)))
    for content, values in ((of_palette, PALETTE[GREY]), (of_colour, PALETTE[GREY]), (of_grey, np.dstack([GREY] * 3))):
        found = decoded(content, tmp_path / "file", colour=True)
        np.testing.assert_array_equal(found, np.where(GREY[..., None] == 9, 255, values))


def test_the_page_of_pictures_has_the_lists():
    docs = Path(__file__).parents[2] / "docs"
    made = runpy.run_path(str(docs / "picture_lists.py"))
    for table in ("table_of_pictures", "table_of_arrays"):
        assert made[table]() in (docs / "pictures.md").read_text()
