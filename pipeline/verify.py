"""`python -m pipeline.verify RUN`: read every byte of a run and of its features again, and name what is damaged.

It takes no lock and changes nothing, so it may be asked of a run that is under way: what looks damaged is looked at
again, since the run may have been replacing or removing it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from storage.remedies import FEATURES, remedy_of

LOOKS, PAUSE_SECONDS = 3, 0.3  # before something of a live run is called damaged


@dataclass
class Result:
    """What was found: a line for every damaged thing, notes, and how much was read."""

    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 whole, 65 damaged, 66 no such run."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.verify",
        description="Read every byte of a run and of its features again, and name what is damaged.",
        epilog="Exit codes: 0 whole, 65 damaged, 66 no such run, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run, finished or under way")
    parser.add_argument("-q", "--quiet", action="store_true", help="print what is damaged only")
    arguments = parser.parse_args(argv)
    from pipeline.errors import ExitCode, answered

    def tell() -> int:
        started = time.perf_counter()
        result = verify_run(arguments.run)
        for line in result.damaged:
            print(f"damaged: {line}")
        if not arguments.quiet:
            for line in result.notes:
                print(f"note: {line}")
            verdict = f"{len(result.damaged)} damaged" if result.damaged else "whole"
            size, seconds = f"{result.bytes / 2**20:.1f} MiB", time.perf_counter() - started
            print(f"{arguments.run}: {verdict}; {result.files} files, {size}, {seconds:.1f} s")
        return int(ExitCode.INVALID_DATA if result.damaged else ExitCode.DONE)

    return answered(tell)


def verify_run(root: Path) -> Result:
    """Check every file of a run, and of the feature store that it used. Raises MissingRunError where there is none."""
    from pipeline.errors import MissingRunError
    from storage.commit import committed_files
    from storage.layout import RunLayout
    from storage.lock import holder
    from storage.manifest import MANIFEST_NAME

    layout = RunLayout(root)
    if not any(path.exists() for path in (layout.config, layout.environment, layout.report)):
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    live = holder(layout.lock) is not None
    looks = _Looks(root, live=live, finished=layout.report.exists(), result=Result())
    for path in committed_files(root):
        if path.name == MANIFEST_NAME:
            looks.folder(path.parent)
        else:
            looks.file(path)
    looks.presence(layout)
    looks.features(layout)
    return looks.result


@dataclass
class _Looks:
    """One check of a run: each thing is looked at, and again where it seems damaged."""

    root: Path
    live: bool
    finished: bool
    result: Result

    def presence(self, layout: Any) -> None:
        """Name what is not there: settings, and whatever a run listed when its stages were done."""
        expected = [layout.config.name, layout.environment.name]
        if layout.contents.exists() or (self.finished and not self.live):
            expected += [layout.contents.name, *self._listed(layout)]
            if not self.finished:  # the report is committed just after the list: a kill may come between
                expected = [name for name in expected if name != layout.report.name]
            if not self.live and not layout.report.exists():
                self.result.notes.append(f"{layout.report.name}: not there; the run is unfinished, resume it")
        for name in dict.fromkeys(expected):
            self._judge(name, partial(_missing, self.root / name))

    def _listed(self, layout: Any) -> list[str]:
        from storage.commit import read_record
        from storage.errors import StorageError

        try:
            return [str(name) for name in read_record(layout.contents)["files"]]
        except StorageError:
            return []  # named already

    def file(self, path: Path) -> None:
        """Check one file that no manifest names."""
        name = path.relative_to(self.root).as_posix()
        if name in ("run.lock", "report.html"):  # tells who is at work; made from report.json, for people
            return
        check = self._check_of(path, name)
        if check is None:
            self.result.notes.append(f"{name}: not a file of a run; not checked")
            return
        self._count(path)
        self._judge(name, lambda: [] if not path.exists() else _problem_of(check, path))

    def _check_of(self, path: Path, name: str) -> Callable[[Path], Any] | None:
        from pipeline.run_folder import frozen_config
        from storage.bundles import check_npz
        from storage.commit import read_record
        from storage.layout import RunLayout
        from storage.markers import check_marker

        if name == "config.toml":
            return lambda path: frozen_config(RunLayout(self.root))
        if name in ("env.json", "STATE.json", "report.json", "CONTENTS.json"):
            return read_record
        if path.suffix == ".jsonl":
            # The last line may be torn by a kill, until a run is finished.
            return lambda path: check_lines(path, torn=self.live or not self.finished)
        if path.suffix == ".npz":
            return check_npz
        if path.suffix == ".json" and name.startswith("markers/"):
            return check_marker
        return _belongs_to_no_manifest if "/" in name else None

    def folder(self, folder: Path, advice: str | None = None) -> None:
        """Check a folder against its manifest."""
        from storage.errors import StorageError
        from storage.manifest import MANIFEST_NAME, read, verify

        inside = folder.is_relative_to(self.root)
        name = folder.relative_to(self.root).as_posix() if inside else str(folder)
        named: set[Path] = {folder / MANIFEST_NAME}
        with suppress(StorageError):  # `verify` says it
            named |= {folder / file for file in read(folder).files}
        for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
            self._count(path)
            if path not in named and not path.name.startswith(".tmp-"):
                self.result.notes.append(f"{path}: not named by the manifest of its folder; not checked")
        self._judge(name, lambda: verify(folder, contents=True) if folder.exists() else [], advice)

    def features(self, layout: Any) -> None:
        """Check the feature store of the run; one that is gone is no damage of a finished run."""
        from pipeline.run_folder import frozen_config
        from storage.commit import read_record
        from storage.errors import StorageError
        from storage.layout import FeatureLayout
        from storage.lock import holder

        try:
            resources, digest = frozen_config(layout).resources, read_record(layout.environment)["features"]
        except StorageError:
            self.result.notes.append("the features were not checked: where they are is not known")
            return
        if resources.features_store != "zarr":
            return
        store = FeatureLayout(Path(resources.features_dir), digest)
        if store.manifest.exists():
            self.folder(store.folder, FEATURES)
        elif store.folder.exists() and self.finished and holder(store.lock) is None:
            self.result.damaged.append(f"{store.manifest}: missing; {FEATURES}")
        else:
            words = "gone; a finished run does not need them" if self.finished else "not built yet"
            self.result.notes.append(f"{store.folder}: the features are {words}")

    def _judge(self, name: str, look: Callable[[], list[str]], advice: str | None = None) -> None:
        """Take up what a look finds, if it still finds it later."""
        for again in range(LOOKS if self.live else 2):
            problems = look()
            if not problems:
                return
            if self.live and again < LOOKS - 1:
                time.sleep(PAUSE_SECONDS)
        self.result.damaged += [f"{name}: {problem}; {advice or remedy_of(name)}" for problem in problems]

    def _count(self, path: Path) -> None:
        try:
            self.result.bytes += path.stat().st_size
        except OSError:
            return  # gone meanwhile
        self.result.files += 1


def _problem_of(check: Callable[[Path], Any], path: Path) -> list[str]:
    """Return what a check says of a file, without its name and advice, which are added for all alike."""
    from pipeline.errors import PipelineError
    from storage.errors import StorageError

    try:
        check(path)
    except (StorageError, PipelineError, ValueError, OSError) as error:
        return [str(error).removeprefix(f"{path}: ").partition(";")[0]]
    return []


def _missing(path: Path) -> list[str]:
    return [] if path.exists() else ["missing"]


def _belongs_to_no_manifest(path: Path) -> None:
    raise ValueError("the MANIFEST.json of its folder is missing")


def check_lines(path: Path, *, torn: bool) -> None:
    """Check that every line of a file is JSON; with `torn`, the last one may end early. Raises ValueError."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if torn and not line.endswith(b"\n"):
                return
            try:
                json.loads(line)
            except ValueError:
                raise ValueError(f"line {number} is not JSON") from None


if __name__ == "__main__":
    sys.exit(main())
