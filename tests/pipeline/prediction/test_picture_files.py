"""Images that a model takes: as pixels of files, with their names beside; and on the scale of the training."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from commands import predicted
from features.errors import DataError
from features.open_source import open_source
from features.source import PARTS, SourceSpec
from pipeline import evaluate, predict, report
from pipeline.estimators import SLKLClassifier
from pipeline.prediction.predictor import load_predictor
from pipeline.prediction.trained_model import load_model
from pipeline.train import train as run_of
from runs import model_bytes, train_beside


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
    in_flat, given = [name.replace("/", "-") for name in names], [*map(str, files)]
    asked = (([folder], names), ([folder / "test"], names), ([flat], in_flat), (files, given), (files[:1], given[:1]))
    for data, called in asked:
        assert predict.main([str(run), *map(str, data), "--out", str(out), "--force", "-q"]) == 0
        found = pandas.read_parquet(out)
        np.testing.assert_allclose(found.filter(like="decision"), expected[: len(called)], rtol=1e-12)
        assert found["file"].tolist() == called
    assert predict.main([str(run), str(folder), "--out", "-"]) == 0
    lines = [line.split(",")[:3] for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [["row", "file", "label"], ["0", names[0], "0"]]
    asked = ["--explain", "1", "--force", "-q"]
    assert predict.main([str(run), str(folder), "--out", str(out), *asked]) == 0
    found = pandas.read_parquet(out)
    assert all((folder / "train" / name).is_file() for name in found["center_1"])
    assert [int(name.partition("/")[0]) for name in found["center_1"]] == found["center_1_label"].tolist()
    n_wrong = int((expected.argmax(1) != [int(file.parent.name) for file in files]).sum())
    for data in ([], [folder], [folder / "test"], files):
        assert evaluate.main([str(run), *map(str, data), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["n_errors"] == n_wrong
    assert evaluate.main([str(run), str(flat)]) == 65, "there is nothing to compare with"
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


def test_data_of_another_kind_than_the_pictures_of_a_model(folder, finished_run, tmp_path, capsys):
    run, table = finished_run("--centers", "30", dataset=folder), tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    assert predict.main([str(run), str(table), "--out", "-"]) == 65
    assert "has 2 columns, and the model is of pictures, of 784 values each" in capsys.readouterr().err
    shutil.copytree(folder / "test" / "3", tmp_path / "other" / "three")
    assert evaluate.main([str(run), str(tmp_path / "other")]) == 65
    assert "in folders of three, and the model knows 0, 1, 2, 3" in capsys.readouterr().err


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


Images = np.ndarray[Any, np.dtype[Any]]
LABELS, IMAGES = np.arange(60) % 2, np.random.default_rng(0).integers(0, 80, (60, 16, 16)).astype(np.uint8)
IMAGES[LABELS == 0, :8] += 120
IMAGES[LABELS == 1, 8:] += 120


@pytest.fixture(scope="module")
def run_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train on the images as one dtype and scale; return the run."""

    def trained(X: Images, *arguments: str) -> Path:
        folder = tmp_path_factory.mktemp("run")
        np.savez(folder / "data.npz", X=X, y=LABELS)
        return train_beside(folder, "run", folder / "data.npz", "--centers", "20", "--scheduler", "serial", *arguments)

    return trained


@pytest.fixture(scope="module", params=["raw", "soft-hog"])
def of_bytes(run_on: Callable[..., Path], request: pytest.FixtureRequest) -> Path:
    """The features have the pixels, or the mean brightness of cells."""
    return run_on(IMAGES, "--features", request.param)


def decisions(run: Path, data: Images | Path, folder: Path) -> Images:
    return predicted(run, data, folder).filter(like="decision").to_numpy()


def test_whole_numbers_are_bytes_in_any_dtype_and_shape(of_bytes, tmp_path):
    X, expected = IMAGES, decisions(of_bytes, IMAGES, tmp_path)
    assert load_model(of_bytes / "model").image_scale == 255
    assert np.ptp(expected) > 0.5
    for same in (X.astype(np.float32), X.astype(np.int64), X.reshape(60, -1).astype(float), X[:, None], X[..., None]):
        np.testing.assert_array_equal(decisions(of_bytes, same, tmp_path), expected)
    names = ",".join(f"p{k}" for k in range(X[0].size))
    np.savetxt(tmp_path / "rows.csv", X.reshape(60, -1), delimiter=",", fmt="%d", header=names, comments="")
    np.testing.assert_array_equal(decisions(of_bytes, tmp_path / "rows.csv", tmp_path), expected)


@pytest.mark.parametrize(("value", "told"), [(-1.0, "-1"), (256.0, "256"), (np.nan, "nan")])
def test_values_beyond_the_scale_are_refused(value, told, of_bytes, tmp_path, capsys):
    X = IMAGES.astype(float)
    X[41, 2, 3] = value
    np.savez(tmp_path / "new.npz", X=X, y=LABELS)
    data, out = str(tmp_path / "new.npz"), str(tmp_path / "out.csv")
    assert predict.main([str(of_bytes), data, "--out", out]) == 65
    assert evaluate.main([str(of_bytes), data]) == 65
    assert capsys.readouterr().err.count("error: X: row 41, ") == 2
    assert not Path(out).exists()
    with pytest.raises(DataError, match=f"row 48, pixel 35 is {told}(, and .* are from 0 to 255|; fill it in)"):
        load_model(of_bytes / "model").features_of(X, first_row=7)


def test_the_same_images_are_the_same_model_on_any_scale_and_those_on_others_are_refused(of_bytes, run_on, request):
    """A run, an estimator and predictions."""
    scaled, deep, features = IMAGES / 255.0, IMAGES * np.uint16(257), request.node.callspec.params["of_bytes"]
    ours, found = load_predictor(of_bytes), list[Images]()
    for trained_on, others in ((IMAGES, (scaled, deep)), (scaled, (IMAGES,)), (deep, (scaled, IMAGES))):
        predictor = load_predictor(run_on(trained_on, "--features", features))
        for name, values in predictor.model.arrays().items():
            np.testing.assert_array_equal(values, ours.model.arrays()[name])
        np.testing.assert_array_equal(predictor.decision_function(trained_on), ours.decision_function(IMAGES))
        machine = SLKLClassifier(20, features=features, random_state=0).fit(trained_on, LABELS)
        found.append(machine.decision_function(trained_on))
        np.testing.assert_array_equal(found[-1], found[0])
        for other in others:
            with pytest.raises(DataError, match=r"X: .* trained on are from 0 to .*, so that both are on one scale"):
                predictor.predict(other)
