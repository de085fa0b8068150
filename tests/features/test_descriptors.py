"""Features of images: one interface to all, and the compiled ones against slow twins that follow the definitions.

The shear that makes images upright: against scipy's affine transformation by moments that numpy computes.
"""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.ndimage import affine_transform, convolve1d

from features import descriptors
from features.descriptors import FeatureSpec, SoftHog, deskewed, extract, feature_length, parameters, sphog
from features.errors import UsageError
from features.open_source import open_source
from features.source import SourceSpec


@pytest.fixture(scope="module")
def images():
    return open_source(SourceSpec("digits", n_train=31)).train.X[:31]


def test_raw_scales_bytes_only(images):
    assert np.array_equal(extract(FeatureSpec("raw"), images), images.reshape(31, -1).astype(np.float32) / 255)
    table = np.random.default_rng(0).standard_normal((5, 3))
    assert np.array_equal(extract(FeatureSpec("raw"), table), table.astype(np.float32))
    assert np.isinf(extract(FeatureSpec("raw"), table * 1e200)).all()


@pytest.mark.parametrize("power", [0.5, 0.3])
@pytest.mark.parametrize("name", ["soft-hog", "sphog"])
def test_a_power_is_that_of_every_value_and_the_scale_of_images_does_not_matter(images, name, power):
    plain = extract(FeatureSpec(name), images)
    np.testing.assert_allclose(extract(FeatureSpec(name, power=power), images), plain.astype(float) ** power, rtol=1e-6)
    np.testing.assert_allclose(extract(FeatureSpec(name), images / 255.0), plain, atol=1e-6)
    assert parameters(FeatureSpec(name, power=power)) == parameters(FeatureSpec(name)) | {"power": power}


@pytest.mark.parametrize(
    ("words", "spec", "shape"),
    [
        ("not for raw", {"name": "raw", "power": 0.5}, None),
        *(("raw", {"name": name}, shape) for name in ("soft-hog", "sphog") for shape in ((10,), (3, 28, 28))),
        ("raw", {"name": "sphog"}, (3, 28)),
        ("use features = soft-hog", {"name": "sphog"}, (28, 28, 3)),
        ("not for sphog", {"name": "sphog", "brightness": 1.0}, None),
        ("too many", {"name": "soft-hog"}, (4, 10**6)),
        *(
            (r"features\.deskew = 0\.5 needs grey images", {"name": "raw", "deskew": 0.5}, shape)
            for shape in ((10,), (3, 8, 8))
        ),
    ],
)
def test_what_makes_no_features_is_refused(words, spec, shape):
    with pytest.raises(UsageError, match=words):
        extract(FeatureSpec(**spec), np.zeros((4, *shape)))
    if shape is not None:
        with pytest.raises(UsageError, match=words):
            feature_length(FeatureSpec(**spec), shape)


PARAMETERS = st.builds(SoftHog, cell=st.floats(1.0, 8.0), scale=st.floats(0.3, 2.5))


def naive_soft_hog(image, parameters):
    """One image, (H, W) to (d,) float64: every cell looks at every pixel; gradients by scipy's convolution."""
    n_bins, image = 8, image.astype(np.float64).reshape(*image.shape[:2], -1)
    at = np.arange(-max(1, math.ceil(2.5 * parameters.scale)), max(1, math.ceil(2.5 * parameters.scale)) + 1)
    bell = np.exp(-(at**2) / (2 * parameters.scale**2))
    gx, gy = (
        convolve1d(convolve1d(image, -at * bell, axis=axis, mode="nearest"), bell, axis=1 - axis, mode="nearest")
        for axis in (1, 0)
    )
    strongest = np.hypot(gx, gy).argmax(axis=2)[..., None]
    gx, gy = (np.take_along_axis(of, strongest, axis=2)[..., 0] for of in (gx, gy))
    distance = np.degrees(np.arctan2(gy, gx))[..., None] - np.arange(n_bins) * 360.0 / n_bins
    distance = np.abs((distance + 180.0) % 360.0 - 180.0) * n_bins / 360.0  # in bins, round the circle
    of_bin = np.maximum(0.0, 1.0 - distance)
    votes = np.hypot(gx, gy)[..., None] * of_bin
    places = [np.arange(side) - (side - 1) / 2 for side in image.shape[:2]]  # from the middle of the image
    parts = []
    cell, step = parameters.cell, parameters.cell * 0.7
    n_rows, n_columns = (1 + math.floor((side - 1) / step + 1e-9) for side in image.shape[:2])
    for row in (np.arange(n_rows) - (n_rows - 1) / 2) * step:
        for column in (np.arange(n_columns) - (n_columns - 1) / 2) * step:
            near = [np.clip(1 - np.abs(p - c) / cell, 0, 1) for p, c in zip(places, (row, column), strict=True)]
            parts.append(np.einsum("y,x,yxk->k", *near, votes))
    return np.concatenate(parts) / (np.sum(parts) + 1e-10)


@given(PARAMETERS, st.integers(8, 24), st.integers(8, 24), st.sampled_from([(), (3,)]), st.integers(0, 2**32 - 1))
def test_soft_hog_of_any_size_and_parameters_equals_the_twin(parameters, height, width, channels, seed):
    images = np.random.default_rng(seed).integers(0, 256, (2, height, width, *channels))
    found = descriptors.soft_hog(images.astype(np.float64), parameters)
    assert found.shape == (2, parameters.length(height, width))
    np.testing.assert_allclose(found, [naive_soft_hog(image, parameters) for image in images], atol=2e-6)


@pytest.mark.parametrize("channels", [(), (3,)])
def test_brightness_of_cells_is_the_mean_of_their_pixels(channels):
    images = np.random.default_rng(0).integers(0, 256, (70, 16, 20, *channels), np.uint8)
    spec = FeatureSpec("soft-hog", power=0.5, brightness=0.8)
    found = extract(spec, images)
    assert found.shape == (70, feature_length(spec, images.shape[1:]))
    n = feature_length(FeatureSpec("soft-hog"), images.shape[1:])
    np.testing.assert_array_equal(found[:, :n], extract(FeatureSpec("soft-hog", power=0.5), images))
    rows, columns = (SoftHog.of(16, 20).votes(side) for side in (16, 20))
    weights = np.einsum("yr,xs->rsyx", rows, columns)
    weights /= weights.sum(axis=(2, 3), keepdims=True)
    means = np.einsum("rsyx,nyxc->ncrs", weights, images.reshape(70, 16, 20, -1) / 255).reshape(70, -1)
    np.testing.assert_allclose(found[:, n:], 0.8 * means / np.sqrt(means.shape[1]), rtol=1e-5)
    np.testing.assert_array_equal(extract(spec, images[65:]), found[65:])


def test_roots_of_soft_hog_have_norm_1_and_blank_images_no_features(images):
    spec = FeatureSpec("soft-hog", power=0.5)
    np.testing.assert_allclose(np.linalg.norm(extract(spec, images), axis=1), 1.0, rtol=1e-6)
    assert not extract(spec, np.full((2, 28, 28), 7, np.uint8)).any()
    assert not extract(FeatureSpec("sphog"), np.zeros((2, 28, 28), np.uint8)).any()


def test_defaults_of_soft_hog_are_in_proportion_to_images():
    lengths = {1: 8, 4: 128, 8: 200, 14: 200, 16: 288, 28: 512, 56: 512, 64: 512, 224: 512, 720: 512}
    assert {side: feature_length(FeatureSpec("soft-hog"), (side, side)) for side in lengths} == lengths
    for side in (700, 1000, 4000):
        square, long = (feature_length(FeatureSpec("soft-hog"), (side, width)) for width in (side, 5 * side))
        assert 512 <= square < long < 4000


def naive_sphog(image):
    """One image, (H, W) to (d,) float64, by the definition and by scipy's convolution."""
    image = image.astype(np.float64)
    smooth, slope = [0.594, 0.878, 1.0, 0.878, 0.594], [0.100, 1.0, 0.0, -1.0, -0.100]
    gx = convolve1d(convolve1d(image, slope, axis=1, mode="constant"), smooth, axis=0, mode="constant")
    gy = convolve1d(convolve1d(image, slope, axis=0, mode="constant"), smooth, axis=1, mode="constant")
    magnitude = np.hypot(gx, gy)
    angle = np.degrees(np.arctan2(gy, gx)) % 360.0
    centers = np.arange(12) * 30.0 + 15.0
    distance = np.abs((angle[..., None] - centers + 180.0) % 360.0 - 180.0)
    votes = magnitude[..., None] * np.maximum(0.0, 1.0 - distance / 30.0)  # linear, zero from the second bin on
    parts = []
    for cell, weight in ((14, 1.0), (7, 2.0), (4, 4.0)):
        half = math.floor(cell / 2 + 0.5)
        for top, left in ((0, 0), (0, half), (half, 0)):
            for y in range(top, image.shape[0] - cell + 1, cell):
                for x in range(left, image.shape[1] - cell + 1, cell):
                    parts.append(weight * votes[y : y + cell, x : x + cell].sum(axis=(0, 1)))
    return np.concatenate(parts) / (magnitude.sum() + 1e-10)


@given(st.integers(4, 33), st.integers(4, 33), st.integers(0, 2**32 - 1))
def test_sphog_of_any_size_equals_the_twin(height, width, seed):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (2, height, width)) * (rng.random((2, height, width)) < 0.3)
    features = sphog(images.astype(np.float64))
    assert features.shape[1] == feature_length(FeatureSpec("sphog"), (height, width))
    np.testing.assert_allclose(features, [naive_sphog(image) for image in images], atol=2e-6)


def upright_twin(image: np.ndarray, strength: float) -> np.ndarray:
    image, border = image.astype(np.float64), np.ones(image.shape, bool)
    border[1:-1, 1:-1] = False
    ground = float(np.median(image[border]))
    ink = np.abs(image - ground)  # the distance of each pixel from the ground
    if not ink.any() or np.count_nonzero(ink.any(axis=1)) == 1:
        return image
    places = np.indices(image.shape)
    covariance = np.cov(places.reshape(2, -1), aweights=ink.ravel(), bias=True)
    shear = strength * covariance[0, 1] / covariance[0, 0]
    centre_row = np.average(places[0], weights=ink)
    matrix, offset = [[1, 0], [shear, 1]], [0, -shear * centre_row]
    return affine_transform(image, matrix, offset, order=1, mode="grid-constant", cval=ground)


@example(12, 13, 0, 1.0, 1.0)  # its ground is not 0
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32 - 1), st.floats(0.01, 1), st.floats(0.2, 1))
def test_sheared_images_of_any_size_and_values_equal_the_twin(height, width, seed, strength, filled):
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((2, height, width)) * (rng.random((2, height, width)) < filled)
    np.testing.assert_allclose(
        deskewed(images, strength), [upright_twin(image, strength) for image in images], atol=1e-5
    )


def test_no_ink_and_ink_in_one_row_stay_and_a_shear_beyond_the_image_leaves_its_ground():
    images = np.zeros((4, 9, 8))
    images[1] = 0.3
    images[2, 3, 2:7] = [0.1, 0.7, 0.3, 0.9, 0.2]
    images[3, 4, 4] = 1.0
    np.testing.assert_array_equal(deskewed(images, 1.0), images)
    assert not extract(FeatureSpec("sphog", deskew=1.0), images)[0].any()
    line = np.zeros((1, 20, 40))  # all but level: its slant is that of many pixels a row
    line[0, 10, 2:20] = line[0, 11, 20:38] = 1.0
    found = deskewed(line, 1.0)
    np.testing.assert_allclose(found[0], upright_twin(line[0], 1.0), atol=1e-9)
    assert found.min() == 0.0


def test_scale_and_polarity_do_not_matter_to_the_shear(images):
    upright = deskewed(images.astype(np.float64), 0.5)
    assert np.abs(upright - images).max() > 50, "nothing was slanted"
    np.testing.assert_allclose(deskewed(255.0 - images, 0.5), 255.0 - upright, atol=1e-9)
    np.testing.assert_allclose(deskewed(images * 1e-200 - 3e-200, 0.5), upright * 1e-200 - 3e-200, atol=1e-210)
    np.testing.assert_allclose(deskewed(images, 0.5), upright, atol=2e-5)


@pytest.mark.parametrize("name", ["sphog", "soft-hog", "raw"])
def test_features_are_those_of_the_upright_images(images, name):
    upright = deskewed(images, 0.5)
    found = extract(FeatureSpec(name, deskew=0.5), images)
    expected = extract(FeatureSpec(name), upright / np.float32(255) if name == "raw" else upright)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
    assert np.abs(found - extract(FeatureSpec(name), images)).max() > 1e-3
