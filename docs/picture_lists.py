"""The tables of the page of pictures, made from the lists in the code: `python docs/picture_lists.py` prints them."""

from features.input_files import PICTURE_FORMATS
from features.pictures import PICTURES

_DEEP = "1023, 4095, 16383, 65535"
MODES = {  # what pixels of a mode are, and what becomes of them
    "1": ("black and white", "0 or 255"),
    "L": ("grey of at most 8 bits", "itself; what is transparent, white"),
    "I;16": ("grey of 16 bits", "the upper 8 of its bits"),
    "I;16B": ("grey of 16 bits, most significant byte first", "the upper 8 of its bits"),
    "I": ("grey of more than 8 bits", "the upper 8 of its bits"),
    "LA": ("grey and alpha", "grey on white"),
    "P": ("a palette", "its colours; what is transparent, white"),
    "RGB": ("colour", "itself; what is transparent, white"),
    "RGBA": ("colour and alpha", "colour on white"),
}
# Images that are read alike: their values, dtypes, what white is, and what a value becomes.
IMAGE_ARRAYS = (
    ("0 and 1", "bool, whole numbers, floats", "1", "0 or 255"),
    ("whole numbers up to 2 … 255", "whole numbers, floats", "255", "itself"),
    ("whole numbers up to 256 … 65535", "whole numbers, floats", _DEEP, "its upper 8 bits"),
    ("fractions up to 1", "floats", "1", "255 times it, rounded"),
    ("fractions up to 128 … 255", "floats", "255", "itself, rounded"),
    ("fractions up to 256 … 65535", "floats", _DEEP, "its upper 8 bits"),
)


def table_of_pictures() -> str:
    """Return Markdown with a row for each form of pictures."""
    rows = []
    for (kind, mode), stored in PICTURES.items():
        names = ", ".join(f"`{name}`" for name in stored if name)
        told = f"`{mode}`" + (f", stored as {names}" if names else "")
        rows.append((f"{kind} ({', '.join(PICTURE_FORMATS[kind])})", MODES[mode][0], told, MODES[mode][1]))
    return _table(("format", "pixels", "in Pillow", "becomes"), rows)


def table_of_arrays() -> str:
    """Return Markdown with a row for each form of arrays of images."""
    return _table(("values, and the largest", "dtypes", "white is", "a value becomes"), list(IMAGE_ARRAYS))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ("---",) * len(head), *rows])


if __name__ == "__main__":
    print(table_of_pictures(), table_of_arrays(), sep="\n")
