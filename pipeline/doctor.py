"""`python -m pipeline.doctor`: what this machine offers to training, and the command that mends what is missing.

Imports of libraries that may be missing are local.
"""

import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from pipeline import own_packages
from pipeline.config.command_line import command_parser, program
from pipeline.errors import ExitCode
from pipeline.runtime.answers import answered

ROOT = Path(__file__).resolve().parents[1]
MODULES = {"scikit-image": "skimage", "scikit-learn": "sklearn", "google-crc32c": "google_crc32c"}
EXTRAS = {
    "onnx": "models for other programs",
    "dask-jobqueue": "dask workers as SLURM jobs",
    "matplotlib": "plots of the benchmarks",
}
SMALLEST_PYTHON = (3, 11)
SMALLEST_DISK_BYTES = 64 * 2**20  # for a run on digits
COMFORTABLE_DISK_BYTES = 2 * 2**30  # for a run on MNIST and its feature store
SPARE_BYTES = 200 * 2**20  # beside what the main process takes, for the smallest of runs


@dataclass(frozen=True)
class Advice:
    """Something that is missing, and the command that mends it. `stops`: training cannot work without it."""

    what: str
    command: str
    stops: bool = False


Findings = tuple[dict[str, Any], list[Advice]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 where training can work, 69 where it cannot."""
    parser = command_parser(
        "doctor",
        "Tell what this machine offers to training, and the command that mends what is missing.",
        "Exit codes: 0 training can work, 69 it cannot, 2 usage.",
    )
    parser.add_argument("--json", action="store_true", help="print the facts as one JSON object, for programs")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of the runs (runs/)")
    parser.add_argument("--data-dir", metavar="DIR", help="look for data sets here only, as train --data-dir does")
    arguments = parser.parse_args(argv)

    def work() -> int:
        facts = examine(arguments.runs, arguments.data_dir)
        print(json.dumps(facts, indent=2) if arguments.json else "\n".join(lines(facts)))
        return int(ExitCode.DONE if facts["training_works"] else ExitCode.UNAVAILABLE)

    return answered(work)


def examine(runs: Path, data_dir: str | None) -> dict[str, Any]:
    """Return the facts, JSON-able, with `advice` for what is missing; None where a missing library hides a fact."""
    versions, advice = _libraries()
    facts: dict[str, Any] = {"python": _python(advice), "libraries": versions}
    for line in own_packages.told_of(Path.cwd()):
        advice.append(Advice(f"in Python that is started here {line}", "slkl --help"))
    sections = {
        "blas": _blas,
        "numba": _numba,
        "machine": _machine,
        "disk": lambda: _disk(runs),
        "data": lambda: _data(data_dir),
        "extras": _extras,
    }
    for name, section in sections.items():
        try:
            facts[name], more = section()
            advice += more
        except Exception:
            if not any(one.stops for one in advice):
                raise
            facts[name] = None  # a library that is missing or broken, which has its advice already
    facts["advice"] = [asdict(one) for one in sorted(advice, key=lambda one: not one.stops)]
    facts["training_works"] = not any(one.stops for one in advice)
    return facts


def requirements() -> dict[str, str]:
    """Return the libraries that training needs with their oldest versions; empty where Python is too old to look."""
    if sys.version_info < SMALLEST_PYTHON:
        return {}
    import tomllib  # since Python 3.11

    project = ROOT / "pyproject.toml"
    if project.exists():
        texts = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    else:
        texts = [text for text in requires("slkl") or [] if "extra ==" not in text]
    return {name.strip(): oldest.strip() for name, _, oldest in (text.partition(">=") for text in texts)}


def _python(advice: list[Advice]) -> dict[str, Any]:
    if sys.version_info < SMALLEST_PYTHON:
        wanted = ".".join(map(str, SMALLEST_PYTHON))
        advice.append(
            Advice(f"Python {platform.python_version()} is older than {wanted}", f"python{wanted} -m venv .venv", True)
        )
    return {"version": platform.python_version(), "executable": sys.executable}


def _libraries() -> Findings:
    """Import every library that training needs; the oldest versions that will do are those of the project."""
    versions: dict[str, Any] = {}
    advice = []
    for name, oldest in requirements().items():
        versions[name] = _version(name)
        mend = f"python -m pip install {shlex.quote(f'{name}>={oldest}')}"
        if versions[name] is None:
            advice.append(Advice(f"{name} is not installed", mend, True))
        elif _is_older(versions[name], oldest):
            advice.append(Advice(f"{name} {versions[name]} is older than {oldest}", mend, True))
        else:
            try:
                import_module(MODULES.get(name, name))
            except Exception as error:  # whatever a broken installation raises
                again = mend.replace("install", "install --force-reinstall", 1)
                advice.append(Advice(f"{name} cannot be imported ({' '.join(str(error).split())})", again, True))
    return versions, advice


def _blas() -> Findings:
    """Tell every BLAS that numpy and scipy carry, and the threads it would take when nobody holds it to one."""
    import scipy.linalg  # noqa: F401  (scipy carries a BLAS of its own, which must be loaded to be seen)
    from threadpoolctl import threadpool_info  # may be missing

    keys = ("internal_api", "version", "architecture", "num_threads")
    pools = [{key: pool.get(key) for key in keys} for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {"pools": pools}, []


def _numba() -> Findings:
    """Tell the threading layer of numba, and the compiled loops that are kept from earlier processes."""
    from numba import config  # may be missing

    layer = str(getattr(config, "THREADING_LAYER", "default"))  # made when numba is imported, so unknown to mypy
    sources = [path for package in ("features", "pipeline") for path in (ROOT / package).rglob("*.py")]
    loops = sorted(path for path in sources if "\nSIGNATURES" in path.read_text(encoding="utf-8"))
    cache, advice = Path(os.environ["NUMBA_CACHE_DIR"]), []
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    kept = 0
    for path in loops:  # numba's index files of a file: "<file>.<function>-<line>.py<version>.nbi"
        indices = cache.glob(f"{path.parent.name}_*/{path.stem}.*.{tag}*.nbi")
        kept += any(index.stat().st_mtime >= path.stat().st_mtime for index in indices)
    facts: dict[str, Any] = {"threading_layer": layer, "cache": str(cache)}
    facts |= {"modules": len(loops), "modules_cached": kept}
    if not kept:
        advice.append(
            Advice("no compiled code is kept yet: the first run takes some seconds more", f"{program('train')} digits")
        )
    return facts, advice


def _machine() -> Findings:
    """Tell processors and memory, of the machine, of this process, and of its control group."""
    import psutil  # may be missing, and what these need

    from pipeline.runtime.executors import available_processors
    from pipeline.runtime.memory_limits import DRIVER_BYTES, default_limit_bytes, processor_limit  # likewise

    memory, limit = psutil.virtual_memory(), default_limit_bytes()
    facts = {
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "processors_available": available_processors(),
        "processors_quota": processor_limit(),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "memory_control_group_bytes": limit * 4 // 3 if limit < memory.total * 3 // 4 else None,
        "default_memory_limit_bytes": limit,
    }
    needed = DRIVER_BYTES + SPARE_BYTES
    if limit >= needed:
        return facts, []
    what = f"a run may take {_size(limit)}, three quarters of what there is; the smallest takes {_size(needed)}"
    command = f"sbatch --mem={_size(2 * needed)}, docker run --memory, limits.memory of the pod: ask for more"
    return facts, [Advice(what, command, True)]


def _disk(runs: Path) -> Findings:
    """Tell the free space where runs go, and whether they may."""
    runs = runs.absolute()
    existing = next(folder for folder in (runs, *runs.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    facts = {"runs": str(runs), "free_bytes": free, "writable": writable}
    elsewhere = f"{program('train')} DATASET --run-dir DIR/run --features-dir DIR/features"
    if not writable:
        return facts, [Advice(f"{existing} is no folder you can write to", elsewhere, True)]
    if free < COMFORTABLE_DISK_BYTES:
        what = f"{_size(free)} free at {existing}: little for a run on MNIST"
        return facts, [Advice(what, elsewhere, stops=free < SMALLEST_DISK_BYTES)]
    return facts, []


def _data(data_dir: str | None) -> Findings:
    """Tell where each published data set is. None of them is needed: digits and synthetic are always here."""
    from features.published import PUBLISHED, locate  # which need pooch for the cache, and that may be missing

    facts: dict[str, Any] = {"SLKL_DATA_DIR": os.environ.get("SLKL_DATA_DIR")}
    advice = []
    origin, named = ("--data-dir", data_dir) if data_dir else ("SLKL_DATA_DIR", facts["SLKL_DATA_DIR"])
    if named and not Path(named).is_dir():
        advice.append(Advice(f"{origin} names {named}, which is no folder", f"{program('data')} list"))
    for name in PUBLISHED:
        data = locate(name, data_dir)
        facts[name] = str(data.folder) if data and not data.missing else None
        if facts[name] is None:
            what = f"in {data.folder}, which lacks {', '.join(data.missing)}" if data else "not here"
            advice.append(Advice(f"data set {name} is {what}", f"{program('data')} fetch {name}"))
    return facts, advice


def _extras() -> Findings:
    facts = {name: _version(name) for name in EXTRAS}
    return facts, [
        Advice(f"{name} is not installed ({use})", f"python -m pip install {name}")
        for name, use in EXTRAS.items()
        if facts[name] is None
    ]


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people: what is here, then what is missing with the command that mends it."""
    shown = [f"python      {facts['python']['version']} ({facts['python']['executable']})"]
    versions = [f"{name} {text or 'MISSING'}" for name, text in facts["libraries"].items()]
    shown += [f"{'libraries' if not k else '':<12}{', '.join(versions[k : k + 5])}" for k in range(0, len(versions), 5)]
    shown += list(_machine_lines(facts))
    data = facts["data"] or {}
    shown += [f"{'data':<12}{name}: {place}" for name, place in data.items() if place and name != "SLKL_DATA_DIR"]
    shown.append(f"{'data':<12}digits, synthetic, sinc: made on this machine")
    shown.append(
        f"{'extras':<12}" + ", ".join(f"{name} {text or 'not here'}" for name, text in facts["extras"].items())
    )
    for one in facts["advice"]:
        shown += ["", f"{'MISSING: ' if one['stops'] else 'note: '}{one['what']}", f"    {one['command']}"]
    return [*shown, "", "training can work" if facts["training_works"] else "training cannot work: see MISSING above"]


def _machine_lines(facts: dict[str, Any]) -> Iterator[str]:
    for pool in (facts["blas"] or {}).get("pools", []):
        kind = f"{pool['internal_api']} {pool['version']}, {pool['architecture']}"
        yield f"BLAS        {kind}, {pool['num_threads']} threads (one where an item runs)"
    if numba := facts["numba"]:
        yield (
            f"numba       threading layer {numba['threading_layer']}; compiled code of "
            f"{numba['modules_cached']} of {numba['modules']} modules in {numba['cache']} (if it is damaged, remove it)"
        )
    if machine := facts["machine"]:
        quota = f", {machine['processors_quota']} by its control group" if machine["processors_quota"] else ""
        yield f"processors  {machine['processors']}, {machine['processors_available']} for this process{quota}"
        group = machine["memory_control_group_bytes"]
        yield (
            f"memory      {_size(machine['memory_bytes'])}, {_size(machine['memory_available_bytes'])} available"
            f"{f', {_size(group)} for its control group' if group else ''}; "
            f"a run takes at most {_size(machine['default_memory_limit_bytes'])} unless --memory-limit says otherwise"
        )
    yield f"disk        {_size(facts['disk']['free_bytes'])} free below {facts['disk']['runs']}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_older(installed: str, oldest: str) -> bool:
    """Compare two versions; False where there is nothing to compare them with, which has its advice already."""
    try:
        from packaging.version import Version  # may be missing
    except ImportError:
        return False
    return Version(installed) < Version(oldest)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
