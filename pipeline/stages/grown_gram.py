"""The Gram of a working set, grown by the columns that are admitted: only their rows of it are computed.

An item streams its rows through the column generator of kept and new columns and commits its share of the new Gram
rows; the shares are added in the order of the spans.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.blas import add_gram, add_product
from pipeline.live_features import open_features
from pipeline.stages import rows, statistics
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run, is_whole
from pipeline.statistics import GramStatistics, mirror_lower
from storage.blocks import Block, spans
from storage.commit import make_folder, read_arrays, write_arrays
from storage.manifest import read as read_manifest

N_SPANS = 2  # of rows; fixed, since the order of summation is: each holds a share of the new Gram rows
BLOCK_BYTES = 2**26  # of one block of columns, f8


@dataclass(frozen=True)
class WorkingSet:
    """A round of the working set: its name, its candidates (training rows, in the order of the Gram), statistics."""

    name: str
    rows: NDArray[np.int64]
    statistics: GramStatistics


@dataclass(frozen=True)
class GrowTask:
    """What a worker needs: the rows to stream, and the training rows of the kept and of the new columns."""

    rows: RowTask
    name: str
    n_kept: int


def grow(run: Run, name: str, kept: WorkingSet | None, places: NDArray[np.int64], new: NDArray[np.int64]) -> WorkingSet:
    """Compute and commit the statistics of the kept columns and the new ones; return the new working set.

    `places` are the columns of `kept` that stay, `new` the training rows that come in. Costs n·(k + m)·2d operations
    for the columns and n·m·(2k + m) for their Gram, k kept and m new.
    """
    with run.charged("statistics", instead_of="solve"):
        return _grown(run, name, kept, places, new)


def _grown(
    run: Run, name: str, kept: WorkingSet | None, places: NDArray[np.int64], new: NDArray[np.int64]
) -> WorkingSet:
    own = kept.rows[places] if kept is not None else np.empty(0, np.int64)
    members = np.concatenate([own, new])
    folder = run.layout.statistics_file(name)
    make_folder(run.layout.statistics_parts)
    write_arrays(run.layout.statistics_part(f"{name}-rows.npz"), {"rows": members})
    # Long blocks: each one passes over the whole of the Gram rows that it adds to.
    block_rows = 2 ** max(6, int(np.log2(BLOCK_BYTES / (8 * len(members)))))
    task = GrowTask(replace(rows.task_of(run), block_rows=block_rows), name, len(own))
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
    generator = task.rows.generator(open_features(task.rows.features).take(members))
    k, m = task.n_kept, len(members) - task.n_kept
    gram = np.zeros((m, k + m))
    square = np.zeros((m, m)) if k else gram
    kty = np.zeros((m, task.rows.shape.n_outputs))
    yty, target_sums = np.zeros(kty.shape[1]), np.zeros(kty.shape[1])
    column_sums = np.zeros(m)
    n_rows = 0
    for X, Y, _ in rows.blocks(task.rows, span):
        K: NDArray[np.float64] = generator.block(X, out_dtype=np.float64)  # type: ignore[assignment]
        new = np.ascontiguousarray(K[:, k:])
        add_gram(new, square)
        if k:
            add_product(new, K[:, :k], gram[:, :k])
        kty += new.T @ Y
        column_sums += new.sum(axis=0)
        yty += np.einsum("it,it->t", Y, Y)
        target_sums += Y.sum(axis=0)
        n_rows += len(X)
    mirror_lower(square)
    if k:
        gram[:, k:] = square
    arrays = {"gram": gram, "kty": kty, "column_sums": column_sums, "yty": yty, "target_sums": target_sums}
    write_arrays(_part(task, span), arrays | {"rows": np.array(n_rows)}, durable=False)


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
