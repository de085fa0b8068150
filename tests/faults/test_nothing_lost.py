"""What a command must not overwrite, names that are too long, streams that are full or lack letters."""

import os
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr

from commands import Capture
from pipeline import evaluate, predict, train
from runs import python


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three classes with letters beyond ASCII; its folder holds data.npz too."""
    folder = tmp_path_factory.mktemp("lost")
    X = np.random.default_rng(0).normal(size=(160, 3))
    y = np.array(["ä,b", "日本", "c"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    np.savez(folder / "data.npz", X=X, y=y)
    options = ["--run-dir", str(folder / "run"), "--features-dir", str(folder / "features"), "--centers", "30", "-q"]
    assert train.main([str(folder / "data.npz"), *options]) == 0
    return folder / "run"


def test_predictions_need_no_labels_that_can_be_read(run: Path, tmp_path: Path) -> None:
    with np.load(run.parent / "data.npz") as found:
        X, y = found["X"], found["y"]
    group = zarr.open_group(tmp_path / "new.zarr", mode="w")
    group.create_array("X", data=X, chunks=(50, 3))
    with warnings.catch_warnings(action="ignore"):  # zarr 3.1 says that strings have no specification, 3.4 does not
        group.create_array("y", data=y)
    np.savez(tmp_path / "bare.npz", X=X)
    outs = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    for data, out in zip(("new.zarr", "bare.npz"), outs, strict=True):
        assert predict.main([str(run), str(tmp_path / data), "--out", out, "-q"]) == 0
    assert Path(outs[0]).read_bytes() == Path(outs[1]).read_bytes()
    assert evaluate.main([str(run), str(tmp_path / "new.zarr")]) == 65


@pytest.mark.ci
def test_streams_that_lack_letters_get_escapes(run: Path) -> None:
    both = "from pipeline import evaluate, predict; run, data = sys.argv[1:]"
    both = f"import sys; {both}; sys.exit(evaluate.main([run]) or predict.main([run, data, '--out', '-']))"
    found = python("-c", both, run, run.parent / "data.npz", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (found.returncode, found.stderr) == (0, "")
    metrics, _, predictions = found.stdout.partition("\nrow,")
    assert "\\u65e5\\u672c" in metrics
    assert "\\u65e5\\u672c" in predictions


def test_a_full_stream_is_told_in_one_line(run: Path, tmp_path: Path) -> None:
    line = [run, run.parent / "data.npz", "--out", tmp_path / "labels.csv"]
    with Path("/dev/full").open("w") as full:
        found = python("-m", "pipeline.predict", *line, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert found.returncode == 73
    assert found.stderr.count("\n") == 1
    assert predict.main(list(map(str, line))) == 73  # it was made nevertheless


NAMES = [".tmp-", ".tmp-thesis", ".tmp-old-thesis", ".tmp-thesis-0123456789abcdef", ".old-thesis-0123456789abcdef"]
NAMES += [".tmp-config.toml-0123456789abcdef0", "env.json"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_run_folder_with_files_of_somebody_else_is_refused_and_kept(
    tmp_path: Path, name: str, kind: str, capsys: Capture
) -> None:
    """Names that begin like those that a killed run leaves."""
    run = tmp_path / "run"
    inside = run / name / "chapters" if kind == "folder" else run / name
    inside.parent.mkdir(parents=True)
    inside.write_text("mine")
    code = train.main(["digits", "--run-dir", str(run), "--resume", "auto", "-q"])
    assert code == (65 if name == "env.json" else 73)
    assert str(run) in capsys.readouterr().err
    assert inside.read_text() == "mine"
    assert list(run.iterdir()) == [run / name]
