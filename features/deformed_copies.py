"""Deformed copies of training images, made anew whenever they are read: to the same bytes, in whatever blocks.

Training row r of K copies is copy r mod K of image r // K; copy 0 is the image itself. With c the middle of the image,
the pixel p = (y, x) of another copy is the image at

    c + A (p - c) + t + d(p),    A = [cos a, -sin a; sin a, cos a] [1 + s, 0; h, 1 + u],

between pixels linearly, outside the image the nearest pixel of its border. The angle a, the scales s and u, the shear h
and the shift t are drawn evenly, from minus to plus their strengths. d(p) lies between drawn displacements of the four
nodes around p of a lattice, along each side in shares of (1 - cos) / 2, and so is smooth. Shifts and displacements are
shares of the sides: images of any size deform alike. What is drawn is a hash of the seed, the number of the image and
that of the copy: nothing is kept, and a copy does not depend on how many there are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numba import float64 as f8
from numba import int64 as i8
from numba import njit

from features.errors import UsageError
from features.row_draws import RowKeys, copy_keys, draw_numbers, row_keys
from features.source import Part, RowArray, Source, SourceSpec

ALGORITHM_VERSION = 1
MOST = {"rotation": 180.0, "scale": 0.9, "shear": 1.0, "shift": 1.0, "smooth": 1.0}
NODES = 5  # of the lattice along a side, a quarter of it apart
DRAWN = 7 + 2 * NODES**2  # numbers for each copy
KEYED_ROWS = 4096  # images that are read at once for their keys
_ROWS_AT_ONCE = 128  # that are made float64 for the compiled loop, so that it is compiled for one type

ImageReader = Callable[[int, int], np.ndarray]  # returns the images from a first one to before another


@dataclass(frozen=True)
class Deformation:
    """Strengths: degrees of rotation; shares of scale and shear; shares of the sides of shift and displacements.

    The defaults are for handwriting. flip: half of the copies are mirrored, left to right.
    """

    rotation: float = 8.0
    scale: float = 0.08
    shear: float = 0.08
    shift: float = 0.03
    smooth: float = 0.03
    flip: bool = False

    @classmethod
    def read(cls, text: str) -> "Deformation":
        """Return what a text such as rotation:12,smooth:0,flip says. Raises ValueError with a reason, "must be ..."."""
        found: dict[str, Any] = {}
        for word in text.split(","):
            name, _, number = word.strip().partition(":")
            if name in found or (name not in MOST and word.strip() != "flip"):
                raise ValueError(f"must be strengths such as rotation:12,smooth:0,flip: {', '.join(MOST)}, each once")
            try:
                found[name] = True if name == "flip" else float(number)
            except ValueError:
                found[name] = -1.0
            if not 0.0 <= found[name] <= MOST.get(name, 1.0):
                raise ValueError(f"must have a number from 0 to {MOST[name]:g} after {name}:")
        return cls(**found)

    def maps(self, drawn: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what numbers (n, DRAWN) in [0, 1) stand for, in pixels: maps (n, 6), A and t, and nodes (n, 2, …).

        The entries of A come row by row, y before x. All are f8.
        """
        even, sides = 2.0 * drawn - 1.0, np.array([height, width], np.float64)
        angle, (s, u) = np.radians(self.rotation) * even[:, 0], self.scale * even[:, 1:3].T
        h, mirrored = self.shear * even[:, 3], np.where(self.flip & (even[:, 6] < 0.0), -1.0, 1.0)
        cos, sin, shift = np.cos(angle), np.sin(angle), self.shift * sides * even[:, 4:6]
        of_y = cos * (1.0 + s) - sin * h, -sin * (1.0 + u) * mirrored
        of_x = sin * (1.0 + s) + cos * h, cos * (1.0 + u) * mirrored
        nodes = self.smooth * sides[:, None, None] * even[:, 7:].reshape(-1, 2, NODES, NODES)
        return np.column_stack([*of_y, *of_x, shift]), nodes


@dataclass(frozen=True)
class Copies:
    """How many rows each image becomes, itself among them, and what deforms the others."""

    count: int
    deformation: Deformation
    seed: int

    @classmethod
    def of(cls, spec: SourceSpec) -> "Copies":
        """Return the copies that are asked for."""
        return cls(spec.copies, Deformation() if spec.deform is None else Deformation.read(spec.deform), spec.seed)

    def rows(self, read: ImageReader, start: int, stop: int) -> np.ndarray:
        """Return rows (stop - start, *image) of images (H, W) or (H, W, channels); bytes stay bytes, floats floats.

        10 µs a row of 28 x 28, in one thread. Memory: the images, the rows, and 128 of them as float64.
        """
        of_rows, copies = np.divmod(np.arange(start, stop), self.count)
        images = read(start // self.count, -(-stop // self.count))
        of_rows -= start // self.count
        out = images[of_rows]
        deformed = np.flatnonzero(copies)
        for begin in range(0, len(deformed), _ROWS_AT_ONCE):
            rows = deformed[begin : begin + _ROWS_AT_ONCE]
            first, last = of_rows[rows[0]], of_rows[rows[-1]]
            some = images[first : last + 1].astype(np.float64, order="C")
            numbers = draw_numbers(self.seed, copy_keys(rows + start, self.count), DRAWN)
            made = self._deformed(some.reshape(*some.shape[:3], -1), of_rows[rows] - first, numbers)
            out[rows] = (np.rint(made) if out.dtype == np.uint8 else made).reshape(-1, *out.shape[1:])
        return out

    def _deformed(self, images: np.ndarray, of_rows: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        height, width = images.shape[1:3]
        out = np.empty((len(of_rows), *images.shape[1:]))
        maps, nodes = self.deformation.maps(drawn, height, width)
        deform_rows(images, of_rows, maps, nodes, *between_nodes(height), *between_nodes(width), out)
        return out

    def keys(self, of_images: RowArray, start: int, stop: int) -> RowKeys:
        """Return the keys (stop - start,) u8 of rows, from those of all images: equal ones have copies of their own."""
        rows = np.arange(start, stop)
        keys = Repeated(of_images, self.count)[start:stop]
        return np.where(rows % self.count, keys ^ copy_keys(rows, self.count), keys)

    def identity(self) -> dict[str, Any]:
        """Return, as JSON-able values, all that determines the copies of given images."""
        return {"count": self.count, "seed": self.seed, "version": ALGORITHM_VERSION, **vars(self.deformation)}


class Repeated:
    """Values (n,), each `count` times in turn, as an array (n · count,) that holds n."""

    def __init__(self, values: RowArray, count: int) -> None:
        self._values, self._count = values, count

    def __getitem__(self, rows: Any) -> Any:
        """Return the values of some rows, from a first one to before another, or that of one."""
        if not isinstance(rows, slice):
            return self._values[rows // self._count]
        start, stop, _ = rows.indices(self._values.shape[0] * self._count)
        first = start // self._count
        values = np.repeat(self._values[first : -(-stop // self._count)], self._count)
        return values[start - first * self._count : stop - first * self._count]


class _ImageKeys:
    """The keys of images, computed when one is asked for, from some images at a time."""

    def __init__(self, read: ImageReader, n_images: int) -> None:
        self._read, self.shape = read, (n_images,)

    @cached_property
    def _keys(self) -> RowKeys:
        starts = range(0, self.shape[0], KEYED_ROWS)
        return np.concatenate([row_keys(self._read(at, min(at + KEYED_ROWS, self.shape[0]))) for at in starts])

    def __getitem__(self, rows: slice) -> RowKeys:
        return self._keys[rows]


def with_copies(source: Source, spec: SourceSpec, keys: RowKeys | None = None) -> Source:
    """Return a source whose training rows are those of `source` and their deformed copies; tests stay as they are.

    keys (n,) u8: of the training images, where they are known. Each row counts as its image does: as with more images
    a penalty then weighs less, and weights of 1/K would make every sum one of weighted rows. Copies are in the group
    of their image, or are one. Raises UsageError where inputs are no images.
    """
    n, copies = source.n_train, Copies.of(spec)
    if len(source.input_shape) < 2:
        raise UsageError(f"`data.copies={spec.copies}` is for images, {source.name} has rows of numbers; leave it out")

    def repeated(values: Any) -> Any:
        return None if values is None else Repeated(values, copies.count)

    def read(part: Part, start: int, stop: int) -> np.ndarray:
        return copies.rows(read_images, start, stop) if part == "train" else source.read_rows(part, start, stop)

    def read_images(start: int, stop: int) -> np.ndarray:
        return source.read_rows("train", start, stop)

    of_images: Any = _ImageKeys(read_images, n) if keys is None else keys
    file_rows = np.arange(n) if source.file_rows["train"] is None else source.file_rows["train"]
    told = f"{copies.count - 1} deformed {'copy' if copies.count == 2 else 'copies'}"
    return replace(
        source,
        n_train=n * copies.count,
        read_rows=read,
        targets={**source.targets, "train": repeated(source.targets["train"])},
        weights={**source.weights, "train": repeated(source.weights["train"])},
        file_rows={**source.file_rows, "train": repeated(file_rows)},
        groups=repeated(of_images if source.groups is None else source.groups),
        row_keys=lambda start, stop: copies.keys(of_images, start, stop),
        identity={**source.identity, "copies": copies.identity()},
        notes=(*source.notes, f"each of {n} training images with {told}: {n * copies.count} rows"),
        memory=replace(source.memory, held=source.memory.held + 16 * n),
    )


def between_nodes(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return of the pixels along a side the node before them (side,) i8, and the shares (side,) f8 of the next one."""
    at = np.arange(side) * ((NODES - 1) / (max(side, 2) - 1))
    before = np.minimum(at.astype(np.int64), NODES - 2)
    return before, (1.0 - np.cos(np.pi * (at - before))) / 2


@njit(cache=True, nogil=True)
def deform_rows(
    images: np.ndarray,
    of_rows: np.ndarray,
    maps: np.ndarray,
    nodes: np.ndarray,
    before_y: np.ndarray,
    share_y: np.ndarray,
    before_x: np.ndarray,
    share_x: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write deformed images to `out` (n, H, W, channels) f8: see `Deformation.maps` and `between_nodes`.

    images (m, H, W, channels) f8; of_rows (n,) i8: which image each row is of.
    """
    height, width, n_channels = images.shape[1:]
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    along = np.empty((2, nodes.shape[3]))  # displacements of the nodes' columns in one row of pixels
    for r in range(len(of_rows)):
        image, of_y, of_x = images[of_rows[r]], nodes[r, 0], nodes[r, 1]
        for y in range(height):
            j, v = before_y[y], y - middle_y
            for k in range(nodes.shape[3]):
                along[0, k] = of_y[j, k] + share_y[y] * (of_y[j + 1, k] - of_y[j, k])
                along[1, k] = of_x[j, k] + share_y[y] * (of_x[j + 1, k] - of_x[j, k])
            start_y = middle_y + maps[r, 0] * v + maps[r, 4]
            start_x = middle_x + maps[r, 2] * v + maps[r, 5]
            for x in range(width):
                k, u = before_x[x], x - middle_x
                at_y = start_y + maps[r, 1] * u + along[0, k] + share_x[x] * (along[0, k + 1] - along[0, k])
                at_x = start_x + maps[r, 3] * u + along[1, k] + share_x[x] * (along[1, k + 1] - along[1, k])
                at_y, at_x = min(max(at_y, 0.0), height - 1.0), min(max(at_x, 0.0), width - 1.0)
                top, left = int(at_y), int(at_x)
                below, right = min(top + 1, height - 1), min(left + 1, width - 1)
                for c in range(n_channels):
                    high = image[top, left, c] + (at_x - left) * (image[top, right, c] - image[top, left, c])
                    low = image[below, left, c] + (at_x - left) * (image[below, right, c] - image[below, left, c])
                    out[r, y, x, c] = high + (at_y - top) * (low - high)


_IMAGES, _NODES, _MAPS, _ROWS, _SHARES = f8[:, :, :, ::1], f8[:, :, :, ::1], f8[:, ::1], i8[::1], f8[::1]
SIGNATURES = {
    "deform_rows": [(_IMAGES, _ROWS, _MAPS, _NODES, _ROWS, _SHARES, _ROWS, _SHARES, _IMAGES)],
}
