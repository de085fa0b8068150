"""Candidates by a budget grow in steps, each twice as large, to where two steps gain nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cases import SERIAL
from pipeline.fit import grow_candidates, row_blocks, target_facts
from pipeline.solvers import candidate_budget
from runs import choice_of, keeping_statistics, report_of, train
from storage.arrays import load
from storage.folder_layouts import RunLayout

BUDGET = ("--kernel", "gaussian", "--budget", "0.09s", *SERIAL)
CASES = GROWS, ENDS, CLASSES = (("values", "0.3"), ("values", "4"), ("classes", "0.28"))  # tables and widths
STEPS = [42, 84, 168, 337, 675]  # of all rows, which the budget pays for


@pytest.fixture(autouse=True, scope="module")
def few_at_first() -> Iterator[None]:
    """The first step has 40 candidates, so that 675 rows are enough for five steps, and are not few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_facts, "FOLDED_ROWS", 600)
        patch.setattr(row_blocks, "SHORT_BYTES", 2**16)  # so that blocks depend on the columns
        for module in (candidate_budget, grow_candidates):
            patch.setattr(module, "LEAST_CENTERS", 40)
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


def fits_of(run: Path) -> list[tuple[int, float, float]]:
    """Return the numbers of candidates that were tried, the widths, and the held-out losses."""
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [(line["candidates"], line["sigma2"], line["hold_out_error"]) for line in lines if "candidates" in line]


@pytest.mark.parametrize("case", CASES, ids=["goes on", "ends", "classes"])
def test_they_grow_until_two_steps_in_a_row_gain_nothing(grown, case):
    run, report = grown[case], report_of(grown[case])
    losses = {size: loss for size, _, loss in fits_of(run)}
    sizes, kept = list(losses), report["n_centers"]
    assert sizes == STEPS[: len(sizes)]
    ends = kept < sizes[-1]
    assert ends == (case == ENDS)
    assert len(sizes) == len(STEPS) or ends
    better = [losses[size] for size in sizes[: sizes.index(kept) + 1]]
    assert better == sorted(better, reverse=True)
    for size in sizes[sizes.index(kept) + 1 :]:
        assert losses[size] > 0.9 * losses[kept], "67 rows do not tell them apart"
    assert report["model_n_centers"] == kept
    centers = load(RunLayout(run).candidates).arrays
    assert len(centers["index"]) == len(centers["X"]) == kept
    assert (kept, choice_of(run)["sigma2"], min(centers["ridges"][:, 1])) in fits_of(run)
    assert load(RunLayout(run).statistics / "all.npz").arrays["gram"].shape == (kept, kept)


@pytest.mark.parametrize("case", [GROWS, CLASSES], ids=["joined", "of classes"])
def test_the_grown_gram_is_that_of_so_many_candidates_at_once(grown, case, tables, features, tmp_path):
    table, report = case[0], report_of(grown[case])
    width = repr(choice_of(grown[case])["sigma2"])
    line = ("--kernel", "gaussian", "--sigma2", width, "--penalty", "none", "--centers", str(report["n_centers"]))
    with keeping_statistics():
        train(tmp_path / "run", features, *line, *SERIAL, dataset=tables / f"{table}.npz")
    layouts = RunLayout(grown[case]), RunLayout(tmp_path / "run")
    np.testing.assert_array_equal(*(load(layout.candidates).arrays["index"] for layout in layouts))
    for part in ("all", "fit", "hold_out"):
        ours, at_once = (load(layout.statistics / f"{part}.npz").arrays for layout in layouts)
        for name in ("gram", "kty", "yty", "column_sums", "target_sums"):
            np.testing.assert_allclose(ours[name], at_once[name], rtol=1e-12, atol=1e-12)
        assert ours["weight_sum"] == at_once["weight_sum"]
