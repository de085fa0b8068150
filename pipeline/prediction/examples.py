"""What a model predicts, read block by block: arrays, images and tables in files, data in memory, opened sources."""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.array_sources import is_frame, label_array, npz_archive, numeric, read_array
from features.cell_text import normal_name
from features.errors import DataError, MissingInputError, UsageError
from features.images import IDX_FILES, idx_files, input_shape, read_idx
from features.input_files import (
    KNOWN_TABLES,
    class_of,
    is_picture,
    is_picture_folder,
    is_table,
    part_folders,
    pictures_below,
)
from features.rows import InOrder, Mapped, RowArray, Rows, check_lengths
from features.source import NAMED, PARTS, Columns, Part, Source
from features.targets import class_array
from pipeline.config.settings import parse_value
from pipeline.errors import ConfigError
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.runtime import stopping
from storage.user_arrays import open_user_arrays

NPZ_NAME, ZARR_NAME = "{name}_{part}", "{part}/{name}"


@dataclass(frozen=True, eq=False)
class Examples:
    """What to predict."""

    name: str  # for people
    part: str | None  # None: a whole file
    pieces: tuple[Rows, ...]  # of arrays, files or parts: inputs as they are stored, labels, or None for these
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


def open_file(path: Path, asked: ExampleRequest, model: SparseKernelModel) -> Examples:
    """Open arrays, images or a table of a file or folder."""
    of_pictures = is_picture_folder(path) or (is_picture(path.name) and path.exists())
    if asked.settings.keys() - ({"data.skip_bad"} if of_pictures else set()):
        but = ", but of data.skip_bad," if of_pictures else ""
        raise ConfigError(f"{path}: --set{but} has no effect on a file; leave it out")
    if of_pictures:
        skip_bad = parse_value("data.skip_bad", asked.settings.get("data.skip_bad", False), "--set")
        return _open_pictures(path, asked, model, skip_bad=skip_bad)
    is_folder, is_file = path.is_dir() and not is_table(path), path.suffix == ".npz" or is_table(path)
    if is_folder and path.suffix == ".zarr":
        arrays = open_user_arrays(path, lambda names: {"", *_wanted(names, asked, ZARR_NAME)})
        return _open_arrays(path, asked, {"X": arrays[""]} if "" in arrays else arrays, ZARR_NAME)
    if is_folder and not is_file:
        return _open_idx(path, asked)
    if not path.exists() and (path.suffix or len(path.parts) > 1):
        raise MissingInputError(f"{path}: no such file or folder")
    if not path.exists():
        raise UsageError(f"data set {asked.data!r} is unknown; give one of {', '.join(NAMED)} or the path of your data")
    if is_folder or not is_file:
        raise UsageError(
            f"{path}: file type not known; give .npz, {KNOWN_TABLES}, or a folder: .zarr, IDX layout, pictures"
        )
    if path.suffix == ".npz":
        with npz_archive(path) as archive:
            wanted = [name for name in _wanted(archive.files, asked, NPZ_NAME) if name in archive.files]
            read = {name: read_array(archive, name) for name in wanted}
        return _open_arrays(path, asked, read, NPZ_NAME)
    _refuse_part(path, asked)
    return _open_table(path, asked, model)


def _refuse_part(path: Path, asked: ExampleRequest) -> None:
    if asked.part is not None:
        raise UsageError(f"--part {asked.part}: {path} has no parts; leave it out")


def _array_names(known: Container[str], asked: ExampleRequest, part_name: str) -> list[tuple[str, str]]:
    if "X" in known:
        return [("X", asked.target or "y")]
    parts = parts_asked(asked.part or "test")
    return [(part_name.format(name="X", part=part), part_name.format(name="y", part=part)) for part in parts]


def _wanted(known: Container[str], asked: ExampleRequest, part_name: str) -> list[str]:
    return [name for pair in _array_names(known, asked, part_name) for name in pair[: 1 + asked.labelled]]


def _open_arrays(path: Path, asked: ExampleRequest, arrays: Mapping[str, RowArray], part_name: str) -> Examples:
    if "X" in arrays:
        _refuse_part(path, asked)
    pieces = []
    for inputs, labels in _array_names(arrays, asked, part_name):
        for name in (inputs, labels)[: 1 + asked.labelled]:
            if name not in arrays:
                words = name if "X" in arrays or name != inputs else f"X or {name}"
                raise DataError(f"{path}: has no array {words}")
        y = label_array(np.asarray(arrays[labels][:]), labels) if asked.labelled else None
        pieces.append(_array_piece(inputs, arrays[inputs], y))
    return Examples(path.name, None if "X" in arrays else asked.part or "test", tuple(pieces))


def _array_piece(name: str, X: RowArray, y: NDArray[Any] | None) -> Rows:
    check_lengths(X, np.broadcast_to(0, X.shape[:1]) if y is None else y, name, "y")
    return Rows(X, y, name=name)


def _open_idx(path: Path, asked: ExampleRequest) -> Examples:
    part = asked.part or "test"
    pieces = []
    for name in parts_asked(part):
        images, labels = (file for file in IDX_FILES if file.startswith("train") == (name == "train"))
        files = idx_files(path, (images, labels)[: 1 + asked.labelled])
        y = read_idx(files[labels], 1).astype(np.int64) if asked.labelled else None
        pieces.append(_array_piece(images, read_idx(files[images], 3), y))
    return Examples(path.resolve().name, part, tuple(pieces))


def _open_pictures(path: Path, asked: ExampleRequest, model: SparseKernelModel, *, skip_bad: bool) -> Examples:
    """Return pictures as the model takes them: of a part, of a folder with folders of classes or without, or of files.

    To skip bad ones all are decoded here, and again when they are read.
    """
    from features.pictures import Decoder, Pictures, decode_all, texts  # with what decodes them

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
        names = texts(listed) if found is None else found.names
        at, pictures = place.resolve(), Pictures(place, names, decoder, found)
        labels = [class_of(name) if place == folder and "/" in name else (at / name).parent.name for name in names]
        piece = _array_piece(str(folder), pictures, np.array(labels) if asked.labelled else None)
        pieces.append(replace(piece, names=names))
        notes += () if found is None else found.notes
    name = path.resolve().name if not asked.more else f"{1 + len(asked.more)} files"
    return Examples(name, (asked.part or "test") if parts else None, tuple(pieces), True, notes=tuple(notes))


def _open_table(path: Path, asked: ExampleRequest, model: SparseKernelModel) -> Examples:
    """Return the rows of a table, read front to back in batches; of texts, one reading more counts them."""
    from features.tables.cells import distinct  # with pyarrow, which runs on images do without
    from features.tables.columns import model_layout
    from features.tables.learning import CellReader
    from features.tables.readers import Table
    from features.tables.table_source import cell_reader, codes_of, labels_in

    known, n_inputs = model.table_columns, math.prod(model.input_shape)
    header, decimal = (None, ".") if known is None else (known.header, known.decimal)
    table, columns = Table.in_files(path, header=header, decimal=decimal), known or Columns(())
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
