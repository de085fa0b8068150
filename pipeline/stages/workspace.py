"""Storage and execution for the steps of a fit, which know neither a run folder nor an estimator.

A `Workspace` keeps everything in this process, and computes it in this thread. `stages.run_workspace.Run` keeps it in a
folder, has an executor compute it, and goes on after a kill. Both run the same steps, and so compute the same bits.

What a step commits has a name with slashes, such as `statistics/fit` or `solutions/final.npz`; in a run it is the path
below the run's folder.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.datasets.feature_rows import FeatureAccess
from pipeline.kernels.kernel_functions import KERNELS, Kernel
from pipeline.runtime.row_pass import RowPass, S, add_up_here
from pipeline.runtime.stored_arrays import Arrays, Stored, StoredInMemory
from pipeline.solvers.greedy_choice import Preselection
from pipeline.solvers.ridge import Weights
from pipeline.stages.filled_settings import count_candidates, is_in_rounds, preselection_of, value_dtype
from pipeline.stages.row_blocks import RowTask
from pipeline.stages.target_facts import TargetFacts, facts_of
from storage.checkpoints import Checkpoint
from storage.errors import CorruptDataError

Item = TypeVar("Item")
FINAL, SUMMARY = "solutions/final.npz", "summary"
# With the candidates of few rows: decision values by folds, classes, weights, and how many rows differ.
FOLD_ROWS = ("fold_decision", "fold_truth", "fold_weights", "fold_n_rows")
WHICH = "which"  # of several penalties a record is for, in its own words; empty where there is one
FEATURES, CANDIDATES, STATISTICS, SOLVE, EVALUATE = STAGES = (
    "features",
    "candidates",
    "statistics",
    "solve",
    "evaluate",
)


@dataclass(frozen=True)
class FinalWeights:
    """The weights of the model, on its `active` candidates, in the order of the model's centers."""

    active: NDArray[np.int64]  # (a,)
    weights: NDArray[np.float64]  # (a, T)
    intercept: NDArray[np.float64]  # (T,)
    penalised_weights: NDArray[np.float64]  # before a refit; equal without one
    penalised_intercept: NDArray[np.float64]
    points: NDArray[np.floating] | None = None  # (a, d), where they were moved
    summary: dict[str, Any] = field(default_factory=dict)  # for the report

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> "FinalWeights":
        named: dict[str, Any] = dict(arrays)
        return cls(**{**named, SUMMARY: json.loads(arrays[SUMMARY].tobytes())})

    @staticmethod
    def of(active: NDArray[np.int64], weights: Weights, summary: dict[str, Any]) -> "FinalWeights":
        """Return weights of least squares, which are no refit of others."""
        of_all, intercept = weights.weights, weights.intercept
        return FinalWeights(active, of_all, intercept, of_all, intercept, summary=summary)

    def arrays(self) -> Arrays:
        arrays = {name: value for name, value in vars(self).items() if value is not None}
        return arrays | {SUMMARY: np.frombuffer(json.dumps(self.summary).encode(), np.uint8)}


class TaskCheckpoints:
    """Checkpoints of a task, and records of its iterations. This base class keeps nothing."""

    def load(self) -> Checkpoint | None:
        """Return the last whole checkpoint; None where there is none."""
        return None

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Make a checkpoint."""

    def is_due(self) -> bool:
        """Return whether it is time for a checkpoint, or the fit is to stop."""
        return False

    def record(self, facts: Mapping[str, Any]) -> None:
        """Add the record of an iteration of a solve."""

    def report_selection(self, part: str, rows: str, n_chosen: int, most: int) -> None:
        """Report the progress of a greedy selection on a part of the rows: `n_chosen` of at most `most` centers."""


def note_of(record: Mapping[str, Any]) -> str:
    """Return objective and known gap of a record in a few words, and which of several penalties it is for."""
    which = f"penalty {record[WHICH]} ({record['penalty']:.3g}), " if record[WHICH] else ""
    gap = "" if record["relative_gap"] is None else f" gap {record['relative_gap']:.1e}"
    return f"{which}output {record['output']}: objective {record['objective']:.6g}{gap}"


class Workspace:
    """What the steps of a fit share: its rows, what they commit, who computes it, and who is told."""

    events: Any  # `runtime.events.Events`, or what has its log, warn, metric, record and stage
    given_factors: tuple[float, ...] = ()  # of the classes, which are in the row weights already; () for none

    def __init__(
        self,
        config: TrainConfig,
        shape: FeatureShape,
        features: FeatureAccess,
        events: Any,
        checkpoints: TaskCheckpoints | None = None,
    ) -> None:
        self._arrays: dict[str, Arrays] = {}
        self._checkpoints = checkpoints or TaskCheckpoints()
        self.config, self.shape, self.features, self.events = config, shape, features, events

    def committed(self, name: str, *, mapped: bool = False) -> Arrays | None:
        """Return what is committed under a name; None where nothing is. Raises CorruptDataError for damage."""
        return self._arrays.get(name)

    def commit(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> Stored:
        """Commit arrays under a name; they replace what was there, and become read-only."""
        kept = {key: np.asarray(values) for key, values in arrays.items()}
        for values in kept.values():
            values.setflags(write=False)
        self._arrays[name] = kept
        return self.stored(name)

    def stored(self, name: str) -> Stored:
        """Return a reference to what is committed under a name, which tasks of any process can read."""
        return StoredInMemory(self._arrays, name)

    def drop(self, name: str) -> None:
        """Remove what is committed under a name, and below it."""
        for key in [key for key in self._arrays if key == name or key.startswith(f"{name}/")]:
            del self._arrays[key]

    def checkpoints(self, name: str) -> TaskCheckpoints:
        """Return the checkpoints of a task of this process."""
        return self._checkpoints

    def add_up(self, stage: str, task: RowPass[S], name: str, words: str = "", unit: str = "rows") -> S:
        """Return the sums of a pass over the rows, which continues from partial sums that it has committed before.

        These are below passes/`name`. stage: counts its time; words, unit: for the line of progress.
        """
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
    ) -> list[Arrays]:
        """Return what a function makes of each item, committed under its name; what is there is not made again.

        unit, size : what progress counts, and how much of it an item has; an empty unit shows percentages
        words : what is done, for the line of progress
        """
        for name, item in items.items():
            if name not in self._arrays:
                self.commit(name, function(item, self.checkpoints(name)))
        return [self._arrays[name] for name in items]

    def stage(self, name: str) -> AbstractContextManager[Any]:
        """Return a context whose time counts as that of a stage, with the cost, whose `items` can be set."""
        stage: AbstractContextManager[Any] = self.events.stage(name)
        return stage

    def status(self, stage: str, words: str) -> AbstractContextManager[None]:
        """Return a context that shows what is done inside, which takes long and cannot be counted."""
        return nullcontext()

    def timed_as(self, stage: str) -> AbstractContextManager[None]:
        """Return a context whose time counts as that of another stage than the one under way."""
        return nullcontext()

    def once(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]], *, mapped: bool = False) -> Arrays:
        """Return what is committed under a name; make and commit it where nothing is, or where that is damaged."""
        found = None
        try:
            found = self.committed(name, mapped=mapped)
        except CorruptDataError as error:
            self.events.warn(f"{str(error).partition('; ')[0]}; it is made again")
        if found is None:
            self.commit(name, make())
            found = self.committed(name, mapped=mapped)
            assert found is not None
        return found

    @property
    def choices(self) -> Arrays:
        """What is committed with the candidates, but for their features `X`, which tasks read.

        `index` (m,) i8: their rows; `kernel`, `sigma2`: see `choose_kernel`; the fields of `TargetFacts`.
        """
        found = self.committed(CANDIDATES, mapped=True)
        assert found is not None, "candidates are drawn first"
        return {name: values for name, values in found.items() if name != "X"}

    @property
    def final(self) -> FinalWeights | None:
        found = self.committed(FINAL)
        return None if found is None else FinalWeights.of_arrays(found)

    @property
    def facts(self) -> TargetFacts:
        return facts_of(self.choices)

    @property
    def row_task(self) -> RowTask:
        """What tasks need to stream the rows, once candidates and width are committed."""
        return RowTask(
            candidates=self.stored(CANDIDATES),
            features=self.features,
            shape=self.shape,
            kernel=self.kernel,
            sigma2=float(self.choices["sigma2"]),
            precision=value_dtype(self.config, self.shape),
            seed=self.config.seed,
            facts=self.facts,
        )

    @property
    def candidates(self) -> NDArray[np.int64]:
        """The training rows of all candidates, (candidates,) i8."""
        return np.array(self.choices["index"])

    @property
    def n_candidates(self) -> int:
        """Number of candidates; the most there may be, before they are drawn."""
        if (found := self.committed(CANDIDATES, mapped=True)) is not None:
            return len(found["index"])
        return count_candidates(self.config, self.shape.n_train)

    @property
    def in_rounds(self) -> bool:
        """Whether a working set grows, instead of a Gram of all candidates."""
        return is_in_rounds(self.config, self.shape.n_train)

    @cached_property
    def preselection(self) -> Preselection | None:
        return preselection_of(self.config, self.shape.n_train)

    @property
    def kernel(self) -> type[Kernel]:
        return KERNELS[int(self.choices["kernel"])]

    @property
    def intercept(self) -> bool:
        return self.config.solver.intercept
