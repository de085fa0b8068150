"""The JSON Schema of configuration files: it takes what the parsers take, and refuses what they refuse."""

import json
import tomllib
from typing import Any

import pytest

import runs
from pipeline import train
from pipeline.config.settings import SETTINGS, get, load, schema, to_toml
from pipeline.config.train_config import TrainConfig

TYPES = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "array": list}


def faults(value: Any, rule: dict[str, Any], where: str = "") -> list[str]:
    """Return what does not fit, for the few words of JSON Schema that ours uses."""
    if rule.get("type") == "object":
        unknown = [f"{where}.{key}" for key in value if key not in rule["properties"]]
        return unknown + [
            fault
            for key, inner in rule["properties"].items()
            if key in value
            for fault in faults(value[key], inner, f"{where}.{key}")
        ]
    if "enum" in rule:
        return [] if value in rule["enum"] else [where]
    names = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    fits = any(isinstance(value, TYPES[name]) and (name == "boolean") == isinstance(value, bool) for name in names)
    return [] if fits else [where]


def test_the_command_writes_it(capsys):
    with pytest.raises(SystemExit) as ended:
        train.main(["--print-schema"])
    assert ended.value.code in (None, 0)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(schema()))


def test_every_setting_is_in_it_with_help_and_default():
    sections = schema()["properties"]
    for key, setting in SETTINGS.items():
        section, _, name = key.rpartition(".")
        rule = sections[section]["properties"][name] if section else sections[name]
        assert rule["description"] == setting.help
        assert rule.get("default") == get(TrainConfig("x"), key)


@pytest.mark.parametrize("path", sorted((runs.ROOT / "jobs").rglob("*.toml")), ids=lambda path: path.stem)
def test_the_named_runs_and_what_runs_write_fit(path):
    with path.open("rb") as stream:
        assert faults(tomllib.load(stream), schema()) == []
    written = to_toml(load("digits", path, {}).config)
    assert faults(tomllib.loads(written), schema()) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[solver]\ntolerence = 1e-3", ".solver.tolerence"),
        ('[solver]\nrefit = "lasso"', ".solver.refit"),
        ("[centers]\nworking_set = 1.5", ".centers.working_set"),
        ("[solver]\nintercept = 1", ".solver.intercept"),
        ('[data]\ntest_fraction = "some"', ".data.test_fraction"),
    ],
)
def test_it_refuses_what_the_parsers_refuse(text, where):
    assert faults(tomllib.loads(text), schema()) == [where]
