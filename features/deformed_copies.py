"""Deformed copies of training images, which are made whenever they are read, to the same bytes in any blocks.

Training row r of K copies is copy r mod K of image r // K; copy 0 is the image itself. With c the middle of the image,
the pixel p = (y, x) of another copy is the image at

    c + A (p - c) + t + d(p),    A = [cos a, -sin a; sin a, cos a] [1 + s, 0; h, 1 + u],

between pixels linearly, outside the image the nearest pixel of its border. The angle a, the scales s and u, the shear h
and the shift t are drawn evenly, from minus to plus their strengths. d(p) lies between drawn displacements of the four
nodes around p of a lattice, along each side in shares of (1 - cos) / 2, and so is smooth. Shifts and displacements are
shares of the sides: images of any size deform alike. Drawn numbers are hashes of the seed, the number of the image and
that of the copy: nothing is kept, and a copy does not depend on how many there are.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from features.errors import UsageError
from features.row_draws import RowKeys, draw_numbers, pair_keys
from features.rows import Chosen, Mapped, Rows, keys_of_inputs
from features.source import Source, SourceSpec

ALGORITHM_VERSION = 1
MOST = {"rotation": 180.0, "scale": 0.9, "shear": 1.0, "shift": 1.0, "smooth": 1.0, "flip": 1.0}
NODES = 5  # The lattice has as many along a side, a quarter of the side apart.
DRAWN = 7 + 2 * NODES**2  # As many numbers are drawn for each copy.
_TOGETHER = 128  # As many rows at once are float64, the one type that the loop is compiled for.


def strengths(text: str) -> dict[str, Any]:
    """Return the strengths in a text such as rotation:12,smooth:0,flip. Raises ValueError with a text "must be ..."."""
    words = [word.strip().partition(":") for word in text.split(",")]
    with suppress(ValueError):  # A strength may be no number.
        found: dict[str, Any] = {name: float(number) if colon else name == "flip" for name, colon, number in words}
        known = [name in MOST and (name == "flip") != bool(colon) for name, colon, _ in words]
        if len(found) == len(words) and all(known) and all(0.0 <= found[name] <= MOST[name] for name in found):
            return found
    most = ", ".join(f"{name} up to {most:g}" for name, most in MOST.items() if name != "flip")
    raise ValueError(f"must be strengths such as rotation:12,smooth:0,flip, each once: {most}")


@dataclass(frozen=True)
class Copies:
    """How many rows each image becomes, and how strongly these are deformed, at most; defaults for handwriting."""

    count: int  # the image itself among them
    seed: int
    rotation: float = 8.0  # degrees
    scale: float = 0.08  # shares
    shear: float = 0.08
    shift: float = 0.03  # shares of the sides
    smooth: float = 0.03
    flip: bool = False  # whether half of the copies are mirrored, left to right

    @classmethod
    def of(cls, spec: SourceSpec, input_shape: tuple[int, ...]) -> "Copies":
        """Return the copies that are asked for, of inputs of a shape. Raises UsageError where they make no sense."""
        if spec.copies > 1 and len(input_shape) < 2:
            raise UsageError(f"`data.copies={spec.copies}` is for images, and these are rows of numbers; leave it out")
        if spec.copies == 1 and spec.deform is not None:
            raise UsageError("`data.deform` is how copies are deformed, and there are none: give `data.copies`")
        return cls(spec.copies, spec.seed, **({} if spec.deform is None else strengths(spec.deform)))

    def deformed(self, images: np.ndarray, rows: NDArray[np.int64]) -> np.ndarray:
        """Return the rows (m, H, W) or (m, H, W, channels) with numbers (m,), from their images; bytes stay bytes.

        6 µs a row of 28 x 28, in one thread. Memory: the rows, and 128 of them as float64.
        """
        of_images, numbers = np.divmod(rows, self.count)
        out, deformed = np.array(images), np.flatnonzero(numbers)
        height, width = out.shape[1:3]
        for begin in range(0, len(deformed), _TOGETHER):
            some = deformed[begin : begin + _TOGETHER]
            block = out[some].astype(np.float64, order="C").reshape(len(some), height, width, -1)
            drawn = draw_numbers(self.seed, pair_keys(of_images[some], numbers[some]), DRAWN)
            made = np.empty_like(block)
            maps, nodes = self._maps(drawn, height, width)
            deform_rows(block, maps, nodes, eased(height), eased(width), made)
            out[some] = (np.rint(made) if out.dtype == np.uint8 else made).reshape(-1, *out.shape[1:])
        return out

    def keys(self, of_images: RowKeys, rows: NDArray[np.int64]) -> RowKeys:
        """Return the keys (m,) u8 of the rows with numbers (m,), from the keys of their images."""
        of_rows, numbers = np.divmod(rows, self.count)
        return np.where(numbers, of_images ^ pair_keys(of_rows, numbers), of_images)

    def of_images(self, images: Rows) -> Rows:
        """Return the rows that images become; copies of an image are in its group, or are a group."""
        X, known, numbers = images.X, images.keys, images.numbers
        known = keys_of_inputs(X) if known is None else known
        of_rows = np.repeat(np.arange(len(images)), self.count)

        def again(values: Any) -> Any:
            return None if values is None else Chosen(values, of_rows)

        return Rows(
            Mapped(again(X), self.deformed, X.shape[1:], X.dtype),
            again(images.y),
            again(images.weights),
            Mapped(again(known), self.keys, (), np.uint64),
            again(known if images.groups is None else images.groups),
            again(np.arange(len(images)) if numbers is None else numbers),
            again(images.names),
        )

    def _maps(self, drawn: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return maps (n, 6), A row by row and t, and nodes (n, 2, …) from numbers (n, DRAWN) in [0, 1); y before x."""
        even, sides = 2.0 * drawn - 1.0, np.array([height, width], np.float64)
        angle, (s, u) = np.radians(self.rotation) * even[:, 0], self.scale * even[:, 1:3].T
        h, mirrored = self.shear * even[:, 3], np.where(self.flip & (even[:, 6] < 0.0), -1.0, 1.0)
        cos, sin, shift = np.cos(angle), np.sin(angle), self.shift * sides * even[:, 4:6]
        of_y = cos * (1.0 + s) - sin * h, -sin * (1.0 + u) * mirrored
        of_x = sin * (1.0 + s) + cos * h, cos * (1.0 + u) * mirrored
        nodes = self.smooth * sides[:, None, None] * even[:, 7:].reshape(-1, 2, NODES, NODES)
        return np.column_stack([*of_y, *of_x, shift]), nodes


def copied(source: Source, spec: SourceSpec) -> Source:
    """Return a source whose training rows are those of `source` and their deformed copies; tests stay as they are.

    Each row counts as much as its image: a penalty weighs less, as with more images. Weights of 1/K would make every
    sum a weighted one. Raises as `Copies.of`.
    """
    n, copies = source.n_train, Copies.of(spec, source.input_shape)
    told = f"{copies.count - 1} deformed {'copy' if copies.count == 2 else 'copies'}"
    return replace(
        source,
        train=copies.of_images(source.train),
        identity={**source.identity, "copies": {"version": ALGORITHM_VERSION, **asdict(copies)}},
        notes=(*source.notes, f"each of {n} training images with {told}: {n * copies.count} rows"),
    )


def eased(side: int) -> np.ndarray:
    """Return the places (side,) f8 of the pixels of a side among nodes 0, 1, …, eased by (1 - cos) / 2 between them."""
    at = np.arange(side) * ((NODES - 1) / (max(side, 2) - 1))
    return np.floor(at) + (1.0 - np.cos(np.pi * (at % 1.0))) / 2


@njit(cache=True, nogil=True)
def deform_rows(
    images: np.ndarray, maps: np.ndarray, nodes: np.ndarray, eased_y: np.ndarray, eased_x: np.ndarray, out: np.ndarray
) -> None:
    """Write images (n, H, W, channels) f8, deformed by maps (n, 6) and nodes (n, 2, k, k), to `out`."""
    height, width, n_channels = images.shape[1:]
    middle_y, middle_x, last = (height - 1) / 2, (width - 1) / 2, nodes.shape[3] - 2
    along = np.empty((2, nodes.shape[3]))  # displacements of the nodes' columns in one row of pixels
    for r in range(len(images)):
        image, of_y, of_x = images[r], nodes[r, 0], nodes[r, 1]
        for y in range(height):
            j, v = min(int(eased_y[y]), last), y - middle_y
            for k in range(nodes.shape[3]):
                along[0, k] = of_y[j, k] + (eased_y[y] - j) * (of_y[j + 1, k] - of_y[j, k])
                along[1, k] = of_x[j, k] + (eased_y[y] - j) * (of_x[j + 1, k] - of_x[j, k])
            start_y = middle_y + maps[r, 0] * v + maps[r, 4]
            start_x = middle_x + maps[r, 2] * v + maps[r, 5]
            for x in range(width):
                k, u = min(int(eased_x[x]), last), x - middle_x
                at_y = start_y + maps[r, 1] * u + along[0, k] + (eased_x[x] - k) * (along[0, k + 1] - along[0, k])
                at_x = start_x + maps[r, 3] * u + along[1, k] + (eased_x[x] - k) * (along[1, k + 1] - along[1, k])
                at_y, at_x = min(max(at_y, 0.0), height - 1.0), min(max(at_x, 0.0), width - 1.0)
                top, left = int(at_y), int(at_x)
                below, right = min(top + 1, height - 1), min(left + 1, width - 1)
                for c in range(n_channels):
                    high = image[top, left, c] + (at_x - left) * (image[top, right, c] - image[top, left, c])
                    low = image[below, left, c] + (at_x - left) * (image[below, right, c] - image[below, left, c])
                    out[r, y, x, c] = high + (at_y - top) * (low - high)
