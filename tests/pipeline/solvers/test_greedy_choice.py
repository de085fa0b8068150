"""The size of a greedy choice, and its two choices: of what `select` and the curve of held-out errors say."""

import numpy as np
import pytest

from dense_twins import statistics_of
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.kernels.kernel_functions import GaussianKernel
from pipeline.solvers.forward_backward_selection import Selection, select
from pipeline.solvers.greedy_choice import (
    Enough,
    GreedyChoice,
    Part,
    Preselection,
    candidate_batches,
    choose_greedily,
    held_out_curve,
    prefix_sizes,
    preselection,
)

Parts = tuple[GramStatistics, GramStatistics]


@pytest.fixture(scope="module")
def parts() -> Parts:
    """Statistics of the fit rows and of the held-out rows, of 120 columns."""
    draw = np.random.default_rng(1)
    X = draw.normal(size=(600, 2))
    y = (np.sin(3 * X[:, 0]) * X[:, 1] + 0.3 * draw.normal(size=600))[:, None]
    K = np.asarray(GaussianKernel(X[:120], 0.3, np.float64).block(X))
    return statistics_of(K[:500], y[:500]), statistics_of(K[500:], y[500:])


def chosen(parts: Parts, size: int | None) -> tuple[GreedyChoice, list[tuple[Part, int]]]:
    asked: list[tuple[Part, int]] = []

    def on(part: Part, statistics: GramStatistics, most: int, enough: Enough) -> Selection:
        asked.append((part, most))
        return select(statistics, most, intercept=True, enough=enough)

    return choose_greedily(*parts, parts[0] + parts[1], size, on, intercept=True), asked


def test_a_size_that_is_given_is_chosen_twice(parts: Parts) -> None:
    choice, asked = chosen(parts, 30)
    assert asked == [("fit", 30), ("all", 30)]
    np.testing.assert_array_equal(choice.tried, select(parts[0], 30, intercept=True).chosen)
    np.testing.assert_array_equal(choice.chosen, select(parts[0] + parts[1], 30, intercept=True).chosen)
    assert choice.sizes[-1] == 30
    assert len(choice.sizes) == len(choice.hold_out_errors)


def test_a_size_that_is_found_is_the_first_whose_error_is_near_the_lowest(parts: Parts) -> None:
    choice, asked = chosen(parts, None)
    order = select(parts[0], 120, intercept=True).chosen
    errors = held_out_curve(parts[0].cut(order), parts[1].cut(order), prefix_sizes(len(order)), intercept=True)
    size = prefix_sizes(len(order))[np.flatnonzero(errors <= 1.01 * errors.min())[0]]
    assert asked == [("fit", 120), ("all", size)]
    assert len(choice.chosen) == len(choice.tried) == size < 120
    np.testing.assert_array_equal(choice.hold_out_errors, errors[: len(choice.sizes)])


def test_nothing_is_chosen_where_nothing_lowers_the_error(parts: Parts) -> None:
    silent = tuple(
        GramStatistics(p.gram, 0 * p.kty, 0 * p.yty, p.column_sums, 0 * p.target_sums, p.weight_sum) for p in parts
    )
    choice, asked = chosen(silent, 5)  # type: ignore[arg-type]
    assert asked == [("fit", 5)]
    assert not len(choice.chosen) + len(choice.tried) + len(choice.sizes)


def test_there_are_finalists_where_not_all_candidates_fit_or_they_save_most_of_the_gram() -> None:
    assert preselection(54_000, 12_000, 12_000, 2500) == Preselection(4000, 4000, 16_000 / 54_000)
    assert preselection(54_000, 12_000, 12_000, 5000) == Preselection(5000, 4000, 20_000 / 54_000)
    assert preselection(54_000, 3500, 3500, 1200) is None, "2000 finalists of 3500 candidates"
    assert preselection(9000, 6000, 6000, 1000) is None, "8000 of 9000 rows"
    assert preselection(54_000, 8000, 8000, None) == Preselection(4000, 2666, 16_000 / 54_000)
    assert preselection(54_000, 60_000, 3000, 500) == Preselection(2000, 2000, 8000 / 54_000)
    assert preselection(1000, 1000, 300, 60) == Preselection(200, 200, 0.8)
    assert preselection(500, 1000, 300, 60) == Preselection(200, 200, 1.0)


def test_every_candidate_has_one_turn() -> None:
    for n, at_once, kept in ((100, 30, 20), (100, 99, 66), (31, 30, 20), (100, 100, 50)):
        drawn = candidate_batches(n, at_once, kept, seed=3)
        assert sorted(np.concatenate(drawn).tolist()) == list(range(n))
        assert len(drawn[0]) == min(at_once, n)
        assert all(0 < len(turn) <= at_once - kept for turn in drawn[1:])
        assert all(np.array_equal(turn, np.sort(turn)) for turn in drawn)
    assert not np.array_equal(candidate_batches(100, 30, 20, 0)[0], candidate_batches(100, 30, 20, 1)[0])
