"""Write the tables of all settings into the page of options, from the settings themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.config.settings import SETTINGS, get
from pipeline.config.train_config import OneOf, TrainConfig

PAGE, MARK = Path(__file__).with_name("options.md"), "<!-- all settings: python docs/settings_page.py -->\n"
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


HEAD = "| setting, flag | values | default | what it does |\n|---|---|---|---|"


def _rows(group: str) -> Iterator[str]:
    for key, setting in SETTINGS.items():
        if key.rpartition(".")[0] == group:
            word = getattr(setting.parse, "word", None)
            text, default = setting.help, f"`{word if word else _shown(get(TrainConfig(''), key))}`"
            if word == "default":  # a rule, which ends the text
                text, default = text.removesuffix(")").split(" (default: ")
            flag = f"<br>`{setting.flag}`" if setting.flag else ""
            yield _row(f"`{key}`{flag}", _values(setting.parse), default, _sentence(text))


def _row(*cells: str) -> str:
    bar = r"\|"
    return f"| {' | '.join(cell.replace('|', bar) for cell in cells)} |\n"


def _values(parse: Any) -> str:
    """Return which values a setting takes, without the word of its default."""
    parse = getattr(parse, "parse", parse)
    if not isinstance(parse, OneOf):
        return KINDS[parse.__qualname__.partition(".")[0]]
    others = [] if parse.otherwise is None else [_values(parse.otherwise)]
    return ", ".join([*others, *(f"`{one}`" for one in parse.choices)])


KINDS = {
    "truth": "`true`, `false`",
    "whole": "whole number",
    "real": "number",
    "text": "text",
    "column": "name, position",
    "deformation": "names with numbers, `flip`",
    "picture_size": "whole number, `HEIGHTxWIDTH`",
    "address": "`tls://HOST:PORT`",
    "byte_size": "size",
    "duration": "time",
    "name_list": "names",
    "penalty": "number, `max:F`, `auto`, `none`",
    "selection": "`none`, `greedy:K`",
    "categories": "`onehot`, `onehot:A,B`",
}


def _sentence(text: str) -> str:
    return f"{text[0].upper() if text[0].isascii() else text[0]}{text[1:]}."


def _shown(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


if __name__ == "__main__":
    PAGE.write_text(
        PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + settings_page(), encoding="utf-8"
    )
