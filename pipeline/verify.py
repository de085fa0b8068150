"""`python -m pipeline.verify RUN`: read every byte of a run and of its features again, and name what is damaged.

It takes no lock and changes nothing. What looks damaged in a live run is looked at again: it may be being replaced.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.command_line import program
from pipeline.errors import ExitCode, MissingRunError, PipelineError
from pipeline.runtime.answers import answered
from storage.errors import FEATURES, StorageError, remedy_of
from storage.files import aside_of, open_plain, parse_json, replaced_path
from storage.lock import holder

if TYPE_CHECKING:  # imported late, so that --help answers at once
    from storage.folder_layouts import FeatureLayout, RunLayout

COMES_BACK = "a kill left it aside; resume the run, and it comes back"
LOOKS, PAUSE_SECONDS = 3, 0.3  # before something of a live run is called damaged


@dataclass
class Result:
    """What a check tells: a line for every damaged thing, notes, and how much was read."""

    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 whole, 65 damaged, 66 no such run."""
    parser = argparse.ArgumentParser(
        prog=program("verify"),
        description="Read every byte of a run and of its features again, and name what is damaged.",
        epilog="Exit codes: 0 whole, 65 damaged, 66 no such run, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run, finished or under way")
    parser.add_argument("-q", "--quiet", action="store_true", help="print what is damaged only")
    arguments = parser.parse_args(argv)

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
    # These --help does without.
    from storage.folder_layouts import MANIFEST_NAME, RunLayout
    from storage.folders import committed_files

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
    looks.leftovers()
    looks.features(layout)
    return looks.result


@dataclass
class _Looks:
    """One check of a run: each thing is looked at, and again where it seems damaged."""

    root: Path
    live: bool
    finished: bool
    result: Result

    def presence(self, layout: "RunLayout") -> None:
        """Name what is not there: settings, and whatever a run listed when its stages were done."""
        expected = [layout.config.name, layout.environment.name]
        if layout.contents.exists() or (self.finished and not self.live):
            expected += [layout.contents.name, *self._listed(layout)]
            if not self.finished:  # the report is committed just after the list: a kill may come between
                expected = [name for name in expected if name != layout.report.name]
            if not self.live and not layout.report.exists():
                self.result.notes.append(f"{layout.report.name}: not there; the run is unfinished, resume it")
            self._statistics(layout)
        for name in dict.fromkeys(expected):
            path = self.root / name
            self._judge(name, partial(_missing, path), COMES_BACK if replaced_path(path.parent).exists() else None)

    def _listed(self, layout: "RunLayout") -> list[str]:
        from storage.records import read_record  # which --help does without

        try:
            return [str(name) for name in read_record(layout.contents)["files"]]
        except StorageError:
            return []  # named already

    def file(self, path: Path) -> None:
        """Check one file that no manifest names."""
        name = path.relative_to(self.root).as_posix()
        # Tells who is at work; made from report.json, for people; how far items are, for whoever watches.
        if name in ("run.lock", "report.html") or name.startswith("progress/"):
            return
        check = self._check_of(path, name)
        if check is None:
            self.result.notes.append(f"{name}: not a file of a run; not checked")
            return
        self._count(path)
        self._judge(name, lambda: [] if not path.exists() else _problem_of(check, path))

    def _check_of(self, path: Path, name: str) -> Callable[[Path], object] | None:
        # Bring numpy, which --help does without.
        from pipeline.runtime.run_folder import frozen_config
        from storage.arrays import check_npz
        from storage.folder_layouts import RunLayout  # likewise
        from storage.records import read_marker, read_record

        if name == "turn":
            return lambda path: int(path.read_bytes())
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
            return read_marker
        return _belongs_to_no_manifest if "/" in name else None

    def folder(self, folder: Path, advice: str | None = None) -> None:
        """Check a folder against its manifest."""
        from storage.folder_layouts import MANIFEST_NAME  # which --help does without
        from storage.folders import read_manifest, verify  # which --help does without

        inside = folder.is_relative_to(self.root)
        name = folder.relative_to(self.root).as_posix() if inside else str(folder)
        named: set[Path] = {folder / MANIFEST_NAME}
        with suppress(StorageError):  # `verify` says it
            named |= {folder / file for file in read_manifest(folder).files}
        with suppress(FileNotFoundError):  # removed meanwhile, by a run that is at work
            for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
                self._count(path)
                if path not in named and not path.name.startswith("."):
                    self.result.notes.append(f"{path}: not named by the manifest of its folder; not checked")
        self._judge(name, lambda: verify(folder, contents=True) if folder.exists() else [], advice)

    def _statistics(self, layout: "RunLayout") -> None:
        """Tell of statistics that a finished run has dropped."""
        from pipeline.stages import finished_run  # brings numpy, which --help does without

        with suppress(StorageError):  # named already
            line = finished_run.note_on_statistics(layout) if self.finished and not self.live else None
            self.result.notes += [f"statistics: {line}"] if line else []

    def leftovers(self) -> None:
        """Name links and what a killed session left aside or could not remove while it was open; a session sweeps."""
        # Brings numpy, which --help does without.
        from pipeline.runtime.run_folder import links_in

        for path in links_in(self.root):
            advice = "no run is resumed with one; put what it leads to in its place"
            self.result.notes.append(f"{path.relative_to(self.root).as_posix()}: a symbolic link; {advice}")
        for path in sorted(self.root.rglob(".*")) if not self.live else ():
            if (aside := aside_of(path.name)) is not None:
                advice = "nothing needs it, delete it" if self.finished else "it goes when the run is resumed"
                advice = COMES_BACK if aside.replaced and not path.with_name(aside.name).exists() else advice
                self.result.notes.append(f"{path.relative_to(self.root).as_posix()}: left behind; {advice}")

    def features(self, layout: "RunLayout") -> None:
        """Check the feature store of the run; one that is gone is no damage of a finished run."""
        # Bring numpy, which --help does without.
        from pipeline.runtime.run_folder import frozen_config
        from storage.folder_layouts import FeatureLayout
        from storage.records import read_record

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
        elif store.folder.exists() and holder(store.lock) is None:
            self._begun_features(store)
        else:
            words = "gone; a finished run does not need them" if self.finished else "not built yet"
            self.result.notes.append(f"{store.folder}: the features are {words}")

    def _begun_features(self, store: "FeatureLayout") -> None:
        """Check what is there of a half-built feature store."""
        from pipeline.datasets.build_feature_store import begun_problems  # brings numpy, which --help does without

        self.result.notes.append(f"{store.folder}: the features are half built")
        for path in sorted(path for path in store.arrays.rglob("[!.]*") if path.is_file()):
            self._count(path)
        lost = begun_problems(store, contents=False)
        self._judge(
            str(store.folder), lambda: begun_problems(store, contents=False), "resume the run: it is made again"
        )
        others = lambda: [line for line in begun_problems(store, contents=True) if line not in lost]  # noqa: E731
        self._judge(str(store.folder), others, FEATURES)

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


def _problem_of(check: Callable[[Path], object], path: Path) -> list[str]:
    """Return what a check says of a file, without its name and advice, which are added for all alike."""
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
    with open_plain(path) as stream:
        for number, line in enumerate(stream, 1):
            if torn and not line.endswith(b"\n"):
                return
            try:
                parse_json(line)
            except ValueError:
                raise ValueError(f"line {number} is not JSON") from None


if __name__ == "__main__":
    sys.exit(main())
