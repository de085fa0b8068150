"""The search for a kernel's width and scales: rungs of more and more candidates, on which the best trials climb.

Each rung begins with the trials that have survived the one before, on more candidates and more rows. It follows the
width, and learns scales: from the best trial; from that with all scales woken; and from features as they are, whose
slopes tell something where fits of the rung before explained nothing. What a search costs is counted in operations, so
that a budget ends it at the same trial on every machine, and wherever it ends it has a best trial.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.kernels.kernel_functions import DIAGONAL
from pipeline.solvers.candidate_budget import slope_operations, trial_operations
from pipeline.solvers.kernel_trials import (
    LEAST_GAIN,
    PLAIN,
    SCALE_KINDS,
    Sample,
    Trial,
    next_scales,
    normalised,
    try_kernel,
    woken_scales,
)

SMALLEST, LARGEST = 2.0**-10, 2.0**6  # Widths stay within these multiples of the typical one: beyond, rounding rules.
WIDE, NARROW = 1.0, 1 / 16  # Slopes of unscaled fits are tried at these multiples of the typical width.
LARGER = 2  # Scales start from fits with this multiple of the candidates: their slopes are better.
SHARP = 1.5  # A power of slopes that tells sooner which features matter: the first, and tried beside 1.
WOKEN = 0.1  # Woken scales have at least this share of the largest scale.
ROUNDS, PATIENCE = 12, 2  # Learning of scales ends after 12 rounds, or 2 rounds in a row without gain.
KEPT, CLOSE = 3, 1.25  # Three trials of a kernel climb if its error is at most this multiple of the best.


@dataclass(frozen=True)
class Rung:
    """The size of the trials of a rung, and whether scales begin anew there."""

    n_centers: int
    n_rows: int  # fitted rows
    begins: bool = True


RUNGS = (Rung(250, 3000), Rung(500, 6000), Rung(1000, 6000, begins=False))
SAMPLE_ROWS = max(rung.n_rows for rung in RUNGS)


@dataclass
class Search:
    """The search for a kernel's width and scales on one rung."""

    sample: Sample
    rung: Rung
    kinds: tuple[str, ...]  # kinds of scales that are learned
    has_width: bool  # whether the width is given, or is the typical one
    most_operations: float  # the search ends after these
    on_trial: Callable[[Trial], object] = lambda trial: None
    tried: list[Trial] = field(default_factory=list)
    operations: float = 0.0

    def climb(self, survivors: list[Trial]) -> list[Trial]:
        """Return all that was tried, the best first, from what has survived the rung before."""
        for trial in survivors:
            if not (self.tried and self._is_over):
                taken = trial.kind != PLAIN and not np.isfinite(trial.error)  # from another kernel
                self._fitted(replace(trial, scales=normalised(trial.scales, self.sample, trial)) if taken else trial)
        best = self._best()
        for one in dict.fromkeys((self._best(PLAIN), best)):
            if one.error <= CLOSE * best.error:
                self._at_best_width(one)
        for kind in self.kinds:
            if not self._is_over:
                self._learn(kind)
        return sorted(self.tried, key=lambda trial: trial.error)

    @property
    def _is_over(self) -> bool:
        return self.operations > self.most_operations

    def _best(self, *kinds: str) -> Trial:
        """Return the best trial of some kinds of scales, where there is one, or of all."""
        return min([trial for trial in self.tried if trial.kind in kinds] or self.tried, key=lambda trial: trial.error)

    def _fitted(self, trial: Trial, times: int = 1) -> Trial:
        """Return a trial on `times` the candidates of the rung, fitted once."""
        n_centers = min(times * self.rung.n_centers, len(self.sample.points))
        for one in self.tried:
            if (one.sigma2, one.n_centers) == (trial.sigma2, n_centers) and np.array_equal(one.scales, trial.scales):
                return one
        found = try_kernel(self.sample, replace(trial, n_centers=n_centers))
        self.operations += trial_operations(self.sample, found)
        if n_centers <= self.rung.n_centers:  # larger ones are no rivals
            self.tried.append(found)
        self.on_trial(found)
        return found

    def _at_best_width(self, trial: Trial) -> Trial:
        """Return a trial at the best width: by halves while the error falls, else doubled (mathematics.md, eq. 83)."""
        best = trial
        for factor in (0.5, 2.0):
            while not (self.has_width or self._is_over):
                sigma2 = factor * best.sigma2
                if not SMALLEST * best.typical <= sigma2 <= LARGEST * best.typical:
                    break
                other = self._fitted(replace(best, sigma2=sigma2))
                if not (other.error < best.error or best.weights is None):
                    break
                best = other
            if best.weights is not None and best is not trial:
                break
            best = best if best.weights is not None else trial
        return best

    def _learn(self, kind: str) -> None:
        """Learn scales of a kind: from the best of several starts, in rounds while they gain."""
        simpler = SCALE_KINDS[: SCALE_KINDS.index(kind) + 1]
        best = self._best(*simpler)
        starts = [best]
        if self.rung.begins and best.kind != PLAIN and not self._is_over:
            starts.append(self._fitted(replace(best, scales=woken_scales(self.sample, best, WOKEN)), LARGER))
        if self.rung.begins and kind == self.kinds[0] and not self._is_over:
            plain = self._best(PLAIN)
            widths = (plain.sigma2,) if self.has_width else (WIDE * plain.typical, NARROW * plain.typical)
            starts += [self._fitted(replace(plain, sigma2=width), LARGER) for width in widths]
        useful = [start for start in starts if start.weights is not None]
        firsts = [self._next(start, kind) for start in useful if start is best or not self._is_over]
        if firsts:
            self._rounds(min(firsts, key=lambda trial: trial.error), kind)

    def _next(self, trial: Trial, kind: str) -> Trial:
        """Return a fit with the scales that a trial teaches, to the better power (mathematics.md, eq. 85)."""
        powers = (1.0,) if kind != DIAGONAL else (SHARP,) if trial.kind == PLAIN else (1.0, SHARP)
        self.operations += len(powers) * slope_operations(self.sample, trial)
        taught = (next_scales(self.sample, trial, kind, power) for power in powers)
        trials = [self._fitted(replace(trial, kind=kind, scales=scales)) for scales in taught]
        return min(trials, key=lambda trial: trial.error)

    def _rounds(self, trial: Trial, kind: str) -> None:
        """Go on with scales, each of which the fit before has taught, until PATIENCE of them have gained nothing."""
        trial = self._at_best_width(trial) if self.rung.begins else trial
        lowest, without = float("inf"), 0
        for _ in range(ROUNDS):
            without = 0 if trial.error < (1 - LEAST_GAIN) * lowest else without + 1
            lowest = min(lowest, trial.error)
            if without == (PATIENCE if self.rung.begins else 1) or trial.weights is None or self._is_over:
                break
            trial = self._next(trial, kind)
        self._at_best_width(self._best(kind))


def surviving(tried: dict[str, list[Trial]]) -> dict[str, list[Trial]]:
    """Return the trials of each kernel that climb to the next rung; kernels far behind the best have none.

    They are the best, the best of each kind of scales, and scales for each feature that another kernel has found.
    """
    best = min((trials[0] for trials in tried.values()), key=lambda trial: trial.error)
    climbing = dict[str, list[Trial]]()
    for name, trials in tried.items():
        if trials[0].error > best.error * (CLOSE if trials[0].n_centers >= RUNGS[-2].n_centers else CLOSE**2):
            continue
        firsts = {one.kind: one for one in reversed(trials)}.values()
        climbing[name] = [*trials[:KEPT], *(one for one in firsts if one not in trials[:KEPT])]
        if best.kind == DIAGONAL and name != best.kernel.name:
            own = trials[0]
            taken = Trial(own.kernel, DIAGONAL, best.scales, own.sigma2, own.n_centers, typical=own.typical)
            climbing[name].append(taken)
    return climbing
