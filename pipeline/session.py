"""One session of a run: open it, prepare its data and its plan, compute what is not committed yet, and report.

A new run and one that is resumed go the same way: what is committed already is skipped.
"""

import math
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pipeline import plan as planning
from pipeline.config.command_line import Arguments
from pipeline.config.settings import Loaded, lines, resumed, worded
from pipeline.config.train_config import TrainConfig
from pipeline.datasets import feature_rows
from pipeline.datasets.feature_rows import ScaledFeatures, describe, live, request_of, source_spec
from pipeline.datasets.open_data import Reading, open_data
from pipeline.errors import ExitCode, SchedulerError, StoppedError
from pipeline.fit.evaluation import evaluate_model
from pipeline.fit.fit_model import fit
from pipeline.fit.workspace import Run, Workspace
from pipeline.kernels.jit import compiling
from pipeline.prediction.predictor import Predictor, load_predictor
from pipeline.reporting import results, run_facts
from pipeline.runtime import console, run_folder, stopping
from pipeline.runtime.executors import Executor
from pipeline.runtime.memory_limits import MemoryMeter, limit_bytes
from pipeline.runtime.progress import COMPILING
from pipeline.work.events import COMPILE, FEATURES, READ, Events, StageCost, saved_state
from pipeline.work.runner import OnExecutor, open_executor
from pipeline.work.store import FolderStore
from storage.arrays import StoredFile
from storage.errors import CorruptDataError, MissingDataError, StorageError
from storage.files import make_folder, read_record, remove_file
from storage.folder_layouts import RunLayout
from storage.folders import hold_lock, holder

STORE_SECONDS = 24 * 3600.0  # A run waits this long for another one that builds the same store.


@dataclass(frozen=True, repr=False)
class TrainedRun:
    """A finished run: its folder, absolute, and its report as report.json has it."""

    folder: Path
    report: dict[str, Any]

    def __repr__(self) -> str:
        of, classes = self.report, self.report["error_rate"] is not None
        score = f"{of['error_rate']:.2%} errors" if classes else f"RMSE {of['rmse']:.4g}"
        return f"TrainedRun({self.folder.name!r}: {of['task']}, {of['model_n_centers']} centers, {score})"

    @cached_property
    def model(self) -> Predictor:
        """The model, read and verified at the first use. Raises CorruptDataError, MissingDataError."""
        return load_predictor(self.folder)


@dataclass(frozen=True)
class Session:
    """What is asked for, and the run that this is about.

    stored : settings of a run that goes on, as it was started with them; None for a new run
    config : settings to go by: those of the run, but for what is asked anew
    """

    asked: Arguments
    loaded: Loaded
    root: Path
    stored: TrainConfig | None
    config: TrainConfig
    reading: Reading


def run_session(asked: Arguments, loaded: Loaded) -> TrainedRun | None:
    """Train, go on with a run, or find it finished; return it. None where only settings or the plan are printed."""
    stored = run_folder.stored_config(asked.run_dir, asked.resume, asked.dataset)
    config = loaded.config if stored is None else resumed(stored, loaded)
    if asked.print_config:
        print("\n".join(lines(config, dict.fromkeys(loaded.origins, "the run") if stored else loaded.origins)))
        return None
    root = asked.run_dir or run_folder.default_run_dir(asked.dataset)
    reading = Reading(tells=not asked.quiet, writes=not asked.dry_run)
    session = Session(asked, loaded, root, stored, config, reading)
    run = None if asked.dry_run else _finished(session)
    if run is None and config.resources.stores_features:
        run_folder.check_apart(root, Path(config.resources.features_dir))
    if asked.dry_run:
        prepared = _prepared(session)
        told = [*prepared.notes, *map("warning: {}".format, prepared.warnings)]
        built = prepared.store.manifest.exists()
        plan = prepared.plan.lines(prepared.shape, built)
        time = planning.forecast(prepared.config, prepared.shape, prepared.plan.workers.threads, built=built)
        print("\n".join([*map(worded, told), *plan, time]))
        return None
    run = run or _trained(session)
    _tell(run, asked)
    return run


def _finished(session: Session) -> TrainedRun | None:
    """Return the run where it is finished, on the data that are there now."""
    layout = RunLayout(session.root.absolute())
    report = None if session.stored is None else run_folder.report_of(layout)
    if report is None:
        return None
    spec, reading = source_spec(session.config), replace(session.reading, writes=False)
    shape = describe(request_of(session.config, spec), open_data(spec, reading=reading))
    run_folder.check_data(layout, shape.digest, "finished")
    if not session.asked.quiet:
        ended = datetime.fromtimestamp(layout.report.stat().st_mtime, UTC)
        print(f"finished on {ended:%Y-%m-%d %H:%M} UTC", file=console.Console(sys.stdout), flush=True)
    return TrainedRun(layout.root, report)


def _prepared(session: Session) -> planning.Prepared:
    with MemoryMeter() as meter:  # rows that were read are split and ordered in it
        frozen = session.stored is not None
        prepared = planning.prepare(session.config, session.loaded.anew, session.reading, frozen=frozen)
    session.reading.peak_bytes = meter.peak_bytes
    return prepared


def _trained(session: Session) -> TrainedRun:
    """Hold the run's folder, prepare, and compute. A StoppedError or SchedulerError tells the command that goes on."""
    stop, asked = stopping.current(), session.asked
    command = run_folder.resume_command(asked.dataset, session.root, session.config.resources.scheduler)
    stop.deadline = stop.began + (session.config.resources.time_limit or math.inf)
    with run_folder.held(session.root, session.stored) as layout:
        try:
            prepared = _prepared(session)
            config, shape, workers = prepared.config, prepared.shape, prepared.plan.workers
            resources = config.resources
            of_workers = workers.threads, workers.processes, limit_bytes(resources), resources.worker_timeout
            with stop.working(), open_executor(resources.scheduler, *of_workers) as executor:
                run_folder.freeze(layout, config, shape.digest, shape.store, asked.command)
                _compute(session, prepared, layout, executor)
        except StoppedError as error:
            if layout.config.exists():
                raise StoppedError(f"{error}; continue with: {command}") from None
            more = ", with more time" if "time limit" in str(error) else ""
            raise StoppedError(f"{error} before anything was saved; start it again{more}") from None
        except SchedulerError as error:
            if layout.config.exists():
                error.add_note(f"(to continue: {command})")
            raise
        return TrainedRun(layout.root, read_record(layout.report))


def _compute(session: Session, prepared: planning.Prepared, layout: RunLayout, executor: Executor) -> None:
    asked, (costs, peak_bytes) = session.asked, _costs_so_far(layout, session.reading)
    with (
        MemoryMeter(peak_bytes) as meter,
        Events(layout, costs, meter, quiet=asked.quiet, names=asked.names, callback=asked.callback) as events,
        _recording_errors(events, layout),
    ):
        stopping.Lease.next(layout.lease)  # ends what a cluster still runs for a session that was killed
        _tell_the_start(events, session, prepared, layout)
        executor.warn = events.warn
        stores = [prepared.store.root] if prepared.config.resources.stores_features else []
        for store in stores:
            make_folder(store)
        executor.check_paths([layout.root, *stores, *prepared.data_paths])
        run = _run_of(prepared, layout, events, executor)
        with compiling(partial(events.log, COMPILING), partial(events.timed_as, COMPILE)):
            scores = _fitted_and_scored(run)
        report = results.build(run, scores)
        remove_file(layout.lease)
        run_folder.finish(layout, report)


def _costs_so_far(layout: RunLayout, reading: Reading) -> tuple[dict[str, StageCost], int]:
    """Return what stages took in earlier sessions, with what reading took in this one, and the peak of the memory."""
    costs, peak_bytes = saved_state(layout)
    if reading.wall_seconds:
        before = costs.setdefault(READ, StageCost())
        before.wall_seconds += reading.wall_seconds
        before.cpu_seconds += reading.cpu_seconds
        before.items += reading.n_readings
    return costs, max(peak_bytes, reading.peak_bytes)


@contextmanager
def _recording_errors(events: Events, layout: RunLayout) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with suppress(StorageError):
            found = {} if isinstance(error, StoppedError) else {"traceback": traceback.format_exc()}
            events.record("error", error=type(error).__name__, **found)
            if console.describe(error)[0] is ExitCode.BUG:
                error.add_note(f"(traceback in {layout.log})")
        raise


def _tell_the_start(events: Events, session: Session, prepared: planning.Prepared, layout: RunLayout) -> None:
    started = run_folder.read_environment(layout)["environment"]
    changes = run_folder.environment_warnings(started, run_folder.environment())
    for note in (f"run folder {layout.root}", *session.reading.notes, *prepared.notes):
        events.log(note)
    for warning in (*prepared.warnings, *changes):
        events.warn(warning)


def _run_of(prepared: planning.Prepared, layout: RunLayout, events: Events, executor: Executor) -> Run:
    config, every = prepared.config, prepared.config.resources.checkpoint_every
    store = FolderStore(layout, run_folder.identity(layout), every, events.warn)
    runner = OnExecutor(executor, store, events, every, prepared.plan.workers.together)
    is_stored = config.resources.stores_features
    features = prepared.store if is_stored else live(prepared.request, prepared.shape)
    scales = StoredFile(layout.feature_scales)
    seen = ScaledFeatures(features, scales) if config.kernel.learns_scales else features
    work = Workspace(config, prepared.shape, seen, store, runner, events)
    return Run(layout, prepared.request, prepared.store, work, runner, events)


def _fitted_and_scored(run: Run) -> dict[str, Any]:
    """Store the features, fit and evaluate; where stored features are damaged, store them anew and go on."""
    _build_features(run)
    try:
        fit(run.work)
        return evaluate_model(run)
    except (CorruptDataError, MissingDataError):
        if not _build_features(run, contents=True):
            raise
    fit(run.work)  # goes on from what is committed
    return evaluate_model(run)


def _build_features(run: Run, *, contents: bool = False) -> bool:
    """Build the feature store unless a whole one is there (`contents`: in each byte); return whether none was."""
    layout, events = run.feature_layout, run.events
    with events.stage(FEATURES):
        if not run.work.config.resources.stores_features:
            return False  # computed on the fly by whoever reads them
        if feature_rows.is_built(layout, events.warn, contents=contents):
            return False
        if (other := holder(layout.lock)) is not None:
            events.log(f"waiting for process {other['pid']} on {other['host']} to build {layout.folder}")
        lock = partial(hold_lock, layout.lock, "building features", warn=events.warn)
        with lock(wait_seconds=STORE_SECONDS, on_wait=stopping.check):
            if not feature_rows.is_built(layout, contents=contents):
                _store_features(run)
    return True


def _store_features(run: Run) -> None:
    with run.events.status("preparing the store"):
        task, items = feature_rows.prepare(run.feature_layout, run.work.shape, run.request)
    source = open_data(run.request.source, task[1].data)
    is_table = source.columns is not None
    built = feature_rows.build_in_order(task, items, source, run.work.shape.item_rows)
    build = (lambda _: next(built)) if source.is_in_order else partial(feature_rows.build_item, task)
    executor = Executor() if is_table else None  # other processes do not have what this one has read
    try:
        run.runner.run_items(build, items, unit="rows", size=lambda item: item.n_rows, executor=executor)
    except StoppedError as error:
        anew = "; the features of a table are written in one reading, which begins anew" if is_table else ""
        raise StoppedError(f"{error}{anew}") from None
    with run.events.status("sealing the store"):
        feature_rows.finish(run.feature_layout)


def _tell(run: TrainedRun, asked: Arguments) -> None:
    said = partial(worded, names=asked.names)
    if asked.quiet:
        for line in run_facts.remarks(run.report):
            print(said(line), file=console.Console(sys.stderr))
        return
    told = ["", *map(said, run_facts.table(run.report)), f"model and report: {run.folder}"]
    print("\n".join([*told, *run_facts.next_steps(run.folder)]), file=console.Console(sys.stdout), flush=True)
