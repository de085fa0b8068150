"""JSON on the disk, and JSON that carries its own digest: records, manifests and done-markers all do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storage.disk_writes import write_file
from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError
from storage.plain_files import MAXIMUM_JSON_BYTES, parse_json, read_plain


def canonical_json(obj: object) -> bytes:
    """Encode as JSON with one spelling per value: sorted keys, no spaces, UTF-8; numpy scalars as numbers.

    Raises
    ------
    ValueError
        If a number is NaN or infinite.
    TypeError
        If a value has no JSON form.
    """
    text = json.dumps(
        obj, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=plain_value
    )
    return text.encode()


def plain_value(obj: object) -> object:
    """Return numpy scalars and mappings as what JSON knows; to be used as `json.dumps(default=...)`."""
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, Mapping):
        return dict(obj)
    raise TypeError(f"JSON: cannot store a {type(obj).__name__}")


def digest_of(obj: object) -> str:
    """Return the sha256 (hex) of the canonical JSON of `obj`."""
    return hashlib.sha256(canonical_json(obj)).hexdigest()


def with_digest(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return `body` in its stored spelling, whatever JSON makes of tuples and numpy scalars, and its digest.

    Raises
    ------
    ValueError, TypeError
        As `canonical_json`; ValueError also where `body` has a `digest` already.
    """
    if "digest" in body:
        raise ValueError("the key 'digest' is the record's own")
    stored = json.loads(canonical_json(body))
    return {**stored, "digest": digest_of(stored)}


def without_digest(stored: object) -> dict[str, Any]:
    """Return what `with_digest` was given. Raises ValueError where `stored` is no object or has another digest."""
    if not isinstance(stored, dict):
        raise ValueError("no JSON object")
    body = {key: value for key, value in stored.items() if key != "digest"}
    try:
        whole = stored.get("digest") == digest_of(body)
    except (ValueError, RecursionError):  # values that we never write, such as NaN
        whole = False
    if not whole:
        raise ValueError("its content does not match its own digest")
    return body


def write_json(path: Path, obj: object) -> None:
    """Write `obj` as indented JSON with sorted keys, durably.

    Raises
    ------
    ValueError, TypeError
        If it holds NaN, an infinity or something JSON does not know.
    CannotWriteError
        As `write_file`.
    """
    text = json.dumps(obj, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False, default=plain_value)
    write_file(path, text.encode() + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of bounded size.

    Raises
    ------
    MissingDataError, CorruptDataError, UnavailableStoreError
        If it does not exist, is no JSON, cannot be read.
    """
    try:
        return parse_json(read_plain(path, MAXIMUM_JSON_BYTES))
    except FileNotFoundError:
        raise MissingDataError(f"{path}: wanted to read it, it does not exist", path=str(path)) from None
    except OSError as error:
        raise UnavailableStoreError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error
    except ValueError as error:
        raise CorruptDataError(f"{path}: not valid JSON ({error}); restore or remove it", file=str(path)) from None


def write_record(path: Path, body: Mapping[str, Any]) -> None:
    """Write a JSON object that programs read back, durably, with the digest of its content under `digest`.

    Raises
    ------
    ValueError, TypeError, CannotWriteError
        As `with_digest` and `write_json`.
    """
    write_json(path, with_digest(body))


def read_record(path: Path, *, remedy: str = "restore it from a copy") -> dict[str, Any]:
    """Read what `write_record` wrote, without its digest; layout and order of the text do not matter.

    Raises
    ------
    MissingDataError, CorruptDataError, UnavailableStoreError
        As `read_json`; CorruptDataError, ending with `remedy`, also where the content does not match its digest.
    """
    try:
        return without_digest(read_json(path))
    except CorruptDataError as error:
        raise CorruptDataError(f"{str(error).partition(';')[0]}; {remedy}", file=str(path)) from None
    except ValueError:
        raise CorruptDataError(f"{path}: its content does not match its own digest; {remedy}", file=str(path)) from None
