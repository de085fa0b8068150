"""A model as an ONNX graph of standard operators: features in, decision values, labels and probabilities out.

The arithmetic behind the features is float64: weights of opposite signs cancel, and float32 would keep less of them.
Only exports import this file: it needs onnx, which is not installed with the rest.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from features.targets import class_array
from pipeline import __version__
from pipeline.prediction.scores import Calibration
from pipeline.prediction.trained_model import SparseKernelModel

OPSET, IR_VERSION = 18, 8


@dataclass
class _Graph:
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def constant(self, value: Any) -> str:
        name, array = f"c{len(self.constants)}", np.asarray(value)
        if array.dtype.kind == "U":
            texts = [text.encode() for text in array.reshape(-1).tolist()]
            self.constants.append(helper.make_tensor(name, TensorProto.STRING, array.shape, texts))
        else:
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        output = name or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output


def input_name(model: SparseKernelModel) -> str:
    """Return what the graph takes: "inputs" of a table as in its file, "encoded" ones, or "features" made of images."""
    if len(model.input_shape) > 1:
        return "features"
    return "encoded" if model.table_columns is not None and model.table_columns.encoding is not None else "inputs"


def to_onnx(model: SparseKernelModel) -> ModelProto:
    """Return a model as an ONNX model (opset 18) of one input and two or three outputs.

    inputs (rows, d) f8 of a table, before z-scoring ("encoded" where words or missing cells became numbers), or
    features (rows, d) f4 of images, from `SparseKernelModel.features_of`. decision (rows, T) f8; label (rows,);
    probability (rows, K) f8 where the model has a calibration.
    """
    graph, name = _Graph(), input_name(model)
    is_table = name != "features"
    X = _features(graph, model) if is_table else graph.add("Cast", name, to=TensorProto.DOUBLE)
    columns = model.kernel(model.centers, model.sigma2).onnx_columns(graph, X)
    weighed = graph.add("MatMul", columns, graph.constant(model.weights))
    unclipped = None if model.limits else "decision"
    decision = graph.add("Add", weighed, graph.constant(model.intercept), name=unclipped)
    if model.limits:
        decision = graph.add("Clip", decision, *map(graph.constant, model.limits), name="decision")
    outputs: list[tuple[str, int, list[str | int | None]]] = [
        ("decision", TensorProto.DOUBLE, ["rows", len(model.intercept)]),
        ("label", _label(graph, model, decision), ["rows"]),
    ]
    if model.calibration is not None:
        _probability(graph, model.calibration, decision, binary=model.task == "binary")
        outputs.append(("probability", TensorProto.DOUBLE, ["rows", len(model.labels)]))
    taken = TensorProto.DOUBLE if is_table else TensorProto.FLOAT
    built = helper.make_graph(
        graph.nodes,
        "slkl",
        [helper.make_tensor_value_info(name, taken, ["rows", model.centers.shape[1]])],
        [helper.make_tensor_value_info(*output) for output in outputs],
        graph.constants,
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(
        built, opset_imports=[opset], ir_version=IR_VERSION, producer_name="slkl", producer_version=__version__
    )


def _features(graph: _Graph, model: SparseKernelModel) -> str:
    """Z-score and scale the inputs, rounded to float32 as they are in training."""
    X, z_scores = input_name(model), model.standardisation
    if z_scores is not None:
        X = graph.add("Div", graph.add("Sub", X, graph.constant(z_scores.mean)), graph.constant(z_scores.scale))
    X = graph.add("Cast", X, to=TensorProto.FLOAT)
    scales = model.feature_scales
    if scales is not None:
        X = graph.add("Mul" if scales.ndim == 1 else "MatMul", X, graph.constant(scales))
    return graph.add("Cast", X, to=TensorProto.DOUBLE)


def _label(graph: _Graph, model: SparseKernelModel, decision: str) -> int:
    if model.task == "regression":
        graph.add("Squeeze", decision, graph.constant(np.array([1])), name="label")
        return int(TensorProto.DOUBLE)
    labels = class_array(model.labels)
    if model.task == "multiclass":
        place = graph.add("ArgMax", decision, axis=1, keepdims=0)
    else:
        is_second = graph.add("GreaterOrEqual", decision, graph.constant(0.0))
        place = graph.add("Squeeze", graph.add("Cast", is_second, to=TensorProto.INT64), graph.constant(np.array([1])))
    graph.add("Gather", graph.constant(labels), place, name="label", axis=0)
    return int(TensorProto.STRING if labels.dtype.kind == "U" else helper.np_dtype_to_tensor_dtype(labels.dtype))


def _probability(graph: _Graph, calibration: Calibration, f: str, *, binary: bool) -> None:
    """Add the output probability of decision values f (mathematics.md, eq. 76)."""
    f = graph.add("Div", f, graph.constant(calibration.temperature))
    if binary:
        f = graph.add("Concat", graph.add("Mul", f, graph.constant(0.0)), f, axis=1)
    if calibration.offsets:
        f = graph.add("Add", f, graph.constant(np.array(calibration.offsets)))
    graph.add("Softmax", f, name="probability", axis=1)
