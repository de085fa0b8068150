"""MNIST-like digits rendered from a seed: any number, row block by row block, nothing stored.

Row i of a part depends on (seed, part, i) only. Each image picks its digit and one of the ways to write it,
then draws a smooth displacement of the strokes (elastic deformation), an affine map (rotation, slant, scale,
shift), a pen width and an ink density.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.source import Part, SourceMemory, SourceSpec
from features.synthetic.glyphs import glyph_tables
from features.synthetic.rendering_loops import SIDE, digits_of_rows, render_rows
from features.targets import class_labels

RENDERER_VERSION = 1
DEFAULT_TRAIN, DEFAULT_TEST = 60_000, 10_000


def open_synthetic(spec: SourceSpec) -> "SyntheticSource":
    """Open `spec.n_train` and `spec.n_test` synthetic digits (60 000 and 10 000 unless given).

    Raises
    ------
    DataError
        `spec.task` is binary; there are ten digits.
    """
    task = spec.task or "multiclass"
    return SyntheticSource(
        name="synthetic",
        task=task,
        classes=class_labels(np.arange(10), task),
        n_train=DEFAULT_TRAIN if spec.n_train is None else spec.n_train,
        n_test=DEFAULT_TEST if spec.n_test is None else spec.n_test,
        standardise=bool(spec.standardise),
        seed=spec.seed,
    )


@dataclass(frozen=True)
class SyntheticSource:
    """A `features.source.Source` whose rows are rendered when they are read; about 20 µs an image."""

    name: str
    task: str
    classes: tuple
    n_train: int
    n_test: int
    standardise: bool
    seed: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (SIDE, SIDE)

    @property
    def added(self) -> tuple[int, ...]:
        """None were added."""
        return ()

    @property
    def columns(self) -> None:
        """Images have none."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing was taken for granted."""
        return ()

    @property
    def memory(self) -> SourceMemory:
        """Nothing: rows are rendered when they are read."""
        return SourceMemory()

    def read(self, part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images (stop - start, 28, 28) uint8 and their targets; memory is the result's."""
        n = self.n_train if part == "train" else self.n_test
        if not 0 <= start <= stop <= n:
            raise IndexError(f"rows {start} to {stop} of the {part} part of synthetic do not exist; it has {n}")
        seed, part_number = np.uint64(self.seed & 0xFFFFFFFFFFFFFFFF), np.uint64(0 if part == "train" else 1)
        images = np.empty((stop - start, SIDE, SIDE), dtype=np.uint8)
        digits = np.empty(stop - start, dtype=np.int64)
        digits_of_rows(seed, part_number, start, stop, digits)
        render_rows(seed, part_number, start, stop, *_tables(), images)
        return images, digits if self.classes else digits.astype(np.float64)

    def weights(self, part: Part) -> None:
        """Each image counts 1."""

    @property
    def groups(self) -> None:
        """None: the images have no groups."""

    def fingerprint(self) -> dict[str, Any]:
        """Return what determines the images: the renderer's version, seed and sizes."""
        return {
            "source": "synthetic",
            "renderer_version": RENDERER_VERSION,
            "task": self.task,
            "n_train": self.n_train,
            "n_test": self.n_test,
            "seed": self.seed,
        }


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return glyph_tables()
