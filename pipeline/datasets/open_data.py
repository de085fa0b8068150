"""Data of the user, opened as a plan has seen them.

The first reading of files, without their inputs, is kept beside the feature stores: it is found by path and request,
and done again where a file has another size or other times.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.array_sources import open_arrays
from features.errors import CHANGED, DataError
from features.input_files import (
    content_stamp,
    is_of_arrays,
    is_picture_folder,
    is_table,
    stamp,
)
from features.open_source import changed, close_files, open_source, with_copies
from features.source import Files, Source, SourceSpec, Tick
from pipeline.runtime import stopping
from pipeline.runtime.console import StageLine
from pipeline.runtime.run_folder import digest_sources
from storage.arrays import commit, load
from storage.errors import CorruptDataError, MissingDataError
from storage.files import digest_of, make_folder, remove_file


@dataclass
class Reading:
    """How files are read, what that took so far, and notes of what was seen.

    tells : whether it tells its progress on standard error
    writes : whether what was found is kept
    """

    tells: bool = False
    writes: bool = True
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    n_readings: int = 0
    n_rows: int = 0
    peak_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def counted(self, path: Path) -> Iterator[Tick]:
        """Count what the reading of a table takes, and tell how far it is; yield what counts its rows."""
        before, wall, cpu = self.n_rows, time.perf_counter(), time.process_time()
        stop = stopping.current()

        def count(n_rows: int) -> None:
            stop.check()
            self.n_rows += n_rows

        def words() -> str:
            n_rows = self.n_rows - before
            return f"{path.name}, {n_rows} rows, {n_rows / (time.perf_counter() - wall):.0f} rows/s"

        try:
            with StageLine(sys.stderr, "read", words, words) if self.tells else nullcontext():
                yield count
        finally:
            self.wall_seconds += time.perf_counter() - wall
            self.cpu_seconds += time.process_time() - cpu
        self.n_readings += 1


@dataclass(frozen=True)
class FirstReadings:
    """The first readings of data, a file for each, in a folder; `reading` counts those not found there."""

    folder: Path
    writes: bool
    reading: Reading = field(compare=False)

    def read(self, path: Path, files: Files, request: dict[str, Any], read: Callable[[Tick], Any], form: Any) -> Any:
        """Return the kept reading of a path for a request, as a `form` of arrays, or read it now and keep that.

        files: lists the files that it depends on, by whose stamps it is known; request: all else that decides it.
        """
        # The content of a picture is compared whenever it is decoded.
        stamps_now = partial(_stamps, files, with_contents=not is_picture_folder(path))
        plain = json.loads(json.dumps(request))  # with lists for tuples
        key = digest_of({"code": digest_sources("features"), "path": str(path.absolute()), "request": plain})
        stamps = stamps_now()
        file = self.folder / f"{key[:32]}-{digest_of({'files': stamps})[:16]}.npz"
        known = _known(file, form)
        if known is not None:
            return known
        earlier = [old for old in self.folder.glob(f"{key[:32]}-*.npz") if old != file]
        if earlier:
            self.reading.notes.append(f"{path}: has changed since it was read; it is read again")
        with self.reading.counted(path) as count:
            found = read(count)
        if stamps_now() != stamps:
            raise DataError(f"{path}: {CHANGED}")
        if self.writes:
            make_folder(self.folder)
            for old in earlier:
                remove_file(old)
            commit(file, *_packed(found))
        return found


def _packed(found: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return all that was found but a sample as arrays and facts, for `_known`; arrays of texts have their places."""
    arrays = {name: values for name, values in vars(found).items() if isinstance(values, np.ndarray)}
    facts = {name: value for name, value in vars(found).items() if name not in arrays and name != "sample"}
    texts = {name: values for name, values in arrays.items() if values.dtype.kind == "U"}
    arrays |= {name: np.unique(values, return_inverse=True)[1] for name, values in texts.items()}
    return arrays, facts | {"texts": {name: np.unique(values).tolist() for name, values in texts.items()}}


def _known(file: Path, form: Any) -> Any:
    """Return what is kept in a file, None where it is not there or damaged."""
    with suppress(MissingDataError, CorruptDataError):
        arrays, facts = load(file)
        texts = {name: np.array(texts)[arrays[name]] for name, texts in facts["texts"].items()}
        return form(**{name: value for name, value in facts.items() if name != "texts"}, **(arrays | texts))
    return None


def _stamps(files: Files, *, with_contents: bool) -> list[list[Any]]:
    return [[*stamp(file), content_stamp(file) if with_contents else ""] for file in files()]


def open_data(spec: SourceSpec, identity: str | None = None, reading: Reading | None = None) -> Source:
    """Open any source; `identity`: the digest of that of the data that were planned. Raises DataError where it differs.

    Each picture may have changed since it was opened, and what is kept of a table may have been deleted: such are
    opened again.
    """
    path, kept = Path(spec.dataset), spec.kept
    was_deleted = kept is not None and is_table(path) and not any(Path(kept).glob("*"))
    if (is_picture_folder(path) and identity is None) or was_deleted:
        close_files()
    reading = reading or Reading()
    source = open_source(spec, None if kept is None else FirstReadings(Path(kept), reading.writes, reading))
    if identity is not None and digest_of(source.identity) != identity:
        raise changed(spec)
    return source


def open_outline(spec: SourceSpec) -> Source | None:
    """Open arrays in files without reading their inputs, for a plan; return None for other data."""
    path = Path(spec.dataset)
    return with_copies(open_arrays(spec, path, outline=True), spec) if is_of_arrays(path) else None
