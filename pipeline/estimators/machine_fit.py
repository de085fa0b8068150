"""The fit and the predictions of the two estimators: `KernelMachine` imports this when it is fitted, loaded or asked.

It brings numba and pyarrow, which take as long to import as scikit-learn does.
"""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from features.descriptors.extraction import FeatureSpec
from features.encoding import Asked
from features.source import Columns
from features.table_parts import has_numbers_only, is_frame
from features.targets import class_array
from pipeline.config.settings import with_value, with_values
from pipeline.estimators import parameters
from pipeline.estimators.array_features import ArrayFeatures, Cells, Rows, is_sliced
from pipeline.estimators.memory_workspace import MemoryWorkspace
from pipeline.prediction.predictor import Predictor
from pipeline.prediction.streamed_prediction import locate
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.runtime import stopping
from pipeline.runtime.memory_limits import limit_bytes
from pipeline.stages.evaluate_model import assemble_model
from pipeline.stages.filled_settings import Room, count_candidates, fill_in
from pipeline.stages.fit import fit
from pipeline.stages.penalised_solves import REACHED
from pipeline.stages.preparation import compile_told, loops_to_compile
from pipeline.stages.workspace import FinalWeights

SMALL_CANDIDATES = 500  # problems of so few candidates are solved to the last digit: it costs milliseconds
MOST_MOVED = 1e-3  # by the float32 of a model's centers, in kernel widths: kernel values change by no more


def validated(machine: Any, X: Any, y: Any, *, numeric: bool) -> tuple[Rows | Cells, NDArray[Any]]:
    """Return rows and y (n,), checked as scikit-learn does; cells, and arrays read by slices, are not read yet."""
    asked = {name for name in ("categorical", "missing") if getattr(machine, name) is not None}
    if is_sliced(X) and asked:
        raise ValueError(f"{min(asked)} is for DataFrames and arrays in memory; leave it out, or give one")
    if not is_sliced(X) and not asked and (given := _numbers(machine, X, y=y, y_numeric=numeric)) is not None:
        return Rows(given[0]), column_or_1d(given[1], warn=True)
    with parameters.as_value_error():
        rows = Rows(X) if is_sliced(X) else Cells(X)
    if y is None:
        raise ValueError(f"{type(machine).__name__} requires y to be passed, but the target y is None")
    if not all(rows.shape):
        raise ValueError(f"Found array with 0 sample(s) or feature(s): X has the shape {rows.shape}")
    y = column_or_1d(np.asarray(y), warn=True)
    check_consistent_length(rows, y)
    if y.dtype.kind in "fO":
        assert_all_finite(y, input_name="y")
    validate_data(machine, X, skip_check_array=True)  # names and number of the columns
    return rows, y.astype(np.float64) if numeric else y


def _numbers(machine: Any, X: Any, **checks: Any) -> Any:
    """Return X, and y with it, as scikit-learn checks them; None for a DataFrame with cells that are no numbers."""
    if is_frame(X) and not has_numbers_only(X):
        return None
    try:
        return validate_data(machine, X, dtype=[np.float64, np.float32], **checks)
    except ValueError as error:
        words = str(error).partition("\n")[0]  # then other estimators are recommended
        if not words.startswith("Input X contains"):
            raise
        if is_frame(X):
            return None
        hint = " missing='median' fills missing cells in" if "NaN" in words and "y" in checks else ""
        raise ValueError(words + hint) from None


def fit_machine(
    machine: Any,
    rows: Rows | Cells,
    targets: NDArray[Any],
    weights: NDArray[np.float64] | None,
    groups: ArrayLike | None,
    task: str,
    classes: tuple[Any, ...] = (),
    *,
    balanced: bool = False,
) -> None:
    """Fit a task of features.targets in memory, and store the result; balanced: classes count alike."""
    config, explicit = parameters.settings_of(machine.get_params(deep=False))
    names, columns = getattr(machine, "feature_names_in_", None), None
    machine._of_cells = isinstance(rows, Cells)
    if isinstance(rows, Cells):
        with parameters.as_value_error():
            asked = Asked.read(config.data.categorical, config.data.missing)
            rows, columns = rows.learned(asked, weights)
        if names is None or tuple(names.tolist()) != columns.inputs:
            columns = replace(columns, inputs=())  # by their places
    elif names is not None:
        columns = Columns(tuple(names.tolist()), None, len(names))
    features = ArrayFeatures(rows, targets, weights, groups)
    shape, n_different = features.shape(task, classes), len(features.first_of_equals)
    parameters.check_size(features, shape)
    settings: dict[str, Any] = {
        "seed": parameters.seed_of(machine.random_state),
        "centers.count": parameters.clipped_count(machine.n_centers, n_different),
        "kernel.precision": "float64" if features.dtype == np.float64 else "auto",
        "data.class_weight": "balanced" if balanced else None,
        "data.groups": None if groups is None else "groups",
    }
    limit = limit_bytes(config.resources)
    with (
        threadpool_limits(1, user_api="blas"),  # the bits depend on the number of threads
        stopping.unconcerned(),
        parameters.as_value_error(),
    ):
        config, _ = fill_in(with_values(config, settings), shape, explicit, Room(n_different, limit))
        n_candidates = count_candidates(config, shape.n_train)
        if machine.tol is None and n_candidates <= SMALL_CANDIDATES and config.solver.schedule == "shrinking":
            config = with_value(config, "solver.tolerance", 0.0)
        parameters.check_memory(config, shape, n_candidates, limit)
        config = with_value(config, "centers.working_set", n_candidates)
        if config.data.standardise:
            features.standardise(shape, balanced=balanced)
        log = print if machine.verbose else None
        compile_told(loops_to_compile(config, shape), log)
        work = MemoryWorkspace(config, shape, features, machine.callback, log)
        final = fit(work)
    _store(machine, work, features, final, columns)


def _store(
    machine: Any,
    work: MemoryWorkspace,
    features: ArrayFeatures,
    final: FinalWeights,
    columns: Columns | None,
) -> None:
    """Set the fitted attributes, and warn of a tolerance that was not reached."""
    summary, shape, config = final.summary, work.shape, work.config
    model = assemble_model(
        work,
        final,
        features.index,
        features=FeatureSpec("raw"),
        standardisation=features.standardisation() if config.data.standardise else None,
        input_shape=(shape.n_features,),
        table_columns=columns,
    )
    set_model(machine, model, None if machine._of_cells else np.dtype(config.kernel.precision).type)
    if final.points is None:
        machine.centers_ = features.take(work.candidates[final.active], as_given=True)
    machine.penalty_ = summary["penalty"]
    machine.n_iter_ = len(final.active) if config.solver.select != "none" else 1
    if machine.penalty_ is None:
        return
    mu = np.abs(final.penalised_weights) / np.sqrt(machine.penalty_)
    machine.mu_ = mu[:, 0] if shape.task == "regression" else mu.T.copy()
    machine.dual_gap_ = max(solve["relative_gap"] for solve in summary["solves"])
    machine.n_iter_ = max(solve["sweeps"] for solve in summary["solves"])
    tolerance = config.solver.tolerance or REACHED
    if machine.dual_gap_ > tolerance:
        numbers = f"relative duality gap {machine.dual_gap_:.2e}, tol={tolerance:g}, {machine.n_iter_} iterations"
        words = f"the tolerance was not reached; raise max_sweeps or tol ({numbers})"
        warnings.warn(words, ConvergenceWarning, stacklevel=4)


def set_model(machine: Any, model: SparseKernelModel, dtype: type | None) -> None:
    """Set the attributes that every model has; what only a fit knows is None, NaN or 0.

    dtype: of kernel values, with centers as they are; None: predictions are those of the commands.
    """
    single = model.task == "regression"
    machine._model, machine._dtype = model, dtype
    scales = model.feature_scales
    machine.centers_, machine.center_index_ = model.centers.copy(), model.center_index.copy()
    machine.feature_scales_ = None if scales is None else scales.copy()
    machine.coef_ = model.weights[:, 0].copy() if single else model.weights.T.copy()
    machine.intercept_ = float(model.intercept[0]) if single else model.intercept.copy()
    machine.kernel_ = model.kernel.name
    machine.sigma2_ = model.sigma2
    machine.mu_, machine.dual_gap_, machine.n_iter_, machine.penalty_ = None, math.nan, 0, None
    if not single:
        machine.temperature_ = model.temperature


def decision_of(machine: Any, X: Any) -> NDArray[np.floating]:
    """Return the outputs (n, T) of rows X (n, d), by blocks; float32 for float32 rows."""
    check_is_fitted(machine, "centers_")
    given = None if _reads_cells(machine, X) else X if is_sliced(X) else _numbers(machine, X, reset=False)
    if given is None:
        with parameters.as_value_error():
            return Predictor(model_of(machine)).decision_function(X)
    rows = Rows(given)
    if rows.shape[1] != machine.n_features_in_:
        raise ValueError(
            f"X has {rows.shape[1]} features, but {type(machine).__name__} is expecting {machine.n_features_in_} "
            "features as input"
        )
    model, decision = machine._model, np.empty((len(rows), len(machine._model.intercept)))
    with parameters.as_value_error():
        if machine._dtype is None:
            for span, block in rows.blocks(model.n_centers):
                images = block.reshape(len(block), *model.input_shape)
                decision[span] = model.decision_function(model.features_of(images, span.start))
        else:
            generator = model.kernel(model.centers, machine.sigma2_, machine._dtype)
            for span, block in rows.seen(model.standardisation, model.feature_scales).blocks(model.n_centers):
                columns = generator.block(block, None, np.float64)
                decision[span] = columns @ model.weights + model.intercept
    return decision.astype(rows.dtype, copy=False)


def _reads_cells(machine: Any, X: Any) -> bool:
    """Return whether X has cells of the table that the model is of, and not its inputs."""
    columns = machine._model.table_columns
    if machine._of_cells or columns is None or columns.encoding is None or not is_frame(X):
        return machine._of_cells
    return set(columns.inputs) <= set(map(str, getattr(X, "column_names", X.columns)))


def load_into(machine: Any, folder: Path) -> None:
    """Have an estimator with default parameters predict with a model on disk. Raises as `KernelMachine.load`."""
    model = locate(folder).model
    if is_classifier(machine) == (model.task == "regression"):
        fitting = "SLKLRegressor" if model.task == "regression" else "SLKLClassifier"
        raise ValueError(f"{folder}: is a model of a {model.task} task; load it with {fitting}")
    set_model(machine, model, None)
    machine._of_cells = False
    machine.n_features_in_ = math.prod(model.input_shape)
    if is_classifier(machine):
        machine.classes_ = class_array(model.labels)
    if model.table_columns is not None and model.table_columns.input_names:
        machine.feature_names_in_ = np.array(model.table_columns.input_names, dtype=object)


def model_of(machine: Any) -> SparseKernelModel:
    """Return the model as the commands use it. Raises as `KernelMachine.to_model`."""
    check_is_fitted(machine, "centers_")
    points = machine._model.centers
    with np.errstate(over="ignore", invalid="ignore"):
        centers = points.astype(np.float32)
        moved = (np.linalg.norm(centers - points, axis=1) / np.sqrt(machine._model.sigma2)).max(initial=0.0)
    if not moved <= MOST_MOVED:
        raise ValueError(
            f"a model's centers are float32, which moves one of these by {moved:.1g} kernel widths; standardise X "
            "(standardise=True) and fit again"
        )
    model = replace(machine._model, centers=centers)
    model.check()
    return model
