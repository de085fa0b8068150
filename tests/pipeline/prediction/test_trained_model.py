"""The model as two parts: what was saved comes back, and nothing crafted gets further than a refusal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features import sphog
from features.extractors import FeatureSpec, feature_length
from features.transforms import Standardisation
from pipeline.errors import ExitCode, InvalidDataError, describe
from pipeline.model import DTYPES, ModelFormatError, SparseKernelModel
from pipeline.model_folder import load_model, save_model
from storage.commit import new_folder, write_arrays, write_json
from storage.layout import ModelLayout

TASKS = {"multiclass": ("a", "b", "c"), "binary": (0, 1), "regression": ()}
SPECS = {
    "raw": (FeatureSpec("raw"), (6,)),
    "sphog": (FeatureSpec("sphog"), (9, 8)),
    "hog": (FeatureSpec("hog", (4, 3), 5), (9, 8)),
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
        center_index=np.arange(m),
        centers=rng.normal(size=(m, feature_length(spec, shape))).astype(np.float32),
        center_sigma2=np.full(m, 3.0),
        weights=rng.normal(size=(m, n_outputs)),
        intercept=rng.normal(size=n_outputs),
        selection_order=rng.permutation(m),
        standardisation=Standardisation(rng.normal(size=6), rng.random(6) + 0.5) if scored else None,
        input_shape=shape,
    )


def parts(model: SparseKernelModel) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads(json.dumps(model.description())), model.arrays()


@pytest.mark.parametrize("m", [0, 4])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("task", TASKS)
def test_a_saved_model_predicts_the_same(task: str, name: str, m: int, tmp_path: Path) -> None:
    model = make(task, name, m)
    save_model(tmp_path / "model", model)
    again = load_model(tmp_path / "model")
    inputs = np.random.default_rng(1).random((7, *model.input_shape))
    expected = model.decision_function(model.features_of(inputs))
    assert np.array_equal(again.decision_function(again.features_of(inputs)), expected)
    assert again.description() == model.description()


def test_only_the_parameters_that_count_are_listed() -> None:
    assert set(make(name="sphog").description()["features"]) == {"name", "algorithm_version"}
    assert set(make(name="raw").description()["features"]) == {"name", "algorithm_version"}
    assert make(name="hog").description()["features"]["cells"] == [4, 3]


@pytest.mark.parametrize("change", [1, -1, None])
@pytest.mark.parametrize("name", SPECS)
def test_features_of_another_version_are_refused(name: str, change: int | None) -> None:
    description, arrays = parts(make(name=name))
    if change is None:
        del description["features"]["algorithm_version"]
    else:
        description["features"]["algorithm_version"] += change
    with pytest.raises(ModelFormatError):
        SparseKernelModel.from_parts(description, arrays)


def test_a_later_change_of_the_features_refuses_the_models_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    description, arrays = parts(make(name="sphog"))
    monkeypatch.setattr(sphog, "ALGORITHM_VERSION", sphog.ALGORITHM_VERSION + 1)
    with pytest.raises(ModelFormatError, match="train again"):
        SparseKernelModel.from_parts(description, arrays)


WRONG_DESCRIPTIONS: dict[str, dict[str, Any]] = {
    "format": {"format_version": 99},
    "kernel": {"kernel": {"name": "linear"}},
    "kernel of no kind": {"kernel": "gaussian"},
    "task": {"task": "ranking"},
    "binary with three labels": {"task": "binary"},
    "regression with labels": {"task": "regression"},
    "two outputs": {"labels": ["a", "b"]},
    "labels twice": {"labels": ["a", "b", "b"]},
    "labels of labels": {"labels": [["a"], "b", "c"]},
    "a label that is NaN": {"labels": [1.0, 2.0, float("nan")]},
    "labels in a string": {"labels": "abc"},
    "length of inputs": {"input_shape": [5]},
    "images for a table": {"features": {"name": "sphog", "algorithm_version": 1}},
    "negative shape": {"input_shape": [-2, -3]},
    "huge shape": {"input_shape": [2**31, 2**31, 2**31]},
    "shape of text": {"input_shape": ["6"]},
    "shape of truth": {"input_shape": [True, 6]},
    "no shape": {"input_shape": []},
    "unknown features": {"features": {"name": "sift", "algorithm_version": 1}},
    "cells of text": {"features": {"name": "hog", "algorithm_version": 1, "cells": ["a"], "orientations": 3}},
    "standardise in words": {"standardise": "no"},
}


@pytest.mark.parametrize("case", WRONG_DESCRIPTIONS)
def test_descriptions_that_do_not_fit_are_refused(case: str) -> None:
    description, arrays = parts(make())
    with pytest.raises(ModelFormatError) as found:
        SparseKernelModel.from_parts(description | WRONG_DESCRIPTIONS[case], arrays)
    assert describe(found.value)[0] is ExitCode.INVALID_DATA


WRONG_ARRAYS: dict[str, tuple[str, Any]] = {
    "centers in a row": ("centers", lambda a: a.ravel()),
    "centers of another length": ("centers", lambda a: np.ascontiguousarray(a[:, :5])),
    "centers of one number": ("centers", lambda a: np.float32(1).reshape(())),
    "centers in float64": ("centers", lambda a: a.astype(np.float64)),
    "NaN in a center": ("centers", lambda a: np.where(a > 0, np.nan, a).astype(np.float32)),
    "sigma2 zero": ("center_sigma2", lambda a: a * 0),
    "sigma2 negative": ("center_sigma2", lambda a: -a),
    "sigma2 infinite": ("center_sigma2", lambda a: a + np.inf),
    "one sigma2": ("center_sigma2", lambda a: a[:1]),
    "weights of other outputs": ("weights", lambda a: np.ascontiguousarray(a[:, :2])),
    "weights NaN": ("weights", lambda a: a * np.nan),
    "intercept missing": ("intercept", lambda a: a[:0]),
    "order twice": ("selection_order", lambda a: a * 0),
    "order from one": ("selection_order", lambda a: a + 1),
    "order in floats": ("selection_order", lambda a: a.astype(np.float64)),
    "rows below -1": ("center_index", lambda a: a - 2),
    "mean of another length": ("standardisation_mean", lambda a: a[:3]),
    "mean NaN": ("standardisation_mean", lambda a: a * np.nan),
    "scale zero": ("standardisation_scale", lambda a: a * 0),
    "scale infinite": ("standardisation_scale", lambda a: a + np.inf),
    "scale in float32": ("standardisation_scale", lambda a: a.astype(np.float32)),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_arrays_that_do_not_fit_are_refused(case: str) -> None:
    description, arrays = parts(make())
    name, change = WRONG_ARRAYS[case]
    with pytest.raises(ModelFormatError):
        SparseKernelModel.from_parts(description, arrays | {name: change(arrays[name])})


def test_a_part_that_is_missing_is_named() -> None:
    description, arrays = parts(make())
    for name in description:
        with pytest.raises(ModelFormatError, match=name):
            SparseKernelModel.from_parts({k: v for k, v in description.items() if k != name}, arrays)
    for name in arrays:
        with pytest.raises(ModelFormatError, match=name):
            SparseKernelModel.from_parts(description, {k: v for k, v in arrays.items() if k != name})


SCALARS = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=4)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


def replaced(draw: st.DrawFn, value: Any) -> Any:
    """Return a JSON value with one place of it, at any depth, replaced by any other JSON value."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        return value | {key: replaced(draw, value[key])}
    if isinstance(value, list) and value and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], replaced(draw, value[place]), *value[place + 1 :]]
    return draw(JSON)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), name=st.sampled_from(sorted(SPECS)), task=st.sampled_from(sorted(TASKS)))
def test_a_corrupted_description_is_refused_or_predicts(data: st.DataObject, name: str, task: str) -> None:
    """Nothing but a ModelFormatError ever comes out, and what is let through is a working model."""
    description, arrays = parts(make(task, name))
    try:
        model = SparseKernelModel.from_parts(replaced(data.draw, description), arrays)
    except ModelFormatError:
        return
    X = model.features_of(np.zeros((2, *model.input_shape)))
    assert np.isfinite(model.decision_function(X)).all()


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(DTYPES)), shape=st.lists(st.integers(0, 5), max_size=3), fill=st.floats())
def test_a_corrupted_array_is_refused_or_predicts(name: str, shape: list[int], fill: float) -> None:
    description, arrays = parts(make())
    with np.errstate(invalid="ignore", over="ignore"):
        arrays |= {name: np.full(shape, fill).astype(DTYPES[name])}
    try:
        model = SparseKernelModel.from_parts(description, arrays)
        model.decision_function(np.zeros((2, 6), np.float32))
    except InvalidDataError:
        return


def test_a_crafted_folder_with_a_valid_manifest_is_refused_with_its_name(tmp_path: Path) -> None:
    description, arrays = parts(make())
    with new_folder(tmp_path / "crafted", kind="model") as aside:
        write_json(ModelLayout(aside).description, description | {"input_shape": [3, 2, 1]} | {"labels": [1]})
        write_arrays(ModelLayout(aside).arrays, arrays)
    with pytest.raises(ModelFormatError, match="crafted") as found:
        load_model(tmp_path / "crafted")
    assert describe(found.value)[0] is ExitCode.INVALID_DATA


def test_a_model_that_does_not_hold_is_not_saved(tmp_path: Path) -> None:
    model = make()
    broken = model.with_weights(model.weights * np.nan, model.intercept)
    with pytest.raises(ModelFormatError, match="weights"):
        save_model(tmp_path / "model", broken)
    assert not (tmp_path / "model").exists()
