"""The model as two parts: what was saved comes back, and nothing crafted gets further than a refusal."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from features.descriptors import FeatureSpec, feature_length
from features.rows import Standardisation
from pipeline.errors import ExitCode
from pipeline.kernels.kernel_functions import KERNELS, GaussianKernel
from pipeline.prediction import trained_model
from pipeline.prediction.conformal import Conformal
from pipeline.prediction.scores import Calibration
from pipeline.prediction.trained_model import ModelFormatError, SparseKernelModel, load_model, save_model
from pipeline.runtime.console import describe
from storage.arrays import commit

TASKS = {"multiclass": ("a", "b", "c"), "binary": (0, 1), "regression": ()}
SPECS = {
    "raw": (FeatureSpec("raw"), (6,)),
    "sphog": (FeatureSpec("sphog"), (9, 8)),
    "soft-hog": (FeatureSpec("soft-hog", power=0.5), (9, 8)),
    "upright": (FeatureSpec("sphog", deskew=0.25, power=0.5), (9, 8)),
}


def make(task: str = "multiclass", name: str = "raw", m: int = 4) -> SparseKernelModel:
    rng = np.random.default_rng(0)
    spec, shape = SPECS[name]
    n_outputs = 3 if task == "multiclass" else 1
    scored = name == "raw"
    return SparseKernelModel(
        task=task,
        labels=TASKS[task],
        features=spec,
        kernel=GaussianKernel,
        sigma2=3.0,
        centers=rng.normal(size=(m, feature_length(spec, shape))).astype(np.float32),
        weights=rng.normal(size=(m, n_outputs)),
        intercept=rng.normal(size=n_outputs),
        center_index=np.arange(m),
        selection_order=rng.permutation(m),
        standardisation=Standardisation(rng.normal(size=6), rng.random(6) + 0.5) if scored else None,
        input_shape=shape,
    )


def parts(model: SparseKernelModel) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads(json.dumps(model.description())), model.arrays()


@pytest.mark.parametrize(("m", "scaled"), [(0, False), (4, False), (4, True)])
@pytest.mark.parametrize(
    ("task", "name"),
    [("multiclass", "raw"), ("binary", "sphog"), ("regression", "soft-hog"), ("multiclass", "upright")],
)
def test_a_saved_model_predicts_the_same(task, name, m, scaled, tmp_path):
    plain = make(task, name, m)
    scales = np.linspace(0.0, 2.0, plain.centers.shape[1], dtype=np.float32)
    found = {"multiclass": Calibration(0.21, (0.0, 1.5, -2.0)), "binary": Calibration(0.3, (0.0, 1.0))}
    model = replace(plain, feature_scales=scales, calibration=found.get(task)) if scaled else plain
    save_model(tmp_path / "model", model)
    again = load_model(tmp_path / "model")
    inputs = np.random.default_rng(1).random((7, *model.input_shape))
    features = again.features_of(inputs)
    np.testing.assert_array_equal(features, plain.features_of(inputs) * (scales if scaled else 1))
    assert features.dtype == np.float32
    assert np.array_equal(again.decision_function(features), model.decision_function(model.features_of(inputs)))
    assert again.description() == model.description()
    assert again.calibration == model.calibration
    assert (again.calibration and again.calibration.temperature) == model.description().get("temperature")
    assert ("feature_scales" in model.arrays()) == scaled
    # Without scales it is as before there were any; no version without scales takes one with them.
    assert (model.description()["kernel"] == {"name": "gaussian", "sigma2": 3.0}) == (not scaled)


# Of each kernel the widths σ² at which rows near and far from all centers have values between 1e-300 and 1e-40.
FAR_WIDTHS = {"gaussian": 1.2, "product-laplace": 0.12}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", ["large weights", "narrow", "far rows"])
def test_decisions_are_those_of_exact_arithmetic(kernel, case):
    """Where float32 kernel values would lose digits, and where, without an intercept, its smallest exp would decide.

    A Gaussian loses them also where it is narrow: its distances are of products.
    """
    rng, far = np.random.default_rng(0), case == "far rows"
    centers, weights = rng.normal(size=(40, 6)).astype(np.float32), rng.normal(size=(40, 3))
    sigma2 = {"large weights": 1e4, "narrow": 0.02, "far rows": FAR_WIDTHS[kernel.name]}[case]
    if case == "large weights":  # those of an interpolation cancel
        weights = np.linalg.solve(kernel(centers, sigma2, np.float64).block(centers) + 1e-9 * np.eye(40), weights)
    model = replace(make(m=40), kernel=kernel, sigma2=sigma2, centers=centers, weights=weights, intercept=np.zeros(3))
    assert model.needs_float64 == (case == "large weights" or (case == "narrow" and kernel is GaussianKernel))
    X = rng.normal(size=(60, 6)).astype(np.float32) * np.float32(8.0 if far else 1.0)
    X = centers + np.float32(0.05) * X[:40] if case == "narrow" else X
    differences = X[:, None].astype(np.float64) - centers
    distances = np.linalg.norm(differences, ord=1 if kernel.name == "product-laplace" else 2, axis=2)
    exponents = distances**2 / (2 * sigma2) if kernel.name == "gaussian" else distances / np.sqrt(sigma2)
    assert not far or exponents.min(axis=1).max() > 90
    expected = np.exp(-exponents) @ weights
    found = model.decision_function(X)
    assert model.labels_of(found).tolist() == model.labels_of(expected).tolist()
    np.testing.assert_allclose(found, expected, rtol=1e-4 if far else 0, atol=1e-6 * expected.std())


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("raw", {"format_version": 1}, "another version"),
        ("raw", {"kernel": {"name": "none", "sigma2": 1.0}}, "kernel"),
        ("raw", {"labels": [[1], "b", "c"]}, "numbers or strings"),
        *((name, {"features": {"algorithm_version": value}}, "train again") for name in SPECS for value in (0, 2)),
        ("raw", {"features": {"name": "sift"}}, None),
        ("upright", {"features": {"deskew_version": 2}}, None),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(name, change, words):
    description, arrays = parts(make(name=name))
    SparseKernelModel.from_parts(description, arrays)
    ((key, value),) = change.items()
    description[key] = description[key] | value if key == "features" else value
    with pytest.raises(ModelFormatError, match=words) as found:
        SparseKernelModel.from_parts(description, arrays)
    assert describe(found.value)[0] is ExitCode.INVALID_DATA


WRONG_ARRAYS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "centers": (
        lambda a: a.ravel(),
        lambda a: np.ascontiguousarray(a[:, :5]),
        lambda a: a.astype(np.float64),
        lambda a: np.where(a > 0, np.nan, a).astype(np.float32),
    ),
    "weights": (
        lambda a: np.ascontiguousarray(a[:, :2]),
        lambda a: np.full_like(a, 1e308),  # their sum overflows
        lambda a: np.full_like(a, 1e160),  # their squares overflow
    ),
    "intercept": (lambda a: a * 1e308, lambda a: a[:0]),
    "selection_order": (lambda a: a.astype(np.float64),),
    "standardisation_mean": (lambda a: a[:3],),
    "standardisation_scale": (lambda a: a + np.nan, lambda a: a.astype(np.float32)),
    "feature_scales": (lambda a: a[:5], lambda a: a.astype(np.float64), lambda a: a * np.nan),
    "conformal": (
        lambda a: a[:0],
        lambda a: a[:, None],
        lambda a: a.astype(np.float32),
        lambda a: a * np.nan,
        lambda a: a[[0, 2, 1]],
        lambda a: a - 1.0,
        lambda a: a * [0.0, 1.0, 1.0],
        lambda a: np.arange(1.0, 202.0),
    ),
}
SCALED = replace(make(), feature_scales=np.ones(6, np.float32), conformal=Conformal(4.0, (0.5, 0.75)))


@pytest.mark.parametrize(("name", "change"), [(name, change) for name in WRONG_ARRAYS for change in WRONG_ARRAYS[name]])
def test_arrays_that_do_not_fit_are_refused(name, change):
    description, arrays = parts(SCALED)
    with pytest.raises(ModelFormatError):
        SparseKernelModel.from_parts(description, arrays | {name: change(arrays[name])})


def test_a_part_that_is_missing_is_named():
    description, arrays = parts(SCALED)
    for name in description:
        with pytest.raises(ModelFormatError, match=name):
            SparseKernelModel.from_parts({k: v for k, v in description.items() if k != name}, arrays)
    features = {k: v for k, v in description["features"].items() if k != "algorithm_version"}
    with pytest.raises(ModelFormatError, match="features"):
        SparseKernelModel.from_parts(description | {"features": features}, arrays)
    for name in arrays.keys() - {trained_model.SCALES, trained_model.CONFORMAL}:
        with pytest.raises(ModelFormatError, match=name):
            SparseKernelModel.from_parts(description, {k: v for k, v in arrays.items() if k != name})


def test_a_crafted_model_with_valid_checksums_is_refused_with_its_name(tmp_path):
    description, arrays = parts(make())
    (tmp_path / "crafted").mkdir()
    commit(tmp_path / "crafted" / "model.npz", arrays, description | {"input_shape": [3, 3]})
    with pytest.raises(ModelFormatError, match="crafted") as found:
        load_model(tmp_path / "crafted")
    assert describe(found.value)[0] is ExitCode.INVALID_DATA


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_largest_weights_that_are_let_through_predict_finite_numbers(kernel):
    model = make("regression")
    weights = np.full((4, 1), trained_model.LARGEST_DECISION / 5)
    centers = np.full_like(model.centers, 1e-3)
    strong = replace(model, kernel=kernel, centers=centers, weights=weights, intercept=np.zeros(1))
    strong.check()
    decision = strong.decision_function(np.full((3, 6), 1e-3, np.float32))
    assert np.isfinite(decision.T @ decision).all()
    with pytest.raises(ModelFormatError, match="train again"):
        replace(strong, weights=weights * 2).check()


def test_a_model_that_does_not_hold_is_not_saved(tmp_path):
    model = make()
    with pytest.raises(ModelFormatError, match="weights"):
        save_model(tmp_path / "broken", replace(model, weights=model.weights * np.nan))
    assert not (tmp_path / "broken").exists()
