"""The plan of a run, before anything is computed: settings filled in from the data, the bytes of each stage, the time.

A run that cannot fit its memory limit is refused here, with the smallest limit that would do.
"""

from dataclasses import dataclass
from pathlib import Path

from features.input_files import is_picture_folder, is_table
from features.source import NAMED, Source, SourceMemory, SourceSpec
from features.words import counted
from pipeline.config.settings import with_value
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_rows import FeatureRequest, FeatureShape, describe, request_of, source_spec
from pipeline.datasets.open_data import Reading, open_data, open_outline
from pipeline.errors import PlanError
from pipeline.fit.choose_kernel import candidates_needs
from pipeline.fit.evaluation import test_needs
from pipeline.fit.filled_settings import (
    WORKING_SETS,
    MemoryBudget,
    count_candidates,
    fill_in,
    fill_in_features,
    fit_of,
    grows,
    is_chosen,
    is_in_rounds,
    refuse,
    without_effect,
    without_room,
)
from pipeline.fit.fit_model import solving_needs
from pipeline.fit.kept_columns import growth_needs
from pipeline.fit.row_blocks import Needs, RunSize
from pipeline.fit.statistics import statistics_needs
from pipeline.runtime.executors import available_processors
from pipeline.runtime.memory_limits import DRIVER_BYTES, limit_bytes
from pipeline.runtime.row_pass import Workers, threads_together
from pipeline.solvers import candidate_budget as costs
from storage.folder_layouts import FeatureLayout

# Interpreter, libraries and compiled code take these in a process, measured: while it computes features, then columns
# (while it solves: DRIVER_BYTES); then in each worker process beside it, which shares its libraries.
READING_BYTES = 200 * 2**20
STREAMING_BYTES = 230 * 2**20
WORKER_BYTES = 70 * 2**20
LEAST_SHARE = 0.8  # A smaller working set is taken, down to this share, if two workers fit then: no core idles.
# The compiler keeps this in each process; measured. It is planned even if all is compiled, so that sizes are the same.
COMPILING_BYTES = 70 * 2**20
# The process that leads a run has this for each row: labels, keys, order, and what finds equal rows; measured. Once the
# data are open half of it is left; the allocator gives nothing back for fewer than MANY_ROWS.
ROW_BYTES, MANY_ROWS = 64, 3_000_000
PICTURE_BYTES = 400  # The name and path of a picture take this while its folder is read.

FASTER = 1.5  # A usual core exceeds the rate of a budget by this factor; measured: 5.4e10 operations a second.
IMAGE_OPERATIONS = 5000  # A feature of an image takes these, with decoding and deforming.
USUAL_CENTERS = 1500  # This number of candidates gets a weight; solves and later steps are on these.
START_SECONDS = 3.0  # Interpreter and libraries, reading, and writing the model take this.


@dataclass(frozen=True)
class Plan:
    """The bytes that each stage of a run will need, in the whole process tree, and its workers."""

    stages: tuple[tuple[str, Needs], ...]
    workers: Workers
    limit_bytes: int

    @property
    def memory_bytes(self) -> int:
        return max(needs.memory for _, needs in self.stages)

    def lines(self, shape: FeatureShape, built: bool) -> list[str]:
        """Return the plan as a table; `built`: whether the feature store exists."""
        rows = [
            f"{shape.dataset}: {shape.n_train} training rows, {shape.n_test} test rows, {shape.n_features} features"
            + (" (the feature store exists)" if built else ""),
            f"{'stage':<12}{'memory':>14}{'disk':>14}",
        ]
        rows += [f"{name:<12}{_size(needs.memory):>14}{_size(needs.disk):>14}" for name, needs in self.stages]
        threads, processes = self.workers.threads, self.workers.processes
        who = counted(threads, "worker") + (f" in {processes} processes" if 1 < processes < threads else "")
        rows.append(f"limit {_size(self.limit_bytes)}, {who}")
        return rows


@dataclass(frozen=True)
class Prepared:
    """A run before its start: settings filled in, data described, stages planned."""

    config: TrainConfig
    request: FeatureRequest
    shape: FeatureShape
    store: FeatureLayout
    plan: Plan
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def data_paths(self) -> list[Path]:
        """The files and folders of the data, which the workers of a cluster must see too."""
        source = self.request.source
        named = (source.dataset, source.test, source.data_dir)
        return [Path(path) for path in named if path and Path(path).is_absolute()]


def prepare(config: TrainConfig, explicit: frozenset[str], reading: Reading, *, frozen: bool) -> Prepared:
    """Open the data, fill in the settings that they decide, and plan the stages. Writes nothing.

    explicit: the keys that the user set; frozen: whether the configuration is that of a run, and stays as it is;
    reading: how its tables are read.
    """
    spec, limit = source_spec(config), limit_bytes(config.resources)
    if not frozen:
        refuse(without_effect(config, explicit))
    needed = _reading_of_table(spec)
    if needed > limit:
        told = f"reading the table needs {_size(needed)}, the limit is {_size(limit)}"
        raise PlanError(f"{spec.dataset}: {told}; use `resources.memory_limit={-(-needed // 2**20)}MiB` or more")
    outline = open_outline(spec)
    if outline is not None:
        _prepared(config, explicit, spec, outline, frozen=frozen)  # Data that do not fit are never read.
    return _prepared(config, explicit, spec, open_data(spec, reading=reading), frozen=frozen)


def _prepared(
    config: TrainConfig, explicit: frozenset[str], spec: SourceSpec, source: Source, *, frozen: bool
) -> Prepared:
    config = fill_in_features(config, source)
    request = request_of(config, spec)
    shape = describe(request, source)
    notes, limit = list(source.notes), limit_bytes(config.resources)
    if not frozen:
        bounds = _Bounds(shape, source.memory, limit)
        room = MemoryBudget(
            shape.n_train,
            limit - costs.PROCESS_BYTES,
            lambda whole: _plan_of_workers(whole, bounds, 1).memory_bytes <= limit,
        )
        config, filled_notes = fill_in(config, shape, explicit, room)
        notes += filled_notes
    workers = config.resources.workers or available_processors()
    config, plan = make_plan(config, shape, workers, source.memory)
    if is_in_rounds(config, shape.n_train):
        refuse(without_room(config, count_candidates(config, shape.n_train)))
        notes.append(_rounds_note(RunSize(config, shape, plan.workers)))
    if plan.workers.threads < workers and config.resources.scheduler in ("threads", "processes"):
        fewer = f"{plan.workers.threads} of {workers} workers"
        notes.append(f"{fewer}: more do not fit the limit of {_size(plan.limit_bytes)}")
    store = FeatureLayout(Path(config.resources.features_dir).absolute(), shape.store)
    return Prepared(config, request, shape, store, plan, tuple(notes), source.warnings)


def _rounds_note(run: RunSize) -> str:
    most = run.n_columns
    size = _size(run.itemsize * run.shape.n_train * most)
    kept = f"their columns are kept on disk while it has room, {size} for so many"
    if run.config.centers.on_demand:
        return f"columns on demand: at most {most} candidates, those whose weights would become non-zero; {kept}"
    are = f"at most {most} candidates" if most < count_candidates(run.config, run.shape.n_train) else "some candidates"
    return f"working set: {are} have their Gram in memory, not all; {kept}"


@dataclass(frozen=True)
class _Bounds:
    shape: FeatureShape
    data: SourceMemory
    limit: int  # bytes


def make_plan(config: TrainConfig, shape: FeatureShape, workers: int, data: SourceMemory) -> tuple[TrainConfig, Plan]:
    """Choose the working set, then how many workers fit beside each other, and how many of them share their sums.

    The working set is all candidates where their Gram fits, else as large as the limit allows. Sizes never depend on
    the workers, since bytes of the model depend on sizes. Raises PlanError with the smallest limit that would do.
    """
    limit = limit_bytes(config.resources)
    bounds = _Bounds(shape, data, limit)
    sized, plan = _sized(config, bounds)
    if plan.memory_bytes <= limit:
        return sized, _plan_of_workers(sized, bounds, workers)
    worst, _ = max(plan.stages, key=lambda stage: stage[1].memory)
    depends = worst != "read" and plan.memory_bytes - data.decoding > limit  # Tables and large pictures need it anyway.
    remedy = f"use `resources.memory_limit={-(-plan.memory_bytes // 2**20)}MiB` or more"
    remedy += ", or fewer `centers.count`" if depends else ""
    raise PlanError(f"stage {worst} needs {_size(plan.memory_bytes)}, the limit is {_size(limit)}; {remedy}")


def _sized(config: TrainConfig, bounds: _Bounds) -> tuple[TrainConfig, Plan]:
    """Return the settings with the working set filled in, and the plan that fits, or the smallest if none does."""
    n, given = count_candidates(config, bounds.shape.n_train), config.centers.working_set
    in_part = (size for size in WORKING_SETS if size < n and not config.solver.selects)
    sizes = [n, *in_part] if given is None else [min(given, n)]
    alike = with_value(config, "resources.scheduler", "threads") if config.resources.scheduler == "serial" else config

    def plan_of(size: int, workers: int = 1) -> Plan:
        return _plan_of_workers(with_value(alike, "centers.working_set", size), bounds, workers)

    def fits(size: int, workers: int = 1) -> bool:
        plan = plan_of(size, workers)
        return plan.memory_bytes <= bounds.limit and plan.workers.threads >= workers

    size = next(filter(fits, sizes), None) or min(sizes, key=lambda size: plan_of(size).memory_bytes)
    in_rounds = is_in_rounds(with_value(config, "centers.working_set", size), bounds.shape.n_train)
    if fits(size) and given is None and in_rounds:
        size = next((one for one in sizes if LEAST_SHARE * size <= one <= size and fits(one, 2)), size)
    return with_value(config, "centers.working_set", size), plan_of(size)


def _plan_of_workers(config: TrainConfig, bounds: _Bounds, most: int) -> Plan:
    plans = [_plan_for(config, bounds, choice) for choice in _worker_choices(config, most)]
    return next((plan for plan in plans if plan.memory_bytes <= bounds.limit), plans[-1])


def _worker_choices(config: TrainConfig, most: int) -> list[Workers]:
    """Return the choices of workers, the best first: separate sums come before more workers."""
    scheduler, w = config.resources.scheduler, config.centers.working_set or 0
    if scheduler == "serial":
        return [Workers(1, 1, 1)]
    if scheduler == "processes":
        return [Workers(n, -(-n // threads_together(16 * w * w)), 1) for n in range(most, 0, -1)]
    doubled = [2**k for k in range(most.bit_length())]
    return [Workers(n, 1, shared) for n in range(most, 0, -1) for shared in (*(k for k in doubled if k < n), n)]


def _plan_for(config: TrainConfig, bounds: _Bounds, workers: Workers) -> Plan:
    """Return the plan for some workers; processes have more libraries in memory while they solve."""
    run, data, shape, resources = RunSize(config, bounds.shape, workers), bounds.data, bounds.shape, config.resources
    n_rows, in_processes = shape.n_train + shape.n_test, resources.scheduler == "processes"
    known = ROW_BYTES * (n_rows + min(n_rows, MANY_ROWS)) // 2  # This is left once the data are open.
    reading = data.decoding * (workers.threads if in_processes else 1)
    processes = COMPILING_BYTES + data.held + known + (0 if resources.stores_features else reading)
    if in_processes:
        processes += workers.processes * (WORKER_BYTES + data.held + COMPILING_BYTES)
    computing, solving = STREAMING_BYTES + processes, DRIVER_BYTES + processes
    features, tests = _features_needs(run), test_needs(run)
    # Features are computed before any columns, while what opening the data took may not be given back.
    opening = ROW_BYTES * n_rows - known + READING_BYTES - STREAMING_BYTES
    opening += reading if resources.stores_features else 0
    in_rounds = is_in_rounds(config, shape.n_train)
    stages = {
        "features": (computing + opening, features),
        "candidates": (computing, candidates_needs(run)),
        "statistics": (solving, growth_needs(run)) if in_rounds else (computing, statistics_needs(run)),
        "solve": (solving, solving_needs(run)),
        "evaluate": (solving, tests._replace(memory=max(data.decoding, tests.memory))),
    }
    whole = [(name, needs._replace(memory=beside + needs.memory)) for name, (beside, needs) in stages.items()]
    return Plan((*_reading_needs(run, data), *whole), workers, bounds.limit)


def _reading_needs(run: RunSize, data: SourceMemory) -> list[tuple[str, Needs]]:
    needed, n_rows = _reading_of_table(source_spec(run.config)), run.shape.n_train + run.shape.n_test
    if run.config.dataset not in NAMED and is_picture_folder(Path(run.config.dataset)):
        needed = READING_BYTES + data.decoding + PICTURE_BYTES * n_rows
    return [("read", Needs(needed + ROW_BYTES * n_rows, 32 * n_rows))] if needed else []


def _reading_of_table(spec: SourceSpec) -> int:
    """Return the bytes of the first reading of a table, beside ROW_BYTES; 0 for other data."""
    if spec.dataset in NAMED or not Path(spec.dataset).exists() or not is_table(Path(spec.dataset)):
        return 0
    from features.tables.table_source import learning_bytes  # It imports pyarrow, which images do not need.

    return READING_BYTES + learning_bytes(spec)


def _features_needs(run: RunSize) -> Needs:
    config, shape = run.config, run.shape
    n_items = sum(-(-rows // shape.item_rows) for rows in (shape.n_train, shape.n_test))
    copies = 6 if config.features.name == "raw" else 3
    building = min(run.workers.threads, n_items) * copies * 4 * min(shape.item_rows, shape.n_train) * shape.n_features
    return Needs(building, shape.disk_bytes if config.resources.stores_features else 0)


def forecast(config: TrainConfig, shape: FeatureShape, cores: int, *, built: bool) -> str:
    """Return a line on how long a run will take, or on why that cannot be known.

    It is the time of passes over the rows and of solves, at the rate of a usual core, without the compiler, and on
    cores that nothing else uses. built: whether features are stored.
    """
    m = count_candidates(config, shape.n_train)
    if is_in_rounds(config, shape.n_train):
        values = f"{shape.n_train:.3g} x {m:.3g} kernel values in a pass over all candidates"
        return f"time unknown: candidates come in by rounds, as many as weights need; {values}"
    if config.solver.penalty == "auto" or config.solver.move_centers:
        return "time unknown: it depends on how soon a search of penalties or places gains nothing"
    budget = (config.centers.budget or costs.DEFAULT_BUDGET) * costs.OPERATIONS_A_SECOND
    if grows(config):
        operations = budget
    else:
        fit, s = fit_of(config, shape), min(m, USUAL_CENTERS) if config.solver.is_penalised else m
        of_row = (m - s) * (2.0 * (shape.n_features + shape.n_outputs) + costs.VALUE_OPERATIONS)
        operations = fit.operations(s) + shape.n_train * (of_row + costs.GRAM_SLOWNESS * (m**2 - s**2))
        operations += costs.SHARE_OF_TRIALS * budget if is_chosen(config.kernel) else 0.0
    if config.features.name != "raw" and not built:
        passes = 1 if config.resources.stores_features else 2
        operations += passes * IMAGE_OPERATIONS * (shape.n_train + shape.n_test) * shape.n_features
    operations += shape.n_test * m * (2.0 * shape.n_features + costs.VALUE_OPERATIONS)
    seconds = START_SECONDS + operations / (FASTER * costs.OPERATIONS_A_SECOND * cores)
    units = ((90, "seconds", 1), (90 * 60, "minutes", 60), (float("inf"), "hours", 3600))
    number, unit = next((seconds / of_one, name) for below, name, of_one in units if seconds < below)
    return f"{'at most ' * grows(config)}about {number:.0f} {unit} on {cores} core{'s' * (cores > 1)}"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
