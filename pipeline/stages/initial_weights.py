"""Weights of another model that the first solves start from, of its centers that are candidates again.

A candidate is one of them where features are equal in all bits, and widths. All is committed when the run starts.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.feature_rows import ScaledFeatures, open_features
from pipeline.kernels.exact_sums import Each
from pipeline.kernels.scaled_rows import KEY_BYTES, digests_of
from pipeline.runtime.stored_arrays import Stored, as_arrays, as_dataclass
from pipeline.stages.block_pass import OfBlock, Values, value_pass
from pipeline.stages.one_vs_all import start_name
from pipeline.stages.training_rows import RowBlock, RowTask, row_grid, row_task
from pipeline.stages.workspace import SOLVE, Workspace

MODEL, NAME = "init-model.npz", "solutions/init-weights.npz"


@dataclass(frozen=True)
class InitialWeights:
    """Candidates (k,) i8 by name, none twice, and the weights (k, T) f8 they start with; all others start at zero."""

    candidates: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class StartModel:
    """What a fit needs of the model it starts from: centers (m, d), their widths (m,), weights (m, T)."""

    centers: NDArray[np.floating]
    sigma2: NDArray[np.float64]
    weights: NDArray[np.float64]


def commit_model(work: Workspace, model: StartModel) -> None:
    """Commit the model that a fit starts from."""
    work.commit(MODEL, as_arrays(model))


def load(work: Workspace) -> InitialWeights | None:
    """Return the start weights; None where none are asked for or fit. Raises CorruptDataError, MissingDataError."""
    if work.config.solver.init_from is None:
        return None
    start = as_dataclass(work.once(NAME, lambda: as_arrays(_look_for(work))), InitialWeights)
    return start if len(start.candidates) else None


def start_of(work: Workspace, part: str, members: NDArray[np.int64]) -> str | None:
    """Commit the start weights of a part with columns `members`, candidates; return their name, None without any."""
    start = load(work)
    if start is None:
        return None
    known = dict(zip(start.candidates.tolist(), start.weights, strict=True))
    nothing = np.zeros(start.weights.shape[1])
    table = np.stack([known.get(name, nothing) for name in members.tolist()])
    work.commit(start_name(part), {"weights": table})
    return start_name(part)


def _look_for(work: Workspace) -> InitialWeights:
    """Look for the model's centers among the candidates, and log how many there are."""
    stored = work.stored(MODEL)
    model, index = stored.read(), work.centers["index"]
    if work.in_rounds:
        name = "initial-weights"
        task = value_pass(row_task(work), row_grid("train", work.shape.n_train, 1), partial(_opened, stored))
        values = work.add_up(SOLVE, task, name, "looking for the centers of the earlier model")
        found = zip(values.in_order("rows").tolist(), values.in_order("keys"), strict=True)
        keys = {row: key.tobytes() for row, key in found}
        work.drop(f"passes/{name}")
    else:
        features = work.features.features if isinstance(work.features, ScaledFeatures) else work.features
        X, wanted = open_features(features).take(index), set(digests_of(model["centers"]))
        keys = {row: key for row, key in zip(index.tolist(), digests_of(X), strict=True) if key in wanted}
    ordered = [(row, keys[row]) for row in index.tolist() if row in keys]
    start = _assigned(ordered, work.centers["sigma2"], work.shape.n_named, model)
    n_centers, n_again = len(model["weights"]), len(start.candidates)
    if n_again:
        work.log(f"{n_again} of {n_centers} centers of {work.config.solver.init_from} are candidates: start there")
    else:
        work.warn(
            f"--init-from {work.config.solver.init_from}: none of its {n_centers} centers is a candidate with the same "
            "features and width; the solves start from zero"
        )
    return start


def _opened(model: Stored, _: RowTask) -> OfBlock:
    """Return what finds the "rows" (k,) of a block that are centers of the model, with their "keys" (k, 16) u1."""
    wanted = set(digests_of(model.read()["centers"]))

    def find(block: RowBlock, _: Each) -> Values:
        known = [(row, key) for row, key in enumerate(digests_of(block.X), block.start) if key in wanted]
        keys = np.frombuffer(b"".join(key for _, key in known), np.uint8).reshape(len(known), KEY_BYTES)
        return {"rows": np.array([row for row, _ in known], np.int64), "keys": keys}

    return find


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
