"""The trained model: f(x) = Σ_m w_m k(x, x_m) + b over the centers with a non-zero weight."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.errors import UsageError
from features.extractors import FeatureSpec, extract, feature_length, parameters
from features.targets import labels_from_decision
from features.transforms import Standardisation, on_scale
from pipeline.columns import GAUSSIAN, ColumnGenerator
from pipeline.errors import InvalidDataError
from pipeline.kernels import Kernel

FORMAT_VERSION = 1
TASKS = ("multiclass", "binary", "regression")
MOST_INPUTS = 2**31  # values of one input; more is no model of ours, and could not be allocated
INPUT_DTYPES = (None, "uint8", "float32", "float64")
DTYPES = {
    "center_index": np.int64,
    "centers": np.float32,
    "center_sigma2": np.float64,
    "weights": np.float64,
    "intercept": np.float64,
    "selection_order": np.int64,
}


class ModelFormatError(InvalidDataError):
    """A model description or its arrays do not fit together."""


@dataclass(frozen=True, eq=False)
class SparseKernelModel:
    """A sparse kernel machine with all that prediction needs.

    task: multiclass, binary or regression; labels: the classes in the order of the outputs (two for binary, none
    for regression). center_index (m,) i8: rows of the training set, -1 for a center of one's own; centers (m, d)
    f4; center_sigma2 (m,) f8 (1 where the kernel has no width); weights (m, T) f8; intercept (T,) f8; selection_order
    (m,) i8: 0, 1, … in the order in which the centers were chosen. kernel: the model is a sum of its columns
    k(x, x_m) / √k(x_m, x_m). standardisation: z-scoring of the inputs, or None. input_dtype: of the images that the
    model was trained on, uint8, float32 or float64; None for inputs that are no images, or where it is not known.
    """

    task: str
    labels: tuple[Any, ...]
    features: FeatureSpec
    center_index: NDArray[np.int64]
    centers: NDArray[np.float32]
    center_sigma2: NDArray[np.float64]
    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    selection_order: NDArray[np.int64]
    kernel: Kernel = field(default=GAUSSIAN)
    standardisation: Standardisation | None = None
    input_shape: tuple[int, ...] = field(default=())
    input_dtype: str | None = None

    @property
    def n_centers(self) -> int:
        """Number of centers of the model."""
        return len(self.centers)

    @cached_property
    def _generator(self) -> ColumnGenerator:
        return ColumnGenerator(self.centers, self.center_sigma2, kernel=self.kernel)

    def with_weights(self, weights: NDArray[np.float64], intercept: NDArray[np.float64]) -> "SparseKernelModel":
        """Return a model on the same centers with other weights (m, T) and intercept (T,)."""
        return replace(self, weights=weights, intercept=intercept)

    def features_of(self, inputs: NDArray[Any], first_row: int = 0) -> NDArray[np.float32]:
        """Return the features (rows, d) f4 of inputs (rows, *input_shape) as the training data had them.

        Raises ModelFormatError for another shape, DataError, which counts rows from `first_row`, for
        images on another scale than those.
        """
        if inputs.shape[1:] != self.input_shape:
            raise ModelFormatError(f"inputs have shape {inputs.shape[1:]} each, the model wants {self.input_shape}")
        if self.features.name == "raw":  # gradients are normalised: other features are the same on any scale
            inputs = on_scale(inputs, self.input_dtype, first_row)
        scored = inputs if self.standardisation is None else self.standardisation.apply(inputs)
        return extract(self.features, scored)

    def decision_function(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return decision values (rows, T) f8 for features X (rows, d); rows·m·(d + T)·2 operations."""
        if not self.n_centers:
            return np.tile(self.intercept, (len(X), 1))
        return self.columns(X) @ self.weights + self.intercept

    def columns(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return k(x, x_m) / √k(x_m, x_m) of features X (rows, d) and every center, (rows, m) f8."""
        columns: NDArray[np.float64] = self._generator.block(X, out_dtype=np.float64)  # type: ignore[assignment]
        return columns

    def predict_targets(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return class indices (rows,) i8, or predicted values f8, for features X (rows, d)."""
        return labels_from_decision(self.decision_function(X), self.task)

    def description(self) -> dict[str, Any]:
        """Return the JSON half of the model: what is not an array. No time, path or host."""
        described = {
            "format_version": FORMAT_VERSION,
            "task": self.task,
            "kernel": _kernel_description(self.kernel),
            "features": parameters(self.features),
            "standardise": self.standardisation is not None,
            "input_shape": list(self.input_shape),
            "labels": list(self.labels),
        }
        return described | ({} if self.input_dtype is None else {"input_dtype": self.input_dtype})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the array half of the model, ready for an .npz."""
        arrays = {name: getattr(self, name) for name in DTYPES}
        n_inputs = math.prod(self.input_shape)
        fitted = self.standardisation or Standardisation(np.zeros(n_inputs), np.ones(n_inputs))
        return arrays | {"standardisation_mean": fitted.mean, "standardisation_scale": fitted.scale}

    @classmethod
    def from_parts(cls, description: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "SparseKernelModel":
        """Return the model that `description` and `arrays` describe.

        Raises ModelFormatError where a part is missing, of another format version, does not fit the others, or where
        the features were computed by another version of the algorithm than the one here.
        """
        try:
            if description["format_version"] != FORMAT_VERSION:
                raise ModelFormatError("it was written by another version of this software; train again")
            standardise = description["standardise"]
            if not isinstance(standardise, bool):
                raise ModelFormatError(f"standardise is {standardise!r}, expected true or false")
            standardisation = Standardisation(arrays["standardisation_mean"], arrays["standardisation_scale"])
            _check_moments(standardisation, _input_shape(description["input_shape"]))
            model = cls(
                task=description["task"],
                labels=_labels(description["labels"]),
                features=_feature_spec(description["features"]),
                kernel=_kernel(description["kernel"]),
                standardisation=standardisation if standardise else None,
                input_shape=_input_shape(description["input_shape"]),
                input_dtype=description.get("input_dtype"),
                **{name: arrays[name] for name in DTYPES},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelFormatError(f"its description or arrays lack something ({error})") from None
        model.check()
        return model

    def check(self) -> None:
        """Raise ModelFormatError unless types, shapes and values fit together and every number is finite."""
        for name, dtype in DTYPES.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                raise ModelFormatError(
                    f"{name} has the dtype {getattr(array, 'dtype', None)}, expected {dtype.__name__}"
                )
            if not np.isfinite(array).all():
                raise ModelFormatError(f"{name} holds a value that is not finite")
        if self.input_dtype not in INPUT_DTYPES:
            raise ModelFormatError(f"input_dtype is {self.input_dtype!r:.40}, expected {INPUT_DTYPES}")
        _labels(self.labels)
        self._check_task()
        self._check_shapes()
        if self.n_centers and not self.center_sigma2.min() > 0:
            raise ModelFormatError(f"center_sigma2 holds {self.center_sigma2.min()}, expected numbers above 0")
        if self.n_centers and self.center_index.min() < -1:
            raise ModelFormatError(f"center_index holds {self.center_index.min()}, expected rows, or -1")
        if not np.array_equal(np.sort(self.selection_order), np.arange(self.n_centers)):
            raise ModelFormatError(f"selection_order is no order of {self.n_centers} centers")
        if self.standardisation is not None:
            _check_moments(self.standardisation, self.input_shape)

    def _check_task(self) -> None:
        n_labels = len(self.labels)
        fitting = {"multiclass": n_labels >= 2, "binary": n_labels == 2, "regression": n_labels == 0}
        if self.task not in TASKS or not fitting[self.task]:
            raise ModelFormatError(f"the task {self.task!r:.40} with {n_labels} labels does not exist")

    def _check_shapes(self) -> None:
        n_outputs = len(self.labels) if self.task == "multiclass" else 1
        try:
            d = feature_length(self.features, self.input_shape)
        except UsageError as error:
            raise ModelFormatError(f"inputs of shape {self.input_shape}: {error}") from None
        m = len(self.centers) if self.centers.ndim else 0
        shapes: dict[str, tuple[int, ...]] = {
            "centers": (m, d),
            "center_index": (m,),
            "center_sigma2": (m,),
            "weights": (m, n_outputs),
            "intercept": (n_outputs,),
            "selection_order": (m,),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ModelFormatError(f"{name} has shape {getattr(self, name).shape}, expected {shape}")


def _kernel_description(kernel: Kernel) -> dict[str, Any]:
    described: dict[str, Any] = {"name": kernel.name}
    return described | ({"degree": kernel.degree} if kernel.name == "polynomial" else {})


def _kernel(found: Any) -> Kernel:
    """Return the kernel that a description names."""
    try:
        kernel = Kernel(found["name"], found.get("degree", GAUSSIAN.degree))
    except ValueError as error:
        raise ModelFormatError(str(error)) from None
    if found != _kernel_description(kernel) or type(kernel.degree) is not int:
        raise ModelFormatError(f"its kernel is {found!r:.80}, which this software does not know")
    return kernel


def _feature_spec(found: Any) -> FeatureSpec:
    """Return the features that a description names; they must be what this software computes under that name."""
    try:
        if found["name"] == "hog":
            spec = FeatureSpec("hog", tuple(found["cells"]), found["orientations"])
        else:
            spec = FeatureSpec(found["name"])
    except UsageError as error:
        raise ModelFormatError(str(error)) from None
    expected = parameters(spec)
    whole = [*spec.cells, spec.orientations, found["algorithm_version"]]
    if found != expected or not all(type(number) is int for number in whole):
        raise ModelFormatError(
            f"its features are {found!r:.200}, this software computes {expected!r:.200}; "
            "train again, or use the version that wrote the model"
        )
    return spec


def _input_shape(found: Any) -> tuple[int, ...]:
    shape = tuple(found)
    if not 1 <= len(shape) <= 8 or not all(type(size) is int and 1 <= size <= MOST_INPUTS for size in shape):
        raise ModelFormatError(f"input_shape is {found!r:.60}, expected sizes of at least 1")
    if math.prod(shape) > MOST_INPUTS:
        raise ModelFormatError(f"input_shape {shape} has more than {MOST_INPUTS} values")
    return shape


def _labels(found: Any) -> tuple[Any, ...]:
    labels = tuple(found) if isinstance(found, list | tuple) else None
    if labels is None or not all(isinstance(label, str | int | float) for label in labels):
        raise ModelFormatError(f"labels are {found!r:.60}, expected a list of numbers or strings")
    if len(set(labels)) != len(labels) or any(label != label for label in labels):
        raise ModelFormatError(f"labels are {found!r:.60}, expected each once")
    return labels


def _check_moments(moments: Standardisation, input_shape: tuple[int, ...]) -> None:
    for name, values in (("mean", moments.mean), ("scale", moments.scale)):
        n_inputs = math.prod(input_shape)
        if values.shape != (n_inputs,) or values.dtype != np.float64:
            raise ModelFormatError(
                f"standardisation_{name} has shape {values.shape} {values.dtype}, expected ({n_inputs},) float64"
            )
        if not np.isfinite(values).all():
            raise ModelFormatError(f"standardisation_{name} holds a value that is not finite")
    if not moments.scale.min() > 0:
        raise ModelFormatError(f"standardisation_scale holds {moments.scale.min()}, expected numbers above 0")
