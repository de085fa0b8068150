"""The examples that a report shows: those that a model is wrong about, and its centers as pictures."""

from typing import Any

import numpy as np

from features.published import PUBLISHED, cache_folder, given_folder, missing_files
from features.targets import labels_from_decision
from pipeline.config.command_line import program
from pipeline.config.train_config import TrainConfig
from pipeline.prediction.example_files import Asked, Examples, Piece
from pipeline.prediction.labelled_scores import true_targets
from pipeline.prediction.streamed_prediction import Located, open_examples, predictions
from pipeline.reporting.plots import Axis, Line, bars, picture, plot

MOST_SCANNED_ROWS = 20_000  # of the test part, so that a report of any run takes seconds
MOST_MISTAKES = 40
MOST_CENTERS = 20
MOST_DOTS = 1000


def needs_download(config: TrainConfig) -> str:
    """Return what to do where the data of a run would have to be downloaded first, which a report does not do."""
    if config.dataset not in PUBLISHED:
        return ""
    folder = given_folder(config.dataset, config.resources.data_dir) or cache_folder(config.dataset)
    if not missing_files(config.dataset, folder):
        return ""
    return f"the data are not here: {program('train')} {config.dataset} --dry-run downloads them"


def mistakes(located: Located) -> dict[str, Any]:
    """Return `mistakes`, the test rows that the model is most wrong about, and `scatter`, a plot for a regression.

    At most MOST_SCANNED_ROWS rows are predicted. Raises what `open_examples` and `predictions` raise.
    """
    examples = open_examples(Asked(None, labelled=True, part="test"), located)
    return _residuals(located, examples) if located.model.task == "regression" else _confused(located, examples)


def _confused(located: Located, examples: Examples) -> dict[str, Any]:
    """Return the rows of a wrong class, those first whose decision values are furthest from right."""
    model, scanned, wrong = located.model, 0, []
    for block in predictions(model, examples):
        truth, predicted = true_targets(block, model.labels), labels_from_decision(block.decision, model.task)
        decision = block.decision if model.task == "multiclass" else np.hstack([-block.decision, block.decision])
        for k in np.flatnonzero(truth != predicted).tolist():
            excess = float(decision[k, predicted[k]] - decision[k, truth[k]])
            wrong.append((excess, block.piece_start + k, int(truth[k]), int(predicted[k])))
        scanned += len(truth)
        if scanned >= MOST_SCANNED_ROWS:
            break
    shown = [
        {
            "row": _row(examples.pieces[0], row),
            "truth": model.labels[truth],
            "predicted": model.labels[predicted],
            "excess": excess,
            "picture": _picture(examples.pieces[0], row),
        }
        for excess, row, truth, predicted in sorted(wrong, key=lambda one: (-one[0], one[1]))[:MOST_MISTAKES]
    ]
    return {"mistakes": {"shown": shown, "n_wrong": len(wrong), "n_scanned": scanned, "n_rows": examples.n_rows}}


def _residuals(located: Located, examples: Examples) -> dict[str, Any]:
    """Return predictions against truth of evenly spread rows, and the rows with the largest residuals."""
    truth, predicted, scanned = [], [], 0
    for block in predictions(located.model, examples):
        truth.append(true_targets(block, ()))
        predicted.append(block.decision[:, 0])
        scanned += len(truth[-1])
        if scanned >= MOST_SCANNED_ROWS:
            break
    y, f = np.concatenate(truth), np.concatenate(predicted)
    some = np.unique(np.linspace(0, scanned - 1, min(scanned, MOST_DOTS)).round().astype(int))
    ends = [float(min(y.min(), f.min())), float(max(y.max(), f.max()))]
    lines = [
        Line("test rows", list(zip(y[some].tolist(), f[some].tolist(), strict=True)), dots=True),
        Line("equal", [(end, end) for end in ends]),
    ]
    worst = np.argsort(-np.abs(f - y), kind="stable")[:MOST_MISTAKES]
    shown = [
        {
            "row": _row(examples.pieces[0], int(k)),
            "truth": f"{y[k]:.6g}",
            "predicted": f"{f[k]:.6g}",
            "excess": float(f[k] - y[k]),
            "picture": None,
        }
        for k in worst
    ]
    worst_rows = {"shown": shown, "n_wrong": None, "n_scanned": scanned, "n_rows": examples.n_rows}
    log = Axis("").over([*y.tolist(), *f.tolist()]).log  # of both, so that equal values lie on one line
    return {"mistakes": worst_rows, "scatter": plot(lines, Axis("truth", log), Axis("prediction", log))}


def centers(located: Located) -> list[dict[str, Any]] | None:
    """Return the centers of the largest weight norm as pictures with their weights; None where inputs are no images."""
    model = located.model
    if len(model.input_shape) != 2 or not model.n_centers:
        return None
    piece = open_examples(Asked(None, labelled=True, part="train"), located).pieces[0]
    names = [str(label) for label in model.labels] if model.task == "multiclass" else ["weight"]
    norms = np.linalg.norm(model.weights, axis=1)
    shown = []
    for m in np.argsort(-norms, kind="stable")[:MOST_CENTERS].tolist():
        row, weights = int(model.center_index[m]), model.weights[m].tolist()
        strongest = int(np.argmax(np.abs(model.weights[m])))
        shown.append(
            {
                "row": _row(piece, row) if row >= 0 else row,
                "picture": _picture(piece, row) if row >= 0 else None,
                "label": _label(piece, row) if row >= 0 else None,
                "norm": float(norms[m]),
                "strongest": f"{names[strongest]}: {weights[strongest]:+.3g}",
                "bars": bars(weights, names),
            }
        )
    return shown


def _row(piece: Piece, row: int) -> int:
    """Return the number of a row in the file that it is from."""
    return row if piece.file_rows is None else int(piece.file_rows[row])


def _picture(piece: Piece, row: int) -> str | None:
    return str(picture(piece.read(row, row + 1)[0][0])) if len(piece.input_shape) == 2 else None


def _label(piece: Piece, row: int) -> Any:
    labels = piece.read(row, row + 1)[1]
    return None if labels is None else labels[0].item()
