"""Tables like those that kernel machines are compared on, generated from fixed seeds.

Each is (X_train, y_train, X_test, y_test) in float64, the same at every call.
"""

from collections.abc import Callable

import matplotlib
import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from numpy.typing import NDArray
from sklearn.datasets import make_friedman1, make_friedman2, make_friedman3

Table = tuple[NDArray[np.float64], NDArray, NDArray[np.float64], NDArray]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FONTS = [f"DejaVuS{style}" for style in ("ans", "ans-Bold", "ans-Oblique", "erif", "erif-Bold", "erif-Italic")]
FONTS += ["DejaVuSansMono", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10", "cmb10"]
SIDE = 40  # pixels of a rendered letter's box


def arm(n_train: int = 10_000, n_test: int = 30_000) -> Table:
    """8 joint angles → distance of an arm's hand from a point: smooth, nonlinear in all inputs, nearly without noise.

    As kin40k: alternate joints turn about crossed axes, links have the length 1.
    """
    draw = np.random.default_rng(40)
    angles = draw.uniform(-1, 1, (n_train + n_test, 8))
    hand, turn = np.zeros((len(angles), 3)), np.tile(np.eye(3), (len(angles), 1, 1))
    for joint in range(8):
        cosine, sine = np.cos(0.6 * np.pi * angles[:, joint]), np.sin(0.6 * np.pi * angles[:, joint])
        i, j = ((0, 1), (0, 2))[joint % 2]
        step = np.tile(np.eye(3), (len(angles), 1, 1))
        step[:, i, i], step[:, i, j], step[:, j, i], step[:, j, j] = cosine, -sine, sine, cosine
        turn = turn @ step
        hand += turn[:, :, 0]
    distance = np.linalg.norm(hand - [1.0, 1.0, 1.0], axis=1)
    return _split(angles, distance + 0.01 * draw.standard_normal(len(angles)), n_train)


def irrelevant(n_train: int = 6000, n_test: int = 2000) -> Table:
    """32 inputs of which five matter, with moderate noise: as pumadyn32nm, the acceleration of a robot's joint."""
    draw = np.random.default_rng(32)
    X = draw.uniform(-1, 1, (n_train + n_test, 32))
    a, b, speed, torque, load = X[:, 3], X[:, 11], X[:, 17], X[:, 24], X[:, 30]
    force = np.sin(np.pi * a) * (1 + load) + 0.5 * np.sin(2 * np.pi * b) * torque + 0.4 * speed**2 * np.cos(np.pi * b)
    return _split(X, force + 0.15 * force.std() * draw.standard_normal(len(X)), n_train)


def sums(n_train: int = 6000, n_test: int = 4000) -> Table:
    """20 inputs that all matter, but only by three sums of them, with little noise."""
    draw = np.random.default_rng(20)
    X = draw.standard_normal((n_train + n_test, 20))
    u, v, w = draw.standard_normal((3, 20)) @ X.T / np.sqrt(20)
    y = np.sin(2 * u) + v * w
    return _split(X, y + 0.1 * y.std() * draw.standard_normal(len(y)), n_train)


def smooth(n_train: int = 8000, n_test: int = 8000) -> Table:
    """18 correlated inputs of unlike spread, a smooth target with modest noise: as elevators, a controller's answer."""
    draw = np.random.default_rng(18)
    X = draw.standard_normal((n_train + n_test, 6)) @ draw.standard_normal((6, 18))
    X += 0.5 * draw.standard_normal(X.shape)
    Z = X @ draw.standard_normal((18, 4)) / 18
    y = Z[:, 0] + 0.6 * np.tanh(2 * Z[:, 1]) + 0.5 * Z[:, 2] * Z[:, 3] + 0.3 * Z[:, 0] ** 2
    return _split(X * 10.0 ** draw.uniform(-3, 3, 18), y + 0.3 * y.std() * draw.standard_normal(len(y)), n_train)


def friedman(number: int, n_train: int = 4000, n_test: int = 4000) -> Table:
    """Friedman's functions (1991) with noise of a fifth of their deviation; the first has five inputs to spare."""
    make = (make_friedman1, make_friedman2, make_friedman3)[number - 1]
    X, y = make(n_train + n_test, random_state=number)
    return _split(X, y + 0.2 * y.std() * np.random.default_rng(number).standard_normal(len(y)), n_train)


def letters(n_train: int = 15_000, n_test: int = 5000) -> Table:
    """26 capitals of 14 fonts, distorted; 16 numbers 0..15 of each, those of Frey and Slate (1991): as letter."""
    draw = np.random.default_rng(26)
    fonts = [FontProperties(fname=f"{matplotlib.get_data_path()}/fonts/ttf/{name}.ttf") for name in FONTS]
    outlines = {}
    for place, font in enumerate(fonts):
        for letter in LETTERS:
            parts = TextPath((0, 0), letter, size=1, prop=font).to_polygons()
            # In short pieces, so that a distortion bends them.
            outlines[place, letter] = Path.make_compound_path(*(Path(part).interpolated(3) for part in parts))
    y = draw.integers(26, size=n_train + n_test)
    attributes = np.stack(
        [_attributes(_distorted(outlines[draw.integers(len(fonts)), LETTERS[k]], draw), draw) for k in y]
    )
    low, high = np.percentile(attributes[:n_train], (0.5, 99.5), axis=0)
    X = np.clip(np.round(15 * (attributes - low) / (high - low)), 0, 15)
    return _split(X, np.array(list(LETTERS))[y], n_train)


def _distorted(outline: Path, draw: np.random.Generator) -> Path:
    """Return an outline stretched, sheared, turned and bent at random."""
    x, y = (outline.vertices - outline.vertices.mean(axis=0)).T
    x, y = x + draw.normal(0, 0.12) * y, y + draw.normal(0, 0.08) * x
    for _ in range(2):
        wave, phase = draw.uniform(4, 9, 2), draw.uniform(0, 2 * np.pi, 2)
        x, y = x + 0.025 * np.sin(wave[0] * y + phase[0]), y + 0.025 * np.sin(wave[1] * x + phase[1])
    scale = np.exp(draw.normal(0, 0.18, 2))
    return Path(np.stack([x * scale[0], y * scale[1]], axis=1), outline.codes)


def _attributes(outline: Path, draw: np.random.Generator) -> NDArray[np.float64]:
    """Return box, ink, moments and edges (16,) of an outline in a box of SIDE pixels with some pixels flipped."""
    low, high = outline.vertices.min(axis=0), outline.vertices.max(axis=0)
    grid = (np.arange(SIDE) + 0.5) / SIDE
    points = low + np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2) * (high - low)
    ink = outline.contains_points(points).reshape(SIDE, SIDE)
    ink ^= draw.random(ink.shape) < 0.01
    rows, columns = np.nonzero(ink)
    v, u = (rows - SIDE / 2) / SIDE, (columns - SIDE / 2) / SIDE
    across, down = ink[:, 1:] & ~ink[:, :-1], ink[1:] & ~ink[:-1]
    width, height = high - low
    box = [*np.add(draw.normal(0, 0.2, 2), (width, height)), width, height, ink.mean(), u.mean(), v.mean()]
    moments = [(u * u).mean(), (v * v).mean(), (u * v).mean(), (u * u * v).mean(), (u * v * v).mean()]
    edges = [across.sum() / SIDE, np.nonzero(across)[0].mean(), down.sum() / SIDE, np.nonzero(down)[1].mean()]
    return np.array([*box, *moments, *edges])


def _split(X: NDArray[np.float64], y: NDArray, n_train: int) -> Table:
    return X[:n_train], y[:n_train], X[n_train:], y[n_train:]


GENERATED: dict[str, Callable[[], Table]] = {
    "arm": arm,
    "letters": letters,
    "irrelevant": irrelevant,
    "sums": sums,
    "smooth": smooth,
    **{f"friedman{number}": lambda number=number: friedman(number) for number in (1, 2, 3)},
}
