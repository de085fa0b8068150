"""Which code the numbers of this process come from."""

from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from pipeline import __version__


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
    return f"slkl {own_version()}, {libraries}, Python {python_version()}"
