"""Stage 5: the model is assembled from the weights and tried on the test part, row block by row block."""

import json
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.targets import labels_from_decision
from pipeline.config.parsers import NO_PENALTY
from pipeline.datasets.feature_rows import ScaledFeatures, open_features
from pipeline.datasets.open_data import open_data
from pipeline.kernels.exact_sums import Each
from pipeline.models.kernel_expansion import KernelExpansion
from pipeline.models.scores import Score, calibrate, score_classes, score_values
from pipeline.prediction.model_folder import load_model, save_model
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.stages import final_weights
from pipeline.stages.block_pass import OfBlock, Values, value_pass
from pipeline.stages.greedy_selection import load_prefixes
from pipeline.stages.run_workspace import Run
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task, rows_and_widths
from pipeline.stages.workspace import EVALUATE, names_of
from storage.folder_layouts import MANIFEST_NAME, RunLayout
from storage.folders import digest_file, remove_folder
from storage.records import write_marker

SCORES = "scores"  # the marker of the scores of a model


@dataclass(frozen=True)
class Scores:
    """Scores of the model, and of the penalised weights before refit and moves of centers (else the same).

    prefixes: errors, or squared errors, of the first centers of a greedy selection, for each size.
    """

    model: Score
    penalised: Score
    prefixes: tuple[float, ...] = ()

    def __add__(self, other: "Scores") -> "Scores":
        """Return the scores of the rows of both."""
        prefixes = tuple(a + b for a, b in zip(self.prefixes, other.prefixes, strict=True))
        return Scores(self.model + other.model, self.penalised + other.penalised, prefixes)


def evaluate_model(run: Run) -> Scores:
    """Assemble and commit the model, and return its score on the test part."""
    with run.stage(EVALUATE) as cost:
        cost.items = 0
        if not (run.layout.model / MANIFEST_NAME).exists():
            save_model(run.layout.model, assemble_model(run), in_run=True)
        digest = digest_file(run.layout.model / MANIFEST_NAME).sha256
        done = run.read_done(run.layout.markers(EVALUATE)).get(SCORES, {})
        if done.get("model") != digest:
            done = {"model": digest, SCORES: asdict(_scored(run, digest))}
            write_marker(run.layout.markers(EVALUATE), SCORES, done)
        remove_folder(run.layout.passes, durable=False)
        return _scores(done[SCORES])


def _scored(run: Run, digest: str) -> Scores:
    """Return the scores of the test part: one pass over its rows, with the committed model of a digest."""
    solver, n_centers = run.config.solver, len(final_weights.load(run.layout).active)
    opened = partial(
        _opened,
        run.layout,
        refitted=solver.refit != "none" and solver.select == "none" and solver.penalty != NO_PENALTY,
        selected=solver.select != "none",
    )
    task = value_pass(row_task(run), row_grid("test", run.shape.n_test, n_centers), opened)
    values = run.add_up(EVALUATE, task, f"{EVALUATE}-{digest[:16]}")
    return reduce(add, (_scores(json.loads(block["scores"].tobytes())) for block in values.by_block()))


def _scores(payload: dict[str, Any]) -> Scores:
    """Return the scores that were stored."""
    model, penalised = (Score.from_stored(payload[name]) for name in ("model", "penalised"))
    return Scores(model, penalised, tuple(payload["prefixes"]))


def assemble_model(run: Run) -> SparseKernelModel:
    """Return the model of the committed weights: only centers with a non-zero weight, in the order of the weights."""
    final = final_weights.load(run.layout)
    chosen = run.candidates[final.active]
    index, widths = rows_and_widths(chosen, run.shape.n_train)
    store = open_features(run.features)
    source = open_data(run.request.source)
    is_image = len(source.input_shape) > 1
    found, moved = final.summary["temperature"], final.points
    points = store.take(index) if moved is None else moved
    return SparseKernelModel(
        task=run.shape.task,
        labels=run.shape.classes,
        features=run.request.features,
        expansion=KernelExpansion(run.kernel, points, run.centers["sigma2"][widths], final.weights, final.intercept),
        center_index=index if moved is None else np.full(len(index), -1),
        selection_order=np.arange(len(final.active)),
        standardisation=store.standardisation() if run.request.standardise else None,
        input_shape=source.input_shape,
        input_dtype=source.read("train", 0, 1)[0].dtype.name if is_image else None,
        table_columns=source.columns,
        temperature=found and found["temperature"],
        feature_scales=run.features.scales.read()["scales"] if isinstance(run.features, ScaledFeatures) else None,
    )


def _opened(layout: RunLayout, task: RowTask, *, refitted: bool, selected: bool) -> OfBlock:
    """Return what scores a block by the model, by its penalised weights, and by its first centers alone, as JSON."""
    model = before = load_model(layout.model)
    final = final_weights.load(layout)
    if final.points is not None:
        assert task.centers is not None
        chosen = names_of(task.centers.read(mapped=True), task.shape.n_train)[final.active]
        points = open_features(task.features).take(rows_and_widths(chosen, task.shape.n_train)[0])
        before = replace(model, expansion=replace(model.expansion, centers=points))
    if refitted or before is not model:
        before = before.with_weights(final.penalised_weights, final.penalised_intercept)
    prefixes = tuple(load_prefixes(layout)) if selected else ()
    regression, n_classes = task.shape.task == "regression", len(task.shape.classes)

    def score(decision: NDArray[np.float64], block: RowBlock, temperature: float | None = None) -> Score:
        predicted = labels_from_decision(decision, task.shape.task)
        if regression:
            return score_values(predicted, block.y, block.weights)
        calibration = None if temperature is None else calibrate(decision, block.y, temperature, block.weights)
        return score_classes(predicted, block.y, n_classes, calibration, block.weights)

    def scores(block: RowBlock, _: Each) -> Values:
        of_model = score(model.decision_function(block.X), block, model.temperature)
        penalised, errors = score(before.decision_function(block.X), block), []
        if prefixes:
            columns = before.expansion.columns(block.X)  # of centers where they were chosen
            for weights, intercept in prefixes:
                of_first = score(columns[:, : len(weights)] @ weights + intercept, block)
                errors.append(of_first.squared_error if regression else of_first.wrong)
        found = asdict(Scores(of_model, penalised, tuple(errors)))
        return {"scores": np.frombuffer(json.dumps(found).encode(), np.uint8)}

    return scores
