"""Stage 5: the model is assembled from the weights and tried on the test part, row block by row block."""

from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.rows import Rows
from pipeline.config.train_config import SolverConfig
from pipeline.datasets.feature_rows import open_features
from pipeline.datasets.open_data import open_data
from pipeline.fit.choose_kernel import SCALES
from pipeline.fit.move_centers import n_moving
from pipeline.fit.row_blocks import Needs, RowBlock, RowTask, RunSize, block_pass, memory_of, row_grid
from pipeline.fit.select_centers import PREFIX_WEIGHTS, load_prefixes
from pipeline.fit.workspace import FINAL, FinalWeights, Run, Workspace
from pipeline.kernels.exact_sums import ForEach
from pipeline.prediction.conformal import Conformal
from pipeline.prediction.ranking import NO_RANKING, kept_rows, kept_share, ranking_numbers
from pipeline.prediction.scores import Calibration, Sums, add_sums, error_numbers, r_squared, score_numbers, score_sums
from pipeline.prediction.trained_model import SparseKernelModel, load_model, save_model
from pipeline.runtime.row_pass import AddPiece, BlockValues
from pipeline.solvers.held_out_losses import clipped
from pipeline.work.events import EVALUATE
from storage.arrays import Arrays, Stored, as_json, from_json
from storage.files import write_file
from storage.folder_layouts import MODEL_NAME
from storage.folders import digest_file
from storage.output_files import csv_text

SCORES = "scores"
PENALISED, PREFIXES = "penalised.", "prefixes"  # Sums beside those of the model have such names.
KEPT, KEPT_NAMES = "kept.", ("row", "decision", "truth", "weights")  # Values of rows that are kept are no sums.
KEPT_BYTES = 100  # A value that is kept takes this, in arrays and as text.
ERROR_SUMS = ("wrong", "n_wrong", "squared_error", "absolute_error", "at_limit")  # Predictions decide these sums.


def evaluate_model(run: Run) -> dict[str, Any]:
    """Assemble and commit the model, and return its scores on the test part.

    model: `score_numbers`; penalised: the errors of the penalised weights, before refit and moves of centers (else
    those of the model); prefixes: test_error and test_r2 of each number of first centers of a greedy selection.
    """
    work = run.work
    with work.events.stage(EVALUATE) as cost:
        cost.items = 0
        file = run.layout.model / MODEL_NAME
        if not file.exists():
            save_model(run.layout.model, _model_of_run(run), in_run=True)
        digest = digest_file(file).digest[:16]
        found = work.store.once(f"scores/{digest}.npz", lambda: {SCORES: as_json(_scored(run, digest))})
        work.store.drop("passes")
        return dict(from_json(found[SCORES]))


def _scored(run: Run, digest: str) -> dict[str, Any]:
    work, final, prefixes = run.work, run.work.store.stored(FINAL), run.work.store.stored(PREFIX_WEIGHTS)
    rows, n_centers = work.row_task, len(FinalWeights.of_arrays(final.read()).active)
    source = open_data(run.request.source, work.shape.source_digest)
    opened = partial(_block_of_scores, rows, run.layout.model, final, prefixes, work.config.solver)
    task = block_pass(rows, row_grid("test", work.shape.n_test, n_centers), opened, BlockValues, (SCORES,))
    found = work.runner.add_up(task, f"{EVALUATE}-{digest}")
    of_rows = {name: found.in_order(KEPT + name) for name in KEPT_NAMES}
    _keep_predictions(run, source.parts["test"], of_rows)
    ranking = ranking_numbers(*(of_rows[name] for name in KEPT_NAMES[1:])) if work.shape.classes else NO_RANKING
    blocks = ({name: of for name, of in one.items() if not name.startswith(KEPT)} for one in found.by_block())
    total = reduce(add_sums, blocks)
    penalised = {name.removeprefix(PENALISED): of for name, of in total.items() if name.startswith(PENALISED)}
    counted, spread = total["counted"].item(), total.get("spread", np.zeros(1)).item()
    errors = [error / counted for error in total.get(PREFIXES, np.empty(0)).tolist()]
    return {
        "model": score_numbers(total, work.shape.classes) | ranking,
        "penalised": error_numbers(total | penalised),
        "prefixes": [{"test_error": error, "test_r2": r_squared(error * counted, spread)} for error in errors],
    }


def _keep_predictions(run: Run, piece: Rows, of_rows: Arrays) -> None:
    """Write predictions of the test part, of some rows if there are many, in all digits: a report needs no data."""
    model, rows = load_model(run.layout.model), of_rows["row"]
    numbers = rows if piece.numbers is None else piece.numbers[rows]
    files = {} if piece.names is None else {"file": np.asarray(piece.names[rows]).tolist()}
    labels, truth = model.labels_of(of_rows["decision"]).tolist(), of_rows["truth"].tolist()
    if model.labels:
        labels, truth = [*map(str, labels)], [str(model.labels[k]) for k in truth]
    decision = dict(zip(model.decision_names(), of_rows["decision"].T.tolist(), strict=True))
    counts = {} if piece.weights is None else {"weight": of_rows["weights"].tolist()}
    columns = {"row": numbers.tolist(), **files, "truth": truth, "label": labels, **decision, **counts}
    write_file(run.layout.predictions, csv_text([columns, *zip(*columns.values(), strict=True)]).encode())


def test_needs(run: RunSize) -> Needs:
    """Return the needs of the pass over the test part, with the centers before they moved."""
    shape, moved = run.shape, 4 * n_moving(run) * run.shape.n_features
    in_double = replace(run, shape=replace(shape, dtype="float64"))  # Some models need it.
    blocks = row_grid("test", shape.n_test, run.n_columns)
    most_kept = kept_share(shape.n_test, shape.n_outputs) * shape.n_test * (shape.n_outputs + 2)
    return Needs(
        memory_of(blocks, in_double) + run.workers.processes * moved + int(KEPT_BYTES * most_kept),
        4 * run.n_columns * shape.n_features,
    )


def assemble_model(
    work: Workspace, final: FinalWeights, index: NDArray[np.int64] | None = None, **of_inputs: Any
) -> SparseKernelModel:
    """Return the model of final weights: only centers with a non-zero weight, in the order of the weights.

    index: the names of the fit's rows, None: their numbers. of_inputs: the fields of the model that describe its
    inputs.
    """
    rows, sigma2 = work.candidates[final.active], work.sigma2
    moved = final.points
    points = work.row_task.features_of(rows) if moved is None else moved
    names = rows if index is None else index[rows]
    return SparseKernelModel(
        task=work.shape.task,
        labels=work.shape.classes,
        kernel=work.kernel,
        sigma2=sigma2,
        centers=points,
        weights=final.weights,
        intercept=final.intercept,
        center_index=names if moved is None else np.full(len(rows), -1),
        selection_order=np.arange(len(rows)),
        calibration=Calibration.of(final.summary["temperature"] or {}),
        conformal=None if final.summary["conformal"] is None else Conformal(**final.summary["conformal"]),
        feature_scales=work.store.stored(SCALES).read()["scales"] if work.config.kernel.learns_scales else None,
        limits=tuple(limit + work.facts.mean for limit in work.facts.limits),
        **of_inputs,
    )


def _model_of_run(run: Run) -> SparseKernelModel:
    request, work = run.request, run.work
    source = open_data(request.source, work.shape.source_digest)
    assert work.final is not None
    return assemble_model(
        work,
        work.final,
        features=request.features,
        standardisation=open_features(work.features).standardisation if request.standardise else None,
        input_shape=source.input_shape,
        image_scale=source.image_scale,
        table_columns=source.columns,
    )


def _block_of_scores(
    task: RowTask, folder: Path, weights: Stored, of_prefixes: Stored, solver: SolverConfig
) -> AddPiece[BlockValues]:
    """Return the function that scores a block by the model, its penalised weights, and its first centers alone."""
    model = before = load_model(folder)
    final = FinalWeights.of_arrays(weights.read())
    if final.points is not None:
        chosen = task.candidates.read(mapped=True)["index"][final.active]
        before = replace(model, centers=task.features_of(chosen))
    refitted = solver.refit != "none" and solver.is_penalised
    if refitted or before is not model:
        limits = () if refitted else model.limits
        before = replace(before, weights=final.penalised_weights, intercept=final.penalised_intercept, limits=limits)
    prefixes = tuple(load_prefixes(of_prefixes)) if solver.selects else ()
    n_classes, share = len(task.shape.classes), kept_share(task.shape.n_test, task.shape.n_outputs)

    def scores(found: BlockValues, block: RowBlock, _: ForEach) -> None:
        def score(decision: NDArray[np.float64], calibration: Calibration | None = None) -> Sums:
            return score_sums(decision, block.y, n_classes, calibration, block.weights, model.limits)

        columns = model.columns(block.X)
        decision = model.decision_at(columns)
        of_model = score(decision, model.calibration) | model.coverage_sums(decision, block.y, block.weights)
        if final.points is not None:
            del columns  # `test_needs` counts one block of them.
            columns = before.columns(block.X)
        penalised = of_model if before is model else score(before.decision_at(columns))
        values = of_model | {PENALISED + name: penalised[name] for name in ERROR_SUMS if name in penalised}
        some = kept_rows(share, block.start, len(block.y))
        rows, s = np.arange(block.start, block.start + len(block.y)), block.counts
        kept = dict(zip(KEPT_NAMES, (rows[some], decision[some], block.y[some], s[some]), strict=True))
        values |= {KEPT + name: of for name, of in kept.items()}
        if prefixes:
            error = "wrong" if n_classes else "squared_error"
            decided = (columns[:, : len(weights)] @ weights + intercept for weights, intercept in prefixes)
            values[PREFIXES] = np.array([score(clipped(of_first, model.limits))[error] for of_first in decided])
        found.put(block.number, values)

    return scores
