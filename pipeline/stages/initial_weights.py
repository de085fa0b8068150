"""Weights of another model that the first solves start from: those of its centers that are candidates again.

What is needed of the model is committed when the run starts: a resumed run asks for the model no more. A candidate is
a center again where its features are equal in all bits and its width is the same.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.equal_points import keys_of
from pipeline.model import SparseKernelModel
from pipeline.stages import candidates, group_solve, rows, statistics
from pipeline.stages.rows import RowTask
from pipeline.stages.run import Run
from storage.blocks import Block, spans
from storage.commit import make_folder, read_arrays, write_arrays
from storage.layout import RunLayout
from storage.remedies import ANEW, remedy_of

FOUND = "init-weights.npz"
N_SPANS = 8  # of training rows that are looked through where the candidates are in no file of their own


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
    path = run.layout.solution(FOUND)
    if not path.exists():
        make_folder(run.layout.solutions)
        write_arrays(path, vars(_found(run)))
    found = InitialWeights(**read_arrays(path, remedy=ANEW))
    return found if len(found.candidates) else None


def commit_start(run: Run, part: str, members: NDArray[np.int64], start: InitialWeights) -> None:
    """Commit the weights from which the solves on a part start, whose columns are the candidates `members`."""
    known = dict(zip(start.candidates.tolist(), start.weights, strict=True))
    nothing = np.zeros(start.weights.shape[1])
    table = np.stack([known.get(name, nothing) for name in members.tolist()])
    write_arrays(run.layout.solution(group_solve.start_name(part)), {"weights": table})


def _found(run: Run) -> InitialWeights:
    """Look for the model's centers among the candidates, and tell how many there are."""
    model = _model(run.layout)
    index = read_arrays(run.layout.centers, mapped=True)["index"]
    found: dict[int, bytes] = {}
    if statistics.in_rounds(run):
        task = rows.task_of(run)
        grid = spans(run.shape.n_train, task.read_rows, N_SPANS)
        run.run_items(group_solve.STAGE, partial(known_rows, task), grid, on_value=lambda _, value: found.update(value))
    else:
        X = read_arrays(run.layout.centers)["X"]
        found = dict(_known(zip(index.tolist(), keys_of(X), strict=True), model))
    ordered = [(row, found[row]) for row in index.tolist() if row in found]
    start = _assigned(ordered, candidates.widths(run.layout), run.shape.n_train, model)
    n_centers, n_found = len(model["weights"]), len(start.candidates)
    if n_found:
        run.events.say(f"{n_found} of {n_centers} centers of {run.config.solver.init_from} are candidates: start there")
    else:
        run.events.warn(
            f"--init-from {run.config.solver.init_from}: none of its {n_centers} centers is a candidate with the same "
            "features and width; the solves start from zero"
        )
    return start


def known_rows(task: RowTask, span: Block) -> list[tuple[int, bytes]]:
    """Return the training rows of a span that are centers of the model, each with the key of its features."""
    model, start, found = _model(task.layout), span.start, []
    for block in rows.blocks(task, span):
        found += _known(enumerate(keys_of(block.X), start), model)
        start += len(block.X)
    return found


def _model(layout: RunLayout) -> dict[str, NDArray[np.float64]]:
    return read_arrays(layout.init_model, remedy=remedy_of(layout.init_model.name))


def _known(keys: Iterable[tuple[int, bytes]], model: dict[str, NDArray[np.float64]]) -> list[tuple[int, bytes]]:
    """Return those rows whose key one of the model's centers has."""
    wanted = set(keys_of(model["centers"]))
    return [(row, key) for row, key in keys if key in wanted]


def _assigned(
    found: list[tuple[int, bytes]], widths: NDArray[np.float64], n_train: int, model: dict[str, NDArray[np.float64]]
) -> InitialWeights:
    """Give the weights of each center to one candidate: of equal rows, to the one that was drawn first."""
    waiting = defaultdict(list)
    for key, sigma2, weights in zip(keys_of(model["centers"]), model["sigma2"], model["weights"], strict=True):
        waiting[key, float(sigma2)].append(weights)
    names, given = [], [np.empty((0, model["weights"].shape[1]))]
    for place, sigma2 in enumerate(widths.tolist()):
        for row, key in found:
            if waiting[key, sigma2]:
                names.append(row + n_train * place)
                given.append(waiting[key, sigma2].pop(0)[None])
    return InitialWeights(np.array(names, np.int64), np.concatenate(given))
