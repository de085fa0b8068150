"""Every byte of a run and of its features, read again.

It takes no lock and changes nothing. What looks damaged in a live run is looked at again: it may be being replaced.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.datasets.build_feature_store import begun_problems
from pipeline.errors import MissingRunError, PipelineError
from pipeline.runtime.run_folder import frozen_config, links_in
from storage.arrays import check_npz
from storage.errors import FEATURES, StorageError, remedy_of
from storage.files import aside_of, open_plain, parse_json, replaced_path
from storage.folder_layouts import MANIFEST_NAME, FeatureLayout, RunLayout
from storage.folders import committed_files, read_manifest, verify
from storage.lock import holder
from storage.records import read_marker, read_record

COMES_BACK = "a kill left it aside; resume the run, and it comes back"
LOOKS, PAUSE_SECONDS = 3, 0.3  # before something of a live run is called damaged


@dataclass
class Result:
    """The result of a check: a line for every damaged thing, notes, and how much was read."""

    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


def verify_run(root: Path) -> Result:
    """Check every file of a run, and of the feature store that it used. Raises MissingRunError where there is none."""
    layout = RunLayout(root)
    if not any(path.exists() for path in (layout.config, layout.environment, layout.report)):
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    check = _Check(layout, holder(layout.lock) is not None, layout.report.exists())
    for path in committed_files(root):
        if path.name == MANIFEST_NAME:
            check.folder(path.parent)
        else:
            check.file(path)
    check.presence()
    check.leftovers()
    check.features()
    return check.result


class _Check:
    """One check of a run: each thing is looked at, and again where it seems damaged."""

    def __init__(self, layout: RunLayout, live: bool, finished: bool) -> None:
        self._layout, self._root, self._live, self._finished = layout, layout.root, live, finished
        self.result = Result()

    def presence(self) -> None:
        """Name what is not there: settings, and whatever a run listed when its stages were done."""
        layout, notes = self._layout, self.result.notes
        expected = [layout.config.name, layout.environment.name]
        if layout.contents.exists() or (self._finished and not self._live):
            expected.append(layout.contents.name)
            with suppress(StorageError):  # named already
                expected += [str(name) for name in read_record(layout.contents)["files"]]
            if not self._finished:  # the report is committed just after the list: a kill may come between
                expected = [name for name in expected if name != layout.report.name]
            if not self._live and not layout.report.exists():
                notes.append(f"{layout.report.name}: not there; the run is unfinished, resume it")
        for name in dict.fromkeys(expected):
            self._presence_of(name, self._root / name)

    def _presence_of(self, name: str, path: Path) -> None:
        advice = COMES_BACK if replaced_path(path.parent).exists() else None
        self._judge(name, lambda: [] if path.exists() else ["missing"], advice)

    def file(self, path: Path) -> None:
        """Check one file that no manifest names."""
        name = path.relative_to(self._root).as_posix()
        # Tells who is at work; made from report.json, for people; how far items are, for whoever watches.
        if name in ("run.lock", "report.html") or name.startswith("progress/"):
            return
        check = self._check_of(path, name)
        if check is None:
            self.result.notes.append(f"{name}: not a file of a run; not checked")
            return
        self._count(path)
        self._judge(name, lambda: _problem_of(check, path) if path.exists() else [])

    def _check_of(self, path: Path, name: str) -> Callable[[Path], object] | None:
        if name == "lease":
            return lambda path: int(path.read_bytes())
        if name == "config.toml":
            return lambda path: frozen_config(self._layout)
        if name in ("env.json", "STATE.json", "report.json", "CONTENTS.json"):
            return read_record
        if path.suffix == ".jsonl":
            # The last line may be torn by a kill, until a run is finished.
            return lambda path: check_lines(path, torn=self._live or not self._finished)
        if path.suffix == ".npz":
            return check_npz
        if path.suffix == ".json" and name.startswith("markers/"):
            return read_marker
        return _belongs_to_no_manifest if "/" in name else None

    def folder(self, folder: Path, advice: str | None = None) -> None:
        """Check a folder against its manifest."""
        name = folder.relative_to(self._root).as_posix() if folder.is_relative_to(self._root) else str(folder)
        named: set[Path] = {folder / MANIFEST_NAME}
        with suppress(StorageError):  # `verify` says it
            named |= {folder / file for file in read_manifest(folder).files}
        with suppress(FileNotFoundError):  # removed meanwhile, by a run that is at work
            for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
                self._count(path)
                if path not in named and not path.name.startswith("."):
                    self.result.notes.append(f"{path}: not named by the manifest of its folder; not checked")
        self._judge(name, lambda: verify(folder, contents=True) if folder.exists() else [], advice)

    def leftovers(self) -> None:
        """Name links and what a killed session left aside or could not remove while it was open; a session sweeps."""
        for path in links_in(self._root):
            advice = "no run is resumed with one; put what it leads to in its place"
            self.result.notes.append(f"{path.relative_to(self._root).as_posix()}: a symbolic link; {advice}")
        for path in sorted(self._root.rglob(".*")) if not self._live else ():
            is_within = any(aside_of(folder.name) for folder in path.relative_to(self._root).parents)
            if (aside := aside_of(path.name)) is not None and not is_within:
                advice = "nothing needs it, delete it" if self._finished else "it goes when the run is resumed"
                advice = COMES_BACK if aside.replaced and not path.with_name(aside.name).exists() else advice
                self.result.notes.append(f"{path.relative_to(self._root).as_posix()}: left behind; {advice}")

    def features(self) -> None:
        """Check the feature store of the run; one that is gone is no damage of a finished run."""
        notes = self.result.notes
        try:
            resources = frozen_config(self._layout).resources
            digest = read_record(self._layout.environment)["features"]
        except StorageError:
            notes.append("the features were not checked: where they are is not known")
            return
        if resources.features_store != "zarr":
            return
        store = FeatureLayout(Path(resources.features_dir), digest)
        if store.manifest.exists():
            self.folder(store.folder, FEATURES)
        elif not store.folder.exists() or holder(store.lock) is not None:
            words = "gone; a finished run does not need them" if self._finished else "not built yet"
            notes.append(f"{store.folder}: the features are {words}")
        elif self._finished:
            self.result.damaged.append(f"{store.manifest}: missing; {FEATURES}")
        else:
            notes.append(f"{store.folder}: the features are half built")
            for path in sorted(path for path in store.arrays.rglob("[!.]*") if path.is_file()):
                self._count(path)
            name, lost = str(store.folder), begun_problems(store, contents=False)
            again = "resume the run: it is made again"
            self._judge(name, lambda: begun_problems(store, contents=False), again)
            others = lambda: [line for line in begun_problems(store, contents=True) if line not in lost]  # noqa: E731
            self._judge(name, others, FEATURES)

    def _judge(self, name: str, look: Callable[[], list[str]], advice: str | None = None) -> None:
        """Add the problems that `look` returns, if it still returns some later."""
        for again in range(LOOKS if self._live else 2):
            problems = look()
            if not problems:
                return
            if self._live and again < LOOKS - 1:
                time.sleep(PAUSE_SECONDS)
        self.result.damaged += [f"{name}: {problem}; {advice or remedy_of(name)}" for problem in problems]

    def _count(self, path: Path) -> None:
        with suppress(OSError):  # gone meanwhile
            self.result.bytes += path.stat().st_size
            self.result.files += 1


def _problem_of(check: Callable[[Path], object], path: Path) -> list[str]:
    """Return the problem that a check finds in a file, without its name and advice, which are added later."""
    try:
        check(path)
    except (StorageError, PipelineError, ValueError, OSError) as error:
        return [str(error).removeprefix(f"{path}: ").partition(";")[0]]
    return []


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
