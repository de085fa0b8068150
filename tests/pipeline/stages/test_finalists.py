"""Runs whose centers are chosen among finalists: how their sample is read, and what the plan says of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.kernels.gram_statistics import StatisticsSums
from pipeline.solvers import forward_backward_selection as greedy
from runs import model_bytes, report_of, train, train_beside

LINE = ("--centers", "400", "--select", "greedy:30", "--sigma2", "2", "--scheduler", "serial")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 1000 rows of a regression: as they are, with weights, and with groups."""
    folder = tmp_path_factory.mktemp("finalists")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1209, 4))
    y = np.sin(X[:, 0]) + X[:, 1] ** 2
    arrays = {"X_train": X[:1000], "y_train": y[:1000], "X_test": X[1200:], "y_test": y[1200:]}
    np.savez(folder / "data.npz", **arrays)
    np.savez(folder / "weighted.npz", **arrays, w_train=1.0 + np.arange(1000) % 3)
    np.savez(folder / "grouped.npz", **arrays, g_train=np.arange(1000) % 3)
    return folder


OPTIONS = {"data": (), "weighted": ("--set", "data.weights=w"), "grouped": ("--set", "data.groups=g")}


@pytest.mark.parametrize("data", OPTIONS)
def test_a_sample_that_is_read_piece_by_piece_is_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    """Blocks of 32 rows, read at once or by seven; never more rows in memory than were asked for, and the sampled.

    Of few groups, too, which are not sampled as a whole.
    """
    for most in ("BACK_LEAST", "BACK_MOST"):
        monkeypatch.setattr(greedy, most, 60)
    line = (*LINE, *OPTIONS[data])
    whole = train_beside(place, f"{data} whole", place / f"{data}.npz", *line)
    add, sampled = StatisticsSums.add, list[int]()

    def seen(sums: StatisticsSums, columns: np.ndarray, *arguments: Any) -> None:
        if columns.shape[1] == 400:  # all candidates; the passes after it are of finalists
            sampled.append(len(columns))
        add(sums, columns, *arguments)

    monkeypatch.setattr(StatisticsSums, "add", seen)
    pieces = train_beside(place, f"{data} pieces", place / f"{data}.npz", *line, "--set", "statistics.block_rows=7")
    assert model_bytes(pieces) == model_bytes(whole)
    assert report_of(pieces)["passes"] == report_of(whole)["passes"]
    assert 140 < sum(sampled) < 300, "about four rows for each of 60 finalists"
    (turn,) = report_of(whole)["passes"]
    assert turn["kernel_entries"] == 400 * 240


@pytest.mark.parametrize("asked", [("--select", "greedy:30"), ("--set", "centers.columns=on-demand")])
def test_a_plan_without_the_gram_of_all_says_nothing_of_a_penalty_that_nobody_chose(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[str, str]
) -> None:
    line = ("--centers", "400", "--sigma2", "2", "--set", "centers.working_set=150", *asked, "--dry-run")
    train(tmp_path / "run", place / "features", *line, dataset=place / "data.npz", quiet=False)
    out = capsys.readouterr().out
    assert "at most 150 candidates" in out
    assert "which needs no Gram" not in out
