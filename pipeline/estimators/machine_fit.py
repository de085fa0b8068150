"""The fit and the predictions of the two estimators: `KernelMachine` imports this when it is fitted or asked.

It brings numba, which takes as long to import as scikit-learn does. Parameters are settings of a run, and messages of a
fit name them as such.
"""

import logging
import math
import sys
import warnings
from bisect import bisect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from features.array_sources import given_labels, keys_of_groups, numeric
from features.deformed_copies import Copies
from features.descriptors import FeatureSpec, extract, feature_length
from features.errors import DataError, UsageError
from features.images import image_scale, input_shape, to_bytes
from features.row_draws import keys_apart, row_keys
from features.rows import Chosen, Mapped, Rows, Standardisation, some_of
from features.source import Columns
from features.tables.encoding import array_warnings
from features.targets import check_printable, check_spellings, checked_weights, encode
from features.words import shown
from pipeline.config.settings import PARAMETERS, parse_value, with_value, with_values, worded
from pipeline.config.train_config import TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_rows import FeatureShape, ScaledFeatures, feature_spec, fit_moments, seen, source_spec
from pipeline.errors import ConfigError, InvalidDataError
from pipeline.fit.choose_kernel import SCALES, candidates_needs
from pipeline.fit.evaluation import assemble_model
from pipeline.fit.filled_settings import (
    WORKING_SETS,
    MemoryBudget,
    count_candidates,
    features_of,
    fill_in,
    is_in_rounds,
    refuse,
    value_dtype,
    with_candidates,
    without_room,
)
from pipeline.fit.fit_model import fit, solving_needs
from pipeline.fit.kept_columns import growth_needs
from pipeline.fit.rounds import NO_ROOM
from pipeline.fit.row_blocks import RunSize
from pipeline.fit.solves import REACHED
from pipeline.fit.statistics import statistics_needs
from pipeline.fit.workspace import FinalWeights, Workspace
from pipeline.kernels.jit import compiling
from pipeline.prediction.predictor import examples_in_memory, predictions
from pipeline.prediction.trained_model import Explained, SparseKernelModel
from pipeline.runtime import stopping
from pipeline.runtime.memory_limits import limit_bytes
from pipeline.runtime.progress import COMPILING
from pipeline.runtime.row_pass import Workers
from pipeline.work.events import StepEvents
from pipeline.work.runner import WHICH, Here, note_of
from pipeline.work.store import MemoryStore, TaskCheckpoints
from storage.zarr_arrays import chunk_rows_for

BLOCK_BYTES = 64 * 2**20  # Features, kernel values and their float64 copies of a block take no more.
MOST_BLOCK_ROWS, LEAST_BLOCK_ROWS = 4096, 64
MOST_MOVED = 1e-3  # Float32 may move centers by as many kernel widths; kernel values change by no more.
LOG_EVERY = 100  # A greedy choice logs whenever it has chosen as many more centers.
NONE_MEANS = dict.fromkeys(("feature_scale", "refit", "select"), "none")  # Else None is left to the data.


def settings_of(machine: Any) -> tuple[TrainConfig, frozenset[str]]:
    """Return the parameters of an estimator as settings, and the keys of those that are not at their defaults."""
    if not (machine.callback is None or callable(machine.callback)):
        raise ValueError(f"callback must be a function or None; found {machine.callback!r}")
    if not isinstance(machine.verbose, Integral) or int(machine.verbose) < 0:
        raise ValueError(f"verbose must be 0 or 1; found {machine.verbose!r}")
    keys = {name: key for key, name in PARAMETERS.items()}
    values, explicit = dict[str, Any]({"resources.features_dir": "none"}), set[str]()
    for parameter in fields(machine):
        name, value = parameter.name, getattr(machine, parameter.name)
        if name not in keys or (name == "class_weight" and not isinstance(value, str)):
            continue
        setting = NONE_MEANS.get(name) if value is None else value
        if setting is not None or parameter.default is not None:
            values[keys[name]] = parse_value(keys[name], setting, "")
        if value != parameter.default:
            explicit.add(keys[name])
    return with_values(TrainConfig("X"), values), frozenset(explicit)


@contextmanager
def as_value_error() -> Iterator[None]:
    """Turn the errors of a fit into ValueError, in the words of the parameters."""
    try:
        yield
    except (ConfigError, InvalidDataError, DataError, UsageError, LinAlgError) as error:
        raise ValueError(worded(getattr(error, "message", str(error)), PARAMETERS)) from None


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn in the words of the parameters, at the line outside of this package that made the call."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("pipeline.", "contextlib")):
        frame, level = frame.f_back, level + 1
    warnings.warn(worded(message, PARAMETERS), category, stacklevel=level)


class Listeners(TaskCheckpoints, StepEvents):
    """The callback and the log of an estimator, which hear of each iteration; no checkpoints are kept."""

    def __init__(self, machine: Any) -> None:
        self._machine, self._said = machine, ""

    def log(self, message: str, **facts: Any) -> None:
        if self._machine.verbose and message != self._said:
            print(message)
        self._said = message

    def warn(self, message: str, **facts: Any) -> None:
        warn(message)

    def callback(self, record: dict[str, Any]) -> None:
        if self._machine.callback is not None:
            self._machine.callback(record)

    def add_record(self, facts: Mapping[str, Any]) -> None:
        self.log(note_of(facts))
        self.callback({name: value for name, value in facts.items() if name not in ("statistics", WHICH)})

    def report_selection(self, part: str, rows: str, n_chosen: int, most: int) -> None:
        if n_chosen % LOG_EVERY == 0:
            self.log(f"{n_chosen} of {most} centers chosen on {rows}")
        self.callback({"phase": "select", "rows": part, "iteration": n_chosen, "n_active": n_chosen})


def fit_machine(machine: Any, X: Any, y: Any, sample_weight: ArrayLike | None, groups: ArrayLike | None) -> None:
    """Fit an estimator in memory and set its attributes. Where that fails, it stays as it was: its last model, too."""
    before = dict(vars(machine))
    try:
        with (
            as_value_error(),
            threadpool_limits(1, user_api="blas"),  # The bits depend on the number of threads.
            stopping.obeying(stopping.Stop()),
            compiling(partial(print if machine.verbose else logging.getLogger("pipeline").warning, COMPILING)),
        ):
            _fit(machine, X, y, sample_weight, groups)
    except BaseException:
        machine.__dict__ = before
        raise


def _fit(machine: Any, X: Any, y: Any, sample_weight: ArrayLike | None, groups: ArrayLike | None) -> None:
    config, explicit = settings_of(machine)
    seed, random = machine.random_state, check_random_state(machine.random_state)  # It refuses other seeds.
    seed = int(seed) if isinstance(seed, Integral) else int(random.randint(np.iinfo(np.int32).max))
    config = with_value(config, "seed", seed)
    images, scale = _images(X), None
    if images is not None:
        scale = image_scale("X", [images])
        images = to_bytes(images, scale, range(len(images)))
    X, y = _validated(machine, X if images is None else images.reshape(len(images), math.prod(images.shape[1:])), y)
    task, classes, targets, weights, factors = _targets_and_weights(machine, y, sample_weight)
    rows = _counted(X, targets, weights, groups)
    shape_of_input = X.shape[1:] if images is None else images.shape[1:]
    copies = Copies.of(source_spec(config), shape_of_input)
    config = config if images is None else with_value(config, "data.standardise", None)
    config = features_of(config, shape_of_input, scale, standardise=images is None)
    spec = feature_spec(config)
    feature_length(spec, shape_of_input)  # It refuses inputs without features.
    listeners = Listeners(machine)
    if images is not None:
        rows = _rows_of_images(rows, images, spec, copies)
    del X, images  # They take memory.
    shape = FeatureShape(
        task,
        classes,
        n_train=len(rows),
        n_features=rows.X.shape[1],
        chunk_rows=chunk_rows_for(4 * rows.X.shape[1], max(len(rows), 1)),
        weighted=() if rows.weights is None else ("train",),
        dtype=rows.X.dtype.name,
    )
    config = with_value(config, "data.groups", None if groups is None else "groups")
    config = _filled_in(config, explicit, rows, shape)
    given, fitted = rows.X, None
    if config.data.standardise:
        plain = replace(rows, X=_seen(given))
        fitted = fit_moments(plain, shape, balanced=config.data.class_weight is not None)
    rows = replace(rows, X=_seen(given, fitted), standardisation=fitted)
    room = limit_bytes(config.resources) - _memory_of_fit(config, shape)
    store = MemoryStore(listeners, column_bytes=max(room, 0))
    scaled = ScaledFeatures(rows, store.stored(SCALES)) if config.kernel.learns_scales else rows
    work = Workspace(config, shape, scaled, store, Here(store), listeners, factors)
    final, names = fit(work), tuple(getattr(machine, "feature_names_in_", np.empty(0)).tolist())
    model = assemble_model(
        work,
        final,
        rows.numbers,
        features=spec,
        standardisation=rows.standardisation,
        input_shape=shape_of_input,
        image_scale=scale,
        table_columns=Columns(names) if names else None,
    )
    _store(machine, work, model, given, final)


def _images(X: Any) -> NDArray[Any] | None:
    if len((X if hasattr(X, "shape") else np.asarray(numeric(X, "X"))).shape) < 3:
        return None
    images = np.asarray(numeric(X, "X"))
    images = images.astype(np.float64) if images.dtype.kind == "O" else images
    return images.reshape(len(images), *input_shape(images.shape, "X"))


def _validated(machine: Any, X: Any, y: Any) -> tuple[NDArray[np.floating], NDArray[Any]]:
    are_labels = is_classifier(machine)
    X, y = _numbers(machine, X, y=given_labels(y) if are_labels else numeric(y, "y"), y_numeric=not are_labels)
    names = getattr(machine, "feature_names_in_", range(X.shape[1]))
    for warning in array_warnings(X, [*map(str, names)]):  # `pandas.to_csv` writes the index as a column.
        warn(warning)
    return X, column_or_1d(y, warn=True)


def _counted(
    X: NDArray[np.floating], targets: NDArray[Any], weights: NDArray[np.float64] | None, groups: ArrayLike | None
) -> Rows:
    """Return the rows of X (n, d) with a weight above 0; their `numbers` are their places in X."""
    index = np.arange(len(X)) if weights is None else np.flatnonzero(weights > 0)
    blocks = (X[start : start + MOST_BLOCK_ROWS] for start in range(0, len(X), MOST_BLOCK_ROWS))
    keys = np.concatenate([np.empty(0, np.uint64), *map(row_keys, blocks)])[index]
    of_groups = keys_apart(keys) if groups is None else keys_of_groups(groups, len(X))[index]
    counted = X if len(index) == len(X) else Chosen(X, index)
    return Rows(counted, targets[index], some_of(weights, index), keys, of_groups, index)


def _seen(X: Any, standardisation: Standardisation | None = None, scales: NDArray[np.float32] | None = None) -> Mapped:
    """Return rows (n, d) as the kernel sees them, in their dtype; they are never all in memory."""
    dtype = X.dtype.type
    make = partial(seen, name="Input X", standardisation=standardisation, scales=scales, dtype=dtype)
    return Mapped(X, make, X.shape[1:], dtype)


def _rows_of_images(rows: Rows, images: NDArray[Any], spec: FeatureSpec, copies: Copies) -> Rows:
    """Return the features of the images (n, ...) with a weight above 0, and of their deformed copies."""
    numbers = rows.numbers[:, None] * copies.count + np.arange(copies.count)
    made = copies.of_images(replace(rows, X=Chosen(images, rows.numbers)))
    starts = range(0, len(made), MOST_BLOCK_ROWS)
    X = np.concatenate([extract(spec, made.X[start : start + MOST_BLOCK_ROWS]) for start in starts])
    return Rows(X, made.y[:], some_of(made.weights, slice(None)), made.keys[:], made.groups[:], numbers.ravel())


def _numbers(machine: Any, X: Any, **checks: Any) -> Any:
    """Return X, with y if given, as scikit-learn checks them. Raises ValueError, also for words and missing values."""
    try:
        return validate_data(machine, numeric(X, "X"), dtype=[np.float64, np.float32], **checks)
    except ValueError as error:
        words = str(error).partition("\n")[0]  # The other lines recommend other estimators.
        if "with dim" in words:
            raise ValueError(f"{words[:-1]}; give rows: X.reshape(len(X), -1)") from None
        if words.startswith("Input X contains"):
            hint = " Fill gaps in before, with SimpleImputer in a pipeline" if "NaN" in words else ""
            raise ValueError(words + hint) from None
        raise


def _targets_and_weights(
    machine: Any, y: NDArray[Any], sample_weight: ArrayLike | None
) -> tuple[str, tuple[Any, ...], NDArray[Any], NDArray[np.float64] | None, tuple[float, ...]]:
    """Return task, classes, targets (n,) as in a store, row weights (n,) or None, and the class factors in these."""
    weights, of_classes = None, ()
    if sample_weight is not None:
        given = np.asarray(numeric(sample_weight, "sample_weight"))
        given = given.astype(np.float64) if given.dtype.kind == "O" else given
        weights = checked_weights(given, len(y), "sample_weight")
    if not is_classifier(machine):
        return "regression", (), encode(y, (), "y"), weights, ()
    check_classification_targets(y)
    machine.classes_, targets = np.unique(y, return_inverse=True)
    check_printable(machine.classes_.tolist())
    if y.dtype.kind in "OU":
        check_spellings(machine.classes_, "y", lambda k: repr(machine.classes_.tolist()[k]))
    if machine.class_weight is not None and not isinstance(machine.class_weight, str):
        try:
            given = compute_sample_weight(machine.class_weight, y)
        except ValueError:
            labels = shown(map(str, machine.classes_))
            raise ValueError(f"class_weight: give each label a weight; y has {labels}") from None
        factors = checked_weights(given, len(y), "class_weight")
        weights = factors if weights is None else checked_weights(weights * factors, len(y), "sample_weight")
        of_classes = tuple(factors[np.unique(targets, return_index=True)[1]].tolist())
    n_present = len(np.unique(targets if weights is None else targets[weights > 0]))
    if n_present < 2:
        raise ValueError(f"y holds {n_present} class with rows of positive weight; at least two classes are needed")
    task = "binary" if len(machine.classes_) == 2 else "multiclass"
    return task, tuple(machine.classes_.tolist()), targets, weights, of_classes


def _filled_in(config: TrainConfig, explicit: frozenset[str], rows: Rows, shape: FeatureShape) -> TrainConfig:
    count, limit = config.centers.count, limit_bytes(config.resources)
    n_different = len(np.unique(rows.keys))
    if isinstance(count, int) and count > n_different:
        warn(f"n_centers={count} is above the {n_different} different rows of weight above 0; all are taken")
        count = n_different
    # Rows of a few categories are told apart, as they are held out one by one.
    n_units = n_different if rows.groups is None else len(np.unique(rows.groups))
    room = MemoryBudget(max(n_different, n_units), limit, lambda whole: _memory_of_fit(whole, shape) <= limit)
    values = {"centers.count": count, "centers.working_set": None if count is None else shape.n_train}
    config, _ = fill_in(with_values(config, values), shape, explicit, room)
    n_candidates = count_candidates(config, shape.n_train)
    sizes = [n_candidates]
    if config.solver.is_penalised and config.solver.penalty != "auto":  # Not all candidates need a Gram.
        sizes += [size for size in WORKING_SETS if size < n_candidates]
    sized = (with_value(config, "centers.working_set", size) for size in sizes)
    found = next((one for one in sized if _memory_of_fit(one, shape) <= limit), None)
    if found is None:
        needed = _memory_of_fit(with_value(config, "centers.working_set", sizes[-1]), shape)
        fewer = range(max(config.solver.n_selected, 1), n_candidates)
        n_fitting = bisect(fewer, limit, key=lambda n: _memory_of_fit(with_candidates(config, n), shape))
        remedy = f"lower n_centers to {fewer[n_fitting - 1]} or " if n_fitting else ""
        remedy += "raise memory_limit"
        if len(sizes) == 1 and not config.solver.selects:
            remedy += ", or give penalty a number, for which not all need a Gram"
        told = f"{needed / 2**20:.1f} MiB, the memory limit is {limit / 2**20:.1f} MiB"
        raise MemoryError(f"{n_candidates} candidates need {told}; {remedy}")
    if is_in_rounds(found, shape.n_train):
        refuse(without_room(found, n_candidates))
    return found


def _memory_of_fit(config: TrainConfig, shape: FeatureShape) -> int:
    """Return the bytes of the most demanding pass of a fit in one thread.

    Arrays that a run maps in its folder are in memory here: the Grams of fit and held-out rows for a path of penalties
    and a refit, and those of the round before where a working set grows.
    """
    run = RunSize(config, shape, Workers(1, 1, 1))
    gram, statistics = 8 * run.n_columns**2, statistics_needs(run)
    kept = 2 * gram if config.solver.is_penalised and what_needs_held_out_rows(config) else 0
    if is_in_rounds(config, shape.n_train):
        kept, statistics = 2 * gram, growth_needs(run)
    return kept + max(needed.memory for needed in (candidates_needs(run), statistics, solving_needs(run)))


def _store(machine: Any, work: Workspace, model: SparseKernelModel, given: Any, final: FinalWeights) -> None:
    """Set the attributes of a fitted machine; given: the training rows (n, d), as they were given."""
    summary, shape, config = final.summary, work.shape, work.config
    machine._model, machine._dtype = model, np.dtype(value_dtype(config, shape)).type
    single, scales = model.task == "regression", model.feature_scales
    of_rows = final.points is None
    machine.centers_ = given[work.candidates[final.active]] if of_rows else model.centers.copy()
    machine.center_index_ = model.center_index.copy()
    machine.feature_scales_ = None if scales is None else scales.copy()
    machine.dual_coef_ = model.weights[:, 0].copy() if single else model.weights.T.copy()
    machine.intercept_ = float(model.intercept[0]) if single else model.intercept.copy()
    machine.kernel_, machine.sigma2_ = model.kernel.name, model.sigma2
    if not single:
        machine.calibration_ = model.calibration
        machine.temperature_ = model.calibration and model.calibration.temperature
    machine.mu_, machine.dual_gap_, machine.penalty_ = None, math.nan, summary["penalty"]
    machine.n_iter_ = len(final.active) if config.solver.selects else 1
    machine.columns_ = summary.get("columns")
    if machine.penalty_ is None:
        return
    mu = np.abs(final.penalised_weights) / np.sqrt(machine.penalty_)
    machine.mu_ = mu[:, 0] if single else mu.T.copy()
    machine.dual_gap_ = max(solve["relative_gap"] for solve in summary["solves"])
    machine.n_iter_ = max(solve["sweeps"] for solve in summary["solves"])
    if not all(solve["converged"] for solve in summary["solves"]):
        tolerance = config.solver.tolerance or REACHED
        numbers = f"relative duality gap {machine.dual_gap_:.2e}, tol={tolerance:g}, {machine.n_iter_} iterations"
        has_room = all(solve["status"] != NO_ROOM for solve in summary["solves"])
        words = "the tolerance was not reached; raise max_sweeps or tol" if has_room else NO_ROOM
        warn(f"{words} ({numbers})", ConvergenceWarning)


def decision_of(machine: Any, X: Any) -> NDArray[np.floating]:
    """Return the outputs (n, T) of rows X (n, d), by blocks; float32 for float32 rows."""
    decisions = [decision for decision, _ in _decided(machine, X)]
    return np.concatenate(decisions) if decisions else np.empty((0, len(machine._model.intercept)))


def explanations_of(machine: Any, X: Any, n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the training rows (rows, n) of the centers that explain rows X, and what each adds; raise ValueError."""
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n must be a whole number above 0; found {n!r}")
    found = [explained for _, explained in _decided(machine, X, int(n)) if explained is not None]
    if not (m := machine._model.n_centers):
        raise ValueError("no explanations: the model is a constant, it has no centers")
    of_no_rows = machine._model.explained(np.empty((0, m)), np.empty(0, np.int64), int(n))
    centers, added, *_ = (np.concatenate(arrays) for arrays in zip(of_no_rows, *found, strict=True))
    return machine.center_index_[centers], added


def _decided(machine: Any, X: Any, n_explained: int = 0) -> Iterator[tuple[NDArray[np.floating], Explained | None]]:
    """Yield the outputs (rows, T) of blocks of rows X (n, d), and the centers that explain each row."""
    check_is_fitted(machine, "centers_")
    with as_value_error():
        if (images := _images(X)) is not None or len(machine._model.input_shape) > 1:
            model = model_of(machine)
            examples = examples_in_memory(X if images is None else images, model)
            yield from ((block.decision, block.explained) for block in predictions(model, examples, n_explained))
            return
        X = _numbers(machine, X, reset=False)
        model = replace(machine._model)  # The kernel of a copy is freed afterwards, and is in no pickle of the machine.
        rows = _seen(X, model.standardisation, model.feature_scales)
        row_bytes = 24 * X.shape[1] + 20 * model.n_centers  # Features are there as read, standardised and scaled.
        block = int(np.clip(BLOCK_BYTES // row_bytes, LEAST_BLOCK_ROWS, MOST_BLOCK_ROWS))
        for start in range(0, len(X), block):
            part = rows[start : start + block].astype(machine._dtype, copy=False)
            decision, _, explained = model.decide(part, n_explained)
            yield decision.astype(X.dtype, copy=False), explained


def model_of(machine: Any) -> SparseKernelModel:
    """Return the model as the commands use it. Raises as `KernelMachine.to_model`."""
    check_is_fitted(machine, "centers_")
    points = machine._model.centers
    with np.errstate(over="ignore", invalid="ignore"):
        centers = points.astype(np.float32)
        moved = (np.linalg.norm(centers - points, axis=1) / np.sqrt(machine._model.sigma2)).max(initial=0.0)
    if not moved <= MOST_MOVED:
        fault = f"a model's centers are float32, which moves one of these by {moved:.1g} kernel widths"
        raise ValueError(f"{fault}; standardise X (standardise=True) and fit again")
    model = replace(machine._model, centers=centers)
    model.check()
    return model
