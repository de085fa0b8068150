"""What the stages of a run need: pieces, memory of the whole process tree, disk; sums of bytes and nothing else."""

from dataclasses import dataclass, replace

from pipeline.config.parsers import NO_PENALTY, is_searched, learns_scales
from pipeline.config.train_config import TrainConfig, what_needs_held_out_rows
from pipeline.datasets.feature_request import FeatureShape
from pipeline.kernels.exact_sums import TILE_COLUMNS as GRAM_TILE
from pipeline.kernels.kernel_functions import COLUMNS_TILE
from pipeline.prediction.labelled_scores import ranked_share
from pipeline.runtime.row_pass import n_groups_of, threads_together
from pipeline.solvers.forward_backward_selection import dropping_bytes
from pipeline.solvers.greedy_choice import Preselection
from pipeline.solvers.kernel_trials import trial_bytes
from pipeline.solvers.lbfgs import descent_bytes
from pipeline.solvers.ridge import ridge_bytes
from pipeline.solvers.solve import solve_bytes
from pipeline.stages.filled_settings import trial_sizes
from pipeline.stages.kernel_settings import kernels_of
from pipeline.stages.out_of_core.correlation_pass import tile_bytes
from pipeline.stages.out_of_core.kept_columns import kept_blocks
from pipeline.stages.out_of_core.tiles import TILE_ROWS
from pipeline.stages.out_of_core.working_set import growth_bytes
from pipeline.stages.polish_centers import samples_of
from pipeline.stages.training_rows import RowGrid, read_rows, row_grid

# Of each row in the process that leads a run: labels, keys, order, and what finds equal rows; measured.
ROW_BYTES, MANY_ROWS = 64, 3_000_000


def rows_bytes(n_rows: int) -> int:
    """Bytes of what is known of each row, once the data are open.

    Half of what opening takes; of fewer than MANY_ROWS the allocator gives nothing back.
    """
    return ROW_BYTES * (n_rows + min(n_rows, MANY_ROWS)) // 2


@dataclass(frozen=True)
class StagePlan:
    """What one stage needs: memory of the whole process tree and disk, in bytes.

    pieces : of its work that do not wait for each other: as many workers find something to do
    """

    name: str
    pieces: int
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class Workers:
    """Who computes: threads of some processes; so many of one process, at least, share one set of sums.

    in_one_process : it is this one; else rows are shared out, of a cluster to nobody knows how many
    """

    threads: int
    processes: int
    together: int
    in_one_process: bool = True

    def groups(self, sums_bytes: int, n_pieces: int, threads_a_piece: int = 1) -> int:
        """Number of groups of threads that have sums of so many bytes each, of so many pieces."""
        together, threads = max(threads_together(sums_bytes), self.together), self.threads // self.processes
        pieces = -(-n_pieces // self.processes)
        return self.processes * n_groups_of(threads, together, pieces, threads_a_piece)


@dataclass(frozen=True)
class Solving:
    """What the plan of the statistics and of the solves takes, for Grams of `columns` columns. Bytes.

    candidates: how many there are; base: of the processes alone, streaming: of those while they make columns; centers:
    of the columns, in each process; selecting: of a greedy selection, else 0; value_bytes: of a kernel value; moving:
    centers that may move, else 0; preselected: how finalists are chosen, of a selection that has some.
    """

    config: TrainConfig
    shape: FeatureShape
    columns: int
    candidates: int
    base: int
    streaming: int
    workers: Workers
    centers: int
    selecting: int
    value_bytes: int
    moving: int
    preselected: Preselection | None

    @property
    def of_finalists(self) -> "Solving":
        """The same for the finalists of a selection."""
        assert self.preselected is not None
        f = self.preselected.n_finalists
        return replace(self, columns=f, centers=self.centers * f // max(self.columns, 1), preselected=None)

    @property
    def gram(self) -> int:
        """One Gram."""
        return 8 * self.columns**2

    @property
    def centred(self) -> int:
        """The centred Gram, where the solves fit an intercept, else 0."""
        return self.gram if self.config.solver.intercept and not self.selecting else 0

    @property
    def searched(self) -> bool:
        """Whether penalties are solved for along a path."""
        return is_searched(self.config.solver.penalty) and not self.selecting

    def pieces(self, blocks: RowGrid) -> int:
        """The pieces of a pass of statistics: blocks, or tiles of them where threads share out each block."""
        tiles = -(-self.columns // GRAM_TILE) if self.workers.in_one_process else 1
        return blocks.n_blocks * tiles * (tiles + 1) // 2

    def streams(
        self,
        sums_bytes: int,
        part_rows: int | None = None,
        share: float | None = None,
        blocks: RowGrid | None = None,
    ) -> int:
        """Sums, blocks, features and tiles of all threads while rows are streamed, and the centers.

        share : of the rows that are sampled as they are read
        """
        w, shape = self.columns, self.shape
        rows = shape.n_train if part_rows is None else part_rows
        grid = blocks or row_grid("train", rows, w, sums_bytes, share or 1.0)
        block, read = min(grid.block_rows, rows), read_rows(shape, self.config.statistics.block_rows)
        used = block if share is None else min(int(1.2 * share * block) + 64, block)  # drawn: a few more may be
        tile = 8 * min(GRAM_TILE, w) ** 2 if sums_bytes else 0
        tile += used * self.value_bytes * min(COLUMNS_TILE, w)
        n_read = min(max(block, read), rows) if share is None else min(read, rows) + 2 * used
        features = 4 * shape.n_features * n_read
        features *= 2 if learns_scales(self.config.kernel.scale) else 1
        each = sums_bytes + 8 * used * w + features
        each += 8 * shape.n_features * used if self.value_bytes == 8 else 0  # the rows, in that
        workers = self.workers
        groups = workers.groups(sums_bytes, grid.n_blocks, -(-w // COLUMNS_TILE) if sums_bytes else 1)
        return workers.processes * self.centers + groups * each + workers.threads * tile

    def solves(self) -> int:
        """What the solves take, or then the moves of the centers."""
        return max(self._solves(), self.moves())

    def tests(self) -> int:
        """The test part while it is streamed, beside where centers were before they moved; or then its ranked rows.

        These are joined, and one output of them is sorted at a time.
        """
        shape, rows = self.shape, 0
        if shape.task != "regression":
            rows = int(8 * ranked_share(shape.n_test, shape.n_outputs) * shape.n_test)
        moved = self.workers.processes * 4 * self.moving * shape.n_features
        kept = rows * (shape.n_outputs + 2)
        return max(self.streams(0, shape.n_test) + moved + kept, 2 * kept + 4 * rows)

    def moves(self) -> int:
        """Statistics or a gradient of the centers that move, beside their places, gradients and curvature."""
        if not self.moving:
            return 0
        numbers = self.moving * self.shape.n_features
        moved = replace(self, columns=self.moving, centers=4 * numbers)
        passes = max(moved.streams(2 * moved.gram) + 4 * moved.gram, moved.streams(8 * numbers))
        return self.base + passes + descent_bytes(numbers) + self.samples()

    def samples(self) -> int:
        """The samples of the rows that moves begin on."""
        shares = samples_of(self.shape, self.config.statistics.hold_out, self.moving)
        return int(sum(shares) * self.shape.n_train) * (4 * self.shape.n_features + 32)

    def moving_disk(self) -> int:
        """Two checkpoints of the moves, a third while it is written, the sums of each process, and the samples."""
        if not self.moving:
            return 0
        sums = self.workers.processes * 8 * (self.shape.n_features + 2 * self.moving)
        return 3 * descent_bytes(self.moving * self.shape.n_features) + self.moving * sums + self.samples()

    def _solves(self) -> int:
        """The mapped Gram, the centred one, and the active sets of the solves; a selection maps two Grams."""
        solver = self.config.solver
        calibrated = self.shape.task != "regression" and self.config.statistics.hold_out > 0
        streams = self.streams(0) if self.searched or calibrated else 0
        if self.preselected is not None:
            finalists = self.of_finalists
            f = finalists.columns
            return self.base + max(self.gram + 8 * f * (self.columns + f), dropping_bytes(f), streams)
        if self.selecting:
            return self.base + max(2 * self.gram + self.selecting, streams)
        if solver.select == "none" and solver.penalty == NO_PENALTY:
            return self.base + max(ridge_bytes(self.columns), streams)
        beside = min(self.workers.threads, self.shape.n_outputs) * solve_bytes(self.columns)
        return self.base + self.gram + self.centred + max(beside, streams)


def solve_at_once(solving: Solving) -> tuple[StagePlan, StagePlan]:
    """Two Grams (fit, hold-out) a group of threads, and one that is read while committed sums are taken up.

    On disk are two for each process, twice while they are replaced, and all, with fit and hold-out where a choice reads
    them.
    """
    shape, gram, sums = solving.shape, solving.gram, 2 * solving.gram
    statistics = solving.streaming + max(solving.streams(sums), sums + gram)
    blocks = row_grid("train", shape.n_train, solving.columns, sums)
    pieces = solving.pieces(blocks)
    stored = gram + (sums if what_needs_held_out_rows(solving.config) else 0)
    return (
        StagePlan("statistics", pieces, statistics, 2 * solving.workers.processes * sums + stored),
        StagePlan(
            "solve",
            1 if solving.selecting else shape.n_outputs,
            solving.solves(),
            shape.n_outputs * solving.columns * 16 + solving.moving_disk(),
        ),
    )


def solve_finalists(solving: Solving) -> tuple[StagePlan, StagePlan]:
    """One Gram of the sample a group of threads, of all candidates or those of a batch; then two of the finalists.

    On disk are those of each process, twice while they are replaced, and what is committed.
    """
    assert solving.preselected is not None
    gram, finalists, workers = solving.gram, solving.of_finalists, solving.workers
    sampling = solving.streaming + max(solving.streams(gram, share=solving.preselected.share), 2 * gram)
    after, weights = solve_at_once(finalists)
    blocks = row_grid("train", solving.shape.n_train, solving.columns, gram, solving.preselected.share)
    disk = max(2 * workers.processes * gram + gram, after.disk_bytes)
    statistics = StagePlan("statistics", solving.pieces(blocks), max(sampling, after.memory_bytes), disk)
    return statistics, replace(weights, memory_bytes=solving.solves())


def solve_in_rounds(solving: Solving) -> tuple[StagePlan, StagePlan]:
    """Gram rows of the columns that come in, in each group, or the old Gram and the new; then the pass of correlations.

    A penalty path has Grams of fit rows and of held-out rows, of half as many columns. Each thread has a block of the
    columns, as the files have them and in float64. On disk are the Grams of the last round, the new one, and the sums
    of each process of its new rows; columns are kept where there is room beside these.
    """
    gram, workers, shape = solving.gram, solving.workers, solving.shape
    n, t = shape.n_train, shape.n_outputs
    at_once, joining = growth_bytes(gram, on_demand=solving.config.centers.on_demand)
    blocks = kept_blocks(n, solving.columns)
    kept = workers.threads * blocks.block_rows * solving.columns
    streaming = gram // 4 + solving.streams(at_once, blocks=blocks) + solving.value_bytes * kept
    disk = (2 + workers.processes) * gram + solving.centred
    pieces = solving.pieces(blocks)
    growing = StagePlan("statistics", pieces, solving.base + max(streaming, joining), disk)
    values = 8 * max(n, solving.candidates) * (t + 1)
    tile, tiles = tile_bytes(n, shape.n_features, solving.value_bytes), -(-n // TILE_ROWS)
    groups = workers.groups(values, tiles * tiles, -(-TILE_ROWS // COLUMNS_TILE))
    reading = (8 + solving.value_bytes) * kept
    scoring = solving.base + gram + max(workers.threads * tile + (groups + 5) * values, reading + 2 * values)
    return (
        growing,
        StagePlan(
            "solve",
            tiles * (tiles + 1) // 2,
            max(scoring, solving.solves()),
            2 * (workers.processes + 2) * values + solving.moving_disk(),
        ),
    )


def trials_of(config: TrainConfig, shape: FeatureShape, workers: Workers) -> int:
    """Bytes of the sample, while it is read, and of the trials of kernels that run beside each other."""
    sizes = trial_sizes(config, shape)
    rows = min(sizes.n_rows + sizes.n_rows // 2, shape.n_train)
    each = trial_bytes(rows, min(sizes.most, shape.n_train), shape.n_features)
    beside = min(workers.threads, max(len(kernels_of(config.kernel)), 2))
    return 2 * 4 * rows * shape.n_features + beside * each
