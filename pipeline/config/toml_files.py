"""Settings in TOML files, which may be anybody's: of bounded size, and every way to be malformed is one error."""

import tomllib
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from storage.errors import CorruptDataError
from storage.files import read_plain

MOST_TOML_BYTES = 2**18
MOST_DOTS = 200  # of one line: tomllib takes minutes over keys of many parts


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file as {dotted key: value}; ConfigError where it cannot be read."""
    try:
        content = read_plain(path, MOST_TOML_BYTES)
        if max(line.count(b".") for line in content.split(b"\n")) > MOST_DOTS:
            raise ValueError(f"a line has more than {MOST_DOTS} dots")
        nested = tomllib.loads(content.decode())
    except RecursionError:
        raise ConfigError(f"cannot read configuration file {path}: it is nested too deeply") from None
    except (OSError, ValueError, CorruptDataError) as error:  # all of tomllib's, and int's of thousands of digits
        reason = str(error).removeprefix(f"{path}: ").partition("; use sys.")[0]
        raise ConfigError(f"cannot read configuration file {path}: {reason}") from None
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def shown(value: object) -> str:
    """Return a value as it reads, cut short."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python spells out no number of thousands of digits
        return "a number of thousands of digits"


def toml_value(value: object) -> str:
    """Return a setting's value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    return repr(value)
