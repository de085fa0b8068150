"""The Gram of a working set, grown by the columns that are admitted: only their rows of it are computed.

An item streams its rows through the column generator of kept and new columns and commits its share of the new Gram
rows; the shares are added in the order of the spans.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.blas import add_gram, add_product
from pipeline.columns import ColumnGenerator
from pipeline.stages import rows, statistics
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run, is_whole
from pipeline.statistics import GramStatistics, mirror_lower
from storage.blocks import Block, spans
from storage.commit import make_folder, read_arrays, write_arrays
from storage.manifest import read as read_manifest

N_SPANS = 2  # of rows; fixed, since the order of summation is: each holds a share of the new Gram rows
BLOCK_BYTES = 2**26  # of one block of columns, f8, and of its features, f4


@dataclass(frozen=True)
class WorkingSet:
    """A round of the working set: its name, its candidates (by name, in the order of the Gram), statistics."""

    name: str
    rows: NDArray[np.int64]
    statistics: GramStatistics


@dataclass(frozen=True)
class GrowTask:
    """What a worker needs: the rows to stream, and the round, whose members are the kept columns, then the new."""

    rows: RowTask
    name: str
    n_kept: int


def grow(run: Run, name: str, kept: WorkingSet | None, places: NDArray[np.int64], new: NDArray[np.int64]) -> WorkingSet:
    """Compute and commit the statistics of the kept columns and the new ones; return the new working set.

    `places` are the columns of `kept` that stay, `new` the candidates that come in. Costs n·(k + m)·2d operations
    for the columns and n·m·(2k + m) for their Gram, k kept and m new.
    """
    with run.charged("statistics", instead_of="solve"):
        return _grown(run, name, kept, places, new)


def rows_at_once(n_members: int, n_features: int) -> int:
    """Return the rows of a block: a power of two, as many as `BLOCK_BYTES` hold of columns and of features.

    Long blocks, since each one passes over the whole of the Gram rows that it adds to.
    """
    return int(2 ** max(6, int(np.log2(BLOCK_BYTES / max(8 * n_members, 4 * n_features)))))


def _grown(
    run: Run, name: str, kept: WorkingSet | None, places: NDArray[np.int64], new: NDArray[np.int64]
) -> WorkingSet:
    own = kept.rows[places] if kept is not None else np.empty(0, np.int64)
    members = np.concatenate([own, new])
    folder = run.layout.statistics_file(name)
    make_folder(run.layout.statistics_parts)
    write_arrays(run.layout.statistics_part(f"{name}-rows.npz"), {"rows": members})
    long = rows_at_once(len(members), run.shape.n_features)
    task = GrowTask(replace(rows.task_of(run), block_rows=long), name, len(own))
    grid = spans(run.shape.n_train, task.rows.read_rows, N_SPANS)
    waiting = [span for span in grid if not is_whole(_part(task, span))]
    run.run_items("statistics", partial(grow_span, task), waiting)
    found = _joined(kept, places, len(new), [_part(task, span) for span in grid])
    entries = {"kernel_entries": run.shape.n_train * len(members)}
    write_arrays(folder, statistics.to_arrays(found) | {"rows": members}, metadata=entries)
    return load(run, name)


def load(run: Run, name: str) -> WorkingSet:
    """Return a committed working set, its Gram mapped read-only; what its items left is removed."""
    for path in run.layout.statistics_parts.glob(f"{name}-*"):
        path.unlink()
    arrays = read_arrays(run.layout.statistics_file(name), mapped=True)
    members = np.asarray(arrays.pop("rows"))
    return WorkingSet(name, members, statistics.from_arrays(arrays))


def kernel_entries(run: Run, name: str) -> int:
    """Return how many kernel entries a round's statistics took."""
    return int(read_manifest(run.layout.statistics_file(name)).metadata["kernel_entries"])


def _part(task: GrowTask, span: Block) -> Path:
    return task.rows.layout.statistics_part(f"{task.name}-{span.index:04d}.npz")


def grow_span(task: GrowTask, span: Block) -> None:
    """Accumulate the new Gram rows over one span and commit them."""
    members = read_arrays(task.rows.layout.statistics_part(f"{task.name}-rows.npz"))["rows"]
    generator = task.rows.generator(members)
    share = _Share(task.n_kept, len(members) - task.n_kept, task.rows.shape.n_outputs)
    for start in range(span.start, span.stop, task.rows.read_rows):
        _add(share, generator, task.rows, replace(span, start=start, stop=min(start + task.rows.read_rows, span.stop)))
    write_arrays(_part(task, span), share.arrays(), durable=False)


def _add(share: "_Share", generator: ColumnGenerator, task: RowTask, read: Block) -> None:
    """Add rows that are read at once; they do not outlive the call, so that the next ones have their place."""
    for X, targets, _ in rows.blocks(task, read):
        share.add(generator, X, targets)


class _Share:
    """What one span of rows adds to the Gram rows of m new columns beside k kept ones, and to the other sums."""

    def __init__(self, k: int, m: int, n_outputs: int) -> None:
        self._k = k
        self._gram = np.zeros((m, k + m))
        self._square = np.zeros((m, m)) if k else self._gram
        self._kty = np.zeros((m, n_outputs))
        self._yty, self._target_sums = np.zeros(n_outputs), np.zeros(n_outputs)
        self._column_sums = np.zeros(m)
        self._rows = 0

    def add(self, generator: ColumnGenerator, X: NDArray[np.float32], targets: NDArray[np.float64]) -> None:
        """Add a block of rows. No block of columns outlives the call, so that there is never a second one."""
        K: NDArray[np.float64] = generator.block(X, out_dtype=np.float64)  # type: ignore[assignment]
        new = np.ascontiguousarray(K[:, self._k :])
        add_gram(new, self._square)
        if self._k:
            add_product(new, K[:, : self._k], self._gram[:, : self._k])
        self._kty += new.T @ targets
        self._column_sums += new.sum(axis=0)
        self._yty += np.einsum("it,it->t", targets, targets)
        self._target_sums += targets.sum(axis=0)
        self._rows += len(X)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the sums as named arrays; the Gram is completed in place, so call it once."""
        mirror_lower(self._square)
        if self._k:
            self._gram[:, self._k :] = self._square
        sums = {"gram": self._gram, "kty": self._kty, "column_sums": self._column_sums, "yty": self._yty}
        return sums | {"target_sums": self._target_sums, "rows": np.array(self._rows)}


def _joined(kept: WorkingSet | None, places: NDArray[np.int64], n_new: int, parts: list[Path]) -> GramStatistics:
    """Add the parts in order to the statistics of the kept columns."""
    k = len(places)
    gram = np.empty((k + n_new, k + n_new))
    if kept is not None:
        old = kept.statistics
        for start in range(0, k, 512):  # by stripes: the old Gram is mapped, and may be as large as the new one
            gram[start : min(start + 512, k), :k] = old.gram[places[start : start + 512]][:, places]
    gram[k:] = 0.0
    sums: dict[str, NDArray[np.float64]] = {}
    for path in parts:
        part = read_arrays(path)
        gram[k:] += part.pop("gram")
        sums = {key: sums[key] + value for key, value in part.items()} if sums else part
    gram[:k, k:] = gram[k:, :k].T
    if kept is None:
        kty, columns = sums["kty"], sums["column_sums"]
    else:
        kty = np.concatenate([kept.statistics.kty[places], sums["kty"]])
        columns = np.concatenate([kept.statistics.column_sums[places], sums["column_sums"]])
    return GramStatistics(gram, kty, sums["yty"], columns, sums["target_sums"], float(sums["rows"]))
