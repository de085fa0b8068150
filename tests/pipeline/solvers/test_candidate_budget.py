"""How many candidates a budget pays for: the largest whose forecast fits, in time and in memory."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.solvers.candidate_budget import (
    LEAST_CENTERS,
    OPERATIONS_A_SECOND,
    SHARE_OF_TRIALS,
    TRIAL_SIZES,
    Fit,
    candidates_within,
)

GIB = 2**30
FITS = st.builds(
    Fit,
    n_rows=st.integers(1, 10**7),
    n_features=st.integers(1, 3000),
    n_outputs=st.integers(1, 100),
    penalised=st.booleans(),
    chosen=st.sampled_from([0, 300]),
    kernels=st.integers(1, 2),
    widths=st.booleans(),
    scaled=st.booleans(),
)
OF_TABLE = Fit(n_rows=3000, n_features=10, n_outputs=1, kernels=2, widths=True, scaled=True)


@given(FITS, st.floats(0.1, 1e6), st.integers(GIB, 2**40))
def test_it_is_the_largest_of_two_figures_that_fits(fit: Fit, budget: float, memory: int) -> None:
    def fits(m: int) -> bool:
        in_time = m <= LEAST_CENTERS or fit.operations(m, budget) <= budget * OPERATIONS_A_SECOND
        return in_time and fit.memory_bytes(m) <= memory

    found = candidates_within(fit, budget, memory)
    assert min(LEAST_CENTERS, fit.n_rows) <= found <= fit.n_rows
    assert fits(found)
    if found < fit.n_rows:
        unit = 10 ** max(int(math.log10(found)) - 1, 0)
        assert found % unit == 0
        assert not fits(min(found + unit, fit.n_rows))


@given(FITS, st.floats(0.1, 1e6))
def test_trials_are_the_largest_that_a_share_of_the_budget_pays_for(fit: Fit, budget: float) -> None:
    found, most = fit.trial_sizes(budget), SHARE_OF_TRIALS * budget * OPERATIONS_A_SECOND
    assert fit.trial_sizes(10 * budget).more >= found.more
    assert found == TRIAL_SIZES[0] or fit._trials(found) <= most
    larger = TRIAL_SIZES[TRIAL_SIZES.index(found) + 1 :]
    assert all(fit._trials(sizes) > most for sizes in larger)


def test_trials_cost_no_more_with_more_rows_and_are_counted() -> None:
    """Scales are learned on a sample: no number of rows rules them out."""
    few, many = (replace(OF_TABLE, n_rows=n, n_features=28) for n in (20_000, 10**7))
    assert few.trial_sizes(60.0) == many.trial_sizes(60.0)
    assert few.trial_sizes(60.0).more >= 500
    without = replace(many, kernels=1, scaled=False)
    assert many.operations(500) - without.operations(500) == pytest.approx(
        many._trials(many.trial_sizes(60.0)) - without._trials(without.trial_sizes(60.0)), rel=1e-6
    )


def test_the_default_has_room_for_a_few_thousand() -> None:
    """The kernels are tried for a part of the minute, and still it pays for every row of small tables."""
    tables = [replace(OF_TABLE, n_rows=n) for n in (3000, 10_000, 40_000)]
    assert candidates_within(tables[0], 60, 16 * GIB) == 3000
    assert 4000 < candidates_within(tables[2], 60, 16 * GIB) < candidates_within(tables[1], 60, 16 * GIB) < 10_000
