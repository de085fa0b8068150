"""A model over any data, block by block: arrays and data frames in memory, what `predict` and `evaluate` read.

Blocks are the same for every kind of data, since the last bits of float32 products depend on their size.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from features.array_files import array_names, read_arrays
from features.array_sources import PART_KEYS, Keys, is_frame, label_array, numeric
from features.descriptors import feature_length
from features.errors import DataError, UsageError
from features.images import IDX_FILES, idx_files, input_shape, read_idx
from features.input_files import (
    PICTURE_SUFFIXES,
    class_of,
    is_of_arrays,
    is_picture,
    is_picture_folder,
    is_table,
    is_zarr,
    part_folders,
    pictures_below,
)
from features.open_source import changed, stamp_of, unknown_data
from features.rows import InOrder, Mapped, RowArray, Rows, check_finite, check_lengths, input_dtype, some_of
from features.source import NAMED, PARTS, Columns, Part, Source, SourceSpec
from features.tables.encoding import unknown_words
from features.targets import class_array, encode
from features.words import counted, normal_name, shown
from pipeline.config import settings as configuration
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_rows import describe, request_of, source_spec
from pipeline.datasets.open_data import open_data
from pipeline.errors import ConfigError, ConfigMismatchError, InvalidDataError, MissingRunError
from pipeline.prediction.ranking import NO_RANKING, kept_rows, kept_share, ranking_numbers
from pipeline.prediction.scores import Sums, add_sums, score_numbers, score_sums
from pipeline.prediction.trained_model import CANCELLED, FAR_VALUE, Explained, SparseKernelModel, load_model
from pipeline.runtime import run_folder, stopping
from storage.errors import UnavailableStoreError
from storage.folder_layouts import MODEL_NAME, RunLayout
from storage.zarr_arrays import row_blocks

BLOCK_BYTES = 64 * 2**20
MOST_BLOCK_ROWS = 2**16
MOST_KNOWN = 12  # An error lists at most these classes of a model.


@dataclass(frozen=True, eq=False)
class Examples:
    """What to predict."""

    name: str  # for people
    part: str | None  # None: a whole file
    pieces: tuple[Rows, ...]  # arrays, files or parts: inputs as they are stored, labels or None
    are_bytes: bool = False  # whether images became bytes when they were read
    unknown: Counter[str] = field(default_factory=Counter)  # cells read so far, by column, of an unknown category
    check: Callable[[], None] = lambda: None  # raises DataError where files are not as they were when opened
    notes: tuple[str, ...] = ()  # what was left out

    @property
    def n_rows(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def file_names(self) -> NDArray[Any] | None:
        names = [piece.names[:] for piece in self.pieces if piece.names is not None]
        return np.concatenate(names) if names else None


@dataclass(frozen=True)
class ExampleRequest:
    """Which data a command was asked for; settings (`KEY=VALUE`) go with named data sets only."""

    data: str | None
    labelled: bool
    more: tuple[str, ...] = ()  # files beside `data`, which are pictures then
    part: str | None = None
    target: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def parts_asked(part: str) -> tuple[Part, ...]:
    """Return the parts that train, test or all names."""
    return PARTS if part == "all" else tuple(name for name in PARTS if name == part)


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model for arrays of inputs; `model` holds its centers and weights.

    X gives the same bits as a file would: images (rows, H, W) or rows (rows, d) of numbers; of a table of numbers the
    input columns by position, or by name where X is a DataFrame. Every method raises DataError or InvalidDataError
    naming a row that the model cannot take, for another shape, and where the model takes words, dates or missing cells.
    """

    model: SparseKernelModel
    layout: RunLayout | None = field(default=None, repr=False)  # layout of the run of the model, if any
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


def centers_told(predictor: Predictor) -> dict[str, NDArray[Any]]:
    """Return what people call the centers, (m,): files, or rows of the data as given; and `_label`: labels or targets.

    A deformed copy is called as its image. Of a model without its run only "", rows of the training part. Raises
    ConfigError where centers have moved or there are none, and what `open_examples` raises of the data of the run.
    """
    index = predictor.model.center_index
    if not len(index):
        raise ConfigError("--explain: the model is a constant, it has no centers")
    if (index < 0).any():
        raise ConfigError("--explain: the centers of the model were moved, and are no training rows any more")
    if predictor.config is None:
        return {"": index}
    (piece,) = open_examples(ExampleRequest(None, labelled=True, part="train"), predictor).pieces
    numbers = index if piece.numbers is None else piece.numbers[index]
    names = numbers if piece.names is None else np.array(piece.names[index].tolist())
    return {"": names, "_label": np.asarray(piece.y[index])}


def load_predictor(path: Path) -> Predictor:
    """Return the model of a run folder, or of a model folder."""
    if not path.is_dir():
        raise MissingRunError(f"{path}: no such folder; name a model folder, or the folder of a run")
    if (path / MODEL_NAME).exists():
        return Predictor(load_model(path))
    layout = RunLayout(path)
    if not (layout.model / MODEL_NAME).exists():
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
        raise UsageError(
            f"{others[0]}: several DATA must all be pictures ({', '.join(PICTURE_SUFFIXES)}); name one folder, or files"
        )
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
        if stamp_of(spec) != stamps:
            raise changed(spec)

    return replace(examples, check=check)


def _source_of_run(config: TrainConfig, predictor: Predictor) -> Source:
    assert predictor.layout is not None
    spec = source_spec(config)
    source = open_data(spec)
    shape = describe(request_of(config, spec), source)
    if shape.digest != run_folder.read_environment(predictor.layout)["data"]:
        names = " and ".join(filter(None, (config.dataset, config.data.test)))
        raise ConfigMismatchError(f"{names}: no longer the data of the run; restore them, or name other DATA")
    return source


def _named_source(name: str, asked: ExampleRequest) -> Source:
    if asked.target:
        raise ConfigError(f"--target {asked.target}: {name} has a target of its own; leave it out")
    for key, value in asked.settings.items():
        if key != "seed" and not key.startswith("data."):
            raise ConfigError(f"--set {key}={value}: must be seed=VALUE or data.KEY=VALUE here")
    assignments = {key: (value, "--set") for key, value in asked.settings.items()}
    return open_data(source_spec(configuration.load(name, None, assignments).config))


def open_file(path: Path, asked: ExampleRequest, model: SparseKernelModel) -> Examples:
    """Open arrays, images or a table of a file or folder."""
    of_pictures = is_picture_folder(path) or (is_picture(path.name) and path.exists())
    if asked.settings.keys() - ({"data.skip_bad"} if of_pictures else set()):
        but = ", but of data.skip_bad," if of_pictures else ""
        raise ConfigError(f"{path}: --set{but} has no effect on a file; leave it out")
    if of_pictures:
        skip_bad = configuration.parse_value("data.skip_bad", asked.settings.get("data.skip_bad", False), "--set")
        return _open_pictures(path, asked, model, skip_bad=skip_bad)
    if is_of_arrays(path):
        names = array_names(path)
        arrays = read_arrays(path, [name for name in _wanted(names, asked, PART_KEYS) if name in names])
        return _open_arrays(path, asked, arrays, PART_KEYS)
    if path.exists() and is_table(path):
        _refuse_part(path, asked)
        return _open_table(path, asked, model)
    if not path.is_dir() or is_zarr(path):
        raise unknown_data(asked.data or str(path))
    files = idx_files(path, _wanted((), asked, tuple(IDX_FILES)))
    read = {name: read_idx(file, IDX_FILES[name]) for name, file in files.items()}
    return _open_arrays(path, asked, read, tuple(IDX_FILES))


def _refuse_part(path: Path, asked: ExampleRequest) -> None:
    if asked.part is not None:
        raise UsageError(f"--part {asked.part}: {path} has no parts; leave it out")


def _array_names(known: Container[str], asked: ExampleRequest, keys: Keys) -> list[tuple[str, ...]]:
    """Return the names of inputs and labels: X and the target where X is `known`, else those of the parts asked for."""
    if "X" in known:
        return [("X", asked.target or "y")]
    return [keys[:2] if part == "train" else keys[2:] for part in parts_asked(asked.part or "test")]


def _wanted(known: Container[str], asked: ExampleRequest, keys: Keys) -> list[str]:
    return [name for pair in _array_names(known, asked, keys) for name in pair[: 1 + asked.labelled]]


def _open_arrays(path: Path, asked: ExampleRequest, arrays: Mapping[str, RowArray], keys: Keys) -> Examples:
    if "X" in arrays:
        _refuse_part(path, asked)
    pieces = []
    for inputs, labels in _array_names(arrays, asked, keys):
        for name in (inputs, labels)[: 1 + asked.labelled]:
            if name not in arrays:
                words = name if "X" in arrays or name != inputs else f"X or {name}"
                raise DataError(f"{path}: has no array {words}")
        y = label_array(np.asarray(arrays[labels][:]), labels) if asked.labelled else None
        pieces.append(_array_piece(inputs, arrays[inputs], y))
    return Examples(path.resolve().name, None if "X" in arrays else asked.part or "test", tuple(pieces))


def _array_piece(name: str, X: RowArray, y: NDArray[Any] | None) -> Rows:
    check_lengths(X, np.broadcast_to(0, X.shape[:1]) if y is None else y, name, "y")
    return Rows(X, y, name=name)


def _open_pictures(path: Path, asked: ExampleRequest, model: SparseKernelModel, *, skip_bad: bool) -> Examples:
    """Return the pictures of a part, a folder (of classes or not) or files; with `skip_bad` all are decoded twice."""
    from features.pictures import Decoder, Pictures, decode_all  # with what decodes them

    if model.image_scale is None:
        raise DataError(f"{path}: the model is not of images that become bytes, so that it takes no pictures")
    parts = part_folders(path) if path.is_dir() else {}
    if not parts:
        _refuse_part(path, asked)
    pieces, decoder, notes = [], Decoder.of(model.input_shape, model.image_scale), list[str]()
    for folder in [parts[part] for part in parts_asked(asked.part or "test") if part in parts] or [path]:
        place = folder if folder.is_dir() else Path()
        listed = pictures_below(folder).names if place == folder else [str(path), *asked.more]
        found = decode_all(place, listed, decoder, lambda _: stopping.check(), skip_bad=True) if skip_bad else None
        names = np.array(listed if found is None else found.names, np.dtypes.StringDType())
        at, pictures = place.resolve(), Pictures(place, names, decoder, found)
        labels = [class_of(name) if place == folder and "/" in name else (at / name).parent.name for name in names]
        if asked.labelled and set(labels).isdisjoint(map(str, model.labels)):
            told, known = shown(sorted(set(labels))), shown(map(str, model.labels), MOST_KNOWN)
            fault = f"has pictures in folders of {told}, and the model knows {known}"
            raise DataError(f"{folder}: {fault}; call them so, or use pipeline.predict, which needs no classes")
        piece = _array_piece(str(folder), pictures, np.array(labels) if asked.labelled else None)
        pieces.append(replace(piece, names=names))
        notes += () if found is None else found.notes
    name = path.resolve().name if not asked.more else f"{1 + len(asked.more)} files"
    return Examples(name, (asked.part or "test") if parts else None, tuple(pieces), True, notes=tuple(notes))


def _open_table(path: Path, asked: ExampleRequest, model: SparseKernelModel) -> Examples:
    """Return the rows of a table, read front to back in batches; of texts, one reading more counts them."""
    from features.tables.cells import distinct  # with pyarrow, which runs on images do without
    from features.tables.learning import CellReader
    from features.tables.readers import Table, model_layout
    from features.tables.table_source import cell_reader, codes_of, labels_in

    known, n_inputs = model.table_columns, math.prod(model.input_shape)
    header, decimal = (None, ".") if known is None else (known.header, known.decimal)
    table, columns = Table.in_files(path, header=header, decimal=decimal), known or Columns(())
    if model.image_scale is not None and len(table.names) < n_inputs:
        has = f"has {counted(len(table.names), 'column')}"
        raise DataError(f"{table.path}: {has}, and the model is of pictures, of {n_inputs} values each; give pictures")
    layout = model_layout(table, asked.target, columns, n_inputs, labelled=asked.labelled)
    reader = cell_reader(columns, layout.input_names)
    of_target = CellReader([table.names[layout.target or 0]], [None])

    def blocks() -> Iterator[tuple[NDArray[Any], ...]]:
        for batch, codes in codes_of(table, layout, reader, labelled=asked.labelled):
            inputs = codes if columns.encoding is None else columns.encoding.apply(codes)
            if not asked.labelled:
                yield (inputs,)
                continue
            found = labels_in(batch, layout)
            if model.task == "regression":
                yield inputs, of_target.codes(batch, [layout.target or 0])[:, 0]
                continue
            texts, of_rows = distinct(found)
            yield inputs, np.array(texts, dtype=str)[of_rows]
        raise DataError(f"{table.path}: became shorter while it was read; leave it alone meanwhile")

    n_rows = table.count_rows()
    if not n_rows:
        raise DataError(f"{table.path}: has no rows")
    in_order = InOrder(blocks, (n_rows, n_inputs))
    labels = in_order.array(1, (), model.label_dtype()) if asked.labelled else None
    piece = Rows(in_order.array(0, (n_inputs,)), labels, name=str(table.path))
    told = table.files_told()
    name = f"{table.path.name} ({told})" if told else table.path.name
    return Examples(name, None, (piece,), unknown=reader.unknown)


def examples_in_memory(X: Any, model: SparseKernelModel) -> Examples:
    """Return rows of numbers in memory: an array of the model's shape, or a DataFrame with its columns."""
    columns = model.table_columns
    if columns is not None and columns.encoding is not None:
        remedy = "write the rows to a .parquet or .csv file and predict that"
        raise DataError(f"X: the model is of a table with words or missing cells; {remedy}")
    if columns is not None and columns.inputs and is_frame(X):
        known, names = {normal_name(name): name for name in X.columns}, list(map(normal_name, columns.inputs))
        lacking = [name for name in names if name not in known]
        if lacking:
            raise DataError(f"X: lacks the column {lacking[0]!r}, which the model needs")
        X = np.column_stack([numeric(np.asarray(X[known[name]]), "X") for name in names])
    rows = np.asarray(numeric(X, "X"))
    piece = Rows(rows, None)
    check_shape(piece, model)
    return Examples("X", None, (piece,))


def examples_of_source(source: Source, part: str) -> Examples:
    """Return the rows of parts of a source; labels are those of its classes."""
    classes = class_array(source.classes) if source.classes else None

    def piece(part: Part) -> Rows:
        rows = source.parts[part]
        y = rows.y if classes is None else Mapped(rows.y, lambda y, _: classes[y], (), classes.dtype)
        return replace(rows, y=y, name=f"{part} part")

    return Examples(source.name, part, tuple(map(piece, parts_asked(part))), source.image_scale is not None)


def check_shape(piece: Rows, model: SparseKernelModel) -> None:
    """Raise DataError unless inputs have the model's shape, or its size where one of the two is flat."""
    shape, wanted = input_shape(piece.X.shape, piece.name), model.input_shape
    flat = 1 in (len(shape), len(wanted))
    if shape != wanted and not (flat and math.prod(shape) == math.prod(wanted)):
        raise DataError(f"{piece.name}: inputs have shape {shape} each, the model wants {wanted}")


@dataclass(frozen=True, eq=False)
class Predicted:
    """A block of predictions."""

    decision: NDArray[np.float64]  # (rows, T)
    labels: NDArray[Any] | None  # (rows,), of the data
    name: str  # the array, file or part of the rows, for messages
    piece_start: int  # the first of them in it
    n_far: int = 0  # rows far from every center
    n_at_limit: int = 0  # predictions of a number at a limit
    weights: NDArray[np.float64] | None = None  # (rows,): how much each counts; None: 1 each
    explained: Explained | None = None  # where it was asked for


def block_rows_for(model: SparseKernelModel) -> int:
    """Return the rows of a block that takes at most about 64 MiB: inputs, features, kernel columns, decision values."""
    n_inputs = math.prod(model.input_shape)
    d = feature_length(model.features, model.input_shape)
    row_bytes = 40 * n_inputs + (16 if model.needs_float64 else 12) * (d + model.n_centers) + 24 * len(model.intercept)
    return max(1, min(BLOCK_BYTES // row_bytes, MOST_BLOCK_ROWS))


def predictions(model: SparseKernelModel, examples: Examples, n_explained: int = 0) -> Iterator[Predicted]:
    """Yield the predictions of all rows in order; n_explained: how many centers explain each."""
    for piece in examples.pieces:
        for rows in row_blocks(len(piece), block_rows_for(model)):
            stopping.check()
            try:
                stored = piece.X[rows]
                labels, weights = some_of(piece.y, rows), some_of(piece.weights, rows)
            except OSError as error:  # named here, since whoever writes would take it for an error of its own file
                raise UnavailableStoreError(f"{piece.name}: cannot be read ({error.strerror or error})") from error
            X = features_of(model, stored, piece.name, rows.start, are_bytes=examples.are_bytes)
            try:
                decision, far, explained = model.decide(X, n_explained)
            except InvalidDataError as error:
                words = f"{piece.name}, block that starts at row {rows.start}"
                raise InvalidDataError(f"{words}: {error}") from None
            n_far, n_at_limit = (int(np.count_nonzero(some)) for some in (far, np.isin(decision, model.limits)))
            yield Predicted(decision, labels, piece.name, rows.start, n_far, n_at_limit, weights, explained)
    examples.check()


def features_of(
    model: SparseKernelModel, stored: NDArray[Any], name: str, start: int, *, are_bytes: bool
) -> NDArray[np.floating]:
    """Return the features (rows, d) of rows as they are stored, images or flat, as training would have read them."""
    inputs = stored.reshape(len(stored), *model.input_shape)
    inputs = inputs.astype(input_dtype(inputs), copy=False)
    check_finite(inputs, name, np.arange(start, start + len(inputs)))
    try:
        return model.features_of(inputs, start, are_bytes=are_bytes, name=name)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def warnings_of(model: SparseKernelModel, examples: Examples, n_far: int, n_cancelled: int = 0) -> list[str]:
    """Return the notes on the rows, with warnings where many are far from every center, or centers cancel in many."""
    told, n_rows = [*examples.notes, *unknown_words(examples.unknown)], examples.n_rows
    if 2 * n_cancelled > n_rows:
        lost = f"less than {CANCELLED:g} of what centers add is left when it is summed (center_total)"
        advice = "train with --penalty max:1e-3 for centers that explain more, at a higher error"
        told.append(f"in {n_cancelled} of {n_rows} rows {lost}: the centers named explain little; {advice}")
    if 2 * n_far <= n_rows:
        return told
    value = "the intercept" if model.intercept.any() else "0, there is no intercept"
    if not model.n_centers:
        return [f"the model has no centers: every row gets the same, {value}", *told]
    return [
        f"{n_far} of {n_rows} rows are far from every center (all kernel values below {FAR_VALUE:g}) and get about "
        f"{value}: check that columns and units are those of the training data, or train with a larger --sigma2",
        *told,
    ]


def score_examples(model: SparseKernelModel, examples: Examples) -> tuple[dict[str, Any], int]:
    """Return the `score_numbers` of a model on labelled rows, and how many rows are far from all centers."""
    n_far, n_classes, n_rows, kept = 0, len(model.labels), 0, list[Sequence[NDArray[Any]]]()
    share = kept_share(max(examples.n_rows, 1), len(model.intercept))

    def scored() -> Iterator[Sums]:
        nonlocal n_far, n_rows
        for block in predictions(model, examples):
            assert block.labels is not None
            truth = encode(block.labels, model.labels, block.name, block.piece_start)
            sums = score_sums(block.decision, truth, n_classes, model.calibration, block.weights, model.limits)
            yield sums | model.coverage_sums(block.decision, truth, block.weights)
            some, weights = kept_rows(share, n_rows, len(truth)), block.weights
            s = np.ones(len(truth)) if weights is None else weights
            kept.append((block.decision[some], truth[some], s[some]))
            n_far, n_rows = n_far + block.n_far, n_rows + len(truth)

    numbers = score_numbers(reduce(add_sums, scored()), model.labels)
    of_kept = [np.concatenate(arrays) for arrays in zip(*kept, strict=True)]
    return numbers | (ranking_numbers(*of_kept) if n_classes else NO_RANKING), n_far
