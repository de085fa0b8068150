"""`python -m pipeline.train DATASET`: train a sparse, certified kernel machine, and say what it cost.

The story of a run: settings → plan → features → centers → statistics → solve → evaluate → report.
"""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import config as configuration
from pipeline.command_line import Arguments, parse
from pipeline.config import TrainConfig
from pipeline.errors import ConfigMismatchError, ExitCode, describe


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    try:
        return _train(parse(argv))
    except (Exception, KeyboardInterrupt) as error:
        code, line = describe(error)
        if code is ExitCode.BUG:
            traceback.print_exc()
        print(f"error: {line}", file=sys.stderr)
        return int(code)


def _train(arguments: Arguments) -> int:
    config, origins = configuration.load(arguments.dataset, arguments.config_file, arguments.assignments)
    if arguments.print_config:
        _print_config(config, origins)
        return ExitCode.DONE
    # Heavy imports wait until here, so that --help and --print-config answer at once.
    from pipeline import plan as planning
    from pipeline import run_folder
    from pipeline.executors import available_processors
    from pipeline.feature_store import describe as describe_features
    from pipeline.feature_store import open_data

    root = arguments.run_dir or run_folder.default_run_dir(arguments.dataset)
    stored = run_folder.stored_config(root, arguments.resume, arguments.dataset)
    if stored is not None:
        config = _resumed(stored, config, origins)
        finished = _finished_report(root)
        if finished is not None:
            return _conclude(finished, root, arguments.quiet)

    config, request = planning.feature_request(config, open_data(planning.source_spec(config)))
    shape = describe_features(request)
    config = planning.fill_in(config, shape, origins["centers.count"] != "default")
    workers = config.resources.workers or available_processors()
    plan = planning.make_plan(config, shape, workers)
    config = configuration.with_value(config, "statistics.block_rows", plan.block_rows)
    if arguments.dry_run:
        print("\n".join(plan.lines()))
    planning.check_disk(plan, root, Path(config.resources.features_dir), shape)
    if arguments.dry_run:
        return ExitCode.DONE
    with run_folder.taken(root, config) as layout:
        report = _run(arguments, config, request, shape, layout, workers)
    return _conclude(report, root, arguments.quiet)


def _run(
    arguments: Arguments, config: TrainConfig, request: Any, shape: Any, layout: Any, workers: int
) -> dict[str, Any]:
    from pipeline import results
    from pipeline.events import Events, MemoryMeter
    from pipeline.executors import open_executor
    from pipeline.plan import worker_limit_bytes
    from pipeline.stages import centers, evaluate, features, solve, statistics
    from pipeline.stages.run import Run, saved_costs
    from storage.commit import write_json
    from storage.layout import FeatureLayout

    store = FeatureLayout(Path(config.resources.features_dir).absolute(), shape.digest)
    with (
        MemoryMeter() as meter,
        Events(layout.log, layout.metrics, meter, quiet=arguments.quiet) as events,
        open_executor(
            config.resources.scheduler, workers, worker_limit_bytes(config, workers), layout.root
        ) as executor,
    ):
        try:
            run = Run(layout, store, request, shape, config, events, executor, saved_costs(layout))
            events.say(f"run folder {layout.root}")
            features.run(run)
            centers.run(run)
            statistics.run(run)
            solve.run(run)
            scores = evaluate.run(run)
            report = results.build(run, scores, meter.peak_bytes)
            write_json(layout.report, report)
            return report
        except BaseException as error:
            events.record("error", error=type(error).__name__, traceback=traceback.format_exc())
            raise


def _resumed(stored: TrainConfig, asked: TrainConfig, origins: dict[str, str]) -> TrainConfig:
    """Return the stored configuration with the resources asked for now; anything else that was asked must agree."""
    explicit = [key for key, origin in origins.items() if origin.startswith("--") or origin.endswith(".toml")]
    named = configuration.named_run(asked.dataset)
    explicit = [key for key in explicit if named is None or origins[key] != named.name]
    differing = configuration.differing_keys(stored, asked, iter(explicit))
    if stored.dataset != asked.dataset:
        differing.insert(0, f"dataset: {stored.dataset} in the run, {asked.dataset} asked")
    if differing:
        raise ConfigMismatchError(
            f"the run was started with other settings ({'; '.join(differing)}); drop them, or start a new run"
        )
    resources = {key: configuration.get(asked, key) for key in explicit if key.startswith("resources.")}
    for key, value in resources.items():
        stored = configuration.with_value(stored, key, value)
    return stored


def _finished_report(root: Path) -> dict[str, Any] | None:
    from storage.commit import read_json
    from storage.layout import RunLayout

    path = RunLayout(root).report
    return dict(read_json(path)) if path.exists() else None


def _conclude(report: dict[str, Any], root: Path, quiet: bool) -> int:
    """Print the table and where things are; return the exit code."""
    from pipeline.results import table

    if not quiet:
        print("\n".join(["", *table(report), f"model and report: {root}"]))
    return int(ExitCode.DONE if report["converged"] else ExitCode.NOT_CONVERGED)


def _print_config(config: TrainConfig, origins: dict[str, str]) -> None:
    print(f"dataset = {config.dataset}")
    for key, origin in origins.items():
        value = configuration.get(config, key)
        print(f"{key} = {'(from the data)' if value is None else value}  # {origin}")


if __name__ == "__main__":
    sys.exit(main())
