"""The folder of a run: taking it, its lock, and the configuration frozen in it."""

import os
import platform
import re
import secrets
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.config import TrainConfig, from_toml, to_toml
from pipeline.errors import ConfigMismatchError, FolderInUseError, MissingRunError
from storage.commit import make_folder, read_json, remove_stale, write_file, write_json
from storage.layout import RunLayout
from storage.lock import FolderLock

LIBRARIES = ("numpy", "scipy", "numba", "dask", "distributed", "zarr", "scikit-image", "scikit-learn")


def default_run_dir(dataset: str) -> Path:
    """Return runs/<dataset>-<UTC time>-<6 hex>, a folder that does not exist yet."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(dataset).stem).strip("-.") or "data"
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def stored_config(root: Path | None, resume: str, dataset: str) -> TrainConfig | None:
    """Return the configuration of the run in a folder that is to be resumed, None where a new run starts.

    Raises FolderInUseError for a used folder without `resume`, or one that holds something else;
    MissingRunError where `resume` requires a run and there is none.
    """
    if root is None:
        if resume == "require":
            raise MissingRunError("--resume require needs --run-dir: which run?")
        return None
    layout = RunLayout(root)
    if layout.config.exists():
        if resume == "never":
            raise FolderInUseError(f"{root} holds a run already; continue it with: " + resume_command(dataset, root))
        return from_toml(layout.config)
    if resume == "require":
        raise MissingRunError(f"{root} holds no run to resume; start one with --resume auto")
    if root.is_dir() and any(entry.name != layout.lock.name for entry in root.iterdir()):
        raise FolderInUseError(f"{root} is not empty and holds no run; choose another --run-dir")
    if root.exists() and not root.is_dir():
        raise FolderInUseError(f"{root} is not a folder; choose another --run-dir")
    return None


def resume_command(dataset: str, root: Path) -> str:
    """Return the command that continues the run in a folder."""
    return f"python -m pipeline.train {shlex.quote(dataset)} --run-dir {shlex.quote(str(root))} --resume auto"


@contextmanager
def taken(root: Path, config: TrainConfig, features_digest: str, stored: TrainConfig | None) -> Iterator[RunLayout]:
    """Hold the run's lock; freeze configuration, environment and the digest of the features at the first start.

    `stored` is the configuration found in the folder before it was locked, None for a new run. Raises LockedError
    naming the process that holds the folder, FolderInUseError where another run came between, ConfigMismatchError
    where the data are no longer those of the run, CannotWriteError where the folder cannot be created.
    """
    layout = RunLayout(root.absolute())
    make_folder(layout.root)
    with FolderLock(layout.lock, "training"):
        remove_stale(layout.root, recursive=True)
        found = from_toml(layout.config) if layout.config.exists() else None
        if found != stored:
            raise FolderInUseError(f"{root} was taken by another run meanwhile; choose another --run-dir")
        if found is None:
            write_json(layout.environment, environment() | {"features": features_digest})
            write_file(layout.config, to_toml(config).encode())
        elif read_json(layout.environment)["features"] != features_digest:
            raise ConfigMismatchError(
                f"the data or features are no longer those that the run in {root} was started with; "
                "restore them, or start a new run"
            )
        yield layout


def environment() -> dict[str, Any]:
    """Return versions, processor, BLAS and thread settings, as recorded in env.json."""
    from threadpoolctl import threadpool_info

    pools = [{key: pool.get(key) for key in ("internal_api", "version", "architecture")} for pool in threadpool_info()]
    return {
        "slkl": __version__,
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "machine": platform.machine(),
        "system": platform.system(),
        "blas": pools,
        "processors": os.cpu_count(),
        "arguments": sys.argv[1:],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
