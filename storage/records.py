"""JSON on the disk, and JSON that carries its own digest: records, done-markers and manifests.

A done-marker is a small record for a finished item, so that a resumed run never does it again. One that is damaged
counts as not done: the item is done again, which is always safe.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.errors import CorruptDataError, MissingDataError, StorageError
from storage.files import MAXIMUM_JSON_BYTES, make_folder, parse_json, read_errors, read_plain, write_file
from storage.folder_layouts import check_plain_name


def canonical_json(obj: object) -> bytes:
    """Encode as JSON with one spelling per value: sorted keys, no spaces, UTF-8; numpy scalars as numbers.

    Raises ValueError for NaN and infinities, TypeError for a value without a JSON form.
    """
    return _encode(obj, separators=(",", ":"))


def _encode(obj: object, **layout: Any) -> bytes:
    text = json.dumps(obj, sort_keys=True, ensure_ascii=False, allow_nan=False, default=_plain_value, **layout)
    return text.encode()


def _plain_value(obj: object) -> object:
    if getattr(obj, "ndim", None) == 0:  # a numpy scalar, without an import of numpy
        return obj.item()  # type: ignore[attr-defined]
    if isinstance(obj, Mapping):
        return dict(obj)
    raise TypeError(f"JSON: cannot store a {type(obj).__name__}")


def digest_of(obj: object) -> str:
    """Return the sha256 (hex) of the canonical JSON of `obj`."""
    return hashlib.sha256(canonical_json(obj)).hexdigest()


def write_json(path: Path, obj: object, *, compact: bool = False) -> None:
    """Write `obj` as JSON with sorted keys, durably: indented, or on one line if `compact`.

    Raises ValueError and TypeError as `canonical_json`, CannotWriteError as `write_file`.
    """
    write_file(path, (canonical_json(obj) if compact else _encode(obj, indent=2)) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of bounded size.

    Raises MissingDataError where it does not exist, UnavailableStoreError where it cannot be read, CorruptDataError.
    """
    try:
        with read_errors(path):
            return parse_json(read_plain(path, MAXIMUM_JSON_BYTES))
    except ValueError as error:
        raise CorruptDataError(f"{path}: not valid JSON ({error}); restore or remove it") from None


def write_record(path: Path, body: Mapping[str, Any], *, compact: bool = False) -> None:
    """Write a JSON object that programs read back, with the digest of its content under `digest`.

    Raises as `write_json`; ValueError also where `body` has a `digest` already.
    """
    if "digest" in body:
        raise ValueError("the key 'digest' is the record's own")
    stored = json.loads(canonical_json(body))  # as JSON spells tuples and numpy scalars
    write_json(path, {**stored, "digest": digest_of(stored)}, compact=compact)


def count(value: object) -> bool:
    """Return whether a value of a record is a whole number that is not negative."""
    return type(value) is int and 0 <= value < 2**63


def number(value: object) -> bool:
    """Return whether a value of a record is a finite number."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def amount(value: object) -> bool:
    """Return whether a value of a record is a finite number that is not negative."""
    return number(value) and value >= 0  # type: ignore[operator]


def misfit(value: Any, form: Any, key: str = "") -> str | None:
    """Return the key of the first value of a record that has not the form it is written in; None where all have.

    A form is a type, None, or a function that says whether a value fits; a set of the values that there are; a tuple of
    forms, of which one fits; a list of one form, that of every entry; a dict of the forms of all keys, where the key
    `str` stands for any, and `...` (a text) allows others.
    """
    if isinstance(form, tuple):
        found = [misfit(value, one, key) for one in form]
        return None if None in found else found[-1]
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return key
        forms = dict.fromkeys(value, form[str]) if str in form else {name: form[name] for name in form if name != "..."}
        odd = [name for name in (*forms, *value) if name not in value or (name not in forms and "..." not in form)]
        inside = (misfit(value[name], one, f"{key}.{name}".lstrip(".")) for name, one in forms.items() if not odd)
        return f"{key}.{odd[0]}".lstrip(".") if odd else next(filter(None, inside), None)
    if isinstance(form, list):
        entries = enumerate(value) if isinstance(value, list) else None
        inside = (misfit(one, form[0], f"{key}[{index}]") for index, one in entries or ())
        return key if entries is None else next(filter(None, inside), None)
    if isinstance(form, set):
        return None if isinstance(value, str) and value in form else key
    if form is None or isinstance(form, type):
        return None if type(value) is (form or type(None)) else key
    return None if form(value) else key


def read_record(path: Path, form: Any = None, *, remedy: str = "restore it from a copy") -> dict[str, Any]:
    """Read what `write_record` wrote, without its digest; layout and order of the text do not matter.

    Raises as `read_json`; CorruptDataError, ending with `remedy`, also where the content does not match its digest, or
    a value has not its `form`, see `misfit`.
    """
    try:
        body = read_json(path)
        whole = isinstance(body, dict) and body.pop("digest", None) == digest_of(body)
    except CorruptDataError as error:
        raise CorruptDataError(f"{str(error).partition(';')[0]}; {remedy}") from None
    except (ValueError, RecursionError):  # values that we never write, such as NaN
        whole = False
    if not whole:
        raise CorruptDataError(f"{path}: its content does not match its own digest; {remedy}")
    if form is not None and (key := misfit(body, form)) is not None:
        raise CorruptDataError(f"{path}: {key} is missing, or not what a run writes there; {remedy}")
    return body


class Markers(dict[str, dict[str, Any]]):
    """Payload by item name; `warnings` has a line for each marker that is damaged and does not count."""

    warnings: tuple[str, ...] = ()


def write_marker(folder: Path, item_name: str, payload: Mapping[str, Any]) -> None:
    """Declare an item done, durably; what it wrote must have been fsynced before. Raises CannotWriteError."""
    if "/" in check_plain_name(item_name) or item_name.startswith("."):
        raise ValueError(f"marker: wanted a plain item name, found {item_name!r}")
    make_folder(folder)
    write_record(folder / f"{item_name}.json", {"item": item_name, "payload": dict(payload)}, compact=True)


def read_markers(folder: Path) -> Markers:
    """Return the payloads of all finished items, none without the folder. Raises UnavailableStoreError."""
    markers = Markers()
    try:
        with read_errors(folder):
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != ".")
    except MissingDataError:
        return markers
    for path in paths:
        try:
            body = read_record(path)
            if body.get("item") != path.stem or not isinstance(body.get("payload"), dict):
                raise CorruptDataError(f"{path}: it belongs to another item")
            markers[path.stem] = body["payload"]
        except StorageError as error:
            reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
            markers.warnings += (f"{path}: damaged marker ({reason}); the item {path.stem} is done again",)
    return markers
