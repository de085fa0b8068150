"""Deformed copies against a twin of scipy: the same whatever the blocks, at any size, and of training rows alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates, zoom

from features.deformed_copies import DRAWN, NODES, Copies, Deformation
from features.errors import UsageError
from features.open_source import open_source
from features.row_draws import copy_keys, draw_held_out, draw_numbers, held_out_limit
from features.source import SourceSpec
from pipeline.config.settings import from_toml
from pipeline.datasets.feature_request import describe, request_of, source_spec
from pipeline.datasets.feature_rows import FeatureRows, live, open_features, store_of
from pipeline.prediction.predictor import load_predictor
from pipeline.reporting import page, plots
from runs import model_bytes, train

STRONG = Deformation(rotation=30.0, scale=0.2, shear=0.3, shift=0.1, smooth=0.05, flip=True)
N = 7


def copies_of(images: np.ndarray, copies: Copies, start: int = 0, stop: int | None = None) -> np.ndarray:
    stop = len(images) * copies.count if stop is None else stop
    return copies.rows(lambda first, last: images[first:last], start, stop)


def twin(image: np.ndarray, drawn: np.ndarray, of: Deformation) -> np.ndarray:
    """Return one copy of an image (H, W), by matrices, and windows of a whole lattice in place of its nearest nodes."""
    even, (height, width) = 2 * drawn - 1, image.shape
    angle = np.deg2rad(of.rotation * even[0])
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    scaled = np.array([[1 + of.scale * even[1], 0], [of.shear * even[3], 1 + of.scale * even[2]]])
    mirror = np.diag([1, -1 if of.flip and even[6] < 0 else 1])
    sides, middle = np.array(image.shape), (np.array(image.shape) - 1) / 2
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1)
    source = (places - middle) @ (rotation @ scaled @ mirror).T + middle + of.shift * sides * even[4:6]
    windows = []
    for side in image.shape:
        away = np.abs(np.linspace(0, NODES - 1, side)[:, None] - np.arange(NODES))
        windows.append(np.where(away < 1, np.cos(np.pi * away / 2) ** 2, 0))
    nodes = even[7:].reshape(2, NODES, NODES)
    smooth = np.stack([windows[0] @ nodes[axis] @ windows[1].T for axis in (0, 1)], axis=-1)
    return map_coordinates(image, np.moveaxis(source + of.smooth * sides * smooth, -1, 0), order=1, mode="nearest")


@pytest.mark.parametrize("shape", [(28, 28), (16, 40), (9, 8, 3), (1, 5)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_copies_are_those_of_the_twin_and_copy_0_is_the_image(shape: tuple[int, ...], dtype: type) -> None:
    images = (np.random.default_rng(0).random((N, *shape)) * 255).astype(dtype)
    copies = Copies(4, STRONG, seed=3)
    rows = copies_of(images, copies)
    assert rows.dtype == dtype
    drawn = draw_numbers(3, copy_keys(np.arange(4 * N), 4), DRAWN)
    for r, row in enumerate(rows):
        image = images[r // 4].reshape(*shape[:2], -1).astype(np.float64)
        channels = [
            image[..., c] if r % 4 == 0 else twin(image[..., c], drawn[r], STRONG) for c in range(image.shape[2])
        ]
        expected = np.stack(channels, axis=-1).reshape(shape)
        close = {"atol": 1e-9 if dtype == np.float64 else 1e-4 if dtype == np.float32 else 0.5 + 1e-9, "rtol": 0.0}
        np.testing.assert_allclose(row, expected, **close)


def test_a_copy_depends_on_seed_image_and_number_alone() -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 12, 12), np.uint8)
    copies = Copies(3, STRONG, seed=0)
    rows = copies_of(images, copies)
    pieces = [copies_of(images, copies, at, min(at + 7, 600)) for at in range(0, 600, 7)]
    np.testing.assert_array_equal(np.concatenate(pieces), rows)
    np.testing.assert_array_equal(
        copies_of(images, replace(copies, count=5)).reshape(200, 5, 12, 12)[:, :3], rows.reshape(200, 3, 12, 12)
    )
    assert len(copies_of(images, copies, 4, 4)) == 0
    other = copies_of(images, replace(copies, seed=1))
    assert [np.array_equal(a, b) for a, b in zip(other[:6], rows[:6], strict=True)] == [True, False, False] * 2


def test_images_of_any_size_deform_alike_and_a_flip_mirrors_half_of_them() -> None:
    small = gaussian_filter(np.random.default_rng(0).random((N, 32, 32)), (0, 4, 4), mode="nearest")
    large = zoom(small, (1, 4, 4), order=1, grid_mode=True, mode="nearest")
    copies = Copies(6, replace(STRONG, rotation=45.0), seed=0)
    smaller = copies_of(large, copies).reshape(-1, 32, 4, 32, 4).mean(axis=(2, 4))
    assert np.abs(smaller - copies_of(small, copies)).max() < 0.2 * np.ptp(small)
    mirrored = copies_of(small, Copies(9, Deformation(0.0, 0.0, 0.0, 0.0, 0.0, flip=True), seed=0)).reshape(
        N, 9, 32, 32
    )
    is_mirrored = np.abs(mirrored - small[:, None, :, ::-1]).max(axis=(2, 3)) < 1e-12
    assert (is_mirrored ^ (np.abs(mirrored - small[:, None]).max(axis=(2, 3)) < 1e-12)).all()
    assert 0.3 < is_mirrored[:, 1:].mean() < 0.7


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Images with weights, of which one counts nothing and two are equal, and a test part."""
    rng = np.random.default_rng(0)
    arrays = {"X_train": rng.integers(0, 256, (60, 9, 9), np.uint8), "y_train": np.arange(60) % 3}
    arrays |= {"X_test": arrays["X_train"][:9] // 2, "y_test": np.arange(9) % 3, "w_train": 1.0 + np.arange(60) % 2}
    arrays["w_train"][4], arrays["X_train"][21] = 0.0, arrays["X_train"][20]
    np.savez(tmp_path / "data.npz", **arrays)
    return tmp_path / "data.npz"


def test_training_rows_are_copied_and_test_rows_are_not(data: Path) -> None:
    spec = SourceSpec(str(data), weights="w")
    plain, copied = open_source(spec), open_source(replace(spec, copies=4, deform="rotation:20"))
    assert (copied.n_train, copied.n_test) == (4 * 59, 9)
    assert copied.notes[-1] == "each of 59 training images with 3 deformed copies: 236 rows"
    images = plain.read("train", 0, 59)[0]
    expected = copies_of(images, Copies(4, Deformation(rotation=20.0), seed=0))
    X, y = copied.read("train", 10, 230)
    np.testing.assert_array_equal(X, expected[10:230])
    for values, of in (
        (y, plain.targets),
        (copied.weights["train"][10:230], plain.weights),
        (copied.file_rows["train"][10:230], plain.file_rows),
    ):
        np.testing.assert_array_equal(values, np.repeat(of["train"], 4)[10:230])
    assert copied.file_rows["train"][4 * 4 + 1] == 5, "the row of weight 0 is left out"
    for found, kept in zip(copied.read("test", 0, 9), plain.read("test", 0, 9), strict=True):
        np.testing.assert_array_equal(found, kept)
    assert len(np.unique(copied.row_keys(0, 236))) == 236 - 1, "equal images are one key, and their copies are not"
    np.testing.assert_array_equal(copied.row_keys(50, 90), copied.row_keys(0, 236)[50:90])
    identities = [copied.identity] + [
        open_source(replace(spec, **kwargs)).identity
        for kwargs in ({}, {"copies": 4}, {"copies": 3, "deform": "rotation:20"})
    ]
    assert all(one != other for k, one in enumerate(identities) for other in identities[:k])


def test_copies_are_held_out_with_their_image_and_a_page_shows_the_right_ones(data: Path, tmp_path: Path) -> None:
    """Stored or computed on the fly: the same rows, keys and model."""
    found: list[FeatureRows] = []
    for store in ("none", "zarr"):
        line = ("--copies", "4", "--centers", "60", "--select", "greedy:20", "--features-store", store)
        train(tmp_path / store, tmp_path / "features", *line, "--set", "data.weights=w", dataset=data)
        config = from_toml(tmp_path / store / "config.toml")
        request = request_of(config, source_spec(config))
        shape = describe(request)
        found.append(open_features(live(request, shape) if store == "none" else store_of(config, shape)))
    some = np.random.default_rng(0).integers(0, 236, 40)
    X, (keys, groups) = found[0].read("train", 0, 236), found[0].keys(0, 236)
    for rows in found:
        np.testing.assert_array_equal(rows.read("train", 0, 236), X)
        np.testing.assert_array_equal(rows.take(some), X[some])
        np.testing.assert_array_equal(rows.keys(0, 236), (keys, groups))
    held_out = draw_held_out(0, held_out_limit(0, 0.1, [groups]), groups).reshape(59, 4)
    assert (held_out == held_out[:, :1]).all()
    assert 0 < held_out[:, 0].sum() < 30
    assert model_bytes(tmp_path / "none") == model_bytes(tmp_path / "zarr")
    predictor, source = load_predictor(tmp_path / "none"), open_source(SourceSpec(str(data), weights="w", copies=4))
    shown = page._centers(predictor)
    assert shown is not None
    assert len(shown) == 20
    for center, m in zip(
        shown, np.argsort(-np.linalg.norm(predictor.model.weights, axis=1), kind="stable"), strict=False
    ):
        row = int(predictor.model.center_index[m])
        image, _ = source.read("train", row, row + 1)
        assert (center["row"], center["picture"]) == (source.file_rows["train"][row], plots.picture(image[0]))
        np.testing.assert_array_equal(predictor.model.features_of(image)[0], predictor.model.centers[m])


def test_rows_of_numbers_have_no_copies(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=np.eye(40)[:, :4], y=np.arange(40) % 2)
    (tmp_path / "rows.csv").write_text("a,target\n1,2\n2,3\n")
    for name in ("rows.npz", "rows.csv", "sinc"):
        with pytest.raises(UsageError, match=r"`data.copies=2` is for images, .* leave it out"):
            open_source(SourceSpec(str(tmp_path / name) if "." in name else name, copies=2))
