"""`python -m pipeline.train DATASET`: train a sparse, certified kernel machine, and report what it cost.

The module can be called: `from pipeline import train; run = train("digits")`. A run: settings → plan → compiled loops →
features → centers → statistics → solve → evaluate → report.
"""

import re
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from features.errors import DataError, UsageError
from pipeline.config import settings as configuration
from pipeline.config.command_line import Arguments, in_arguments, parse, words_of
from pipeline.config.parsers import learns_scales
from pipeline.config.settings import resumed
from pipeline.errors import ConfigError, ExitCode, PipelineError, StoppedError
from pipeline.runtime import stopping
from pipeline.runtime.answers import answered, describe
from pipeline.runtime.console import Console
from storage.errors import CorruptDataError, MissingDataError, StorageError

if TYPE_CHECKING:  # imported late, so that --help answers at once
    from pipeline.datasets.feature_rows import FeatureAccess
    from pipeline.planning.plan import Prepared
    from pipeline.prediction.predictor import Predictor
    from pipeline.runtime.executors import Executor
    from pipeline.work.events import Callback
    from storage.folder_layouts import RunLayout


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
    def model(self) -> "Predictor":
        """The model, read and verified at the first use. Raises CorruptDataError, MissingDataError."""
        from pipeline.prediction.predictor import load_predictor  # brings numpy and numba

        return load_predictor(self.folder)


_under_way = threading.Lock()


def train(
    dataset: str | PathLike[str],
    *,
    run_dir: str | PathLike[str] | None = None,
    resume: str = "never",
    config: str | PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
    callback: "Callback | None" = None,
    **options: Any,
) -> TrainedRun:
    """Train as the command does, to the same bytes in the same folder, and return the run.

    Parameters
    ----------
    dataset : str or path
        Name of a data set, or path of your data.
    run_dir, resume, config, quiet
        As the options of the command.
    settings : dict or None
        Any setting by its key, {"features.deskew": 1} or {"features": {"deskew": 1}}.
    callback : callable or None
        Called with every record of log.jsonl and metrics.jsonl as it is written (those of a solve hold `iteration`). An
        error that it raises ends the run, which can be resumed.
    **options
        All other options of the command with underscores, such as centers=1000, sigma2="auto"; None leaves one out.

    Returns
    -------
    TrainedRun
        A run that did not converge is returned too: its report has `converged` false.

    Raises
    ------
    PipelineError
        Where the command would end with an exit code: `ConfigError`, `StoppedError` and others of `pipeline.errors`,
        `features.errors` and `storage.errors`. A second run at a time in a process is a ConfigError.
    KeyboardInterrupt
        On Ctrl-C, once what is done is saved; `resume="auto"` continues.

    Notes
    -----
    Signals without a handler are taken on the main thread.
    """
    asked = {"run_dir": run_dir, "resume": resume, "config": config}
    folders = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items() if value is not None]
    if callback is not None and not callable(callback):
        raise ConfigError(f"callback is a {type(callback).__name__}: give a function that takes a record")
    words = [*folders, *(["--quiet"] if quiet else []), *words_of(dataset, options, settings or {})]
    if not _under_way.acquire(blocking=False):
        raise ConfigError("a run is under way in this process: wait for it, or start a process for each")
    try:
        with stopping.listening(stopping.unclaimed()):
            try:
                run = _train(parse(words), callback)
            except StoppedError as error:  # that Ctrl-C asked for comes out as what Python means by it
                if stopping.requested() == signal.SIGINT.name:
                    raise KeyboardInterrupt(str(error)) from None
                raise
    except (PipelineError, DataError, UsageError, StorageError) as error:
        if not isinstance(error, StoppedError):  # which has a command that continues the run
            error.args = (_in_python(str(error)),)
        raise
    finally:
        _under_way.release()
    assert run is not None  # only options that are no setting print and train nothing
    _tell(run, quiet)
    return run


def _in_python(message: str) -> str:
    """Return what an error says, of arguments in place of the options that they became."""
    said, command = re.match(r"((?s:.*?))(python -m pipeline\..*)?\Z", message).groups()  # type: ignore[union-attr]
    return in_arguments(said) + (command or "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""

    def work() -> int:
        with stopping.listening():
            arguments = parse(argv)
            run = _train(arguments)
        return ExitCode.DONE if run is None else _tell(run, arguments.quiet)

    return answered(work, is_run=True)


def _train(arguments: Arguments, callback: "Callback | None" = None) -> TrainedRun | None:
    loaded = configuration.load(arguments.dataset, arguments.config_file, arguments.assignments)
    if arguments.print_config and arguments.resume == "never":
        print("\n".join(configuration.lines(loaded.config, loaded.origins)))
        return None
    # Heavy imports wait until here, so that --help and --print-config answer at once.
    from pipeline.datasets.feature_request import describe as describe_features
    from pipeline.datasets.feature_request import request_of, source_spec
    from pipeline.datasets.table_records import preparing
    from pipeline.planning import plan as planning
    from pipeline.runtime import run_folder  # numpy
    from pipeline.runtime.memory_limits import limit_bytes
    from pipeline.runtime.open_executor import open_executor
    from storage.folder_layouts import RunLayout
    from storage.records import read_record

    stored = run_folder.stored_config(arguments.run_dir, arguments.resume, arguments.dataset)
    config = loaded.config if stored is None else resumed(stored, loaded)
    root = arguments.run_dir or run_folder.default_run_dir(arguments.dataset)
    if arguments.print_config:
        origins = dict.fromkeys(loaded.origins, "as started" if stored is None else "the run")
        print("\n".join(configuration.lines(config, origins)))
        return None
    if stored is not None and not arguments.dry_run:
        layout = RunLayout(root.absolute())
        report = run_folder.report_of(layout)
        if report is not None:
            with preparing(quiet=arguments.quiet, writes=False):
                shape = describe_features(request_of(config, source_spec(config)))
            run_folder.check_data(layout, shape.digest, "finished")
            if not arguments.quiet:
                ended = datetime.fromtimestamp(layout.report.stat().st_mtime, UTC)
                print(f"finished on {ended:%Y-%m-%d %H:%M} UTC", file=Console(sys.stdout), flush=True)
            return TrainedRun(root.absolute(), report)

    if config.resources.stores_features:
        run_folder.check_apart(root, Path(config.resources.features_dir))

    def prepare() -> "Prepared":
        with preparing(quiet=arguments.quiet, writes=not arguments.dry_run):
            prepared = planning.prepare(config, loaded.explicit, frozen=stored is not None)
        planning.check_disk(
            prepared.plan, root, prepared.store, prepared.shape, stored=config.resources.stores_features
        )
        return prepared

    if arguments.dry_run:
        prepared = prepare()
        lines = prepared.plan.lines(prepared.shape, prepared.store.manifest.exists())
        told = [*prepared.notes, *map("warning: {}".format, prepared.warnings)]
        print("\n".join([*map(configuration.in_options, told), *lines]))
        return None
    with stopping.limited(config.resources.time_limit), run_folder.held(root, stored) as layout:
        try:
            prepared = prepare()
            resources, workers = prepared.config.resources, prepared.plan.workers
            memory_bytes = limit_bytes(resources)
            with (
                stopping.working(),
                open_executor(
                    resources.scheduler, workers.threads, workers.processes, memory_bytes, resources.worker_timeout
                ) as executor,
            ):
                run_folder.freeze(layout, prepared.config, prepared.shape.digest, prepared.shape.store, arguments.words)
                _run(prepared, layout, executor, quiet=arguments.quiet, callback=callback)
        except StoppedError as error:
            command = run_folder.resume_command(arguments.dataset, root, config.resources.scheduler)
            if layout.config.exists():
                raise StoppedError(f"{error}; continue with: {command}") from None
            more = ", with more time" if "time limit" in str(error) else ""
            raise StoppedError(f"{error} before anything was saved; start it again{more}") from None
        return TrainedRun(layout.root, read_record(layout.report))


def _run(
    prepared: "Prepared",
    layout: "RunLayout",
    executor: "Executor",
    *,
    quiet: bool,
    callback: "Callback | None",
) -> None:
    # Heavy imports wait until here, as above.
    from pipeline.datasets.feature_rows import ScaledFeatures, live
    from pipeline.datasets.table_records import take_cost
    from pipeline.reporting import results
    from pipeline.runtime import run_folder
    from pipeline.runtime.memory_limits import MemoryMeter  # psutil
    from pipeline.runtime.stored_arrays import StoredFile
    from pipeline.stages.after.evaluate_model import evaluate_model  # numba
    from pipeline.stages.fit_model import fit
    from pipeline.stages.preparation import build_features, compile_needed
    from pipeline.stages.workspace import Run, Workspace
    from pipeline.work.events import READ, Events, StageCost, saved_state
    from pipeline.work.runner import OnExecutor
    from pipeline.work.store import FolderStore
    from storage.files import make_folder, remove_file  # numpy

    costs, peak_bytes = saved_state(layout)
    read = take_cost()
    if read.wall_seconds:
        before = costs.setdefault(READ, StageCost())
        before.wall_seconds += read.wall_seconds
        before.cpu_seconds += read.cpu_seconds
        before.items += read.n_tables
    with (
        MemoryMeter(max(peak_bytes, read.peak_bytes)) as meter,
        Events(layout, costs, meter, quiet=quiet, callback=callback) as events,
    ):
        try:
            stopping.Lease.next(layout.lease)  # ends what a cluster still runs for a session that was killed
            executor.warn = events.warn
            events.log(f"run folder {layout.root}")
            for note in (*read.notes, *prepared.notes):
                events.log(note)
            started = run_folder.read_environment(layout)["environment"]
            changes = run_folder.environment_warnings(started, run_folder.environment())
            for warning in (*prepared.warnings, *changes):
                events.warn(warning)
            make_folder(prepared.store.root)
            executor.check_paths([layout.root, prepared.store.root, *prepared.data_paths])
            features: FeatureAccess = (
                prepared.store
                if prepared.config.resources.stores_features
                else live(prepared.request, prepared.shape, layout.data_chunks)
            )
            config = prepared.config
            store = FolderStore(layout, config.resources.checkpoint_every, events.warn)
            every, together = config.resources.checkpoint_every, prepared.plan.workers.together
            runner = OnExecutor(executor, store, events, every, together)
            if learns_scales(config.kernel.scale):
                features = ScaledFeatures(features, StoredFile(layout.feature_scales))  # type: ignore[arg-type]
            work = Workspace(config, prepared.shape, features, store, runner, events)
            run = Run(layout, prepared.request, prepared.store, work, runner, events)
            compile_needed(run)
            build_features(run)
            try:
                fit(work)
                scores = evaluate_model(run)
            except (CorruptDataError, MissingDataError):
                if not build_features(run, contents=True):
                    raise
                fit(work)  # goes on from what is committed
                scores = evaluate_model(run)
            report = results.build(run, scores)
            remove_file(layout.lease)
            run_folder.finish(layout, report)
        except BaseException as error:
            with suppress(StorageError):
                events.record("error", error=type(error).__name__, traceback=traceback.format_exc())
                error.add_note(f"(traceback in {layout.log})") if describe(error)[0] is ExitCode.BUG else None
            raise


def _tell(run: TrainedRun, quiet: bool) -> ExitCode:
    from pipeline.reporting.result_table import next_steps, remarks, table  # brings numpy and numba

    report = run.report
    if not quiet:
        lines = ["", *table(report), f"model and report: {run.folder}", *next_steps(run.folder)]
        print("\n".join(lines), file=Console(sys.stdout), flush=True)
    else:
        for line in remarks(report):
            print(line, file=Console(sys.stderr))
    return ExitCode.DONE if report["converged"] else ExitCode.NOT_CONVERGED


class _Called(ModuleType):
    """This module, which `pipeline.train` names: a command to start, and in Python the function of that name."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _Called

if __name__ == "__main__":
    sys.exit(main())
