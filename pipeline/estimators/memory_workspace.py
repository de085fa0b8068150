"""The workspace of an estimator: arrays of this process, in which nothing outlives the fit."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import learns_scales
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import FeatureRows, ScaledFeatures
from pipeline.estimators.parameters import in_parameters
from pipeline.runtime.row_pass import RowPass, S, add_up_here
from pipeline.runtime.stored_arrays import Arrays, Stored, StoredInMemory
from pipeline.stages.choose_kernel import SCALES
from pipeline.stages.workspace import Item, TaskCheckpoints, Workspace, note_of

LOG_EVERY = 100  # centers of a greedy choice, with verbose


@dataclass(frozen=True)
class NoCheckpoints(TaskCheckpoints):
    """A task without checkpoints, whose records go to the callback and the log."""

    callback: Callable[[dict[str, Any]], object]
    log: Callable[[str], object]
    penalties: Sequence[float] = ()
    number: int | None = None

    def record(self, facts: Mapping[str, Any]) -> None:
        """Hand on the record of an iteration of a solve."""
        self.log(note_of(facts, self.penalties, self.number))
        self.callback({name: value for name, value in facts.items() if name != "statistics"})

    def report_selection(self, part: str, rows: str, n_chosen: int, most: int) -> None:
        """Hand on how far a choice of centers is."""
        if n_chosen % LOG_EVERY == 0:
            self.log(f"{n_chosen} of {most} centers chosen on {rows}")
        self.callback({"phase": "select", "rows": part, "iteration": n_chosen, "n_active": n_chosen})


class MemoryWorkspace(Workspace):
    """A workspace in memory.

    callback, log : get the record of each iteration, and a line for people
    """

    def __init__(
        self,
        config: TrainConfig,
        shape: FeatureShape,
        features: FeatureRows,
        callback: Callable[[dict[str, Any]], object] | None,
        log: Callable[[str], object] | None,
    ) -> None:
        self._listeners = callback or _ignore, log or _ignore
        self._arrays: dict[str, Arrays] = {}
        self.config, self.shape, self.features = config, shape, features
        log = partial(_log, self._listeners[1])
        self.events = SimpleNamespace(log=log, warn=_warn, metric=_ignore, record=_ignore)
        if learns_scales(config.kernel.scale):
            self.features = ScaledFeatures(features, self.stored(SCALES))

    def committed(self, name: str, *, mapped: bool = False) -> Arrays | None:
        """Return what is committed under a name; None where nothing is."""
        return self._arrays.get(name)

    def commit(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> Stored:
        """Keep arrays under a name, replacing earlier ones; they become read-only."""
        kept = {key: np.asarray(values) for key, values in arrays.items()}
        for values in kept.values():
            values.setflags(write=False)
        self._arrays[name] = kept
        return self.stored(name)

    def stored(self, name: str) -> Stored:
        """Return what is committed under a name."""
        return StoredInMemory(self._arrays, name)

    def drop(self, name: str) -> None:
        """Remove what is committed under a name, and below it."""
        for key in [key for key in self._arrays if key == name or key.startswith(f"{name}/")]:
            del self._arrays[key]

    def checkpoints(self, name: str) -> TaskCheckpoints:
        """Return checkpoints that keep nothing."""
        return NoCheckpoints(*self._listeners)

    def add_up(self, stage: str, task: RowPass[S], name: str, words: str = "", unit: str = "rows") -> S:
        """Return the sums of a pass over the rows, in this thread."""
        return add_up_here(task)

    def compute(
        self,
        stage: str,
        function: Callable[[Item, TaskCheckpoints], Mapping[str, NDArray[Any]]],
        items: Mapping[str, Item],
        *,
        unit: str = "items",
        size: Callable[[Item], float] = lambda item: 1,
        words: str = "",
        penalties: Sequence[float] = (),
        number: int | None = None,
    ) -> list[Arrays]:
        """Apply a function to each item, one after the other, and return the results."""
        checkpoints = NoCheckpoints(*self._listeners, penalties, number)
        for name, item in items.items():
            if name not in self._arrays:
                self.commit(name, function(item, checkpoints))
        return [self._arrays[name] for name in items]

    def stage(self, name: str) -> nullcontext[Any]:
        """Count nothing."""
        return nullcontext(SimpleNamespace(items=0))


def _ignore(*_: object, **facts: object) -> None:
    pass


def _warn(message: str) -> None:
    """Warn in the words of the parameters, at the line outside of this package that called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("pipeline.", "contextlib")):
        frame, level = frame.f_back, level + 1
    warnings.warn(in_parameters(message), UserWarning, stacklevel=level)


def _log(log: Callable[[str], object], message: str, **facts: object) -> None:
    log(message)
