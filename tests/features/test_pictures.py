"""Folders of pictures: what is read and refused; each form of file, written byte by byte, against its pixels."""

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

from features import pictures
from features.errors import DataError
from features.pictures import DEEP_MODES, PICTURES, Decoder, _each, _look, _stored
from sources import opened

SMOOTH = (np.outer(np.hanning(40), np.hanning(60)) * 255).astype(np.uint8)
COLOURED = np.stack([SMOOTH, SMOOTH[::-1], 255 - SMOOTH], axis=2)


def write(folder: Path, **classes: int) -> Path:
    """Write so many pictures of random 8 x 6 bytes for each class."""
    rng = np.random.default_rng(0)
    for name, n in classes.items():
        (folder / name).mkdir(parents=True)
        for k in range(n):
            Image.fromarray(rng.integers(0, 256, (8, 6), np.uint8)).save(folder / name / f"{k}.png")
    return folder


def test_sizes_that_differ_become_the_median_or_what_is_asked_for(tmp_path):
    write(tmp_path, a=9, b=9)
    for k, size in enumerate([(9, 40), (30, 7), (10, 6)]):
        Image.fromarray(np.zeros(size, np.uint8)).save(tmp_path / "a" / f"other {k}.bmp")
    source = opened(tmp_path)
    assert source.input_shape == (8, 6)
    assert "pictures of 4 sizes are resized to 8 x 6 (`features.size=8x6`)" in source.notes
    assert opened(tmp_path, size="5x4").train.X[:2].shape == (2, 5, 4)
    assert pictures._median_size([pictures.Look(300, 600)]) == (64, 128)


def test_pictures_are_in_colour_where_one_to_train_on_is(tmp_path):
    train, test = write(tmp_path / "train", a=3, b=3), write(tmp_path / "test", a=2, b=2)
    Image.fromarray(COLOURED[:8, :6]).save(train / "b" / "colour.png")
    source = opened(tmp_path)
    assert source.input_shape == (8, 6, 3)
    np.testing.assert_array_equal(source.train.X[6:7][0], COLOURED[:8, :6])
    grey = np.asarray(Image.open(test / "a" / "0.png"))
    np.testing.assert_array_equal(source.test.X[:1][0], np.stack([grey] * 3, axis=2))
    Image.fromarray(COLOURED[:8, :6]).save(test / "b" / "colour.png")
    (train / "b" / "colour.png").unlink()
    assert opened(tmp_path).input_shape == (8, 6)


def test_pictures_are_grey_where_channels_are_equal(tmp_path):
    for k in range(6):
        for name, mode in (("a", "P"), ("b", "RGBA")):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(SMOOTH[k:]).convert(mode).save(tmp_path / name / f"{k}.png")
    Image.fromarray(SMOOTH).save(tmp_path / "a" / "lossy.webp")  # whose channels come out a little apart
    hardly = np.stack([SMOOTH // 2] * 3, axis=2)
    Image.fromarray(hardly + np.array([0, 0, 3], np.uint8)).save(tmp_path / "a" / "hardly.webp", lossless=True)
    assert opened(tmp_path).input_shape == (38, 60)
    Image.fromarray(hardly + np.array([0, 0, 9], np.uint8)).save(tmp_path / "b" / "7.webp", lossless=True)
    assert f"{tmp_path.name}: in colour: b/7.webp of 15 pictures, and all are read so" in opened(tmp_path).notes


@pytest.mark.parametrize("folders", ["cat/images dog/images", "train_station test_tube", "valley/x predator/x"])
def test_folders_whose_names_are_like_those_of_parts_are_classes(tmp_path, folders):
    write(tmp_path, **dict.fromkeys(folders.split(), 4))
    assert len(opened(tmp_path).classes) == 2


@pytest.mark.parametrize("factor", [1, 4, 16, 257])
def test_pictures_of_16_bits_have_one_scale(tmp_path, factor):
    of_bytes = opened(write(tmp_path / "bytes", a=9, b=9))
    for path in tmp_path.glob("bytes/*/*"):
        values = np.asarray(Image.open(path)) * np.uint16(factor)
        (place := tmp_path / "deep" / path.parent.name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(place / path.name)
    source = opened(tmp_path / "deep", n_train=9)
    np.testing.assert_array_equal(source.train.X[:9], opened(tmp_path / "bytes", n_train=9).train.X[:9])
    assert source.image_scale == {1: 255, 4: 1023, 16: 4095, 257: 65535}[factor]
    assert any("18 pictures of 16 bits: up to" in note for note in source.notes)
    assert of_bytes.image_scale == 255
    test = write(tmp_path / "test", a=1)
    Image.fromarray(np.full((8, 6), 65535, np.uint16)).save(test / "a" / "0.png")
    if factor < 257:
        with pytest.raises(DataError, match="has pixels up to 65535, those of the training part are up to"):
            opened(tmp_path / "deep", test=str(test))


def test_names_of_classes_are_compared_in_one_form_of_unicode(tmp_path):
    write(tmp_path / "train", **{"\u00c4pfel": 3, "b": 3})
    write(tmp_path / "test", **{"A\u0308pfel": 3})
    source = opened(tmp_path)
    assert (source.classes, source.n_test) == (("b", "\u00c4pfel"), 3)


def test_all_pictures_that_cannot_be_read_are_named_or_left_out(tmp_path):
    folder = write(tmp_path / "d", a=9, b=9)
    whole = (folder / "a" / "0.png").read_bytes()
    flips = [bytearray(whole) for _ in range(8 * 16)]
    for k, content in enumerate(flips):  # of pixels, some of which decode to others
        content[-24 - k // 8] ^= 1 << k % 8
    bad = {"cut.png": whole[:-30], "empty.png": b"", "text.jpg": b"none"}
    for name, content in (bad | {f"f{k}.png": content for k, content in enumerate(flips)}).items():
        (folder / "b" / name).write_bytes(content)
    (folder / "b" / "gone.png").symlink_to(tmp_path / "nothing")
    Image.fromarray(SMOOTH.astype(np.float32)).save(folder / "b" / "float.tif")
    Image.fromarray(SMOOTH).save(folder / "b" / "pages.tif", save_all=True, append_images=[Image.fromarray(SMOOTH)])
    with pytest.raises(DataError, match=r"134 of 152 .*b/cut\.png \(.* 108 more \(is damaged: broken .*skip_bad"):
        opened(folder)
    source = opened(folder, skip_bad=True)
    assert source.n_train + source.n_test == 18
    assert any(note.startswith("134 pictures left out, which cannot be read: ") for note in source.notes)
    for path in folder.glob("b/[0-9]*"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="no picture of b can be read"):
        opened(folder, skip_bad=True)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_gap_of_zeros_in_a_jpeg_is_told(tmp_path, progressive):
    noise, folder = np.random.default_rng(0).integers(0, 256, (99, 99), np.uint8), write(tmp_path / "d", a=3, b=3)
    whole = saved(noise, "JPEG", progressive=progressive)
    filled = whole[:2] + b"\xff\xff" + whole[2:]  # which may be
    gap = filled[:2048] + bytes(512) + filled[2560:]
    for content, is_told in ((whole, False), (whole + bytes(4096), False), (filled, False), (gap, True)):
        (folder / "a" / "x.jpg").write_bytes(content)
        assert any("which may be damage: a/x.jpg" in one for one in opened(folder).warnings) == is_told


def test_labels_parts_and_what_is_passed_over(tmp_path):
    train = write(tmp_path / "parts" / "train", **{"10": 5, "9": 4, "10/_hidden": 2, "10/inner": 1})
    write(tmp_path / "parts" / "test", **{"9": 3})
    (train / "9" / "notes.txt").touch()
    (train / "9" / "._0.png").touch()
    source = opened(tmp_path / "parts")
    assert (source.classes, source.n_train, source.n_test) == ((9, 10), 10, 3)
    names = source.train.names[:].tolist()  # type: ignore[index]
    assert names == [*(f"10/{k}.png" for k in range(5)), "10/inner/0.png", *(f"9/{k}.png" for k in range(4))]
    assert source.train.y.tolist() == [1] * 6 + [0] * 4
    expected = [np.asarray(Image.open(train / name)) for name in names]
    np.testing.assert_array_equal(source.train.X[:10], expected)
    assert "train: files that are no pictures are passed over: 9/notes.txt" in source.notes
    words = write(tmp_path / "words", **{"01": 4, "2": 4})
    assert opened(words).classes == ("01", "2")
    other = opened(tmp_path / "parts", test=str(write(tmp_path / "other", **{"9": 2})))
    assert other.n_test == 2


@pytest.mark.parametrize(
    ("classes", "harm", "message"),
    [
        ({"a": 2}, lambda at: None, "one class only \\('a'"),
        ({"a": 2, "b": 2, "c": 0}, lambda at: None, "without pictures that are read: c; convert"),
        ({"a": 2, "b": 2}, lambda at: (at / "a" / "0.png").rename(at / "x.png"), "in no folder of a class: x.png"),
        ({"a": 2, "b": 2}, lambda at: (at / "b" / "loop").symlink_to(at), "/b/loop: is a link, by which .* twice"),
        ({"a": 2, "b": 2}, lambda at: (at / "a_").symlink_to(at / "b"), "/a_: is a link, by which .*/b would be read"),
        ({"a": 2, "b": 2}, lambda at: [one.rename(f"{one}.heic") for one in at.glob("a/*")], "read: a/0.png.heic, a/1"),
        ({"a": 2, "b": 2}, lambda at: (at / "a" / "x.HEIC").touch(), "formats that are not read: a/x.HEIC; convert"),
        ({"A\u0308pfel/x": 2, "A\u0308pfel/y": 2}, lambda at: None, "has one folder, A\u0308pfel; name"),
        ({"c/test/a": 2, "c/train/a": 2}, lambda at: None, "has one folder, c; name .*/c, if its folders are"),
        (dict.fromkeys(("x/train", "x/test", "y/train", "y/test"), 2), lambda at: None, "both: test, train.*put"),
        ({"s_train/s_train/a": 2, "s_train/s_train/b": 2, "s_test/s_test/a": 2}, lambda at: None, "look like parts"),
        (
            dict.fromkeys(("training/a", "training/b", "testing/a"), 2),
            lambda at: None,
            "training with `data.test=.*testing",
        ),
        ({"Train/a": 2, "Train/b": 2, "Test": 2}, lambda at: None, "parts; if .*Train, then predict .*Test, else"),
        (dict.fromkeys(("set1/a", "set1/b", "set2/a", "set2/b"), 2), lambda at: None, "set1 with `data.test=.*set2"),
        ({"a_test/x": 2, "z_train/x": 2, "z_train/y": 2}, lambda at: None, "z_train with `data.test=.*a_test"),
        ({"train/a": 2, "val/a": 2}, lambda at: None, "has the folder val beside train"),
        ({"train/a": 2, "test/a": 2, "val/a": 2}, lambda at: None, "val beside train and test; .*`data.test=.*/test`"),
        ({"cat": 2, "Cat": 2}, lambda at: None, "the folder Cat and the folder cat are one label"),
        ({"Test/a": 2, "Test/b": 2, "Train/a": 2, "Train/b": 2}, lambda at: None, "train on .*Train with `data.test="),
        ({"train/a": 2, "train/b": 2, "test": 2}, lambda at: None, "or predict those without one"),
        ({"train/a": 2, "train/b": 2, "test/c": 2}, lambda at: None, "has the class c, which .*train lacks"),
    ],
)
def test_folders_of_which_nothing_can_be_learned(tmp_path, classes, harm, message):
    harm(write(tmp_path, **classes))
    with pytest.raises(DataError, match=message):
        opened(tmp_path)


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


def paletted(bits: int) -> tuple[bytes, Pixels]:
    places = GREY >> (8 - bits)
    return png(3, bits, places, (b"PLTE", PALETTE[: 2**bits].tobytes())), PALETTE[places]


def bmp(bits: int, values: Pixels, palette: Pixels | None = None) -> bytes:
    rows = packed(values, bits) if bits < 24 else values.reshape(len(values), -1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))[::-1]
    colours = b"" if palette is None else np.pad(palette[: 2**bits, ::-1], ((0, 0), (0, 1))).tobytes()
    begin = 54 + len(colours)
    head = b"BM" + struct.pack("<IHHI", begin + rows.size, 0, 0, begin)
    head += struct.pack("<IiiHHIIiiII", 40, values.shape[1], len(values), 1, bits, *[0] * 6)
    return head + colours + rows.tobytes()


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
    ("PNG", "P", "P;1"): paletted(1),
    ("PNG", "P", "P;2"): paletted(2),
    ("PNG", "P", "P;4"): paletted(4),
    ("PNG", "P", "P"): paletted(8),
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
    ("(in Pillow PNG, RGB, RGB;16B)", png(2, 16, RGB * np.uint16(257))),
    ("(in Pillow TIFF, RGB, RGB;16", tif(RGB * np.uint16(257), "rgb")),
    ("(in Pillow PPM, RGB, RGB;16", pnm("P6", RGB.astype(">u2"), 4095)),
    ("one transparent grey", png(0, 16, DEEP, (b"tRNS", struct.pack(">H", 0)))),
    ("signed pixels", tif(GREY.astype(np.int16))),
    ("(in Pillow TIFF, I, ", tif(GREY.astype(np.uint32))),
    ("fractions", tif(GREY.astype(np.float32))),
    ("0 as white", tif(DEEP, "miniswhite")),
    ("LAB", tif(RGB, 8)),
    ("CMYK", tif(RGBA, "separated")),
    ("YCbCr", tif(RGB, "ycbcr")),
    ("other pixels", tif(RGBA, "rgb", extrasamples=["unspecified"])),
    *(("several pictures", saved(RGB, kind, **MORE)) for kind in ("TIFF", "GIF", "PNG", "WEBP")),
    ("ends before its last pixel", saved(RGB, "JPEG")[:-100] + bytes(900)),
    ("has 9000 x 8000 pixels, at most 64 million", b"P5 9000 8000 255\n"),
    ("has 90000 x 8000 pixels, at most 64 million", b"P5 90000 8000 255\n"),
    ("is no picture that can be read", saved(RGB, "JPEG2000")),
]


@pytest.mark.parametrize(("told", "content"), REFUSED)
def test_other_forms_are_refused_by_what_they_are(tmp_path, told, content):
    (tmp_path / "file").write_bytes(content)
    (said,) = _each(Decoder((40, 60), scale=65535.0).read, [tmp_path / "file"])
    assert told in said


def test_a_file_that_is_far_too_large_is_not_read(tmp_path):
    with (tmp_path / "file").open("wb") as stream:
        stream.truncate(3 << 30)
    assert [*_each(Decoder((40, 60)).read, [tmp_path / "file"])] == ["has more than 256 MiB; save a smaller one"]


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
