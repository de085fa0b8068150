"""Folders of pictures, trained on, predicted and evaluated: as their pixels are, with the names of the files beside."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import Capture
from features.open_source import open_source
from features.source import SourceSpec
from pipeline import evaluate, predict, report
from pipeline.prediction.predictor import load_predictor
from pipeline.train import train as run_of
from runs import TrainedRuns, model_bytes, save_once

SMALL = ("--centers", "30")


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    """Digits as pictures in parts, 200 and 100 of them, and beside them digits.npz with the same, in their order."""
    place = shared_folder / "pictures"
    source, arrays = open_source(SourceSpec("digits", n_train=200, n_test=100)), dict[str, np.ndarray]()
    for part, n in (("train", 200), ("test", 100)):
        images, digits = source.read(part, 0, n)  # type: ignore[arg-type]
        order = np.argsort(digits, kind="stable")
        arrays |= {f"X_{part}": images[order], f"y_{part}": digits[order]}
        for k in order.tolist():
            path = place / part / str(digits[k]) / f"{k:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[k]).save(path)
    save_once(shared_folder / "digits.npz", **arrays)
    return place


@pytest.fixture(scope="module")
def run(finished_run: TrainedRuns, folder: Path) -> Path:
    return finished_run(*SMALL, dataset=folder)


def test_the_model_is_that_of_the_same_arrays(run: Path, folder: Path, finished_run: TrainedRuns) -> None:
    assert model_bytes(run) == model_bytes(finished_run(*SMALL, dataset=folder.parent / "digits.npz"))


def test_predictions_are_those_of_training_with_the_names_of_files(
    run: Path, folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    with np.load(folder.parent / "digits.npz") as arrays:
        expected = load_predictor(run).decision_function(arrays["X_test"])
    files = sorted(folder.glob("test/*/*.png"))
    names = [file.relative_to(folder / "test").as_posix() for file in files]
    flat, (one, *_) = tmp_path / "flat", files
    flat.mkdir()
    for file in files:
        (flat / f"{file.parent.name}-{file.name}").symlink_to(file)
    asked: list[tuple[list[Path], list[str]]] = [
        ([folder], names),
        ([folder / "test"], names),
        ([flat], [name.replace("/", "-") for name in names]),
        (files, list(map(str, files))),
        ([one], [str(one)]),
    ]
    for data, called in asked:
        assert predict.main([str(run), *map(str, data), "--out", str(tmp_path / "out.npz"), "--force", "-q"]) == 0
        with np.load(tmp_path / "out.npz") as out:
            np.testing.assert_allclose(out["decision"], expected[: len(called)], rtol=1e-12)
            assert out["file"].tolist() == called
    assert predict.main([str(run), str(folder), "--out", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[1:3] for line in lines[:2]] == [["file", "label"], [names[0], "0"]]
    assert predict.main([str(run), str(folder), "--out", str(tmp_path / "out.parquet")]) == 0
    n_wrong = int((expected.argmax(1) != [int(file.parent.name) for file in files]).sum())
    for data in ([], [folder], [folder / "test"], files):
        capsys.readouterr()
        assert evaluate.main([str(run), *map(str, data), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["n_errors"] == n_wrong
    assert report.main([str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().count('.png"><br>is ') == n_wrong > 0


def test_pictures_of_other_sizes_are_resized_as_in_training(tmp_path: Path, folder: Path) -> None:
    """Also by `train` in Python, whose test part is another folder."""
    data = tmp_path / "data"
    for k, file in enumerate(sorted(folder.glob("train/[01]/*.png"))):
        place = data / ("even" if k % 2 else "odd") / file.parent.name / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.open(file).resize((20 + k % 5, 24)).save(place)
    places = {"run_dir": tmp_path / "run", "features_dir": tmp_path / "features"}
    done = run_of(data / "odd", test=data / "even", centers=10, quiet=True, **places)
    decision, error = tmp_path / "out.npz", done.report["n_errors"]
    assert predict.main([str(done.folder), str(data / "even"), "--out", str(decision), "-q"]) == 0
    with np.load(decision) as out:
        truth = [name.startswith("1") for name in out["file"].tolist()]
        assert int(((out["decision"][:, 0] >= 0) != truth).sum()) == error
