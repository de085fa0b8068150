"""What a run tells of too few candidates, and of solves that missed the tolerance."""

from types import SimpleNamespace

import pytest

from pipeline.reporting.result_table import not_converged
from pipeline.reporting.results import _few_candidates


@pytest.mark.parametrize(
    ("n_centers", "n_candidates", "penalty", "told"),
    [
        (95, 100, 0.1, ["the model keeps 95 of 100 candidates; more may lower the error: --centers 200"]),
        (540, 600, 0.1, ["the model keeps 540 of 600 candidates; more may lower the error: --centers all"]),
        (89, 100, 0.1, []),
        (1000, 1000, 0.1, []),
        (100, 100, None, []),
    ],
)
def test_a_penalty_that_keeps_nearly_all_candidates(
    n_centers: int, n_candidates: int, penalty: float | None, told: list[str]
) -> None:
    run = SimpleNamespace(n_candidates=n_candidates, shape=SimpleNamespace(n_train=1000))
    assert _few_candidates(run, n_centers, penalty) == told  # type: ignore[arg-type]


def test_solves_that_ended_alike_are_one_line() -> None:
    ended = [("a", 0.1, "raise it"), ("b", 0.2, "lower it"), ("c", 1e-9, None), ("d", 0.3, "raise it")]
    solves = [
        {"output": name, "relative_gap": gap, "converged": status is None, "status": status}
        for name, gap, status in ended
    ]
    assert not_converged({"tolerance": 0.001, "solves": solves}) == [
        "NOT CONVERGED: outputs a, d: relative gaps up to 3.0e-01, asked 0.001: raise it",
        "NOT CONVERGED: output b: relative gap 2.0e-01, asked 0.001: lower it",
    ]
