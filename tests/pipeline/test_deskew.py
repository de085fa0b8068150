"""Images made upright, and roots of histograms, in whole runs: the model knows it, and so does all that reads it."""

import json
from pathlib import Path

import numpy as np
import pytest

from features.descriptors.extraction import FeatureSpec, extract
from features.open_source import open_source
from features.source import SourceSpec
from pipeline import evaluate, predict, report, verify
from pipeline.prediction.model_folder import load_model
from runs import TrainedRuns, model_bytes, report_of, train

SMALL = ("--centers", "40", "--features", "sphog", "--sigma2", "2", "--set", "solver.penalty=0.1")
UPRIGHT = ("--set", "features.deskew=0.5")
ROOTS = ("--set", "features.power=0.5")
SIZES = ("--set", "data.n_train=300", "--set", "data.n_test=60")


@pytest.fixture(scope="module")
def plain(finished_run: TrainedRuns) -> Path:
    return finished_run(*SMALL, *SIZES, dataset="digits")


@pytest.fixture(scope="module")
def upright(plain: Path, finished_run: TrainedRuns) -> Path:
    """Trained after the other, whose features lie in the same folder and must not be taken for its own."""
    return finished_run(*SMALL, *SIZES, *UPRIGHT, *ROOTS, dataset="digits")


def test_the_model_is_of_upright_images_and_says_so(plain: Path, upright: Path) -> None:
    model = load_model(upright / "model")
    assert model.features == FeatureSpec("sphog", deskew=0.5, power=0.5)
    source = open_source(SourceSpec("digits", n_train=300, n_test=60))
    images = source.read("train", 0, 300)[0][model.center_index]
    np.testing.assert_array_equal(model.centers, extract(model.features, images))
    assert (report_of(upright)["deskew"], report_of(upright)["power"]) == (0.5, 0.5)
    described = {run: json.loads((run / "model" / "model.json").read_text())["features"] for run in (plain, upright)}
    assert described[plain] == {"name": "sphog", "algorithm_version": 1}
    assert described[upright] == described[plain] | {"deskew": 0.5, "deskew_version": 1, "power": 0.5}


def test_predict_evaluate_and_verify_agree_with_the_run(upright: Path, tmp_path: Path) -> None:
    images, labels = open_source(SourceSpec("digits", n_train=300, n_test=60)).read("test", 0, 60)
    model = load_model(upright / "model")
    expected = model.decision_function(extract(model.features, images))
    np.savez(tmp_path / "new.npz", X=images)
    assert predict.main([str(upright), str(tmp_path / "new.npz"), "--out", str(tmp_path / "out.npz"), "-q"]) == 0
    with np.load(tmp_path / "out.npz") as predicted:
        np.testing.assert_allclose(predicted["decision"], expected, atol=1e-6)
        assert np.mean(predicted["label"] != labels) == report_of(upright)["error_rate"]
    assert evaluate.main([str(upright)]) == 0
    assert verify.main([str(upright)]) == 0


def test_computed_when_read_it_gives_the_same_model(upright: Path, tmp_path: Path) -> None:
    words = (*SMALL, *SIZES, *UPRIGHT, *ROOTS, "--features-store", "none")
    train(tmp_path / "live", tmp_path / "none", *words, dataset="digits")
    assert model_bytes(tmp_path / "live") == model_bytes(upright)


def test_the_page_of_a_run_says_it(plain: Path, upright: Path, tmp_path: Path) -> None:
    for run, says in ((plain, False), (upright, True)):
        assert report.main([str(run), "--out", str(tmp_path / "page.html")]) == 0
        assert ("of images made upright (deskew 0.5) to the power 0.5" in (tmp_path / "page.html").read_text()) is says
