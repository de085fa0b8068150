"""Finalists of a greedy choice: when there are some, the turns in which candidates come, and how they are dropped."""

import numpy as np
import pytest

from dense_twins import selection_data, statistics_of
from pipeline.solvers import forward_backward_selection as greedy
from pipeline.solvers import forward_selection as forwards
from pipeline.solvers.forward_backward_selection import drop, select
from pipeline.solvers.forward_selection import forward
from pipeline.solvers.greedy_choice import Preselection, candidate_batches, preselection


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


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("least", "size"), [(60, 60), (20, 40), (40, 15)])
def test_a_way_forward_and_what_drops_of_it_is_a_selection(monkeypatch, least: int, size: int, intercept: bool) -> None:
    monkeypatch.setattr(greedy, "forward_size", lambda n: least)
    statistics = statistics_of(*selection_data(5, n=300, m=60))
    whole = select(statistics, size, intercept=intercept)
    chosen = forward(statistics, max(size, least), intercept=intercept).chosen
    part = drop(statistics.cut(chosen), size, least, intercept=intercept)
    assert np.array_equal(chosen[part.chosen], whole.chosen)
    np.testing.assert_allclose(part.reductions, whole.reductions, rtol=1e-6)
    C, Y = (values - intercept * values.mean(axis=0) for values in selection_data(5, n=300, m=60))
    C = C[:, whole.chosen]
    after = Y - C @ np.linalg.lstsq(C, Y, rcond=None)[0]
    assert part.reductions.sum() == pytest.approx((Y**2).sum() - (after**2).sum(), rel=1e-6)


def test_few_that_are_followed_choose_nearly_as_well(monkeypatch) -> None:
    """A gain that rises meanwhile waits for the next block; else the choice is the same, whatever the threads."""
    statistics = statistics_of(*selection_data(11, n=500, m=240))
    usual = forward(statistics, 90, intercept=True)  # all are followed
    monkeypatch.setattr(forwards, "FOLLOWED", 30)
    monkeypatch.setattr(forwards, "BLOCK", 16)
    monkeypatch.setattr(forwards, "STRIPE", 64)
    few = forward(statistics, 90, intercept=True)
    assert len(set(few.chosen.tolist())) == 90
    assert len(np.intersect1d(few.chosen, usual.chosen)) > 72
    assert few.reductions.sum() == pytest.approx(usual.reductions.sum(), rel=0.01)
    again = forward(statistics, 90, intercept=True, n_threads=3)
    assert np.array_equal(again.chosen, few.chosen)
    assert np.array_equal(again.reductions, few.reductions)


def test_no_finalists_are_no_centers() -> None:
    statistics = statistics_of(*selection_data(7, n=50, m=20)).cut(np.empty(0, np.int64))
    assert len(drop(statistics, 5, 5, intercept=True).chosen) == 0
