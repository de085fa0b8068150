"""Equal rows, and rows of one group, are held out together: by the command and the estimators."""

import numpy as np
import pytest

from cases import SERIAL
from features.open_source import open_source
from features.row_draws import draw_held_out, group_keys, held_out_limit
from features.source import SourceSpec
from pipeline.estimators import SLKLClassifier
from pipeline.train import main
from runs import keeping_statistics, train
from sources import write_zarr
from storage.arrays import load
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
    layout, n_train = RunLayout(tmp_path / "run"), report["n_train"]
    rows = {tuple(row): group for row, group in zip(table["X"].tolist(), table["g"].tolist(), strict=True)}
    if kind != "zarr":
        source = open_source(SourceSpec(str(data), groups="g"))
        of_parts = [
            [rows[tuple(row)] for row in source.parts[part].X[:n].tolist()]
            for part, n in (("train", n_train), ("test", report["n_test"]))
        ]
        assert set(of_parts[0]).isdisjoint(of_parts[1])
        assert report["n_test"] == pytest.approx(125, abs=20), "a quarter, but for groups"
        keys = group_keys(np.array(of_parts[0]))
        held_out = draw_held_out(0, held_out_limit(0, 0.1, [keys]), keys)
        assert report["hold_out"]["n_rows"] == np.count_nonzero(held_out)
    parts = [load(layout.statistics / f"{part}.npz").arrays["weight_sum"] for part in ("fit", "hold_out")]
    n_held_out = report["hold_out"]["n_rows"]
    assert [round(float(part)) for part in parts] == [n_train - n_held_out, n_held_out]
    assert 0 < n_held_out < n_train


@pytest.mark.parametrize("asked", [[], ["--penalty", "auto"], ["--refit", "ridge", "--penalty", "1"]])
def test_groups_that_leave_nothing_to_choose_by_are_told_and_what_to_do(table, tmp_path, capsys, asked):
    y = np.arange(300) % 3
    X = table["X"][:300] + y[:, None]
    parts = {f"{name}_{part}": of for name, of in (("X", X), ("y", y)) for part in ("train", "test")}
    np.savez(tmp_path / "few.npz", **parts, one_train=np.zeros(300), label_train=y, half_train=y > 0)
    found = {
        "one": "all 300 samples are of one group; give more groups",
        "label": "by groups label the other rows lack their labels",
        "half": "or have one label alone; give groups of several labels",
    }
    line = [str(tmp_path / "few.npz"), "--features-dir", str(tmp_path / "features"), "--seed", "1", "-q", *SERIAL]
    for groups, words in found.items():
        start = [*line, "--set", f"data.groups={groups}", "--run-dir", str(tmp_path / groups)]
        assert main([*start, *asked]) == 65
        told = capsys.readouterr().err
        assert words in told
        assert (" ".join(asked[:2]) or "least squares") in told
    assert "or --set statistics.hold_out=0 without --" in told
    assert main([*start[:-1], str(tmp_path / "advised"), "--set", "statistics.hold_out=0", *asked[2:]]) == 0


def test_estimators_refuse_groups_that_are_none(table):
    X, y = table["X"], table["y"]
    machine = SLKLClassifier(random_state=0)
    for groups, words in (
        (np.zeros((500, 2)), r"groups has the shape \(500, 2\) .*; \(500,\) is needed"),
        (np.where(np.arange(500) == 7, np.nan, 1.0), "groups: row 7 has no group"),
        (y, "or have one label alone; give groups of several labels"),
    ):
        with pytest.raises(ValueError, match=words):
            machine.fit(X, y, groups=groups)


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
