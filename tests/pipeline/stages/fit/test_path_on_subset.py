"""Penalty paths with more candidates than fit: the penalty is that of the draw, the certificate is over all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from dense_twins import statistics_of
from features.targets import outputs
from pipeline.kernels.kernel_functions import GaussianKernel
from pipeline.solvers.duality_gap import certify_problem
from pipeline.solvers.problem import problem_of
from pipeline.solvers.regularization_path import largest_penalty
from pipeline.solvers.ridge import intercept_of
from pipeline.solvers.solve import solve
from pipeline.solvers.state import SolverOptions
from pipeline.stages.fit import column_generation, solve_weights
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

N, DRAWN = 600, 120
ROUNDS = ("--set", f"centers.working_set={2 * DRAWN}")
COMMON = ("--centers", "all", "--sigma2", "2", "--tol", "1e-5", "--set", "kernel.precision=float64")
SETTINGS = {
    "auto": ("values", "--penalty", "auto"),
    "refitted": ("values", "--penalty", "auto", "--refit", "ridge", "--set", "seed=4"),
    "a path": ("classes", "--penalty", "path:max:3:4"),
    "a path from a number": ("values", "--penalty", "path:30:0.3:3"),
}
MARKS = dict.fromkeys(("auto", "refitted", "a path"), pytest.mark.ci)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of 600 rows, with a regression and with classes, and the runs on them."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    X = rng.normal(size=(800, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.normal(size=800)
    split = {"X_train": X[:N], "X_test": X[N:]}
    np.savez(folder / "values.npz", **split, y_train=y[:N], y_test=y[N:])
    labels = np.digitize(y, [0.0, 1.0])
    np.savez(folder / "classes.npz", **split, y_train=labels[:N], y_test=labels[N:])
    return folder


@pytest.fixture
def train(place: Path, features: Path) -> Callable[..., dict[str, Any]]:
    """Train on a table at `place / name`; return the report."""

    def train_at(name: str, data: str, *arguments: str, code: int = 0, quiet: bool = True) -> dict[str, Any]:
        asked, table = (*COMMON, "--scheduler", "serial", "--resume", "auto", *arguments), place / f"{data}.npz"
        return runs.train(place / name, features, *asked, dataset=table, code=code, quiet=quiet)

    return train_at


def columns_of(X: np.ndarray) -> np.ndarray:
    """Return the columns of all rows as candidates, in float64."""
    return np.asarray(GaussianKernel(X, 2.0, np.float64).block(X))


@pytest.mark.parametrize("case", [pytest.param(case, marks=MARKS.get(case, ())) for case in SETTINGS])
def test_the_certificate_is_over_all_candidates_at_the_penalty_chosen(
    train: Any, place: Path, rows_of: Any, case: str
) -> None:
    """Against the Gram of all candidates, for the same weights and for those of a run that has it."""
    data, *arguments = SETTINGS[case]
    report = train(case, data, *arguments, *ROUNDS)
    once = train(f"{case}-once", data, "--penalty", repr(report["penalty"]), *arguments[2:])
    for one, other in zip(once["solves"], report["solves"], strict=True):
        assert other["objective"] == pytest.approx(one["objective"], rel=2e-5)
    final = read_arrays(RunLayout(place / case).solution("final.npz"))
    W = np.zeros((N, len(report["solves"])))
    W[final["active"]] = final["penalised_weights"]
    rows = rows_of(place / f"{case}-once")
    everything = statistics_of(columns_of(rows.X), outputs(rows.y, report["task"], 3)).centred()
    for output, solved in enumerate(report["solves"]):
        problem = problem_of(everything, output, report["penalty"])
        proof = certify_problem(problem, np.ascontiguousarray(W[:, output]))
        assert proof.relative_gap == pytest.approx(solved["relative_gap"], rel=1e-2, abs=1e-7)
        assert proof.relative_gap <= 1e-5
    assert report["penalty"] in [point["penalty"] for point in report["path"]]
    assert (report["path_candidates"], report["n_centers"]) == (DRAWN, N)
    assert report["kernel_entries"] == sum(one["kernel_entries"] for one in report["passes"])


@pytest.mark.ci
def test_the_path_is_that_of_the_gram_of_the_draw(train: Any, place: Path, rows_of: Any) -> None:
    data, *arguments = SETTINGS["auto"]
    report = train("auto", data, *arguments, *ROUNDS)
    once = train("auto-whole", data, *arguments)
    assert (once["path_candidates"], once["n_centers"]) == (N, N)
    rows, drawn = rows_of(place / "auto-whole"), np.sort(np.random.default_rng([0, 4]).permutation(N)[:DRAWN])
    held, y, K = rows.held_out, outputs(rows.y, "regression", 0), columns_of(rows.X)[:, drawn]
    fit, held_out = (statistics_of(K[part], y[part]) for part in (~held, held))
    assert report["path"][0]["penalty"] == pytest.approx(largest_penalty(fit, intercept=True), rel=1e-9)
    for point in report["path"][1:8]:
        options = SolverOptions(tolerance=1e-8)
        solution = solve(problem_of(fit.centred(), 0, point["penalty"]), options, np.random.default_rng(0))
        assert point["objective"] == pytest.approx(solution.objective, rel=1e-4)
        W = solution.weights[:, None]
        error = held_out.squared_error(W, intercept_of(fit, W, intercept=True)) / held_out.weight_sum
        assert point["hold_out_error"] == pytest.approx(float(error[0]), rel=1e-2)


def test_a_run_that_stops_when_the_penalty_is_chosen_goes_on_to_the_same_bytes(
    train: Any, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("values", "--penalty", "path:30:0.3:3", *ROUNDS)
    whole = train("whole", *asked)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(solve_weights, "generate_columns", interrupted)
        train("stopped", *asked, code=75, quiet=False)
    assert "penalty 0.3 reached by a path on 120 of the 600 candidates, then solved over all" in capsys.readouterr().err
    left = [path.name for path in (place / "stopped" / "statistics").glob("[!.]*")]
    assert left == ["round-000"]
    monkeypatch.setattr(column_generation, "follow_penalty_path", interrupted)
    report = train("stopped", *asked, quiet=False)
    assert "penalties tried on 120 of the 600 candidates" in capsys.readouterr().out
    for one, other in zip(report["path"], whole["path"], strict=True):
        assert one | {"wall_seconds": 0} == other | {"wall_seconds": 0}
    assert runs.model_bytes(place / "stopped") == runs.model_bytes(place / "whole")


def test_a_penalty_for_whose_centers_there_is_no_room_is_told(
    train: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--penalty", "path:max:1e-6:8", "--set", "centers.working_set=40")
    report = train("small", "values", *asked, code=3)
    assert "raise --penalty, --memory-limit or its size" in capsys.readouterr().err
    assert len(report["path"]) == 8
    assert not RunLayout(place / "small").passes.exists()


def test_a_search_ends_where_most_of_the_draw_has_a_weight(
    train: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = train("searched", "values", "--penalty", "auto", "--set", "centers.working_set=40")
    *tried, last = report["path"]
    assert max(point["n_centers"] for point in tried) <= 15 < last["n_centers"] <= report["path_candidates"] == 20
    assert last["penalty"] < report["penalty"]
    assert "of all candidates more would than the working set holds" in capsys.readouterr().err
