"""The parameters of the estimators are settings of a run, and messages of a fit name them as such."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from numbers import Integral
from typing import Any

from scipy.linalg import LinAlgError

from features.errors import DataError, UsageError
from pipeline.config.settings import PARAMETERS, parse_value, with_values, worded
from pipeline.config.train_config import TrainConfig
from pipeline.errors import ConfigError, InvalidDataError

NONE_MEANS = dict.fromkeys(("feature_scale", "refit", "select"), "none")  # Else None is left to the data.
_KEYS = {name: key for key, name in PARAMETERS.items()}
_OF_ARRAYS = {"resources.features_dir": "none"}


def settings_of(machine: Any) -> tuple[TrainConfig, frozenset[str]]:
    """Return the settings that the parameters of an estimator are, and the keys of those not at their defaults."""
    if not (machine.callback is None or callable(machine.callback)):
        raise ValueError(f"callback must be a function or None; found {machine.callback!r}")
    if not isinstance(machine.verbose, Integral) or int(machine.verbose) < 0:
        raise ValueError(f"verbose must be 0 or 1; found {machine.verbose!r}")
    values, explicit = dict[str, Any](_OF_ARRAYS), set[str]()
    for parameter in fields(machine):
        name, value = parameter.name, getattr(machine, parameter.name)
        if name not in _KEYS or (name == "class_weight" and not isinstance(value, str)):
            continue
        setting = NONE_MEANS.get(name) if value is None else value
        if setting is not None or parameter.default is not None:
            values[_KEYS[name]] = parse_value(_KEYS[name], setting, "")
        if value != parameter.default:
            explicit.add(_KEYS[name])
    return with_values(TrainConfig("X"), values), frozenset(explicit)


@contextmanager
def as_value_error() -> Iterator[None]:
    """Raise as ValueError what the steps of a fit say of data and settings, in the words of the parameters."""
    try:
        yield
    except (ConfigError, InvalidDataError, DataError, UsageError, LinAlgError) as error:
        raise ValueError(worded(getattr(error, "message", str(error)), PARAMETERS)) from None


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn in the words of the parameters, at the line outside of this package that called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("pipeline.", "contextlib")):
        frame, level = frame.f_back, level + 1
    warnings.warn(worded(message, PARAMETERS), category, stacklevel=level)
