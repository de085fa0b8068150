"""Every byte of a run and of its features, read again. It takes no lock and changes nothing."""

import time
from collections.abc import Iterable
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
from storage.records import read_record

COMES_BACK = "a kill left it aside; resume the run, and it comes back"
LOOKS, PAUSE_SECONDS = 3, 0.3  # before something of a live run, which may be replacing it, is called damaged
OWN_FILES = ("lease", "config.toml", "env.json", "STATE.json", "report.json", "CONTENTS.json")
# Tells who is at work; made from report.json, for people; how far items are, for whoever watches.
NOT_CHECKED = ("run.lock", "report.html", "progress/")


@dataclass
class Result:
    """The result of a check: a line for every damaged thing, notes, and how much was read."""

    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def add(self, name: str, problems: Iterable[str], advice: str = "") -> None:
        """Add problems of a file or folder; without advice, what is told of the files of a run."""
        self.damaged += [f"{name}: {problem}; {advice or remedy_of(name)}" for problem in problems]

    def count(self, *paths: Path) -> None:
        """Count files that are read."""
        for path in paths:
            with suppress(OSError):  # gone meanwhile
                self.bytes += path.stat().st_size
                self.files += 1


def verify_run(root: Path) -> Result:
    """Check every file of a run, and of the feature store that it used. Raises MissingRunError where there is none."""
    layout = RunLayout(root)
    if not any(path.exists() for path in (layout.config, layout.environment, layout.report)):
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    live, result = holder(layout.lock) is not None, _look(layout)
    for _ in range(LOOKS - 1 if live else 0):
        if result.damaged:
            time.sleep(PAUSE_SECONDS)
            before, result = result.damaged, _look(layout)
            result.damaged = [line for line in result.damaged if line in before]
    return result


def _look(layout: RunLayout) -> Result:
    result, live, finished = Result(), holder(layout.lock) is not None, layout.report.exists()
    for path in committed_files(layout.root):
        name = path.relative_to(layout.root).as_posix()
        if path.name == MANIFEST_NAME:
            _look_at_folder(path.parent, path.parent.relative_to(layout.root).as_posix(), result)
        elif "/" not in name and name not in OWN_FILES and path.suffix not in (".jsonl", ".npz"):
            result.notes += [] if name in NOT_CHECKED else [f"{name}: not a file of a run; not checked"]
        elif not name.startswith(NOT_CHECKED):
            result.count(path)
            result.add(name, _problems(layout, name, torn=live or not finished) if path.exists() else [])
    expected = ["config.toml", "env.json"]
    if layout.contents.exists() or (finished and not live):
        expected.append("CONTENTS.json")
        with suppress(StorageError):  # named already
            expected += read_record(layout.contents)["files"]
        if not finished and not live:  # the report is committed just after the list: a kill may come between
            result.notes.append("report.json: not there; the run is unfinished, resume it")
    for path in (layout.root / name for name in dict.fromkeys(expected)):
        if not path.exists() and (finished or path != layout.report):
            advice = COMES_BACK if replaced_path(path.parent).exists() else ""
            result.add(path.relative_to(layout.root).as_posix(), ["missing"], advice)
    _look_for_leftovers(layout.root, live, finished, result)
    _look_at_features(layout, finished, result)
    return result


def _problems(layout: RunLayout, name: str, *, torn: bool) -> list[str]:
    """Return the problem of a file that no manifest names; the last line of a log may be torn by a kill."""
    path = layout.root / name
    try:
        if name == "lease":
            int(path.read_bytes())
        elif name == "config.toml":
            frozen_config(layout)
        elif path.suffix == ".jsonl":
            _check_lines(path, torn=torn)
        elif path.suffix == ".npz":
            check_npz(path)
        elif name in OWN_FILES:
            read_record(path)
        elif path.suffix == ".json" and name.startswith("markers/"):
            return [] if read_record(path).get("item") == path.stem else ["it belongs to another item"]
        else:
            return ["the MANIFEST.json of its folder is missing"]
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
                parse_json(line)
            except ValueError:
                raise ValueError(f"line {number} is not JSON") from None


def _look_at_folder(folder: Path, name: str, result: Result, advice: str = "") -> None:
    """Compare a folder with its manifest, and note the files that this does not name."""
    named = {folder / MANIFEST_NAME}
    with suppress(StorageError):  # `verify` says it
        named |= {folder / file for file in read_manifest(folder).files}
    with suppress(FileNotFoundError):  # removed meanwhile, by a run that is at work
        for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
            result.count(path)
            if path not in named and not path.name.startswith("."):
                result.notes.append(f"{path}: not named by the manifest of its folder; not checked")
    result.add(name, verify(folder, contents=True) if folder.exists() else [], advice)


def _look_for_leftovers(root: Path, live: bool, finished: bool, result: Result) -> None:
    """Note links and what a killed session left aside or could not remove while it was open; a session sweeps."""
    for path in links_in(root):
        advice = "no run is resumed with one; put what it leads to in its place"
        result.notes.append(f"{path.relative_to(root)}: a symbolic link; {advice}")
    for path in sorted(root.rglob(".*")) if not live else ():
        is_within = any(aside_of(folder.name) for folder in path.relative_to(root).parents)
        if (aside := aside_of(path.name)) is not None and not is_within:
            advice = "nothing needs it, delete it" if finished else "it goes when the run is resumed"
            advice = COMES_BACK if aside.replaced and not path.with_name(aside.name).exists() else advice
            result.notes.append(f"{path.relative_to(root)}: left behind; {advice}")


def _look_at_features(layout: RunLayout, finished: bool, result: Result) -> None:
    """Check the feature store of a run; one that is gone is no damage of a finished run."""
    try:
        resources = frozen_config(layout).resources
        store = FeatureLayout(Path(resources.features_dir), read_record(layout.environment)["features"])
    except StorageError:
        result.notes.append("the features were not checked: where they are is not known")
        return
    if resources.features_store != "zarr":
        return
    if store.manifest.exists():
        _look_at_folder(store.folder, str(store.folder), result, FEATURES)
    elif not store.folder.exists() or holder(store.lock) is not None:
        words = "gone; a finished run does not need them" if finished else "not built yet"
        result.notes.append(f"{store.folder}: the features are {words}")
    elif finished:
        result.add(str(store.manifest), ["missing"], FEATURES)
    else:
        result.notes.append(f"{store.folder}: the features are half built")
        result.count(*(path for path in store.arrays.rglob("[!.]*") if path.is_file()))
        lost = begun_problems(store, contents=False)
        result.add(str(store.folder), lost, "resume the run: it is made again")
        others = [line for line in begun_problems(store, contents=True) if line not in lost]
        result.add(str(store.folder), others, FEATURES)
