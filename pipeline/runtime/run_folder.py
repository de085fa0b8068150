"""The folder of a run: taking it, its lock, the settings frozen in it, and the code and machine that compute it."""

import hashlib
import os
import platform
import re
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import blake2b
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.config.command_line import program
from pipeline.config.settings import from_toml, to_toml
from pipeline.config.train_config import TrainConfig, is_address
from pipeline.errors import ConfigError, ConfigMismatchError, FolderInUseError, MissingRunError
from pipeline.runtime import stopping
from pipeline.runtime.console import Console
from storage.errors import CannotWriteError, CorruptDataError
from storage.files import aside_of, check_held, digest_of, read_record, write_file, write_record
from storage.folder_layouts import MODEL_NAME, RunLayout
from storage.folders import digest_file, hold_lock, remove_folder, remove_stale

FORMAT_VERSION = 3
LIBRARIES = ("numpy", "scipy", "numba", "dask", "distributed", "scikit-image", "scikit-learn")
# What the bits of a model depend on: whose code the numbers come out of, and where it runs.
DECISIVE = ("the core type of BLAS", "the kind of processor", "slkl", "numpy", "scipy", "numba", "BLAS")
_BLAS = ("openblas", "mkl", "blis", "flexiblas")  # Thread pools of other kinds compute nothing.


def default_run_dir(dataset: str) -> Path:
    """Return runs/<dataset>-<UTC time>-<6 hex>, a folder that does not exist yet."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(dataset).stem).strip("-.") or "data"
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def stored_config(root: Path | None, resume: str, dataset: str) -> TrainConfig | None:
    """Return the configuration of the run that is to be resumed, None where a new run starts."""
    if root is None:
        if resume == "require":
            raise MissingRunError("`resume=require` needs `run_dir`: which run?")
        return None
    layout = RunLayout(root)
    if layout.config.exists():
        if resume == "never":
            raise FolderInUseError(f"{root} holds a run already; continue it with: " + resume_command(dataset, root))
        _refuse_others(root)
        return frozen_config(layout)
    used = root.is_dir() and not _is_unused(layout)
    if used and layout.environment.exists():
        raise CorruptDataError(f"{layout.config}: missing; restore it, or start a new run")
    if resume == "require":
        raise MissingRunError(f"{root} holds no run to resume; start one with `resume=auto`")
    if used:
        raise FolderInUseError(f"{root} is not empty and holds no run; choose another `run_dir`")
    if root.exists() and not root.is_dir():
        raise FolderInUseError(f"{root} is not a folder; choose another `run_dir`")
    _refuse_others(root)
    return None


def _refuse_others(root: Path) -> None:
    """Raise FolderInUseError for what no run makes: targets of links would be swept, pipes keep us waiting."""
    for folder, *entries in os.walk(root):
        for path in (Path(folder, name) for name in sorted(chain(*entries))):
            if path.is_symlink():
                remedy = "put what it leads to in its place, or choose another `run_dir`"
                raise FolderInUseError(f"{path}: is a symbolic link, and all of a run lies in its folder; {remedy}")
            if not (path.is_file() or path.is_dir()) and path.exists():
                raise FolderInUseError(f"{path}: is a pipe, a device or a socket; remove it, or take another `run_dir`")


def check_apart(root: Path, features_dir: Path) -> None:
    """Raise ConfigError where the folders of a run and of the features overlap: a run sweeps all of its folder."""
    run, features = root.resolve(), features_dir.resolve()
    if run.is_relative_to(features) or features.is_relative_to(run):
        fault = "neither may lie inside the other, since runs share the features"
        both = f"`run_dir={root}` and `resources.features_dir={features_dir}`"
        raise ConfigError(f"{both}: {fault}; choose another folder for one of them")


def frozen_config(layout: RunLayout) -> TrainConfig:
    """Return the frozen configuration of a run, checked by its digest."""
    record = read_environment(layout)
    if digest_file(layout.config).digest != record["config"]:
        fault = "not the file that the run was started with, it is damaged or was edited"
        raise CorruptDataError(f"{layout.config}: {fault}; restore it, or start a new run with the settings you want")
    return from_toml(layout.config)


def _is_unused(layout: RunLayout) -> bool:
    """Return whether a folder holds nothing, or what is left of a run that was killed before it froze its settings."""
    for entry in layout.root.iterdir():
        is_begun = aside_of(entry.name) in ("env.json", "config.toml") and entry.is_file()
        if is_begun or entry == layout.lock:
            continue
        try:
            if entry != layout.environment or "features" not in read_record(entry):
                return False
        except CorruptDataError:
            return False
    return True


def resume_command(dataset: str, root: Path, scheduler: str = "") -> str:
    """Return the command that continues the run in a folder, which keeps no address of a scheduler."""
    folder = ["--run-dir", str(root)] if not str(root).startswith("-") else [f"--run-dir={root}"]
    data = ["--", dataset] if dataset.startswith("-") else [dataset]  # what begins like an option comes last
    options = [*folder, "--resume", "auto"]
    options += ["--scheduler", scheduler] if is_address(scheduler) else []
    return shlex.join([*program("train").split(), *(options + data if len(data) > 1 else data + options)])


@contextmanager
def held(root: Path, stored: TrainConfig | None) -> Iterator[RunLayout]:
    """Hold the lock of a run's folder from before its data are read; one that is made here and not used is removed."""
    layout = RunLayout(root.absolute())
    made = [folder for folder in (layout.root, *layout.root.parents) if not folder.exists()]
    # The log cannot be written to before the lock is held.
    warn = partial(print, "warning:", file=Console(sys.stderr), flush=True)
    with hold_lock(layout.lock, "training", on_wait=stopping.check, warn=warn):
        try:
            frozen = frozen_config(layout) if layout.config.exists() else None
            if frozen != stored:
                raise FolderInUseError(f"{root} was taken by another run meanwhile; choose another `run_dir`")
            yield layout
        except BaseException:
            check_held(layout.lock)  # else what came of that is told
            raise
        finally:
            if made and not layout.config.exists():
                with suppress(OSError, CannotWriteError):
                    remove_stale(layout.root)
                    layout.environment.unlink(missing_ok=True)
                    layout.lock.unlink()  # whoever waits for it sees that it is gone, and makes another
                    for folder in made:
                        folder.rmdir()


def freeze(layout: RunLayout, config: TrainConfig, data: str, features: str, command: str) -> None:
    """Keep configuration, environment, digest of the data and name of the feature store at the first start.

    The time limit and the address of a scheduler hold for one start and are not kept; the command is.
    """
    remove_stale(layout.root)
    if not layout.config.exists():
        text = to_toml(config).encode()
        facts = {"format_version": FORMAT_VERSION, "command": command}
        digests = {"data": data, "features": features, "config": hashlib.sha256(text).hexdigest()}
        write_record(layout.environment, {"environment": environment()} | facts | digests)
        write_file(layout.config, text)  # last: it is what makes the folder one that holds a run
    else:
        check_data(layout, data, "started")


def check_data(layout: RunLayout, data: str, event: str) -> None:
    """Raise ConfigMismatchError where a run has `event`, started or finished, with data of another digest."""
    if read_environment(layout)["data"] != data:
        raise ConfigMismatchError(f"the run in {layout.root} {event} before, on other data; start a new run for these")


def finish(layout: RunLayout, report: dict[str, Any]) -> None:
    """Remove the statistics of a run, its largest files, which nothing reads any more, and commit its report."""
    remove_stale(layout.root)
    remove_folder(layout.statistics)
    write_record(layout.report, report)


def report_of(layout: RunLayout) -> dict[str, Any] | None:
    """Return the report of a finished run, None where something is left to do."""
    from storage.arrays import StoredFile  # numpy, which --help does without

    if not layout.report.exists():
        return None
    StoredFile(layout.model / MODEL_NAME).read()
    return read_record(layout.report)


def read_environment(layout: RunLayout) -> dict[str, Any]:
    """Return what a run was started with."""
    record = read_record(layout.environment)
    if record.get("format_version") != FORMAT_VERSION:
        raise ConfigMismatchError(f"the run in {layout.root} is of another version of this software; start a new run")
    return record


def identity(layout: RunLayout) -> str:
    """Return what tells a run from others by what it was started with: its settings, data, code and command."""
    return digest_of(read_environment(layout))[:16]


@cache
def digest_sources(*packages: str) -> str:
    """Return a digest of the source files of some of our packages."""
    digest = blake2b(digest_size=8)
    for package in packages:
        folder = Path(__file__).parents[2] / package
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder.parent).as_posix()} {path.stat().st_size} ".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def own_version() -> str:
    """Return the version of slkl, and the digest of its sources, which tells edited ones apart."""
    return f"{__version__} with sources {digest_sources('pipeline', 'features', 'storage')}"


@cache
def own_code() -> str:
    """Return the versions of slkl, of the libraries that it computes with, and of Python."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "numba"))
    return f"slkl {own_version()}, {libraries}, Python {platform.python_version()}"


def environment() -> dict[str, Any]:
    """Return versions, BLAS and processor by their names, as env.json keeps them; unknown ones are None or empty."""
    # Slow to import, and only then is the BLAS of its own that scipy carries loaded, and seen.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["internal_api"] in _BLAS]
    return {
        "slkl": own_version(),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "BLAS": ", ".join(sorted({f"{pool['internal_api']} {pool.get('version')}" for pool in pools})),
        "the core type of BLAS": ", ".join(sorted({pool.get("architecture") or "" for pool in pools} - {""})),
        "the kind of processor": platform.machine(),
        "system": platform.system(),
        "processors": os.cpu_count(),
    }


def environment_warnings(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each known difference, from the start of a run, that may change the last bits of a model."""
    return [
        f"{what} is {now[what]} here, the run was started with {stored[what]}: the last bits of the model may differ "
        "from those of an uninterrupted run; resume where it is the same, if they matter"
        for what in DECISIVE
        if stored[what] and now[what] and now[what] != stored[what]
    ]
