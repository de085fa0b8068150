"""Stage 3: sufficient statistics of the kernel columns, one item for each span of rows.

An item streams its rows block by block through the column generator and commits its partial sums; the parts are
then added in the order of the spans, so that every executor gives the same bits.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.columns import ColumnGenerator
from pipeline.stages import candidates, rows
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run, is_whole
from pipeline.statistics import GramStatistics, StatisticsAccumulator, add_block
from storage.blocks import Block
from storage.commit import check_folder, make_folder, read_arrays, remove_folder, write_arrays
from storage.layout import RunLayout
from storage.manifest import MANIFEST_NAME
from storage.markers import read_markers, write_marker

STAGE = "statistics"
PARTS = ("fit", "hold_out")
REMEDY = "delete the folder statistics and resume: they are made again"


def run(run: Run) -> None:
    """Accumulate the statistics of all training rows and commit them as fit, hold_out and all."""
    with run.stage(STAGE) as cost:
        if in_rounds(run):
            return  # the solve stage computes them, for the columns it needs
        if (run.layout.statistics_file("all") / MANIFEST_NAME).exists():
            for name in PARTS:  # `all` is checked by the solves
                check_folder(run.layout.statistics_file(name), remedy=REMEDY)
            remove_folder(run.layout.statistics_parts, durable=False)  # left by a kill at the last moment
            return
        task = rows.task_of(run)
        grid = rows.grid(task, n_centers(run))
        make_folder(run.layout.statistics_parts)
        done = run.done(run.layout.markers(STAGE))
        waiting = [span for span in grid if item_name(span) not in done or not _has_part(run, span)]
        cost.items = len(grid) - len(waiting)
        run.run_items(STAGE, partial(accumulate_span, task), waiting)
        _reduce(run, grid)


def n_centers(run: Run) -> int:
    """Return the number of candidates of a run: training rows, times kernel widths."""
    return candidates.count(run.config, run.shape.n_train)


def in_rounds(run: Run) -> bool:
    """Tell whether the Gram of all candidates does not fit, so that a working set grows instead."""
    return (run.config.centers.working_set or 0) < n_centers(run)


def kernel_entries(layout: RunLayout) -> int:
    """Return how many kernel entries the committed statistics took."""
    return sum(int(done["kernel_entries"]) for done in read_markers(layout.markers(STAGE)).values())


def item_name(span: Block) -> str:
    """Return the name of the marker and of the partial sums of a span."""
    return f"span-{span.index:04d}"


def accumulate_span(task: RowTask, span: Block) -> None:
    """Accumulate one span and commit its partial sums."""
    generator = task.generator_at_once()
    # No fsync: it took a tenth of the stage, and a part that is lost with the power is made again.
    write_arrays(task.layout.statistics_part(item_name(span) + ".npz"), span_sums(task, generator, span), durable=False)
    entries = span.n_rows * generator.n_centers
    write_marker(task.layout.markers(STAGE), item_name(span), {"rows": span.n_rows, "kernel_entries": entries})


def span_sums(task: RowTask, generator: ColumnGenerator, span: Block) -> dict[str, NDArray[np.float64]]:
    """Return the sums over one span, of fit rows and held-out rows apart, as arrays for `joined`."""
    parts = {name: StatisticsAccumulator(generator.n_centers, task.shape.n_outputs) for name in PARTS}
    for block in rows.blocks(task, span):
        add_block(generator, block.X, block.targets, block.held_out, parts["fit"], parts["hold_out"])
    arrays: dict[str, NDArray[np.float64]] = {}
    for name, part in parts.items():
        arrays |= {f"{name}.{key}": value for key, value in to_arrays(part.statistics()).items()}
    return arrays


def joined(parts: Sequence[Path]) -> dict[str, GramStatistics]:
    """Return the statistics of fit rows, held-out rows and all rows, added in the order of the parts.

    In place, so that there are never more than the sums and one part beside them: four Grams.
    """
    with ThreadPoolExecutor(len(PARTS)) as threads:  # reading checks every byte, and takes longer than adding
        fit, hold_out = threads.map(partial(_sum_of, parts), PARTS)
    return {"fit": fit, "hold_out": hold_out, "all": fit + hold_out}


def _sum_of(parts: Sequence[Path], name: str) -> GramStatistics:
    prefix = f"{name}."
    sums = read_arrays(parts[0], prefix=prefix)
    for path in parts[1:]:
        for key, value in read_arrays(path, prefix=prefix).items():
            sums[key] += value
        del value
    return from_arrays({key.removeprefix(prefix): value for key, value in sums.items()})


def to_arrays(statistics: GramStatistics) -> dict[str, NDArray[np.float64]]:
    """Return statistics as named arrays, ready to be stored."""
    arrays = {name: value for name, value in vars(statistics).items() if name != "weight_sum"}
    return arrays | {"weight_sum": np.array(statistics.weight_sum)}


def from_arrays(arrays: dict[str, NDArray[np.float64]]) -> GramStatistics:
    """Return the statistics that `to_arrays` turned into arrays; other arrays may be among them."""
    return GramStatistics(
        gram=arrays["gram"],
        kty=arrays["kty"],
        yty=arrays["yty"],
        column_sums=arrays["column_sums"],
        target_sums=arrays["target_sums"],
        weight_sum=float(arrays["weight_sum"]),
    )


def load(layout: RunLayout, part: str) -> GramStatistics:
    """Return the committed statistics of a part (fit, hold_out or all), the Gram mapped read-only."""
    return from_arrays(read_arrays(layout.statistics_file(part), mapped=True))


def _has_part(run: Run, span: Block) -> bool:
    return is_whole(run.layout.statistics_part(item_name(span) + ".npz"))


def _reduce(run: Run, grid: tuple[Block, ...]) -> None:
    """Add the partial sums in the order of the spans, commit fit, hold_out and all, drop the parts."""
    # `all` comes last: it is what tells a resumed run that the stage is done.
    for name, found in joined([run.layout.statistics_part(item_name(span) + ".npz") for span in grid]).items():
        write_arrays(run.layout.statistics_file(name), to_arrays(found))
    remove_folder(run.layout.statistics_parts, durable=False)
