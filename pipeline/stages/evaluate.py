"""Stage 5: the model is assembled from the solutions and tried on the test part, row block by row block."""

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from pipeline.feature_store import open_data, open_store
from pipeline.model import SparseKernelModel
from pipeline.model_folder import load_model, save_model
from pipeline.stages import solve
from pipeline.stages.run import Run
from storage.blocks import Block, row_blocks
from storage.commit import read_arrays
from storage.layout import FeatureLayout, RunLayout
from storage.manifest import MANIFEST_NAME

STAGE = "evaluate"


@dataclass(frozen=True)
class EvaluateTask:
    """What a worker needs to evaluate any block of test rows."""

    layout: RunLayout
    feature_layout: FeatureLayout
    task: str
    n_classes: int


@dataclass(frozen=True)
class Score:
    """What is counted on test rows: the confusion matrix [truth][predicted], or the squared errors."""

    rows: int
    confusion: tuple[tuple[int, ...], ...] = ()
    squared_error: float = 0.0

    def __add__(self, other: "Score") -> "Score":
        """Return the score of the rows of both."""
        pairs = zip(self.confusion, other.confusion, strict=True)
        confusion = tuple(tuple(a + b for a, b in zip(*rows, strict=True)) for rows in pairs)
        return Score(self.rows + other.rows, confusion, self.squared_error + other.squared_error)

    @property
    def n_errors(self) -> int:
        """Number of rows predicted as another class."""
        return self.rows - sum(self.confusion[k][k] for k in range(len(self.confusion)))


def run(run: Run) -> Score:
    """Assemble and commit the model, and return its score on the test part."""
    with run.stage(STAGE):
        if not (run.layout.model / MANIFEST_NAME).exists():
            save_model(run.layout.model, assemble(run))
        task = EvaluateTask(run.layout, run.feature_layout, run.shape.task, len(run.shape.classes))
        assert run.config.statistics.block_rows  # the plan has filled it in
        blocks = row_blocks(run.shape.n_test, run.config.statistics.block_rows)
        scores: dict[int, Score] = {}
        run.run_items(STAGE, partial(score_block, task), blocks, on_value=lambda b, s: scores.update({b.index: s}))
        total = scores[0]
        for index in range(1, len(blocks)):
            total = total + scores[index]
        return total


def assemble(run: Run) -> SparseKernelModel:
    """Return the model of the committed solutions: only centers with a non-zero weight, in candidate order."""
    centers = read_arrays(run.layout.centers, mapped=True)
    weights = solve.weights(run.layout, len(centers["index"]), run.shape.n_outputs)
    kept = np.flatnonzero(np.any(weights != 0, axis=1))
    store = open_store(run.feature_layout)
    source = open_data(run.request.source)
    return SparseKernelModel(
        task=run.shape.task,
        labels=run.shape.classes,
        features=run.request.features,
        center_index=np.asarray(centers["index"][kept], np.int64),
        centers=np.ascontiguousarray(centers["X"][kept], np.float32),
        center_sigma2=np.full(len(kept), run.config.kernel.sigma2, np.float64),
        weights=weights[kept],
        intercept=np.zeros(run.shape.n_outputs),
        selection_order=np.arange(len(kept)),
        standardisation=store.standardisation() if run.request.standardise else None,
        input_shape=source.input_shape,
    )


def score_block(task: EvaluateTask, block: Block) -> Score:
    """Predict one block of test rows and count."""
    store = open_store(task.feature_layout)
    X, truth = store.read("test", block.start, block.stop), store.targets("test", block.start, block.stop)
    predicted = _model(task.layout).predict_targets(X)
    if task.task == "regression":
        return Score(len(X), squared_error=float(np.sum((predicted - truth) ** 2)))
    counts = np.zeros((task.n_classes, task.n_classes), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    return Score(len(X), tuple(tuple(int(v) for v in row) for row in counts))


@lru_cache(maxsize=2)
def _model(layout: RunLayout) -> SparseKernelModel:
    return load_model(layout.model)
