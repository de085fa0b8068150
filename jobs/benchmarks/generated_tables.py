"""Tables like those that kernel machines are compared on, generated from fixed seeds.

Each is (X_train, y_train, X_test, y_test) in float64, the same at every call.
"""

from collections.abc import Callable
from functools import partial

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
SIDE = 40  # A rendered letter has a square box of this side, in pixels.


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


def irrelevant(n_train: int = 6000, n_test: int = 2000, turns: float = 0.5, noise: float = 0.15) -> Table:
    """32 inputs of which five matter, with moderate noise: as pumadyn32nm, the acceleration of a robot's joint.

    The more turns the first two of them make, the less a line, or a wide kernel, says of the target.
    """
    draw = np.random.default_rng(32)
    X = draw.uniform(-1, 1, (n_train + n_test, 32))
    a, b, speed, torque, load = X[:, 3], X[:, 11], X[:, 17], X[:, 24], X[:, 30]
    wave, there, back = np.sin(2 * np.pi * turns * a), np.sin(4 * np.pi * turns * b), np.cos(2 * np.pi * turns * b)
    force = wave * (1 + load) + 0.5 * there * torque + 0.4 * speed**2 * back
    return _split(X, force + noise * force.std() * draw.standard_normal(len(X)), n_train)


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


def friedman(number: int, n_train: int = 4000, n_test: int = 4000, n_inputs: int = 10) -> Table:
    """Friedman's functions (1991) with noise of a fifth of their deviation; the first takes five of its n_inputs."""
    more = {"n_features": n_inputs} if number == 1 else {}
    make = (make_friedman1, make_friedman2, make_friedman3)[number - 1]
    X, y = make(n_train + n_test, random_state=number, **more)
    return _split(X, y + 0.2 * y.std() * np.random.default_rng(number).standard_normal(len(y)), n_train)


def steps(n_train: int = 10_000, n_test: int = 5000) -> Table:
    """10 inputs of which four matter, by steps in each and boxes in pairs of them, with modest noise."""
    draw, of_rows = np.random.default_rng(10).spawn(2)
    X = of_rows.uniform(0, 1, (n_train + n_test, 10))
    y = np.zeros(len(X))
    for i in np.repeat(np.arange(4), 4):
        y += draw.normal() * (X[:, i] > draw.uniform(0.1, 0.9))
    for _ in range(6):
        pair, middle, half = draw.choice(4, 2, replace=False), draw.uniform(0.1, 0.9, 2), draw.uniform(0.1, 0.2, 2)
        y += 2 * draw.normal() * (abs(X[:, pair] - middle) < half).all(axis=1)
    return _split(X, y + 0.2 * y.std() * of_rows.standard_normal(len(y)), n_train)


def ridges(n_train: int = 8000, n_test: int = 8000) -> Table:
    """8 inputs, a target with kinks along the axes and where two inputs cross, with little noise."""
    draw, of_rows = np.random.default_rng(8).spawn(2)
    X = of_rows.uniform(-1, 1, (n_train + n_test, 8))
    y = np.zeros(len(X))
    for i in range(8):
        y += draw.normal() * abs(X[:, i] - draw.uniform(-0.6, 0.6)) * (1 + np.maximum(X[:, (i + 1) % 8], 0))
    for i in range(0, 8, 2):
        y += 1.5 * draw.normal() * np.maximum(X[:, i] - draw.uniform(-0.3, 0.3), X[:, i + 1])
    return _split(X, y + 0.1 * y.std() * of_rows.standard_normal(len(y)), n_train)


def houses(n_train: int = 15_000, n_test: int = 5000) -> Table:
    """Two coordinates, in towns, and 6 positive, skewed inputs → prices: dear by the coast and in patches, noisy."""
    draw, of_rows = np.random.default_rng(1990).spawn(2)
    towns, rows_of_town, spread = draw.uniform(0, 10, (60, 2)), draw.pareto(1.2, 60) + 0.2, draw.uniform(0.05, 0.6, 60)
    patches, widths = towns[draw.integers(60, size=60)] + draw.normal(0, 0.4, (60, 2)), draw.uniform(0.1, 0.6, 60)
    worth_of_patch = draw.normal(0, 0.35, 60)
    town = of_rows.choice(60, n_train + n_test, p=rows_of_town / rows_of_town.sum())
    u, v = (towns[town] + of_rows.standard_normal((len(town), 2)) * spread[town, None]).T
    inland = v - 2 - 0.3 * u - np.sin(u) - 0.3 * np.sin(4 * u)
    squared = (u[:, None] - patches[:, 0]) ** 2 + (v[:, None] - patches[:, 1]) ** 2
    near = np.exp(-squared / (2 * widths**2)) @ worth_of_patch
    wealth, size, shape, people, occupancy = of_rows.standard_normal((5, len(town)))
    wealth += 0.5 * near
    income, age, occupancy = (
        np.exp(0.45 * wealth + 1.2),
        of_rows.integers(1, 53, len(town)),
        np.exp(0.25 * occupancy + 1),
    )
    rooms, population = np.exp(0.25 * wealth + 0.15 * size + 1.6), np.exp(0.7 * people + 7)
    bedrooms = np.exp(0.08 * shape) * np.sqrt(rooms) / 2.2
    worth = near + 0.6 * (inland > 0) * np.exp(-abs(inland) / 0.6) + 0.2 * (towns[town, 0] > 6)
    worth += 0.16 * np.minimum(income, 9) - 0.25 * np.log(occupancy) + 0.003 * age + 0.2 * bedrooms / rooms
    y = np.minimum(np.exp(worth + 0.15 * of_rows.standard_t(5, len(town))), 5.0)
    return _split(np.column_stack([u, v, income, age, rooms, bedrooms, population, occupancy]), y, n_train)


def protein(n_train: int = 40_000, n_test: int = 5000) -> Table:
    """9 positive, skewed, correlated inputs, a rough target of up to three of them at a time, and much noise."""
    draw, of_rows = np.random.default_rng(9).spawn(2)
    Z = of_rows.standard_normal((n_train + n_test, 3)) @ draw.standard_normal((3, 9)) / np.sqrt(3)
    Z += 0.4 * of_rows.standard_normal(Z.shape)
    y = np.zeros(len(Z))
    for _ in range(300):
        # Frequencies of a Cauchy distribution are those of the Laplace kernel.
        chosen = draw.choice(9, draw.integers(1, 4), replace=False)
        frequency = 0.5 * draw.standard_normal(len(chosen)) / abs(draw.normal())
        y += np.cos(Z[:, chosen] @ frequency + draw.uniform(0, 2 * np.pi))
    X = np.exp(Z * draw.uniform(0.3, 1.0, 9)) * 10.0 ** draw.uniform(0, 4, 9)
    return _split(X, y + 0.4 * y.std() * of_rows.standard_normal(len(y)), n_train)


def five_of_28(n_train: int = 225_000, n_test: int = 50_000) -> Table:
    """28 inputs of which five decide, by a bent surface, between two classes; 15 % of the labels are wrong."""
    draw = np.random.default_rng(28)
    X = draw.standard_normal((n_train + n_test, 28))
    a, b, c, d, e = X[:, 2:27:5].T
    sides = a * b + c + 0.5 * d**2 - 0.5 + 0.7 * e > 0
    return _split(X, (sides ^ (draw.random(len(X)) < 0.15)).astype(int), n_train)


def rare(n_train: int = 15_000, n_test: int = 30_000) -> Table:
    """12 correlated inputs and two classes; the second are the 1 % of the rows where a noisy score is largest."""
    draw = np.random.default_rng(100)
    X = draw.standard_normal((n_train + n_test, 12)) + 0.7 * draw.standard_normal((n_train + n_test, 1))
    score = X[:, 0] + X[:, 1] + X[:, 2] * X[:, 3] + 2 * np.sin(X[:, 4]) + np.abs(X[:, 5])
    score += 0.8 * draw.logistic(size=len(X))
    return _split(X, (score > np.quantile(score, 0.99)).astype(int), n_train)


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


GENERATED: dict[str, Callable[..., Table]] = {
    "arm": arm,
    "arm36": partial(arm, n_train=36_000),
    "letters": letters,
    "irrelevant": irrelevant,
    "few": partial(irrelevant, n_train=7400, turns=1.25, noise=0.28),
    "sums": sums,
    "smooth": smooth,
    **{f"friedman{number}": partial(friedman, number) for number in (1, 2, 3)},
    "friedman1_noise": partial(friedman, 1, n_train=10_000, n_inputs=30),
    "steps": steps,
    "ridges": ridges,
    "houses": houses,
    "protein": protein,
    "five_of_28": five_of_28,
    "rare": rare,
}
