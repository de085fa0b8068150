"""Plots of the page: points and ticks where their numbers say, bars, and pictures as they were."""

import re

import numpy as np
import pytest

from pipeline.reporting.page import Axis, Lines, environment, plot

DRAWING = environment().get_template("drawing.html.j2").module


def drawn(lines: Lines, y: Axis) -> str:
    figure = plot(lines, Axis("x"), y)
    assert figure
    return str(DRAWING.plot(figure))


def places_of(svg: str) -> np.ndarray:
    found = re.search(r'<polyline points="([^"]*)"', svg)
    assert found
    return np.array([[float(number) for number in point.split(",")] for point in found[1].split()])


def test_a_plot_places_points_and_ticks_alike():
    svg = drawn({"": [(1, 1e-1), (2, 1e-3), (3, 1e-5)]}, Axis("y", log=True))
    places = places_of(svg)
    assert np.diff(places[:, 0]) == pytest.approx([places[1, 0] - places[0, 0]] * 2, abs=0.11)
    assert np.diff(places[:, 1]) == pytest.approx([places[1, 1] - places[0, 1]] * 2, abs=0.11)
    assert places[0, 1] < places[2, 1], "large values are above"
    ticks = {
        text: float(at) - 4 for at, text in re.findall(r'<text x="59" y="([0-9.]*)" text-anchor="end">([^<]*)', svg)
    }
    assert ticks["1e-1"] == pytest.approx(places[0, 1], abs=0.2)
    assert ticks["1e-5"] == pytest.approx(places[2, 1], abs=0.2)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("ends", [(102.85, 103.41), (0.0004, 0.03), (5.0, 5.0), (1.0, 1e9)])
def test_ticks_differ_and_lie_inside(ends, log):
    svg = drawn({"": [(0, ends[0]), (1, ends[1])]}, Axis("y", log))
    ticks = re.findall(r'<text x="59" y="([0-9.]*)" text-anchor="end">([^<]*)', svg)
    assert len(ticks) >= 2
    assert len({text for _, text in ticks}) == len(ticks)
    assert all(12 <= float(at) - 4 <= 236.1 for at, _ in ticks)


def test_what_has_no_place_is_left_out():
    assert plot({}, Axis("x"), Axis("y")) is None
    assert plot({"a": [(1, 0.0), (2, -1.0), (3, float("nan"))]}, Axis("x"), Axis("y", log=True)) is None
    assert len(places_of(drawn({"a": [(1, 0.0), (2, 1.0), (3, 2.0)]}, Axis("y", log=True)))) == 2
    many = places_of(drawn({"a": [(k, k) for k in range(10_000)]}, Axis("y")))
    assert len(many) == 400
    assert many[0, 0] < many[-1, 0] == pytest.approx(436.8, abs=1)
