"""Settings: where they come from, what is refused, and that files say what was meant."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import config as configuration
from pipeline.config import SETTINGS, TrainConfig, get, load, with_value
from pipeline.errors import ConfigError
from pipeline.setting_types import byte_size


def test_layers_override_each_other_in_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[solver]\npenalty = 0.5\ntolerance = 1e-5\n")
    loaded = load("mnist", file, {"solver.penalty": ("0.25", "--penalty")})
    config, origins = loaded.config, loaded.origins
    assert (config.solver.penalty, origins["solver.penalty"]) == (0.25, "--penalty")
    assert (config.solver.tolerance, origins["solver.tolerance"]) == (1e-5, "mine.toml")
    assert (config.kernel.sigma2, origins["kernel.sigma2"]) == (4.0, "mnist.toml")
    assert (config.statistics.hold_out, origins["statistics.hold_out"]) == (0.1, "default")
    assert loaded.explicit == {"solver.penalty", "solver.tolerance"}


def test_the_environment_names_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:8786")
    loaded = load("digits", None, {})
    assert (loaded.config.resources.scheduler, loaded.origins["resources.scheduler"]) == (
        "tcp://127.0.0.1:8786",
        "DASK_SCHEDULER_ADDRESS",
    )
    assert load("digits", None, {"resources.scheduler": ("serial", "x")}).config.resources.scheduler == "serial"


def test_paths_are_absolute_and_names_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("mine.csv", None, {}).config.dataset == str(tmp_path / "mine.csv")
    assert load("digits", None, {}).config.dataset == "digits"
    assert load("digits", None, {}).config.resources.features_dir == str(tmp_path / "runs" / "features")


def test_a_file_may_name_the_dataset_but_not_another(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('dataset = "digits"\n')
    assert load("digits", file, {}).config.dataset == "digits"
    with pytest.raises(ConfigError, match="the command names mnist"):
        load("mnist", file, {})


def test_mnist_defaults_are_the_papers_setting() -> None:
    config = load("mnist", None, {}).config
    assert (config.centers.count, config.kernel.sigma2, config.solver.penalty, config.seed) == (1000, 4.0, 0.01, 0)


BAD = [
    ("kernel.sigma2", "0"),
    ("kernel.sigma2", "-1"),
    ("kernel.sigma2", "nan"),
    ("solver.penalty", "0"),
    ("solver.penalty", "inf"),
    ("solver.penalty", "path:1:2:5"),
    ("solver.penalty", "path:max:0.1"),
    ("solver.penalty", "path:max:0.1:1"),
    ("solver.coupling", "both"),
    ("solver.refit", "lasso"),
    ("solver.tolerance", "1"),
    ("solver.max_sweeps", "0"),
    ("solver.max_sweeps", "1.5"),
    ("solver.schedule", "random"),
    ("centers.count", "0"),
    ("centers.count", "some"),
    ("centers.count", True),
    ("statistics.hold_out", "0.95"),
    ("features.cells", "14,0"),
    ("data.standardise", "maybe"),
    ("resources.memory_limit", "2 potatoes"),
    ("resources.workers", "0"),
    ("resources.scheduler", "carrier-pigeon"),
    ("seed", "-1"),
    ("seed", str(2**63)),
    ("seed", [1]),
]


@pytest.mark.parametrize(("key", "value"), BAD)
def test_bad_values_are_refused_with_key_value_and_origin(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load("digits", None, {key: (value, "--somewhere")})
    assert key in str(caught.value)
    assert "--somewhere" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("solver.penalty", "small", "must be a number above 0, auto, or path:FROM:TO:N"),
        ("solver.penalty", "path:x:1:5", "must be a number above 0, auto, or path:FROM:TO:N"),
        ("solver.penalty", "path:max:0.1:x", "must be a number above 0, auto, or path:FROM:TO:N"),
        ("solver.tolerance", "tiny", "must be a number above 0 and below 1"),
        ("seed", "x", "must be a whole number of at least 0"),
        ("resources.workers", "2.5", "must be a whole number of 1 to 4096"),
    ],
)
def test_what_is_no_number_is_told_what_would_do(key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("digits", None, {key: (value, "--somewhere")})
    assert words in str(caught.value)


def test_unknown_keys_name_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "typo.toml"
    file.write_text("[solver]\npenatly = 1\n")
    with pytest.raises(ConfigError, match=r"solver\.penatly.*typo\.toml.*solver\.penalty"):
        load("digits", file, {})


def test_malformed_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("[solver\n")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load("digits", file, {})
    with pytest.raises(ConfigError, match="cannot read"):
        load("digits", tmp_path / "absent.toml", {})


VALUES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**63 - 1),
        "solver.penalty": st.floats(1e-300, 1e300),
        "centers.count": st.one_of(st.just("all"), st.integers(1, 10**9)),
        "data.target": st.one_of(st.none(), st.text(min_size=1, max_size=20).filter(lambda t: t != "auto")),
        "data.standardise": st.sampled_from([None, True, False]),
        "features.cells": st.lists(st.integers(1, 99), min_size=1, max_size=4).map(tuple),
        "resources.memory_limit": st.one_of(st.none(), st.integers(1, 2**50)),
    }
)


@given(values=VALUES, dataset=st.text(min_size=1, max_size=30))
def test_toml_round_trip(tmp_path_factory: pytest.TempPathFactory, values: dict, dataset: str) -> None:
    config = TrainConfig(dataset=dataset)
    for key, value in values.items():
        config = with_value(config, key, value)
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    try:
        path.write_text(configuration.to_toml(config), encoding="utf-8", newline="")
    except UnicodeEncodeError:
        return  # lone surrogates cannot be in a path or a column name that reached us
    assert configuration.from_toml(path) == config


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2**31), ("800MB", 8 * 10**8), ("4096", 4096), ("1.5 GiB", 3 * 2**29)]
)
def test_byte_sizes(text: str, size: int) -> None:
    assert byte_size(text) == size


def test_every_setting_parses_its_own_default() -> None:
    config = TrainConfig(dataset="digits")
    for key, setting in SETTINGS.items():
        assert setting.parse(get(config, key)) == get(config, key), key
