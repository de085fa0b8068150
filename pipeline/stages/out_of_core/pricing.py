"""How candidates are priced, all of them or on demand: rules of the loop of `working_set_loop`.

On demand, columns of a block of candidates are made and dropped again: first of new candidates in a random order, then
of those with the largest last values. A block without a violator is followed by a larger one, until all are evaluated.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime.stored_arrays import Arrays, as_arrays, as_dataclass
from pipeline.solvers import working_set_rules as rules
from pipeline.stages.out_of_core.correlation_pass import correlate, pass_name
from pipeline.stages.out_of_core.correlations import Correlations, SolvedSet, clean, stored_name
from pipeline.stages.out_of_core.kept_columns import nothing_kept
from pipeline.stages.out_of_core.path_on_subset import FollowedPath
from pipeline.stages.out_of_core.working_set import NOTHING, WorkingSet, compute_residuals, grow, round_name
from pipeline.stages.out_of_core.working_set_loop import (
    LARGEST,
    LEAST_ROOM,
    Change,
    Priced,
    PricingRule,
    WorkingSetLimits,
)
from pipeline.stages.run_workspace import Run
from pipeline.stages.training_rows import row_weights

START = "at-zero"  # the round before the first: of the first block, at zero weights
BLOCKS = 10  # in which all candidates are evaluated for the first time
LEAST_BLOCK, MOST_BLOCK = 256, 2048  # candidates of a block
GROWTH = 4  # of a block, over the one before it at the same weights


class AllCandidates(PricingRule):
    """Every round evaluates all candidates that a bound does not hold at zero (mathematics.md, eq. 70).

    path : the one before, which has committed the first working set and the weights to start from
    """

    def __init__(
        self, run: Run, candidates: NDArray[np.int64], limits: WorkingSetLimits, path: FollowedPath | None
    ) -> None:
        super().__init__(run, candidates)
        self._limits, self._path, self.starts_warm = limits, path, path is not None

    def penalty(self, largest: Callable[[], float]) -> float:
        """Return the penalty of the run."""
        return super().penalty(largest) if self._path is None else self._path.penalty

    def first(self) -> WorkingSet:
        """Commit the first working set: a random draw."""
        drawn = rules.seed_candidates(len(self.candidates), self._limits.drawn, self.run.config.seed)
        return grow(self.run, round_name(0), None, NOTHING, self.candidates[drawn])

    def evaluate(self, solved: SolvedSet) -> Priced:
        """Return the round with the correlations of all candidates."""
        current = solved.working_set
        found = solved.correlations(self.earlier(current) if current.index else None)
        return Priced(solved, found, solved.certify(found))

    def propose(self, priced: Priced) -> Change:
        """Return how the working set changes: the candidates nearest to violating come in, those far from it leave.

        Those that leave are evaluated with all others. Active ones stay in any case.
        """
        solved, violations = priced.solved, priced.violations(self.tolerance)
        inside, (active, near) = solved.inside, np.zeros((2, len(self.candidates)), bool)
        active[inside[solved.weights.columns]] = True
        room = self._limits.room(len(solved.weights.columns))
        near[rules.nearest(violations, active, self._limits.per_solve, room)] = True
        stay = np.flatnonzero((active | near)[inside])
        near[inside] = violations[inside] = 0
        if not (violations > 1.0).any():  # nothing violates for a solve that needs it: the solver fell short
            near[:] = False
        return Change(stay, self.candidates[near])


class OnDemand(PricingRule):
    """A column is kept, and given a row of the Gram, when its weight would become non-zero (mathematics.md, eq. 99).

    capacity : how many are kept at most; where there are more, those at zero leave
    """

    def __init__(self, run: Run, candidates: NDArray[np.int64], capacity: int) -> None:
        super().__init__(run, candidates)
        self._capacity, self._seed = capacity, run.config.seed

    def first(self) -> WorkingSet:
        """Commit the first working set: the violators of a first block."""
        n, tau = len(self.candidates), float(np.sqrt(self.penalty(self._largest_at_zero)))
        violations = rules.violations(self._at_zero().values, tau)
        entering = violations * (violations > 1.0)
        entering[_random_order(n, self._seed) >= block_size(n)] = 0.0  # evaluated for the largest penalty alone
        chosen = rules.nearest(entering, np.zeros(n, bool), self._capacity, self._capacity)
        if not len(chosen):  # the first block has no violator: the solves need some column
            chosen = np.argsort(-violations.max(axis=1), kind="stable")[:1]
        return grow(self.run, round_name(0), None, NOTHING, self.candidates[chosen])

    def largest_penalty(self, current: WorkingSet) -> float:
        """Return the penalty at which the weights of all candidates are zero."""
        return self._largest_at_zero()

    def _largest_at_zero(self) -> float:
        def make() -> Arrays:
            violations = rules.violations(self._at_zero().values, 1.0)
            return {"penalty": np.array(float(violations.max(initial=0.0)) ** 2 or 1.0)}

        return float(self.run.once(f"scores/{LARGEST}.npz", make)["penalty"])

    def evaluate(self, solved: SolvedSet) -> Priced:
        """Return the round with the correlations of as many blocks as it takes to find a violator."""
        run, current = self.run, solved.working_set

        def make() -> Arrays:
            found, size = self._moved(solved), block_size(len(self.candidates))
            while True:
                waiting, skipped = solved.unknown(found, found.screened | found.exact)
                found = replace(found, skipped=skipped)
                if not len(waiting):  # the certificates are over all candidates
                    return as_arrays(solved.screened(found))
                if self._violations(Priced(solved, found, solved.certify(found))).any():
                    return as_arrays(found)
                block = next_block(found, waiting, size, self._seed)
                found, size = self._with_block(current.name, found, block), size * GROWTH

        found = as_dataclass(run.once(stored_name(current.name), make), Correlations)
        clean(run, current.name)
        earlier = [round_name(k) for k in range(current.index - 1)]
        for old in [START, *earlier] if current.index else []:  # residuals of all rows are in each
            run.drop(stored_name(old))
        complete = not len(solved.unknown(found, found.screened | found.exact)[0])
        return Priced(solved, found, solved.certify(found), complete=complete)

    def propose(self, priced: Priced) -> Change:
        """Return which columns stay, all where there is room for them and for the violators, and which come in."""
        violations, kept = self._violations(priced), len(priced.solved.inside)
        entering = int(np.count_nonzero(violations.any(axis=1)))
        fits = kept + entering <= self._capacity
        stay = np.arange(kept) if fits else priced.solved.weights.columns
        room = self._capacity - len(stay)
        if not fits and room < self._capacity * LEAST_ROOM:
            room = 0
        nobody = np.zeros(len(self.candidates), bool)
        return Change(stay, self.candidates[rules.nearest(violations, nobody, max(room, 1), room)])

    def _violations(self, priced: Priced) -> NDArray[np.float64]:
        """Return |c_mᵀr| / τ, (M, solves), of those that come in: evaluated now, above 1 for a solve, not kept."""
        violations = priced.violations(self.tolerance)
        violations[violations <= 1.0] = 0.0
        violations[priced.solved.inside] = 0.0
        return violations

    def _at_zero(self) -> Correlations:
        """Return the correlations at zero weights of the first block, or of all for a fraction of the penalty."""
        run, n, t = self.run, len(self.candidates), self.run.shape.n_outputs

        def make() -> Arrays:
            residuals = compute_residuals(run, START, nothing_kept(), np.zeros((0, t)), np.zeros(t))
            if run.intercept:
                weights = row_weights(run, run.facts)
                roots = np.ones((len(residuals), 1)) if weights is None else np.sqrt(weights)[:, None]
                residuals = residuals - roots * ((roots * residuals).sum(axis=0) / (roots**2).sum())
            size = n if isinstance(run.config.solver.penalty, str) else block_size(n)
            found = Correlations.unknown(n, residuals)
            return as_arrays(self._with_block(START, found, next_block(found, np.arange(n), size, self._seed)))

        found = as_dataclass(run.once(stored_name(START), make), Correlations)
        clean(run, START)
        return found

    def _moved(self, solved: SolvedSet) -> Correlations:
        """Return those of the round before, bounded at the new residuals; those of kept columns are exact."""
        residuals, current, inside = solved.residuals(), solved.working_set, solved.inside
        if current.index:
            before = self.earlier(current)
            found = before.moved_to(residuals)
        else:  # what was evaluated at zero weights counts for the first round
            before = self._at_zero()
            found = before.moved_to(residuals)
            found = replace(found, evaluated=before.evaluated, kernel_entries=before.kernel_entries)
        found = found.with_values(inside, solved.gram_correlations())
        norms = found.norm_bounds.copy()
        norms[inside] = np.minimum(norms[inside], np.sqrt(np.diagonal(current.statistics.gram)))
        return replace(found, norm_bounds=norms)

    def _with_block(self, name: str, found: Correlations, block: NDArray[np.int64]) -> Correlations:
        """Return the correlations, those of a block evaluated at the residuals; its columns are made and dropped."""
        result = correlate(self.run, name, found.residuals, self.candidates[block])
        self.run.drop(f"passes/{pass_name(name)}")
        norms = found.norm_bounds.copy()
        norms[block] = np.minimum(norms[block], np.sqrt(result.square_bounds))
        return replace(
            found.with_values(block, result.values),
            norm_bounds=norms,
            evaluated=found.evaluated + len(block),
            kernel_entries=found.kernel_entries + result.kernel_entries,
        )


def _random_order(n_candidates: int, seed: int) -> NDArray[np.int64]:
    """Return the rank (M,) i8 of each candidate among those that no block has had."""
    return np.random.default_rng([seed, 6]).permutation(n_candidates)


def block_size(n_candidates: int) -> int:
    """Return how many candidates a block has: a tenth of all, within bounds."""
    return min(max(-(-n_candidates // BLOCKS), LEAST_BLOCK), MOST_BLOCK)


def next_block(found: Correlations, waiting: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Return which waiting candidates are evaluated next, at most `size`, sorted (mathematics.md, eq. 100).

    First those not evaluated yet, in a random order; then those of the largest last values, which most likely violate.
    """
    new = waiting[np.isinf(found.errors[waiting, 0])]
    if len(new):
        order = _random_order(len(found.values), seed)
        return np.sort(new[np.argsort(order[new], kind="stable")][:size])
    largest = np.argsort(-np.abs(found.values[waiting]).max(axis=1), kind="stable")[:size]
    return np.sort(waiting[largest])
