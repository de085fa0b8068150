"""The trained model: f(x) = Σ_m w_m k(x, x_m) + b over the centers with a non-zero weight."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.extractors import FeatureSpec, extract
from features.targets import labels_from_decision
from features.transforms import Standardisation
from pipeline.columns import ColumnGenerator

FORMAT_VERSION = 1
KERNEL = "gaussian"  # exp(-‖x-x'‖² / (2 σ²))


class ModelFormatError(ValueError):
    """A model description or its arrays do not fit together."""


@dataclass(frozen=True, eq=False)
class SparseKernelModel:
    """A sparse kernel machine with all that prediction needs.

    task: multiclass, binary or regression; labels: the classes in the order of the outputs (two for binary, none
    for regression). center_index (m,) i8: rows of the training set, -1 for a center of one's own; centers (m, d)
    f4; center_sigma2 (m,) f8; weights (m, T) f8; intercept (T,) f8; selection_order (m,) i8: 0, 1, … in the order
    in which the centers were chosen. standardisation: z-scoring of the inputs, or None.
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
    standardisation: Standardisation | None = None
    input_shape: tuple[int, ...] = field(default=())

    @property
    def n_centers(self) -> int:
        """Number of centers of the model."""
        return len(self.centers)

    @cached_property
    def _generator(self) -> ColumnGenerator:
        return ColumnGenerator(self.centers, self.center_sigma2)

    def with_weights(self, weights: NDArray[np.float64], intercept: NDArray[np.float64]) -> "SparseKernelModel":
        """Return a model on the same centers with other weights (m, T) and intercept (T,)."""
        return replace(self, weights=weights, intercept=intercept)

    def features_of(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Return the features (rows, d) f4 of inputs (rows, *input_shape) as the training data had them."""
        if inputs.shape[1:] != self.input_shape:
            raise ModelFormatError(f"inputs have shape {inputs.shape[1:]} each, the model wants {self.input_shape}")
        scored = inputs if self.standardisation is None else self.standardisation.apply(inputs)
        return extract(self.features, scored)

    def decision_function(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return decision values (rows, T) f8 for features X (rows, d); rows·m·(d + T)·2 operations."""
        if not self.n_centers:
            return np.tile(self.intercept, (len(X), 1))
        columns = self._generator.block(X, out_dtype=np.float64)
        return columns @ self.weights + self.intercept

    def predict_targets(self, X: NDArray[np.float32]) -> NDArray[Any]:
        """Return class indices (rows,) i8, or predicted values f8, for features X (rows, d)."""
        return labels_from_decision(self.decision_function(X), self.task)

    def description(self) -> dict[str, Any]:
        """Return the JSON half of the model: what is not an array. No time, path or host."""
        return {
            "format_version": FORMAT_VERSION,
            "task": self.task,
            "kernel": {"name": KERNEL},
            "features": {
                "name": self.features.name,
                "cells": list(self.features.cells),
                "orientations": self.features.orientations,
            },
            "standardise": self.standardisation is not None,
            "input_shape": list(self.input_shape),
            "labels": list(self.labels),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the array half of the model, ready for an .npz."""
        names = ("center_index", "centers", "center_sigma2", "weights", "intercept", "selection_order")
        arrays = {name: getattr(self, name) for name in names}
        n_inputs = int(np.prod(self.input_shape))
        fitted = self.standardisation or Standardisation(np.zeros(n_inputs), np.ones(n_inputs))
        return arrays | {"standardisation_mean": fitted.mean, "standardisation_scale": fitted.scale}

    @classmethod
    def from_parts(cls, description: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "SparseKernelModel":
        """Return the model that `description` and `arrays` describe.

        Raises ModelFormatError where a part is missing, of another format version, or does not fit the others.
        """
        try:
            if description["format_version"] != FORMAT_VERSION or description["kernel"]["name"] != KERNEL:
                raise ModelFormatError("the model was written by another version of this software")
            spec = description["features"]
            standardisation = Standardisation(arrays["standardisation_mean"], arrays["standardisation_scale"])
            model = cls(
                task=description["task"],
                labels=tuple(description["labels"]),
                features=FeatureSpec(spec["name"], tuple(spec["cells"]), spec["orientations"]),
                center_index=arrays["center_index"],
                centers=arrays["centers"],
                center_sigma2=arrays["center_sigma2"],
                weights=arrays["weights"],
                intercept=arrays["intercept"],
                selection_order=arrays["selection_order"],
                standardisation=standardisation if description["standardise"] else None,
                input_shape=tuple(description["input_shape"]),
            )
        except (KeyError, TypeError) as error:
            raise ModelFormatError(f"the model lacks {error}") from None
        model.check()
        return model

    def check(self) -> None:
        """Raise ModelFormatError unless shapes agree and every number is finite."""
        m, n_outputs = len(self.centers), len(self.intercept)
        shapes = {
            "center_index": (m,),
            "center_sigma2": (m,),
            "weights": (m, n_outputs),
            "selection_order": (m,),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ModelFormatError(f"{name} has shape {getattr(self, name).shape}, expected {shape}")
        for name in ("centers", "center_sigma2", "weights", "intercept"):
            if not np.isfinite(getattr(self, name)).all():
                raise ModelFormatError(f"{name} holds a value that is not finite")
        expected_outputs = len(self.labels) if self.task == "multiclass" else 1
        if n_outputs != expected_outputs:
            raise ModelFormatError(f"{n_outputs} outputs, expected {expected_outputs} for the task {self.task}")
