"""Equal rows, and rows of one group, are held out together: by the command and the estimators."""

import numpy as np
import pytest

from cases import SERIAL
from features.row_draws import draw_held_out, group_keys, held_out_limit
from features.source import SourceSpec
from pipeline.datasets.open_data import open_data
from pipeline.estimators import SLKLClassifier
from runs import keeping_statistics, train
from sources import write_zarr
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

ASKED = ("--centers", "30", "--penalty", "auto", *SERIAL)


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    """Rows of 40 groups of unlike size, two of which a plane separates."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 40, 500) ** 2 // 40
    X = rng.normal(size=(40, 3))[groups] + 0.3 * rng.normal(size=(500, 3))
    return {"X": X, "y": (X[:, 0] + 0.2 * rng.normal(size=500) > 0).astype(int), "g": groups}


@pytest.mark.parametrize("kind", ["csv", pytest.param("zarr", marks=pytest.mark.ci)])
def test_no_group_is_split(table, tmp_path, kind):
    data = tmp_path / f"grouped.{kind}"
    if kind == "zarr":
        write_zarr(data, **table)
    else:
        columns = np.column_stack([table["X"][:, :2], table["g"], table["X"][:, 2], table["y"]])
        np.savetxt(data, columns, delimiter=",", header="a,b,g,c,label", comments="", fmt="%.17g")
    with keeping_statistics():
        report = train(tmp_path / "run", tmp_path / "features", *ASKED, "--set", "data.groups=g", dataset=data)
    source = open_data(SourceSpec(str(data), groups="g"))
    fitted, tested = (table["g"][source.parts[part].numbers] for part in ("train", "test"))
    assert not np.intersect1d(fitted, tested).size
    assert len(tested) == report["n_test"] == pytest.approx(125, abs=20), "a quarter, but for groups"
    held_out = draw_held_out(0, held_out_limit(0, 0.1, [group_keys(fitted)]), group_keys(fitted))
    n_held_out = report["hold_out"]["n_rows"]
    assert 0 < n_held_out == np.count_nonzero(held_out) < report["n_train"]
    parts = [read_arrays(RunLayout(tmp_path / "run").statistics / part)["weight_sum"] for part in ("fit", "hold_out")]
    assert [round(float(part)) for part in parts] == [report["n_train"] - n_held_out, n_held_out]


def test_copies_of_rows_change_no_choice():
    """Neither as rows nor as weights, of all rows or of one class, in whatever order."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(130, 2))
    y = (X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=130) > 0).astype(int)
    repeats = np.where(y == 1, 5, 1)
    order = rng.permutation(repeats.sum())
    machine = SLKLClassifier(random_state=0).fit(X, y, sample_weight=repeats)
    copied = SLKLClassifier(random_state=0).fit(np.repeat(X, repeats, 0)[order], np.repeat(y, repeats)[order])
    fresh = rng.normal(size=(500, 2))
    np.testing.assert_allclose(copied.predict_proba(fresh), machine.predict_proba(fresh), atol=1e-5)
    assert copied.sigma2_ == pytest.approx(machine.sigma2_)
