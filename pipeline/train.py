"""`python -m pipeline.train DATASET`: train a sparse, certified kernel machine, and say what it cost.

The story of a run: settings → plan → features → centers → statistics → solve → evaluate → report.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline import config as configuration
from pipeline import stopping
from pipeline.command_line import Arguments, parse
from pipeline.config import Loaded, TrainConfig
from pipeline.errors import ConfigMismatchError, ExitCode, StoppedError, any_text_goes, describe


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    try:
        any_text_goes(sys.stdout)
        with stopping.listening():
            return _train(parse(argv))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    except (Exception, KeyboardInterrupt) as error:
        code, line = describe(error)
        if code is ExitCode.BUG and not getattr(error, "__notes__", None):
            traceback.print_exc()
        prefix = "" if code is ExitCode.STOPPED else "error: "  # who asked for a stop has made no error
        print(prefix + " ".join([line, *getattr(error, "__notes__", [])]), file=sys.stderr)
        return int(code)


def _train(arguments: Arguments) -> int:
    loaded = configuration.load(arguments.dataset, arguments.config_file, arguments.assignments)
    if arguments.print_config and arguments.resume == "never":
        return _print_config(loaded.config, loaded.origins)
    # Heavy imports wait until here, so that --help and --print-config answer at once.
    from pipeline import plan as planning
    from pipeline import run_folder, start_model
    from pipeline.executors import open_executor

    stored = run_folder.stored_config(arguments.run_dir, arguments.resume, arguments.dataset)
    config = loaded.config if stored is None else _resumed(stored, loaded)
    root = arguments.run_dir or run_folder.default_run_dir(arguments.dataset)
    if arguments.print_config:
        return _print_config(config, dict.fromkeys(loaded.origins, "the run" if stored else "as started"))
    if stored is not None and not arguments.dry_run:
        finished = _finished_report(root)
        if finished is not None:
            return _conclude(finished, root, arguments.quiet)

    prepared = planning.prepare(config, loaded.explicit, frozen=stored is not None)
    stored_features = prepared.config.resources.features_store == "zarr"
    start = start_model.open_start(prepared, root)
    planning.check_disk(prepared.plan, root, prepared.store, prepared.shape, stored=stored_features)
    if arguments.dry_run:
        print("\n".join(prepared.plan.lines(prepared.shape, prepared.store.manifest.exists())))
        return int(ExitCode.DONE)
    plan = prepared.plan
    memory = planning.worker_limit_bytes(prepared.config, plan.workers)
    with (
        stopping.working(prepared.config.resources.time_limit),
        open_executor(prepared.config.resources.scheduler, plan.workers, memory) as executor,
        run_folder.taken(root, prepared.config, prepared.shape.digest, stored) as layout,
    ):
        try:
            report = _run(prepared, layout, executor, start, quiet=arguments.quiet)
        except StoppedError as error:
            command = run_folder.resume_command(arguments.dataset, root)
            raise StoppedError(f"{error}; continue with: {command}") from None
    return _conclude(report, root, arguments.quiet)


def _run(prepared: Any, layout: Any, executor: Any, start: Any, *, quiet: bool) -> dict[str, Any]:
    from pipeline import results, run_folder
    from pipeline.events import Events, MemoryMeter
    from pipeline.live_features import live
    from pipeline.stages import centers, evaluate, features, initial_weights, solve, statistics
    from pipeline.stages.run import Run, saved_state
    from storage.commit import make_folder, remove_file

    costs, peak_bytes = saved_state(layout)
    with MemoryMeter(peak_bytes) as meter, Events(layout.log, layout.metrics, meter, quiet=quiet) as events:
        try:
            stopping.Turn.next(layout.turn)  # ends what a cluster still runs for a session that was killed
            events.say(f"run folder {layout.root}")
            for note in prepared.notes:
                events.say(note)
            for warning in run_folder.environment_changes(layout):
                events.warn(warning)
            make_folder(prepared.store.root)
            executor.check_paths([layout.root, prepared.store.root, *_paths(prepared.request.source)])
            stored = prepared.config.resources.features_store == "zarr"
            run = Run(
                layout=layout,
                feature_layout=prepared.store,
                features=prepared.store if stored else live(prepared.request, prepared.shape),
                request=prepared.request,
                shape=prepared.shape,
                config=prepared.config,
                events=events,
                executor=executor,
                costs=costs,
            )
            if start is not None:
                initial_weights.commit_model(layout, start)
            features.run(run)
            centers.run(run)
            statistics.run(run)
            solve.run(run)
            scores = evaluate.run(run)
            report = results.build(run, scores, meter.peak_bytes)
            remove_file(layout.turn)
            run_folder.finish(layout, report)
            return report
        except BaseException as error:
            with suppress(OSError):
                events.record("error", error=type(error).__name__, traceback=traceback.format_exc())
                error.add_note(f"(traceback in {layout.log})") if describe(error)[0] is ExitCode.BUG else None
            raise


def _paths(source: Any) -> list[Path]:
    """Return the files and folders that the data come from; the workers of a cluster must see them too."""
    return [Path(path) for path in (source.dataset, source.data_dir) if path and Path(path).is_absolute()]


def _resumed(stored: TrainConfig, loaded: Loaded) -> TrainConfig:
    """Return the stored configuration with the resources asked for now; anything else that was asked must agree."""
    asked = loaded.config
    differing = configuration.differing_keys(stored, asked, sorted(loaded.explicit))
    if stored.dataset != asked.dataset:
        differing.insert(0, f"dataset: {stored.dataset} in the run, {asked.dataset} asked")
    if differing:
        raise ConfigMismatchError(
            f"the run was started with other settings ({'; '.join(differing)}); drop them, or start a new run"
        )
    for key in loaded.explicit:
        if key.startswith("resources."):
            stored = configuration.with_value(stored, key, configuration.get(asked, key))
    return stored


def _finished_report(root: Path) -> dict[str, Any] | None:
    """Return the report of a finished run whose model is whole, None where there is something left to do."""
    from pipeline.run_folder import finished_report
    from storage.errors import CorruptDataError
    from storage.layout import RunLayout
    from storage.manifest import verify

    layout = RunLayout(root)
    if not layout.report.exists():
        return None
    problems = verify(layout.model, contents=True)
    if problems:
        raise CorruptDataError(
            f"model {layout.model}: {problems[0]}; restore it, or delete the folder model and report.json and "
            "resume: they are made again"
        )
    return finished_report(layout)


def _conclude(report: dict[str, Any], root: Path, quiet: bool) -> int:
    """Print the table and where things are; return the exit code."""
    from pipeline.results import not_converged, table

    if not quiet:
        print("\n".join(["", *table(report), f"model and report: {root}"]))
    elif not report["converged"]:
        print("\n".join(not_converged(report)), file=sys.stderr)
    return int(ExitCode.DONE if report["converged"] else ExitCode.NOT_CONVERGED)


def _print_config(config: TrainConfig, origins: Any) -> int:
    print(f"dataset = {config.dataset}")
    for key, origin in origins.items():
        value = configuration.get(config, key)
        print(f"{key} = {'(from the data)' if value is None else value}  # {origin}")
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main())
