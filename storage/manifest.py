"""Manifests: what a committed folder holds, with the size and sha256 of every file.

A folder is whole when its `MANIFEST.json` is there, holds together (it carries its own digest) and every file
it names has the size and digest it states. The manifest is written last, so its presence ends a commit.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.disk_writes import write_file
from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError
from storage.plain_files import MAXIMUM_JSON_BYTES, open_plain, parse_json, read_plain
from storage.records import canonical_json, with_digest, without_digest
from storage.remedies import remedy_at

FORMAT_VERSION = 1
MANIFEST_NAME = "MANIFEST.json"
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes and sha256 (64 lowercase hex digits) of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of one committed folder; `files` maps plain relative names to their digests."""

    kind: str
    format_version: int = FORMAT_VERSION
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def check_plain_name(name: str) -> str:
    """Return `name` if it is a plain relative path with forward slashes.

    Raises
    ------
    ValueError
        If it is empty, absolute, very long, or has empty, `.` or `..` parts, a backslash or a control
        character.
    """
    parts = name.split("/")
    # "." and ".." as parts climb; a backslash or a control character has no business in our names.
    if len(name) > 1024 or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"file name: wanted a plain relative name, found {name[:80]!r}")
    if any(character == "\\" or ord(character) < 32 for character in name):
        raise ValueError(f"file name: wanted a plain relative name, found {name[:80]!r}")
    return name


def digest_file(path: Path) -> FileDigest:
    """Hash one file; a pass over its bytes with the GIL released.

    Raises
    ------
    MissingDataError, UnavailableStoreError
        If the file is absent or cannot be read.
    """
    try:
        with open_plain(path) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return FileDigest(stream.tell(), digest)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: wanted to hash it, it does not exist", path=str(path)) from None
    except OSError as error:
        raise UnavailableStoreError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error


def write(root: Path, manifest: Manifest) -> None:
    """Write `root/MANIFEST.json` durably (aside, fsync, rename, fsync of the folder).

    Raises
    ------
    ValueError
        If a name is not a plain relative one.
    CannotWriteError
        If it cannot be written.
    """
    write_file(root / MANIFEST_NAME, encode(manifest))


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of `MANIFEST.json`: canonical JSON that carries the digest of itself."""
    body: dict[str, Any] = {
        "kind": manifest.kind,
        "format_version": manifest.format_version,
        "files": {check_plain_name(name): [entry.bytes, entry.sha256] for name, entry in manifest.files.items()},
        "metadata": dict(manifest.metadata),
    }
    return canonical_json(with_digest(body)) + b"\n"


def read(root: Path) -> Manifest:
    """Read `root/MANIFEST.json` and check its form and its own digest; no other file is looked at.

    Raises
    ------
    MissingDataError
        If there is none: the folder was never committed.
    CorruptDataError
        If it is malformed, damaged, of another format version or names a file outside the folder.
    """
    path = root / MANIFEST_NAME
    try:
        # 20 000 chunks (a feature store of 90 GB) take 3 MB; beyond the bound somebody lies to us.
        data = read_plain(path, MAXIMUM_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingDataError(f"{path}: does not exist; the folder was never completed", path=str(path)) from None
    except OSError as error:
        raise UnavailableStoreError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error
    try:
        return _decode(parse_json(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _corrupt(path, str(error) or type(error).__name__) from None


def _decode(body: object) -> Manifest:
    if not isinstance(body, dict) or set(body) != {"kind", "format_version", "files", "metadata", "digest"}:
        raise ValueError("not a manifest")
    body = without_digest(body)
    if body["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {body['format_version']!r}, this program reads {FORMAT_VERSION}")
    if not isinstance(body["kind"], str) or not isinstance(body["metadata"], dict):
        raise ValueError("kind or metadata has the wrong type")
    if not isinstance(body["files"], dict):
        raise ValueError("files has the wrong type")
    files = {check_plain_name(name): _decode_entry(name, entry) for name, entry in body["files"].items()}
    return Manifest(body["kind"], body["format_version"], files, body["metadata"])


def _decode_entry(name: str, entry: Any) -> FileDigest:
    size, sha256 = entry
    if type(size) is not int or size < 0:
        raise ValueError(f"the size of {name} is {size!r}")
    if not isinstance(sha256, str) or len(sha256) != 64 or not _HEX.issuperset(sha256):
        raise ValueError(f"the digest of {name} is not a sha256")
    return FileDigest(size, sha256)


def verify(root: Path, *, contents: bool) -> list[str]:
    """Compare a folder with its manifest and return what is wrong, one line each; empty if it holds.

    With `contents` every file is hashed (a pass over all bytes), else only presence and size are looked at.
    A missing or damaged manifest is one problem. Files the manifest does not name are not looked at.
    """
    try:
        manifest = read(root)
    except (CorruptDataError, MissingDataError, UnavailableStoreError) as error:
        return [str(error)]
    return compare(root, manifest.files, contents=contents)


def compare(root: Path, files: Mapping[str, FileDigest], *, contents: bool) -> list[str]:
    """Compare the files of a folder with what is known of them, as `verify` does."""
    problems = (_problem(root, name, entry, contents) for name, entry in sorted(files.items()))
    return [problem for problem in problems if problem]


def _problem(root: Path, name: str, entry: FileDigest, contents: bool) -> str:
    path = root / name
    try:
        # A link could lead out of the folder, a pipe would hang: only plain files count.
        if not stat.S_ISREG(os.lstat(path).st_mode) or not path.resolve().is_relative_to(root.resolve()):
            return f"{name}: not a plain file of {root}"
        size = path.stat().st_size
        if size != entry.bytes:
            return f"{name}: has {size} bytes, wanted {entry.bytes}"
        if contents and digest_file(path).sha256 != entry.sha256:
            return f"{name}: its content does not match its digest"
    except (FileNotFoundError, NotADirectoryError):
        return f"{name}: missing"
    except (OSError, MissingDataError, UnavailableStoreError) as error:
        return f"{name}: {error}"
    return ""


def _corrupt(path: Path, reason: str) -> CorruptDataError:
    remedy = remedy_at(path.parent, f"delete the folder {path.parent} and build it again")
    return CorruptDataError(f"{path}: damaged manifest ({reason}); {remedy}", file=str(path))
