"""The paths of a run and of a feature store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST_NAME = "MANIFEST.json"
MODEL_NAME = "model.npz"


class _Path:
    """The path of a file or folder of a layout; `{digest}` in it stands for that field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, layout: Any, owner: type | None = None) -> Path:
        return layout.root / self.name.format_map(vars(layout))


@dataclass(frozen=True)
class RunLayout:
    """The paths inside the folder of one run. Creates nothing."""

    root: Path

    lock = _Path("run.lock")  # its flock says that the run is alive
    config = _Path("config.toml")  # the whole configuration, frozen at the first start
    environment = _Path("env.json")  # versions, core type and thread settings of the first start
    state = _Path("STATE.json")  # the current stage and its progress
    lease = _Path("lease")  # the number of the latest lease, which ends earlier ones; removed at the end
    candidates = _Path("candidates.npz")  # rows of the candidates in the training set, and their features
    feature_scales = _Path("scales/learned.npz")  # the learned scales, and what each round of learning gave
    statistics = _Path("statistics")
    passes = _Path("passes")  # a folder for each pass under way: its inputs, and the sums that it has committed
    progress = _Path("progress")  # the progress of items that run in other processes
    solutions = _Path("solutions")  # the result of each solve, with the records of its iterations
    checkpoints = _Path("checkpoints")  # a file for each solve under way
    model = _Path("model")  # the folder of the model, which has one file
    log = _Path("log.jsonl")
    metrics = _Path("metrics.jsonl")  # the iteration records
    predictions = _Path("predictions.csv")  # predictions of the test part
    report = _Path("report.json")
    report_html = _Path("report.html")


@dataclass(frozen=True)
class FeatureLayout:
    """The paths of one feature store, `root/<digest>`, shared by all runs. Creates nothing."""

    root: Path
    digest: str

    folder = _Path("{digest}")
    arrays = _Path("{digest}/arrays.zarr")  # the zarr group with the train and test arrays
    markers = _Path("{digest}/markers")  # the done-markers of the blocks
    manifest = _Path(f"{{digest}}/{MANIFEST_NAME}")  # a store without it, or that differs from it, does not count
    lock = _Path("{digest}.lock")  # beside the folder, so that the folder can be replaced under it
