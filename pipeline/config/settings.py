"""The configuration of a run, from defaults < jobs/mnist.toml (of MNIST) < --config < flags, and as a run freezes it.

Every way in which a TOML file is malformed is one error. Messages name a setting by its key, in backticks, with a value
or without: `centers.count`, `kernel.sigma2=auto`, and so the options `run_dir` and `resume`. Whoever shows a message
puts it into the words of its reader with `worded`.
"""

import ast
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from features.errors import MissingInputError
from pipeline.config.train_config import DATASETS, PLAIN, TrainConfig, is_address, is_plain, text
from pipeline.errors import ConfigError, ConfigMismatchError
from storage.errors import CorruptDataError
from storage.files import read_plain


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's {dotted key: value}; ConfigError where it cannot be read, MissingInputError without it."""
    try:
        nested = tomllib.loads(read_plain(path).decode())
    except RecursionError:
        raise ConfigError(f"cannot read configuration file {path}: it is nested too deeply") from None
    except FileNotFoundError:
        raise MissingInputError(f"{path}: no such configuration file") from None
    except (OSError, ValueError, CorruptDataError) as error:  # int raises ValueError for thousands of digits.
        told = getattr(error, "strerror", None) or str(error)  # The path is told already.
        reason = told.removeprefix(f"{path}: ").partition("; use sys.")[0]
        raise ConfigError(f"cannot read configuration file {path}: {reason}") from None
    return flat(nested)


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of sections, {"features": {"deskew": 1}}, by their dotted keys; dotted keys stay as they are."""
    by_key: dict[str, Any] = {}
    for name, value in nested.items():
        section = {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else None
        by_key |= {str(name): value} if section is None else section
    return by_key


_toml_value = partial(json.dumps, ensure_ascii=False)  # TOML and JSON write the values of settings alike.


@dataclass(frozen=True)
class Setting:
    """A setting: its parser, help text and flag, as `train_config.option` declares them."""

    parse: Callable[[Any], Any]
    help: str
    flag: str | None


def _declared() -> Iterator[tuple[str, Field[Any]]]:
    for outer in fields(TrainConfig):
        if outer.metadata:
            yield outer.name, outer
        elif outer.name != "dataset":
            section: Any = outer.default_factory
            yield from ((f"{outer.name}.{inner.name}", inner) for inner in fields(section))


SETTINGS: Mapping[str, Setting] = {key: Setting(**field.metadata) for key, field in _declared()}
# The options of the command, the arguments of `pipeline.train`, and the parameters of the estimators, by key.
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
    "seed": "random_state",
    "solver.intercept": "fit_intercept",
}
_SIZES = ("centers.count", "centers.budget", "centers.working_set")  # The file of a run has all three.
_NAMED = re.compile(r"`([a-z_]+(?:\.[a-z_0-9]+)?)(?:=([^`]*))?`")


def worded(message: str, names: Mapping[str, str] = FLAGS) -> str:
    """Return a message with each setting as its reader gives it: by FLAGS, by ARGUMENTS or by PARAMETERS."""

    def given(found: re.Match[str]) -> str:
        key, text = found[1], found[2]
        if key not in SETTINGS and key not in names:  # A column may be called so.
            return found[0]
        if text is None:
            return names.get(key, key)
        if names is FLAGS:
            return f"{FLAGS[key]} {shlex.quote(text)}" if key in FLAGS else f"--set {shlex.quote(f'{key}={text}')}"
        value: Any = {"true": True, "false": False}.get(text, text)
        with suppress(ValueError, SyntaxError):  # Only numbers are values of Python as well.
            value = ast.literal_eval(text)
        if key not in names and names is ARGUMENTS:
            return f"settings={{{key!r}: {value!r}}}"
        return f"{names.get(key, key)}={value!r}"

    return _NAMED.sub(given, message).replace("} settings={", ", ")


def get(config: TrainConfig, key: str) -> Any:
    """Return the value of a dotted key."""
    return attrgetter(key)(config)


def with_value(config: TrainConfig, key: str, value: Any) -> TrainConfig:
    """Return the configuration with one dotted key changed."""
    section, _, name = key.rpartition(".")
    if not section:
        return replace(config, **{name: value})
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with several dotted keys changed."""
    for key, value in values.items():
        config = with_value(config, key, value)
    return config


def parse_value(key: str, value: Any, origin: str) -> Any:
    """Return the checked value of a setting. Raises ConfigError naming key, value and, if given, its origin."""
    if key not in SETTINGS:
        near = get_close_matches(key, [*SETTINGS, "dataset"], 1)
        advice = f"; did you mean {near[0]}?" if near else "; --print-config lists all of them"
        raise ConfigError(f"unrecognized setting {key!r:.80} in {origin}{advice}")
    try:
        return SETTINGS[key].parse(os.fspath(value) if isinstance(value, os.PathLike) else value)
    except (ValueError, TypeError, AttributeError) as error:
        reason = str(error) if str(error).startswith("must") else "must be another: it is of the wrong kind"
    is_told = origin in ("", FLAGS.get(key), ARGUMENTS.get(key))  # The name of the setting tells it.
    # A password does not belong there.
    shown = re.sub("[^'\"/]*@" if key == "resources.scheduler" else "$^", "...@", " ".join(repr(value).split()))
    found = f"{shown:.80}" + ("" if is_told else f" ({origin})")
    raise ConfigError(f"`{key}` {reason}; found {found}")


def _of_mnist() -> dict[str, tuple[Any, str]]:
    """Return the settings of jobs/mnist.toml; a wheel has a copy beside this module."""
    here = Path(__file__).resolve().parent
    files = (here.parents[1] / "jobs" / "mnist.toml", here / "mnist.toml")
    return _of_file(next(filter(Path.is_file, files)))


@dataclass(frozen=True)
class Loaded:
    """A configuration, the origin of every value, and the keys that the user set.

    anew : those keys, without the file of a run, which has every setting, asked for or not
    """

    config: TrainConfig
    origins: Mapping[str, str]
    explicit: frozenset[str]
    anew: frozenset[str]


def load(dataset: str, config_file: Path | None, assignments: Mapping[str, tuple[Any, str]]) -> Loaded:
    """Return the configuration: defaults < MNIST's < configuration file < assignments, of (text or value, origin).

    An empty dataset stands for the file's. The file of a run loses its number of candidates where another is asked for.
    """
    of_file = {} if config_file is None else _of_file(config_file)
    named, file = of_file.pop("dataset", (dataset, ""))
    if not (dataset or named):
        raise ConfigError("no data are named: give DATASET, or a configuration file that has `dataset`")
    try:
        config = TrainConfig(dataset=text(absolute_path(text(dataset or named))))
    except ValueError as error:
        raise ConfigError(f"dataset {dataset or named!r:.80}: {error}") from None
    if not isinstance(named, str) or absolute_path(named) != config.dataset:
        raise ConfigError(f"dataset = {named!r:.80} ({file}), but the command names {dataset}; drop one")
    repeats = all(key in of_file or get(TrainConfig(""), key) is None for key in SETTINGS)
    if repeats and not assignments.keys().isdisjoint(_SIZES):
        of_file = {key: of_file[key] for key in of_file if key not in _SIZES}
    origins, usual = dict.fromkeys(SETTINGS, "default"), _of_mnist() if config.dataset == "mnist" else {}
    for key, (value, origin) in [*usual.items(), *of_file.items(), *assignments.items()]:
        config = with_value(config, key, parse_value(key, value, origin))
        origins[key] = origin
    for key in ("data.test", "resources.features_dir"):
        value = get(config, key)
        if value not in (None, "none"):
            check_no_url(key, value)
            path = str(Path(value).expanduser().absolute())
            if not is_plain(path):
                raise ConfigError(f"{path!r} ({key}): {PLAIN}; rename the folder")
            config = with_value(config, key, path)
    explicit = frozenset([*of_file, *assignments])
    return Loaded(config, origins, explicit, frozenset(assignments) if repeats else explicit)


def _of_file(path: Path) -> dict[str, tuple[Any, str]]:
    found = {key: (value, path.name) for key, value in read_toml(path).items()}
    address, _ = found.get("resources.scheduler", ("", ""))
    if is_address(address):
        fault = "a file names no address, since what answers there can run code here"
        remedy = "drop it there, and give it with `resources.scheduler` if you trust it"
        raise ConfigError(f"resources.scheduler ({path.name}): {fault}; {remedy}")
    return found


def check_no_url(name: str, path: str) -> None:
    """Raise ConfigError for a URL in place of a path; the message hides it, as it may hold a secret."""
    if scheme := re.match(r"[a-z][a-z0-9+.-]*://", path, re.IGNORECASE):
        raise ConfigError(f"{name} is a URL ({scheme[0]}...); copy it to a disk first, and name the copy")


def absolute_path(dataset: str) -> str:
    """Return the absolute path of a dataset that is a path, a name as it is: a run may be resumed anywhere."""
    check_no_url("the dataset", dataset)
    is_name = dataset in DATASETS or not (os.sep in dataset or Path(dataset).suffix or Path(dataset).exists())
    return dataset if is_name else str(Path(dataset).absolute())


def lines(config: TrainConfig, origins: Mapping[str, str]) -> list[str]:
    """Return a line for every setting, with the origin of its value."""
    values = {key: "(from the data)" if get(config, key) is None else get(config, key) for key in origins}
    return [f"dataset = {config.dataset}", *(f"{key} = {values[key]}  # {origins[key]}" for key in origins)]


def to_toml(config: TrainConfig) -> str:
    """Return the configuration as TOML, without values that the data decide, and those of a single start."""
    usual = TrainConfig("").resources
    config = with_value(config, "resources.time_limit", usual.time_limit)
    if is_address(config.resources.scheduler):
        config = with_value(config, "resources.scheduler", usual.scheduler)
    lines = [f"dataset = {_toml_value(config.dataset)}"]
    section = ""
    for key in SETTINGS:
        head, _, name = key.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        if get(config, key) is not None:
            lines.append(f"{name} = {_toml_value(get(config, key))}")
    return "\n".join(lines) + "\n"


def from_toml(path: Path) -> TrainConfig:
    """Return the configuration that `to_toml` wrote, without a scheduler address. Raises ConfigError if damaged."""
    flat = read_toml(path)
    config = TrainConfig(dataset=text(flat.pop("dataset", "")))
    for key, value in flat.items():
        if not (key == "resources.scheduler" and is_address(value)):
            config = with_value(config, key, parse_value(key, value, path.name))
    return config


def resumed(stored: TrainConfig, loaded: Loaded) -> TrainConfig:
    """Return the stored configuration with the resources asked for now. Raises ConfigMismatchError elsewhere."""
    asked, differing = loaded.config, []
    if stored.dataset != asked.dataset:
        differing.append(f"dataset: {stored.dataset} in the run, {asked.dataset} asked")
    for key in sorted(loaded.explicit):
        before, now = get(stored, key), get(asked, key)
        if not key.startswith("resources.") and before != now:
            differing.append(f"{key}: {before} in the run, {now} asked")
    if differing:
        raise ConfigMismatchError(f"the run has other settings ({'; '.join(differing)}); drop them, or start a new run")
    changed = {key: get(asked, key) for key in loaded.explicit if key.startswith("resources.")}
    return with_values(stored, changed | {"resources.time_limit": asked.resources.time_limit})
