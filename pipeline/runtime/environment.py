"""What a run was computed with: versions, processor, BLAS and threads, and what of it has changed since."""

import os
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline import __version__

LIBRARIES = ("numpy", "scipy", "numba", "dask", "distributed", "zarr", "scikit-image", "scikit-learn")
DECISIVE = ("numpy", "scipy", "numba")  # those whose code the numbers come out of
_BLAS = ("openblas", "mkl", "blis", "flexiblas")  # the pools of other kinds compute nothing themselves


def environment() -> dict[str, Any]:
    """Return versions, processor, BLAS and thread settings, as recorded in env.json."""
    # Slow to import, and only then is the BLAS of its own that scipy carries loaded, and seen.
    import scipy.linalg  # noqa: F401
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
    }


def environment_warnings(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference between two environments that may change the last bits of a model.

    `stored`: of a run's first start (env.json); `now`: of a resumption. Unknown facts are not compared.
    """
    before, after = _decisive(stored), _decisive(now)
    return [
        f"{what} is {after[what]} here, the run was started with {before[what]}: "
        "the last bits of the model may differ from those of an uninterrupted run; resume where it is the same, "
        "if they matter"
        for what in before
        if what in after and after[what] != before[what]
    ]


def _decisive(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return what the bits of a model depend on, as {what: value}."""
    pools = [pool for pool in environment.get("blas") or [] if pool.get("internal_api") in _BLAS]
    libraries = environment.get("libraries") or {}
    facts = {
        "the core type of BLAS": _joined(pool.get("architecture") for pool in pools),
        "the kind of processor": environment.get("machine"),
        "slkl": environment.get("slkl"),
        **{name: libraries.get(name) for name in DECISIVE},
        "BLAS": _joined(f"{pool['internal_api']} {pool.get('version')}" for pool in pools),
    }
    return {what: str(value) for what, value in facts.items() if value}


def _joined(words: Iterable[str | None]) -> str:
    return ", ".join(sorted({word for word in words if word}))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
