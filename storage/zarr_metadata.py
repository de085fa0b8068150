"""zarr v3 metadata, checked without opening any data.

A store is untrusted until its metadata has passed here: format 3, dtypes and codecs from a list, no attributes that
change values. A hostile v2 store has run code through its filters; v2 is refused before a codec is looked up.
Format: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

import base64
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import CorruptDataError, MissingDataError
from storage.files import parse_json, read_errors, read_plain

NODE_FILE = "zarr.json"
OUR_DTYPES = ("float32", "float64", "int64", "int32", "uint64", "uint8")
FOREIGN_DTYPES = (*OUR_DTYPES, "bool", "float16", "int8", "int16", "uint16", "uint32")
TEXT_DTYPES = ("string", "fixed_length_utf32", "null_terminated_bytes")
COMPRESSORS = ("zstd", "gzip", "blosc")
FOREIGN_CODECS = ("bytes", "transpose", "crc32c", *COMPRESSORS)
# Attributes by which stored numbers stand for others, in small letters: those of the CF conventions for packed data,
# missing data and valid ranges, and those of GDAL.
CHANGING_ATTRIBUTES = {
    *("scale_factor", "add_offset", "scale", "offset", "_unsigned"),
    *("_fillvalue", "missing_value", "missingvalue", "fillvalue", "fill_value", "nodata", "_nodata"),
    *("valid_min", "valid_max", "valid_range", "calendar", "compress"),
}
_V2_FILES = (".zgroup", ".zarray", ".zattrs", ".zmetadata")


def read_nodes(root: Path) -> dict[str, dict[str, Any]]:
    """Read the metadata of every array of a store; keys are paths such as "train/X", "" of a lone array.

    Raises MissingDataError where there is no store, CorruptDataError where it is zarr v2 or malformed.
    """
    if not root.is_dir():
        raise MissingDataError(f"{root}: wanted a zarr v3 folder, it does not exist")
    if not (root / NODE_FILE).exists():
        _refuse_v2(root)
    node = _read_node(root)
    return {"": node} if node["node_type"] == "array" else dict(_walk(root, ""))


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or not entry.is_dir() or not (entry / NODE_FILE).exists():
            _refuse_v2(entry)
            continue
        node = _read_node(entry)
        if node["node_type"] == "array":
            yield prefix + entry.name, node
        else:
            yield from _walk(entry, f"{prefix}{entry.name}/")


def _refuse_v2(folder: Path) -> None:
    if any((folder / name).exists() for name in _V2_FILES):
        raise invalid(folder, "it is zarr v2; only v3 is read: rewrite it with zarr.create_array(zarr_format=3)")


def _read_node(folder: Path) -> dict[str, Any]:
    path = folder / NODE_FILE
    try:
        with read_errors(path):
            node = parse_json(read_plain(path))
    except MissingDataError:
        raise invalid(path, "missing") from None
    except ValueError as error:
        raise invalid(path, f"not valid JSON: {error}") from None
    if not isinstance(node, dict) or node.get("zarr_format") != 3 or type(node.get("zarr_format")) is not int:
        raise invalid(path, "not zarr format 3")
    if node.get("node_type") not in ("array", "group"):
        raise invalid(path, f"node type {node.get('node_type')!r}")
    return node


def check_our_array(where: Path, node: dict[str, Any]) -> tuple[tuple[int, ...], str, int]:
    """Return shape, dtype and chunk rows of an array exactly of the form that we write, else raise CorruptDataError."""
    shape, chunk_shape = _grid(where, node, OUR_DTYPES)
    if node != array_node(shape, node["data_type"], chunk_shape[0]):
        raise invalid(where, "not in the form that we write")
    return shape, node["data_type"], chunk_shape[0]


def array_node(shape: tuple[int, ...], dtype: str, chunk_rows: int) -> dict[str, Any]:
    """Return the metadata of an array of ours: chunks of whole rows, little endian, with crc32c."""
    # One byte has no byte order.
    raw = {"name": "bytes"} | ({} if dtype == "uint8" else {"configuration": {"endian": "little"}})
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk_rows, *shape[1:]]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [raw, {"name": "crc32c"}],
        "fill_value": 0,
        "attributes": {},
        "storage_transformers": [],
    }


def check_foreign_array(where: Path, node: dict[str, Any]) -> None:
    """Raise CorruptDataError where an array of others has a dtype, codec, grid or attribute that is not read."""
    _grid(where, node, FOREIGN_DTYPES)
    codecs = node.get("codecs")
    if not isinstance(codecs, list):
        raise invalid(where, "its codecs are no list")
    names = [str(codec.get("name") if isinstance(codec, dict) else codec)[:40] for codec in codecs]
    if "blosc" in names[:-1] and names[names.index("blosc") + 1 :] != ["crc32c"]:
        raise invalid(where, "wanted blosc as the last codec, or with crc32c after it")
    for name in names:
        if name == "sharding_indexed":
            raise invalid(where, "it is sharded, and a missing inner chunk would read as zeros; rewrite without shards")
        if name not in FOREIGN_CODECS:
            raise invalid(where, f"codec {name!r} is not one of {', '.join(FOREIGN_CODECS)}; rewrite it with one")
    attributes = node.get("attributes")
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        key = name.lower()
        is_other = key in ("scale", "offset") and not isinstance(value, int | float)  # the size of pixels, a word
        neutral = {"scale_factor": 1, "scale": 1, "add_offset": 0, "offset": 0}.get(key)
        leaves = is_other or value == neutral or _is_nan(value)
        if " since " in str(value).lower() if key == "units" else key in CHANGING_ATTRIBUTES and not leaves:
            found = f"its attribute {name} ({str(value)[:60]!r}) gives its numbers another meaning"
            raise invalid(where, f"{found}; write the values that are meant, without the attribute")


def _is_nan(value: object) -> bool:
    """Return whether an attribute is NaN: as a number, a text, or a float32 or float64 in base64, as xarray writes."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        try:
            data = base64.b64decode(str(value), validate=True)
            number = float(np.frombuffer(data, f"<f{len(data)}")[0]) if len(data) in (4, 8) else 0.0
        except ValueError:
            return False
    return math.isnan(number)


def _grid(where: Path, node: dict[str, Any], dtypes: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and chunk shape of an array of some dtypes, in chunks of one shape. Raises CorruptDataError."""
    dtype = node.get("data_type")
    if not isinstance(dtype, str) or dtype not in dtypes:
        name = str(dtype.get("name") if isinstance(dtype, dict) else dtype)[:60]
        remedy = "; number its words, alike in all parts" if name in TEXT_DTYPES else ""
        raise invalid(where, f"dtype {name!r} is not one of {', '.join(dtypes)}{remedy}")
    if node.get("storage_transformers") not in (None, []):
        raise invalid(where, "storage transformers are not supported")
    grid = node.get("chunk_grid")
    if not isinstance(grid, dict) or grid.get("name") != "regular" or not isinstance(grid.get("configuration"), dict):
        raise invalid(where, "wanted a regular chunk grid")
    shape = _lengths(where, node.get("shape"), 0)
    chunk_shape = _lengths(where, grid["configuration"].get("chunk_shape"), 1)
    if len(shape) != len(chunk_shape) or not shape:
        raise invalid(where, f"shape {str(shape)[:60]} and chunks {str(chunk_shape)[:60]} do not belong together")
    return shape, chunk_shape


def _lengths(where: Path, values: object, least: int) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and least <= value < 2**62 for value in values):
        raise invalid(where, f"{str(values)[:60]!r} is no list of lengths")
    return tuple(values)


def invalid(where: Path, reason: str) -> CorruptDataError:
    """Return the error that says why a store or an array is refused."""
    return CorruptDataError(f"{where}: not a store that can be read: {reason}")
