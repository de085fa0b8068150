"""Settings: where they come from, what is refused, and that files say what was meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import train
from pipeline.__main__ import main as slkl
from pipeline.config.command_line import parse
from pipeline.config.settings import ARGUMENTS, PARAMETERS, from_toml, load, resumed, to_toml, with_value, worded
from pipeline.config.train_config import PLAIN, TrainConfig, byte_size, duration
from pipeline.errors import ConfigError
from pipeline.prediction.predictor import ExampleRequest, Predictor, open_examples


def test_layers_override_each_other_in_order(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('dataset = "mnist"\n[solver]\npenalty = 0.5\ntolerance = 1e-5\n')
    loaded = load("mnist", file, {"solver.penalty": ("0.25", "--penalty")})
    config, origins = loaded.config, loaded.origins
    assert (config.solver.penalty, origins["solver.penalty"]) == (0.25, "--penalty")
    assert (config.solver.tolerance, origins["solver.tolerance"]) == (1e-5, "mine.toml")
    assert (config.features.deskew, origins["features.deskew"]) == (1.0, "mnist.toml")
    assert (config.statistics.hold_out, origins["statistics.hold_out"]) == (0.1, "default")
    assert loaded.explicit == {"solver.penalty", "solver.tolerance"}


def asked(*words):
    arguments = parse(["digits", *words])
    return load("digits", arguments.config, arguments.assignments)


def test_the_address_of_a_scheduler_is_that_of_this_start(tmp_path):
    """What answers there runs code here: no file may name it, neither somebody's settings nor a run's folder."""
    address, mine = "tls://127.0.0.1:9", tmp_path / "mine.toml"
    mine.write_text(f'dataset = "digits"\n[resources]\nscheduler = "{address}"\n')
    with pytest.raises(ConfigError, match=r"mine.toml.*no address.*`resources.scheduler` if you trust it"):
        asked("--config", str(mine), "--scheduler", "serial")
    assert from_toml(mine).resources.scheduler == "threads"
    started = asked("--scheduler", address)
    assert (started.config.resources.scheduler, started.origins["resources.scheduler"]) == (address, "--scheduler")
    mine.write_text(to_toml(started.config))
    assert "://" not in mine.read_text()
    stored = from_toml(mine)
    assert resumed(stored, asked()).resources.scheduler == "threads"
    assert resumed(stored, started).resources.scheduler == address
    with pytest.raises(ConfigError, match=r"must be tls://HOST:PORT.* found"):
        asked("--scheduler", "tcp://127.0.0.1:9")


def test_paths_are_absolute_and_names_are_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("mine.csv", None, {}).config.dataset == str(tmp_path / "mine.csv")
    assert load("digits", None, {}).config.dataset == "digits"
    assert load("digits", None, {}).config.resources.features_dir == str(tmp_path / "runs" / "features")


@pytest.mark.parametrize("url", ["s3://KEY:HIDDEN@bucket/t.csv", "s3+x://host/t.csv?sign=HIDDEN"])
def test_a_url_is_refused_and_not_told(url):
    loads = [lambda: load(url, None, {}), lambda: load("digits", None, {"data.test": (url, "--test")})]
    for open_it in (*loads, lambda: open_examples(ExampleRequest(url, labelled=False), Predictor(None))):
        with pytest.raises(ConfigError, match="copy it to a disk first") as refused:
            open_it()
        assert "HIDDEN" not in str(refused.value)


BAD: dict[str, tuple[object, ...]] = {
    "kernel.sigma2": ("0", "-1", "nan"),
    "solver.penalty": ("0", "inf", "path:1:2:5", "max:2"),
    "solver.select": ("greedy:0", "greedy"),
    "solver.tolerance": ("1",),
    "solver.max_sweeps": ("0", "1.5"),
    "centers.count": ("some", True),
    "statistics.hold_out": ("0.95",),
    "features.power": ("0", "1.1"),
    "features.deskew": ("-0.1", "1.01", "nan", "half", True),
    "data.standardise": ("maybe",),
    "data.deform": ("rotation:181", "rotation", "flip:1", "scale:0.1,scale:0.2", "turn:3", "shift:x", ""),
    "data.test_fraction": ("0", "1"),
    "resources.memory_limit": ("2 potatoes",),
    "resources.workers": ("0",),
    "resources.scheduler": ("pigeon", "tls://", "tls://host", "tcp://:8786", "tls://me:SECRET@host:1"),
    "seed": ("-1", str(2**63), [1]),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in BAD for value in BAD[key]])
def test_bad_values_are_refused_with_key_and_origin_and_what_would_do(key, value):
    with pytest.raises(ConfigError, match=f"{key}.* must .*--somewhere") as caught:
        load("digits", None, {key: (value, "--somewhere")})
    assert "\n" not in str(caught.value)
    assert "SECRET" not in str(caught.value)


LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"])  # others are refused as they come
VALUES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**63 - 1),
        "solver.penalty": st.floats(1e-300, 1e300),
        "centers.count": st.one_of(st.just("all"), st.integers(1, 10**9)),
        "data.target": st.one_of(st.none(), st.text(LETTERS, min_size=1, max_size=20).filter(lambda t: t != "auto")),
        "data.standardise": st.sampled_from([None, True, False]),
        "features.deskew": st.floats(0, 1),
        "features.power": st.floats(0.1, 1),
        "resources.memory_limit": st.one_of(st.none(), st.integers(1, 2**50)),
    }
)


@given(values=VALUES, dataset=st.text(LETTERS, min_size=1, max_size=30))
def test_toml_round_trip(tmp_path_factory, values, dataset):
    config = TrainConfig(dataset=dataset)
    for key, value in values.items():
        config = with_value(config, key, value)
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8", newline="")
    assert from_toml(path) == config


def test_sizes_and_times_have_units():
    sizes = {"2GiB": 2**31, "800MB": 8 * 10**8, "4096": 4096, "1.5 GiB": 3 * 2**29}
    assert {text: byte_size(text) for text in sizes} == sizes
    assert [duration(text) for text in ("90", "55m", "12h", "2 d")] == [90.0, 3300.0, 43_200.0, 172_800.0]


@pytest.mark.parametrize(
    "word", ["a\0.npz", "caf\udce9.npz", "a\nb.npz", "\x1b[2J", "\a", "a\x7f", "\x9b31m", "a\u202e.npz"]
)
def test_names_that_no_file_or_no_text_has(word, tmp_path, capsys):
    data, place = str(tmp_path / "d.npz"), str(tmp_path / word)
    for arguments in ([place], [data, "--run-dir", place], [data, "--features-dir", place], [data, "--config", place]):
        assert train.main(arguments) == 2
        assert "without control characters" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="UTF-8"):
        load(place, None, {})
    for arguments in (["status", place], ["predict", data, place, "--out", data], ["report", data, "--out", place]):
        assert slkl(arguments) == 2
        assert PLAIN in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_message_names_settings_as_its_reader_gives_them():
    message = "`solver.select=greedy:9`: `centers.count`, `data.missing=median` `data.drop=a b`, `resume=auto`, `a.b=1`"
    shell = "--select greedy:9: --centers, --set data.missing=median --set 'data.drop=a b', --resume auto, `a.b=1`"
    assert worded(message) == shell
    in_python = "select='greedy:9': centers, settings={'data.missing': 'median', 'data.drop': 'a b'}, resume='auto'"
    assert worded(message, ARGUMENTS) == f"{in_python}, `a.b=1`"
    assert worded("`kernel.scale=none`, `centers.count`", PARAMETERS) == "feature_scale='none', n_centers"
