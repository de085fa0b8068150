"""The examples that a report shows: those that a model is wrong about, and its centers as pictures."""

from typing import Any

import numpy as np

from features.published import PUBLISHED, cache_folder, given_folder, missing_files
from features.targets import labels_from_decision
from pipeline.config.command_line import program
from pipeline.config.train_config import TrainConfig
from pipeline.prediction.example_files import Asked, Piece
from pipeline.prediction.labelled_scores import true_targets
from pipeline.prediction.streamed_prediction import ModelLocation, open_examples, predictions
from pipeline.reporting.plots import Axis, Figure, picture, plot

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


def mistakes(located: ModelLocation) -> dict[str, Any]:
    """Return `mistakes`, the test rows that the model is most wrong about, and `scatter`, a plot for a regression.

    Of classes, those rows first whose decision values are furthest from right. At most MOST_SCANNED_ROWS rows are
    predicted. Raises what `open_examples` and `predictions` raise.
    """
    examples, model = open_examples(Asked(None, labelled=True, part="test"), located), located.model
    piece, labels, blocks, scanned = examples.pieces[0], model.labels, [], 0
    for block in predictions(model, examples):
        truth, found = true_targets(block, labels), labels_from_decision(block.decision, model.task)
        excess = found - truth
        if labels:
            of_class = block.decision if model.task == "multiclass" else np.hstack([-block.decision, block.decision])
            rows = np.arange(len(truth))
            excess = of_class[rows, found] - of_class[rows, truth]
        blocks.append((truth, found, excess))
        scanned += len(truth)
        if scanned >= MOST_SCANNED_ROWS:
            break
    truth, found, excess = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    wrong = np.flatnonzero(truth != found) if labels else np.arange(scanned)
    shown = [
        {
            "row": _row(piece, row),
            "truth": labels[truth[row]] if labels else f"{truth[row]:.6g}",
            "predicted": labels[found[row]] if labels else f"{found[row]:.6g}",
            "excess": float(excess[row]),
            "picture": _picture(piece, row) if labels else None,
        }
        for row in wrong[np.argsort(-np.abs(excess[wrong]), kind="stable")[:MOST_MISTAKES]].tolist()
    ]
    n_wrong = len(wrong) if labels else None
    told = {"shown": shown, "n_wrong": n_wrong, "n_scanned": scanned, "n_rows": examples.n_rows}
    return {"mistakes": told, "scatter": None if labels else _scatter(truth, found)}


def _scatter(y: np.ndarray, f: np.ndarray) -> Figure | None:
    """Return a plot of predictions against truth, of evenly spread rows."""
    some = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_DOTS)).round().astype(int))
    dots = list(zip(y[some].tolist(), f[some].tolist(), strict=True))
    ends = [float(min(y.min(), f.min())), float(max(y.max(), f.max()))]
    log = Axis("").over([*y.tolist(), *f.tolist()]).log  # of both, so that equal values lie on one line
    lines = {"test rows": dots, "equal": [(end, end) for end in ends]}
    return plot(lines, Axis("truth", log), Axis("prediction", log), dots="test rows")


def centers(located: ModelLocation) -> list[dict[str, Any]] | None:
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
        center: dict[str, Any] = {"row": row, "picture": None, "label": None}
        if row >= 0:
            _, label = piece.read(row, row + 1)
            assert label is not None  # they were asked for
            center = {"row": _row(piece, row), "picture": _picture(piece, row), "label": label[0].item()}
        center |= {"norm": float(norms[m]), "strongest": f"{names[strongest]}: {weights[strongest]:+.3g}"}
        shown.append(center | {"weights": list(zip(names, weights, strict=True))})
    return shown


def _row(piece: Piece, row: int) -> int:
    """Return the number of a row in the file that it is from."""
    return row if piece.file_rows is None else int(piece.file_rows[row])


def _picture(piece: Piece, row: int) -> str | None:
    return picture(piece.read(row, row + 1)[0][0]) if len(piece.input_shape) == 2 else None
