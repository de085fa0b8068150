"""The workspace of a fit, which its steps share: settings, rows, store, runner and events.

Fits of an estimator and of the command differ in store, runner and events alone, and so compute the same bits.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_rows import FeatureAccess, FeatureRequest, FeatureShape
from pipeline.fit.filled_settings import count_candidates, is_in_rounds, value_dtype
from pipeline.fit.row_blocks import RowTask
from pipeline.fit.target_facts import TargetFacts, facts_of
from pipeline.kernels.jit import read_only
from pipeline.kernels.kernel_functions import Kernel, kernel_named
from pipeline.solvers.ridge import Weights
from pipeline.work.events import CANDIDATES, Events, StepEvents
from pipeline.work.runner import OnExecutor, Runner
from pipeline.work.store import Store
from storage.arrays import Arrays, as_json, from_json
from storage.folder_layouts import FeatureLayout, RunLayout

FINAL, SUMMARY = "solutions/final.npz", "summary"
# Candidates of few rows are committed with decision values by folds, classes or encoded targets, weights, groups, and
# the number of different rows.
FOLD_ROWS = ("fold_decision", "fold_truth", "fold_weights", "fold_groups", "fold_n_rows")


@dataclass(frozen=True)
class FinalWeights:
    """The weights of the model, on its `active` candidates, in the order of the model's centers."""

    active: NDArray[np.int64]  # (a,)
    weights: NDArray[np.float64]  # (a, T)
    intercept: NDArray[np.float64]  # (T,)
    penalised_weights: NDArray[np.float64]  # (a, T) before a refit; the same without one
    penalised_intercept: NDArray[np.float64]
    points: NDArray[np.floating] | None = None  # (a, d): moved centers; None where they are rows
    summary: dict[str, Any] = field(default_factory=dict)  # for the report

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> "FinalWeights":
        named: dict[str, Any] = dict(arrays)
        return cls(**{**named, SUMMARY: from_json(arrays[SUMMARY])})

    @staticmethod
    def of(active: NDArray[np.int64], weights: Weights, summary: dict[str, Any]) -> "FinalWeights":
        """Return weights of least squares that are no refit."""
        of_all, intercept = weights.weights, weights.intercept
        return FinalWeights(active, of_all, intercept, of_all, intercept, summary=summary)

    def arrays(self) -> Arrays:
        arrays = {name: value for name, value in vars(self).items() if value is not None}
        return arrays | {SUMMARY: as_json(self.summary)}


class Workspace:
    """Settings, rows, store, runner and events of a fit."""

    def __init__(
        self,
        config: TrainConfig,
        shape: FeatureShape,
        features: FeatureAccess,
        store: Store,
        runner: Runner,
        events: StepEvents,
        given_factors: tuple[float, ...] = (),
    ) -> None:
        self.config, self.shape, self.features = config, shape, features
        self.store, self.runner, self.events = store, runner, events
        self.given_factors = given_factors  # class factors that are in the row weights already; () for none
        self._choices: Arrays | None = None  # They are read once: many steps ask for them.

    @property
    def choices(self) -> Arrays:
        """The arrays committed with the candidates, in memory, without their features `X`, which tasks read.

        `index` (m,) i8: their rows; `choice`: see `choose_kernel`; the fields of `TargetFacts`.
        """
        if self._choices is None:
            found = self.store.get(CANDIDATES, mapped=True)
            assert found is not None, "candidates are drawn first"
            self._choices = {name: read_only(np.array(values)) for name, values in found.items() if name != "X"}
        return self._choices

    def choose(self, candidates: Arrays) -> None:
        """Commit candidates and the choices made with them, replacing earlier ones."""
        self.store.put(CANDIDATES, candidates)
        self._choices = None

    @property
    def final(self) -> FinalWeights | None:
        found = self.store.get(FINAL)
        return None if found is None else FinalWeights.of_arrays(found)

    @property
    def facts(self) -> TargetFacts:
        return facts_of(self.choices)

    @property
    def row_task(self) -> RowTask:
        """The task of streaming the rows, once candidates and width are committed."""
        return RowTask(
            candidates=self.store.stored(CANDIDATES),
            features=self.features,
            shape=self.shape,
            kernel=self.kernel,
            sigma2=self.sigma2,
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
        """Number of candidates; before they are drawn, the most there may be."""
        if (found := self.store.get(CANDIDATES, mapped=True)) is not None:
            return len(found["index"])
        return count_candidates(self.config, self.shape.n_train)

    @property
    def in_rounds(self) -> bool:
        """Whether a working set grows, instead of a Gram of all candidates."""
        return is_in_rounds(self.config, self.shape.n_train)

    @property
    def choice(self) -> dict[str, Any]:
        """The choice of `choose_kernel`: `kernel`, `sigma2`; where it tried several, `scales` and all `tried`."""
        found: dict[str, Any] = from_json(self.choices["choice"])
        return found

    @property
    def kernel(self) -> type[Kernel]:
        return kernel_named(self.choice["kernel"])

    @property
    def sigma2(self) -> float:
        return float(self.choice["sigma2"])

    @property
    def intercept(self) -> bool:
        return self.config.solver.intercept


@dataclass(frozen=True)
class Run:
    """A run of the command: its folder, the features it asks for and their store, and the work of its fit."""

    layout: RunLayout
    request: FeatureRequest
    feature_layout: FeatureLayout
    work: Workspace
    runner: OnExecutor  # the runner of the work, which also runs tasks without a commit
    events: Events
