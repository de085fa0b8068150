"""`python -m pipeline.report RUN`: one HTML file that tells of a run, also of one that is not done. Takes no lock."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.command_line import command_parser
from pipeline.errors import ConfigError, ExitCode
from pipeline.runtime.console import answered

PAGE_START = b"<!doctype html"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = command_parser(
        "report",
        "Write one HTML file that tells of a run, finished or not; it needs no network.",
        "Exit codes: 0 done, 2 usage, 65 a part is damaged and left out, 66 no such run, 69 the folder cannot be read, "
        "73 cannot create.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: RUN/report.html)")

    def work() -> ExitCode:
        arguments, damaged = parser.parse_args(argv), list[str]()
        print(write(arguments.run, arguments.out, damaged))
        for line in damaged:
            print(f"damaged: {line}", file=sys.stderr)
        return ExitCode.INVALID_DATA if damaged else ExitCode.DONE

    return answered(work)


def write(root: Path, out: Path | None, damaged: list[str] | None = None) -> Path:
    """Write the page of a run; return its path, and add to `damaged` what is left out for that."""
    # Bring numpy and numba, which --help does without.
    from pipeline.reporting.page import page
    from storage.files import write_file
    from storage.folder_layouts import RunLayout
    from storage.output_files import check_output

    layout = RunLayout(root)
    path = out or layout.report_html
    if path.resolve() != layout.report_html.resolve() and path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"--out {path}: lies in the run's folder, which only has room for {layout.report_html.name}")
    check_output(path, replace=True)
    replaces = path == layout.report_html or path.exists()
    if path.is_file() and not _is_page(path):
        raise ConfigError(f"--out {path}: exists and is no report; choose another name")
    text = page(layout, damaged)
    write_file(path, text.encode("utf-8"), replace=replaces)
    return path


def _is_page(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(PAGE_START)).lower() in (PAGE_START, b"")


if __name__ == "__main__":
    sys.exit(main())
