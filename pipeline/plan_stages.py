"""What the stages of a run need: items, memory of the whole process tree, disk; sums of bytes and nothing else."""

from dataclasses import dataclass, replace

from pipeline.config import TrainConfig
from pipeline.feature_store import FeatureShape
from pipeline.setting_types import selection_size
from pipeline.solvers.greedy import forward_size
from pipeline.stages.grown_gram import BLOCK_BYTES, N_SPANS, rows_at_once
from pipeline.stages.rows import span_count
from pipeline.stages.scores import LINE_ROWS
from pipeline.stages.selection import AUTO_MOST
from pipeline.stages.solve import TILE_ROWS

_FACTOR_BYTES = 8 * 3000**2  # of an active set larger than any seen


@dataclass(frozen=True)
class StagePlan:
    """What one stage will need: items, memory of the whole process tree, disk. Bytes."""

    name: str
    items: int
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class Solving:
    """What the plan of the statistics and of the solves takes, for Grams of `columns` columns. Bytes.

    base: of the processes alone; stream: of a worker's block and its features; streams: of all, with the centers;
    selecting: of a greedy selection, else 0; centred: of the centred Gram where the solves fit an intercept, else 0;
    value_bytes: of a kernel value under way.
    """

    columns: int
    base: int
    workers: int
    stream: int
    streams: int
    selecting: int
    centred: int
    value_bytes: int

    @property
    def gram(self) -> int:
        """One Gram."""
        return 8 * self.columns**2

    @property
    def solves(self) -> int:
        """The mapped Gram, the centred one made from it, and the active sets of the solves; or a selection.

        A selection maps two Grams, of the fit rows and of all.
        """
        if self.selecting:
            return self.base + 2 * self.gram + self.selecting
        return self.base + self.gram + self.centred + self.workers * 3 * min(self.gram, _FACTOR_BYTES)


def solve_at_once(shape: FeatureShape, solving: Solving) -> tuple[StagePlan, StagePlan]:
    """Two Grams (fit, hold-out) a worker, four while they are added; on disk two a span, and fit, hold-out, all.

    The centred ones of an intercept (of fit and all) come when those of the spans are gone.
    """
    gram, n_spans = solving.gram, span_count(shape, solving.columns)
    statistics = solving.base + max(solving.workers * 2 * gram + solving.streams, 4 * gram)
    return (
        StagePlan("statistics", n_spans, statistics, (2 * n_spans + 3) * gram),
        StagePlan(
            "solve", 1 if solving.selecting else shape.n_outputs, solving.solves, shape.n_outputs * solving.columns * 16
        ),
    )


def solve_in_rounds(shape: FeatureShape, solving: Solving) -> tuple[StagePlan, StagePlan]:
    """At most half of the working set comes in at once: its Gram rows in each worker, or the old Gram and the new.

    A selection computes every round as if at once. On disk are the Grams of the last round (all rows; centred, or fit
    and held-out rows), the new one, and the spans' shares of its new rows.
    """
    gram, base, workers = solving.gram, solving.base, solving.workers
    n, t = shape.n_train, shape.n_outputs
    joining = base + gram + gram // 4 + gram // 2
    side = min(TILE_ROWS, n)
    tile = 2 * 4 * side * shape.n_features + solving.value_bytes * min(LINE_ROWS, n) * side + 8 * n * (t + 1)
    scoring = base + gram + workers * tile + 5 * 8 * n * (t + 1)
    disk = 2 * gram + solving.centred + N_SPANS * gram // 2
    growing = StagePlan("statistics", N_SPANS, max(_growing_bytes(shape, solving), joining), disk)
    if solving.selecting:
        once = solve_at_once(shape, solving)[0]
        growing = replace(once, disk_bytes=once.disk_bytes + 3 * gram)
    scores_disk = 3 * 8 * n * (t + 1) * (-(-n // TILE_ROWS))
    return (
        growing,
        StagePlan("solve", -(-n // TILE_ROWS), max(scoring, solving.solves), scores_disk),
    )


def _growing_bytes(shape: FeatureShape, solving: Solving) -> int:
    """Bytes while new Gram rows are computed, in the largest round or in the largest of those with longer blocks."""
    d, n, most = shape.n_features, shape.n_train, solving.columns
    item = 3 * solving.gram // 4 + min(BLOCK_BYTES * solving.value_bytes // 8, solving.value_bytes * n * most)
    for columns in (most, *(2**k for k in range((most - 1).bit_length()))):  # beyond a power of two, blocks halve
        rows = rows_at_once(columns, d)
        block = solving.value_bytes * columns * min(rows, n) + read_bytes(shape, rows)
        item = max(item, 6 * columns**2 + block - solving.stream)  # whose place is free meanwhile
    return solving.base + min(solving.workers, N_SPANS) * item + solving.gram // 4 + solving.streams


def selection_bytes(config: TrainConfig, w: int) -> int:
    """Bytes of a greedy selection: a row over all candidates for each chosen, and Grams of the chosen; else 0."""
    if config.solver.select == "none":
        return 0
    size = max(min(selection_size(config.solver.select) or AUTO_MOST, w), forward_size(w))
    return 8 * size * w + 6 * 8 * size * size


def read_bytes(shape: FeatureShape, block_rows: int) -> int:
    """Bytes of the features that are read at once for blocks of so many rows: whole chunks."""
    return 4 * shape.n_features * min(max(block_rows, shape.chunk_rows), shape.n_train)
