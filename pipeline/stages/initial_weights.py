"""Weights of another model that the first solves start from: those of its centers that are candidates again.

What is needed of the model is committed when the run starts: a resumed run asks for the model no more. A candidate is
a center again where its features are equal in all bits and its width is the same.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.each_tile import Each
from pipeline.kernels.equal_points import KEY_BYTES, digests_of
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.stages import earlier_run
from pipeline.stages.block_values import BlockPass, OfBlock, Values
from pipeline.stages.candidate_names import read_candidates, read_widths
from pipeline.stages.one_vs_all import start_weights_name
from pipeline.stages.run_state import SOLVE, Run
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task
from storage.arrays import read_arrays, read_dataclass, write_arrays, write_dataclass
from storage.errors import ANEW, remedy_of
from storage.files import make_folder
from storage.folder_layouts import RunLayout
from storage.folders import remove_folder

FILE = "init-weights.npz"


@dataclass(frozen=True)
class InitialWeights:
    """Candidates (k,) i8 by name, none twice, and the weights (k, T) f8 they start with; all others start at zero."""

    candidates: NDArray[np.int64]
    weights: NDArray[np.float64]


def commit_model(layout: RunLayout, model: SparseKernelModel) -> None:
    """Commit what a run needs of the model it starts from."""
    arrays: dict[str, NDArray[Any]] = {"centers": model.centers, "sigma2": model.center_sigma2}
    write_arrays(layout.init_model, arrays | {"weights": model.weights})


def load(run: Run) -> InitialWeights | None:
    """Return the weights to start from, looked for at the first call; None where none are asked for, or none fit.

    Raises CorruptDataError or MissingDataError where a resumed run has lost them.
    """
    if run.config.solver.init_from is None:
        return None
    path = run.layout.solution(FILE)
    if not path.exists():
        make_folder(run.layout.solutions)
        write_dataclass(path, _of_earlier_run(run) if run.config.data.add_rows else _look_for(run))
    start = read_dataclass(path, InitialWeights, remedy=ANEW)
    return start if len(start.candidates) else None


def commit_start(run: Run, part: str, members: NDArray[np.int64], start: InitialWeights) -> None:
    """Commit the weights from which the solves on a part start, whose columns are the candidates `members`."""
    known = dict(zip(start.candidates.tolist(), start.weights, strict=True))
    nothing = np.zeros(start.weights.shape[1])
    table = np.stack([known.get(name, nothing) for name in members.tolist()])
    write_arrays(run.layout.solution(start_weights_name(part)), {"weights": table})


def _of_earlier_run(run: Run) -> InitialWeights:
    """Return the weights of the run whose rows others were added to: its candidates are those of this one."""
    start = earlier_run.load(run.layout)
    return InitialWeights(read_candidates(run.layout, run.shape.n_train)[start.active], start.weights)


def _look_for(run: Run) -> InitialWeights:
    """Look for the model's centers among the candidates, and tell how many there are."""
    model = _model(run.layout)
    index = read_arrays(run.layout.centers, mapped=True)["index"]
    if run.in_rounds:
        folder = run.layout.row_pass("initial-weights")
        task = BlockPass(row_task(run), row_grid("train", run.shape.n_train, 1), _opened)
        values = run.row_pass(SOLVE, task, folder, words="looking for the centers of the earlier model")
        found = zip(values.in_order("rows").tolist(), values.in_order("keys"), strict=True)
        keys = {row: key.tobytes() for row, key in found}
        remove_folder(folder, durable=False)
    else:
        X = read_arrays(run.layout.centers)["X"]
        wanted = set(digests_of(model["centers"]))
        keys = {row: key for row, key in zip(index.tolist(), digests_of(X), strict=True) if key in wanted}
    ordered = [(row, keys[row]) for row in index.tolist() if row in keys]
    start = _assigned(ordered, read_widths(run.layout), run.shape.n_train, model)
    n_centers, n_again = len(model["weights"]), len(start.candidates)
    if n_again:
        run.events.say(f"{n_again} of {n_centers} centers of {run.config.solver.init_from} are candidates: start there")
    else:
        run.events.warn(
            f"--init-from {run.config.solver.init_from}: none of its {n_centers} centers is a candidate with the same "
            "features and width; the solves start from zero"
        )
    return start


def _opened(task: RowTask) -> OfBlock:
    return partial(_known_rows, set(digests_of(_model(task.layout)["centers"])))


def _known_rows(wanted: set[bytes], block: RowBlock, _: Each) -> Values:
    """Return the "rows" (k,) of a block that are centers of the model, with the "keys" (k, 16) u1 of their features."""
    known = [(row, key) for row, key in enumerate(digests_of(block.X), block.start) if key in wanted]
    keys = np.frombuffer(b"".join(key for _, key in known), np.uint8).reshape(len(known), KEY_BYTES)
    return {"rows": np.array([row for row, _ in known], np.int64), "keys": keys}


def _model(layout: RunLayout) -> dict[str, NDArray[np.float64]]:
    return read_arrays(layout.init_model, remedy=remedy_of(layout.init_model.name))


def _assigned(
    known: list[tuple[int, bytes]], widths: NDArray[np.float64], n_train: int, model: dict[str, NDArray[np.float64]]
) -> InitialWeights:
    """Give the weights of each center to one candidate: of equal rows, to the one that was drawn first."""
    waiting = defaultdict(list)
    for key, sigma2, weights in zip(digests_of(model["centers"]), model["sigma2"], model["weights"], strict=True):
        waiting[key, float(sigma2)].append(weights)
    names, given = [], [np.empty((0, model["weights"].shape[1]))]
    for width, sigma2 in enumerate(widths.tolist()):
        for row, key in known:
            if waiting[key, sigma2]:
                names.append(row + n_train * width)
                given.append(waiting[key, sigma2].pop(0)[None])
    return InitialWeights(np.array(names, np.int64), np.concatenate(given))
