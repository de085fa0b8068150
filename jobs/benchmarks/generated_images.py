"""Any number of images like scikit-learn's digits, in a zarr store: shifted copies whose ink has noise."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import zarr
from numpy.lib.stride_tricks import sliding_window_view

from features.images import DIGITS_SIDE
from features.open_source import open_source
from features.source import SourceSpec

CHUNK_ROWS = 1000
SHIFT = 3  # pixels, at most


def write_images(path: Path, n_train: int, n_test: int) -> Path:
    """Write images (n, 28, 28) u1 and labels, the same at every call, unless they are there; return the path.

    Test images are copies of other digits than training images.
    """
    if path.exists():
        return path
    aside = path.with_suffix(".part")
    digits, store = open_source(SourceSpec("digits")), zarr.create_group(str(aside), overwrite=True)
    sizes = {"train": (digits.n_train, n_train), "test": (digits.n_test, n_test)}
    for seed, (part, (n_digits, n_rows)) in enumerate(sizes.items()):
        originals, labels = digits.read(part, 0, n_digits)
        padded = np.pad(originals, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
        shifted = sliding_window_view(padded, (DIGITS_SIDE, DIGITS_SIDE), (1, 2))
        shapes = {"X": (n_rows, *originals.shape[1:]), "y": (n_rows,)}
        X, y = (
            store.create_array(f"{part}/{name}", shape=shape, chunks=(CHUNK_ROWS, *shape[1:]), dtype=dtype)
            for (name, shape), dtype in zip(shapes.items(), ("u1", "i8"), strict=True)
        )
        for start in range(0, n_rows, CHUNK_ROWS):
            draw, size = np.random.default_rng((seed, start)), min(CHUNK_ROWS, n_rows - start)
            of, down, right = (draw.integers(most, size=size) for most in (n_digits, 2 * SHIFT + 1, 2 * SHIFT + 1))
            ink = draw.integers(192, 257, (size, DIGITS_SIDE, DIGITS_SIDE), np.uint16)
            X[start : start + size] = (shifted[of, down, right] * ink) >> 8
            y[start : start + size] = labels[of]
    return aside.rename(path)
