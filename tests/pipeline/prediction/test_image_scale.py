"""Images on another scale than those of the training: converted where that is certain, refused where it is not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from features.errors import DataError
from pipeline import evaluate, predict, train
from pipeline.prediction.model_folder import load_model
from pipeline.prediction.predictor import load_predictor
from runs import train_beside
from storage.folder_layouts import RunLayout

Images = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def images() -> tuple[Images, Images]:
    """Bytes (60, 16, 16) with a bright upper or lower half, and their labels."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    X = rng.integers(0, 80, (60, 16, 16)).astype(np.uint8)
    X[labels == 0, :8] += 120
    X[labels == 1, 8:] += 120
    return X, labels


@pytest.fixture(scope="module")
def run_on(images: tuple[Images, Images], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train on the images as one dtype and scale; return the run."""

    def trained(X: Images, *arguments: str) -> Path:
        folder = tmp_path_factory.mktemp("run")
        np.savez(folder / "data.npz", X=X, y=images[1])
        return train_beside(folder, "run", folder / "data.npz", "--centers", "20", "--scheduler", "serial", *arguments)

    return trained


@pytest.fixture(scope="module", params=["raw", "soft-hog"])
def of_bytes(images: tuple[Images, Images], run_on: Callable[..., Path], request: pytest.FixtureRequest) -> Path:
    """The features have the pixels, or the mean brightness of cells."""
    return run_on(images[0], "--features", request.param)


def decisions(run: Path, X: Images, folder: Path) -> Images:
    np.savez(folder / "new.npz", X=X)
    assert predict.main([str(run), str(folder / "new.npz"), "--out", str(folder / "out.parquet"), "--force", "-q"]) == 0
    return pandas.read_parquet(folder / "out.parquet").filter(like="decision").to_numpy()


def test_whole_numbers_are_bytes_in_any_dtype_and_shape(of_bytes, images, tmp_path):
    X, expected = images[0], decisions(of_bytes, images[0], tmp_path)
    assert json.loads((of_bytes / "model" / "model.json").read_text())["input_dtype"] == "uint8"
    assert np.ptp(expected) > 0.5
    for same in (X.astype(np.float32), X.astype(np.int64), X.reshape(60, -1).astype(float), X[:, None], X[..., None]):
        np.testing.assert_array_equal(decisions(of_bytes, same, tmp_path), expected)
    names = ",".join(f"p{k}" for k in range(X[0].size))
    np.savetxt(tmp_path / "rows.csv", X.reshape(60, -1), delimiter=",", fmt="%d", header=names, comments="")
    arguments = [str(of_bytes), str(tmp_path / "rows.csv"), "--out", str(tmp_path / "csv.parquet"), "-q"]
    assert predict.main(arguments) == 0
    found = pandas.read_parquet(tmp_path / "csv.parquet").filter(like="decision")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("value", "told"), [(0.5, "0.5"), (-1.0, "-1"), (256.0, "256"), (1.0, "1")])
def test_other_floats_are_refused_by_a_model_of_bytes(value, told, of_bytes, images, tmp_path, capsys):
    X = images[0].astype(float) * (value != 1.0)  # 0 and 1 alone are on another scale, though whole
    X[41, 2, 3] = value
    np.savez(tmp_path / "new.npz", X=X, y=images[1])
    data, out = str(tmp_path / "new.npz"), str(tmp_path / "out.csv")
    assert predict.main([str(of_bytes), data, "--out", out]) == 65
    assert evaluate.main([str(of_bytes), data]) == 65
    line = f"error: X: row 41, pixel 35 is {told}, the model was trained on bytes; give whole numbers from 0 to 255\n"
    assert capsys.readouterr() == ("", 2 * line)
    assert not Path(out).exists()
    with pytest.raises(DataError, match=f"row 48, pixel 35 is {told}, the model was trained on bytes"):
        load_model(of_bytes / "model").features_of(X, first_row=7)


def test_bytes_are_refused_by_a_model_of_floats(images, run_on, tmp_path, capsys):
    scaled = images[0] / 255.0
    run = run_on(scaled, "--features", "raw")
    assert load_model(RunLayout(run).model).input_dtype == "float64"
    assert np.isfinite(decisions(run, scaled.astype(np.float32), tmp_path)).all()
    np.savez(tmp_path / "new.npz", X=images[0])
    assert predict.main([str(run), str(tmp_path / "new.npz"), "--out", str(tmp_path / "out.csv")]) == 65
    assert "X: inputs are bytes, the model was trained on float64 images" in capsys.readouterr().err
    for other in (images[0].astype(float), scaled / 255.0):
        with pytest.raises(DataError, match=r"X: pixels are up to .*, those trained on up to 0\.\d+; give both on one"):
            load_predictor(run).predict(other)


def test_gradients_are_the_same_on_any_scale(images, run_on, tmp_path):
    run = run_on(images[0], "--set", "features.brightness=0")
    expected = decisions(run, images[0], tmp_path)
    np.testing.assert_allclose(decisions(run, images[0] / 255.0, tmp_path), expected, atol=1e-4)


def test_parts_on_different_scales_are_refused(images, tmp_path, capsys):
    X, y = images
    np.savez(tmp_path / "data.npz", X_train=X, y_train=y, X_test=X / 255.0, y_test=y)
    assert train.main([str(tmp_path / "data.npz"), "--run-dir", str(tmp_path / "run")]) == 65
    assert "train images are uint8, test images float64; give both on one scale" in capsys.readouterr().err
