"""The table of all settings on the page of options, made from the settings themselves."""

from collections.abc import Iterator

from pipeline.config.command_line import UNSAFE
from pipeline.config.settings import SETTINGS, schema

GROUPS = {
    "": "The whole run",
    "data": "Data",
    "features": "Features of images",
    "centers": "Candidates",
    "kernel": "Kernel",
    "statistics": "Statistics",
    "solver": "Penalty, selection and solver",
    "resources": "Resources",
}


def settings_page() -> str:
    """Return Markdown with a section for each group and a row for each setting."""
    return "\n".join(f"## {title}\n\n{HEAD}\n" + "".join(_rows(group)) for group, title in GROUPS.items())


HEAD = "| setting | flag | values | default | what it does |\n|---|---|---|---|---|"


def _rows(group: str) -> Iterator[str]:
    properties = schema()["properties"]
    for key, setting in SETTINGS.items():
        section, _, name = key.rpartition(".")
        if section == group:
            rule = properties[section]["properties"][name] if section else properties[name]
            word = getattr(setting.parse, "word", None)
            default = f"`{word if word else _shown(rule['default'])}`"
            flag = f"`{setting.flag}`" if setting.flag else ""
            yield _row(f"`{key}`", flag, _values(rule, word), default, setting.help)
    if group == "resources":
        text = "The address tcp://HOST:PORT of a dask scheduler without TLS. Whoever answers there runs code as you."
        yield _row("", f"`{UNSAFE}`", "an address", "", text)


def _row(*cells: str) -> str:
    bar = r"\|"
    return f"| {' | '.join(cell.replace('|', bar) for cell in cells)} |\n"


def _values(rule: dict, word: str | None) -> str:
    """Return which values a setting takes: its words, or the kind of value, and the word of its default."""
    if "enum" in rule:
        return ", ".join(f"`{one}`" for one in rule["enum"])
    kinds = [KINDS[one] for one in rule["type"] if not (one == "string" and {"integer", "number"} & {*rule["type"]})]
    return " or ".join(kinds) + (f", or `{word}`" if word else "")


KINDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "array": "list"}


def _shown(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
