"""What a report draws: plots as places in pixels, of which `drawing.html.j2` makes SVG, and pictures as PNG."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEFT, RIGHT, TOP, BOTTOM = 64, 448, 12, 236  # the frame of a plot, in pixels
MOST_POINTS = 400  # of one line; more would only make the file larger
FEW_POINTS = 30  # which are marked, each
MOST_LINES = 10  # of one plot, which has no more colours
MOST_SIDE = 64  # pixels of a picture
# Of lines, --c0 to --c9 in the page's style: on white, and on black.
LIGHT = ("#1f77b4", "#e06c00", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#d557b0", "#7f7f7f", "#a3a414", "#11a3b3")
DARK = ("#6cb2eb", "#ff9d45", "#5fd35f", "#ff7b72", "#c3a3e6", "#cf9d8f", "#f29bd4", "#b0b0b0", "#d7d84b", "#45d6e4")
SPREAD = 100.0  # largest over smallest value from which an axis is logarithmic unless told otherwise
SOLVE_KEYS = {
    *("statistics", "output", "penalty", "iteration", "seconds", "objective", "relative_gap", "n_active"),
    *("visits", "skipped_as_shrunk", "skipped_as_screened", "not_drawn"),
}
Lines = Mapping[str, Sequence[tuple[float, float]]]  # points (x, y) by name; the name of a lone line may be empty
Figure = dict[str, Any]  # a plot in pixels


@dataclass(frozen=True)
class Axis:
    """A labelled axis, linear or logarithmic; None: as the values spread."""

    label: str
    log: bool | None = None

    def over(self, values: Sequence[float]) -> "Axis":
        if self.log is not None:
            return self
        known = [value for value in values if math.isfinite(value)]
        return replace(self, log=bool(known) and 0 < SPREAD * min(known) <= max(known))

    def place(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def shows(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)

    def ticks(self, low: float, high: float) -> list[tuple[float, str]]:
        """Return place and text of some ticks between two places."""
        if not self.log:
            return _even_ticks(low, high)
        step = max(1, math.ceil((high - low) / 6))
        powers = [(float(k), f"1e{k}") for k in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, step)]
        if len(powers) >= 2:
            return powers
        return [(math.log10(value), text) for value, text in _even_ticks(10**low, 10**high) if value > 0]


def _even_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return about five multiples of 1, 2 or 5 times a power of ten between two values, with their texts."""
    raw = (high - low) / 5
    unit = 10 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(k * step, f"{k * step:.6g}") for k in range(first, last + 1)]


def plot(lines: Lines, x: Axis, y: Axis, dots: str | None = None) -> Figure | None:
    """Return a plot of lines, of the one named `dots` the points alone; None where no point has a place on the axes."""
    x, y = (axis.over([point[k] for points in lines.values() for point in points]) for k, axis in enumerate((x, y)))
    shown = {name: [(x.place(a), y.place(b)) for a, b in lines[name] if x.shows(a) and y.shows(b)] for name in lines}
    drawn = {name: _thinned(points) for name, points in shown.items() if points}
    if not drawn:
        return None
    places = [point for points in drawn.values() for point in points]
    across, up = _range([a for a, _ in places], x), _range([b for _, b in places], y)

    def at_x(place: float) -> float:
        return LEFT + (place - across[0]) / (across[1] - across[0]) * (RIGHT - LEFT)

    def at_y(place: float) -> float:
        return BOTTOM - (place - up[0]) / (up[1] - up[0]) * (BOTTOM - TOP)

    return {
        "x": x.label,
        "y": y.label,
        "x_ticks": [(at_x(place), text) for place, text in x.ticks(*across)],
        "y_ticks": [(at_y(place), text) for place, text in y.ticks(*up)],
        "frame": (LEFT, RIGHT, TOP, BOTTOM),
        "lines": [
            {
                "name": name,
                "points": [(at_x(a), at_y(b)) for a, b in points],
                "joined": name != dots and len(points) > 1,
                "marked": name == dots or len(points) <= FEW_POINTS,
            }
            for name, points in drawn.items()
        ],
    }


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(k * (len(points) - 1) / (MOST_POINTS - 1))] for k in range(MOST_POINTS)]


def _range(places: Sequence[float], axis: Axis) -> tuple[float, float]:
    """Return the ends of an axis, with some room where all places are one."""
    low, high = min(places), max(places)
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-300):
        room = 0.03 * (high - low)
        return (low if low == 0 and not axis.log else low - room), high + room
    room = 0.5 if axis.log else max(abs(low) / 10, 1e-9)
    return low - room, high + room


def picture(image: NDArray[np.generic]) -> str:
    """Return a data URI of a PNG of an image (H, W) or (H, W, 3); bytes as they are, others from least to largest."""
    step = -(-max(image.shape[:2]) // MOST_SIDE)
    pixels = image[::step, ::step]
    if pixels.dtype != np.uint8:
        values = np.asarray(pixels, np.float64)
        low, high = values.min(), values.max()
        pixels = np.round(255 * (values - low) / (high - low if high > low else 1.0)).astype(np.uint8)
    from PIL import Image  # slow to import

    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def of_run(
    report: dict[str, Any] | None, records: Sequence[dict[str, Any]], labels: Sequence[object]
) -> dict[str, list[Figure]]:
    """Return the plots of each section of a page that has any: of the report, and of records as in metrics.jsonl."""
    drawn = {"solves": _solves(records, labels)} | (_of_report(report) if report else {})
    return {section: figures for section, plots in drawn.items() if (figures := [one for one in plots if one])}


def of_solves(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of the iterations of solves."""
    return [record for record in records if record.keys() >= SOLVE_KEYS]


def last_solves(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of the last solves: of one penalty, on one set of statistics."""
    solves = of_solves(records)
    last = {key: solves[-1][key] for key in ("statistics", "penalty")} if solves else {}
    return [record for record in solves if record.items() >= last.items()]


def _solves(records: Sequence[dict[str, Any]], labels: Sequence[object]) -> list[Figure | None]:
    latest = last_solves(records)
    outputs, sweeps = sorted({record["output"] for record in latest}), Axis("sweeps and Newton rounds", log=False)
    drawn = {}
    for output in outputs[:MOST_LINES]:
        name = str(labels[output]) if output < len(labels) else f"output {output}"
        drawn[name] = [record for record in latest if record["output"] == output]
    return [
        plot(_lines(drawn, "objective"), sweeps, Axis("objective")),
        plot(_lines(drawn, "relative_gap"), sweeps, Axis("relative gap", log=True)),
        plot(_lines(drawn, "n_active"), sweeps, Axis("active candidates")),
    ]


def _lines(groups: dict[str, list[dict[str, Any]]], y: str) -> Lines:
    return {name: _points(records, "iteration", y) for name, records in groups.items()}


def _points(records: Sequence[dict[str, Any]], x: str, y: str, scale: float = 1.0) -> list[tuple[float, float]]:
    return [(one[x], scale * one[y]) for one in records if one.get(y) is not None]


def _of_report(report: dict[str, Any]) -> dict[str, list[Figure | None]]:
    values, held_out = report["task"] == "regression", Axis("held-out mean squared error")
    drawn = dict[str, list[Figure | None]]()
    if path := report["path"]:
        penalty = Axis("penalty", log=True)
        drawn["path"] = [
            plot({"": _points(path, "penalty", "hold_out_error")}, penalty, Axis("held-out error")),
            plot({"": _points(path, "penalty", "n_centers")}, penalty, Axis("centers")),
        ]
    if selected := report["selection"]:
        size, curve = Axis("centers", log=True), selected["curve"]
        name, scale = ("test mean squared error", 1.0) if values else ("test error, %", 100.0)
        drawn["selection"] = [
            plot({"": _points(curve, "size", "test_error", scale)}, size, Axis(name)),
            plot({"": _points(curve, "size", "hold_out_error")}, size, held_out),
        ]
    if moves := report["moves"]:
        drawn["moves"] = [plot(_moves(moves), Axis("step", log=False), held_out)]
    if probabilities := report["probabilities"]:
        bins, sure = probabilities["reliability"], Axis("largest probability, mean of a bin", log=False)
        right = {"calibrated": [(0.0, 0.0), (1.0, 1.0)], "test rows": _points(bins, "confidence", "accuracy")}
        drawn["reliability"] = [
            plot(right, sure, Axis("share that is right", log=False)),
            plot({"": _points(bins, "confidence", "rows")}, sure, Axis("test rows", log=True)),
        ]
    return drawn


def _moves(moves: dict[str, Any]) -> Lines:
    errors = list(enumerate(moves["held_out_errors"]))
    levels = moves["levels"]
    if len(levels) == 1:
        return {"": errors}
    ends = [*(level["first_step"] for level in levels[1:]), len(errors)]
    names = ["all rows" if level["share"] == 1 else f"{level['share']:.0%} of the rows" for level in levels]
    return {name: errors[level["first_step"] : end] for name, level, end in zip(names, levels, ends, strict=True)}
