"""The shear that makes images upright, against scipy's affine transformation by moments that numpy computes."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.ndimage import affine_transform

from features.descriptors.deskew import deskew
from features.descriptors.extraction import FeatureSpec, extract, feature_length
from features.errors import UsageError
from features.open_source import open_source
from features.source import SourceSpec


def ink_of(image: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the distance of each pixel from the ground, and the ground."""
    border = np.ones(image.shape, bool)
    border[1:-1, 1:-1] = False
    ground = float(np.median(image[border].astype(np.float64)))
    return np.abs(image - ground), ground


def covariance_of(image: np.ndarray) -> np.ndarray:
    """Return the covariance (2, 2) of row and column over the ink of an image."""
    places = np.indices(image.shape).reshape(2, -1)
    return np.cov(places, aweights=ink_of(image)[0].ravel(), bias=True)


def twin(image: np.ndarray, strength: float) -> np.ndarray:
    image = image.astype(np.float64)
    ink, ground = ink_of(image)
    if not ink.any() or np.count_nonzero(ink.any(axis=1)) == 1:
        return image
    covariance = covariance_of(image)
    shear = strength * covariance[0, 1] / covariance[0, 0]
    centre_row = np.average(np.indices(image.shape)[0], weights=ink)
    matrix, offset = [[1, 0], [shear, 1]], [0, -shear * centre_row]
    return affine_transform(image, matrix, offset, order=1, mode="grid-constant", cval=ground)


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return open_source(SourceSpec("digits", n_train=30)).read("train", 0, 30)[0]


def bar(slant: float) -> np.ndarray:
    """A bar three pixels wide in 29 x 29, whose middle moves by `slant` pixels to the right from row to row."""
    rows, columns = np.indices((29, 29))
    middle = 14 + slant * (rows - 14)
    return np.where(np.abs(rows - 14) <= 8, np.clip(2 - np.abs(columns - middle), 0, 1), 0.0)


@pytest.mark.parametrize("slant", [-1.0, -0.5, 0.25, 0.5, 1.0])
def test_a_slanted_bar_becomes_upright(slant):
    upright = deskew(bar(slant)[None], 1.0)[0]
    np.testing.assert_allclose(upright.sum(axis=0) / 17, bar(0.0)[14], atol=0.15)  # which linear steps blur
    covariance = covariance_of(upright)
    assert abs(covariance[0, 1] / covariance[0, 0]) <= 1e-12
    half = covariance_of(deskew(bar(slant)[None], 0.5)[0])
    assert half[0, 1] / half[0, 0] == pytest.approx(slant / 2, abs=1e-12)


@pytest.mark.parametrize("strength", [0.25, 0.5, 1.0])
def test_it_is_scipys_transformation(digits, strength):
    assert np.abs(deskew(digits, 1.0) - digits).max() > 100, "nothing was slanted"
    expected = [twin(image, strength) for image in digits / 255.0]
    np.testing.assert_allclose(deskew(digits, strength) / 255, expected, atol=1e-6)
    np.testing.assert_allclose(deskew(digits / 255.0, strength), expected, atol=1e-12)


@example(12, 13, 0, 1.0, 1.0)  # its ground is not 0
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32 - 1), st.floats(0.01, 1), st.floats(0.2, 1))
def test_any_size_and_values_equal_the_twin(height, width, seed, strength, filled):
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((2, height, width)) * (rng.random((2, height, width)) < filled)
    np.testing.assert_allclose(deskew(images, strength), [twin(image, strength) for image in images], atol=1e-5)


def test_no_ink_and_ink_in_one_row_stay_and_a_shear_beyond_the_image_leaves_its_ground():
    images = np.zeros((4, 9, 8))
    images[1] = 0.3
    images[2, 3, 2:7] = [0.1, 0.7, 0.3, 0.9, 0.2]
    images[3, 4, 4] = 1.0
    np.testing.assert_array_equal(deskew(images, 1.0), images)
    assert not extract(FeatureSpec("sphog", deskew=1.0), images)[0].any()
    line = np.zeros((1, 20, 40))  # all but level: its slant is that of many pixels a row
    line[0, 10, 2:20] = line[0, 11, 20:38] = 1.0
    found = deskew(line, 1.0)
    np.testing.assert_allclose(found[0], twin(line[0], 1.0), atol=1e-9)
    assert found.min() == 0.0


def test_scale_and_polarity_do_not_matter(digits):
    upright = deskew(digits.astype(np.float64), 0.5)
    np.testing.assert_allclose(deskew(255.0 - digits, 0.5), 255.0 - upright, atol=1e-9)
    np.testing.assert_allclose(deskew(digits * 1e-200 - 3e-200, 0.5), upright * 1e-200 - 3e-200, atol=1e-210)
    np.testing.assert_allclose(deskew(digits, 0.5), upright, atol=2e-5)


def test_types_blocks_and_layout(digits):
    for dtype, expected in ((np.uint8, np.float32), (np.float32, np.float32), (np.float64, np.float64)):
        assert deskew(digits.astype(dtype), 0.5).dtype == expected
    before, whole = digits.copy(), deskew(digits, 0.5)
    assert np.array_equal(whole, np.concatenate([deskew(digits[k : k + 7], 0.5) for k in range(0, 30, 7)]))
    assert np.array_equal(whole, deskew(np.asfortranarray(digits), 0.5))
    assert np.array_equal(digits, before)


@pytest.mark.parametrize("name", ["sphog", "hog", "raw"])
def test_features_are_those_of_the_upright_images(digits, name):
    upright = deskew(digits, 0.5)
    found = extract(FeatureSpec(name, deskew=0.5), digits)
    expected = extract(FeatureSpec(name), upright / np.float32(255) if name == "raw" else upright)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
    assert np.abs(found - extract(FeatureSpec(name), digits)).max() > 1e-3
    np.testing.assert_array_equal(
        extract(FeatureSpec(name, deskew=0.0), digits), extract(FeatureSpec(name), digits), strict=True
    )


@pytest.mark.parametrize("shape", [(10,), (3, 8, 8)])
def test_what_is_no_image_is_not_sheared_nor_more_than_all_of_a_shear_is_taken(shape):
    spec, images = FeatureSpec("raw", deskew=0.5), np.zeros((2, *shape))
    with pytest.raises(UsageError, match=r"features\.deskew = 0\.5 needs images"):
        feature_length(spec, shape)
    with pytest.raises(UsageError, match="needs images"):
        extract(spec, images)
    with pytest.raises(UsageError, match="needs images"):
        deskew(images, 0.5)
    assert feature_length(FeatureSpec("raw"), shape) == np.prod(shape)
    for strength in (-0.1, 1.01, np.nan, np.inf):
        with pytest.raises(UsageError, match="between 0"):
            FeatureSpec("sphog", deskew=strength)
