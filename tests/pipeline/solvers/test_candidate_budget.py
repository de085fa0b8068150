"""How many candidates a budget pays for: the largest whose forecast fits, in time and in memory."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.solvers.candidate_budget import LEAST_CENTERS, OPERATIONS_A_SECOND, ROUNDS, Fit, candidates_within

GIB = 2**30
FITS = st.builds(
    Fit,
    n_rows=st.integers(1, 10**7),
    n_features=st.integers(1, 3000),
    n_outputs=st.integers(1, 100),
    penalised=st.booleans(),
    chosen=st.sampled_from([None, 0, 300]),
    scaled=st.booleans(),
)


@given(FITS, st.floats(0.1, 1e6), st.integers(GIB, 2**40))
def test_it_is_the_largest_of_two_figures_that_fits(fit: Fit, budget: float, memory: int) -> None:
    def fits(m: int) -> bool:
        in_time = m <= LEAST_CENTERS or fit.operations(m) <= budget * OPERATIONS_A_SECOND
        return in_time and fit.memory_bytes(m) <= memory

    found = candidates_within(fit, budget, memory)
    assert min(LEAST_CENTERS, fit.n_rows) <= found <= fit.n_rows
    assert fits(found)
    if found < fit.n_rows:
        unit = 10 ** max(int(math.log10(found)) - 1, 0)
        assert found % unit == 0
        assert not fits(min(found + unit, fit.n_rows))


def test_scales_are_learned_where_the_rounds_that_are_counted_take_less_than_half() -> None:
    few, many = (Fit(n_rows=n, n_features=10, n_outputs=1) for n in (10_000, 10**7))
    assert few.rounds_within(60) > 20
    assert many.rounds_within(60) == 0
    assert many.rounds_within(600) >= ROUNDS
    for fit, budget in ((few, 60), (many, 600)):
        spent = fit.rounds_within(budget) * fit._round(500) / OPERATIONS_A_SECOND
        assert spent <= budget / 2 < spent + fit._round(500) / OPERATIONS_A_SECOND


@pytest.mark.parametrize("n_rows", [300, 600, 10**6])
def test_little_memory_never_makes_a_small_model(n_rows: int) -> None:
    fit = Fit(n_rows=n_rows, n_features=10, n_outputs=1)
    for memory in (-GIB, 0, 2**20):
        assert candidates_within(fit, 60, memory) == min(n_rows, 500)


def test_the_default_has_room_for_a_few_thousand() -> None:
    assert 5000 < candidates_within(Fit(n_rows=10_000, n_features=8, n_outputs=1, scaled=True), 60, 16 * GIB) < 8000
    assert candidates_within(Fit(n_rows=3000, n_features=10, n_outputs=1, scaled=True), 60, 16 * GIB) == 3000
