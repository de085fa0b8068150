"""How the rows are cut into blocks, by the data alone, and streamed: features, targets and who is held out."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.settings import with_value
from pipeline.config.train_config import TrainConfig
from pipeline.errors import StoppedError
from pipeline.planning.plan import prepare
from pipeline.planning.stage_memory import statistics_pieces
from pipeline.runtime import stopping
from pipeline.runtime.events import Events, MemoryMeter
from pipeline.runtime.executors import open_executor
from pipeline.runtime.row_pass import n_groups_of, threads_together
from pipeline.stages import accumulate_statistics as statistics
from pipeline.stages import build_features as features
from pipeline.stages import draw_candidates as centers
from pipeline.stages import training_rows as rows
from pipeline.stages.largest_values import LargestValues
from pipeline.stages.out_of_core.grown_gram import GrowthPass
from pipeline.stages.out_of_core.kept_columns import KeptFiles, kept_blocks
from pipeline.stages.out_of_core.score_pass import ScorePass
from pipeline.stages.out_of_core.score_tiles import TILE_ROWS, ScoreTiles
from pipeline.stages.run_state import STAGES, STATISTICS, Run, StageCost
from pipeline.stages.statistics_pass import ALL, FIT, HELD_OUT, StatisticsPass
from pipeline.stages.training_rows import row_grid, run_length
from runs import task_for
from storage.atomic_writes import make_folder, read_arrays, write_arrays
from storage.folder_layouts import RunLayout

MNIST, SPHOG = 60_000, 2172
ALL_POINTS = (*range(0, MNIST, TILE_ROWS), MNIST)
LARGEST = LargestValues(1.0, (1.0,) * 10)
WORKERS, PIECES = 64, 4  # every worker shall find some pieces


@given(n_rows=st.integers(0, 10**7), n_columns=st.integers(1, 10**6), sums_bytes=st.integers(0, 2**36))
def test_blocks_cover_each_row_once_and_are_bounded(n_rows: int, n_columns: int, sums_bytes: int) -> None:
    grid = row_grid("train", n_rows, n_columns, sums_bytes)
    assert grid.block_rows % 32 == 0
    assert 32 <= grid.block_rows <= rows.MOST_ROWS
    assert grid.block_rows == 32 or grid.block_rows * n_columns <= rows.MOST_VALUES
    assert (grid.n_blocks - 1) * grid.block_rows < max(n_rows, 1) <= max(grid.n_blocks * grid.block_rows, 1)
    if grid.n_blocks:
        assert sum(grid.size(block) for block in (0, grid.n_blocks - 1)) <= 2 * grid.block_rows
        assert grid.rows(range(grid.n_blocks)) == slice(0, n_rows)
        last = grid.n_blocks - 1
        assert grid.rows(range(last, grid.n_blocks)).stop - last * grid.block_rows == grid.size(last)


def statistics_pass(n_columns: int) -> StatisticsPass:
    return StatisticsPass(task_for(MNIST, SPHOG, None), (FIT, HELD_OUT), n_columns, LARGEST)


def growth_pass(n_columns: int) -> GrowthPass:
    files = KeptFiles(task_for(MNIST, SPHOG, None), kept_blocks(MNIST, n_columns), Path("kept"), 0)
    return GrowthPass(files, Path("g"), n_columns, (ALL,), n_columns // 2, LARGEST)


@pytest.mark.parametrize(
    "task",
    [
        *(statistics_pass(n_columns) for n_columns in (1000, 3000, 12_000)),
        *(growth_pass(n_columns) for n_columns in (1000, 3000, 12_000)),
        *(
            ScorePass(task_for(MNIST, SPHOG, None), Path("s"), ScoreTiles(MNIST, ALL_POINTS, half), (1.0, 1.0))
            for half in (False, True)
        ),
    ],
    ids=str,
)
def test_64_workers_find_pieces_in_statistics_growth_and_scores(task: StatisticsPass | GrowthPass | ScorePass) -> None:
    """Of large Grams each block is shared out by its tiles, to the threads that share its sums."""
    pieces = task.n_pieces
    if not isinstance(task, ScorePass):
        pieces = statistics_pieces(task.blocks, task.n_columns)
        groups = n_groups_of(WORKERS, threads_together(task.sums_bytes), task.n_pieces, task.threads_a_piece)
        assert task.n_pieces >= groups, "every group of threads has a block"
    assert pieces >= PIECES * WORKERS
    assert sum(map(task.size, range(task.n_pieces))) >= MNIST


def test_64_workers_find_pieces_in_evaluation() -> None:
    assert row_grid("test", 10_000, 3000).n_blocks >= PIECES * WORKERS


@pytest.mark.parametrize("asked", [None, 1, 500, 4096, 10**6])
def test_what_is_read_at_once_changes_no_block(asked: int | None) -> None:
    task, every = task_for(MNIST, SPHOG, asked), task_for(MNIST, SPHOG, None)
    largest = LargestValues(1.0, (1.0,))
    asked_pass, usual = (StatisticsPass(each, (FIT, HELD_OUT), 1000, largest) for each in (task, every))
    assert asked_pass.grid == usual.grid
    assert asked_pass.blocks == usual.blocks
    length = run_length(task, asked_pass.blocks)
    assert length >= 1
    most = max(min(asked or 4 * task.shape.chunk_rows, rows.READ_BYTES // (4 * SPHOG)), usual.blocks.block_rows)
    assert length * usual.blocks.block_rows <= most


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Run]:
    """A run on 3000 rows of 3 numbers, one chunk, whose features and centers are there; blocks of 256 rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    np.savez(tmp_path / "d.npz", X=X, y=np.sin(X[:, 0]))
    config = TrainConfig(dataset=str(tmp_path / "d.npz"))
    for key, value in {"centers.count": 50, "statistics.block_rows": 256, "kernel.sigma2": 1.0}.items():
        config = with_value(config, key, value)
    config = with_value(config, "resources.features_dir", str(tmp_path / "features"))
    prepared = prepare(config, frozenset(), frozen=False)
    layout, costs = RunLayout(tmp_path / "run"), {name: StageCost() for name in STAGES}
    make_folder(layout.root)
    make_folder(prepared.store.root)
    with (
        MemoryMeter() as meter,
        Events(layout.log, layout.metrics, meter, quiet=True) as events,
        open_executor("serial", 1, 1, 2**30) as executor,
    ):
        store, shape = prepared.store, prepared.shape
        run = Run(layout, store, store, prepared.request, shape, prepared.config, events, executor, costs)
        features.build_features(run)
        centers.draw_candidates(run)
        yield run


def test_what_a_run_under_way_has_of_another_grid_is_not_taken(narrow: Run) -> None:
    """Sums that were committed by a version that cut the rows otherwise; they are made anew, and removed."""
    task = StatisticsPass(rows.row_task(narrow), (FIT, HELD_OUT), 50, LargestValues(1.0, (2.0,)))
    folder = narrow.layout.row_pass(STATISTICS)
    make_folder(folder)
    stale = {f"sums.{name}": units for name, units in task.empty().arrays().items()}
    write_arrays(folder / "sums-0.npz", stale | {"pieces": np.arange(5), "grid": np.array([1, 2, 3])})
    statistics.accumulate_statistics(narrow)
    assert not folder.exists()
    found = statistics.load_statistics(narrow.layout, "all")
    assert found.weight_sum == 3000
    assert narrow.costs["statistics"].items == task.n_pieces, "the bounds of a Gaussian take no pass"
    generator, blocks = task.rows.generator_at_once(), task.blocks
    K = np.concatenate(
        [
            generator.block(block.X, out_dtype=np.float64)
            for _, block in rows.stream_blocks(task.rows, blocks, range(blocks.n_blocks))
        ]
    )
    assert K.shape == (3000, len(read_arrays(narrow.layout.centers)["X"]))
    np.testing.assert_allclose(found.gram, K.T @ K, rtol=1e-6)


def test_blocks_stream_each_row_with_its_target_once(narrow: Run) -> None:
    task, grid = rows.row_task(narrow), row_grid("train", 3000, 50)
    assert grid.n_blocks > 10
    whole = [block for _, block in rows.stream_blocks(task, grid, range(grid.n_blocks))]
    some = [block for _, block in rows.stream_blocks(task, grid, range(3, 5))]
    for found, alone in zip(whole[3:5], some, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))
    assert [block.start for block in whole] == list(range(0, 3000, grid.block_rows))
    X = np.concatenate([block.X for block in whole])
    assert len(X) == len(np.unique(X, axis=0)) == 3000
    targets = np.concatenate([block.targets for block in whole])
    assert abs(targets.mean()) < 1e-12
    assert 200 < sum(block.held_out.sum() for block in whole) < 400


def test_streaming_ends_between_two_blocks_that_were_read_together(narrow: Run, tmp_path: Path) -> None:
    task, turn = rows.row_task(narrow), stopping.Turn.next(tmp_path / "turn")
    assert task.shape.chunk_rows == 3000
    blocks = rows.stream_blocks(task, row_grid("train", 3000, 50), range(5))
    with stopping.obeying(turn):
        next(blocks)
        stopping.Turn.next(tmp_path / "turn")
        time.sleep(1.2 * stopping.LOOK_SECONDS)
        with pytest.raises(StoppedError):
            next(blocks)
