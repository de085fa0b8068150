"""`python -m pipeline.verify RUN`: read every byte of a run and of its features again, and name what is damaged.

It takes no lock and changes nothing.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from features.cell_text import printable
from pipeline.config.command_line import command_parser
from pipeline.errors import ExitCode, MissingRunError, PipelineError
from pipeline.reporting.run_facts import odd_key
from pipeline.runtime.answers import answered
from pipeline.runtime.run_folder import frozen_config, read_environment
from storage.errors import FEATURES_REMEDY, StorageError, remedy_of
from storage.files import open_plain, parse_json
from storage.folder_layouts import MANIFEST_NAME, FeatureLayout, RunLayout
from storage.folders import committed_files, verify
from storage.lock import holder
from storage.records import read_record

LOOKS, PAUSE_SECONDS = 3, 0.3  # before something of a live run, which may be replacing it, is called damaged


@dataclass
class Findings:
    """A line for every damaged thing, notes of what was not checked, and the files that were read."""

    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: list[Path] = field(default_factory=list)

    def add(self, name: str, problems: Iterable[str], advice: str = "") -> None:
        """Add problems of a file or folder; without advice, what is told of the files of a run."""
        self.damaged += [f"{name}: {problem}; {advice or remedy_of(name)}" for problem in problems]


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
    return answered(lambda: _print_findings(arguments.run, quiet=arguments.quiet))


def _print_findings(run: Path, *, quiet: bool) -> ExitCode:
    started = time.perf_counter()
    found = verify_run(run)
    lines = [f"damaged: {line}" for line in found.damaged]
    if not quiet:
        verdict = f"{len(found.damaged)} damaged" if found.damaged else "whole"
        verdict += "" if RunLayout(run).report.exists() else ", not finished"
        size = sum(path.stat().st_size for path in found.read if path.exists()) / 2**20
        lines += [f"note: {line}" for line in found.notes]
        lines.append(
            f"{run}: {verdict}; {len(found.read)} files, {size:.1f} MiB, {time.perf_counter() - started:.1f} s"
        )
    print(*map(printable, lines), sep="\n", end="\n" if lines else "")
    return ExitCode.INVALID_DATA if found.damaged else ExitCode.DONE


def verify_run(root: Path) -> Findings:
    """Check every file of a run, and of the feature store that it used. Raises MissingRunError where there is none."""
    layout = RunLayout(root)
    if not any(path.exists() for path in (layout.config, layout.environment, layout.report)):
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    live, found = holder(layout.lock) is not None, _look(layout)
    for _ in range(LOOKS - 1 if live else 0):
        if found.damaged:
            time.sleep(PAUSE_SECONDS)
            before, found = found.damaged, _look(layout)
            found.damaged = [line for line in found.damaged if line in before]
    return found


def _look(layout: RunLayout) -> Findings:
    found, live, finished = Findings(), holder(layout.lock) is not None, layout.report.exists()
    kept = {layout.config, layout.environment, layout.state, layout.report, layout.contents, layout.log, layout.metrics}
    for path in committed_files(layout.root):
        name = path.relative_to(layout.root).as_posix()
        if path.is_symlink() or (not path.is_file() and path.exists()):
            found.add(name, ["is no plain file, as a run makes it"], "remove it")
        elif path.name == MANIFEST_NAME:
            _look_at_folder(path.parent, path.parent.relative_to(layout.root).as_posix(), found)
        elif path in kept or ("/" in name and not path.is_relative_to(layout.progress)):
            found.read.append(path)
            found.add(name, _problems(layout, path, torn=live or not finished) if path.exists() else [])
    expected = [layout.config.name, layout.environment.name]
    if layout.contents.exists() or (finished and not live):
        expected.append(layout.contents.name)
        with suppress(StorageError):  # named already
            expected += read_record(layout.contents)["files"]
    for name in dict.fromkeys(expected):  # the report is committed just after the list: a kill may come between
        if not (layout.root / name).exists() and (finished or name != layout.report.name):
            found.add(name, ["missing"])
    _look_at_features(layout, finished, found)
    return found


def _look_at_folder(folder: Path, name: str, found: Findings, advice: str = "") -> None:
    """Compare a folder with its manifest."""
    with suppress(FileNotFoundError):  # removed meanwhile, by a run that is at work
        found.read += [path for path in folder.rglob("*") if not path.is_dir()]
    found.add(name, verify(folder, contents=True) if folder.exists() else [], advice)


def _problems(layout: RunLayout, path: Path, *, torn: bool) -> list[str]:
    """Return the problem of a file that no manifest names; the last line of a log may be torn by a kill."""
    from storage.arrays import check_npz  # brings numpy, which --help does without

    try:
        if path == layout.config:
            frozen_config(layout)
        elif path.suffix == ".jsonl":
            _check_lines(path, torn=torn)
        elif path.suffix == ".npz":
            check_npz(path)
        elif path.suffix != ".json":
            return ["the MANIFEST.json of its folder is missing"]
        elif read_record(path).get("item", path.stem) != path.stem:
            return ["it belongs to another item"]
    except (StorageError, PipelineError, ValueError, OSError) as error:
        return [str(error).removeprefix(f"{path}: ").partition(";")[0]]
    return []


def _check_lines(path: Path, *, torn: bool) -> None:
    """Check that every line of a file is JSON; with `torn`, the last one may end early. Raises ValueError."""
    with open_plain(path) as stream:
        for number, line in enumerate(stream, 1):
            if torn and not line.endswith(b"\n"):
                return
            try:
                record = parse_json(line)
            except ValueError:
                raise ValueError(f"line {number} is not JSON") from None
            key = odd_key(record) if isinstance(record, dict) else "it is no object, which"
            if key is not None:
                raise ValueError(f"line {number}: {key} is not what a run writes there")


def _look_at_features(layout: RunLayout, finished: bool, found: Findings) -> None:
    """Check the feature store of a run; one that is gone is no damage: a finished run does not need it."""
    try:
        resources = frozen_config(layout).resources
        store = FeatureLayout(Path(resources.features_dir), read_environment(layout)["features"])
    except StorageError:
        found.notes.append("the features were not checked: where they are is not known")
        return
    if not resources.stores_features:
        return
    if store.manifest.exists():
        _look_at_folder(store.folder, str(store.folder), found, FEATURES_REMEDY)
    elif finished and store.folder.exists() and not holder(store.lock):
        found.add(str(store.manifest), ["missing"], FEATURES_REMEDY)
    else:
        words = "gone, and a finished run does not need them" if finished else "not complete"
        found.notes.append(f"{store.folder}: the features were not checked: they are {words}")


if __name__ == "__main__":
    sys.exit(main())
