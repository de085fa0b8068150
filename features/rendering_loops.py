"""Compiled renderer of synthetic digits: control points → deformed strokes → pixels.

Each image has its own counter-based generator (splitmix64 of seed, part and row), whatever block it is in.
"""

import math

import numpy as np
from numba import njit

SIDE = 28
GLYPH_HEIGHT_PIXELS = 19.0
PIECES_PER_SPAN = 4
N_WAVES = 4

MAX_ROTATION_RADIANS = 0.26
SLANT_MEAN, SLANT_SPREAD = 0.12, 0.20
MIN_SCALE, MAX_SCALE = 0.80, 1.12
MIN_ASPECT, MAX_ASPECT = 0.75, 1.25
MAX_SHIFT_PIXELS = 1.6
WAVE_AMPLITUDE = 0.055
MIN_RADIUS_PIXELS, MAX_RADIUS_PIXELS = 0.65, 1.75

_GOLDEN, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@njit(cache=True, nogil=True)
def _mix(value: np.uint64) -> np.uint64:
    """Return splitmix64's finaliser of a uint64."""
    value = (value ^ (value >> _SHIFT_30)) * _MIX_1
    value = (value ^ (value >> _SHIFT_27)) * _MIX_2
    return value ^ (value >> _SHIFT_31)


@njit(cache=True, nogil=True)
def _uniform(state: np.ndarray, low: float, high: float) -> float:
    """Advance `state` (1,) uint64 and return a float64 in [low, high)."""
    state[0] += _GOLDEN
    return low + (high - low) * (float(_mix(state[0]) >> _SHIFT_11) * (1.0 / 9007199254740992.0))


@njit(cache=True, nogil=True)
def _start(state: np.ndarray, seed: np.uint64, part: np.uint64, row: np.uint64) -> int:
    """Set the generator of one image, and return its digit."""
    state[0] = _mix(_mix(_mix(seed + _GOLDEN) + part + _GOLDEN) + row + _GOLDEN)
    return int(_uniform(state, 0.0, 10.0))


@njit(cache=True, nogil=True)
def _draw_waves(state: np.ndarray, waves: np.ndarray) -> None:
    """Fill `waves` (N_WAVES, 5): wave vector, phase, amplitudes; long waves are the strongest."""
    for k in range(N_WAVES):
        cycles = _uniform(state, 0.25, 0.6) * (1.0 + 0.6 * k)
        direction = _uniform(state, 0.0, 2.0 * math.pi)
        waves[k, 0] = 2.0 * math.pi * cycles * math.cos(direction)
        waves[k, 1] = 2.0 * math.pi * cycles * math.sin(direction)
        waves[k, 2] = _uniform(state, 0.0, 2.0 * math.pi)
        reach = 2.0 * WAVE_AMPLITUDE / (1.0 + 0.35 * k)
        waves[k, 3] = _uniform(state, -reach, reach)
        waves[k, 4] = _uniform(state, -reach, reach)


@njit(cache=True, nogil=True)
def _draw_affine(state: np.ndarray, affine: np.ndarray) -> None:
    """Fill `affine` (6,), unit square to pixels: rotation · shear · scale, then shift."""
    angle = _uniform(state, -MAX_ROTATION_RADIANS, MAX_ROTATION_RADIANS)
    slant = SLANT_MEAN + _uniform(state, -SLANT_SPREAD, SLANT_SPREAD)
    tall = GLYPH_HEIGHT_PIXELS * _uniform(state, MIN_SCALE, MAX_SCALE)
    wide = tall * _uniform(state, MIN_ASPECT, MAX_ASPECT)
    cosine, sine = math.cos(angle), math.sin(angle)
    affine[0], affine[1] = cosine * wide, (-cosine * slant - sine) * tall
    affine[2], affine[3] = sine * wide, (-sine * slant + cosine) * tall
    centre = 0.5 * (SIDE - 1)
    affine[4] = centre + _uniform(state, -MAX_SHIFT_PIXELS, MAX_SHIFT_PIXELS)
    affine[5] = centre + _uniform(state, -MAX_SHIFT_PIXELS, MAX_SHIFT_PIXELS)


@njit(cache=True, nogil=True)
def _place(point: np.ndarray, waves: np.ndarray, affine: np.ndarray, placed: np.ndarray) -> None:
    """Displace one glyph point by the waves, then map it to pixel coordinates."""
    x, y = point[0], point[1]
    dx, dy = x - 0.5, y - 0.5
    for k in range(N_WAVES):
        wave = math.sin(waves[k, 0] * x + waves[k, 1] * y + waves[k, 2])
        dx += waves[k, 3] * wave
        dy += waves[k, 4] * wave
    placed[0] = affine[0] * dx + affine[1] * dy + affine[4]
    placed[1] = affine[2] * dx + affine[3] * dy + affine[5]


@njit(cache=True, nogil=True)
def _segment(canvas: np.ndarray, x0: float, y0: float, x1: float, y1: float, radius: float) -> None:
    """Cover the pixels within `radius` of a segment, soft edge one pixel wide; the darkest cover counts."""
    reach = radius + 0.5
    left, right = max(0, math.ceil(min(x0, x1) - reach)), min(SIDE - 1, math.floor(max(x0, x1) + reach))
    top, bottom = max(0, math.ceil(min(y0, y1) - reach)), min(SIDE - 1, math.floor(max(y0, y1) + reach))
    along_x, along_y = x1 - x0, y1 - y0
    inverse = 1.0 / (along_x * along_x + along_y * along_y + 1e-12)
    for y in range(top, bottom + 1):
        for x in range(left, right + 1):
            from_x, from_y = x - x0, y - y0
            share = min(1.0, max(0.0, (from_x * along_x + from_y * along_y) * inverse))
            from_x -= share * along_x
            from_y -= share * along_y
            squared = from_x * from_x + from_y * from_y
            if squared < reach * reach:
                cover = min(1.0, reach - math.sqrt(squared))
                if cover > canvas[y, x]:
                    canvas[y, x] = cover


@njit(cache=True, nogil=True)
def _curve(canvas: np.ndarray, points: np.ndarray, n_points: int, radius: float) -> None:
    """Draw a Catmull-Rom curve through `points` (n_points, 2), in pixels."""
    for i in range(n_points - 1):
        before, after = max(0, i - 1), min(n_points - 1, i + 2)
        last_x, last_y = points[i, 0], points[i, 1]
        for step in range(1, PIECES_PER_SPAN + 1):
            t = step / PIECES_PER_SPAN
            a = t * (-0.5 + t * (1.0 - 0.5 * t))
            b = 1.0 + t * t * (-2.5 + 1.5 * t)
            c = t * (0.5 + t * (2.0 - 1.5 * t))
            d = t * t * (-0.5 + 0.5 * t)
            x = a * points[before, 0] + b * points[i, 0] + c * points[i + 1, 0] + d * points[after, 0]
            y = a * points[before, 1] + b * points[i, 1] + c * points[i + 1, 1] + d * points[after, 1]
            _segment(canvas, last_x, last_y, x, y, radius)
            last_x, last_y = x, y


@njit(cache=True, nogil=True)
def digits_of_rows(seed: np.uint64, part: np.uint64, start: int, stop: int, digits: np.ndarray) -> None:
    """Write the digits of rows start … stop - 1 to `digits` (stop - start,) int64, without rendering."""
    state = np.zeros(1, np.uint64)
    for i in range(stop - start):
        digits[i] = _start(state, seed, part, np.uint64(start + i))


@njit(cache=True, nogil=True)
def render_rows(
    seed: np.uint64,
    part: np.uint64,
    start: int,
    stop: int,
    points: np.ndarray,
    stroke_start: np.ndarray,
    variant_start: np.ndarray,
    digit_start: np.ndarray,
    images: np.ndarray,
) -> None:
    """Render rows start … stop - 1 to `images` (stop - start, 28, 28) uint8.

    `points` (p, 2) are control points; stroke s owns points stroke_start[s] … stroke_start[s + 1] - 1, and so do
    variants own strokes, and digits variants. `seed` and `part` are uint64.
    """
    state = np.zeros(1, np.uint64)
    waves = np.empty((N_WAVES, 5))
    affine = np.empty(6)
    placed = np.empty((points.shape[0], 2))
    canvas = np.empty((SIDE, SIDE))
    for i in range(stop - start):
        digit = _start(state, seed, part, np.uint64(start + i))
        variant = int(_uniform(state, digit_start[digit], digit_start[digit + 1]))
        _draw_waves(state, waves)
        _draw_affine(state, affine)
        radius = _uniform(state, MIN_RADIUS_PIXELS, MAX_RADIUS_PIXELS)
        ink = _uniform(state, 0.85, 1.1)
        canvas[:] = 0.0
        for stroke in range(variant_start[variant], variant_start[variant + 1]):
            first, n_points = stroke_start[stroke], stroke_start[stroke + 1] - stroke_start[stroke]
            for k in range(n_points):
                _place(points[first + k], waves, affine, placed[k])
            _curve(canvas, placed, n_points, radius)
        for y in range(SIDE):
            for x in range(SIDE):
                images[i, y, x] = np.uint8(255.0 * min(1.0, ink * canvas[y, x]) + 0.5)


SIGNATURES = {
    "digits_of_rows": "(u8, u8, i8, i8, i8[::1])",
    "render_rows": "(u8, u8, i8, i8, f8[:, ::1], i8[::1], i8[::1], i8[::1], u1[:, :, ::1])",
}
