"""Sources from arrays: those of .npz, .npy and IDX files; and what arrays of inputs and labels may hold."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, partial
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.array_files import IdxRows, array_names, read_arrays
from features.cell_text import NULL_WORDS, misread, text_of
from features.errors import CHANGED, DataError
from features.images import BYTE_SCALE, IDX_FILES, IDX_PARTS, rescaled, scale_of_parts
from features.input_files import stamp
from features.row_draws import RowKeys, group_keys, row_keys
from features.rows import Mapped, RowArray, Rows, check_lengths, check_whole, digest_rows, pieces_of
from features.source import PARTS, Keeper, Source, SourceSpec, Tick, first_reading, source_of
from features.tables.encoding import array_warnings
from features.targets import LARGEST_WHOLE, UNTOLD, check_finite_targets
from features.words import composed, shown

TIMES = "give numbers of days or seconds"
NUMBERS = (
    "give numbers: words by OneHotEncoder in a pipeline, text by .astype(float), times as seconds, lists as columns"
)
Keys = tuple[str, ...]  # the names of four arrays: inputs and labels of the train and of the test part
PART_KEYS: Keys = ("X_train", "y_train", "X_test", "y_test")


@dataclass(frozen=True, eq=False)
class ArrayDigests:
    """What one pass over arrays found; an outline has no row keys, and takes images for bytes."""

    sha256: Mapping[str, str]  # by name
    scale: float | None  # what is white in images, None for other inputs
    keys: RowKeys | None = None  # keys of the inputs of a train part, then of a test part

    def keys_of(self, inputs: Sequence[RowArray]) -> Sequence[RowKeys | None]:
        """Return the row keys of the inputs of each part."""
        if self.keys is None:
            return [None] * len(inputs)
        return np.split(self.keys, np.cumsum([of_part.shape[0] for of_part in inputs])[:-1])


Names = tuple[str, str, str | None, str | None]  # inputs, labels, weights and groups of one set of rows


def open_arrays(spec: SourceSpec, path: Path, keeper: Keeper | None = None, *, outline: bool = False) -> Source:
    """Open an .npz, or a folder of .npy files: ``X, y`` or ``X_train, y_train, X_test, y_test``.

    `spec.target` renames ``y``. The arrays of an .npz are in memory; of .npy files the inputs are read by rows, once
    here for what `keeper` keeps. An `outline` reads no inputs. Raises DataError where a file or an array is damaged or
    missing, shapes disagree, or values are no real numbers; when rows are read, where they are no longer those.
    """
    keys = _keys_of(spec, array_names(path))
    inputs = [names[0] for names in keys]
    arrays = read_arrays(path, dict.fromkeys(filter(None, chain(*keys))), inputs if outline else ())
    if outline:
        digests = ArrayDigests({}, BYTE_SCALE if len(arrays[inputs[0]].shape) > 2 else None)
    else:
        files = [path / f"{name}.npy" for name in arrays]
        read = partial(_digests_of, arrays, keys)
        digests = first_reading(keeper, path, lambda: files, {"arrays": keys}, read, ArrayDigests)
    of_parts = digests.keys_of([arrays[name] for name in inputs])
    for name, of_rows in zip(inputs, of_parts, strict=True):
        if path.is_dir() and of_rows is not None:
            arrays[name] = _same_rows(arrays[name], of_rows, digests.scale, path / f"{name}.npy")
    return source_of_arrays(spec, arrays, digests)


def _same_rows(inputs: RowArray, keys: RowKeys, scale: float | None, path: Path) -> Mapped:
    """Return inputs that are read as they are; DataError where the keys of rows are not those of the first reading."""

    def read(values: np.ndarray, numbers: NDArray[np.int64]) -> np.ndarray:
        if (row_keys(values if scale is None else rescaled(values, scale)) != keys[numbers]).any():
            raise DataError(f"{path}: {CHANGED}")
        return values

    return Mapped(inputs, read, inputs.shape[1:], inputs.dtype)


def _digests_of(
    arrays: Mapping[str, RowArray], keys: Sequence[Names], tick: Tick = lambda n_rows: None
) -> ArrayDigests:
    for inputs, target, *_ in keys:  # before a byte is hashed
        check_lengths(arrays[inputs], arrays[target], inputs, target)
    labels = {target: label_array(np.asarray(arrays[target][:]), target) for _, target, *_ in keys}
    rows = {inputs: np.empty(arrays[inputs].shape[0], np.uint64) for inputs, *_ in keys}
    scale = None
    if len(arrays[keys[0][0]].shape) > 2:
        scale = scale_of_parts([(inputs, pieces_of(arrays[inputs])) for inputs in rows])
    sha256 = {inputs: digest_rows(arrays[inputs], of_rows, scale, tick) for inputs, of_rows in rows.items()}
    others = dict.fromkeys(name for name in chain(*keys) if name is not None and name not in rows)
    sha256 |= {name: digest_rows(labels.get(name, arrays[name])) for name in others}
    return ArrayDigests(sha256, scale, np.concatenate([*rows.values()]))


def _keys_of(spec: SourceSpec, known: Collection[str]) -> list[Names]:
    """Return the names of the arrays to read: those of X and the target, else those of the parts.

    Weights and groups are named like the inputs, in the place of X; the test part may lack them. Raises DataError.
    """
    target = spec.target or "y"
    keys = ("X", target) if "X" in known and target in known else PART_KEYS
    if keys != PART_KEYS and (of_test := [name for name in PART_KEYS[2:] if name in known]):
        raise DataError(f"{spec.dataset}: has X and a test part ({of_test[0]}); call the arrays {', '.join(PART_KEYS)}")
    missing = [key for key in keys if key not in known]
    if missing:
        found = shown(sorted(known)) or "nothing"
        raise DataError(f"{spec.dataset}: needs X and {target}, or {', '.join(PART_KEYS)}; found {found}")
    more = []
    for option, asked in (("weights", spec.weights), ("groups", spec.groups)):
        names = [key if asked is None else asked if key == "X" else asked.join(key.split("X")) for key in keys[::2]]
        if asked is not None and names[0] not in known:
            raise DataError(f"{spec.dataset}: has no array {names[0]} for data.{option} = {asked}; name one it has")
        more.append([None if asked is None or name not in known else name for name in names])
    return list(zip(keys[::2], keys[1::2], *more, strict=True))


def source_of_arrays(spec: SourceSpec, arrays: Mapping[str, RowArray], digests: ArrayDigests | None = None) -> Source:
    """Return the source of arrays under the names that `open_arrays` reads; errors as there.

    y is read whole, X by rows only: once for its digest, where `digests` are not given.
    """
    keys = _keys_of(spec, arrays)
    digests = digests or _digests_of(arrays, keys)
    of_parts = digests.keys_of([arrays[inputs] for inputs, *_ in keys])
    # Also of .npy files: the same arrays are the same data.
    given, identity = [], {"source": "npz", "sha256": dict(digests.sha256)}
    if len(keys) == 1 and keys[0][1] != "y" and spec.weights is not None:  # either array may be the other
        identity["target"] = keys[0][1]
    own = [f" of {part}" for part in PARTS] if len(keys) > 1 else [""]
    for (inputs, target, of_weights, of_groups), of, of_rows in zip(keys, own, of_parts, strict=True):
        labels = label_array(np.asarray(arrays[target][:]), target)
        looks = misread(np.unique(labels).tolist()) if labels.dtype.kind == "U" and spec.task is None else None
        if looks is not None:
            remedy = f"{looks[1]}; if these are classes, give `data.task`"
            raise DataError(f"{spec.dataset}: {target} holds {looks[0]}, such as {looks[2]!r:.60}; {remedy}")
        weights, groups = (None if name is None else np.asarray(arrays[name][:]) for name in (of_weights, of_groups))
        groups = None if groups is None else keys_of_groups(groups, len(labels), f"groups {spec.groups}{of}")
        given.append(Rows(arrays[inputs], labels, weights, of_rows, groups))
    first = given[0].X
    is_table = len(first.shape) == 2
    source = source_of(spec, Path(spec.dataset).name.removesuffix(".npz"), given, is_table, identity, digests.scale)
    if not is_table or digests.keys is None or not isinstance(first, np.ndarray):  # Files are not read for this.
        return source
    return replace(source, warnings=array_warnings(first, [*map(str, range(first.shape[1]))]))


def keys_of_groups(groups: Any, n_rows: int, name: str = "groups") -> RowKeys:
    """Return the keys (n,) u8 of groups (n,) or (n, 1). Raises DataError where they are none, or one is missing."""
    names = np.asarray(groups)
    names = names.astype(str) if names.dtype.kind == "O" else names
    if names.shape not in ((n_rows,), (n_rows, 1)) or names.dtype.kind not in "biufUS":
        found = f"has the shape {names.shape} and {names.dtype} values"
        raise DataError(f"{name} {found}; ({n_rows},) is needed, a number or a word for each row")
    try:
        return group_keys(names.reshape(n_rows))
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def open_idx(
    spec: SourceSpec,
    name: str,
    files: Mapping[str, Path],
    keeper: Keeper | None = None,
    check: Callable[[], object] | None = None,
) -> Source:
    """Open the files of `IDX_FILES`, of any size. Images are read where they are needed, once for what `keeper` keeps.

    check: raises where published files are others, before they are read; keys of their rows are found when needed.
    """
    keys: list[Names] = [(f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte", None, None) for part in IDX_PARTS]
    first = keys[0][0]

    @cache
    def arrays() -> dict[str, IdxRows]:
        return {key: IdxRows(file, IDX_FILES[key]) for key, file in files.items()}

    def read(tick: Tick) -> ArrayDigests:
        stamps = [*map(stamp, files.values())]
        if check is not None:
            check()
        digests = _digests_of(arrays(), keys, tick)
        if [*map(stamp, files.values())] != stamps:
            raise DataError(f"{name}: {CHANGED}")
        return digests

    request = {"arrays": keys, "are_published": check is not None}
    found = first_reading(keeper, files[first].parent, lambda: [*files.values()], request, read, ArrayDigests)
    found = found if check is None else replace(found, keys=None)
    of_parts = found.keys_of([arrays()[images] for images, *_ in keys])
    given = []
    for (images, labels, *_), of_rows in zip(keys, of_parts, strict=True):
        arrays()[images].sha256, arrays()[labels].sha256 = found.sha256[images], found.sha256[labels]
        given.append(Rows(arrays()[images], arrays()[labels][:].astype(np.int64), keys=of_rows))
    return source_of(spec, name, given, False, {"source": "idx", "sha256": dict(found.sha256)}, found.scale)


def is_frame(values: Any) -> bool:
    """Return whether values are a DataFrame, of pandas or polars: columns with names and dtypes."""
    return hasattr(values, "columns") and hasattr(values, "dtypes")


def numeric(values: Any, name: str) -> Any:
    """Return values as they are. Raises DataError for what is no array of numbers, though NumPy reads it as one."""
    kind = getattr(getattr(values, "dtype", None), "kind", "")  # pandas has dtypes of its own
    if kind == "V":
        raise DataError(f"{name} holds records; give np.lib.recfunctions.structured_to_unstructured({name})")
    if hasattr(values, "column_names"):  # NumPy reads their dates as numbers of some unit.
        raise DataError(f"{name} is a table of Arrow; give {name}.to_pandas()")
    if hasattr(values, "collect"):
        raise DataError(f"{name} is a lazy frame; give {name}.collect()")
    if not is_frame(values):
        _check_numbers(values, name)
        return values
    names = [str(column) for column in values.columns]
    if len(set(names)) < len(names):
        raise DataError(f"{name} has several columns of one name; rename them: {shown(names)}")
    for column in values.columns:
        if np.ndim(values[column]) > 1:  # as polars gives structs
            raise DataError(f"{name}: column {column} holds lists or structs; give each place or field a column")
        if str(values[column].dtype).startswith("Sparse"):
            raise DataError(f"{name}: column {column} is sparse; give {name}.sparse.to_dense()")
        _check_numbers(values[column], name, f" in column {column}")
    return values


def given_labels(labels: Any, name: str = "y") -> Any:
    """Return labels, objects as what they are. Raises DataError where one is missing, or they are of no one type."""
    if labels is None:  # what needs them says so
        return None
    array = _plain(labels, name)
    cells = array.reshape(-1).tolist() if array.dtype.kind in "OT" else []
    if (gap := next((row for row, cell in enumerate(cells) if text_of(cell) is None), None)) is not None:
        raise DataError(f"{name}: row {gap} has no label")
    held = {"words" if isinstance(cell, str | bytes) else _kind_of(cell) for cell in cells}
    if len(held) > 1 or held - {"words", "numbers"}:
        remedy = "words (str) or numbers" if held - {"words", "numbers"} else "labels of one type"
        raise DataError(f"{name} holds {' and '.join(sorted(held, reverse=True))}; give {remedy}")
    if array.dtype.kind == "U" or (cells and isinstance(cells[0], str)):
        _check_words(array.reshape(-1).astype(str), name)
    plain = np.array(array.tolist()) if array.dtype.kind == "O" and array.size else array
    return plain if plain.dtype.kind in "biuf" else labels


def _check_numbers(values: Any, name: str, place: str = "") -> None:
    """Raise DataError for words, other objects, and numbers that float64 does not tell apart; place: where they are."""
    array = _plain(values, name)
    check_whole(array, name)
    for cell in array.reshape(-1).tolist() if array.dtype.kind in "OTUS" and array.ndim else ():
        if str(cell) == "<NA>":  # pandas has these in a column of objects.
            raise DataError(f"{name} contains {cell}; write np.nan, or fill gaps in with SimpleImputer")
        held = "words" if isinstance(cell, str | bytes) else "numbers" if text_of(cell) is None else _kind_of(cell)
        if held != "numbers" and not isinstance(cell, dict):  # For dicts NumPy tells what scikit-learn wants.
            raise DataError(f"{name} holds {held}{place}, such as {cell!r:.60}; {NUMBERS}")
        if isinstance(cell, Integral) and abs(int(cell)) >= LARGEST_WHOLE:
            raise DataError(f"{name} holds whole numbers{place}, such as {cell!r:.60}; {UNTOLD}")


def _kind_of(cell: Any) -> str:
    return "numbers" if isinstance(cell, Real | Decimal | np.bool) else f"objects of type {type(cell).__name__}"


def _plain(values: Any, name: str) -> np.ndarray:
    """Return values as an array of NumPy. Raises DataError for hidden ones, lists of several lengths, and times."""
    if np.ma.isMaskedArray(values) and np.ma.is_masked(values):  # arrays of pandas have a mask of their own
        raise DataError(f"{name} has values that a mask hides; fill them in, or leave their rows out")
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{name} holds lists of several lengths; give each row as many numbers") from None
    if array.dtype.kind in "mM":
        raise DataError(f"{name} holds times ({array.dtype}); {TIMES}")
    return array


def label_array(labels: np.ndarray, name: str) -> np.ndarray:
    """Return labels (n,) in a dtype that `features.targets` knows; (n, 1) is flattened."""
    labels = np.asarray(given_labels(labels, name))
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind in "OTS":
        try:
            labels = labels.astype(str)
        except UnicodeDecodeError as error:
            raise DataError(f"{name} holds bytes that are no ASCII text ({error.object[:20]!r}); store text") from None
    if labels.dtype.kind not in "biufU":
        raise DataError(f"{name} holds {labels.dtype} values; numbers or strings are needed")
    if labels.dtype.kind == "U":
        _check_words(labels.reshape(-1), name)
        texts, of_rows = np.unique(labels, return_inverse=True)
        labels = np.array([composed(text) for text in texts.tolist()])[of_rows]
    if labels.dtype.kind == "f":
        check_finite_targets(labels, name)
        labels = labels.astype(np.float64)
    return labels


def _check_words(texts: np.ndarray, name: str) -> None:
    """Raise DataError for a label (n,) that is a missing cell of a table, or has a character that no text has."""
    try:  # An array may hold any 32 bits for a character.
        "".join(texts.tolist()).encode()
    except (ValueError, SystemError):
        raise DataError(f"{name} holds a character that no text has (a lone surrogate?); mend it") from None
    if (bad := np.flatnonzero(np.isin(np.strings.strip(texts), NULL_WORDS))).size:
        found = f"{texts[bad[0]].item()!r}; if that is a label, write it otherwise"
        raise DataError(f"{name}: row {bad[0]} has no label ({found})")
