"""Stage 5: the model is assembled from the weights and tried on the test part, row block by row block."""

from dataclasses import asdict, dataclass
from functools import lru_cache, partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.feature_store import open_data
from pipeline.live_features import FeatureAccess, open_features
from pipeline.model import SparseKernelModel
from pipeline.model_folder import load_model, save_model
from pipeline.stages import candidates, final_weights, selection
from pipeline.stages.chosen_widths import kernel_of
from pipeline.stages.run import Run
from storage.blocks import Block, row_blocks
from storage.layout import RunLayout
from storage.manifest import MANIFEST_NAME, digest_file
from storage.markers import write_marker

STAGE = "evaluate"


@dataclass(frozen=True)
class EvaluateTask:
    """What a worker needs to evaluate any block of test rows."""

    layout: RunLayout
    features: FeatureAccess
    task: str
    n_classes: int
    refitted: bool
    selected: bool
    model_digest: str


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


@dataclass(frozen=True)
class Scores:
    """The score of the model, and of its weights before the refit (the same where there was none).

    prefixes: errors, or squared errors, of the first centers of a greedy selection, one number for each size.
    """

    model: Score
    penalised: Score
    prefixes: tuple[float, ...] = ()

    def __add__(self, other: "Scores") -> "Scores":
        """Return the scores of the rows of both."""
        prefixes = tuple(a + b for a, b in zip(self.prefixes, other.prefixes, strict=True))
        return Scores(self.model + other.model, self.penalised + other.penalised, prefixes)


def run(run: Run) -> Scores:
    """Assemble and commit the model, and return its score on the test part."""
    with run.stage(STAGE) as cost:
        cost.items = 0
        if not (run.layout.model / MANIFEST_NAME).exists():
            save_model(run.layout.model, assemble(run))
        solver = run.config.solver
        task = EvaluateTask(
            layout=run.layout,
            features=run.features,
            task=run.shape.task,
            n_classes=len(run.shape.classes),
            refitted=solver.refit != "none" and solver.select == "none",
            selected=solver.select != "none",
            model_digest=digest_file(run.layout.model / MANIFEST_NAME).sha256,
        )
        assert run.config.statistics.block_rows  # the plan has filled it in
        blocks = row_blocks(run.shape.n_test, run.config.statistics.block_rows)
        done = run.done(run.layout.markers(STAGE))
        waiting = [block for block in blocks if done.get(_item_name(block), {}).get("model") != task.model_digest]
        cost.items = len(blocks) - len(waiting)
        run.run_items(STAGE, partial(score_block, task), waiting)
        done = run.done(run.layout.markers(STAGE))
        return reduce(add, (_scores(done[_item_name(block)]) for block in blocks))


def _item_name(block: Block) -> str:
    return f"block-{block.index:04d}"


def _scores(payload: dict[str, Any]) -> Scores:
    """Return the scores of one block from its marker."""
    model, penalised = (Score(**payload[name]) for name in ("score", "penalised"))
    return Scores(model, penalised, tuple(payload["prefixes"]))


def assemble(run: Run) -> SparseKernelModel:
    """Return the model of the committed weights: only centers with a non-zero weight, in the order of the weights."""
    final = final_weights.load(run.layout)
    chosen = candidates.names(run.layout, run.shape.n_train)[final.active]
    index, widths = candidates.parts(chosen, run.shape.n_train)
    store = open_features(run.features)
    source = open_data(run.request.source)
    is_image = len(source.input_shape) > 1
    return SparseKernelModel(
        task=run.shape.task,
        labels=run.shape.classes,
        features=run.request.features,
        center_index=index,
        centers=store.take(index),
        center_sigma2=candidates.widths(run.layout)[widths],
        weights=final.weights,
        intercept=final.intercept,
        selection_order=np.arange(len(final.active)),
        kernel=kernel_of(run),
        standardisation=store.standardisation() if run.request.standardise else None,
        input_shape=source.input_shape,
        input_dtype=source.read("train", 0, 1)[0].dtype.name if is_image else None,
    )


def score_block(task: EvaluateTask, block: Block) -> None:
    """Predict one block of test rows, count, and commit the counts."""
    store = open_features(task.features)
    X, truth = store.read("test", block.start, block.stop), store.targets("test", block.start, block.stop)
    model, before = _models(task)
    score = _score(task, model.decision_function(X), truth)
    penalised = _score(task, before.decision_function(X), truth) if task.refitted else score
    prefixes = _prefix_errors(task, model, X, truth) if task.selected else []
    scores = {"score": asdict(score), "penalised": asdict(penalised), "prefixes": prefixes}
    payload = {"model": task.model_digest, **scores}
    write_marker(task.layout.markers(STAGE), _item_name(block), payload)


def _prefix_errors(
    task: EvaluateTask, model: SparseKernelModel, X: NDArray[np.float32], truth: NDArray[Any]
) -> list[float]:
    """Return errors, or squared errors, of the model's first centers alone, for each size that was committed."""
    columns, errors = model.columns(X), []
    for weights, intercept in selection.prefixes(task.layout):
        score = _score(task, columns[:, : len(weights)] @ weights + intercept, truth)
        errors.append(score.squared_error if task.task == "regression" else float(score.n_errors))
    return errors


def _score(task: EvaluateTask, decision: NDArray[np.float64], truth: NDArray[Any]) -> Score:
    predicted = labels_from_decision(decision, task.task)
    if task.task == "regression":
        return Score(len(truth), squared_error=float(np.sum((predicted - truth) ** 2)))
    counts = np.zeros((task.n_classes, task.n_classes), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    return Score(len(truth), tuple(tuple(int(v) for v in row) for row in counts))


@lru_cache(maxsize=2)
def _models(task: EvaluateTask) -> tuple[SparseKernelModel, SparseKernelModel]:
    """Return the model and the one before the refit; the task carries the digest, so another model is read anew."""
    model = load_model(task.layout.model)
    if not task.refitted:
        return model, model
    final = final_weights.load(task.layout)
    return model, model.with_weights(final.penalised_weights, final.penalised_intercept)
