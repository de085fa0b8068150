"""Done-markers: one small committed file per finished item, so that a resumed run never does it again.

A marker carries its own digest. One that is damaged counts as not done: the item is done again, which is
always safe, and the reader is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.disk_writes import make_folder, write_file
from storage.errors import CorruptDataError, UnavailableStoreError
from storage.manifest import check_plain_name
from storage.plain_files import MAXIMUM_JSON_BYTES, parse_json, read_plain
from storage.records import canonical_json, with_digest, without_digest

_SUFFIX = ".json"


class Markers(dict[str, dict[str, Any]]):
    """Payload by item name; `warnings` says, one line each, which markers were damaged and not counted."""

    def __init__(self, payloads: Mapping[str, dict[str, Any]], warnings: tuple[str, ...]) -> None:
        super().__init__(payloads)
        self.warnings = warnings


def write_marker(folder: Path, item_name: str, payload: Mapping[str, Any]) -> None:
    """Declare an item done, durably. What it wrote must have been fsynced before.

    Raises
    ------
    ValueError
        If the item's name is no plain file name.
    CannotWriteError
        If the marker cannot be written.
    """
    if "/" in check_plain_name(item_name) or item_name.startswith("."):
        raise ValueError(f"marker: wanted a plain item name, found {item_name!r}")
    body = {"item": item_name, "payload": dict(payload)}
    make_folder(folder)
    write_file(folder / (item_name + _SUFFIX), canonical_json(with_digest(body)) + b"\n")


def read_markers(folder: Path) -> Markers:
    """Return the payloads of all finished items; a folder that does not exist has none.

    Raises
    ------
    UnavailableStoreError
        If the folder exists and cannot be listed.
    """
    payloads: dict[str, dict[str, Any]] = {}
    warnings = []
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return Markers({}, ())
    except OSError as error:
        raise UnavailableStoreError(f"{folder}: cannot be listed ({error.strerror})", path=str(folder)) from error
    for path in paths:
        if path.suffix != _SUFFIX:
            continue
        item_name = path.name.removesuffix(_SUFFIX)
        try:
            payloads[item_name] = _read_marker(path, item_name)
        except (ValueError, TypeError, KeyError, OSError, RecursionError, CorruptDataError) as error:
            warnings.append(f"{path}: damaged marker ({error}); the item {item_name} is done again")
    return Markers(payloads, tuple(warnings))


def check_marker(path: Path) -> None:
    """Raise CorruptDataError where the marker in a file would not count as done."""
    try:
        _read_marker(path, path.name.removesuffix(_SUFFIX))
    except (ValueError, TypeError, KeyError, OSError, RecursionError) as error:
        raise CorruptDataError(f"{path}: damaged marker ({error})", file=str(path)) from None


def _read_marker(path: Path, item_name: str) -> dict[str, Any]:
    body = without_digest(parse_json(read_plain(path, MAXIMUM_JSON_BYTES)))
    if body["item"] != item_name or not isinstance(body["payload"], dict):
        raise ValueError("it belongs to another item")
    payload: dict[str, Any] = body["payload"]
    return payload
