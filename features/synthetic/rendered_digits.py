"""MNIST-like digits rendered from a seed: any number, row block by row block, nothing stored.

Row i of a part depends on (seed, part, i) only. Each image picks its digit and one of the ways to write it,
then draws a smooth displacement of the strokes (elastic deformation), an affine map (rotation, slant, scale,
shift), a pen width and an ink density.
"""

import numpy as np

from features.source import Part, Source, SourceSpec
from features.synthetic.glyphs import glyph_tables
from features.synthetic.rendering_loops import SIDE, digits_of_rows, render_rows
from features.targets import class_labels

RENDERER_VERSION = 1
DEFAULT_TRAIN, DEFAULT_TEST = 60_000, 10_000


def open_synthetic(spec: SourceSpec) -> Source:
    """Open `spec.n_train` and `spec.n_test` synthetic digits (60 000 and 10 000 unless given).

    Rows are rendered when they are read: images (n, 28, 28) uint8, about 20 µs each; nothing is held.

    Raises
    ------
    DataError
        `spec.task` is binary; there are ten digits.
    """
    task = spec.task or "multiclass"
    classes = class_labels(np.arange(10), task)
    sizes = spec.n_train or DEFAULT_TRAIN, spec.n_test or DEFAULT_TEST
    seed, tables = np.uint64(spec.seed & 0xFFFFFFFFFFFFFFFF), glyph_tables()

    def read(part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        part_number = np.uint64(0 if part == "train" else 1)
        images = np.empty((stop - start, SIDE, SIDE), dtype=np.uint8)
        digits = np.empty(stop - start, dtype=np.int64)
        digits_of_rows(seed, part_number, start, stop, digits)
        render_rows(seed, part_number, start, stop, *tables, images)
        return images, digits if classes else digits.astype(np.float64)

    identity = {
        "source": "synthetic",
        "renderer_version": RENDERER_VERSION,
        "task": task,
        "n_train": sizes[0],
        "n_test": sizes[1],
        "seed": spec.seed,
    }
    return Source("synthetic", task, classes, *sizes, (SIDE, SIDE), bool(spec.standardise), read, identity)
