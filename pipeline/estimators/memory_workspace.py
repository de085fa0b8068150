"""The workspace of an estimator: arrays of this process, and who hears of the iterations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pipeline.config.parsers import learns_scales
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import FeatureRows, ScaledFeatures
from pipeline.estimators import parameters
from pipeline.stages.choose.choose_kernel import SCALES
from pipeline.stages.workspace import WHICH, TaskCheckpoints, Workspace, note_of

LOG_EVERY = 100  # centers of a greedy choice, with verbose


@dataclass(frozen=True)
class Listeners(TaskCheckpoints):
    """Who hears of the iterations of a task, which keeps no checkpoints: callback and log of an estimator."""

    callback: Callable[[dict[str, Any]], object]
    log: Callable[[str], object]

    def record(self, facts: Mapping[str, Any]) -> None:
        """Hand on the record of an iteration of a solve."""
        self.log(note_of(facts))
        self.callback({name: value for name, value in facts.items() if name not in ("statistics", WHICH)})

    def report_selection(self, part: str, rows: str, n_chosen: int, most: int) -> None:
        """Hand on how far a choice of centers is."""
        if n_chosen % LOG_EVERY == 0:
            self.log(f"{n_chosen} of {most} centers chosen on {rows}")
        self.callback({"phase": "select", "rows": part, "iteration": n_chosen, "n_active": n_chosen})


class MemoryWorkspace(Workspace):
    """A workspace in memory, whose warnings are in the words of the parameters.

    callback, log : get the record of each iteration, and a line for people; None: nobody listens
    """

    def __init__(
        self,
        config: TrainConfig,
        shape: FeatureShape,
        features: FeatureRows,
        callback: Callable[[dict[str, Any]], object] | None,
        log: Callable[[str], object] | None,
    ) -> None:
        self._listeners = Listeners(callback or _ignore, log or _ignore)
        told = SimpleNamespace(log=self._log, warn=parameters.warn, metric=_ignore, record=_ignore)
        super().__init__(config, shape, features, told)
        if learns_scales(config.kernel.scale):
            self.features = ScaledFeatures(features, self.stored(SCALES))

    def checkpoints(self, name: str) -> TaskCheckpoints:
        """Return checkpoints that keep nothing, and hand records on."""
        return self._listeners

    def _log(self, message: str, **facts: Any) -> None:
        self._listeners.log(message)


def _ignore(*_: object, **facts: object) -> None:
    pass
