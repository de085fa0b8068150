"""The compiled features against a slow twin that follows the four steps of the definition."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import convolve1d

from features.descriptors.extraction import FeatureSpec, default_parameters, extract, feature_length
from features.descriptors.soft_hog import SoftHog, soft_hog
from features.errors import UsageError
from features.open_source import open_source
from features.source import SourceSpec

PARAMETERS = st.builds(
    SoftHog,
    orientations=st.integers(1, 12),
    cells=st.lists(st.floats(1.0, 8.0), min_size=1, max_size=2).map(tuple),
    stride=st.floats(0.2, 1.9),
    scale=st.floats(0.3, 2.5),
)


def naive_soft_hog(image, parameters):
    """One image, (H, W) to (d,) float64: every cell looks at every pixel; gradients by scipy's convolution."""
    n_bins, image = parameters.orientations, image.astype(np.float64)
    at = np.arange(-max(1, math.ceil(2.5 * parameters.scale)), max(1, math.ceil(2.5 * parameters.scale)) + 1)
    bell = np.exp(-(at**2) / (2 * parameters.scale**2))
    gx, gy = (
        convolve1d(convolve1d(image, -at * bell, axis=axis, mode="nearest"), bell, axis=1 - axis, mode="nearest")
        for axis in (1, 0)
    )
    distance = np.degrees(np.arctan2(gy, gx))[..., None] - np.arange(n_bins) * 360.0 / n_bins
    distance = np.abs((distance + 180.0) % 360.0 - 180.0) * n_bins / 360.0  # in bins, round the circle
    of_bin = np.maximum(0.0, 1.0 - distance) if n_bins > 1 else np.ones((*image.shape, 1))
    votes = np.hypot(gx, gy)[..., None] * of_bin
    places = [np.arange(side) - (side - 1) / 2 for side in image.shape]  # from the middle of the image
    parts = []
    for cell in parameters.cells:
        step = cell * parameters.stride
        n_rows, n_columns = (1 + math.floor((side - 1) / step + 1e-9) for side in image.shape)
        for row in (np.arange(n_rows) - (n_rows - 1) / 2) * step:
            for column in (np.arange(n_columns) - (n_columns - 1) / 2) * step:
                near = [np.clip(1 - np.abs(p - c) / cell, 0, 1) for p, c in zip(places, (row, column), strict=True)]
                parts.append(np.einsum("y,x,yxk->k", *near, votes))
    return np.concatenate(parts) / (np.sum(parts) + 1e-10)


@pytest.fixture(scope="module")
def images():
    return open_source(SourceSpec("digits", n_train=31)).read("train", 0, 31)[0]


@given(PARAMETERS, st.integers(8, 24), st.integers(8, 24), st.integers(0, 2**32 - 1))
def test_any_size_and_parameters_equal_the_twin(parameters, height, width, seed):
    rng = np.random.default_rng(seed)
    found = soft_hog(rng.integers(0, 256, (2, height, width)).astype(np.float64), parameters)
    assert found.shape == (2, parameters.length(height, width))
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (2, height, width))
    np.testing.assert_allclose(found, [naive_soft_hog(image, parameters) for image in images], atol=2e-6)


def test_digits_equal_the_twin_whatever_their_block_size_scale_ground_and_layout(images):
    parameters = SoftHog(8, (5.0,), 0.7, 0.8)
    whole = soft_hog(images, parameters)
    np.testing.assert_allclose(whole, [naive_soft_hog(image, parameters) for image in images], atol=1e-6)
    assert np.array_equal(whole, np.concatenate([soft_hog(images[k : k + 7], parameters) for k in range(0, 31, 7)]))
    np.testing.assert_allclose(soft_hog(images / 255.0, parameters), whole, atol=1e-6)
    np.testing.assert_allclose(soft_hog(images + 1000.0, parameters), whole, atol=1e-6)  # of any ground: no frame
    assert np.array_equal(soft_hog(np.asfortranarray(images), parameters), whole)


def test_roots_have_norm_1_and_a_blank_image_none(images):
    spec = FeatureSpec("soft-hog", (5.0, 9.0), 8, power=0.5)
    np.testing.assert_allclose(np.linalg.norm(extract(spec, images), axis=1), 1.0, rtol=1e-6)
    assert not extract(spec, np.full((2, 28, 28), 7, np.uint8)).any()


def test_a_shift_by_a_stride_moves_the_features_to_the_next_cell():
    image = np.zeros((1, 41, 41))
    image[0, 14:24, 15:22] = np.random.default_rng(0).random((10, 7))
    parameters = SoftHog(6, (4.0,), 0.5, 0.7)
    before, after = (
        soft_hog(np.roll(image, by, axis=(1, 2)), parameters).reshape(21, 21, 6) for by in ((0, 0), (2, 4))
    )
    np.testing.assert_allclose(np.roll(before, (1, 2), axis=(0, 1)), after, atol=1e-7)


def test_defaults_are_in_proportion_to_images_from_28_pixels_on():
    lengths = {}
    for side in (14, 16, 28, 56, 64, 224, 720):
        defaults = default_parameters("soft-hog", (side, side + 1))
        assert defaults["orientations"] == 8
        assert defaults["cells"] == (max(4.0, round(5 * side / 28, 2)),)
        assert defaults["gradient_scale"] == round(0.8 * max(1, side / 28), 2)
        lengths[side] = feature_length(FeatureSpec("soft-hog", **defaults), (side, side))
    assert lengths == {14: 200, 16: 288, 28: 512, 56: 512, 64: 512, 224: 512, 720: 512}


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("at least 1 pixel", {"cells": ()}),
        ("at least 1 pixel", {"cells": (0.5,)}),
        ("at least 1 pixel", {"cells": (np.nan,)}),
        ("at least 1 pixel", {"orientations": 0}),
        ("a cell of 29 pixels does not fit images of 28 x 28", {"cells": (5.0, 29.0)}),
        ("too many", {"cells": (1.0,), "stride": 0.1, "orientations": 360}),
        (r"features\.stride", {"stride": 0.05}),
        (r"features\.stride", {"stride": 2.0}),
        (r"features\.gradient_scale", {"gradient_scale": 0.0}),
        (r"features\.gradient_scale", {"gradient_scale": np.nan}),
    ],
)
def test_parameters_that_make_no_features_are_refused(words, change):
    with pytest.raises(UsageError, match=words):
        feature_length(FeatureSpec("soft-hog", **{"cells": (5.0,), **change}), (28, 28))


def test_of_images_of_any_size_the_defaults_make_features():
    for side in (700, 1000, 4000):
        spec = FeatureSpec("soft-hog", **default_parameters("soft-hog", (side, 5 * side)))
        assert 512 <= feature_length(spec, (side, side)) < feature_length(spec, (side, 5 * side)) < 4000


def test_what_is_no_image_is_refused():
    with pytest.raises(UsageError, match="raw"):
        extract(FeatureSpec("soft-hog", (5.0,)), np.zeros((3, 10)))
