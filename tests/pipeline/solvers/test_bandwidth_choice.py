"""The width of the lowest held-out error: the ladder around a first guess, and held-out errors with row weights."""

import math

import numpy as np
import pytest

from pipeline.kernels.kernel_forms import Kernel
from pipeline.solvers.bandwidth_choice import (
    MOST_CENTERS,
    STEPS,
    best_of,
    centers_used,
    held_out_errors,
    refine,
    trial_rows,
)


@pytest.mark.parametrize("best", [-3.3, -1.0, -0.6, 0.2, 1.7])
def test_the_ladder_finds_the_nearest_half_step(best: float) -> None:
    asked: list[float] = []

    def errors_at(widths: list[float]) -> list[float]:
        asked.extend(widths)
        return [(math.log2(width / 3.0) - best) ** 2 for width in widths]

    errors = refine(3.0, {}, errors_at)
    found = math.log2(min(errors, key=lambda width: errors[width]) / 3.0)
    assert abs(found - best) <= 0.25 + 1e-12
    assert len(asked) == len(set(asked)) == len(errors) <= 2 * abs(best) + 5


def test_known_errors_are_not_asked_for_again_and_the_ladder_ends() -> None:
    known = {2.0 * step: abs(math.log2(step) + 1) for step in STEPS}
    errors = refine(1.0, known, lambda widths: [9.0] * len(widths))
    assert sorted(set(errors) - set(known)) == pytest.approx([1 / math.sqrt(2), math.sqrt(2)])
    falling = refine(1.0, {}, lambda widths: list(widths))
    assert len(falling) <= 10
    nowhere = refine(1.0, {}, lambda widths: [math.inf] * len(widths))
    assert len(nowhere) <= 5


def test_the_usual_width_stays_where_another_gains_no_more_than_chance() -> None:
    errors = {4.0: 1.0, 2.0: 0.95, 1.0: 0.97}
    assert best_of(errors, 4.0, 10_000) == 2.0
    assert best_of(errors, 4.0, 50) == 4.0
    assert best_of(errors | {4.0: math.inf}, 4.0, 50) == 2.0


def test_a_width_is_refined_at_the_size_that_is_used() -> None:
    assert centers_used(400, None) == 400
    assert centers_used(6000, 800) == 800
    assert centers_used(6000, 300) == 500
    assert centers_used(400, 300) == 400
    assert centers_used(6000, None) == MOST_CENTERS
    few, many = trial_rows(0, 60_000, 500), trial_rows(0, 60_000, 4000)
    assert (len(few), len(many), len(trial_rows(0, 900, 500))) == (10_000, 16_000, 900)
    assert set(few) <= set(many)
    assert np.all(np.diff(few) > 0)


def test_a_weight_of_two_is_the_row_twice() -> None:
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(300, 3)), rng.integers(1, 3, 300)
    y, held_out = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(300, 1)), rng.random(300) < 0.3
    twice = np.repeat(np.arange(300), weights)
    arguments = (X[:40], [1.0, 4.0], Kernel())
    weighted = held_out_errors(*arguments, X.__getitem__, y, held_out, weights=weights.astype(float))
    repeated = held_out_errors(*arguments, X[twice].__getitem__, y[twice], held_out[twice])
    np.testing.assert_allclose(weighted, repeated, rtol=1e-5)
    assert not np.allclose(weighted, held_out_errors(*arguments, X.__getitem__, y, held_out), rtol=1e-3)
