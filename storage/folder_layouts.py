"""Every path of a run, a feature store and a model folder. Nobody else joins paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.manifest import MANIFEST_NAME, check_plain_name


@dataclass(frozen=True)
class RunLayout:
    """The paths inside the folder of one run. Creates nothing."""

    root: Path

    @property
    def lock(self) -> Path:
        """Return the file whose flock says that the run is alive."""
        return self.root / "run.lock"

    @property
    def config(self) -> Path:
        """Return the resolved configuration, frozen at the first start."""
        return self.root / "config.toml"

    @property
    def environment(self) -> Path:
        """Return the versions, core type and thread settings of the first start."""
        return self.root / "env.json"

    @property
    def state(self) -> Path:
        """Return the file that names the current stage and its progress."""
        return self.root / "STATE.json"

    @property
    def turn(self) -> Path:
        """Return the file with the number of the latest turn of tasks, which ends the earlier ones; gone at the end."""
        return self.root / "turn"

    @property
    def centers(self) -> Path:
        """Return the folder of the candidate centers: their rows in the training set, and their features."""
        return self.root / "centers"

    @property
    def feature_scales(self) -> Path:
        """Return the file of the scales that were learned for the features, and of what each round of it gave."""
        return self.root / "scales" / "learned.npz"

    @property
    def statistics(self) -> Path:
        """Return the folder of the committed statistics."""
        return self.root / "statistics"

    def statistics_file(self, name: str) -> Path:
        """Return the path of one file or folder of the statistics."""
        return self.statistics / check_plain_name(name)

    @property
    def passes(self) -> Path:
        """Return the folder of the passes over the rows that are under way."""
        return self.root / "passes"

    def row_pass(self, name: str) -> Path:
        """Return the folder of one pass over the rows: what it reads, and the sums that it has committed."""
        return self.passes / check_plain_name(name)

    def former_parts(self) -> list[Path]:
        """Return what was committed of passes under way before these had a folder; nothing reads it any more."""
        patterns = ("statistics/parts", "scores/*-part-*.npz", "scores/*-weights.npz", "scores/round-*/")
        markers = ("markers/statistics", "markers/evaluate/block-*.json")
        return [path for pattern in patterns + markers for path in sorted(self.root.glob(pattern))]

    @property
    def progress(self) -> Path:
        """Return the folder in which items under way in other processes tell how far they are."""
        return self.root / "progress"

    def round_scores(self, name: str) -> Path:
        """Return the path of the scores of all candidates after a round."""
        return self.root / "scores" / f"{check_plain_name(name)}-scores.npz"

    def coarse_scores(self, name: str) -> Path:
        """Return the path of the coarse scores of all candidates after a round."""
        return self.root / "scores" / f"{check_plain_name(name)}-coarse.npz"

    def markers(self, stage: str) -> Path:
        """Return the folder of the done-markers of one stage."""
        return self.root / "markers" / check_plain_name(stage)

    @property
    def solutions(self) -> Path:
        """Return the folder of the solutions, one per solve."""
        return self.root / "solutions"

    def solution(self, item_name: str) -> Path:
        """Return the path of the solution of one solve."""
        return self.solutions / check_plain_name(item_name)

    def solution_records(self, item_name: str) -> Path:
        """Return the iteration records of a solve that is under way."""
        return self.solutions / f"{check_plain_name(item_name)}.jsonl"

    @property
    def init_model(self) -> Path:
        """Return what the run keeps of the model that its solves start from."""
        return self.root / "init-model.npz"

    def checkpoints(self, name: str) -> Path:
        """Return the folder of the checkpoints of one solve."""
        return self.root / "checkpoints" / check_plain_name(name)

    @property
    def model(self) -> Path:
        """Return the model folder; see `ModelLayout`."""
        return self.root / "model"

    @property
    def log(self) -> Path:
        """Return the log, one JSON object a line."""
        return self.root / "log.jsonl"

    @property
    def metrics(self) -> Path:
        """Return the iteration records, one JSON object a line."""
        return self.root / "metrics.jsonl"

    @property
    def contents(self) -> Path:
        """Return the list of the files of a finished run, written just before the report."""
        return self.root / "CONTENTS.json"

    @property
    def report(self) -> Path:
        """Return the report that programs read."""
        return self.root / "report.json"

    @property
    def report_html(self) -> Path:
        """Return the report that people read."""
        return self.root / "report.html"


@dataclass(frozen=True)
class FeatureLayout:
    """The paths of one feature store, `root/<digest>`, shared by all runs. Creates nothing."""

    root: Path
    digest: str

    def __post_init__(self) -> None:
        """Refuse a digest that is not one plain name."""
        if "/" in check_plain_name(self.digest):
            raise ValueError(f"feature store: the digest must be one plain name, found {self.digest!r}")

    @property
    def folder(self) -> Path:
        """Return the folder of the store."""
        return self.root / self.digest

    @property
    def arrays(self) -> Path:
        """Return the zarr group with the train and test arrays."""
        return self.folder / "arrays.zarr"

    @property
    def markers(self) -> Path:
        """Return the folder of the done-markers of the blocks."""
        return self.folder / "markers"

    @property
    def manifest(self) -> Path:
        """Return the manifest; the store counts only when it is there and holds."""
        return self.folder / MANIFEST_NAME

    @property
    def users(self) -> Path:
        """Return the folder of the paths of the runs that use the store, one file each."""
        return self.root / f"{self.digest}.runs"

    @property
    def lock(self) -> Path:
        """Return the lock, beside the folder, so that the folder can be replaced under it."""
        return self.root / f"{self.digest}.lock"


@dataclass(frozen=True)
class ModelLayout:
    """The paths of a model folder, which loads without the rest of its run. Creates nothing."""

    root: Path

    @property
    def description(self) -> Path:
        """Return the JSON part of the model."""
        return self.root / "model.json"

    @property
    def arrays(self) -> Path:
        """Return the arrays of the model."""
        return self.root / "arrays.npz"

    @property
    def manifest(self) -> Path:
        """Return the manifest of the folder."""
        return self.root / MANIFEST_NAME
