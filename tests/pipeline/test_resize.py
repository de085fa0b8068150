"""`python -m pipeline.resize`: a finished run cut to fewer centers, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.prediction.model_folder import load_model
from pipeline.resize import main as resize
from pipeline.solvers.forward_backward_selection import select
from pipeline.stages import accumulate_statistics as statistics
from runs import train_beside
from storage.atomic_writes import read_arrays
from storage.folder_layouts import RunLayout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 20 selected centers."""
    place = tmp_path_factory.mktemp("resize")
    train_beside(place, "selected", "digits", "--centers", "60", "--select", "greedy:20")
    return place


def test_a_run_with_a_penalty_is_cut_to_its_best_centers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_beside(place, "penalised", "digits", "--penalty", "0.1", "--centers", "200")
    assert resize([str(place / "penalised"), "--size", "30", "--out", str(place / "penalised-30")]) == 0
    assert "30 centers of" in capsys.readouterr().out
    layout = RunLayout(place / "penalised")
    whole, cut = load_model(layout.model), load_model(place / "penalised-30")
    assert cut.n_centers == 30
    assert set(cut.center_index) < set(whole.center_index)
    active = read_arrays(layout.solution("final.npz"))["active"]
    expected = select(statistics.load_statistics(layout, "all").cut(active), 30, intercept=False).chosen
    assert np.array_equal(cut.center_index, whole.center_index[expected])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--size", "21"], 2, "the model has 20 centers; ask for 1 to 20"),
        (["--size", "0"], 2, "ask for 1 to 20"),
        (["--size", "5", "--out", "."], 73, "exists; choose another --out"),
    ],
)
def test_what_resize_refuses(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: list[str], code: int, words: str,
) -> None:  # fmt: skip
    more = [] if "--out" in arguments else ["--out", str(tmp_path / "model")]
    assert resize([str(place / "selected"), *arguments, *more]) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "model").exists()
    assert resize([str(tmp_path), "--size", "5", "--out", str(tmp_path / "model")]) == 66
