"""The settings that a run freezes in its folder, and what of them may differ when it is resumed, or rows are added."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline.config.parsers import is_address, text
from pipeline.config.settings import SETTINGS, Loaded, get, parse_value, with_value
from pipeline.config.toml_files import read_toml, toml_value
from pipeline.config.train_config import TrainConfig
from pipeline.errors import ConfigMismatchError


def to_toml(config: TrainConfig) -> str:
    """Return the configuration as TOML; values left to be found from the data are omitted, and those of one start."""
    usual = TrainConfig("").resources
    config = with_value(config, "resources.time_limit", usual.time_limit)
    if is_address(config.resources.scheduler):
        config = with_value(config, "resources.scheduler", usual.scheduler)
    lines = [f"dataset = {toml_value(config.dataset)}"]
    section = ""
    for key in SETTINGS:
        head, _, name = key.rpartition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        if get(config, key) is not None:
            lines.append(f"{name} = {toml_value(get(config, key))}")
    return "\n".join(lines) + "\n"


def from_toml(path: Path) -> TrainConfig:
    """Return the configuration that `to_toml` wrote; ConfigError if damaged.

    The address of a scheduler is not taken from a file: somebody else may listen there.
    """
    flat = read_toml(path)
    config = TrainConfig(dataset=text(flat.pop("dataset", "")))
    for key, value in flat.items():
        if not (key == "resources.scheduler" and is_address(value)):
            config = with_value(config, key, parse_value(key, value, path.name))
    return config


def resumed(stored: TrainConfig, loaded: Loaded) -> TrainConfig:
    """Return the stored configuration with the resources asked for now.

    Raises ConfigMismatchError where anything else that was asked differs.
    """
    differing = _differing(stored, loaded)
    if differing:
        raise ConfigMismatchError(
            f"the run was started with other settings ({'; '.join(differing)}); drop them, or start a new run"
        )
    return _with_resources(stored, loaded)


def grown(stored: TrainConfig, loaded: Loaded) -> TrainConfig:
    """Return the configuration of a finished run for a new one that adds the rows asked for: all but these stays.

    Raises ConfigMismatchError where anything but resources was asked and differs.
    """
    new: dict[str, Any] = {"data.add_rows": (stored.data.add_rows or ()) + (loaded.config.data.add_rows or ())}
    new["solver.init_from"] = loaded.config.solver.init_from
    differing = _differing(stored, loaded, but=new)
    if differing:
        raise ConfigMismatchError(
            f"--add-rows: {loaded.config.solver.init_from} has other settings ({'; '.join(differing)}), which stay: "
            "drop them, or train on all rows anew"
        )
    for key, value in new.items():
        stored = with_value(stored, key, value)
    return _with_resources(stored, loaded)


def _differing(stored: TrainConfig, loaded: Loaded, but: Collection[str] = ()) -> list[str]:
    """Return what was asked and differs, beside resources and some keys, in words."""
    asked, differing = loaded.config, []
    if stored.dataset != asked.dataset:
        differing.append(f"dataset: {stored.dataset} in the run, {asked.dataset} asked")
    for key in sorted(loaded.explicit.difference(but)):
        before, now = get(stored, key), get(asked, key)
        if key == "data.add_rows" and before and now:
            before = before[-len(now) :]  # those of the runs before are not asked for again
        if not key.startswith("resources.") and before != now:
            differing.append(f"{key}: {before} in the run, {now} asked")
    return differing


def _with_resources(stored: TrainConfig, loaded: Loaded) -> TrainConfig:
    for key in loaded.explicit:
        if key.startswith("resources."):
            stored = with_value(stored, key, get(loaded.config, key))
    now, usual = loaded.config.resources, TrainConfig("").resources.scheduler
    if is_address(now.scheduler) and stored.resources.scheduler == usual:  # the environment's
        stored = with_value(stored, "resources.scheduler", now.scheduler)
    return with_value(stored, "resources.time_limit", now.time_limit)
