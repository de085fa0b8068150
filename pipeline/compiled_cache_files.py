"""The files of numba's cache with a digest at the end of each, compared before anything in them is believed.

numba 0.68 dies of a truncated file, and of a flipped bit dies, aborts inside LLVM or computes with it. Here a file
that is not whole is removed and warned of, and its function compiled again; a cache that cannot be written is gone
without. numba's own freshness rules stay: the version, a hash of the source file, and the processor.
"""

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numba.core import caching

from pipeline.compiled_cache import warn

# After the end of numba's own content, which ignores what follows.
_MARK = b"\nslkl-sha256:"
_TAIL_BYTES = len(_MARK) + hashlib.sha256().digest_size


class CheckedCacheFile(caching.IndexDataCacheFile):
    """The index and the data files of one function. Neither reading nor writing fails: there is always the compiler."""

    _told_unwritable = False

    def save(self, key: Any, data: Any) -> None:
        """Save an entry; warn, once a process, where the disk does not take it."""
        try:
            super().save(key, (self._version, self._source_stamp, key, data))
        except OSError as error:
            if not CheckedCacheFile._told_unwritable:
                warn(
                    f"compiled code cannot be kept in {self._cache_path} ({error.strerror}); it is compiled every time"
                )
            CheckedCacheFile._told_unwritable = True

    def load(self, key: Any) -> Any:
        """Return an entry, None where there is none that is whole."""
        try:
            *made_from, data = super().load(key) or (None, None, None, None)
        except Exception as error:  # whole, and yet not readable: written with another version of something
            _remove(Path(self._index_path), f"cannot be read ({type(error).__name__}: {error})")
            return None
        # numba writes the index first: after a kill, or a race, it may name a file of an earlier source.
        return data if made_from == [self._version, self._source_stamp, key] else None

    def _load_index(self) -> Any:
        return super()._load_index() if _is_whole(Path(self._index_path)) else {}

    def _load_data(self, name: str) -> Any:
        path = Path(self._data_path(name))
        if not _is_whole(path):
            raise FileNotFoundError(path)  # numba knows this one, and compiles
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        body = content.getvalue()
        with super()._open_for_write(filepath) as stream:
            stream.write(body + _MARK + hashlib.sha256(body).digest())


def install(folder: Path) -> None:
    """Have numba keep the compiled loops of these packages in a folder, checked. Other code keeps its own ways."""
    plain = caching.IndexDataCacheFile

    class PrivateLocator(caching.InTreeCacheLocator):
        """Names the folder of a function's files."""

        def __init__(self, py_func: Any, py_file: str) -> None:
            super().__init__(py_func, py_file)
            self._cache_path = str(folder / self.get_suitable_cache_subpath(py_file))

        def ensure_cache_path(self) -> None:
            """Make the folder; where that fails, saving says so."""
            with suppress(OSError):
                Path(self._cache_path).mkdir(mode=0o700, parents=True, exist_ok=True)

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            ours = py_func.__module__.partition(".")[0] in ("pipeline", "features")
            return super().from_function(py_func, py_file) if ours else None

    def cache_file(cache_path: str, filename_base: str, source_stamp: Any) -> Any:
        kind = CheckedCacheFile if Path(cache_path).is_relative_to(folder) else plain
        return kind(cache_path=cache_path, filename_base=filename_base, source_stamp=source_stamp)

    caching.CacheImpl._locator_classes.insert(0, PrivateLocator)
    caching.IndexDataCacheFile = cache_file  # type: ignore[misc, assignment]


def _is_whole(path: Path) -> bool:
    """Tell whether a file holds what this user wrote; one that does not is removed."""
    try:
        with path.open("rb") as stream:
            found = os.fstat(stream.fileno())
            content = stream.read()
    except FileNotFoundError:
        return False
    body, tail = content[:-_TAIL_BYTES], content[-_TAIL_BYTES:]
    if tail != _MARK + hashlib.sha256(body).digest():
        _remove(path, "is damaged")
        return False
    if found.st_uid != os.geteuid():
        _remove(path, f"belongs to user {found.st_uid}")
        return False
    return True


def _remove(path: Path, problem: str) -> None:
    warn(f"compiled code in {path} {problem}; it is removed and compiled anew")
    with suppress(OSError):
        path.unlink()
