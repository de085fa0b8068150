"""A model over any data, block by block: what `pipeline.predict` and `pipeline.evaluate` share.

Blocks are the same for every kind of file, since the last bits of float32 products depend on their size: the same rows
give the same decision values from an .npz, a .zarr or a .csv.
"""

import itertools
import math
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features import tables
from features.errors import DataError, MissingInputError, UsageError
from features.extractors import feature_length
from features.idx import read_idx
from features.images import IDX_FILES
from features.rows import check_lengths, input_dtype
from features.sources import NAMED, Part, Source
from pipeline import config as configuration
from pipeline import plan as planning
from pipeline import run_folder, stopping
from pipeline.config import TrainConfig
from pipeline.errors import ConfigError, ConfigMismatchError, InvalidDataError, MissingRunError
from pipeline.feature_store import describe, open_data
from pipeline.model import SparseKernelModel
from pipeline.model_folder import load_model
from storage.arrays import open_user_arrays
from storage.blocks import row_blocks
from storage.commit import read_record
from storage.errors import UnavailableStoreError
from storage.layout import ModelLayout, RunLayout

BLOCK_BYTES = 64 * 2**20
MOST_BLOCK_ROWS = 2**16
PARTS: tuple[Part, ...] = ("train", "test")
NPZ_NAME, ZARR_NAME = "{name}_{part}", "{part}/{name}"


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of one array, file or part. read(start, stop): inputs as they are stored, and labels or None."""

    n_rows: int
    input_shape: tuple[int, ...]
    read: Callable[[int, int], tuple[NDArray[Any], NDArray[Any] | None]]
    name: str


@dataclass(frozen=True, eq=False)
class Examples:
    """What to predict: its name for people, the part it is (None: a whole file), the pieces it consists of."""

    name: str
    part: str | None
    pieces: tuple[Piece, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all pieces."""
        return sum(piece.n_rows for piece in self.pieces)


@dataclass(frozen=True)
class Asked:
    """Which data a command was asked for; settings (`KEY=VALUE`) and data_dir go with named data sets only."""

    data: str | None
    labelled: bool
    part: str | None = None
    target: str | None = None
    data_dir: str | None = None
    settings: tuple[str, ...] = ()


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
        examples = _open_path(Path(data), asked, located.model)
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
    X = model.features_of(inputs)
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

    return Examples(source.name, part, tuple(piece(one) for one in _parts(part)))


def _parts(part: str) -> tuple[Part, ...]:
    return PARTS if part == "all" else tuple(one for one in PARTS if one == part)


def _open_path(path: Path, asked: Asked, model: SparseKernelModel) -> Examples:
    if asked.settings or asked.data_dir:
        raise ConfigError(f"{path}: --set and --data-dir have no effect on a file; leave them out")
    is_folder, is_table = path.is_dir(), path.suffix in (".npz", ".csv")
    if is_folder and path.suffix == ".zarr":
        found = open_user_arrays(path)
        return _open_arrays(path, asked, {"X": found[""]} if "" in found else found, ZARR_NAME)
    if is_folder and not is_table:
        return _open_idx(path, asked)
    if not path.exists() and (path.suffix or len(path.parts) > 1):
        raise MissingInputError(f"{path}: no such file or folder")
    if not path.exists():
        raise UsageError(f"data set {asked.data!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")
    if is_folder or not is_table:
        raise UsageError(f"{path}: file type not known; give a file .npz or .csv, a folder .zarr or one in IDX layout")
    if path.suffix == ".npz":
        return _open_arrays(path, asked, _read_npz(path, asked), NPZ_NAME)
    _refuse_part(path, asked)
    return Examples(path.name, None, (_open_csv(path, asked, math.prod(model.input_shape)),))


def _refuse_part(path: Path, asked: Asked) -> None:
    if asked.part is not None:
        raise UsageError(f"--part {asked.part}: {path} has no parts; leave it out")


def _array_names(known: Container[str], asked: Asked, part_name: str) -> list[tuple[str, str]]:
    """Return the names of inputs and labels: those of X, else those of the parts, spelt like `part_name`."""
    if "X" in known:
        return [("X", asked.target or "y")]
    parts = _parts(asked.part or "test")
    return [(part_name.format(name="X", part=part), part_name.format(name="y", part=part)) for part in parts]


def _read_npz(path: Path, asked: Asked) -> dict[str, NDArray[Any]]:
    """Return those arrays of an npz file that are needed; each is checked before anything is allocated."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            pairs = _array_names(members, asked, NPZ_NAME)
            wanted = [name for pair in pairs for name in pair[: 1 + asked.labelled] if name in members]
            return {name: tables.read_member(archive, members[name], path) for name in wanted}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, RuntimeError, zlib.error) as error:
        raise DataError(f"{path}: not a readable npz file ({error})") from error


def _open_arrays(path: Path, asked: Asked, arrays: Mapping[str, Any], part_name: str) -> Examples:
    """Return the rows of X, or those of the parts."""
    if "X" in arrays:
        _refuse_part(path, asked)
    pieces = []
    for inputs, labels in _array_names(arrays, asked, part_name):
        for name in (inputs, labels)[: 1 + asked.labelled]:
            if name not in arrays:
                words = name if "X" in arrays or name != inputs else f"X or {name}"
                raise DataError(f"{path}: has no array {words}")
        y = tables.label_array(np.asarray(arrays[labels][:]), labels) if asked.labelled else None
        pieces.append(_array_piece(inputs, arrays[inputs], y))
    return Examples(path.name, None if "X" in arrays else asked.part or "test", tuple(pieces))


def _array_piece(name: str, X: Any, y: NDArray[Any] | None) -> Piece:
    """Return the rows of an array-like, of which one run of chunks is kept, since decoding one costs as much as it is.

    Memory where chunks have more rows than a block: two of them.
    """
    check_lengths(X, np.broadcast_to(0, X.shape[:1]) if y is None else y, name, "y")
    chunk_rows = getattr(X, "chunk_rows", 1)
    kept: tuple[int, NDArray[Any]] = (0, np.empty(0))

    def read(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        nonlocal kept
        labels = None if y is None else y[start:stop]
        if chunk_rows <= stop - start:
            return np.asarray(X[start:stop]), labels
        if not kept[0] <= start <= stop <= kept[0] + len(kept[1]):
            low, high = start - start % chunk_rows, -(-stop // chunk_rows) * chunk_rows
            kept = (low, np.asarray(X[low : min(high, len(X))]))
        return kept[1][start - kept[0] : stop - kept[0]], labels

    return Piece(len(X), tuple(int(size) for size in X.shape[1:]), read, name)


def _open_idx(path: Path, asked: Asked) -> Examples:
    part = asked.part or "test"
    pieces = []
    for one in _parts(part):
        images, labels = (name for name in IDX_FILES if name.startswith("train") == (one == "train"))
        y = read_idx(_idx_file(path, labels), 1).astype(np.int64) if asked.labelled else None
        pieces.append(_array_piece(images, read_idx(_idx_file(path, images), 3), y))
    return Examples(path.resolve().name, part, tuple(pieces))


def _idx_file(folder: Path, name: str) -> Path:
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise MissingInputError(f"{folder}: lacks {name} (raw or .gz); a folder of images needs MNIST's file names")
    return path


def _open_csv(path: Path, asked: Asked, n_inputs: int) -> Piece:
    """Return the rows of a csv file, which is read once for their number and again for the numbers in them.

    A column more than the model's inputs is the target, chosen as in training.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = tables.csv_cells(stream, path)
            first = next(lines, (0, []))[1]
            n_lines = bool(first) + sum(1 for _ in lines)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    header = bool(first) and tables.is_header(first, asked.target)
    if n_lines == header:
        raise DataError(f"{path}: has no rows")
    has_target = asked.target is not None or len(first) == n_inputs + 1
    column = tables.target_column(first, header, asked.target, path) if has_target else None
    if len(first) - has_target != n_inputs or (asked.labelled and not has_target):
        wanted = f"{n_inputs} inputs" + (" and a target" if asked.labelled or asked.target else "")
        raise DataError(f"{path}: has {len(first)} columns, wanted the model's {wanted}")
    names = first if header else [str(k) for k in range(len(first))]
    rows: Iterator[tuple[NDArray[np.float64], str]] = iter(())

    def read(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        nonlocal rows
        if start == 0:
            rows = _csv_rows(path, header, names, column, labelled=asked.labelled)
        inputs, labels = np.empty((stop - start, n_inputs)), []
        for k, (values, label) in enumerate(itertools.islice(rows, stop - start)):
            inputs[k] = values
            labels.append(label)
        if len(labels) < stop - start:
            raise DataError(
                f"{path}: ends at row {start + len(labels)}, it was longer before; leave it alone meanwhile"
            )
        return inputs, np.array(labels) if asked.labelled else None

    return Piece(n_lines - header, (n_inputs,), read, str(path))


def _csv_rows(
    path: Path, header: bool, names: list[str], column: int | None, *, labelled: bool
) -> Iterator[tuple[NDArray[np.float64], str]]:
    """Yield inputs and label of every row; a label is only asked for where it is needed."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        for row, (line, cells) in enumerate(itertools.islice(tables.csv_cells(stream, path), int(header), None)):
            where = f"{path}: row {row} (line {line})"
            if len(cells) != len(names):
                raise DataError(f"{where} has {len(cells)} cells, expected {len(names)}")
            label = "" if column is None else cells[column].strip()
            if labelled and (not label or label.lower() in ("nan", "na")):
                raise DataError(f"{where} has no label ({label!r})")
            kept = [k for k in range(len(names)) if k != column]
            yield np.array(tables.numbers([cells[k] for k in kept], [names[k] for k in kept], where)), label
