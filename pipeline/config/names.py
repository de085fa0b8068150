"""What settings are called: messages name them by their keys, in backticks, with a value or without.

`centers.count` and `kernel.sigma2=auto` are settings; `run_dir` and `resume` are the other options that messages name.
Whoever shows a message puts it into the words of its reader with `worded`.
"""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pipeline.config.settings import SETTINGS

# By key: the options of the command, the arguments of `pipeline.train`, and the parameters of the estimators.
FLAGS = {key: setting.flag for key, setting in SETTINGS.items() if setting.flag}
FLAGS |= {"run_dir": "--run-dir", "resume": "--resume"}
ARGUMENTS = {key: flag.removeprefix("--").replace("-", "_") for key, flag in FLAGS.items()}
PARAMETERS = ARGUMENTS | {
    "centers.count": "n_centers",
    "centers.columns": "columns",
    "data.standardise": "standardise",
    "data.deform": "deform",
    "features.deskew": "deskew",
    "kernel.scale": "feature_scale",
    "solver.intercept": "fit_intercept",
}
_NAMED = re.compile(r"`([a-z_]+(?:\.[a-z_0-9]+)?)(?:=([^`]*))?`")


def worded(message: str, names: Mapping[str, str] = FLAGS) -> str:
    """Return a message with each setting as its reader gives it: by FLAGS, by ARGUMENTS or by PARAMETERS."""

    def given(found: re.Match[str]) -> str:
        key, text = found[1], found[2]
        if key not in SETTINGS and key not in names:  # a column may be called so
            return found[0]
        if text is None:
            return names.get(key, key)
        if names is FLAGS:
            return f"{FLAGS[key]} {text}" if key in FLAGS else f"--set {shlex.quote(f'{key}={text}')}"
        value: Any = text
        with suppress(ValueError, KeyError):  # a text may stand for a value, such as greedy:K
            value = SETTINGS[key].parse(text)
        if key not in names and names is ARGUMENTS:
            return f"settings={{{key!r}: {value!r}}}"
        return f"{names.get(key, key)}={value!r}"

    return _NAMED.sub(given, message).replace("} settings={", ", ")
