"""A model over any data, block by block: arrays of inputs in memory, what `predict` and `evaluate` read, and scores.

Blocks are the same for every kind of data, since the last bits of float32 products depend on their size.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from features.descriptors.extraction import feature_length
from features.errors import DataError, UsageError
from features.open_source import changed, stamp_of
from features.picture_folders import SUFFIXES, is_picture
from features.row_source import check_finite, input_dtype
from features.source import NAMED, Source, SourceSpec
from features.tables.encoding import unknown_words
from features.targets import encode
from pipeline.config import settings as configuration
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import describe, request_of, source_spec
from pipeline.datasets.open_data import open_data
from pipeline.errors import ConfigError, ConfigMismatchError, InvalidDataError, MissingRunError
from pipeline.kernels.kernel_functions import first_non_finite_row
from pipeline.prediction.examples import (
    ExamplePart,
    ExampleRequest,
    Examples,
    check_shape,
    examples_in_memory,
    examples_of_source,
    open_file,
)
from pipeline.prediction.model_folder import load_model
from pipeline.prediction.scores import Sums, add_sums, score_numbers, score_sums
from pipeline.prediction.trained_model import FAR_VALUE, SparseKernelModel
from pipeline.runtime import run_folder, stopping
from storage.errors import UnavailableStoreError
from storage.folder_layouts import ModelLayout, RunLayout
from storage.zarr_arrays import row_blocks

BLOCK_BYTES = 64 * 2**20
MOST_BLOCK_ROWS = 2**16


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model for arrays of inputs; `model` holds its centers and weights.

    X gives the same bits as a file would: images (rows, H, W) or rows (rows, d) of numbers; of a table of numbers the
    input columns by position, or by name where X is a DataFrame. Every method raises DataError or InvalidDataError
    naming a row that the model cannot take, for another shape, and where the model takes words, dates or missing cells.
    """

    model: SparseKernelModel
    layout: RunLayout | None = field(default=None, repr=False)  # of the run of the model, where it is of one
    config: TrainConfig | None = field(default=None, repr=False)

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return decision values (rows, outputs) f8."""
        blocks = [block.decision for block in predictions(self.model, examples_in_memory(X, self.model))]
        return np.concatenate([np.empty((0, len(self.model.intercept))), *blocks])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return labels (rows,) in the words of the data, or the values of a regression."""
        return self.model.labels_of(self.decision_function(X))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class (rows, classes); ConfigError where the model has none."""
        self.model.probability_names()
        return self.model.probabilities_of(self.decision_function(X))


def load_predictor(path: Path) -> Predictor:
    """Return the model of a run folder, or of a model folder."""
    if not path.is_dir():
        raise MissingRunError(f"{path}: no such folder; name a model folder, or the folder of a run")
    if ModelLayout(path).description.exists() or ModelLayout(path).arrays.exists():
        return Predictor(load_model(path))
    layout = RunLayout(path)
    if not layout.model.is_dir():
        problem = "is a run without a model yet; train it to its end" if layout.config.exists() else "holds no model"
        raise MissingRunError(f"{path}: {problem}; name a model folder, or the folder of a finished run")
    model = load_model(layout.model)
    config = run_folder.frozen_config(layout) if layout.config.exists() else None
    return Predictor(model, layout, config)


def open_examples(asked: ExampleRequest, predictor: Predictor) -> Examples:
    """Open the data that were asked for, a run's own split as the run did, and check that they fit the model."""
    config, data = predictor.config, asked.data
    others = [file for file in (data or "", *asked.more) if not is_picture(Path(file).name)]
    if asked.more and others:
        raise UsageError(f"{others[0]}: several files must all be pictures ({', '.join(SUFFIXES)})")
    if data is None and config is None:
        raise ConfigError("DATA is missing: only the folder of a run knows its data")
    named = data is None or data in NAMED
    place = None if data is None else configuration.absolute_path(data)
    of_the_run = config is not None and place in (None, config.dataset)
    spec = source_spec(config) if config is not None and of_the_run else SourceSpec(data or "")
    stamps = stamp_of(spec)
    as_trained = not (asked.target or asked.settings) and (named or asked.part is not None or asked.labelled)
    if config is not None and of_the_run and as_trained:
        examples = examples_of_source(_source_of_run(config, predictor), asked.part or "test")
    elif data is None:
        raise ConfigError("--target and --set go with DATA; the own data of a run are taken as its settings say")
    elif named:
        examples = examples_of_source(_named_source(data, asked), asked.part or "test")
    else:
        examples = open_file(Path(data), asked, predictor.model)
    for piece in examples.pieces:
        check_shape(piece, predictor.model)

    def check() -> None:
        if spec.dataset not in NAMED and stamp_of(spec) != stamps:
            raise changed(spec)

    return replace(examples, check=check)


def _source_of_run(config: TrainConfig, predictor: Predictor) -> Source:
    assert predictor.layout is not None
    spec = source_spec(config)
    source = open_data(spec)
    shape = describe(request_of(config, spec), source)
    if shape.digest != run_folder.read_environment(predictor.layout)["data"]:
        names = " and ".join(filter(None, (config.dataset, config.data.test)))
        raise ConfigMismatchError(
            f"{names}: no longer the data that the run was trained on; restore them, or name other DATA"
        )
    return source


def _named_source(name: str, asked: ExampleRequest) -> Source:
    if asked.target:
        raise ConfigError(f"--target {asked.target}: {name} has a target of its own; leave it out")
    for key, value in asked.settings.items():
        if key != "seed" and not key.startswith("data."):
            raise ConfigError(f"--set {key}={value}: must be seed=VALUE or data.KEY=VALUE here")
    assignments = {key: (value, "--set") for key, value in asked.settings.items()}
    return open_data(source_spec(configuration.load(name, None, assignments).config))


@dataclass(frozen=True, eq=False)
class Predicted:
    """A block of predictions."""

    decision: NDArray[np.float64]  # (rows, T)
    labels: NDArray[Any] | None  # (rows,), of the data
    name: str  # the array, file or part of the rows, for messages
    piece_start: int  # the first of them in it
    n_far: int = 0  # rows far from every center
    weights: NDArray[np.float64] | None = None  # (rows,): how much each counts; None: 1 each


def block_rows_for(model: SparseKernelModel) -> int:
    """Return the rows of a block that takes at most about 64 MiB: inputs, features, kernel columns, decision values."""
    n_inputs = math.prod(model.input_shape)
    d = feature_length(model.features, model.input_shape)
    row_bytes = 40 * n_inputs + (16 if model.needs_float64 else 12) * (d + model.n_centers) + 24 * len(model.intercept)
    return max(1, min(BLOCK_BYTES // row_bytes, MOST_BLOCK_ROWS))


def predictions(model: SparseKernelModel, examples: Examples) -> Iterator[Predicted]:
    """Yield the predictions of all rows in order."""
    for piece in examples.pieces:
        for block in row_blocks(piece.n_rows, block_rows_for(model)):
            stopping.check()
            try:
                stored, labels = piece.read(block.start, block.stop)
            except OSError as error:  # named here, since whoever writes would take it for an error of its own file
                raise UnavailableStoreError(f"{piece.name}: cannot be read ({error.strerror or error})") from error
            decision, far = _decide(model, stored, piece, block.start)
            weights = None if piece.weights is None else piece.weights[block.start : block.stop]
            yield Predicted(decision, labels, piece.name, block.start, int(np.count_nonzero(far)), weights)
    examples.check()


def _decide(
    model: SparseKernelModel, stored: NDArray[Any], piece: ExamplePart, start: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return what the model decides on rows as they are stored, images or flat, as training would have read them."""
    name, inputs = piece.name, stored.reshape(len(stored), *model.input_shape)
    inputs = inputs.astype(input_dtype(inputs), copy=False)
    check_finite(inputs, name, np.arange(start, start + len(inputs)))
    try:
        X = model.features_of(inputs, start, are_bytes=piece.are_bytes)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    row = first_non_finite_row(X)
    if row is not None:
        raise InvalidDataError(f"{name}: row {start + row} is too large for float32 features; rescale it")
    try:
        return model.decide(X)
    except InvalidDataError as error:
        raise InvalidDataError(f"{name}, block that starts at row {start}: {error}") from None


def warnings_of(model: SparseKernelModel, examples: Examples, n_far: int) -> list[str]:
    """Return what a user should know of the rows that were read, of which so many are far from every center."""
    told, n_rows = [*examples.notes, *unknown_words(examples.unknown)], examples.n_rows
    if 2 * n_far <= n_rows:
        return told
    value = "the intercept" if model.intercept.any() else "0, there is no intercept"
    if not model.n_centers:
        return [f"the model has no centers: every row gets the same, {value}; train with a lower --penalty", *told]
    return [
        f"{n_far} of {n_rows} rows are far from every center (all kernel values below {FAR_VALUE:g}) and get about "
        f"{value}: check that columns and units are those of the training data, or train with a larger --sigma2",
        *told,
    ]


def score_examples(model: SparseKernelModel, examples: Examples) -> tuple[dict[str, Any], int]:
    """Return the `score_numbers` of a model on labelled rows, and how many rows are far from all centers."""
    n_far, n_classes = 0, len(model.labels)

    def scored() -> Iterator[Sums]:
        nonlocal n_far
        for block in predictions(model, examples):
            assert block.labels is not None
            truth = encode(block.labels, model.labels, block.name, block.piece_start)
            yield score_sums(block.decision, truth, n_classes, model.calibration, block.weights)
            n_far += block.n_far

    return score_numbers(reduce(add_sums, scored()), model.labels), n_far
