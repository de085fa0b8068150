"""Pipes and devices in place of data or of a model: every command refuses them in one line, and waits for nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commands import the_error
from pipeline import evaluate, predict, train
from runs import TrainedRuns

X = np.arange(160.0).reshape(40, 4)
STRANGE: dict[str, Callable[[Path], object]] = {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero")}

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def model(finished_run: TrainedRuns, tables: Path) -> Path:
    """A model of four inputs."""
    return finished_run("--centers", "20", dataset=tables / "values.npz") / "model"


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_data_that_are_no_plain_file(tmp_path, model, kind, suffix, capsys):
    data = tmp_path / f"data.{suffix}"
    STRANGE[kind](data)
    lines = (
        (train.main, [data, "--run-dir", tmp_path / "run", "-q"]),
        (predict.main, [model, data, "--out", tmp_path / "out.csv"]),
        (evaluate.main, [model, data]),
    )
    for main, words in lines:
        assert main([str(word) for word in words]) == 65
        assert f"{data}: is a pipe, a device or a socket" in the_error(capsys)
    assert sorted(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["model.json", "arrays.npz", "MANIFEST.json"])
def test_a_model_that_is_no_plain_file(tmp_path, model, kind, name, capsys):
    np.savez(tmp_path / "data.npz", X=X)
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / name).unlink()
    STRANGE[kind](folder / name)
    assert predict.main([str(folder), str(tmp_path / "data.npz"), "--out", str(tmp_path / "out.csv")]) == 65
    assert name in the_error(capsys)
    assert not (tmp_path / "out.csv").exists()
