"""`python -m pipeline.verify RUN`: read every byte of a run and of its features again, and name what is damaged."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.command_line import command_parser
from pipeline.errors import ExitCode
from pipeline.runtime.answers import answered


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 whole, 65 damaged, 66 no such run."""
    parser = command_parser(
        "verify",
        "Read every byte of a run and of its features again, and name what is damaged.",
        "Exit codes: 0 whole, 65 damaged, 66 no such run, 2 usage.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run, finished or under way")
    parser.add_argument("-q", "--quiet", action="store_true", help="print what is damaged only")
    arguments = parser.parse_args(argv)
    return answered(lambda: _verify(arguments.run, quiet=arguments.quiet))


def _verify(run: Path, *, quiet: bool) -> ExitCode:
    from pipeline.reporting.verification import verify_run  # brings numpy, which --help does without

    started = time.perf_counter()
    result = verify_run(run)
    lines = [f"damaged: {line}" for line in result.damaged]
    if not quiet:
        verdict = f"{len(result.damaged)} damaged" if result.damaged else "whole"
        size, seconds = f"{result.bytes / 2**20:.1f} MiB", time.perf_counter() - started
        lines += [f"note: {line}" for line in result.notes]
        lines.append(f"{run}: {verdict}; {result.files} files, {size}, {seconds:.1f} s")
    for line in lines:
        print(line)
    return ExitCode.INVALID_DATA if result.damaged else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
