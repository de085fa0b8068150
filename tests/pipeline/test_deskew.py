"""Images made upright, and roots of histograms, in a whole run: the model knows it."""

import json

import numpy as np

from features.descriptors.extraction import FeatureSpec, extract
from features.open_source import open_source
from features.source import SourceSpec
from pipeline.prediction.model_folder import load_model
from runs import TrainedRuns, report_of

SMALL = ("--centers", "40", "--features", "sphog", "--sigma2", "2", "--set", "solver.penalty=0.1")
UPRIGHT = ("--set", "features.deskew=0.5")
ROOTS = ("--set", "features.power=0.5")
SIZES = ("--set", "data.n_train=300", "--set", "data.n_test=60")


def test_the_model_is_of_upright_images_and_says_so(finished_run: TrainedRuns) -> None:
    """The features of the first run lie in the same folder and must not be taken for those of the second."""
    plain = finished_run(*SMALL, *SIZES, dataset="digits")
    upright = finished_run(*SMALL, *SIZES, *UPRIGHT, *ROOTS, dataset="digits")
    model = load_model(upright / "model")
    assert model.features == FeatureSpec("sphog", deskew=0.5, power=0.5)
    source = open_source(SourceSpec("digits", n_train=300, n_test=60))
    images = source.read("train", 0, 300)[0][model.center_index]
    np.testing.assert_array_equal(model.centers, extract(model.features, images))
    np.testing.assert_array_equal(model.centers, model.features_of(images))
    assert (report_of(upright)["deskew"], report_of(upright)["power"]) == (0.5, 0.5)
    described = {run: json.loads((run / "model" / "model.json").read_text())["features"] for run in (plain, upright)}
    assert described[plain] == {"name": "sphog", "algorithm_version": 1}
    assert described[upright] == described[plain] | {"deskew": 0.5, "deskew_version": 1, "power": 0.5}
