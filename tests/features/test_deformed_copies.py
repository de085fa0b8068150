"""Deformed copies against a twin of scipy: the same whatever the blocks, at any size, and of training rows alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates, zoom

from features import rows as rows_module
from features.deformed_copies import DRAWN, NODES, Copies
from features.open_source import open_source
from features.row_draws import draw_held_out, draw_numbers, held_out_limit, pair_keys
from features.rows import Rows
from features.source import SourceSpec
from pipeline.config.settings import from_toml
from pipeline.datasets.feature_rows import describe, live, open_features, request_of, source_spec
from pipeline.prediction.predictor import centers_told, load_predictor
from pipeline.reporting import page
from runs import model_bytes, train
from storage.folder_layouts import FeatureLayout

STRONG = Copies(4, 3, rotation=30.0, scale=0.2, shear=0.3, shift=0.1, smooth=0.05, flip=True)
N, OF_ROWS = 7, ("y", "weights", "numbers")


def copies_of(images: np.ndarray, copies: Copies, start: int = 0, stop: int | None = None) -> np.ndarray:
    return copies.of_images(Rows(images, np.arange(len(images)))).X[start:stop]


def twin(image: np.ndarray, drawn: np.ndarray, of: Copies) -> np.ndarray:
    """Return one copy of an image (H, W), by matrices, and windows of a whole lattice in place of its nearest nodes."""
    even = 2 * drawn - 1
    angle = np.deg2rad(of.rotation * even[0])
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    scaled = np.array([[1 + of.scale * even[1], 0], [of.shear * even[3], 1 + of.scale * even[2]]])
    mirror = np.diag([1, -1 if of.flip and even[6] < 0 else 1])
    sides, middle = np.array(image.shape), (np.array(image.shape) - 1) / 2
    places = np.stack(np.indices(image.shape), axis=-1)
    source = (places - middle) @ (rotation @ scaled @ mirror).T + middle + of.shift * sides * even[4:6]
    away = [np.abs(np.linspace(0, NODES - 1, side)[:, None] - np.arange(NODES)) for side in image.shape]
    windows = [np.where(one < 1, np.cos(np.pi * one / 2) ** 2, 0) for one in away]
    smooth = [windows[0] @ nodes @ windows[1].T for nodes in even[7:].reshape(2, NODES, NODES)]
    source += of.smooth * sides * np.stack(smooth, axis=-1)
    return map_coordinates(image, np.moveaxis(source, -1, 0), order=1, mode="nearest")


@pytest.mark.parametrize("shape", [(28, 28), (16, 40), (9, 8, 3), (1, 5)])
@pytest.mark.parametrize(("dtype", "error"), [(np.uint8, 0.5 + 1e-9), (np.float32, 1e-4), (np.float64, 1e-9)])
def test_copies_are_those_of_the_twin_and_copy_0_is_the_image(shape, dtype, error):
    images = (np.random.default_rng(0).random((N, *shape)) * 255).astype(dtype)
    rows, drawn = copies_of(images, STRONG), draw_numbers(3, pair_keys(*np.divmod(np.arange(4 * N), 4)), DRAWN)
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows[::4], images)
    for r in np.flatnonzero(np.arange(4 * N) % 4).tolist():
        image = np.atleast_3d(images[r // 4].astype(np.float64))
        made = [twin(image[..., c], drawn[r], STRONG) for c in range(image.shape[2])]
        np.testing.assert_allclose(np.atleast_3d(rows[r]), np.stack(made, axis=-1), rtol=0.0, atol=error)


def test_a_copy_depends_on_seed_image_and_number_alone():
    images = np.random.default_rng(0).integers(0, 256, (200, 12, 12), np.uint8)
    rows = copies_of(images, STRONG)
    pieces = [copies_of(images, STRONG, at, min(at + 7, 800)) for at in range(0, 800, 7)]
    np.testing.assert_array_equal(np.concatenate(pieces), rows)
    more = copies_of(images, replace(STRONG, count=6)).reshape(200, 6, 12, 12)
    np.testing.assert_array_equal(more[:, :4].reshape(rows.shape), rows)
    other = copies_of(images, replace(STRONG, seed=1))
    assert [np.array_equal(*pair) for pair in zip(other[:8], rows[:8], strict=True)] == [True, False, False, False] * 2


def test_images_of_any_size_deform_alike():
    small = gaussian_filter(np.random.default_rng(0).random((N, 32, 32)), (0, 4, 4), mode="nearest")
    large = copies_of(zoom(small, (1, 4, 4), order=1, grid_mode=True, mode="nearest"), STRONG)
    apart = large.reshape(-1, 32, 4, 32, 4).mean(axis=(2, 4)) - copies_of(small, STRONG)
    assert np.abs(apart).max() < 0.1 * np.ptp(small)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Images with weights, of which one counts nothing and two are equal, and a test part."""
    X, weights = np.random.default_rng(0).integers(0, 256, (60, 9, 9), np.uint8), 1.0 + np.arange(60) % 2
    X[21], weights[4], y = X[20], 0.0, np.arange(60) % 3
    np.savez(tmp_path / "data.npz", X_train=X, y_train=y, w_train=weights, X_test=X[:9] // 2, y_test=y[:9])
    return tmp_path / "data.npz"


def test_training_rows_are_copied_and_test_rows_are_not(data):
    spec = SourceSpec(str(data), weights="w")
    plain, copied = open_source(spec), open_source(replace(spec, copies=4, deform="rotation:20"))
    assert (copied.n_train, copied.n_test) == (4 * 59, 9)
    assert copied.notes[-1] == "each of 59 training images with 3 deformed copies: 236 rows"
    expected = copies_of(plain.train.X[:59], Copies(4, 0, rotation=20.0))
    np.testing.assert_array_equal(copied.train.X[10:230], expected[10:230])
    for found, given in ((getattr(of.train, name) for of in (copied, plain)) for name in OF_ROWS):
        np.testing.assert_array_equal(found[10:230], np.repeat(given, 4)[10:230])
    for name in "Xy":
        np.testing.assert_array_equal(getattr(copied.test, name)[:], getattr(plain.test, name)[:])
    assert len(np.unique(copied.train.keys_of(0, 236)[0])) == 236 - 1, "of equal images; their copies differ"
    np.testing.assert_array_equal(copied.train.keys_of(50, 90)[0], copied.train.keys_of(0, 236)[0][50:90])
    asked = [{}, {"copies": 4}, {"copies": 4, "deform": "rotation:20"}, {"copies": 4, "seed": 1}]
    identities = [open_source(replace(spec, **one)).identity for one in asked]
    assert all(one != other for k, one in enumerate(identities) for other in identities[:k])


def test_copies_are_held_out_with_their_image_and_a_page_shows_the_right_ones(data, tmp_path, monkeypatch):
    """Stored or computed on the fly: the same rows, keys and model."""
    found: list[Rows] = []
    for store in ("none", "zarr"):
        line = ["--copies", "4", "--centers", "80", "--select", "greedy:40"]
        line += ["--features-dir", "none"] if store == "none" else []
        report = train(tmp_path / store, tmp_path / "features", *line, "--set", "data.weights=w", dataset=data)
        config = from_toml(tmp_path / store / "config.toml")
        request = request_of(config, source_spec(config))
        shape = describe(request)
        stored = FeatureLayout(Path(config.resources.features_dir), shape.store)
        found.append(open_features(live(request, shape) if store == "none" else stored))
    assert model_bytes(tmp_path / "none") == model_bytes(tmp_path / "zarr")
    some, X, (keys, groups) = np.r_[235:-1:-1, 7, 7], found[0].X[:236], found[0].keys_of(0, 236)
    monkeypatch.setattr(rows_module, "TAKE_BYTES", 10_000)
    for rows in found:
        for taken in (slice(0, 236), some, some[::9], some[:0]):
            np.testing.assert_array_equal(rows.X[taken], X[taken])
        np.testing.assert_array_equal(rows.keys_of(0, 236), (keys, groups))
    held_out = draw_held_out(0, held_out_limit(0, 0.1, [groups]), groups).reshape(59, 4)
    assert (held_out == held_out[:, :1]).all()
    assert 0 < held_out[:, 0].sum() < 30
    assert report["probabilities"]["n_rows"] == len(np.unique(groups)) == 58, "images, each left out once"
    predictor, source = load_predictor(tmp_path / "none"), open_source(SourceSpec(str(data), weights="w", copies=4))
    model, shown, told = predictor.model, page._centers(predictor), centers_told(predictor)
    for place, name in (("", "numbers"), ("_label", "y")):
        np.testing.assert_array_equal(told[place], getattr(source.train, name)[model.center_index])
    assert shown is not None
    assert 0 < (model.center_index % 4 != 0).sum() <= 22, "of 58 images that differ all are candidates, then copies"
    for center, m in zip(shown, np.argsort(-np.linalg.norm(model.weights, axis=1), kind="stable"), strict=False):
        row = int(model.center_index[m])
        image = source.train.X[row : row + 1]
        assert (center["row"], center["picture"]) == (source.train.numbers[row], page.picture(image[0]))
        np.testing.assert_array_equal(model.features_of(image)[0], model.centers[m])
