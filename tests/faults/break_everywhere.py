"""Break a toy run at every change of the disk, resume it, and compare the model with that of an uninterrupted run.

Run as a program by test_every_change.py: it forks one child for each break, which saves the imports and the compiling.
In the child every `storage.files.low_*` function counts. The K-th call ends the process with SIGKILL, before the
change or after half of it where it is a write; or it fails with ENOSPC or EIO. Prints one line of JSON: how many calls
there were and, for each way to break, how many calls were broken, how many of these ended the run, what went wrong.
"""

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.train import main
from runs import model_bytes
from storage import files as disk

LOW = [name for name in vars(disk) if name.startswith("low_")]


def in_child(work: Callable[[], int]) -> int:
    """Run something in a fork, and return its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def counting(how: str, fatal: int | None, counted: Path) -> None:
    """Count the calls of every low function into a file; break at the fatal one: kill, or fail with an error name."""
    calls = 0

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fatal and how != "kill":
                number = getattr(errno, how)
                raise OSError(number, os.strerror(number))
            if calls == fatal:
                if name == "low_write":
                    descriptor, path, data = arguments
                    function(descriptor, path, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            if fatal is None:
                counted.write_text(str(calls))
            return function(*arguments)

        return call

    for name in LOW:
        setattr(disk, name, wrapped(name, getattr(disk, name)))


def attempt(arguments: list[str], run: Path, how: str, fatal: int | None, counted: Path) -> int:
    """Start the run in a fork, to break at a call; a fatal call of None only counts. Its errors go to a file."""

    def work() -> int:
        counting(how, fatal, counted)
        with (run.parent / "errors").open("w") as sys.stderr:
            return main([*arguments, "--run-dir", str(run), "--resume", "auto", "-q"])

    return in_child(work)


def everywhere(folder: Path, ways: list[str], count: int, arguments: list[str]) -> dict[str, Any]:
    """Break at `count` calls in each way, evenly spread (0: at every call), and return what was found."""
    whole, counted = folder / "whole", folder / "calls"
    # Once in this process, so that no fork has to import and load what was compiled.
    main([*arguments, "--run-dir", str(folder / "first"), "-q"])
    code = attempt(arguments, whole, "", None, counted)
    assert code in (0, 3), f"the uninterrupted run ended with {code}"
    expected, n_calls = model_bytes(whole), int(counted.read_text())
    found: dict[str, Any] = {"calls": n_calls}
    step = n_calls // count if count else 1
    for number, how in enumerate(ways):
        tried, ended, wrong = range(1 + number * step // len(ways), n_calls + 1, step), 0, []
        for fatal in tried:
            run = folder / f"broken-{fatal}"
            code = attempt(arguments, run, how, fatal, counted)
            ended += code not in (0, 3)
            wrong += [f"call {fatal}: {problem}" for problem in problems(arguments, run, how, code, expected)]
            shutil.rmtree(run, ignore_errors=True)
        found[how] = {"tried": len(tried), "ended": ended, "wrong": wrong}
    return found


def problems(arguments: list[str], run: Path, how: str, code: int, expected: dict[str, bytes]) -> list[str]:
    """Return what a broken run and its resumption did wrong."""
    found = []
    said = (run.parent / "errors").read_text()
    if code not in ((-signal.SIGKILL,) if how == "kill" else (73,)) + (0, 3):
        found.append(f"ended with {code}: {said[-300:]}")
    *warnings, error = said.splitlines() or [""]
    warned = all(line.startswith("warning: ") for line in warnings)
    if code == 73 and not ("/" in error and error.startswith("error: ") and warned):
        found.append(f"said {said[-300:]!r}")
    code = in_child(lambda: main([*arguments, "--run-dir", str(run), "--resume", "auto", "-q"]))
    if code not in (0, 3):
        found.append(f"the resumed run ended with {code}")
    elif model_bytes(run) != expected:
        found.append("another model")
    elif left := [str(path) for path in run.rglob(".*")]:
        found.append(f"left {left[0]}")
    return found


if __name__ == "__main__":
    print(json.dumps(everywhere(Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), sys.argv[4:])))
