"""Penalty paths over candidates beyond the working set: the choice of a run with the whole Gram."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from pipeline.stages.accumulate_statistics import HELD_OUT
from pipeline.stages.out_of_core import path_in_rounds
from pipeline.stages.out_of_core.correlations import SolvedSet
from storage.folder_layouts import RunLayout

ROUNDS = ("--set", "centers.working_set=240")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of 600 rows, with a regression and with classes."""
    place, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    X = rng.normal(size=(800, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.normal(size=800)
    split = {"X_train": X[:600], "X_test": X[600:]}
    np.savez(place / "values.npz", **split, y_train=y[:600], y_test=y[600:])
    labels = np.digitize(y, [0.0, 1.0])
    np.savez(place / "classes.npz", **split, y_train=labels[:600], y_test=labels[600:])
    return place


def train(place: Path, name: str, data: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    common = ("--centers", "all", "--sigma2", "2", "--scheduler", "serial", "--resume", "auto")
    return runs.train(place / name, place / "features", *common, *arguments, dataset=place / f"{data}.npz", code=code)


SETTINGS = {
    "auto": ("values", "--penalty", "auto", "--tol", "1e-5"),
    "refitted": (
        "values",
        "--penalty",
        "auto",
        "--tol",
        "1e-5",
        "--refit",
        "ridge",
        "--set",
        "solver.intercept=false",
        "--set",
        "seed=4",
    ),
    "a path": ("classes", "--penalty", "path:max:3:4", "--tol", "1e-5"),
    "a path from a number": ("values", "--penalty", "path:30:0.3:3", "--tol", "1e-5"),
    "a fraction": ("values", "--penalty", "max:1e-3", "--tol", "1e-5"),
}
MARKS = {"a path": pytest.mark.nightly}
MARKS |= dict.fromkeys(("auto", "refitted"), pytest.mark.ci)


@pytest.mark.parametrize("case", [pytest.param(case, marks=MARKS.get(case, ())) for case in SETTINGS])
def test_the_choice_is_that_of_the_whole_gram(tables: Path, case: str) -> None:
    data, *arguments = SETTINGS[case]
    precise = ("--set", "kernel.precision=float64")
    once = train(tables, f"{case}-once", data, *arguments, *precise)
    with runs.keeping_statistics():
        rounds = train(tables, f"{case}-rounds", data, *arguments, *precise, *ROUNDS)
    assert rounds["penalty"] == pytest.approx(once["penalty"], rel=1e-9)
    for one, other in zip(once["solves"], rounds["solves"], strict=True):
        assert other["objective"] == pytest.approx(one["objective"], rel=1e-4)
        assert other["relative_gap"] <= 1e-4
    if case == "a fraction":
        assert rounds["path"] is rounds["path_rounds"] is None
        return
    pairs = list(zip(once["path"], rounds["path"], strict=False))  # one for which there is no room ends the path
    assert [other["penalty"] for _, other in pairs] == pytest.approx([one["penalty"] for one, _ in pairs])
    certified = [pair for pair in pairs if pair[1]["certified"]]
    assert rounds["penalty"] in [point["penalty"] for _, point in certified]
    for one, other in certified:
        assert other["objective"] == pytest.approx(one["objective"], rel=1e-3)
        assert other["hold_out_error"] == pytest.approx(one["hold_out_error"], rel=1e-2)
    assert rounds["kernel_entries"] == sum(one["kernel_entries"] for one in [*rounds["path_rounds"], *rounds["passes"]])
    assert all(one["working_set"] <= 240 for one in rounds["path_rounds"])
    statistics = tables / f"{case}-rounds" / "statistics"
    assert list(statistics.iterdir())
    assert not list(statistics.glob("path-*"))


@pytest.mark.ci
def test_the_largest_penalty_and_certificates_are_those_of_dense_columns(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the fit rows: held-out rows count nothing, for several penalties at once."""
    real, seen = SolvedSet.correlations, []

    def compared(solved: SolvedSet, before: Any) -> Any:
        from pipeline.datasets.feature_rows import open_features
        from pipeline.kernels.kernel_forms import ColumnGenerator
        from pipeline.stages.target_facts import held_out_rows, target_blocks

        found, run, current, weights = real(solved, before), solved.run, solved.working_set, solved.weights
        if HELD_OUT not in current.parts:
            return found
        X = open_features(run.features).read("train", 0, run.shape.n_train)
        fit = ~held_out_rows(run, run.facts)
        K = ColumnGenerator(X, 2.0, np.float64).block(X)[fit]
        y = np.concatenate([block for block, _ in target_blocks(run)])[fit]
        for number in range(len(solved.penalties)):
            residual = y - K[:, current.candidates[weights.columns]] @ weights.weights[:, number]
            residual -= residual.mean()
            assert np.allclose(found.values[:, number], K.T @ residual, atol=2e-3)
            seen.append(number)
        return found

    monkeypatch.setattr(SolvedSet, "correlations", compared)
    report = train(tables, "compared", "values", "--penalty", "auto", "--intercept", *ROUNDS)
    assert len(set(seen)) == path_in_rounds.PRICED
    monkeypatch.undo()
    data, *arguments = SETTINGS["auto"]
    once = train(tables, "auto-once", data, *arguments, "--set", "kernel.precision=float64")
    assert report["path"][0]["penalty"] == pytest.approx(once["path"][0]["penalty"], rel=1e-5)


@pytest.mark.ci
def test_a_penalty_for_which_there_is_no_room_ends_the_path_and_is_told(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = train(tables, "small", "values", "--penalty", "path:max:1e-6:8", "--set", "centers.working_set=40", code=3)
    assert "raise --memory-limit" in capsys.readouterr().err
    assert len(report["path"]) == 8
    auto = train(tables, "small-auto", "values", "--penalty", "auto", "--set", "centers.working_set=40")
    assert "raise --memory-limit to try them" in capsys.readouterr().err
    assert auto["converged"]
    assert not RunLayout(tables / "small-auto").passes.exists()


@pytest.mark.ci
def test_a_path_whose_last_penalties_have_no_room_is_followed_to_its_end(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of them: those with room are solved again in every round, these are not."""
    monkeypatch.setattr(path_in_rounds, "ROOM", 0.1)
    asked = ("--penalty", "path:max:1:5", "--set", "centers.working_set=120")
    report = train(tables, "long", "values", *asked)
    centers = [point["n_centers"] for point in report["path"]]
    assert sum(count > 0.1 * 120 for count in centers) > 1
    assert len(report["path_rounds"]) > 1
    assert report["penalty"] == 1.0
    assert report["converged"]
