"""Who takes which pieces of an assignment: threads form groups, and groups take pieces in a row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime import row_pass as module
from pipeline.runtime.row_pass import OWN_SUMS_BYTES, n_groups_of, threads_together


def test_pieces_are_taken_in_rows_and_shorter_ones_at_the_end() -> None:
    waiting = module._Waiting([0, 1, 2, 3, 4, 7, 8, 9, 20, 21], 3, 1)
    assert [waiting.take() for _ in range(3)] == [range(2), range(2, 4), range(4, 5)]
    waiting.give_back([4])
    taken = []
    while pieces := waiting.take():
        taken.append(pieces)
    assert [piece for pieces in taken for piece in pieces] == [4, 7, 8, 9, 20, 21]
    assert all(len(pieces) <= 3 for pieces in taken)
    assert not waiting
    assert not waiting.take()


@given(n_pieces=st.integers(1, 300), run_length=st.integers(1, 50), groups=st.integers(1, 8))
def test_no_group_ends_long_after_the_others(n_pieces: int, run_length: int, groups: int) -> None:
    waiting, left = module._Waiting(list(range(n_pieces)), run_length, groups), n_pieces
    while pieces := waiting.take():
        assert 1 <= len(pieces) <= run_length
        assert len(pieces) <= max(left / (4 * groups), 1)
        left -= len(pieces)
    assert left == 0


@pytest.mark.parametrize(("threads", "together", "groups"), [(1, 1, 1), (4, 1, 4), (4, 2, 2), (5, 2, 3), (3, 9, 1)])
def test_threads_of_a_process_form_groups(threads: int, together: int, groups: int) -> None:
    assert n_groups_of(threads, together, 20, 1) == groups
    assert n_groups_of(threads, together, 1, 1) == 1, "one piece is worked on by one group"


def test_where_pieces_are_few_several_threads_work_on_each() -> None:
    assert n_groups_of(64, 1, 61, 6) == 15, "four pieces for each group"
    assert n_groups_of(64, 1, 61, 1) == 61, "of which only one thread has any use"
    assert n_groups_of(2, 1, 61, 6) == 2
    assert n_groups_of(64, 9, 44, 24) == 8, "as memory has it"
    assert n_groups_of(8, 1, 3, 4) == 2


def test_large_sums_are_shared_by_all_threads_of_a_process() -> None:
    for sums_bytes in (0, 1, OWN_SUMS_BYTES, OWN_SUMS_BYTES + 1, 7 * OWN_SUMS_BYTES, 2 * 8 * 12_000**2):
        for threads in (1, 4, 16, 64):
            groups = n_groups_of(threads, threads_together(sums_bytes), 1000, 1)
            assert groups == (1 if sums_bytes > OWN_SUMS_BYTES else threads)
