"""The configuration of a run: frozen dataclasses, filled from defaults < jobs/<name>.toml < --config < flags.

Every field carries its help text, its flag and its check, so that the command line, the TOML files, `--set`
and `--print-config` all speak of the same table. Nothing here imports numpy: `--help` stays instant.
"""

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.setting_types import (
    byte_size,
    center_count,
    duration,
    label,
    one_of,
    optional,
    penalty,
    real,
    scheduler,
    selection,
    text,
    truth,
    whole,
    whole_list,
    widths,
)

SCHEDULES = ("shrinking", "uniform")
STEPS = ("exact", "newton")
STOPS = ("gap", "paper")
COUPLINGS = ("one-vs-all", "shared")
REFITS = ("none", "ridge")
DATASETS = ("mnist", "usps", "boston", "abalone", "sinc", "digits", "synthetic")
FEATURES = ("auto", "sphog", "hog", "raw")
TASKS = ("multiclass", "binary", "regression")
RESUME = ("never", "auto", "require")


def option(default: Any, parse: Callable[[Any], Any], description: str, flag: str | None = None) -> Any:
    """Declare one setting: its default, its check (text or TOML value → value) and its help."""
    return field(default=default, metadata={"parse": parse, "help": description, "flag": flag})


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how they are split."""

    n_train: int | None = option(
        None, optional(whole(2), "auto"), "training rows (synthetic: how many to render; else: use the first)"
    )
    n_test: int | None = option(None, optional(whole(1), "auto"), "test rows, likewise")
    test_fraction: float = option(
        0.25, real(0, 1, above=True), "share of rows held back for testing where the data has no split"
    )
    target: str | None = option(
        None, optional(text, "auto"), "column of a .csv, or key of an .npz, that holds the target"
    )
    task: str | None = option(
        None, optional(one_of(*TASKS), "auto"), "multiclass, binary or regression; else found from the targets"
    )
    standardise: bool | None = option(
        None, optional(truth, "auto"), "z-score the inputs with the training part's moments"
    )
    positive: str | None = option(
        None, optional(label, "none"), "label that is set against all others: a binary task with labels 1 and -1"
    )
    noise: float | None = option(
        None, optional(real(0), "default"), "sinc: variance of the noise on the training targets (default: 0.1)"
    )


@dataclass(frozen=True)
class FeaturesConfig:
    """Which features are computed from the data."""

    name: str = option(
        "auto", one_of(*FEATURES), "sphog (2172 for 28x28 images), hog (scikit-image) or raw", "--features"
    )
    cells: tuple[int, ...] = option((14, 7, 4), whole_list, "cell sizes of hog, in pixels")
    orientations: int = option(12, whole(1, 360), "orientation bins of hog")


@dataclass(frozen=True)
class CentersConfig:
    """Which training points are candidates."""

    count: int | str = option(1000, center_count, "number of random candidate centers, or all", "--centers")
    list: str | None = option(
        None,
        optional(text, "none"),
        "file that lists the candidates' training rows, instead of a draw",
        "--center-list",
    )
    working_set: int | None = option(
        None, optional(whole(2), "auto"), "candidates with a Gram at once (default: all where memory allows)"
    )


@dataclass(frozen=True)
class KernelConfig:
    """The kernel and its widths."""

    name: str = option(
        "gaussian",
        one_of("gaussian", "polynomial", "intersection"),
        "gaussian; polynomial: (1 + x·z/σ²)^degree; intersection: Σ min(x, z) of histograms such as sphog",
        "--kernel",
    )
    degree: int = option(2, whole(1, 20), "of the polynomial kernel")
    sigma2: float | str | tuple[float, ...] | None = option(
        None,
        optional(widths, "default"),
        "σ² (default: 4 for image features, n_features/4 for raw tables); 1,2,4: every width at every candidate; "
        "median: of the squared distances; auto: of the lowest held-out error",
        "--sigma2",
    )
    precision: str = option("float32", one_of("float32", "float64"), "of kernel values; float64 for exact comparisons")


@dataclass(frozen=True)
class StatisticsConfig:
    """How the statistics are accumulated."""

    block_rows: int | None = option(
        None, optional(whole(1), "auto"), "rows computed at once (default: from the memory limit)", "--block-size"
    )
    hold_out: float = option(0.1, real(0, 0.9), "share of the training rows whose statistics are kept apart")


@dataclass(frozen=True)
class SolverConfig:
    """The problem's penalty and how it is solved."""

    penalty: float | str = option(
        0.01,
        penalty,
        "λν, the l1 penalty of the paper (τ² of the Lasso); auto: by held-out error; path:FROM:TO:N, FROM may be max",
        "--penalty",
    )
    coupling: str = option(
        "one-vs-all",
        one_of(*COUPLINGS),
        "one-vs-all, or shared: one kernel (and support) for all classes",
        "--coupling",
    )
    intercept: bool = option(False, truth, "fit an unpenalised intercept", "--intercept")
    select: str = option(
        "none",
        selection,
        "greedy:K chooses K centers for all classes, each by how much it lowers the least-squares error, without a "
        "penalty; greedy:auto as many as lower the held-out error",
        "--select",
    )
    refit: str = option("none", one_of(*REFITS), "ridge: least squares on the selected centers, or none", "--refit")
    tolerance: float = option(1e-3, real(0, 1, above=True), "relative duality gap to reach", "--tol")
    max_sweeps: int = option(
        1000, whole(1), "iterations (sweeps or Newton rounds) of a solve before giving up", "--max-sweeps"
    )
    schedule: str = option("shrinking", one_of(*SCHEDULES), "shrinking, or uniform (the paper's)", "--schedule")
    step: str = option("exact", one_of(*STEPS), "exact minimum along a coordinate, or newton (the paper's)", "--step")
    stop: str = option("gap", one_of(*STOPS), "gap, or paper: the paper's rule (needs schedule = uniform)")
    init_from: str | None = option(
        None, optional(text, "none"), "run or model folder whose weights the solves start from", "--init-from"
    )


@dataclass(frozen=True)
class Resources:
    """What the run may use; the only settings that may change when it is resumed."""

    scheduler: str = option(
        "threads", scheduler, "serial, threads, processes, or the address of a dask scheduler", "--scheduler"
    )
    workers: int | None = option(
        None, optional(whole(1, 4096), "auto"), "tasks at once (default: the processors at hand)", "--workers"
    )
    memory_limit: int | None = option(
        None,
        optional(byte_size, "auto"),
        "memory for the whole process tree (default: 3/4 of the machine's)",
        "--memory-limit",
    )
    data_dir: str | None = option(None, optional(text, "auto"), "folder that holds the data set", "--data-dir")
    features_store: str = option(
        "zarr", one_of("zarr", "none"), "zarr, or none: compute features whenever they are read", "--features-store"
    )
    features_dir: str = option("runs/features", text, "folder of the feature stores that runs share", "--features-dir")
    checkpoint_every: float = option(
        60.0, duration, "time between the checkpoints of a solve that is under way: 60s, 5m", "--checkpoint-every"
    )
    keep: int = option(2, whole(2, 1000), "checkpoints kept of each solve, at least 2", "--keep")
    time_limit: float | None = option(
        None, optional(duration, "none"), "stop cleanly after this time (55m, 12h), to be resumed", "--time-limit"
    )


@dataclass(frozen=True)
class TrainConfig:
    """All settings of one training run."""

    dataset: str
    seed: int = option(0, whole(0, 2**63 - 1), "seed of every random choice", "--seed")
    data: DataConfig = field(default_factory=DataConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    centers: CentersConfig = field(default_factory=CentersConfig)
    kernel: KernelConfig = field(default_factory=KernelConfig)
    statistics: StatisticsConfig = field(default_factory=StatisticsConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings: dotted key, parser, help text and flag."""

    key: str
    parse: Callable[[Any], Any]
    help: str
    flag: str | None


def settings() -> Iterator[Setting]:
    """Yield every setting of a run in the order of the configuration file."""
    for outer in fields(TrainConfig):
        if "parse" in outer.metadata:
            yield Setting(outer.name, outer.metadata["parse"], outer.metadata["help"], outer.metadata["flag"])
        elif outer.name != "dataset":
            for inner in fields(outer.default_factory):  # type: ignore[arg-type]
                meta = inner.metadata
                yield Setting(f"{outer.name}.{inner.name}", meta["parse"], meta["help"], meta["flag"])


SETTINGS: Mapping[str, Setting] = {setting.key: setting for setting in settings()}


def get(config: TrainConfig, key: str) -> Any:
    """Return the value of a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def with_value(config: TrainConfig, key: str, value: Any) -> TrainConfig:
    """Return the configuration with one dotted key changed."""
    section, _, name = key.rpartition(".")
    if not section:
        return replace(config, **{name: value})
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


def parse_value(key: str, value: Any, origin: str) -> Any:
    """Return the checked value of a setting; ConfigError names key, value and where it came from."""
    if key not in SETTINGS:
        near = get_close_matches(key, [*SETTINGS, "dataset"], 1, 0.4)
        advice = f"; did you mean {near[0]}?" if near else "; --print-config lists all of them"
        raise ConfigError(f"unknown setting {key!r} in {origin}{advice}")
    try:
        return SETTINGS[key].parse(value)
    except (ValueError, TypeError, AttributeError) as error:
        reason = str(error) if str(error).startswith("must") else "has a value of the wrong kind"
        raise ConfigError(f"{key} = {value!r} ({origin}): {reason}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file as {dotted key: value}; ConfigError where it cannot be read."""
    try:
        nested = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read configuration file {path}: {error}") from None
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def named_run(dataset: str) -> Path | None:
    """Return the file of a named run (jobs/<name>.toml of the checkout, or the wheel's copy), if there is one."""
    here = Path(__file__).resolve().parent
    for folder in (here.parent / "jobs", here / "named_runs"):
        if dataset.replace("-", "").replace("_", "").isalnum() and (folder / f"{dataset}.toml").is_file():
            return folder / f"{dataset}.toml"
    return None


@dataclass(frozen=True)
class Loaded:
    """A configuration, where every value came from, and which keys the user set for this command."""

    config: TrainConfig
    origins: Mapping[str, str]
    explicit: frozenset[str]


def load(dataset: str, config_file: Path | None, assignments: Mapping[str, tuple[Any, str]]) -> Loaded:
    """Return the configuration of a run: defaults < named run < configuration file < assignments.

    `assignments` maps dotted keys to (text or value, origin); flags and `--set` come in here. The environment's
    DASK_SCHEDULER_ADDRESS stands above the named run. Raises ConfigError for an unknown key (naming the nearest) or a
    value out of range.
    """
    config = TrainConfig(dataset=absolute_path(dataset))
    origins, explicit = dict.fromkeys(SETTINGS, "default"), set[str]()
    named = named_run(dataset)
    layers: list[tuple[Mapping[str, tuple[Any, str]], bool]] = []
    if named is not None:
        layers.append(({key: (value, named.name) for key, value in read_toml(named).items()}, False))
    if address := os.environ.get("DASK_SCHEDULER_ADDRESS"):
        layers.append(({"resources.scheduler": (address, "DASK_SCHEDULER_ADDRESS")}, False))
    if config_file is not None:
        layers.append(({key: (value, config_file.name) for key, value in read_toml(config_file).items()}, True))
    for layer, typed in [*layers, (assignments, True)]:
        for key, (value, origin) in layer.items():
            if key == "dataset":
                if absolute_path(str(value)) != config.dataset:
                    raise ConfigError(f"dataset = {value!r} ({origin}), but the command names {dataset}; drop one")
                continue
            config = with_value(config, key, parse_value(key, value, origin))
            origins[key] = origin
            explicit |= {key} if typed else set()
    for key in ("resources.features_dir", "resources.data_dir", "centers.list", "solver.init_from"):
        if get(config, key) is not None:
            config = with_value(config, key, str(Path(get(config, key)).expanduser().absolute()))
    return Loaded(config, origins, frozenset(explicit))


def absolute_path(dataset: str) -> str:
    """Return the absolute path of a dataset that is a path, and a name as it is: a run may be resumed from anywhere."""
    is_name = dataset in DATASETS or not (os.sep in dataset or Path(dataset).suffix or Path(dataset).exists())
    return dataset if is_name else str(Path(dataset).absolute())


def to_toml(config: TrainConfig) -> str:
    """Return the configuration as TOML; values left to be found from the data are omitted."""
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
    """Return the configuration that `to_toml` wrote; ConfigError where it is malformed."""
    flat = read_toml(path)
    config = TrainConfig(dataset=text(flat.pop("dataset", "")))
    for key, value in flat.items():
        config = with_value(config, key, parse_value(key, value, path.name))
    return config


def differing_keys(stored: TrainConfig, asked: TrainConfig, keys: Iterable[str]) -> list[str]:
    """Return those of `keys` outside `resources` whose values differ, as `key: stored != asked`."""
    return [
        f"{key}: {get(stored, key)} in the run, {get(asked, key)} asked"
        for key in keys
        if not key.startswith("resources.") and get(stored, key) != get(asked, key)
    ]


def science(config: TrainConfig) -> dict[str, Any]:
    """Return everything that determines the result (all but `resources`), ready for a digest."""
    values = {key: get(config, key) for key in SETTINGS if not key.startswith("resources.")}
    return {"dataset": config.dataset, **values}


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    return repr(value)
