"""Objects of an object store, s3://BUCKET/PATH, read only: copied below a folder once, and read there.

The copies stand as the objects do, FOLDER/BUCKET/PATH, and have the times of their last changes, which tell later
whether an object is still the same. Credentials come from the environment alone, and are in no message.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError, UnusableNameError
from storage.files import aside_of, make_folder, replacing

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, S3FileSystem

PIECE_BYTES = 4 << 20
MOST_OBJECTS = 1_000_000
THREADS = 8  # an object costs three round trips, and a zarr store has thousands
CONNECT_SECONDS, SILENCE_SECONDS, TRIES = 5, 10, 2
SETTLED_SECONDS = 2.0  # after its last change, of which an object may be another with the same size and time
ABANDONED_SECONDS = 600  # since the last piece: whoever wrote it was killed
_SECOND = 10**9  # in nanoseconds
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_ENDPOINT = re.compile(r"(https?)://((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?)/?")
_DENIED = re.compile("ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|EXPIRED_?TOKEN|HTTP status 40[13]", re.IGNORECASE)
_AGAIN = "then run it again: what was copied stays"


def is_url(name: str) -> bool:
    """Return whether a name is that of something in an object store."""
    return name.startswith("s3://")


def path_of(url: str) -> str:
    """Return BUCKET/PATH of a URL.

    Raises UnusableNameError where it is malformed, or has user info or a query: those are not told, they may be secret.
    """
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not is_url(url) or "?" in url or not url.isprintable() or not _BUCKET.fullmatch(bucket):
        raise UnusableNameError(
            "the s3:// URL is malformed, or has user info or a query; give s3://BUCKET/PATH alone, and keys in "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    parts = [bucket, *key.removesuffix("/").split("/")] if key else [bucket]
    if not all(map(_is_file_name, parts)):
        raise UnusableNameError(f"{url}: has an empty part, . or .., a backslash or a part too long; correct the path")
    return "/".join(parts)


def copy_objects(
    url: str, folder: Path, is_wanted: Callable[[str], bool], count: Callable[[int], None] = lambda n_bytes: None
) -> Path:
    """Copy an object, those below a prefix or those that a pattern names (``*``, ``[]``, ``**``); return the copy.

    Of a prefix and a pattern only the names that `is_wanted` are copied, of a zarr store all. Objects that have not
    changed since they were copied stay, those gone from the store are removed. `count(n_bytes)` is called after each
    piece, by several threads; what it raises ends the copying.

    Raises UnusableNameError for a malformed URL or AWS_ENDPOINT_URL, or where the objects are not wanted;
    MissingDataError where there are none; CorruptDataError where a name cannot be that of a file, or there are too
    many; UnavailableStoreError where the store cannot be reached or denies access, or an object changes meanwhile;
    CannotWriteError.
    """
    path, store = path_of(url), _opened_store()
    parts = path.split("/")
    n_plain = next((k for k, part in enumerate(parts) if "*" in part or "[" in part), len(parts))
    root, patterns = "/".join(parts[:n_plain]), parts[n_plain:]
    with _told_plainly(url):
        if patterns and store.get_file_info(path).is_file:  # a name that looks like a pattern
            root, patterns = path, []
        objects = _listed(store, root, patterns, url)
    is_zarr = path.endswith(".zarr") and [one.path for one in objects] != [path]
    wanted = [one for one in objects if is_zarr or (is_wanted(one.path) and not re.search("/[_.]", one.path))]
    if not wanted:
        raise UnusableNameError(
            f"{url}: names neither tables nor a .zarr store; give .csv, .tsv (also .gz, .zst), .parquet, or a prefix "
            f"or pattern of such, or NAME.zarr"
        )
    names = {one.path for one in wanted}
    if any(name[: slash.start()] in names for name in names for slash in re.finditer("/", name)):
        raise CorruptDataError(f"{url}: an object has the name of a folder with others; name them by a pattern")
    make_folder(folder)
    _remove_gone(folder, root, patterns, names, {one.path for one in objects})
    _Copying(store, url, folder, count).copy(wanted)
    return folder / path


@dataclass(frozen=True, slots=True)
class _Object:
    path: str
    n_bytes: int
    changed: int  # the second


def _opened_store() -> S3FileSystem:
    """Return the store that the environment names; no file is asked for keys, region or address."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem  # slow to import, and only URLs need it

    key, secret, token = map(os.environ.get, _SECRETS)
    if bool(key) != bool(secret):
        raise UnusableNameError("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is not set; set both, or none")
    options: dict[str, Any] = {"access_key": key, "secret_key": secret, "session_token": token or None}
    if not key:
        options = {"anonymous": True}
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        parts = _ENDPOINT.fullmatch(endpoint)
        if parts is None:
            raise UnusableNameError("AWS_ENDPOINT_URL: must be http://HOST:PORT or https://HOST:PORT and nothing else")
        options |= {"scheme": parts[1], "endpoint_override": parts[2]}
    return S3FileSystem(
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        connect_timeout=CONNECT_SECONDS,
        request_timeout=SILENCE_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=TRIES),
        **options,
    )


def _listed(store: S3FileSystem, root: str, patterns: Sequence[str], url: str) -> list[_Object]:
    """Return the object `root` or those below it whose names match, in the order of their names."""
    from pyarrow.fs import FileSelector, FileType  # as above

    whole = store.get_file_info(root)
    if whole.type == FileType.File and not patterns and not url.endswith("/"):
        found = [whole]
    else:
        found = store.get_file_info(FileSelector(root, recursive=len(patterns) != 1))
    objects = [_object(info, root, url) for info in found if info.type == FileType.File]
    if len(objects) > MOST_OBJECTS:
        raise CorruptDataError(f"{url}: has more than {MOST_OBJECTS} objects; name fewer by a pattern")
    if patterns:
        objects = [one for one in objects if _matches(one.path.removeprefix(f"{root}/").split("/"), patterns)]
    if not objects:
        raise MissingDataError(f"{url}: no such bucket, object or prefix; check the name")
    return sorted(objects, key=lambda one: one.path)


def _object(info: FileInfo, root: str, url: str) -> _Object:
    """Return an object as it was listed. Raises CorruptDataError where no file below the root can have its name."""
    below = info.path.removeprefix(f"{root}/")
    if info.path != root and (below == info.path or not all(map(_is_file_name, below.split("/")))):
        raise CorruptDataError(
            f"{url}: has an object {info.path!r:.80}, which cannot be the name of a file; name the others by a pattern"
        )
    return _Object(info.path, info.size or 0, (info.mtime_ns or 0) // 10**9)


def _is_file_name(part: str) -> bool:
    """Return whether a part of a key can be the name of a file, and stand in a message."""
    is_short = len(part.encode(errors="surrogateescape")) <= 255
    return part not in ("", ".", "..") and "\\" not in part and part.isprintable() and is_short


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether the parts of a name match those of a pattern, where ** stands for any number of folders."""
    behind = _past_folders({0}, patterns)  # how many patterns may match what was seen
    for part in parts:
        on = [k for k in behind if k < len(patterns) and fnmatchcase(part, patterns[k])]
        behind = _past_folders({k if patterns[k] == "**" else k + 1 for k in on}, patterns)
    return len(patterns) in behind


def _past_folders(behind: set[int], patterns: Sequence[str]) -> set[int]:
    """Return also the numbers of patterns behind those ** that stand for no folder."""
    for k, pattern in enumerate(patterns):
        if k in behind and pattern == "**":
            behind.add(k + 1)
    return behind


def _remove_gone(folder: Path, root: str, patterns: Sequence[str], names: set[str], there: set[str]) -> None:
    """Remove copies of what is no longer `there`, what killed commands left, and what is in the way of `names`."""
    copy = folder / root
    above = [parent for parent in copy.parents if folder in parent.parents]
    for place in [*above, *([copy] if root not in names else [])]:
        if place.is_file():
            place.unlink()
    for file in [file for file in copy.rglob("*") if file.is_file()]:
        is_named = not patterns or _matches(file.relative_to(copy).parts, patterns)
        if is_named and file.relative_to(folder).as_posix() not in there and not file.name.startswith(".tmp-"):
            file.unlink(missing_ok=True)
    for file in [*copy.parent.glob(".tmp-*"), *copy.rglob(".tmp-*")]:
        with contextlib.suppress(FileNotFoundError):  # another command has finished it
            if aside_of(file.name) is not None and time.time() - file.stat().st_ctime > ABANDONED_SECONDS:
                file.unlink()
    for name in names:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)


class _OtherFailedError(Exception):
    """Another thread has failed, and tells why."""


class _Copying:
    """Copies of objects by several threads: each is whole, or not there."""

    def __init__(self, store: S3FileSystem, url: str, folder: Path, count: Callable[[int], None]) -> None:
        self._store, self._url, self._folder, self._count = store, url, folder, count
        self._stopped, self._counting = threading.Event(), threading.Lock()

    def copy(self, objects: list[_Object]) -> None:
        """Copy those that have changed."""
        waiting = iter([one for one in objects if not self._is_there(one)])
        with ThreadPoolExecutor(THREADS, "object-store") as pool:
            futures = [pool.submit(self._copy_next, waiting) for _ in range(THREADS)]
            try:
                for future in futures:
                    future.result()
            finally:
                self._stopped.set()

    def _is_there(self, one: _Object) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = (self._folder / one.path).stat()
            if (status.st_size, status.st_mtime_ns // _SECOND) != (one.n_bytes, one.changed):
                return False
            if status.st_ctime > one.changed + SETTLED_SECONDS:
                return True
            with _told_plainly(self._url), self._store.open_input_file(one.path) as stream:
                return status.st_mtime_ns % _SECOND == _fraction(stream.metadata().get("ETag"))
        return False

    def _copy_next(self, waiting: Iterator[_Object]) -> None:
        """Copy one object after another until none is left, or a thread has failed."""
        try:
            for one in waiting:
                if self._stopped.is_set():
                    return
                target = self._folder / one.path
                make_folder(target.parent)
                with replacing(target, one.n_bytes, sync_folder=False) as stream:
                    tag = self._write(one, stream)
                    changed = one.changed * _SECOND + _fraction(tag)
                    os.utime(stream.fileno(), ns=(changed, changed))
        except _OtherFailedError:
            return
        except BaseException:
            self._stopped.set()
            raise

    def _write(self, one: _Object, target: Any) -> object:
        """Write an object in pieces; return its tag. Raises UnavailableStoreError where it changes, or is cut off."""
        with _told_plainly(self._url), self._store.open_input_file(one.path) as stream:
            before, n_bytes, n_read = stream.metadata().get("ETag"), stream.size(), 0
            while n_bytes == one.n_bytes and (piece := stream.read(PIECE_BYTES)):
                if self._stopped.is_set():
                    raise _OtherFailedError
                n_read += len(piece)
                target.write(piece)
                with self._counting:
                    self._count(len(piece))
        after = before
        if n_bytes > PIECE_BYTES:  # of several requests
            with _told_plainly(self._url), self._store.open_input_file(one.path) as stream:
                after = stream.metadata().get("ETag")
        if not (n_read == n_bytes == one.n_bytes and before == after):
            raise UnavailableStoreError(f"{self._url}: s3://{one.path} changed while it was copied; wait, {_AGAIN}")
        return before


def _fraction(tag: object) -> int:
    """Return nanoseconds below a second that stand for the tag of an object: its time is told in seconds."""
    return zlib.crc32(str(tag).encode()) % _SECOND


@contextlib.contextmanager
def _told_plainly(url: str) -> Iterator[None]:
    """Turn an error of the store into MissingDataError or UnavailableStoreError, without any of the keys."""
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:
        text = str(error)
        if isinstance(error, FileNotFoundError) or "AWS Error NO_SUCH_" in text:
            raise MissingDataError(f"{url}: no such bucket, object or prefix; check the name") from None
        for secret in filter(None, map(os.environ.get, _SECRETS)):
            text = text.replace(secret, "***")
        words = "".join(letter if letter.isprintable() else " " for letter in text[max(text.find("AWS Error"), 0) :])
        if _DENIED.search(words):
            problem, keys = "access denied", "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
        else:
            problem, keys = "cannot be read", "the network, AWS_ENDPOINT_URL and AWS_REGION"
        raise UnavailableStoreError(f"{url}: {problem} ({words[:120]}); check {keys}, {_AGAIN}") from None
