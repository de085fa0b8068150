"""Images on another scale than those of the training: converted where that is certain, refused where it is not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import predicted
from features.errors import DataError
from pipeline import evaluate, predict
from pipeline.estimators import SLKLClassifier
from pipeline.prediction.predictor import load_predictor
from pipeline.prediction.trained_model import load_model
from runs import train_beside
from storage.folder_layouts import RunLayout

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
    assert json.loads((of_bytes / "model" / "model.json").read_text())["image_scale"] == 255
    assert np.ptp(expected) > 0.5
    for same in (X.astype(np.float32), X.astype(np.int64), X.reshape(60, -1).astype(float), X[:, None], X[..., None]):
        np.testing.assert_array_equal(decisions(of_bytes, same, tmp_path), expected)
    names = ",".join(f"p{k}" for k in range(X[0].size))
    np.savetxt(tmp_path / "rows.csv", X.reshape(60, -1), delimiter=",", fmt="%d", header=names, comments="")
    np.testing.assert_array_equal(decisions(of_bytes, tmp_path / "rows.csv", tmp_path), expected)


@pytest.mark.parametrize(
    ("divisor", "dtype"), [(255, "f8"), (255, "f4"), (1, "i8"), (1, "u2"), (1, "f4"), (1 / 16, "u2")]
)
def test_the_same_images_are_the_same_model_on_any_scale(of_bytes, run_on, tmp_path, divisor, dtype, request):
    """A run, an estimator and predictions."""
    X = (IMAGES.astype(float) / divisor).astype(dtype)
    run = run_on(X, "--features", request.node.callspec.params["of_bytes"])
    ours, theirs = (load_model(RunLayout(one).model) for one in (run, of_bytes))
    for name, values in ours.arrays().items():
        np.testing.assert_array_equal(values, theirs.arrays()[name])
    np.testing.assert_array_equal(decisions(run, X, tmp_path), decisions(of_bytes, IMAGES, tmp_path))
    options = {"n_centers": 20, "random_state": 0, "features": theirs.features.name}
    fitted = [SLKLClassifier(**options).fit(one, LABELS) for one in (X, IMAGES)]
    np.testing.assert_array_equal(fitted[0].decision_function(X), fitted[1].decision_function(IMAGES))


def test_colour_is_kept_in_any_dtype(tmp_path):
    rng, y = np.random.default_rng(0), np.arange(150) % 3
    X = np.clip((110 + 50 * np.eye(3))[y][:, None, None] + rng.normal(0, 25, (150, 16, 16, 3)), 0, 255).astype("u1")
    for one in (X, X / 255.0, X.astype(np.int64), X.astype(np.uint16), (X / 255).astype(np.float32)):
        np.savez(tmp_path / "data.npz", X=one, y=y)
        run = train_beside(tmp_path, f"run{one.dtype}", tmp_path / "data.npz", "--centers", "40")
        assert json.loads((run / "report.json").read_text())["n_errors"] == 0


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
    with pytest.raises(
        DataError, match=f"row 48, pixel 35 is {told}(, and the images trained on are from 0 to 255|; fill it in)"
    ):
        load_model(of_bytes / "model").features_of(X, first_row=7)


def test_images_on_other_scales_are_refused(of_bytes, run_on):
    scaled, deep = IMAGES / 255.0, IMAGES * np.uint16(257)
    runs = (
        (of_bytes, IMAGES, (scaled, deep)),
        (run_on(scaled), scaled, (IMAGES,)),
        (run_on(deep), deep, (scaled, IMAGES)),
    )
    for run, trained_on, others in runs:
        for other in others:
            predictor = load_predictor(run)
            with pytest.raises(DataError, match=r"X: .* trained on are from 0 to .*; give both on one scale") as caught:
                predictor.predict(other)
            change = str(caught.value).rpartition("white, ")[2]
            given = eval(change, {"X": other.astype(float)})  # what the message says
            np.testing.assert_array_equal(predictor.predict(given), predictor.predict(trained_on))
