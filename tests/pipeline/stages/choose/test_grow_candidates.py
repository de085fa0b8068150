"""Candidates by a budget grow in steps: to where more of them gain, by a Gram that is the same as one made at once."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cases import SERIAL
from pipeline.solvers import candidate_budget
from pipeline.solvers.kernel_trials import least_gain
from pipeline.stages.choose import grow_candidates
from runs import keeping_statistics, report_of, train
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

BUDGET = ("--kernel", "gaussian", "--budget", "0.09s", *SERIAL)
CASES = GROWS, IS_CUT, ENDS = ("values", "0.3"), ("classes", "0.28"), ("values", "2")  # tables and widths
STEPS = [40, 80, 160, 320]  # and what the budget pays for
KEPT = {IS_CUT: 320, ENDS: 160}


@pytest.fixture(autouse=True, scope="module")
def few_at_first() -> Iterator[None]:
    """The first step has 40 candidates, so that 675 rows are enough for five steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_budget, "LEAST_CENTERS", 40)
        yield


@pytest.fixture(scope="module")
def grown(tables: Path, features: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Finished runs, to be read only."""
    place = tmp_path_factory.mktemp("grown")
    runs = {case: place / "-".join(case) for case in CASES}
    with keeping_statistics():
        for (table, width), run in runs.items():
            train(run, features, "--sigma2", width, *BUDGET, dataset=tables / f"{table}.npz")
    return runs


def steps_of(run: Path) -> list[tuple[int, float]]:
    """Return the numbers of candidates that were tried, and their held-out errors."""
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [(line["candidates"], line["hold_out_error"]) for line in lines if "candidates" in line]


@pytest.mark.parametrize("case", CASES, ids=["goes on", "is cut", "ends"])
def test_they_grow_while_the_held_out_error_falls_by_more_than_chance(
    grown: dict[tuple[str, str], Path], case: tuple[str, str]
) -> None:
    run, report = grown[case], report_of(grown[case])
    sizes, errors = zip(*steps_of(run), strict=True)
    assert list(sizes[:-1]) == [size for size in STEPS if size < sizes[-1]]
    kept = KEPT.get(case, sizes[-1])
    assert sizes[-1] > 320 or kept == sizes[-1] == 160
    falls = np.array(errors[1:]) / np.array(errors[:-1])
    most = 1 - least_gain(report["hold_out"]["n_rows"])  # no two rows are equal
    assert (falls[:-1] < most).all(), "as long as they grow"
    assert (falls[-1] < most, falls[-1] > 1) == {GROWS: (True, False), IS_CUT: (False, True), ENDS: (False, False)}[
        case
    ]
    assert report["n_centers"] == report["model_n_centers"] == kept == sizes[int(np.argmin(errors))]
    centers = read_arrays(RunLayout(run).candidates)
    assert len(centers["index"]) == len(centers["X"]) == kept
    assert min(centers["ridges"][:, 1]) == min(errors)
    assert read_arrays(RunLayout(run).statistics / "all")["gram"].shape == (kept, kept)


@pytest.mark.parametrize("case", CASES, ids=["goes on", "is cut", "ends"])
def test_the_grown_gram_is_that_of_so_many_candidates_at_once(
    grown: dict[tuple[str, str], Path], case: tuple[str, str], tables: Path, features: Path, tmp_path: Path
) -> None:
    (table, width), n_centers = case, report_of(grown[case])["n_centers"]
    line = ("--kernel", "gaussian", "--sigma2", width, "--penalty", "none", "--centers", str(n_centers), *SERIAL)
    with keeping_statistics():
        train(tmp_path / "run", features, *line, dataset=tables / f"{table}.npz")
    layouts = RunLayout(grown[case]), RunLayout(tmp_path / "run")
    np.testing.assert_array_equal(*(read_arrays(layout.candidates)["index"] for layout in layouts))
    for part in ("all", "fit", "hold_out"):
        ours, at_once = (read_arrays(layout.statistics / part) for layout in layouts)
        for name in ("gram", "kty", "yty", "column_sums", "target_sums"):
            np.testing.assert_allclose(ours[name], at_once[name], rtol=1e-12, atol=1e-12)
        assert ours["weight_sum"] == at_once["weight_sum"]
    reports = [report_of(run) for run in (grown[case], tmp_path / "run")]
    error = "rmse" if table == "values" else "error_rate"
    assert reports[0][error] == pytest.approx(reports[1][error], rel=1e-4)


def test_a_step_computes_the_new_columns_alone(
    tables: Path, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[tuple[int, int]]()
    of_pass = grow_candidates.statistics_pass

    def counted(task: object, parts: object, size: int, *, n_kept: int) -> object:
        made.append((n_kept, size))
        return of_pass(task, parts, size, n_kept=n_kept)  # type: ignore[arg-type]

    monkeypatch.setattr(grow_candidates, "statistics_pass", counted)
    train(tmp_path / "run", features, "--sigma2", "2", *BUDGET, dataset=tables / "values.npz")
    assert made == [(0, 40), (40, 80), (80, 160)]
