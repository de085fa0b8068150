"""Runs of an earlier version, which held out other rows: what of them is used, and what is refused."""

from collections.abc import Callable
from pathlib import Path

from commands import Capture, the_error
from pipeline.prediction.model_folder import load_model
from pipeline.resize import resize_run
from pipeline.train import main as train
from storage.arrays import read_arrays, write_arrays
from storage.folder_layouts import RunLayout


def test_rows_that_an_earlier_version_held_out_are_not_taken_for_those_of_today(
    trained: Callable[..., Path], tables: Path, features: Path, tmp_path: Path, capsys: Capture
) -> None:
    data = tables / "classes.npz"
    run = trained("--centers", "60", "--refit", "ridge", "--penalty", "0.1", dataset=data)
    assert resize_run(run, 5, tmp_path / "now").temperature is not None
    arrays = read_arrays(RunLayout(run).centers)
    del arrays["held_out_limit"]
    write_arrays(RunLayout(run).centers, arrays)
    resized = resize_run(run, 5, tmp_path / "before")
    assert resized.temperature is None
    assert "an earlier version trained the run and held out other rows" in str(resized.no_temperature)
    assert load_model(tmp_path / "before").temperature is None
    grown = [data, "--add-rows", data, "--init-from", run, "--run-dir", tmp_path / "grown", "--features-dir", features]
    capsys.readouterr()
    assert train([*map(str, grown), "-q"]) == 78
    assert "an earlier version trained this run and held out other rows; train anew" in the_error(capsys)
    (run / "report.json").unlink()
    assert train([str(data), "--run-dir", str(run), "--features-dir", str(features), "--resume", "require", "-q"]) == 78
    assert "an earlier version began this run" in the_error(capsys)
