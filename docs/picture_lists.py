"""The tables of the page of pictures, made from the lists in the code: `python docs/picture_lists.py` prints them."""

from features.image_arrays import IMAGE_ARRAYS
from features.picture_forms import MODES, PICTURES, SUFFIXES


def table_of_pictures() -> str:
    """Return Markdown with a row for each form of pictures."""
    rows = []
    for (kind, mode), stored in PICTURES.items():
        names = ", ".join(f"`{name}`" for name in stored if name)
        told = f"`{mode}`" + (f", stored as {names}" if names else "")
        rows.append((f"{kind} ({', '.join(SUFFIXES[kind])})", MODES[mode].pixels, told, MODES[mode].becomes))
    return _table(("format", "pixels", "in Pillow", "becomes"), rows)


def table_of_arrays() -> str:
    """Return Markdown with a row for each form of arrays of images."""
    return _table(("values, and the largest", "dtypes", "white is", "a value becomes"), list(IMAGE_ARRAYS))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ("---",) * len(head), *rows])


if __name__ == "__main__":
    print(table_of_pictures(), table_of_arrays(), sep="\n")
