"""The JSON Schema of configuration files, made from the table of settings."""

from dataclasses import Field, fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pipeline.config.parsers import (
    OneOf,
    Optionally,
    byte_size,
    duration,
    name_list,
    texts,
    whole_list,
    widths,
)
from pipeline.config.train_config import TrainConfig

_JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", tuple: "array", type(None): "null"}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file: sections, types, words allowed, defaults and help."""
    properties: dict[str, Any] = {"dataset": {"type": "string", "description": "name or path, as on the command line"}}
    for outer in fields(TrainConfig):
        if "parse" in outer.metadata:
            properties[outer.name] = _property(TrainConfig, outer)
        elif outer.name != "dataset":
            kind = outer.default_factory
            inside = {inner.name: _property(kind, inner) for inner in fields(kind)}  # type: ignore[arg-type]
            properties[outer.name] = {"type": "object", "properties": inside, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "slkl: settings of pipeline.train, as in --config FILE.toml",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _property(kind: Any, setting: Field[Any]) -> dict[str, Any]:
    """Return the schema of one setting: what its annotation and its parser say."""
    hint, parse = get_type_hints(kind)[setting.name], setting.metadata["parse"]
    types = {_JSON_TYPES[get_origin(one) or one] for one in get_args(hint) if isinstance(hint, UnionType)}
    types = (types or {_JSON_TYPES[get_origin(hint) or hint]}) - {"null"}
    word = parse.word if isinstance(parse, Optionally) else None
    parse = parse.parse if isinstance(parse, Optionally) else parse
    described: dict[str, Any] = {"description": setting.metadata["help"]}
    if isinstance(parse, OneOf):
        described["enum"] = [*parse.choices, *([word] if word else [])]
    else:
        # Sizes and times are numbers or texts such as 2GiB and 55m, lists may be texts with commas; others are words.
        is_text = parse in (byte_size, duration, name_list, texts, whole_list, widths)
        described["type"] = sorted(types | ({"string"} if word or is_text else set()))
    return described | ({} if setting.default is None else {"default": setting.default})
