"""`python -m pipeline.train DATASET`, in Python `train(DATASET)`: a sparse, certified kernel machine, and what it cost.

The module can be called: `from pipeline import train; run = train("digits")`. `session.py` has what a run does.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from features.errors import DataError, UsageError
from pipeline.config.command_line import RESUME, Arguments, check_plain, parse, program
from pipeline.config.settings import ARGUMENTS, SETTINGS, flat, lines, load, worded
from pipeline.errors import ConfigError, ExitCode, PipelineError, StoppedError
from pipeline.runtime import run_folder, stopping
from pipeline.runtime.console import answered
from storage.errors import StorageError
from storage.folder_layouts import RunLayout

if TYPE_CHECKING:  # imported late, so that --help answers at once
    from pipeline.session import TrainedRun
    from pipeline.work.events import Callback

_under_way = threading.Lock()


def train(
    dataset: str | PathLike[str] = "",
    *,
    run_dir: str | PathLike[str] | None = None,
    resume: str = "never",
    config: str | PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
    callback: "Callback | None" = None,
    **options: Any,
) -> "TrainedRun":
    """Train as the command does, to the same bytes in the same folder, and return the run.

    Parameters
    ----------
    dataset : str or path
        Name of a data set, or path of your data. "": what the file of `config` names, or those of a run that goes on.
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
    if callback is not None and not callable(callback):
        raise ConfigError(f"callback is a {type(callback).__name__}: give a function that takes a record")
    around = {"run_dir": run_dir, "resume": resume, "config": config}
    asked = replace(_arguments(dataset, around, settings, options), quiet=quiet, callback=callback)
    if not _under_way.acquire(blocking=False):
        raise ConfigError("a run is under way in this process: wait for it, or start a process for each")
    try:
        with stopping.listening(stopping.unclaimed()):
            run = _train(asked)
    except StoppedError as error:  # what Ctrl-C asked for comes out as what Python means by it
        if str(error).startswith(f"stopped by {signal.SIGINT.name}"):
            raise KeyboardInterrupt(str(error)) from None
        raise
    except (PipelineError, DataError, UsageError, StorageError) as error:
        error.args = (worded(str(error), ARGUMENTS),)
        raise
    finally:
        _under_way.release()
    assert run is not None  # nothing was asked for but a run
    return run


def _arguments(
    dataset: Any, around: dict[str, Any], settings: Mapping[str, Any] | None, options: dict[str, Any]
) -> Arguments:
    """Return what a call asks for: settings by their keys, each with the name of its argument."""
    for data, kinds in ((dataset, str | PathLike), (options.get("test"), str | PathLike | None)):
        if not isinstance(data, kinds):
            makers = "numpy.savez('rows.npz', X=X, y=y) and frame.to_parquet('rows.parquet')"
            remedy = f"give the name of a data set or the path of a file, as {makers} make one"
            raise ConfigError(f"the data are a {type(data).__name__}: {remedy}")
    keys = {name: key for key, name in ARGUMENTS.items() if key in SETTINGS}
    for name in options.keys() - keys:
        near = get_close_matches(name, keys, 1)
        advice = f"did you mean {near[0]}?" if near else f"{program('train')} --help lists all, with hyphens"
        raise ConfigError(f"unrecognized option {name!r:.80}; {advice}")
    given = {keys[name]: (value, name) for name, value in options.items()}
    if not isinstance(settings, Mapping | None):
        raise ConfigError(f"settings are a {type(settings).__name__}: give a dict of values by key")
    given |= {key: (value, "settings") for key, value in flat(settings or {}).items()}
    for name in ("run_dir", "config"):
        if not isinstance(around[name], str | PathLike | None):
            raise ConfigError(f"{name} is a {type(around[name]).__name__}: give a path")
    paths = {name: None if around[name] is None else Path(around[name]) for name in ("run_dir", "config")}
    check_plain(str(path) for path in paths.values() if path)
    if around["resume"] not in RESUME:
        raise ConfigError(f"resume = {around['resume']!r:.80}: must be one of {', '.join(RESUME)}")
    shown = around | {"settings": settings} | options
    called = [repr(dataset), *(f"{name}={value!r}" for name, value in shown.items() if value is not None)]
    return Arguments(
        command=f"train({', '.join(called)})",
        dataset=os.fspath(dataset),
        assignments={key: (value, name) for key, (value, name) in given.items() if value is not None},
        config=paths["config"],
        run_dir=paths["run_dir"],
        resume=around["resume"],
        names=ARGUMENTS,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""

    def work() -> int:
        with stopping.listening(is_last=argv is None):
            run = _train(parse(argv))
        return ExitCode.DONE if run is None or run.report["converged"] else ExitCode.NOT_CONVERGED

    return answered(work, is_run=True)


def _train(asked: Arguments) -> "TrainedRun | None":
    asked = replace(asked, dataset=_dataset_of(asked))
    loaded = load(asked.dataset, asked.config, asked.assignments)
    asked = replace(asked, dataset=asked.dataset or loaded.config.dataset)
    if asked.print_config and asked.resume == "never":
        print("\n".join(lines(loaded.config, loaded.origins)))
        return None
    from pipeline.session import run_session  # brings numpy and numba, which --help and --print-config do without

    return run_session(asked, loaded)


def _dataset_of(asked: Arguments) -> str:
    """Return the data that are named, or those of the run that goes on. Raises ConfigError for the folder of a run."""
    named = RunLayout(Path(asked.dataset))
    if asked.dataset and named.config.is_file() and named.environment.is_file():
        remedy = f"continue it with `run_dir={asked.dataset}` `resume=auto`, and no DATASET"
        raise ConfigError(f"{asked.dataset}: is the folder of a run; {remedy}")
    if asked.dataset or asked.config or asked.run_dir is None or asked.resume == "never":
        return asked.dataset
    layout = RunLayout(asked.run_dir)
    return run_folder.frozen_config(layout).dataset if layout.config.exists() else ""


class _Called(ModuleType):
    """This module, which `pipeline.train` names: a command to start, and in Python the function of that name."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _Called

if __name__ == "__main__":
    sys.exit(main())
