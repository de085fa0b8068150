"""`python -m pipeline.status RUN`: what a run is doing, or how it ended; of a folder of runs, a line for each of them.

Reads only, and takes no lock.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config.command_line import command_parser
from pipeline.errors import ExitCode
from pipeline.reporting.run_facts import lines, overview, status, status_of_all
from pipeline.runtime.console import answered
from storage.folder_layouts import RunLayout


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 65 where a record is damaged, or 66 where there is no such run."""
    parser = command_parser(
        "status",
        "Tell what a run is doing, or how it ended; of a folder of runs, a line for each of them. Reads only.",
        "Exit codes: 0 done, 65 a record is damaged, 66 no such run, 69 the folder cannot be read, 2 usage.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run, or of several runs")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON, for programs")

    def show() -> ExitCode:
        arguments = parser.parse_args(argv)
        runs = [] if RunLayout(arguments.run).config.exists() else status_of_all(arguments.run)
        facts: Any = runs or status(arguments.run)
        told = overview(runs) if runs else lines(facts)
        print(json.dumps(facts, indent=2) if arguments.json else "\n".join(told))
        return ExitCode.INVALID_DATA if any(one["damaged"] for one in runs or [facts]) else ExitCode.DONE

    return answered(show)


if __name__ == "__main__":
    sys.exit(main())
