"""Commit: files and folders that are either whole under their name, or not there.

A file is written aside and renamed (`storage.disk_writes`). A folder is filled aside, every file in it fsynced, its
`MANIFEST.json` written and fsynced last, renamed, and its parent fsynced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from storage import disk_writes as disk
from storage import manifest, npz_files
from storage.disk_writes import (
    FolderForm,
    aside_of,
    cannot_write,
    check_output,
    fsync_folder,
    locked,
    make_folder,
    replaced_path,
    replacing,
    temporary_path,
)
from storage.disk_writes import write_file as write_file
from storage.errors import CorruptDataError, MissingDataError
from storage.manifest import MANIFEST_NAME, FileDigest, Manifest
from storage.remedies import remedy_at

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


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
            npz_files.write_npz(stream, arrays)  # type: ignore[arg-type]  # RawIOBase is all that zipfile needs
        return
    with new_folder(path, kind="arrays", metadata=metadata) as folder:
        for name, values in arrays.items():
            header, data = npz_files.npy_parts(name, values)
            with replacing(folder / f"{name}.npy", data.nbytes, sync_folder=False) as stream:
                stream.write(header)
                stream.write(data)


def read_arrays(path: Path, *, mapped: bool = False, remedy: str | None = None) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote; `mapped` maps the files of the folder form read-only instead.

    An .npz entry is checked by its CRC. In the folder form sizes are checked against the manifest, and
    contents too unless `mapped` (then `manifest.verify(path, contents=True)` is the caller's).

    Raises
    ------
    MissingDataError, CorruptDataError, UnavailableStoreError
        If it is absent, damaged or makes claims that its bytes do not hold, cannot be read. With a `remedy`, absence
        is damage too, and the message ends with it.
    """
    if remedy is None:
        return _read_arrays(path, mapped)
    try:
        return _read_arrays(path, mapped)
    except (CorruptDataError, MissingDataError) as error:
        reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
        raise CorruptDataError(f"{path}: {reason}; {remedy}", file=str(path)) from None


def _read_arrays(path: Path, mapped: bool) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return npz_files.read_npz(path)
    entries = manifest.read(path)
    problems = manifest.verify(path, contents=not mapped)
    if problems:
        raise CorruptDataError(
            f"{path}: damaged arrays ({problems[0]}); {remedy_at(path)}", file=problems[0].partition(":")[0]
        )
    names = sorted(name for name in entries.files if name.endswith(".npy"))
    return {name.removesuffix(".npy"): npz_files.read_npy(path / name, mapped=mapped) for name in names}


def read_each_array(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the values of each array of an .npz in the order of the names, one at a time in memory.

    Raises MissingDataError, CorruptDataError, UnavailableStoreError as `read_arrays`.
    """
    return npz_files.read_entries(path)


def write_dataclass(path: Path, value: DataclassInstance) -> None:
    """Write a dataclass of arrays and numbers durably, an array by the name of each field; see `write_arrays`."""
    write_arrays(path, {field.name: np.asarray(getattr(value, field.name)) for field in dataclasses.fields(value)})


def read_dataclass(path: Path, kind: type[T], *, remedy: str | None = None) -> T:
    """Return the dataclass of a `kind` that `write_dataclass` wrote; errors as `read_arrays`."""
    arrays = read_arrays(path, remedy=remedy)
    if arrays.keys() != {field.name for field in dataclasses.fields(kind)}:  # type: ignore[arg-type]  # it is one
        raise CorruptDataError(f"{path}: was written by another version; {remedy or remedy_at(path)}", file=str(path))
    return kind(**{name: values if values.ndim else values.item() for name, values in arrays.items()})


def check_folder(folder: Path, *, remedy: str) -> None:
    """Check every byte of a folder against its manifest, before its arrays are mapped. Cost: one pass over them.

    Raises
    ------
    CorruptDataError
        Naming the first file that is damaged, and ending with `remedy`.
    """
    problems = manifest.verify(folder, contents=True)
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
    """End the filling of a folder: sweep what was left aside, fsync everything, then write the manifest, last.

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
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*") if not path.is_dir())
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
def new_folder(
    final: Path, *, kind: str = "folder", metadata: Mapping[str, Any] | None = None, form: FolderForm | None = None
) -> Iterator[Path]:
    """Yield a folder to fill aside; it becomes `final`, sealed with a manifest, when the block ends.

    `metadata` is read at the end, so it may be filled inside the block. An existing `final` is moved aside,
    the new one moved in, and only then the old one pruned; after a kill between the two, `remove_stale`
    brings it back. On any exception the temporary folder is removed and `final` is as before.

    Raises
    ------
    CannotWriteError
        Naming the path and the cause; where a `form` is given, as `check_output`.
    """
    if form is not None:
        check_output(final, form, replace=True)
    make_folder(final.parent)
    aside = temporary_path(final)
    try:
        disk.low_mkdir(aside)
        descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise cannot_write(final, error) from error
    try:
        with locked(descriptor):
            yield aside
            seal(aside, kind=kind, metadata=metadata)
            try:
                move_in(aside, final, form)
            except OSError as error:
                raise cannot_write(final, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            disk.low_remove_tree(aside)
        raise


def move_in(aside: Path, final: Path, form: FolderForm | None = None) -> None:
    """Rename `aside` to `final`, durably; what was there is moved aside first and pruned last.

    Raises OSError; CannotWriteError where what was there is not of the form, if one is given.
    """
    if form is not None:
        check_output(final, form, replace=True)
    old = replaced_path(final)
    replaces = final.exists()
    if replaces:
        if old.exists():
            _remove_replaced(old, final)  # left by a killed run whose new folder did arrive
        disk.low_rename(final, old)
    try:
        disk.low_rename(aside, final)
    except OSError:
        if replaces:
            disk.low_rename(old, final)
        raise
    fsync_folder(final.parent)
    if replaces:
        _remove_replaced(old, final)


def _remove_replaced(old: Path, final: Path) -> None:
    """Remove what `final` has replaced; first it loses its name, so that no part of it is ever moved back."""
    aside = temporary_path(final)
    disk.low_rename(old, aside)
    disk.low_remove_tree(aside)


def committed_files(root: Path) -> Iterator[Path]:
    """Yield the files below `root` in order; of a folder with a manifest the manifest alone.

    Nothing that is committed has a name that begins with a dot: that is what is written aside, and what a network file
    system keeps for whoever has it open.
    """
    try:
        entries = sorted(root.iterdir())
    except FileNotFoundError:  # removed meanwhile, by a run that is at work
        return
    if root / MANIFEST_NAME in entries:
        entries = [root / MANIFEST_NAME]
    for entry in entries:
        if entry.name.startswith("."):
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


def rename_file(path: Path, target: Path) -> None:
    """Give a file another name on the same file system. Raises CannotWriteError."""
    try:
        disk.low_rename(path, target)
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_folder(path: Path, *, durable: bool = True, unless: Callable[[], bool] | None = None) -> bool:
    """Remove a folder so that it is never half there under its name; one that does not exist is fine.

    Returns whether it is no longer there: `unless` is asked once nobody finds it any more, and may bring it back.

    What of it is still open, where that keeps it in its folder, is left aside for `remove_stale`. `durable=False`
    leaves it to the operating system when the disk learns of it: after a power loss it may be there again, and damaged.

    Raises
    ------
    CannotWriteError
        If it cannot be removed.
    """
    aside = temporary_path(path)
    try:
        disk.low_rename(path, aside)
        if unless is not None and unless():
            disk.low_rename(aside, path)
            return False
        if durable:
            fsync_folder(path.parent)  # or the files in it could go before its name does
        disk.low_remove_tree(aside)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise cannot_write(path, error) from error
    return True


def remove_stale(parent: Path, *, recursive: bool = False) -> list[Path]:
    """Remove the files and folders that killed runs left aside (`disk.aside_of`); return what was removed.

    Call it only while holding the lock of `parent`: another process may be filling them. A folder that was
    moved aside for a replacement that never arrived is moved back instead. What is still open, where that keeps it
    in its folder, stays for the next call.

    Raises
    ------
    CannotWriteError
        If one cannot be removed.
    """
    removed = []
    try:
        for entry in sorted(parent.iterdir()):
            if aside_of(entry.name) is not None:
                removed += [entry] if remove_aside(entry) else []
            elif recursive and entry.is_dir() and not entry.is_symlink():
                removed += remove_stale(entry, recursive=True)
    except FileNotFoundError:
        return removed
    except OSError as error:
        raise cannot_write(parent, error) from error
    return removed


def remove_aside(path: Path) -> bool:
    """Remove a file or folder with a name of `disk.aside_of`; return whether it is gone.

    A folder that was moved aside for a replacement that never arrived is moved back. Raises OSError.
    """
    aside = aside_of(path.name)
    assert aside is not None
    if path.is_symlink() or not path.is_dir():
        if not aside.replaced:
            disk.low_unlink(path)
        return not aside.replaced  # only folders are moved aside: this is somebody else's
    final = path.with_name(aside.name)
    if not aside.replaced:
        disk.low_remove_tree(path)
        return not path.exists()
    if final.exists():
        _remove_replaced(path, final)
        return True
    disk.low_rename(path, final)
    fsync_folder(path.parent)
    return False
