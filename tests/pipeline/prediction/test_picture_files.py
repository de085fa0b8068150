"""Folders of pictures, trained on, predicted and evaluated: as their pixels are, with the names of the files beside."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

from commands import predicted
from features.open_source import open_source
from features.source import PARTS, SourceSpec
from pipeline import evaluate, predict, report
from pipeline.prediction.predictor import load_predictor
from pipeline.train import train as run_of
from runs import model_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Digits as pictures in parts, 200 and 100 of them, and beside them digits.npz with the same, in their order."""
    source, arrays = open_source(SourceSpec("digits", n_train=200)), dict[str, np.ndarray]()
    for part, n in zip(PARTS, (200, 100), strict=True):
        images, digits = source.parts[part].X[:n], source.parts[part].y[:n]
        order = np.argsort(digits, kind="stable")
        arrays |= {f"X_{part}": images[order], f"y_{part}": digits[order]}
        for k in order.tolist():
            path = tmp_path / "pictures" / part / str(digits[k]) / f"{k:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[k]).save(path)
    np.savez(tmp_path / "digits.npz", **arrays)  # type: ignore[arg-type]
    return tmp_path / "pictures"


def test_a_run_is_that_of_the_same_arrays_and_files_have_their_names(folder, finished_run, tmp_path, capsys):
    run, of_arrays = (finished_run("--centers", "30", dataset=data) for data in (folder, tmp_path / "digits.npz"))
    assert model_bytes(run) == model_bytes(of_arrays)
    with np.load(tmp_path / "digits.npz") as arrays:
        expected = load_predictor(run).decision_function(arrays["X_test"])
    files, flat, out = sorted(folder.glob("test/*/*.png")), tmp_path / "flat", tmp_path / "out.parquet"
    names = [file.relative_to(folder / "test").as_posix() for file in files]
    flat.mkdir()
    for file, name in zip(files, names, strict=True):
        (flat / name.replace("/", "-")).symlink_to(file)
    asked: list[tuple[list[Path], list[str]]] = [([folder], names), ([folder / "test"], names)]
    asked += [
        ([flat], [name.replace("/", "-") for name in names]),
        (files, [*map(str, files)]),
        (files[:1], [str(files[0])]),
    ]
    for data, called in asked:
        assert predict.main([str(run), *map(str, data), "--out", str(out), "--force", "-q"]) == 0
        found = pandas.read_parquet(out)
        np.testing.assert_allclose(found.filter(like="decision"), expected[: len(called)], rtol=1e-12)
        assert found["file"].tolist() == called
    assert predict.main([str(run), str(folder), "--out", "-"]) == 0
    lines = [line.split(",")[:3] for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [["row", "file", "label"], ["0", names[0], "0"]]
    n_wrong = int((expected.argmax(1) != [int(file.parent.name) for file in files]).sum())
    for data in ([], [folder], [folder / "test"], files):
        assert evaluate.main([str(run), *map(str, data), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["n_errors"] == n_wrong
    assert report.main([str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().count('.png"><br>is ') == n_wrong > 0


def test_pictures_of_other_sizes_are_resized_as_in_training(folder, tmp_path):
    for k, file in enumerate(sorted(folder.glob("train/[01]/*.png"))):
        place = tmp_path / ("even" if k % 2 else "odd") / file.parent.name / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.open(file).resize((20 + k % 5, 24)).save(place)
    places = {"run_dir": tmp_path / "run", "features_dir": tmp_path / "features"}
    done = run_of(tmp_path / "odd", test=tmp_path / "even", centers=3, quiet=True, **places)
    out = predicted(done.folder, tmp_path / "even", tmp_path)
    assert ((out["decision"] >= 0) != out["file"].str.startswith("1")).sum() == done.report["n_errors"]


def test_bad_pictures_are_all_named_or_left_out(folder, finished_run, capsys):
    run, test = finished_run("--centers", "30", dataset=folder), folder / "test"
    for digit in range(10):
        (test / str(digit) / "bad.png").write_bytes(b"none")
    asked, skip = [str(run), str(folder)], ("--set", "data.skip_bad=true")
    for command, more in ((predict.main, ["--out", "-"]), (evaluate.main, ["--json"])):
        assert command([*asked, *more]) == 65
        told = capsys.readouterr().err
        assert told.count("bad.png") == 10
        assert told.endswith("leave them out with --set data.skip_bad=true\n")
        assert command([*asked, *more, *skip]) == 0
        out, told = capsys.readouterr()
        assert "warning: 10 pictures left out, which cannot be read: " in told
    assert json.loads(out)["n_errors"] == json.loads((run / "report.json").read_text())["n_errors"]
    assert predict.main([*asked, *skip, "--set", "data.header=true", "--out", "-"]) == 2
