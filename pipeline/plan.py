"""The plan of a run, before anything is computed: settings filled in from the data, and the bytes of each stage.

A run that cannot fit its memory limit or its disk is refused here, with the smallest limit that would do.
"""

import math
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from features.extractors import FeatureSpec
from features.published import PUBLISHED, folder_with
from features.sources import Source, SourceSpec
from pipeline.center_list import read_center_list
from pipeline.combinations import check_combinations, check_rounds, check_used
from pipeline.config import TrainConfig, with_value
from pipeline.errors import ConfigError, PlanError
from pipeline.executors import available_processors
from pipeline.feature_store import ITEM_CHUNKS, FeatureRequest, FeatureShape, describe, open_data
from pipeline.kernels import Kernel
from pipeline.plan_stages import (
    Solving,
    StagePlan,
    read_bytes,
    selection_bytes,
    solve_at_once,
    solve_in_rounds,
)
from pipeline.stages import candidates
from pipeline.stages.chosen_widths import TRIAL_ROWS
from storage.errors import CannotWriteError
from storage.layout import FeatureLayout

DRIVER_BYTES = 400 * 2**20  # interpreter, libraries and compiled code of the main process, measured on MNIST
WORKER_BYTES = 300 * 2**20  # the same for one worker process
BLOCK_ROWS = (4096, 2048, 1024, 512, 256, 128)  # sizes to choose from, largest first
AIM_BLOCK_BYTES = 96 * 2**20  # of one worker; larger blocks are no faster
_WORKING_SETS = [*range(40_000, 2000, -500), *range(2000, 0, -100)]  # to choose from where not all candidates fit
IMAGE_SIDE = 14  # images smaller than this have no cell of every size


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

    def lines(self, shape: FeatureShape, built: bool) -> list[str]:
        """Return the plan as a table for people; `built`: the feature store exists."""
        rows = [
            f"{shape.dataset}: {shape.n_train} training rows, {shape.n_test} test rows, {shape.n_features} features"
            + (" (the feature store exists)" if built else ""),
            f"{'stage':<12}{'items':>8}{'memory':>14}{'disk':>14}",
        ]
        for stage in self.stages:
            rows.append(f"{stage.name:<12}{stage.items:>8}{_size(stage.memory_bytes):>14}{_size(stage.disk_bytes):>14}")
        rows.append(f"limit {_size(self.limit_bytes)}, {self.workers} workers, blocks of {self.block_rows} rows")
        return rows


@dataclass(frozen=True)
class Prepared:
    """All that is known before a run starts: settings filled in, data described, stages planned."""

    config: TrainConfig
    request: FeatureRequest
    shape: FeatureShape
    store: FeatureLayout
    plan: Plan
    notes: tuple[str, ...]


def prepare(config: TrainConfig, explicit: frozenset[str], *, frozen: bool) -> Prepared:
    """Open the data, fill in what they decide, and plan the stages. Writes nothing.

    `explicit` are the keys the user set; a `frozen` configuration comes from a run folder and is left as it is.
    Raises ConfigError for settings that make no sense for these data, PlanError where nothing fits the memory limit,
    and the errors of opening the data.
    """
    source = open_data(source_spec(config))
    config, request = feature_request(config, source)
    shape = describe(request)
    notes: list[str] = []
    if not frozen:
        check_used(config, explicit)
        config, notes = fill_in(config, shape, explicit)
    workers = config.resources.workers or available_processors()
    config, plan = make_plan(config, shape, workers, _source_bytes(config, source))
    if (config.centers.working_set or 0) < _n_candidates(config, shape):
        check_rounds(config, _n_candidates(config, shape))
        notes.append(f"working set of at most {config.centers.working_set} candidates: the Gram of all does not fit")
    if plan.workers < workers and config.resources.scheduler in ("threads", "processes"):
        notes.append(f"{plan.workers} of {workers} workers: more do not fit the limit of {_size(plan.limit_bytes)}")
    config = with_value(config, "statistics.block_rows", plan.block_rows)
    store = FeatureLayout(Path(config.resources.features_dir).absolute(), shape.digest)
    return Prepared(config, request, shape, store, plan, tuple(notes))


def source_spec(config: TrainConfig) -> SourceSpec:
    """Return the description of the data that `features` opens.

    A folder named by SLKL_DATA_DIR is put in here, since the workers of a cluster may not have that variable.
    """
    data, data_dir = config.data, config.resources.data_dir
    is_published, named = config.dataset in PUBLISHED, os.environ.get("SLKL_DATA_DIR")
    if is_published and data_dir is None and named and folder_with(config.dataset, named) is not None:
        data_dir = str(Path(named).absolute())
    return SourceSpec(
        dataset=config.dataset,
        data_dir=data_dir if is_published else None,
        n_train=data.n_train,
        n_test=data.n_test,
        test_fraction=data.test_fraction,
        target=data.target,
        task=data.task,
        standardise=data.standardise,
        positive=data.positive,
        noise=data.noise,
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


def fill_in(config: TrainConfig, shape: FeatureShape, explicit: frozenset[str]) -> tuple[TrainConfig, list[str]]:
    """Fill in the number of centers and the kernel width from the data; return notes for the user too.

    Raises ConfigError where more centers were asked for than there are training rows; a default is lowered.
    """
    if config.centers.list is not None:
        if "centers.count" in explicit:
            raise ConfigError("--center-list already says how many candidates there are; leave --centers out")
        listed = read_center_list(config.centers.list, shape.n_train)
        config = with_value(config, "centers.count", len(listed))
    count, notes = config.centers.count, []
    if count != "all" and int(count) > shape.n_train:
        if "centers.count" in explicit:
            raise ConfigError(
                f"centers.count = {count}: {shape.dataset} has {shape.n_train} training rows; ask for fewer, or all"
            )
        config = with_value(config, "centers.count", shape.n_train)
        notes.append(f"{shape.n_train} candidate centers instead of {count}: there are no more training rows")
    check_combinations(config, shape, _n_candidates(config, shape))
    if not Kernel(config.kernel.name).has_width:
        config = with_value(config, "kernel.sigma2", 1.0)
    elif config.kernel.sigma2 is None:
        raw = config.features.name == "raw"
        config = with_value(config, "kernel.sigma2", shape.n_features / 4 if raw else 4.0)
    return config, notes


def make_plan(config: TrainConfig, shape: FeatureShape, workers: int, source_bytes: int) -> tuple[TrainConfig, Plan]:
    """Choose the working set and the block size, then how many workers fit beside each other.

    The working set is all candidates where their Gram fits, else as large as the limit allows. Sizes depend on data,
    centers and limit, never on the workers: the model's bytes depend on them. Raises PlanError, naming the smallest
    limit that would do, where nothing fits.
    """
    limit = config.resources.memory_limit or default_limit_bytes()
    n_candidates = _n_candidates(config, shape)
    asked = config.centers.working_set
    choices = [(min(asked, n_candidates), 1)] if asked is not None else _choices(n_candidates)
    plans = []
    for working_set, beside_each_other in choices:
        sized = with_value(config, "centers.working_set", working_set)
        plans.append(_best_blocks(sized, shape, beside_each_other, limit, source_bytes))
        if plans[-1].memory_bytes <= limit:
            rows = plans[-1].block_rows
            together = (_plan_for(sized, shape, n, rows, limit, source_bytes) for n in range(workers, 0, -1))
            return sized, next(plan for plan in together if plan.memory_bytes <= limit and _fits_a_worker(sized, plan))
    smallest = min(plans, key=lambda plan: plan.memory_bytes)
    worst = max(smallest.stages, key=lambda stage: stage.memory_bytes)
    raise PlanError(
        f"stage {worst.name} needs {_size(smallest.memory_bytes)}, the limit is {_size(limit)}; "
        f"use --memory-limit {-(-smallest.memory_bytes // 2**20)}MiB or more, or fewer --centers"
    )


def _fits_a_worker(config: TrainConfig, plan: Plan) -> bool:
    """Tell whether one worker process can hold a whole selection; one of its own always can."""
    if config.resources.scheduler != "processes" or config.solver.select == "none":
        return True
    w = config.centers.working_set or 0
    needed = WORKER_BYTES + 2 * 8 * w**2 + selection_bytes(config, w)
    return plan.workers == 1 or worker_limit_bytes(config, plan.workers) >= needed


def _choices(n_candidates: int) -> list[tuple[int, int]]:
    """Return the working sets to try, with the workers that shall fit: two where it grows, lest one core idles."""
    smaller = [size for size in _WORKING_SETS if size < n_candidates]
    return [(n_candidates, 1), *((size, 2) for size in smaller), *((size, 1) for size in smaller)]


def _best_blocks(config: TrainConfig, shape: FeatureShape, workers: int, limit: int, source_bytes: int) -> Plan:
    """Return the plan for some workers with the largest blocks that fit, or with the smallest where none does."""
    asked = config.statistics.block_rows
    sizes = [asked] if asked else [rows for rows in BLOCK_ROWS if _block_bytes(config, shape, rows) <= AIM_BLOCK_BYTES]
    plans = [_plan_for(config, shape, workers, rows, limit, source_bytes) for rows in sizes or BLOCK_ROWS[-1:]]
    return next((plan for plan in plans if plan.memory_bytes <= limit), plans[-1])


def default_limit_bytes() -> int:
    """Return three quarters of the machine's memory, or of the control group's where that is less."""
    machine = psutil.virtual_memory().total
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            machine = min(machine, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return machine * 3 // 4


def check_disk(plan: Plan, run_folder: Path, store: FeatureLayout, shape: FeatureShape, *, stored: bool) -> None:
    """Raise CannotWriteError where a disk lacks what the plan needs beyond what is there; a whole store needs none."""
    planned = sum(stage.disk_bytes for stage in plan.stages if stage.name != "features")
    needs = {run_folder: max(planned - _bytes_below(run_folder), 0)}
    if not store.manifest.exists() and stored:
        needs[store.root] = max(shape.disk_bytes - _bytes_below(store.folder), 0)
    by_disk: dict[int, tuple[Path, int]] = {}
    for folder, needed in needs.items():
        existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        before = by_disk.get(existing.stat().st_dev, (existing, 0))[1]
        by_disk[existing.stat().st_dev] = (existing, before + needed)
    for folder, needed in by_disk.values():
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise CannotWriteError(
                f"{folder}: needs {_size(needed)}, the disk has {_size(free)} free; "
                "free some space or choose another folder"
            )


def _bytes_below(folder: Path) -> int:
    n_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # a run that is alive removes files meanwhile
                n_bytes += Path(parent, name).lstat().st_size
    return n_bytes


def worker_limit_bytes(config: TrainConfig, workers: int) -> int:
    """Return the memory of each worker process: an equal share of what the driver leaves."""
    limit = config.resources.memory_limit or default_limit_bytes()
    return max((limit - DRIVER_BYTES) // workers, WORKER_BYTES)


def _plan_for(
    config: TrainConfig, shape: FeatureShape, workers: int, block_rows: int, limit: int, source_bytes: int
) -> Plan:
    workers = 1 if config.resources.scheduler == "serial" else workers
    base = DRIVER_BYTES + source_bytes
    base += workers * (WORKER_BYTES + source_bytes) if config.resources.scheduler == "processes" else 0
    item_rows = min(ITEM_CHUNKS * shape.chunk_rows, shape.n_train)
    n_items = sum(-(-rows // (ITEM_CHUNKS * shape.chunk_rows)) for rows in (shape.n_train, shape.n_test))
    w, d = config.centers.working_set or 0, shape.n_features
    centers = 4 * w * d * (1 if _is_plain(config) else 2)
    stream = _block_bytes(config, shape, block_rows) + read_bytes(shape, block_rows)
    in_rounds = w < _n_candidates(config, shape)
    solving = solve_in_rounds if in_rounds else solve_at_once
    selecting = selection_bytes(config, w)
    centred = 8 * w * w if config.solver.intercept and not selecting else 0
    trial = 2 * 4 * TRIAL_ROWS * d + 2**27 if config.kernel.sigma2 == "auto" else 0
    stages = (
        StagePlan("features", n_items, base + workers * 3 * item_rows * d * 4, shape.disk_bytes),
        StagePlan("centers", 1, base + 8 * 2**20 + max(0 if in_rounds else 2 * centers, trial), centers),
        *solving(
            shape,
            Solving(w, base, workers, stream, workers * (centers + stream), selecting, centred, _value_bytes(config)),
        ),
        StagePlan("evaluate", -(-shape.n_test // block_rows), base + centers + workers * stream, centers),
    )
    return Plan(stages, block_rows, workers, limit)


def _n_candidates(config: TrainConfig, shape: FeatureShape) -> int:
    return candidates.count(config, shape.n_train)


def _source_bytes(config: TrainConfig, source: Source) -> int:
    """Bytes of the data that a process holds while it reads them; rendered and zarr data are never held whole."""
    if config.dataset == "synthetic" or config.dataset.rstrip("/").endswith(".zarr"):
        return 0
    item_bytes = 1 if len(source.input_shape) == 2 else 8
    return 2 * (source.n_train + source.n_test) * math.prod(source.input_shape) * item_bytes


def _block_bytes(config: TrainConfig, shape: FeatureShape, block_rows: int) -> int:
    """Bytes of one block in one worker."""
    return min(block_rows, shape.n_train) * (config.centers.working_set or 0) * _value_bytes(config)


def _value_bytes(config: TrainConfig) -> int:
    """Bytes of a kernel value under way: inner product f4 and column f8, and copies where it is no plain Gaussian."""
    return 12 if _is_plain(config) else 20


def _is_plain(config: TrainConfig) -> bool:
    """Tell whether columns are Gaussian and of one width: each is written in place, from centers that are held once."""
    return Kernel(config.kernel.name).is_bounded and not isinstance(config.kernel.sigma2, tuple)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
