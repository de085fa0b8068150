"""How many candidates a budget pays for: the largest whose forecast fits, in time and in memory."""

import math

from hypothesis import given
from hypothesis import strategies as st

from pipeline.solvers.candidate_budget import LEAST_CENTERS, Fit, candidates_within

GIB = 2**30
FITS = st.builds(
    Fit,
    n_rows=st.integers(1, 10**7),
    n_features=st.integers(1, 3000),
    n_outputs=st.integers(1, 100),
    penalised=st.booleans(),
    chosen=st.sampled_from([0, 300]),
)


@given(FITS, st.floats(1e9, 1e16), st.integers(GIB, 2**40))
def test_it_is_the_largest_of_two_figures_that_fits(fit, operations, memory):
    def fits(m: int) -> bool:
        in_time = m <= LEAST_CENTERS or fit.operations(m) <= operations
        return in_time and fit.memory_bytes(m) <= memory

    found = candidates_within(fit, operations, memory)
    assert min(LEAST_CENTERS, fit.n_rows) <= found <= fit.n_rows
    assert fits(found)
    if found < fit.n_rows:
        unit = 10 ** max(int(math.log10(found)) - 1, 0)
        assert found % unit == 0
        assert not fits(min(found + unit, fit.n_rows))
