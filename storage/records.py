"""JSON on the disk, and JSON that carries its own digest: records, done-markers and manifests.

A done-marker is a small record for a finished item, so that a resumed run never does it again. One that is damaged
counts as not done: the item is done again, which is always safe.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.errors import CorruptDataError, MissingDataError, StorageError, remedy_at
from storage.files import make_folder, parse_json, read_errors, read_plain, write_file


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
    """Write JSON with sorted keys, durably, indented or on one line if `compact`. Raises as `canonical_json`."""
    write_file(path, (canonical_json(obj) if compact else _encode(obj, indent=2)) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises MissingDataError, UnavailableStoreError where it cannot be read, CorruptDataError."""
    try:
        with read_errors(path):
            return parse_json(read_plain(path))
    except ValueError as error:
        raise CorruptDataError(f"{path}: not valid JSON ({error}); {remedy_at(path)}") from None


def write_record(path: Path, body: Mapping[str, Any], *, compact: bool = False) -> None:
    """Write a JSON object that programs read back, with its digest under `digest`. Raises as `write_json`."""
    body = json.loads(canonical_json(body))  # as JSON spells tuples and numpy scalars
    write_json(path, {**body, "digest": digest_of(body)}, compact=compact)


def read_record(path: Path) -> dict[str, Any]:
    """Read what `write_record` wrote, without its digest; layout and order of the text do not matter.

    Raises as `read_json`; CorruptDataError also where it does not match its digest.
    """
    body = read_json(path)
    try:
        if body.pop("digest") == digest_of(body):
            return dict(body)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):  # no object, or none of ours
        pass
    raise CorruptDataError(f"{path}: not the record that was written; {remedy_at(path)}")


def write_marker(folder: Path, item_name: str, payload: Mapping[str, Any]) -> None:
    """Declare an item done, durably; what it wrote must have been fsynced before. Raises CannotWriteError."""
    make_folder(folder)
    write_record(folder / f"{item_name}.json", {"item": item_name, "payload": dict(payload)}, compact=True)


def read_markers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the payloads of all finished items, by name. Raises UnavailableStoreError."""
    markers, paths = dict[str, dict[str, Any]](), list[Path]()
    with suppress(MissingDataError), read_errors(folder):
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != ".")
    for path in paths:
        with suppress(StorageError):
            body = read_record(path)
            if body.get("item") == path.stem:
                markers[path.stem] = body["payload"]
    return markers
