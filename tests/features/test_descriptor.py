"""One interface to all features."""

import numpy as np
import pytest
from skimage.feature import hog as skimage_hog

from features.descriptors.extraction import FeatureSpec, extract, feature_length, parameters
from features.errors import UsageError
from features.open_source import open_source
from features.source import SourceSpec


@pytest.fixture(scope="module")
def images():
    return open_source(SourceSpec("digits", n_train=12)).read("train", 0, 12)[0]


@pytest.mark.parametrize(
    ("spec", "length"),
    [
        (FeatureSpec("soft-hog", (5,), 8), 512),
        (FeatureSpec("soft-hog", (4.5, 9), 6, 0.8, 1.2, deskew=1.0, power=0.5), 480),
        (FeatureSpec("sphog"), 2172),
        (FeatureSpec("hog"), 12 * (4 + 16 + 49)),
        (FeatureSpec("hog", cells=(7,), orientations=9), 144),
        (FeatureSpec("raw"), 784),
        (FeatureSpec("sphog", power=0.3), 2172),
    ],
)
def test_length_type_and_layout(images, spec, length):
    features = extract(spec, images)
    assert features.shape == (12, length)
    assert feature_length(spec, (28, 28)) == length
    assert features.dtype == np.float32
    assert features.flags.c_contiguous
    assert np.isfinite(features).all()
    assert features.any()
    assert np.array_equal(features[5:9], extract(spec, images[5:9]))


def test_raw_scales_bytes_only(images):
    assert np.array_equal(extract(FeatureSpec("raw"), images), images.reshape(12, -1).astype(np.float32) / 255)
    table = np.random.default_rng(0).standard_normal((5, 3))
    assert np.array_equal(extract(FeatureSpec("raw"), table), table.astype(np.float32))


def test_hog_is_scikit_images(images):
    found = extract(FeatureSpec("hog", cells=(14, 4), orientations=8), images)
    expected = [
        np.concatenate([skimage_hog(image, 8, (14, 14), (1, 1)), skimage_hog(image, 8, (4, 4), (1, 1))])
        for image in images
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("power", [0.5, 0.3])
@pytest.mark.parametrize("name", ["soft-hog", "sphog", "hog"])
def test_a_power_is_that_of_every_value(images, name, power):
    plain = extract(FeatureSpec(name), images)
    np.testing.assert_allclose(extract(FeatureSpec(name, power=power), images), plain.astype(float) ** power, rtol=1e-6)
    np.testing.assert_array_equal(extract(FeatureSpec(name, power=1.0), images), plain)
    assert parameters(FeatureSpec(name, power=power)) == parameters(FeatureSpec(name)) | {"power": power}
    assert parameters(FeatureSpec(name, power=1.0)) == parameters(FeatureSpec(name))


def test_parameters_tell_specs_apart_and_without_a_shear_are_those_from_before_there_was_one():
    hog = {"name": "hog", "algorithm_version": 1, "cells": [14, 7, 4], "orientations": 12}
    soft = {"name": "soft-hog", "algorithm_version": 1, "cells": [14.0, 7.0, 4.0], "orientations": 12}
    soft |= {"stride": 0.7, "gradient_scale": 0.8}
    for described in ({"name": "sphog", "algorithm_version": 1}, {"name": "raw", "algorithm_version": 1}, hog, soft):
        name, sheared = described["name"], {"deskew": 0.5, "deskew_version": 1}
        assert parameters(FeatureSpec(name)) == parameters(FeatureSpec(name, deskew=0.0)) == described
        assert parameters(FeatureSpec(name, deskew=0.5)) == described | sheared
    assert parameters(FeatureSpec("hog", cells=(7,))) == hog | {"cells": [7]}
    assert parameters(FeatureSpec("sphog", cells=(3,))) == parameters(FeatureSpec("sphog"))


@pytest.mark.parametrize(
    ("words", "spec", "shape"),
    [(r"features\.power .* above 0", {"name": "sphog", "power": power}, None) for power in (0.0, -1.0, 1.5, np.nan)]
    + [
        ("not for raw", {"name": "raw", "power": 0.5}, None),
        ("soft-hog, sphog, hog, raw", {"name": "sift"}, None),
        ("raw", {"name": "sphog"}, (10,)),
        ("raw", {"name": "hog"}, (10,)),
        ("40", {"name": "hog", "cells": (40,)}, (28, 28)),
        ("cell of 4.5", {"name": "hog", "cells": (4.5,)}, (28, 28)),
        ("needs cell sizes", {"name": "hog", "cells": ()}, (28, 28)),
    ],
)
def test_what_makes_no_features_is_refused(words, spec, shape):
    with pytest.raises(UsageError, match=words):
        extract(FeatureSpec(**spec), np.zeros((4, *shape)))
    if shape is not None:
        with pytest.raises(UsageError, match=words):
            feature_length(FeatureSpec(**spec), shape)


@pytest.mark.parametrize("name", ["soft-hog", "sphog", "hog", "raw"])
def test_inputs_beyond_float32_give_no_warning_and_spoil_their_row_alone(name):
    inputs = np.random.default_rng(0).random((4, 28, 28))
    inputs[1] *= 1e200
    inputs[2] *= 1.7e308
    powers = [] if name == "raw" else [FeatureSpec(name, power=power) for power in (0.5, 0.3)]
    for spec in (FeatureSpec(name), FeatureSpec(name, deskew=0.5), *powers):
        found = extract(spec, inputs)
        assert np.isfinite(found).all(axis=1).tolist() == [True, False, False, True]
        np.testing.assert_array_equal(found[[0, 3]], extract(spec, inputs[[0, 3]]))
