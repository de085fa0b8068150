"""`python -m pipeline.resize`: a finished run cut to fewer centers, and what it refuses."""

from pathlib import Path

import numpy as np

from commands import Capture, the_error
from pipeline.prediction.model_folder import load_model
from pipeline.resize import main as resize
from pipeline.solvers.forward_backward_selection import select
from pipeline.stages import accumulate_statistics as statistics
from runs import TrainedRuns
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout


def test_a_run_with_a_penalty_is_cut_to_its_best_centers(
    finished_run: TrainedRuns, tables: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = finished_run(
        "--centers", "60", "--penalty", "0.1", "--set", "solver.intercept=false", dataset=tables / "classes.npz"
    )
    assert resize([str(run), "--size", "15", "--out", str(tmp_path / "cut")]) == 0
    assert "15 centers of" in capsys.readouterr().out
    layout = RunLayout(run)
    whole, cut = load_model(layout.model), load_model(tmp_path / "cut")
    assert cut.n_centers == 15 < whole.n_centers
    assert set(cut.center_index) < set(whole.center_index)
    active = read_arrays(layout.solution("final.npz"))["active"]
    expected = select(statistics.load_statistics(layout, "all").cut(active), 15, intercept=False).chosen
    assert np.array_equal(cut.center_index, whole.center_index[expected])


def test_what_resize_refuses(finished_run: TrainedRuns, tables: Path, tmp_path: Path, capsys: Capture) -> None:
    run = finished_run("--centers", "60", "--select", "greedy:20", dataset=tables / "classes.npz")
    out = tmp_path / "model"
    for size, place, code, words in (
        ("21", out, 2, "the model has 20 centers; ask for 1 to 20"),
        ("0", out, 2, "ask for 1 to 20"),
        ("5", tmp_path, 73, "exists; choose another name"),
    ):
        assert resize([str(run), "--size", size, "--out", str(place)]) == code
        assert words in the_error(capsys)
    assert resize([str(tmp_path), "--size", "5", "--out", str(out)]) == 66
    assert not out.exists()
