"""The plan of a run, before anything is computed: settings filled in from the data, and the bytes of each stage.

A run that cannot fit its memory limit or its disk is refused here, with the smallest limit that would do.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from features.extractors import FeatureSpec
from features.sources import Source, SourceSpec
from pipeline.config import TrainConfig, with_value
from pipeline.errors import ConfigError, PlanError
from pipeline.feature_store import ITEM_CHUNKS, FeatureRequest, FeatureShape
from pipeline.stages.rows import span_count
from storage.errors import CannotWriteError
from storage.layout import FeatureLayout

DRIVER_BYTES = 400 * 2**20  # interpreter, libraries and compiled code of the main process, measured on MNIST
WORKER_BYTES = 300 * 2**20  # the same for one worker process
BLOCK_ROWS = (4096, 2048, 1024, 512, 256, 128)  # sizes to choose from, largest first
AIM_BLOCK_BYTES = 96 * 2**20  # of one worker; larger blocks are no faster
IMAGE_SIDE = 14  # images smaller than this have no cell of every size


@dataclass(frozen=True)
class StagePlan:
    """What one stage will need: items, memory of the whole process tree, disk. Bytes."""

    name: str
    items: int
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a run will need. `block_rows` is the row block that the plan is for."""

    stages: tuple[StagePlan, ...]
    block_rows: int
    workers: int
    limit_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Memory of the most demanding stage."""
        return max(stage.memory_bytes for stage in self.stages)

    def lines(self) -> list[str]:
        """Return the plan as a table for people."""
        rows = [f"{'stage':<12}{'items':>8}{'memory':>14}{'disk':>14}"]
        for stage in self.stages:
            rows.append(f"{stage.name:<12}{stage.items:>8}{_size(stage.memory_bytes):>14}{_size(stage.disk_bytes):>14}")
        rows.append(f"limit {_size(self.limit_bytes)}, {self.workers} workers, blocks of {self.block_rows} rows")
        return rows


def source_spec(config: TrainConfig) -> SourceSpec:
    """Return the description of the data that `features` opens."""
    data = config.data
    return SourceSpec(
        dataset=config.dataset,
        data_dir=config.resources.data_dir,
        n_train=data.n_train,
        n_test=data.n_test,
        test_fraction=data.test_fraction,
        target=data.target,
        task=data.task,
        standardise=data.standardise,
        seed=config.seed,
    )


def feature_request(config: TrainConfig, source: Source) -> tuple[TrainConfig, FeatureRequest]:
    """Fill in which features are computed and whether inputs are z-scored; return both forms of the answer."""
    name = config.features.name
    if name == "auto":
        image = len(source.input_shape) == 2 and min(source.input_shape) >= IMAGE_SIDE
        name = "sphog" if image else "raw"
        config = with_value(config, "features.name", name)
    standardise = config.data.standardise
    if standardise is None:
        standardise = source.standardise and name == "raw"
        config = with_value(config, "data.standardise", standardise)
    features = FeatureSpec(name, config.features.cells, config.features.orientations)
    return config, FeatureRequest(source_spec(config), features, standardise)


def fill_in(config: TrainConfig, shape: FeatureShape, centers_asked: bool) -> TrainConfig:
    """Fill in the number of centers and the kernel width from the data.

    Raises ConfigError where more centers were asked for than there are training rows; the default is lowered.
    """
    count = config.centers.count
    if count != "all" and int(count) > shape.n_train:
        if centers_asked:
            raise ConfigError(
                f"centers.count = {count}: {shape.dataset} has {shape.n_train} training rows; ask for fewer, or all"
            )
        config = with_value(config, "centers.count", shape.n_train)
    _check_combinations(config, shape)
    if config.kernel.sigma2 is None:
        raw = config.features.name == "raw"
        config = with_value(config, "kernel.sigma2", shape.n_features / 4 if raw else 4.0)
    return config


def _check_combinations(config: TrainConfig, shape: FeatureShape) -> None:
    """Raise ConfigError where settings make no sense together."""
    solver, hold_out = config.solver, config.statistics.hold_out
    if solver.coupling == "shared" and shape.n_outputs == 1:
        raise ConfigError(f"--coupling shared: {shape.dataset} has one output ({shape.task}); leave it out")
    if solver.stop == "paper" and solver.schedule != "uniform":
        raise ConfigError("solver.stop = paper needs --schedule uniform; choose both or neither")
    if hold_out == 0 and (solver.refit != "none" or isinstance(solver.penalty, str)):
        asked = "--refit ridge" if solver.refit != "none" else f"--penalty {solver.penalty}"
        raise ConfigError(f"{asked} needs held-out rows, statistics.hold_out is 0; set it to 0.1")


def make_plan(config: TrainConfig, shape: FeatureShape, workers: int) -> Plan:
    """Choose the block size and return the plan.

    Raises PlanError, naming the smallest limit that would do, where no block size fits.
    """
    limit = config.resources.memory_limit or default_limit_bytes()
    asked = config.statistics.block_rows
    plans = [_plan_for(config, shape, workers, rows, limit) for rows in ([asked] if asked else BLOCK_ROWS)]
    fitting = [plan for plan in plans if plan.memory_bytes <= limit]
    if not fitting:
        smallest = min(plans, key=lambda plan: plan.memory_bytes)
        worst = max(smallest.stages, key=lambda stage: stage.memory_bytes)
        needed = -(-smallest.memory_bytes // 2**20)
        raise PlanError(
            f"stage {worst.name} needs {_size(smallest.memory_bytes)} with {workers} workers, "
            f"the limit is {_size(limit)}; "
            f"use --memory-limit {needed}MiB or more, fewer --workers, or fewer --centers"
        )
    modest = [plan for plan in fitting if _block_bytes(config, shape, plan.block_rows) <= AIM_BLOCK_BYTES]
    return (modest or fitting[-1:])[0]


def default_limit_bytes() -> int:
    """Return three quarters of the machine's memory, or of the control group's where that is less."""
    machine = psutil.virtual_memory().total
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            machine = min(machine, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return machine * 3 // 4


def check_disk(plan: Plan, run_folder: Path, features_folder: Path, shape: FeatureShape) -> None:
    """Raise CannotWriteError where a disk has less free space than the plan needs; a store that exists needs none."""
    needs = {run_folder: sum(stage.disk_bytes for stage in plan.stages if stage.name != "features")}
    if not FeatureLayout(features_folder, shape.digest).manifest.exists():
        needs[features_folder] = shape.disk_bytes
    for folder, needed in needs.items():
        existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise CannotWriteError(
                f"{folder}: needs {_size(needed)}, the disk has {_size(free)} free; "
                "free some space or choose another folder"
            )


def worker_limit_bytes(config: TrainConfig, workers: int) -> int:
    """Return the memory of each worker process: an equal share of what the driver leaves."""
    limit = config.resources.memory_limit or default_limit_bytes()
    return max((limit - DRIVER_BYTES) // workers, WORKER_BYTES)


def _plan_for(config: TrainConfig, shape: FeatureShape, workers: int, block_rows: int, limit: int) -> Plan:
    m = shape.n_train if config.centers.count == "all" else int(config.centers.count)
    d, t = shape.n_features, shape.n_outputs
    workers = 1 if config.resources.scheduler == "serial" else workers
    base = DRIVER_BYTES + (workers * WORKER_BYTES if config.resources.scheduler == "processes" else 0)
    item_rows = min(ITEM_CHUNKS * shape.chunk_rows, shape.n_train)
    n_spans = span_count(shape, m)
    gram, centers = 8 * m * m, 4 * m * d
    blocks = _block_bytes(config, shape, block_rows)
    read = 4 * d * min(max(block_rows, shape.chunk_rows), shape.n_train)
    test_blocks = -(-shape.n_test // block_rows)
    stages = (
        StagePlan("features", -(-shape.n_train // item_rows), base + workers * 3 * item_rows * d * 4, shape.disk_bytes),
        StagePlan("centers", 1, base + 2 * centers + 8 * 2**20, centers),
        # two Grams (fit, hold-out) a worker; the reduction holds two parts of two and their sums
        StagePlan(
            "statistics",
            n_spans,
            base + centers * workers + max(workers * (2 * gram + blocks + read), 5 * gram),
            (2 * n_spans + 3) * gram,
        ),
        # one mapped Gram shared by all; the factor and inverse of an active set of at most all candidates
        StagePlan("solve", t, base + gram + workers * 3 * gram, t * m * 16),
        StagePlan("evaluate", test_blocks, base + centers + workers * (blocks + read), centers),
    )
    return Plan(stages, block_rows, workers, limit)


def _block_bytes(config: TrainConfig, shape: FeatureShape, block_rows: int) -> int:
    """Bytes of one block in one worker: inner products f4 and columns f8."""
    m = shape.n_train if config.centers.count == "all" else int(config.centers.count)
    return min(block_rows, shape.n_train) * m * 12


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
