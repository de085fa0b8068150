"""A user's own list of candidates: training rows, one number each, checked before any work."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from features.errors import MissingInputError
from pipeline.errors import InvalidDataError
from storage.files import read_plain

MOST_BYTES = 2**28  # thirty million rows


def read_center_list(path: str, n_train: int) -> NDArray[np.int64]:
    """Return the training rows (m,) that a file lists, in its order.

    The file is text: whole numbers separated by white space or commas, counted from 0. Raises MissingInputError where
    there is none, InvalidDataError naming the first entry that is no number, out of range or there twice.
    """
    try:
        words = read_plain(Path(path), MOST_BYTES).decode().replace(",", " ").split()
    except FileNotFoundError:
        raise MissingInputError(f"--center-list {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDataError(f"--center-list {path}: cannot be read as text ({error})") from None
    if not words:
        raise InvalidDataError(f"--center-list {path}: is empty; list at least one training row")
    first: dict[int, int] = {}
    for place, word in enumerate(words, 1):
        row = int(word) if word.isascii() and word.isdigit() and len(word) < 19 else -1
        if not 0 <= row < n_train:
            raise InvalidDataError(f"--center-list {path}: entry {place} is {word[:40]!r}; must be 0 to {n_train - 1}")
        if first.setdefault(row, place) != place:
            raise InvalidDataError(f"--center-list {path}: row {row} is entry {first[row]} and {place}; list it once")
    return np.array(list(first), np.int64)
