"""The trained model, a sum of kernel columns with the meaning of its inputs and outputs, and its folder.

The folder has one file, model.npz: its arrays, and as facts its description. It loads without the rest of its run.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.descriptors import FeatureSpec, feature_length, parameters
from features.errors import DataError, UsageError
from features.images import check_scale, to_bytes
from features.rows import Standardisation
from features.source import Columns
from features.targets import class_array, labels_from_decision
from features.words import shown
from pipeline.datasets.feature_rows import seen
from pipeline.errors import ConfigError, InvalidDataError
from pipeline.kernels.kernel_functions import Kernel, kernel_named
from pipeline.prediction.conformal import STEPS, Conformal, label_sets
from pipeline.prediction.scores import INTERVAL_LEVEL, SET_LEVEL, Calibration, Sums, probabilities
from pipeline.solvers.held_out_losses import Limits, clipped
from storage.arrays import commit, load
from storage.errors import CannotWriteError, CorruptDataError, MissingDataError
from storage.files import aside_of, make_folder
from storage.folder_layouts import MODEL_NAME

FORMAT_VERSION = 2
SCALES = "feature_scales"  # Only models with learned scales have this array.
CONFORMAL = "conformal"  # Models with intervals or sets have this array: how many rows tell, and the quantiles.
LARGEST_DECISION = 1e150  # Squares of decision values and their sums must be float64 numbers too.
# Float32 kernel values round decision values at centers by at most this share of their deviation, else float64 is used.
# At other rows it may be 1e-5.
LARGEST_ROUNDING = 3e-6
LEAST_FLOAT32 = 1e-30  # If all kernel values are smaller, float32's smallest exp, 1e-38, would decide.
COMPARED_CENTERS = 200  # Float32 and float64 are compared at no more centers.
FAR_VALUE = 1e-3  # A row is far from a center below this: 3.7 widths σ of the Gaussian, 6.9 of other kernels.
CANCELLED = 0.05  # If a smaller share of what centers add is left, no few of them explain the sum.
DTYPES = {
    "center_index": np.int64,
    "centers": np.float32,
    "weights": np.float64,
    "intercept": np.float64,
    "selection_order": np.int64,
}


class ModelFormatError(InvalidDataError):
    """A model description or its arrays do not fit together."""


class Explained(NamedTuple):
    """The centers that speak most for predictions: their places in the model, what each adds, and its share of all."""

    centers: NDArray[np.int64]  # (rows, n)
    added: NDArray[np.float64]  # (rows, n)
    shares: NDArray[np.float64]  # (rows, n): added values over the sum of the absolute values of all centers
    total: NDArray[np.float64]  # (rows,): the sum of the shares of all centers

    @property
    def n_cancelled(self) -> int:
        """The number of rows in which the values that centers add cancel."""
        return int(np.count_nonzero(np.abs(self.total) < CANCELLED))


@dataclass(frozen=True, eq=False, repr=False)
class SparseKernelModel:
    """A sparse kernel machine f(x) = Σ_m w_m k(x, x_m) + b (mathematics.md, eq. 6) with all that prediction needs."""

    task: str  # multiclass, binary or regression
    labels: tuple[Any, ...]  # the classes in the order of the outputs: two for binary, none for regression
    features: FeatureSpec
    kernel: type[Kernel]
    sigma2: float
    centers: NDArray[np.float32]  # (m, d): the features of rows with a weight that is not zero
    weights: NDArray[np.float64]  # (m, T)
    intercept: NDArray[np.float64]  # (T,)
    center_index: NDArray[np.int64]  # (m,): their training rows, -1 for others
    selection_order: NDArray[np.int64]  # (m,): 0, 1, … in the order chosen
    standardisation: Standardisation | None = None
    input_shape: tuple[int, ...] = ()
    image_scale: float | None = None  # the white of training images, which become bytes
    table_columns: Columns | None = None  # the columns of the training table
    calibration: Calibration | None = None
    conformal: Conformal | None = None  # quantiles of how far truths are off
    feature_scales: NDArray[np.float32] | None = None  # (d,), or the root (d, d) of a metric; it has scaled the centers
    limits: Limits = ()  # the least and the largest prediction of a regression by least squares

    def __repr__(self) -> str:
        kind = f"{self.task} of {shown(f'{label!r:.20}' for label in self.labels)}" if self.labels else self.task
        sizes = f"{self.n_centers} centers, {math.prod(self.input_shape)} inputs, {self.features.name} features"
        return f"{type(self).__name__}({kind}: {sizes}, {self.kernel.name} kernel)"

    @property
    def n_centers(self) -> int:
        return len(self.centers)

    @property
    def output_labels(self) -> tuple[Any, ...]:
        return {"multiclass": self.labels, "binary": self.labels[1:], "regression": ("y",)}[self.task]

    @cached_property
    def needs_float64(self) -> bool:
        """Whether float32 kernel values move decision values too much: compared at some of the centers."""
        if not self.n_centers:
            return False
        some = self.centers[:: -(-self.n_centers // COMPARED_CENTERS)]
        exact = self._double.block(some, out_dtype=np.float64) @ self.weights
        moved = np.abs(self._single.block(some, out_dtype=np.float64) @ self.weights - exact)
        return bool((moved.max(axis=0) > LARGEST_ROUNDING * exact.std(axis=0)).any())

    @cached_property
    def _single(self) -> Kernel:
        return self.kernel(self.centers, self.sigma2)

    @cached_property
    def _double(self) -> Kernel:
        return self.kernel(self.centers, self.sigma2, np.float64)

    def features_of(
        self, inputs: NDArray[Any], first_row: int = 0, *, are_bytes: bool = False, name: str = "X"
    ) -> NDArray[np.floating]:
        """Return the features (rows, d) f4 of inputs (rows, *input_shape) as the kernel sees them, times their scales.

        are_bytes: whether images became bytes before; name: the inputs in errors. Raises as `feature_rows.seen`.
        """
        if inputs.shape[1:] != self.input_shape:
            raise ModelFormatError(f"inputs have shape {inputs.shape[1:]} each, the model wants {self.input_shape}")
        if self.image_scale is not None and not are_bytes:
            check_scale(inputs, self.image_scale)
            inputs = to_bytes(inputs, self.image_scale, range(first_row, first_row + len(inputs)))
        numbers, how = range(first_row, first_row + len(inputs)), (self.standardisation, self.features)
        return seen(inputs, numbers, name, *how, self.feature_scales)

    def columns(self, X: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return k(x, x_m) of features X (rows, d) and every center, (rows, m) f8.

        It is computed in float32, unless X is float64, the rounding matters, or a row is too far from all centers.
        """
        if X.dtype == np.float64 or self.needs_float64:
            return self._double.block(X)
        columns: NDArray[np.float64] = self._single.block(X, out_dtype=np.float64)
        lost = np.flatnonzero(columns.max(axis=1, initial=0.0) < LEAST_FLOAT32)
        if lost.size:
            columns[lost] = self._double.block(X[lost])
        return columns

    def decide(
        self, X: NDArray[np.floating], n_explained: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], Explained | None]:
        """Return decision values (rows, T) f8 for features X (rows, d), and which rows are far from every center.

        Such a row gets the intercept and next to nothing else. The values of a regression are predictions in the units
        of the targets, within the limits. Costs rows·m·(d + T)·2 operations. Also returns the n_explained centers that
        speak most for each prediction, None for 0.
        """
        columns = self.columns(X)
        decision, far = self.decision_at(columns), columns.max(axis=1, initial=0.0) < FAR_VALUE
        if not n_explained:
            return decision, far, None
        return decision, far, self.explained(columns, labels_from_decision(decision, self.task), n_explained)

    def explained(self, columns: NDArray[np.float64], predicted: NDArray[Any], n: int) -> Explained:
        """Return the n centers, or all there are, that speak most for a prediction at kernel values (rows, m).

        predicted (rows,): the index of a class. A center adds k(x, x_m) w_m to the decision value of the class (with
        its sign, for two classes); the largest come first. In a regression, those that move the number most, up or
        down, come first.
        """
        added = columns * (self.weights.T[predicted] if self.task == "multiclass" else self.weights[:, 0])
        if self.task == "binary":
            added *= np.where(predicted, 1.0, -1.0)[:, None]
        sizes = np.abs(added)
        order = np.argsort(-(sizes if self.task == "regression" else added), axis=1, kind="stable")[:, :n]
        most = np.take_along_axis(added, order, axis=1)
        whole = np.maximum(sizes.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        return Explained(order, most, most / whole, added.sum(axis=1) / whole[:, 0])

    def decision_at(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return decision values (rows, T) f8 of kernel values (rows, m) f8; a regression keeps them in its limits."""
        return clipped(columns @ self.weights + self.intercept, self.limits)

    def decision_function(self, X: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return decision values (rows, T) f8 for features X (rows, d) (mathematics.md, eq. 6), see `decide`."""
        return self.decide(X)[0]

    def label_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64) if self.task == "regression" else class_array(self.labels).dtype

    def labels_of(self, decision: NDArray[np.float64]) -> NDArray[Any]:
        """Return the labels (rows,) of decision values (rows, T): the model's own, or the values of a regression."""
        predicted = labels_from_decision(decision, self.task)
        return predicted if self.task == "regression" else class_array(self.labels)[predicted]

    def decision_names(self) -> tuple[str, ...]:
        return tuple(f"decision_{label}" for label in self.labels) if self.task == "multiclass" else ("decision",)

    def probability_names(self) -> tuple[str, ...]:
        """Return a column name for each class. Raises ConfigError for a regression, and without a temperature."""
        if self.task == "regression":
            raise ConfigError("no probabilities: the model is of a regression, which has no classes; use --interval")
        if self.calibration is None:
            fault = "the model has no temperature to make them with, trained without held-out rows"
            raise ConfigError(f"no probabilities: {fault}; train again with statistics.hold_out above 0")
        return tuple(f"probability_{label}" for label in self.labels)

    def probabilities_of(self, decision: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the probability of each class (rows, classes) for decision values (rows, T)."""
        assert self.calibration is not None  # `probability_names` refuses such a model before.
        return probabilities(decision, self.calibration)

    def intervals_of(self, decision: NDArray[np.floating], level: float) -> NDArray[np.float64]:
        """Return bounds (rows, 2) that hold the truth of new rows at a level. Raises ConfigError with the reason."""
        if self.task != "regression":
            raise ConfigError("no intervals: the model is of classes; ask for sets of labels (--labels)")
        return decision[:, :1] + self._quantile(level) * np.array([-1.0, 1.0])

    def sets_of(self, decision: NDArray[np.floating], level: float) -> NDArray[np.bool_]:
        """Return whether labels are in the set of each row, (rows, classes), that holds its truth at a level.

        Raises ConfigError with the reason.
        """
        self.probability_names()
        return label_sets(self.probabilities_of(decision), self._quantile(level))

    def _quantile(self, level: float) -> float:
        if self.conformal is None:
            fault = "the fit held no rows out (of fewer than 5 it cannot), or weights have seen them, without a refit"
            raise ConfigError(f"no intervals and sets: {fault}; hold rows out, and give `solver.refit=ridge`")
        return self.conformal.quantile(level)

    def coverage_sums(
        self, decision: NDArray[np.float64], truth: NDArray[Any], weights: NDArray[np.float64] | None
    ) -> Sums:
        """Return the weight of the rows whose truth (rows,) is covered, and the weighted sum of the sizes.

        Nothing where there is no quantile at the level.
        """
        if self.conformal is None or not self.conformal.allows(SET_LEVEL if self.labels else INTERVAL_LEVEL):
            return {}
        s = np.ones(len(truth)) if weights is None else weights
        if self.labels:
            sets = self.sets_of(decision, SET_LEVEL)
            return {"covered": s @ sets[np.arange(len(truth)), truth], "sizes": s @ sets.sum(axis=1)}
        low, high = self.intervals_of(decision, INTERVAL_LEVEL).T
        return {"covered": s @ ((low <= truth) & (truth <= high)), "sizes": s @ (high - low)}

    def description(self) -> dict[str, Any]:
        """Return the JSON half of the model: all but its arrays, without time, path or host."""
        kernel: dict[str, Any] = {"name": self.kernel.name, "sigma2": self.sigma2}
        if self.feature_scales is not None:
            kernel[SCALES] = "learned" if self.feature_scales.ndim == 1 else "metric"
        described = {
            "format_version": FORMAT_VERSION,
            "task": self.task,
            "kernel": kernel,
            "features": parameters(self.features),
            "standardise": self.standardisation is not None,
            "input_shape": list(self.input_shape),
            "labels": list(self.labels),
        }
        described |= {} if self.image_scale is None else {"image_scale": self.image_scale}
        described |= {"limits": list(self.limits)} if self.limits else {}
        if self.calibration is not None:
            described |= {name: value for name, value in vars(self.calibration).items() if value}
        return described | ({} if self.table_columns is None else {"columns": self.table_columns.described()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {name: getattr(self, name) for name in DTYPES}
        n_inputs = math.prod(self.input_shape)
        fitted = self.standardisation or Standardisation(np.zeros(n_inputs), np.ones(n_inputs))
        arrays |= {} if self.feature_scales is None else {SCALES: self.feature_scales}
        if self.conformal is not None:
            arrays[CONFORMAL] = np.array([self.conformal.n_units, *self.conformal.quantiles])
        return arrays | {"standardisation_mean": fitted.mean, "standardisation_scale": fitted.scale}

    @classmethod
    def from_parts(cls, description: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "SparseKernelModel":
        try:
            if description["format_version"] != FORMAT_VERSION:
                raise ModelFormatError("it was written by another version of this software; train again")
            columns = description.get("columns")
            standardisation = Standardisation(arrays["standardisation_mean"], arrays["standardisation_scale"])
            model = cls(
                task=description["task"],
                labels=tuple(description["labels"]),
                features=_feature_spec(description["features"]),
                kernel=kernel_named(description["kernel"]["name"]),
                sigma2=description["kernel"]["sigma2"],
                **{name: arrays[name] for name in DTYPES},
                standardisation=standardisation if description["standardise"] else None,
                input_shape=tuple(description["input_shape"]),
                image_scale=description.get("image_scale"),
                table_columns=None if columns is None else Columns.from_description(columns),
                calibration=Calibration.of(description),
                conformal=_conformal(arrays[CONFORMAL]) if CONFORMAL in arrays else None,
                feature_scales=arrays.get(SCALES),
                limits=tuple(description.get("limits", ())),
            )
        except (LookupError, TypeError, AttributeError) as error:
            raise ModelFormatError(f"its description or arrays lack something ({error})") from None
        except (DataError, UsageError, ValueError) as error:
            raise ModelFormatError(str(error)) from None
        model.check()
        return model

    def check(self) -> None:
        """Raise ModelFormatError unless labels are plain, dtypes and shapes fit, and all numbers are finite."""
        if not all(isinstance(label, str | int | float) for label in self.labels):
            raise ModelFormatError(f"labels are {self.labels!r:.60}, expected numbers or strings")
        try:
            d = feature_length(self.features, self.input_shape)
        except UsageError as error:
            raise ModelFormatError(f"inputs of shape {self.input_shape}: {error}") from None
        m, n_outputs = len(np.atleast_1d(self.centers)), len(self.labels) if self.task == "multiclass" else 1
        shapes: dict[str, tuple[int, ...]] = {"centers": (m, d), "weights": (m, n_outputs), "intercept": (n_outputs,)}
        for name, dtype in DTYPES.items():
            _check_array(name, getattr(self, name), dtype, shapes.get(name, (m,)))
        if self.feature_scales is not None:
            _check_array(SCALES, self.feature_scales, np.float32, (d,), (d, d))
        if (moments := self.standardisation) is not None:
            finite = np.where(np.isposinf(moments.scale), 1, moments.scale)  # A constant column has inf.
            for name, values in (("mean", moments.mean), ("scale", finite)):
                _check_array(f"standardisation_{name}", values, np.float64, (math.prod(self.input_shape),))
        with np.errstate(over="ignore"):
            most = np.abs(self.weights).sum(axis=0) + np.abs(self.intercept)
        if not most.max() <= LARGEST_DECISION:
            fault = f"weights and intercept allow decision values up to {most.max():.1g}, over {LARGEST_DECISION:g}"
            remedy = "such a model predicts infinities: train again, with targets on a smaller scale"
            raise ModelFormatError(f"{fault}; {remedy}")


def _check_array(name: str, array: Any, dtype: type, *shapes: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape not in shapes:
        found = f"{getattr(array, 'shape', '')} {getattr(array, 'dtype', type(array).__name__)}"
        raise ModelFormatError(f"{name} is {found}, expected {' or '.join(map(str, shapes))} {dtype.__name__}")
    if not np.isfinite(array).all():
        raise ModelFormatError(f"{name} holds a value that is not finite")


def _conformal(array: NDArray[np.float64]) -> Conformal:
    """Return the quantiles in an array: how many rows tell them, then scores that rise from 0 or above."""
    _check_array(CONFORMAL, array, np.float64, (min(max(array.size, 1), STEPS),))
    n_units, *quantiles = array.tolist()
    if n_units <= 0 or sorted([0.0, *quantiles]) != [0.0, *quantiles]:
        raise ModelFormatError(f"{CONFORMAL} holds a number of rows below 0, or scores that do not rise from 0")
    return Conformal(n_units, tuple(quantiles))


def _feature_spec(described: Any) -> FeatureSpec:
    """Return the features that a description names; they must be what this software computes under that name."""
    spec = FeatureSpec(**{one.name: described[one.name] for one in fields(FeatureSpec) if one.name in described})
    expected = parameters(spec)
    if json.dumps(described, sort_keys=True) != json.dumps(expected, sort_keys=True):  # 1, 1.0 and true differ in JSON.
        fault = f"its features are {described!r:.200}, this software computes {expected!r:.200}"
        raise ModelFormatError(f"{fault}; train again, or use the version that wrote the model")
    return spec


def save_model(folder: Path, model: SparseKernelModel, *, in_run: bool = False) -> None:
    """Commit a model in a folder, replacing a model there; equal models give equal bytes.

    in_run: the folder is the run's own. Raises CannotWriteError, elsewhere also where anything but a model is there.
    """
    model.check()
    replace = in_run or _is_replaced(folder)
    make_folder(folder)
    commit(folder / MODEL_NAME, model.arrays(), model.description(), replace=replace)


def _is_replaced(folder: Path) -> bool:
    """Return whether a model would replace another. Raises CannotWriteError where something else is there."""
    if not (folder.exists() or folder.is_symlink()):
        return False
    if folder.is_dir() and all(aside_of(entry.name) for entry in folder.iterdir()):  # It is empty, or a kill left it.
        return False
    with suppress(MissingDataError, CorruptDataError):
        if load(folder / MODEL_NAME).facts.keys() >= {"task", "kernel"}:
            return True
    raise CannotWriteError(f"{folder}: exists and is no model; choose another name")


def load_model(folder: Path) -> SparseKernelModel:
    """Return the model in a folder after checking every byte of it."""
    arrays, description = load(folder / MODEL_NAME)
    try:
        return SparseKernelModel.from_parts(description, arrays)
    except ModelFormatError as error:
        raise ModelFormatError(f"model {folder}: {error}") from None
