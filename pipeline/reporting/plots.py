"""Plots as inline SVG and pictures as PNG in a data URI: all that a report draws, with nothing but numpy and zlib."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from pipeline.reporting.result_table import names_by_importance
from pipeline.solvers.kernel_trials import DIAGONAL, METRIC

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 44
BAR_LEFT, BAR_HEIGHT = 150, 17  # of named bars
MOST_BARS = 20
MOST_POINTS = 400  # of one line; more would only make the file larger
MOST_LINES = 10  # of one plot, which has no more colours
MOST_SIDE = 64  # pixels of a picture
# Of lines, --c0 to --c9 in the page's style: on white, and on black.
LIGHT = ("#1f77b4", "#e06c00", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#d557b0", "#7f7f7f", "#a3a414", "#11a3b3")
DARK = ("#6cb2eb", "#ff9d45", "#5fd35f", "#ff7b72", "#c3a3e6", "#cf9d8f", "#f29bd4", "#b0b0b0", "#d7d84b", "#45d6e4")
SPREAD = 100.0  # largest over smallest value from which an axis is logarithmic unless told otherwise
SOLVE_KEYS = {
    *("statistics", "output", "penalty", "iteration", "seconds", "objective", "relative_gap", "n_active"),
    *("visited", "skipped", "screened"),
}
COUNTS = ("working_set", "n_active", "violators", "admitted", "dropped")  # of a pass
_PNG_START = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Line:
    """A named line through points (x, y), or the points alone where `dots`."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


@dataclass(frozen=True)
class Axis:
    """A labelled axis, linear or logarithmic; None: as the values spread."""

    label: str
    log: bool | None = None

    def over(self, values: Sequence[float]) -> "Axis":
        """Return the axis as it suits some values."""
        if self.log is not None:
            return self
        known = [value for value in values if math.isfinite(value)]
        return replace(self, log=bool(known) and 0 < SPREAD * min(known) <= max(known))

    def place(self, value: float) -> float:
        """Return where a value lies on the axis, before it is scaled to the plot."""
        return math.log10(value) if self.log else value

    def shows(self, value: float) -> bool:
        """Return whether a value has a place on the axis."""
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


def plot(lines: Sequence[Line], x: Axis, y: Axis) -> Markup:
    """Return an SVG element with some lines and their legend; empty where no point has a place on the axes."""
    x, y = (axis.over([point[k] for line in lines for point in line.points]) for k, axis in enumerate((x, y)))
    shown = [(line, [(x.place(a), y.place(b)) for a, b in line.points if x.shows(a) and y.shows(b)]) for line in lines]
    drawn = [(line, _thinned(points)) for line, points in shown if points]
    if not drawn:
        return Markup("")
    xs, ys = ([point[k] for _, points in drawn for point in points] for k in (0, 1))
    across, up = _range(xs, x), _range(ys, y)
    legend_rows = -(-len(drawn) // 4) if len(drawn) > 1 or drawn[0][0].name else 0
    total = HEIGHT + 18 * legend_rows
    parts = [f'<svg class="plot" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" role="img">']
    parts += [f"<title>{escape(y.label)} against {escape(x.label)}</title>", *_frame(x, y, across, up)]
    for k, (line, points) in enumerate(drawn):
        places = [(_across(a, across), _up(b, up)) for a, b in points]
        parts.append(_shape(places, _colour(k), line.dots))
    parts += _legend([line.name for line, _ in drawn]) if legend_rows else []
    return Markup("".join([*parts, "</svg>"]))  # every text in it was escaped


def _curve(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> Markup:
    return plot([Line("", points)], x, y)


def bars(values: Sequence[float], names: Sequence[str]) -> Markup:
    """Return a small SVG element with a bar for each value, up or down from a line in the middle."""
    largest = max((abs(value) for value in values), default=0.0) or 1.0
    width = 60 / max(len(values), 1)
    parts = ['<svg class="bars" viewBox="0 0 60 24" width="60" height="24" role="img">']
    parts.append('<line x1="0" y1="12" x2="60" y2="12" class="frame"/>')
    for k, (value, name) in enumerate(zip(values, names, strict=True)):
        height = 11 * abs(value) / largest
        top = 12 - height if value > 0 else 12
        parts.append(
            f'<rect x="{k * width + 0.5:.2f}" y="{top:.2f}" width="{max(width - 1, 0.5):.2f}" height="{height:.2f}" '
            f'fill="{_colour(k)}"><title>{escape(name)}: {value:.4g}</title></rect>'
        )
    return Markup("".join([*parts, "</svg>"]))


def shares(values: Sequence[tuple[str, float]]) -> Markup:
    """Return an SVG element with a named horizontal bar for each share of a whole."""
    largest, total = max(share for _, share in values) or 1.0, BAR_HEIGHT * len(values)
    parts = [f'<svg class="plot" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" role="img">']
    parts.append("<title>shares of the features</title>")
    for k, (name, share) in enumerate(values):
        top, width = BAR_HEIGHT * k, (WIDTH - BAR_LEFT - 60) * share / largest
        parts.append(f'<text x="{BAR_LEFT - 6}" y="{top + 12}" text-anchor="end">{_cut(name, 20)}</text>')
        parts.append(
            f'<rect x="{BAR_LEFT}" y="{top + 2}" width="{max(width, 0.5):.1f}" height="{BAR_HEIGHT - 5}" '
            f'fill="{_colour(0)}"><title>{escape(name)}: {share:.4g}</title></rect>'
        )
        parts.append(f'<text x="{BAR_LEFT + width + 5:.1f}" y="{top + 12}">{100 * share:.3g} %</text>')
    return Markup("".join([*parts, "</svg>"]))


def picture(image: NDArray[np.generic]) -> Markup:
    """Return a data URI of a grey PNG of an image (H, W); bytes as they are, other numbers from least to largest.

    An image of more than 64 pixels a side is thinned.
    """
    step = -(-max(image.shape) // MOST_SIDE)
    pixels = image[::step, ::step]
    if pixels.dtype != np.uint8:
        values = np.asarray(pixels, np.float64)
        low, high = values.min(), values.max()
        pixels = np.round(255 * (values - low) / (high - low if high > low else 1.0)).astype(np.uint8)
    height, width = pixels.shape
    rows = np.hstack([np.zeros((height, 1), np.uint8), pixels]).tobytes()  # each row is preceded by its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    data = _PNG_START + b"".join(_chunk(kind, content) for kind, content in chunks)
    return Markup("data:image/png;base64," + base64.b64encode(data).decode())


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _colour(k: int) -> str:
    return f"var(--c{k % len(LIGHT)})"


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most MOST_POINTS points, the first and the last among them."""
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


def _across(place: float, ends: tuple[float, float]) -> float:
    return LEFT + (place - ends[0]) / (ends[1] - ends[0]) * (WIDTH - LEFT - RIGHT)


def _up(place: float, ends: tuple[float, float]) -> float:
    return HEIGHT - BOTTOM - (place - ends[0]) / (ends[1] - ends[0]) * (HEIGHT - TOP - BOTTOM)


def _frame(x: Axis, y: Axis, across: tuple[float, float], up: tuple[float, float]) -> list[str]:
    """Return the frame, grid, ticks and labels of a plot."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for place, text in x.ticks(*across):
        at = _across(place, across)
        parts.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}" class="grid"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{text}</text>')
    for place, text in y.ticks(*up):
        at = _up(place, up)
        parts.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" class="frame"/>')
    middle = (TOP + bottom) / 2
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>')
    parts.append(f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{escape(y.label)}</text>')
    return parts


def _shape(places: Sequence[tuple[float, float]], colour: str, dots: bool) -> str:
    """Return a line; its points too where they are few, and alone where `dots`."""
    shapes = ""
    if not dots and len(places) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        shapes = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    if dots or len(places) <= 30:
        shapes += "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{colour}"/>' for a, b in places)
    return shapes


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for k, name in enumerate(names):
        left, top = LEFT + (k % 4) * 98, HEIGHT + 4 + 18 * (k // 4)
        parts.append(f'<rect x="{left}" y="{top}" width="10" height="10" fill="{_colour(k)}"/>')
        parts.append(f'<text x="{left + 14}" y="{top + 9}">{_cut(name, 12)}<title>{escape(name)}</title></text>')
    return parts


def _cut(name: str, most: int) -> Markup:
    """Return a name of at most so many letters, about 7 pixels each, for the room that it has."""
    return escape(name if len(name) <= most else f"{name[: most - 1]}…")


def solves(records: Sequence[dict[str, Any]], labels: Sequence[str] | None) -> dict[str, Any]:
    """Return the plots of the last solves (one penalty, one set of statistics), and the visits of all of them.

    `records` as in metrics.jsonl; `labels` names the outputs, None where they are not known yet.
    """
    solve_records = [record for record in records if record.keys() >= SOLVE_KEYS]
    if not solve_records:
        return {"solve_plots": [], "solve_note": "", "visits": None}
    last = {key: solve_records[-1][key] for key in ("statistics", "penalty")}
    groups: dict[int, list[dict[str, Any]]] = {}
    for record in solve_records:
        if all(record[key] == value for key, value in last.items()):
            groups.setdefault(record["output"], []).append(record)
    drawn = {_output_name(output, labels): groups[output] for output in sorted(groups)}
    shown = dict(list(drawn.items())[:MOST_LINES])
    sweeps = Axis("sweeps and Newton rounds", log=False)
    plots = [
        plot(_lines(shown, "iteration", "objective"), sweeps, Axis("objective")),
        plot(_lines(shown, "iteration", "relative_gap"), sweeps, Axis("relative gap", log=True)),
        plot(_lines(shown, "iteration", "n_active"), sweeps, Axis("active candidates")),
        _visits_plot(drawn, sweeps),
    ]
    visits = {key: sum(int(record[key]) for record in solve_records) for key in ("visited", "skipped", "screened")}
    note = f"The solves at penalty {last['penalty']:g} on the statistics “{last['statistics']}”"
    note += f"; {len(shown)} of {len(drawn)} outputs are drawn." if len(shown) < len(drawn) else "."
    return {"solve_plots": [one for one in plots if one], "solve_note": note, "visits": visits}


def _output_name(output: int, labels: Sequence[str] | None) -> str:
    return labels[output] if labels and output < len(labels) else f"output {output}"


def _lines(groups: dict[str, list[dict[str, Any]]], x: str, y: str) -> list[Line]:
    return [Line(name, [(one[x], one[y]) for one in records if one[y] is not None]) for name, records in groups.items()]


def _visits_plot(groups: dict[str, list[dict[str, Any]]], sweeps: Axis) -> Markup:
    """Draw the visits so far, of all outputs, and those that as many sweeps over all candidates would make."""
    each: dict[int, list[int]] = {}
    for record in (one for records in groups.values() for one in records):
        made = each.setdefault(int(record["iteration"]), [0, 0])
        made[0] += record["visited"]
        made[1] += record["visited"] + record["skipped"] + record["screened"]
    order = sorted(each)
    totals = np.cumsum([each[k] for k in order], axis=0)
    names = ("visited", "full sweeps")
    lines = [Line(name, list(zip(order, totals[:, k].tolist(), strict=True))) for k, name in enumerate(names)]
    return plot(lines, sweeps, Axis("visits so far"))


def passes(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rounds of a run whose working set grows, and their plots."""
    done = sorted((record for record in records if "round" in record), key=lambda record: record["round"])
    counts = [
        Line(name.replace("_", " "), [(one["round"], one[name]) for one in done if name in one]) for name in COUNTS
    ]
    gaps = [(one["round"], max(one["relative_gaps"])) for one in done if one.get("relative_gaps")]
    errors = [(one["round"], one["hold_out_error"]) for one in done if "hold_out_error" in one]
    sampled = [(one["round"], one["sample_error"]) for one in done if "sample_error" in one]
    rounds = Axis("batch" if sampled else "pass over all candidates", log=False)
    plots = [
        _curve(gaps, rounds, Axis("largest gap, all candidates", log=True)),
        _curve(errors, rounds, Axis("held-out error")),
        _curve(sampled, rounds, Axis("squared error of the sample")),
        plot(counts, rounds, Axis("candidates")),
    ]
    return {"passes": done, "pass_plots": [one for one in plots if one]}


def of_report(report: dict[str, Any] | None) -> dict[str, list[Markup]]:
    """Return the plots of what a report has: path, learned scales, selection, moved centers, probabilities."""
    report = report or {}
    held_out = Axis("held-out mean squared error")
    path, penalty = report.get("path") or [], Axis("penalty", log=True)
    path_plots = [
        _curve([(one["penalty"], one["hold_out_error"]) for one in path], penalty, Axis("held-out error")),
        _curve([(one["penalty"], one["n_centers"]) for one in path], penalty, Axis("centers")),
    ]
    scale_plots, polished = [], report.get("polish")
    if scales := report.get("feature_scales"):
        errors = [(number, error) for number, error in enumerate(scales["hold_out_errors"]) if error is not None]
        learned = scales["chosen_round"] and scales["kind"] in (DIAGONAL, METRIC)
        bars_of_features = [shares(names_by_importance(scales, MOST_BARS))] if learned else []
        scale_plots = [*bars_of_features, _curve(errors, Axis("round", log=False), held_out)]
    selection_plots = []
    if selected := report.get("selection"):
        values, size = report["task"] == "regression", Axis("centers", log=True)
        name, scale = ("test mean squared error", 1.0) if values else ("test error, %", 100.0)
        curve = selected["curve"]
        errors = [(one["size"], scale * one["test_error"]) for one in curve if one["test_error"] is not None]
        selection_plots = [
            _curve(errors, size, Axis(name)),
            _curve([(one["size"], one["hold_out_error"]) for one in curve], size, held_out),
        ]
    drawn = {
        "path_plots": path_plots,
        "scale_plots": scale_plots,
        "selection_plots": selection_plots,
        "polish_plots": [plot(_moves(polished), Axis("step", log=False), held_out)] if polished else [],
        "reliability_plots": _reliability((report.get("probabilities") or {}).get("reliability", [])),
    }
    return {name: [one for one in plots if one] for name, plots in drawn.items()}


def _moves(polished: dict[str, Any]) -> list[Line]:
    """Return the held-out errors of moved centers by step, a line for each share of the rows that they are of."""
    errors = list(enumerate(polished["held_out_errors"]))
    levels = polished.get("levels") or [{"share": 1.0, "first_step": 0}]
    ends = [*(level["first_step"] for level in levels[1:]), len(errors)]
    names = ["all rows" if level["share"] == 1 else f"{level['share']:.0%} of the rows" for level in levels]
    named = zip(levels, ends, names if len(levels) > 1 else [""], strict=True)
    return [Line(name, errors[level["first_step"] : end]) for level, end, name in named]


def _reliability(bins: Sequence[dict[str, Any]]) -> list[Markup]:
    """Return the reliability diagram of the probabilities, and how many rows are in each of its bins."""
    sure = Axis("largest probability, mean of a bin", log=False)
    ideal = Line("calibrated", [(0, 0), (1, 1)])
    right = Line("test rows", [(one["confidence"], one["accuracy"]) for one in bins])
    rows = [(one["confidence"], one["rows"]) for one in bins]
    if not bins:
        return []
    shares = plot([ideal, right], sure, Axis("share that is right", log=False))
    return [shares, _curve(rows, sure, Axis("test rows", log=True))]
