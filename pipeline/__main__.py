"""`slkl COMMAND ...`, or `python -m pipeline COMMAND ...`: the commands of this package under one name."""

import importlib
import sys
from collections.abc import Sequence

from pipeline import __version__
from pipeline.errors import ExitCode

# Each is the module `pipeline.<command>`, which takes the arguments that follow it.
COMMANDS = {
    "train": "train a sparse, certified kernel machine, or resume a run",
    "predict": "labels or values of new rows",
    "evaluate": "error of a model on labelled rows",
    "report": "one page that shows a run",
    "status": "what a run is doing, or how it ended",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; 2 where there is no such command."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else ""
    if name in COMMANDS:
        command = importlib.import_module(f"pipeline.{name}")
        if argv is None:  # a process of its own
            sys.argv[1:] = words[1:]
        return int(command.main(None if argv is None else words[1:]))
    if name in ("-h", "--help"):
        print(_overview())
        return int(ExitCode.DONE)
    if name == "--version":
        print(f"slkl {__version__}")
        return int(ExitCode.DONE)
    print(f"error: {name!r} is no command\n\n{_overview()}" if name else _overview(), file=sys.stderr)
    return int(ExitCode.USAGE)


def _overview() -> str:
    lines = (f"  {name:<16}{what}" for name, what in COMMANDS.items())
    return "\n".join(["usage: slkl COMMAND ...", "", *lines, "", "slkl COMMAND --help tells its options."])


if __name__ == "__main__":
    sys.exit(main())
