"""Models as ONNX files: two other evaluators say what our own prediction says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runs
from features.open_source import open_source
from features.source import SourceSpec
from pipeline.export import main
from pipeline.prediction.scores import Calibration
from pipeline.prediction.trained_model import SparseKernelModel, load_model
from storage.folder_layouts import RunLayout

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
graphs = pytest.importorskip("pipeline.prediction.onnx_graph")
X = np.random.default_rng(5).uniform(1, 50, (400, 3)) * [1.0, 1e3, 1e-3]
ANGLE = X[:, 0] / 8 + X[:, 1] / 9e3
CASES: dict[str, tuple[Any, list[str]]] = {
    "regression": (np.sin(ANGLE) * 1e3, ["--refit", "ridge"]),
    "scaled": (np.sin(ANGLE), ["--scale", "learned", "--refit", "ridge"]),
    "metric": (np.sin(X[:, 0] / 8 + X[:, 1] / 8e3 - X[:, 2] * 125), ["--scale", "metric", "--refit", "ridge"]),
    "words": (np.array(["low", "middle", "high"])[np.digitize(np.sin(ANGLE), [-0.5, 0.5])], ["--refit", "ridge"]),
    "binary": (np.where(np.sin(ANGLE) > 0, 7, -3), ["--refit", "ridge"]),
    "64 bits": (np.where(np.sin(ANGLE) > 0, np.uint64(2**63 + 1), np.uint64(2**64 - 1)), ["--refit", "ridge"]),
    "classes": (np.digitize(np.sin(ANGLE), [0.0, 0.6]), ["--sigma2", "4", "--refit", "ridge"]),
    "product-laplace": (np.sin(ANGLE), ["--kernel", "product-laplace", "--select", "greedy:10"]),
    "no held-out rows": (np.where(np.sin(ANGLE) > 0, 1, 0), ["--set", "statistics.hold_out=0", "--penalty", "1"]),
}


def evaluators(path: Path) -> dict[str, Any]:
    """Return the outputs of each evaluator as a function of the inputs."""
    from onnx.reference import ReferenceEvaluator

    found = {"reference": lambda inputs: ReferenceEvaluator(onnx.load(path)).run(None, inputs)}
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return found | {"runtime": lambda inputs: session.run(None, inputs)}


def check(path: Path, model: SparseKernelModel, inputs: np.ndarray) -> None:
    onnx.checker.check_model(onnx.load(path), full_check=True)
    decision = model.decision_function(model.features_of(inputs))
    # Ours are float32 columns, theirs float64: weights carry the rounding into the decision values.
    largest = model.columns(model.features_of(inputs)).max()
    rounding = 2 * np.finfo(np.float32).eps * largest * np.abs(model.weights).sum(axis=0).max()
    for name, evaluate in evaluators(path).items():
        taken = model.features_of(inputs) if graphs.input_name(model) == "features" else np.asarray(inputs, np.float64)
        theirs, labels, *probability = evaluate({graphs.input_name(model): taken})
        scale = np.abs(decision).max()
        np.testing.assert_allclose(theirs, decision, rtol=0, atol=max(1e-5 * scale, rounding), err_msg=name)
        expected = model.labels_of(theirs)
        assert np.asarray(labels).tolist() == expected.tolist(), name
        assert len(probability) == (model.calibration is not None)
        if probability:
            np.testing.assert_allclose(probability[0], model.probabilities_of(theirs), atol=1e-9, err_msg=name)


IN_QUICK_TESTS = ("scaled", "words", "regression")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.ci] * (case not in IN_QUICK_TESTS)) for case in CASES]
)
def test_other_evaluators_agree_on_a_table(case, tmp_path):
    y, arguments = CASES[case]
    data, root = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, X=X, y=y)
    runs.train(root, tmp_path / "features", "--centers", "30", *arguments, dataset=data)
    assert main([str(root), "--out", str(tmp_path / "model.onnx")]) == 0
    model = load_model(RunLayout(root).model)
    check(tmp_path / "model.onnx", model, X[:50])
    if model.labels:
        offsets = tuple(np.linspace(0.0, 2.0, len(model.labels)).tolist())
        model = replace(model, calibration=Calibration(0.3, offsets))
        onnx.save(graphs.to_onnx(model), tmp_path / "offsets.onnx")
        check(tmp_path / "offsets.onnx", model, X[:50])
    else:
        onnx.save(graphs.to_onnx(replace(model, limits=(-0.5, 0.5))), tmp_path / "clipped.onnx")
        check(tmp_path / "clipped.onnx", replace(model, limits=(-0.5, 0.5)), X[:50])


def test_other_evaluators_agree_on_features_of_images(images, tmp_path):
    for name in ("model", "again"):
        assert main([str(images / "model"), "--out", str(tmp_path / f"{name}.onnx")]) == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    source = open_source(SourceSpec("digits"))
    check(tmp_path / "model.onnx", load_model(images / "model"), source.test.X[:100])
