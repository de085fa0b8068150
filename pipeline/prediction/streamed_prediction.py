"""A model over any data, block by block: what `pipeline.predict` and `pipeline.evaluate` share.

Blocks are the same for every kind of file, since the last bits of float32 products depend on their size: the same rows
give the same decision values from an .npz, a .zarr or a .csv.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.errors import DataError
from features.extractors import feature_length
from features.rows import input_dtype
from features.sources import NAMED, Part, Source
from pipeline import config as configuration
from pipeline import plan as planning
from pipeline import run_folder, stopping
from pipeline.config import TrainConfig
from pipeline.errors import ConfigError, ConfigMismatchError, InvalidDataError, MissingRunError
from pipeline.example_files import Asked, Examples, Piece, open_path, parts_asked
from pipeline.feature_store import describe, open_data
from pipeline.model import SparseKernelModel
from pipeline.model_folder import load_model
from storage.blocks import row_blocks
from storage.commit import read_record
from storage.errors import UnavailableStoreError
from storage.layout import ModelLayout, RunLayout

BLOCK_BYTES = 64 * 2**20
MOST_BLOCK_ROWS = 2**16


@dataclass(frozen=True, eq=False)
class Located:
    """A model, and the layout and configuration of the run it is in, where it is in one."""

    model: SparseKernelModel
    layout: RunLayout | None = None
    config: TrainConfig | None = None


@dataclass(frozen=True, eq=False)
class Predicted:
    """A block of predictions: decision (rows, T) f8, and the labels (rows,) that the data have, or None.

    name, piece_start: the array, file or part that the rows come from, and the first of them in it, for messages.
    """

    decision: NDArray[np.float64]
    labels: NDArray[Any] | None
    name: str
    piece_start: int


def locate(path: Path) -> Located:
    """Load a model folder, or the model of a run folder.

    Raises MissingRunError where there is neither, CorruptDataError or ModelFormatError for a damaged model.
    """
    if not path.is_dir():
        raise MissingRunError(f"{path}: no such folder; name a model folder, or the folder of a run")
    if ModelLayout(path).description.exists() or ModelLayout(path).arrays.exists():
        return Located(load_model(path))
    layout = RunLayout(path)
    if not layout.model.is_dir():
        found = "is a run without a model yet; train it to its end" if layout.config.exists() else "holds no model"
        raise MissingRunError(f"{path}: {found}; name a model folder, or the folder of a finished run")
    model = load_model(layout.model)
    config = run_folder.frozen_config(layout) if layout.config.exists() else None
    return Located(model, layout, config)


def open_examples(asked: Asked, located: Located) -> Examples:
    """Open the data that were asked for, and check that the model fits their inputs.

    A named data set gives its test part unless `asked.part` says otherwise. So do the own data of a run, split as the
    run split them, where a part or labels are wanted. Any other file is taken whole, unless it holds parts.

    Raises ConfigError, UsageError, MissingInputError, DataError, CorruptDataError, and ConfigMismatchError where the
    own data of a run have changed.
    """
    config, data = located.config, asked.data
    if data is None and config is None:
        raise ConfigError("DATA is missing: only the folder of a run knows its data")
    named = data is None or data in NAMED
    own = config is not None and (data is None or configuration.absolute_path(data) == config.dataset)
    as_trained = not (asked.target or asked.settings) and (named or asked.part is not None or asked.labelled)
    if config is not None and own and as_trained:
        if asked.data_dir:
            config = configuration.with_value(config, "resources.data_dir", asked.data_dir)
        examples = _parts_of(_own_source(config, located), asked.part or "test")
    elif data is None:
        raise ConfigError("--target and --set go with DATA; the own data of a run are taken as its settings say")
    elif named:
        examples = _parts_of(_named_source(data, asked), asked.part or "test")
    else:
        examples = open_path(Path(data), asked, located.model)
    for piece in examples.pieces:
        _check_shape(piece, located.model)
    return examples


def block_rows_for(model: SparseKernelModel) -> int:
    """Return the rows of a block that takes at most about 64 MiB: inputs, features, kernel columns, decision values."""
    n_inputs = math.prod(model.input_shape)
    d = feature_length(model.features, model.input_shape)
    row_bytes = 40 * n_inputs + 12 * d + 12 * model.n_centers + 24 * len(model.intercept)
    return max(1, min(BLOCK_BYTES // row_bytes, MOST_BLOCK_ROWS))


def predictions(model: SparseKernelModel, examples: Examples, block_rows: int | None = None) -> Iterator[Predicted]:
    """Yield the predictions of all rows in order; `stopping` is looked at before every block.

    Raises DataError or InvalidDataError naming a row that is not finite or too large, StoppedError.
    """
    for piece in examples.pieces:
        for block in row_blocks(piece.n_rows, block_rows or block_rows_for(model)):
            stopping.check()
            try:
                stored, labels = piece.read(block.start, block.stop)
            except OSError as error:  # named here, since whoever writes would take it for an error of its own file
                raise UnavailableStoreError(f"{piece.name}: cannot be read ({error.strerror or error})") from error
            decision = _decide(model, stored, piece.name, block.start)
            yield Predicted(decision, labels, piece.name, block.start)


def _decide(model: SparseKernelModel, stored: NDArray[Any], name: str, start: int) -> NDArray[np.float64]:
    """Return the decision values of rows as they are stored, images or flat, as training would have read them."""
    inputs = stored.reshape(len(stored), *model.input_shape)
    inputs = inputs.astype(input_dtype(inputs), copy=False)
    flat = inputs.reshape(len(inputs), -1)
    bad = np.argwhere(~np.isfinite(flat))
    if bad.size:
        row, column = bad[0]
        raise DataError(f"{name}: row {start + row}, column {column} is {flat[row, column]}; inputs must be finite")
    try:
        X = model.features_of(inputs, start)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    huge = np.flatnonzero(~np.isfinite(X).all(axis=1))
    if huge.size:
        raise InvalidDataError(f"{name}: row {start + huge[0]} is too large for float32 features; rescale it")
    try:
        return model.decision_function(X)
    except InvalidDataError as error:
        raise InvalidDataError(f"{name}, block that starts at row {start}: {error}") from None


def _check_shape(piece: Piece, model: SparseKernelModel) -> None:
    """Raise DataError unless inputs have the model's shape, or its size where one of the two is flat."""
    found, wanted = piece.input_shape, model.input_shape
    flat = 1 in (len(found), len(wanted))
    if found != wanted and not (flat and math.prod(found) == math.prod(wanted)):
        raise DataError(f"{piece.name}: inputs have shape {found} each, the model wants {wanted}")


def _own_source(config: TrainConfig, located: Located) -> Source:
    """Return the data of a run, after checking that they are those it was trained on."""
    assert located.layout is not None
    source = open_data(planning.source_spec(config))
    shape = describe(planning.feature_request(config, source)[1])
    if shape.digest != read_record(located.layout.environment)["features"]:
        raise ConfigMismatchError(
            f"{config.dataset}: no longer the data that the run was trained on; restore them, or name other DATA"
        )
    return source


def _named_source(name: str, asked: Asked) -> Source:
    """Return a named data set, with the settings that training would take."""
    if asked.target:
        raise ConfigError(f"--target {asked.target}: {name} has a target of its own; leave it out")
    assignments = {"resources.data_dir": (asked.data_dir, "--data-dir")} if asked.data_dir else {}
    for setting in asked.settings:
        key, _, value = setting.partition("=")
        if key != "seed" and not key.startswith("data."):
            raise ConfigError(f"--set {setting}: must be seed=VALUE or data.KEY=VALUE here")
        assignments[key] = (value, "--set")
    return open_data(planning.source_spec(configuration.load(name, None, assignments).config))


def _parts_of(source: Source, part: str) -> Examples:
    """Return the rows of a source; labels are those of its classes."""
    classes = np.asarray(source.classes) if source.classes else None

    def piece(one: Part) -> Piece:
        def read(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
            inputs, targets = source.read(one, start, stop)
            return inputs, targets if classes is None else classes[targets]

        return Piece(source.n_train if one == "train" else source.n_test, source.input_shape, read, f"{one} part")

    return Examples(source.name, part, tuple(piece(one) for one in parts_asked(part)))
