"""Commit: files and folders that are either whole under their name, or not there.

A file is written aside and renamed (`storage.disk`). A folder is filled aside, every file in it fsynced, its
`MANIFEST.json` written and fsynced last, renamed, and its parent fsynced.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storage import bundles, disk, manifest
from storage.disk import TEMPORARY_PREFIX, cannot_write, fsync_folder, make_folder, replacing, temporary_path
from storage.disk import write_file as write_file
from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError
from storage.manifest import MANIFEST_NAME, FileDigest, Manifest

_OLD_PREFIX = ".tmp-old-"
_MAXIMUM_JSON_BYTES = 256 * 2**20


def write_json(path: Path, obj: Any) -> None:
    """Write `obj` as indented JSON with sorted keys, durably.

    Raises
    ------
    ValueError, TypeError
        If it holds NaN, an infinity or something JSON does not know.
    CannotWriteError
        As `write_file`.
    """
    text = json.dumps(obj, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False, default=manifest.plain_value)
    write_file(path, text.encode() + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of bounded size.

    Raises
    ------
    MissingDataError, CorruptDataError, UnavailableStoreError
        If it does not exist, is no JSON, cannot be read.
    """
    try:
        if path.stat().st_size > _MAXIMUM_JSON_BYTES:
            raise CorruptDataError(f"{path}: larger than {_MAXIMUM_JSON_BYTES} bytes, not one of ours", file=str(path))
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingDataError(f"{path}: wanted to read it, it does not exist", path=str(path)) from None
    except OSError as error:
        raise UnavailableStoreError(f"{path}: cannot be read ({error.strerror})", path=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{path}: not valid JSON ({error}); restore or remove it", file=str(path)) from None


def write_record(path: Path, body: Mapping[str, Any]) -> None:
    """Write a JSON object that programs read back, durably, with the digest of its content under `digest`.

    Raises
    ------
    ValueError, TypeError, CannotWriteError
        As `write_json`; ValueError also where `body` has a `digest` of its own.
    """
    if "digest" in body:
        raise ValueError(f"{path}: the key 'digest' is the record's own")
    # Over the stored spelling, so that it holds for whatever JSON makes of tuples and numpy scalars.
    stored = json.loads(manifest.canonical_json(body))
    write_json(path, {**stored, "digest": manifest.digest_of(stored)})


def read_record(path: Path, *, remedy: str = "restore it from a copy") -> dict[str, Any]:
    """Read what `write_record` wrote, without its digest; layout and order of the text do not matter.

    Raises
    ------
    MissingDataError, CorruptDataError, UnavailableStoreError
        As `read_json`; CorruptDataError, ending with `remedy`, also where the content does not match its digest.
    """
    try:
        body = read_json(path)
    except CorruptDataError as error:
        raise CorruptDataError(f"{str(error).partition(';')[0]}; {remedy}", file=str(path)) from None
    if not isinstance(body, dict) or body.pop("digest", None) != manifest.digest_of(body):
        raise CorruptDataError(f"{path}: its content does not match its own digest; {remedy}", file=str(path))
    return body


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], *, metadata: Mapping[str, Any] | None = None, durable: bool = True
) -> None:
    """Write named arrays durably: an .npz if the name ends so, else a folder of .npy files to be mapped.

    `durable=False` (an .npz only) saves the fsync of what a resumed run can check and make again.

    The bytes depend on the arrays alone. The folder form carries a manifest of kind "arrays" with `metadata`.

    Raises
    ------
    ValueError
        If a name is not plain, a dtype is no number, or `metadata` is given with an .npz.
    CannotWriteError
        As `write_file`.
    """
    wanted_bytes = sum(np.asarray(values).nbytes for values in arrays.values())
    if path.suffix == ".npz":
        if metadata is not None:
            raise ValueError(f"{path}: metadata is only kept by the folder form; drop it or the .npz suffix")
        with replacing(path, wanted_bytes, sync_file=durable, sync_folder=durable) as stream:
            bundles.write_npz(stream, arrays)  # type: ignore[arg-type]  # RawIOBase is all that zipfile needs
        return
    with new_folder(path, kind="arrays", metadata=metadata) as folder:
        for name, values in arrays.items():
            header, data = bundles.npy_parts(name, values)
            with replacing(folder / f"{name}.npy", data.nbytes, sync_folder=False) as stream:
                stream.write(header)
                stream.write(data)


def read_arrays(
    path: Path, *, mapped: bool = False, remedy: str | None = None, prefix: str = ""
) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote; `mapped` maps the files of the folder form read-only instead.

    With a `prefix`, only the arrays whose names start with it are read (and checked).

    An .npz entry is checked by its CRC. In the folder form sizes are checked against the manifest, and
    contents too unless `mapped` (then `manifest.verify(path, contents=True)` is the caller's).

    Raises
    ------
    MissingDataError, CorruptDataError, UnavailableStoreError
        If it is absent, damaged or makes claims that its bytes do not hold, cannot be read. With a `remedy`, absence
        is damage too, and the message ends with it.
    """
    if remedy is None:
        return _read_arrays(path, mapped, prefix)
    try:
        return _read_arrays(path, mapped, prefix)
    except (CorruptDataError, MissingDataError) as error:
        reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
        raise CorruptDataError(f"{path}: {reason}; {remedy}", file=str(path)) from None


def _read_arrays(path: Path, mapped: bool, prefix: str) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return bundles.read_npz(path, prefix)
    entries = manifest.read(path)
    problems = manifest.verify(path, contents=not mapped)
    if problems:
        raise CorruptDataError(
            f"{path}: damaged arrays ({problems[0]}); build it again", file=problems[0].partition(":")[0]
        )
    names = sorted(name for name in entries.files if name.endswith(".npy") and name.startswith(prefix))
    return {name.removesuffix(".npy"): bundles.read_npy(path / name, mapped=mapped) for name in names}


def check_folder(folder: Path, *, remedy: str, contents: bool = True) -> None:
    """Check every byte of a folder against its manifest, before its arrays are mapped. Cost: one pass over them.

    Without `contents` only presence and sizes are looked at.

    Raises
    ------
    CorruptDataError
        Naming the first file that is damaged, and ending with `remedy`.
    """
    problems = manifest.verify(folder, contents=contents)
    if problems:
        raise CorruptDataError(
            f"{folder}: damaged ({problems[0].partition(';')[0]}); {remedy}", file=problems[0].partition(":")[0]
        )


def seal(
    folder: Path,
    *,
    kind: str,
    metadata: Mapping[str, Any] | None = None,
    known: Mapping[str, FileDigest] | None = None,
) -> Manifest:
    """End the filling of a folder: sweep `.tmp-*`, fsync everything, then write the manifest, last.

    `known` gives digests taken when the bytes were written, so that those files are not read again; a file
    whose size has changed since, or that is gone, is an error. Cost: one pass over all other files.

    Raises
    ------
    CorruptDataError
        If a file of `known` is missing or has another size.
    CannotWriteError
        If an fsync or the manifest fails.
    """
    known = known or {}
    try:
        remove_stale(folder, recursive=True)
        disk.fsync_tree(folder)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    except OSError as error:
        raise cannot_write(folder, error) from error
    files = {
        name: known[name] if name in known else manifest.digest_file(folder / name)
        for name in names
        if name != MANIFEST_NAME
    }
    for name, entry in known.items():
        if name not in files or (folder / name).stat().st_size != entry.bytes:
            raise CorruptDataError(f"{folder / name}: written, but now missing or of another size", file=name)
    sealed = Manifest(kind, files=files, metadata=dict(metadata or {}))
    manifest.write(folder, sealed)
    return sealed


@contextlib.contextmanager
def new_folder(final: Path, *, kind: str = "folder", metadata: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Yield a `.tmp-*` folder to fill; it becomes `final`, sealed with a manifest, when the block ends.

    `metadata` is read at the end, so it may be filled inside the block. An existing `final` is moved aside,
    the new one moved in, and only then the old one pruned; after a kill between the two, `remove_stale`
    brings it back. On any exception the temporary folder is removed and `final` is as before.

    Raises
    ------
    CannotWriteError
        Naming the path and the cause.
    """
    make_folder(final.parent)
    aside = temporary_path(final)
    try:
        disk.low_mkdir(aside)
    except OSError as error:
        raise cannot_write(final, error) from error
    try:
        yield aside
        seal(aside, kind=kind, metadata=metadata)
        try:
            move_in(aside, final)
        except OSError as error:
            raise cannot_write(final, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            disk.low_remove_tree(aside)
        raise


def move_in(aside: Path, final: Path) -> None:
    """Rename `aside` to `final`, durably; what was there is moved aside first and pruned last. Raises OSError."""
    old = final.with_name(_OLD_PREFIX + final.name)
    replaces = final.exists()
    if replaces:
        if old.exists():
            disk.low_remove_tree(old)  # left by a killed run whose new folder did arrive
        disk.low_rename(final, old)
    try:
        disk.low_rename(aside, final)
    except OSError:
        if replaces:
            disk.low_rename(old, final)
        raise
    fsync_folder(final.parent)
    if replaces:
        disk.low_remove_tree(old)


def committed_files(root: Path) -> Iterator[Path]:
    """Yield the files below `root` in order; of a folder with a manifest the manifest alone, and no `.tmp-*`."""
    entries = sorted(root.iterdir())
    if root / MANIFEST_NAME in entries:
        entries = [root / MANIFEST_NAME]
    for entry in entries:
        if entry.name.startswith(TEMPORARY_PREFIX):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from committed_files(entry)
        else:
            yield entry


def remove_file(path: Path) -> None:
    """Remove a file; one that does not exist is fine. Raises CannotWriteError."""
    try:
        disk.low_unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_folder(path: Path, *, durable: bool = True) -> None:
    """Remove a folder so that it is never half there under its name; one that does not exist is fine.

    `durable=False` leaves it to the operating system when the disk learns of it: after a power loss it may be there
    again, and damaged.

    Raises
    ------
    CannotWriteError
        If it cannot be removed.
    """
    aside = temporary_path(path)
    try:
        disk.low_rename(path, aside)
        if durable:
            fsync_folder(path.parent)  # or the files in it could go before its name does
        disk.low_remove_tree(aside)
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_stale(parent: Path, *, recursive: bool = False) -> list[Path]:
    """Remove the `.tmp-*` files and folders that killed runs left; return what was removed.

    Call it only while holding the lock of `parent`: another process may be filling them. A folder that was
    moved aside for a replacement that never arrived is moved back instead.

    Raises
    ------
    CannotWriteError
        If one cannot be removed.
    """
    removed = []
    try:
        for entry in sorted(parent.iterdir()):
            is_folder = entry.is_dir() and not entry.is_symlink()
            if not entry.name.startswith(TEMPORARY_PREFIX):
                if recursive and is_folder:
                    removed += remove_stale(entry, recursive=True)
                continue
            final = entry.with_name(entry.name.removeprefix(_OLD_PREFIX))
            if entry.name.startswith(_OLD_PREFIX) and is_folder and not final.exists():
                disk.low_rename(entry, final)
                fsync_folder(parent)
                continue
            if is_folder:
                disk.low_remove_tree(entry)
            else:
                disk.low_unlink(entry)
            removed.append(entry)
    except FileNotFoundError:
        return removed
    except OSError as error:
        raise cannot_write(parent, error) from error
    return removed
