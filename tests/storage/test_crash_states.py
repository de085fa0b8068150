"""Power loss, or a kill: in every state that the disk may then be in, what was committed loads, nothing half-written.

The calls that change the disk are recorded while things are committed. A model of a disk replays them up to every
point and enumerates what may be there after the power fails: of a file that was not fsynced nothing, a part, zeros or
all of it; of the names changed in a folder since its last fsync any beginning of the changes, and, where they are
few, any choice of them. Every state is built in a folder and read by the public readers. That this finds what is lost
is shown by the same recording without its fsyncs.
"""

import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.work.store import CheckpointsOnDisk
from storage import arrays, folders, zarr_arrays
from storage import files as disk
from storage.errors import StorageError
from storage.folder_layouts import MANIFEST_NAME

MOST_STATES = 48  # at one point; beyond, a sample that holds the extremes
FEW = 4  # changes of one folder of which any choice may arrive
Call = tuple[Any, ...]


@dataclass(eq=False)
class File:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None

    def outcomes(self) -> list[bytes]:
        data = bytes(self.data)
        if self.synced == data:
            return [data]
        return list(dict.fromkeys([data, self.synced or b"", data[: len(data) // 2], bytes(len(data))]))


@dataclass(eq=False)
class Folder:
    entries: dict[str, Any] = field(default_factory=dict)
    synced: dict[str, Any] = field(default_factory=dict)
    pending: list[Call] = field(default_factory=list)

    def change(self, operation: Call) -> None:
        self.pending.append(operation)
        apply(self.entries, operation)

    def outcomes(self) -> list[tuple[Call, ...]]:
        changes = self.pending
        if len(changes) <= FEW:
            return [pick for n in range(len(changes), -1, -1) for pick in itertools.combinations(changes, n)]
        return [tuple(changes[:n]) for n in range(len(changes), -1, -1)]


def apply(entries: dict[str, Any], operation: Call) -> None:
    kind, name, other = operation
    if kind == "link":
        entries[name] = other
    elif kind == "unlink":
        entries.pop(name, None)
    elif name in entries and not isinstance(entries.get(other), Folder):  # a rename; never over a folder
        entries[other] = entries.pop(name)


class Disk:
    """What a replay of calls leaves in memory and on the disk."""

    def __init__(self) -> None:
        self.root = Folder()
        self.nodes: list[File | Folder] = [self.root]

    def at(self, path: str) -> Any:
        node = self.root
        for name in filter(None, path.split("/")):
            node = node.entries[name]
        return node

    def do(self, call: Call) -> None:
        kind, path = call[:2]
        parent, _, name = path.rpartition("/")
        if kind in ("create", "mkdir"):
            node = File() if kind == "create" else Folder()
            self.nodes.append(node)
            self.at(parent).change(("link", name, node))
        elif kind == "write":
            offset, data = call[2:]
            self.at(path).data[offset : offset + len(data)] = data
        elif kind == "fsync" and isinstance(node := self.at(path), File):
            node.synced = bytes(node.data)
        elif kind == "fsync":
            node.synced, node.pending = dict(node.entries), []
        elif kind == "rename":
            target, _, new_name = call[2].rpartition("/")
            assert target == parent, "all our renames stay in one folder"
            self.at(parent).change(("rename", name, new_name))
        elif kind == "link":
            self.at(parent).change(("link", call[2].rpartition("/")[2], self.at(path)))
        elif kind == "remove":
            self.at(parent).change(("unlink", name, None))

    def states(self, seed: int) -> Iterator[tuple]:
        """Yield the trees that may be there after the power is lost now."""
        nodes = [node for node in self.nodes if len(node.outcomes()) > 1]
        options = [node.outcomes() for node in nodes]
        total = int(np.prod([len(each) for each in options], dtype=float)) if options else 1
        picks: Iterator[tuple] = itertools.product(*options)
        if total > MOST_STATES:
            chance = random.Random(seed)
            drawn = [tuple(chance.choice(each) for each in options) for _ in range(MOST_STATES - 2)]
            # All arrived; and every file lost whose name arrived: the usual victims come first.
            whole = tuple(each[0] for each in options)
            bare = tuple(e[0] if isinstance(n, Folder) else e[-1] for n, e in zip(nodes, options, strict=True))
            picks = iter([whole, bare, *drawn])
        for pick in picks:
            yield freeze(self.root, dict(zip(map(id, nodes), pick, strict=True)))


def freeze(node: File | Folder, chosen: dict[int, Any]) -> Any:
    if isinstance(node, File):
        return chosen.get(id(node), node.synced if node.synced is not None else b"")
    entries = dict(node.synced)
    for operation in chosen.get(id(node), ()):
        apply(entries, operation)
    return tuple(sorted((name, freeze(child, chosen)) for name, child in entries.items()))


def build(folder: Path, state: tuple) -> None:
    folder.mkdir()
    for name, content in state:
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            build(folder / name, content)


class Recording:
    """The calls of one workload, and after which of them something was committed: (number of calls, what)."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls, self.commits = root, [], []

    def committed(self, what: int) -> None:
        self.commits.append((len(self.calls), what))

    def promised(self, n_calls: int) -> int:
        """Return what was committed last before so many calls were done."""
        return max((what for at, what in self.commits if at <= n_calls), default=0)

    def begun(self, n_calls: int) -> int:
        """Return the newest that may be there already: the one under way."""
        return min((what for at, what in self.commits if at > n_calls), default=self.commits[-1][1])

    def name(self, path: Path) -> str:
        return "" if path == self.root else path.relative_to(self.root).as_posix()

    def listen(self, patch: pytest.MonkeyPatch) -> None:
        real = {name: getattr(disk, name) for name in vars(disk) if name.startswith("low_")}
        note = self.calls.append

        def write(descriptor: int, path: Path, data: Any) -> int:
            offset = os.lseek(descriptor, 0, os.SEEK_CUR)
            taken = real["low_write"](descriptor, path, data)
            note(("write", self.name(path), offset, bytes(data[:taken])))
            return taken

        def remove_tree(path: Path) -> None:
            for folder, _, names in os.walk(path, topdown=False):
                for each in sorted(names):
                    note(("remove", self.name(Path(folder, each))))
                note(("remove", self.name(Path(folder))))
            real["low_remove_tree"](path)

        def simple(name: str, kind: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                done = real[name](*arguments)
                note((kind, *(self.name(each) for each in arguments if isinstance(each, Path))))
                return done

            return call

        patch.setattr(disk, "low_write", write)
        patch.setattr(disk, "low_remove_tree", remove_tree)
        for name, kind in KINDS.items():
            patch.setattr(disk, name, simple(name, kind))
        assert {"low_write", "low_remove_tree", *KINDS} == set(real), "a change of the disk that is not recorded"


KINDS = {f"low_{kind}": kind for kind in ("create", "fsync", "rename", "link", "mkdir")} | {"low_unlink": "remove"}


def values(number: int) -> dict[str, np.ndarray]:
    return {"a": np.full(40, number), "b": np.array(number / 2)}


def assert_values(arrays: dict[str, np.ndarray], number: int) -> None:
    assert arrays["a"].tolist() == [number] * 40
    assert float(arrays["b"]) == number / 2


Work = Callable[[Recording, Path], None]
Check = Callable[[Path, int, int], None]


def checkpoints_of(root: Path) -> CheckpointsOnDisk:
    return CheckpointsOnDisk(root / "one.npz", "a run", 60.0)


def save_checkpoints(recording: Recording, root: Path) -> None:
    checkpoints = checkpoints_of(root)
    for step in (1, 2, 3):
        checkpoints.save(values(step), {"of": step})
        recording.committed(step)


def check_checkpoints(root: Path, promised: int, begun: int) -> None:
    found = checkpoints_of(root).load()
    if found is None:
        assert not promised, "the checkpoint is lost"
        return
    assert promised <= found.facts["of"] <= begun
    assert_values(found.arrays, found.facts["of"])


def write_values(path: Path, number: int) -> None:
    arrays.commit(path, values(number))


def read_values(path: Path) -> int:
    found = arrays.load(path).arrays
    assert_values(found, int(found["a"][0]))
    return int(found["a"][0])


def twice(name: str, write: Callable[[Path, int], None], read: Callable[[Path], int]) -> tuple[Work, Check]:
    """Return the work of committing 1 and then 2 under a name, and the check that what is there is one of them."""

    def work(recording: Recording, root: Path) -> None:
        for number in (1, 2):
            write(root / name, number)
            recording.committed(number)

    def check(root: Path, promised: int, begun: int) -> None:
        if promised or (root / name).exists():
            assert promised <= read(root / name) <= begun
        write(root / name, 3)  # and the next run gets through
        assert read(root / name) == 3

    return work, check


def seal_in_place(recording: Recording, root: Path) -> None:
    """As a feature store."""
    store = root / "store"
    zarr_arrays.create_arrays(store, [zarr_arrays.ArraySpec("x", (4,), "int64", 2)], {})
    zarr_arrays.open_arrays(store)["x"].write(0, np.arange(4))
    folders.seal(store, {})
    recording.committed(1)


def check_store(root: Path, promised: int, begun: int) -> None:
    if promised or (root / "store" / MANIFEST_NAME).exists():
        files = folders.read_manifest(root / "store")
        assert len(files) == 4
        assert folders.compare(root / "store", files, contents=True) == []


WORK: dict[str, tuple[Work, Check]] = {
    "checkpoints": (save_checkpoints, check_checkpoints),
    "record in a new folder": twice(
        "markers/item.json",
        lambda path, number: (disk.make_folder(path.parent), disk.write_record(path, {"number": number})),
        lambda path: disk.read_record(path)["number"],
    ),
    "npz": twice("one.npz", write_values, read_values),
    "store": (seal_in_place, check_store),
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of states are built in it and removed."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="crash-", dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


class Judge:
    """A recording with the verdicts on the states seen so far: most states come up again and again."""

    def __init__(self, name: str, place: Path) -> None:
        work, self.check = WORK[name]
        root = place / name
        root.mkdir()
        self.recording, self.place = Recording(root), place
        with pytest.MonkeyPatch.context() as patch:
            self.recording.listen(patch)
            work(self.recording, root)
        self.seen: dict[tuple, str] = {}

    def violation(self, fsyncs: bool = True) -> str:
        """Return the first violation, empty if there is none; without `fsyncs`, where none of them was made."""
        model, calls = Disk(), self.recording.calls
        for n_calls in range(len(calls) + 1):
            if n_calls and (fsyncs or calls[n_calls - 1][0] != "fsync"):
                model.do(calls[n_calls - 1])
            promise = self.recording.promised(n_calls), self.recording.begun(n_calls)
            for state in model.states(n_calls):
                key = (state, promise)
                if key not in self.seen:
                    self.seen[key] = self._judge(state, promise)
                if self.seen[key]:
                    return f"after {n_calls} calls: {self.seen[key]}"
        return ""

    def _judge(self, state: tuple, promise: tuple[int, int]) -> str:
        folder = self.place / "state"
        build(folder, state)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(disk, "low_fsync", lambda descriptor, path: None)  # this disk is only looked at
                folders.remove_stale(folder)
                assert not list(folder.rglob(".*")), "leftovers"
                self.check(folder, *promise)
        except (AssertionError, StorageError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(folder)
        return ""


@pytest.mark.parametrize("name", WORK)
def test_what_was_committed_loads_after_any_power_loss(name, place):
    judge = Judge(name, place)
    assert judge.violation() == ""
    assert len(judge.seen) > len(judge.recording.calls)  # several states at a point
    assert judge.violation(fsyncs=False)
