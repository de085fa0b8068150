"""What the page advises: each sentence where the numbers bear it out, and nothing where they do not."""

from typing import Any

import pytest

from pipeline.reporting.advice import NOTHING, advice, of_unfinished
from pipeline.solvers.solve import Status

SETTINGS = {"dataset": "digits", "solver": {"max_sweeps": 1000}, "centers": {"count": 100}}
PLAIN: dict[str, Any] = {
    "warnings": [],
    "notes": [],
    "model_n_centers": 60,
    "n_centers": 100,
    "n_train": 1000,
    "n_errors": 20,
    "error_rate": 0.1,
    "solves": [{"converged": True, "relative_gap": 1e-9, "status": Status.CONVERGED.value}],
    "tolerance": 1e-3,
    "penalty": 0.01,
    "path": None,
    "sigma2": [2.0],
    "sigma2_tried": None,
    "model_sigma2": [[2.0, 60]],
    "hold_out": None,
    "kernels_tried": None,
    "kernel": "gaussian",
    "select": None,
    "selection": None,
    "passes": [],
    "columns": None,
    "weighting": None,
    "confusion": [[60, 4, 1], [4, 50, 4], [3, 4, 60]],
    "by_class": [{"label": label} for label in ("cat", "cow", "dog")],
}


def missed(status: Status) -> list[dict[str, Any]]:
    return [{"converged": False, "relative_gap": 0.02, "status": status.value}, *PLAIN["solves"]]


def path(*errors: float, converged: bool = True) -> list[dict[str, Any]]:
    points = [
        {"penalty": 10.0 ** (1 - k), "hold_out_error": error, "converged": True} for k, error in enumerate(errors)
    ]
    return [*points[:-1], {**points[-1], "converged": converged}]


def selection(*errors: float) -> dict[str, Any]:
    curve = [{"size": k + 1, "hold_out_error": error} for k, error in enumerate(errors)]
    return {"select": "greedy:6", "selection": {"n_centers": 6, "curve": curve}}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"warnings": ["the model is no better than its mean; try --sigma2 auto"]}, "The model is no better than"),
        ({"notes": ["rare classes are often missed; --class-weight balanced"]}, "--class-weight balanced."),
        ({"solves": missed(Status.SWEEP_LIMIT)}, "1 of 2 solves did not converge (relative gap 2.0e-02"),
        ({"solves": missed(Status.SWEEP_LIMIT)}, "give --max-sweeps 2000."),
        ({"solves": missed(Status.PAPER_RULE)}, "give --set solver.stop=gap."),
        ({"solves": missed(Status.STALLED)}, "give --penalty 0.1."),
        ({"path": path(3, 2, 1), "penalty": 0.1}, "give --penalty auto, or go on with --penalty path:0.1:0.001:5."),
        ({"path": path(3, 1, 2), "penalty": 0.1}, "lowest at the penalty 1: give --penalty 1, or --penalty auto."),
        (
            {"sigma2_tried": [[4.0, 0.3], [2.0, 0.2]]},
            "The chosen σ², 2, is the smallest that was tried: give --sigma2 0.5.",
        ),
        ({"sigma2_tried": [[2.0, 0.2], [1.0, 0.4]]}, "the largest that was tried: give --sigma2 8."),
        ({"sigma2": [1.0, 2.0], "model_sigma2": [[1.0, 10], [2.0, 50]]}, "largest σ², 2: give --sigma2 1,2,4."),
        ({"sigma2": [1.0, 2.0], "model_sigma2": [[1.0, 50], [2.0, 10]]}, "smallest σ², 1: give --sigma2 0.5,1,2."),
        ({"hold_out": {"ridges": [[0.01, 3.0], [0.1, 2.0]]}}, "largest ridge that was tried: give --sigma2 auto."),
        (
            {"model_n_centers": 95},
            "The model keeps 95 of 100 candidates: more may lower the error; give --centers 200.",
        ),
        ({"model_n_centers": 95, "n_train": 150}, "give --centers all."),
        (selection(6, 5, 4, 3, 2, 1), "still falls with the number of centers: give --select greedy:12."),
        (
            {"confusion": [[40, 20, 0], [0, 50, 6], [1, 0, 9]], "n_errors": 27},
            "cat taken for cow (20 of 60 rows), cow taken for dog (6 of 56 rows); more rows of these may help.",
        ),
    ],
)
def test_each_advice(facts: dict[str, Any], words: str) -> None:
    assert words in "\n".join(told := advice(PLAIN | facts, SETTINGS))
    assert len(told) == 1


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"path": path(3, 1, 2), "penalty": 1.0},
        {"path": path(3, 2, 1.99), "penalty": 0.1},
        {"path": path(3, 2, 1, converged=False), "penalty": 0.1},
        {"sigma2_tried": [[4.0, 0.3], [2.0, 0.2], [1.0, 0.3]]},
        {"sigma2_tried": [[2.0, 0.2], [1.0, None]]},
        {"sigma2": [1.0, 2.0, 4.0], "model_sigma2": [[1.0, 10], [2.0, 45], [4.0, 5]]},
        {"hold_out": {"ridges": [[0.001, 3.0], [0.01, 2.0], [0.1, 3.0]]}},
        {"hold_out": {"ridges": [[0.01, 3.0], [0.1, 2.0]]}, "kernels_tried": [{}]},
        {"model_n_centers": 95, "n_train": 100},
        {"model_n_centers": 100, "penalty": None},
        {"model_n_centers": 95, "error_rate": 0.0, "n_errors": 0, "confusion": [[9, 0, 0], [0, 9, 0], [0, 0, 9]]},
        selection(6, 3, 2, 1, 1, 1),
        {"confusion": [[40, 20], [9, 50]], "by_class": PLAIN["by_class"][:2]},
    ],
)
def test_nothing_stands_out(facts: dict[str, Any]) -> None:
    assert advice(PLAIN | facts, SETTINGS) == [NOTHING]


def test_a_budget_is_raised_only_where_it_was_the_limit() -> None:
    kept, of_budget = PLAIN | {"model_n_centers": 100}, {"centers": {"count": 100, "budget": 60.0}}
    assert "give --budget 120." in advice(kept, of_budget)[0]
    assert advice(kept | {"n_centers": 90, "model_n_centers": 90}, of_budget) == [NOTHING]


def test_a_model_without_centers_has_one_advice() -> None:
    facts = {"model_n_centers": 0, "warnings": ["the model has no centers; lower --penalty"], "path": path(3, 2, 1)}
    assert advice(PLAIN | facts, {}) == ["The model has no centers; lower --penalty."]


def test_runs_that_are_not_done() -> None:
    facts = {"last_error": "DataError", "resume": "slkl train x --resume auto"}
    assert of_unfinished({"state": "killed"} | facts, None)[0].endswith("continue it with: slkl train x --resume auto")
    assert of_unfinished({"state": "failed"} | facts, "DataError: row 3")[0] == "The run failed: DataError: row 3"
    assert of_unfinished({"state": "failed"} | facts, None)[0] == "The run failed: DataError"
    assert "slkl" not in of_unfinished({"state": "running"} | facts, None)[0]
