"""Correlations c_mᵀr of all candidates with the residuals: exact where they might matter, else bounded; certificates.

Weights at several penalties stand beside each other, with their outputs: kernel values are computed once for all.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.runtime.stored_arrays import Arrays, as_arrays, as_dataclass
from pipeline.solvers import Certificate, certify_support, gap_safe_screen
from pipeline.solvers import working_set_rules as rules
from pipeline.solvers.output_groups import Outputs
from pipeline.solvers.regularization_path import penalty_max
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.one_vs_all import groups_of
from pipeline.stages.out_of_core.coarse_features import coarse_deviations
from pipeline.stages.out_of_core.correlation_pass import (
    correlate,
    correlation_errors,
    has_coarse,
    is_symmetric,
    pass_name,
)
from pipeline.stages.out_of_core.kept_columns import nothing_kept
from pipeline.stages.out_of_core.working_set import (
    Weights,
    WorkingSet,
    compute_residuals,
    residuals_at,
    residuals_name,
)
from pipeline.stages.run_state import Run


@dataclass(frozen=True)
class CandidateProblem:
    """What all rounds share: the candidates (M,), by name, the penalties, and the outputs of each solve at one.

    fit_only: the held-out rows do not count.
    """

    candidates: NDArray[np.int64]
    penalties: tuple[float, ...]
    groups: list[Outputs]
    shared: bool
    fit_only: bool = False

    @staticmethod
    def of(
        run: Run, candidates: NDArray[np.int64], penalties: tuple[float, ...], *, fit_only: bool = False
    ) -> "CandidateProblem":
        """Return the problem of a run at some penalties."""
        return CandidateProblem(candidates, penalties, groups_of(run), run.config.solver.coupling == "shared", fit_only)

    @property
    def n_outputs(self) -> int:
        """Number of outputs at one penalty."""
        return sum(map(len, self.groups))

    @property
    def tau(self) -> float:
        """√penalty, of the first."""
        return float(np.sqrt(self.penalties[0]))

    @property
    def solves(self) -> list[tuple[list[int], list[int], float]]:
        """The outputs of each solve, the same among all penalties' columns, and √penalty; one penalty after another."""
        t = self.n_outputs
        return [
            (list(group), [k * t + output for output in group], float(np.sqrt(penalty)))
            for k, penalty in enumerate(self.penalties)
            for group in self.groups
        ]

    def violations(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return |c_mᵀr| / τ, (M, solves): above 1 a candidate violates; see `working_set_rules.violations`."""
        of_penalties = np.split(values, len(self.penalties), axis=1)
        pairs = zip(of_penalties, np.sqrt(self.penalties).tolist(), strict=True)
        return np.hstack([rules.violations(part, tau, shared=self.shared) for part, tau in pairs])


@dataclass(frozen=True)
class Correlations:
    """c_mᵀr (M, T) of all candidates: exact where they were evaluated this round, else the last value with a bound.

    norm_bounds (M,) ≥ ‖c_m‖; residuals (n, T) of the last pass; errors (M, T): how far each value may be off, 0 where
    it is evaluated at these weights (the others are bounded by τ); screened (M,): zero in every solution, never
    evaluated again. evaluated, skipped (outside the working set, for their bound) count candidates of the last pass;
    of the kernel_entries, coarse_entries are those of coarse features.
    """

    values: NDArray[np.float64]
    norm_bounds: NDArray[np.float64]
    residuals: NDArray[np.float64]
    errors: NDArray[np.float64]
    screened: NDArray[np.bool_]
    evaluated: int
    skipped: int
    kernel_entries: int
    coarse_entries: int = 0

    @staticmethod
    def unknown(n_candidates: int, residuals: NDArray[np.float64]) -> "Correlations":
        """Return correlations of which nothing is known, with residuals (n, T)."""
        shape = n_candidates, residuals.shape[1]
        infinite, nobody = np.full(n_candidates, np.inf), np.zeros(n_candidates, bool)
        return Correlations(np.zeros(shape), infinite, residuals, np.full(shape, np.inf), nobody, 0, 0, 0)

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Which candidates were evaluated at the present weights, (M,) bool."""
        return np.asarray(self.errors.max(axis=1) == 0.0)

    def moved_to(self, residuals: NDArray[np.float64], rates: NDArray[np.float64]) -> "Correlations":
        """Return the values with the errors that they have at other residuals (n, T): mathematics.md, eqs. 48 and 102.

        rates (M,): by how much the error of each grows where the residuals move by 1.
        """
        moved = np.linalg.norm(residuals - self.residuals, axis=0)
        with np.errstate(invalid="ignore"):  # 0 times infinity, of candidates that were never evaluated
            errors = np.where(np.isinf(self.errors), np.inf, self.errors + np.multiply.outer(rates, moved))
        return replace(self, residuals=residuals, errors=errors, evaluated=0, kernel_entries=0, coarse_entries=0)

    def with_values(self, which: NDArray[np.int64], values: NDArray[np.float64]) -> "Correlations":
        """Return the correlations with those of some candidates replaced by exact ones."""
        found, errors = self.values.copy(), self.errors.copy()
        found[which], errors[which] = values, 0.0
        return replace(self, values=found, errors=errors)


def largest_penalty(
    run: Run, name: str, candidates: NDArray[np.int64], statistics: GramStatistics, *, fit_only: bool
) -> float:
    """Return the penalty at which the weights of all candidates are zero; 1 where they are at any: one pass, committed.

    statistics: of any columns on the rows that count. mathematics.md, eq. 51.
    """

    def make() -> Arrays:
        mean = statistics.target_sums / statistics.weight_sum if run.intercept else np.zeros(run.shape.n_outputs)
        nothing = np.empty((0, run.shape.n_outputs))
        residuals = compute_residuals(run, name, nothing_kept(), nothing, mean, fit_only=fit_only)
        values = correlate(run, name, residuals, candidates).values
        return {"penalty": np.array(penalty_max(values, shared=run.config.solver.coupling == "shared") or 1.0)}

    found = run.once(f"scores/{name}.npz", make)["penalty"]
    clean(run, name)
    return float(found)


def correlations_at(
    run: Run, current: WorkingSet, weights: Weights, problem: CandidateProblem, before: Correlations | None
) -> Correlations:
    """Return the correlations of all candidates at the weights: committed ones, or a pass over those that need one.

    before: those of the round before, which bound those of now.
    """

    def make() -> Arrays:
        residuals = residuals_at(run, current, weights, fit_only=problem.fit_only)
        if before is None:
            found = _first_pass(run, current, problem, residuals)
        else:
            found = _next_pass(run, current, problem, residuals, before)
        # Inside the working set the Gram gives them. Tiles of another shape round their float32 columns otherwise,
        # and the gap of weights that are exact for the Gram would end at that rounding instead of near zero.
        found = found.with_values(
            positions_of(problem.candidates, current.candidates), gram_correlations(current, weights)
        )
        return as_arrays(screened(run, current, weights, found, problem))

    found = as_dataclass(run.once(stored_name(current.name), make), Correlations)
    clean(run, current.name)
    return found


def coarse_correlations(
    run: Run, current: WorkingSet, weights: Weights, problem: CandidateProblem, earlier: str | None
) -> tuple[Correlations, float]:
    """Return coarse correlations of all candidates (mathematics.md, eqs. 92 and 93), and their error.

    They are exact in the working set and about right outside: as if they were exact, and prove nothing. The error is
    that of the pass in the working set, root mean square; the candidates of an earlier round keep what was missing
    when they were last in a working set. earlier: the name of the round before.
    """
    name = coarse_name(current.name)

    def make() -> Arrays:
        residuals = residuals_at(run, current, weights)
        result = correlate(run, name, residuals, problem.candidates, coarse=True)
        inside, exact = positions_of(problem.candidates, current.candidates), gram_correlations(current, weights)
        missing = np.zeros_like(result.values)
        if earlier is not None:
            missing = run.stored(f"scores/{coarse_name(earlier)}.npz").read()["missing"]
        missing[inside] = exact - result.values[inside]
        values = result.values + missing
        values[inside] = exact
        return {"values": values, "missing": missing, "kernel_entries": np.array(result.kernel_entries)}

    arrays = run.once(f"scores/{name}.npz", make)
    run.drop(f"passes/{pass_name(name)}")
    n, entries = len(problem.candidates), int(arrays["kernel_entries"])
    nothing = Correlations.unknown(n, np.empty((0, arrays["values"].shape[1])))
    found = replace(nothing.with_values(np.arange(n), arrays["values"]), evaluated=n)
    inside = positions_of(problem.candidates, current.candidates)
    error = float(np.sqrt(np.mean(arrays["missing"][inside] ** 2)))
    return replace(found, kernel_entries=entries, coarse_entries=entries), error


def stored_name(name: str) -> str:
    """Return the name under which the correlations of a round are committed."""
    return f"scores/{name}-scores.npz"


def coarse_name(name: str) -> str:
    """Return the name of a round's pass of coarse correlations."""
    return f"{name}-coarse"


def clean(run: Run, name: str) -> None:
    """Remove what the passes of a round have left."""
    for each in (pass_name(name), pass_name(coarse_name(name)), residuals_name(name)):
        run.drop(f"passes/{each}")


def certify(
    run: Run, current: WorkingSet, weights: Weights, found: Correlations, problem: CandidateProblem
) -> list[Certificate]:
    """Return the certificate of every solve over all candidates (mathematics.md, eqs. 43 and 44).

    A candidate that was not evaluated is bounded by τ, so that it does not scale the dual point.
    """
    statistics, certificates = current.statistics, []
    kty, yty = statistics.centred_targets() if run.intercept else (statistics.kty, statistics.yty)
    kty, values = kty[weights.columns], found.values
    active = values[positions_of(problem.candidates, current.candidates[weights.columns])]
    rounding, errors = statistics.rounding(), np.zeros(values.shape[1])
    if len(current.candidates) < len(problem.candidates):
        errors = correlation_errors(run, found.residuals)
    for outputs, columns, tau in problem.solves:
        largest = np.linalg.norm(values[:, columns], axis=1)
        evaluated = ~(found.errors[:, columns] > 0).any(axis=1)
        certificates.append(
            certify_support(
                weights.weights[:, columns],
                active[:, columns],
                kty[:, outputs],
                float(yty[outputs].sum()),
                tau,
                float(largest[evaluated].max(initial=0.0)),
                rounding.beside(errors[columns]),
            )
        )
    return certificates


def gram_correlations(current: WorkingSet, weights: Weights, stripe: int = 512) -> NDArray[np.float64]:
    """Return c_mᵀr of the working set, (W, T), from its statistics; a stripe of the Gram at a time."""
    statistics = current.statistics
    targets = np.tile(statistics.kty, len(weights.intercept) // statistics.kty.shape[1])
    found = targets - np.outer(statistics.column_sums, weights.intercept)
    for start in range(0, len(found), stripe):
        found[start : start + stripe] -= statistics.gram[start : start + stripe][:, weights.columns] @ weights.weights
    return found


def _first_pass(
    run: Run, current: WorkingSet, problem: CandidateProblem, residuals: NDArray[np.float64]
) -> Correlations:
    result, n = correlate(run, current.name, residuals, problem.candidates), len(problem.candidates)
    found = Correlations.unknown(n, residuals).with_values(np.arange(n), result.values)
    norms, entries = np.sqrt(result.square_bounds), result.kernel_entries
    return replace(found, norm_bounds=norms, evaluated=n, kernel_entries=entries)


def _next_pass(
    run: Run, current: WorkingSet, problem: CandidateProblem, residuals: NDArray[np.float64], before: Correlations
) -> Correlations:
    """Return the correlations of the next round.

    Where bounds would leave out too few candidates for a pass to be shorter, coarse features first take the values of
    all of them to the new residuals (mathematics.md, eq. 102).
    """
    inside = positions_of(problem.candidates, current.candidates)
    points = run.shape.n_train if is_symmetric(run, problem.candidates) else None
    found = before.moved_to(residuals, before.norm_bounds)
    needed, skipped = _needed(found, inside, problem, points)
    if len(needed) == len(problem.candidates) and has_coarse(run, problem.candidates):
        closer = before.moved_to(residuals, coarse_deviations(run))
        if len(_needed(closer, inside, problem, points)[0]) < len(needed):
            change = residuals - before.residuals
            moved = correlate(run, coarse_name(current.name), change, problem.candidates, coarse=True)
            found = replace(closer, values=before.values + moved.values, coarse_entries=moved.kernel_entries)
            needed, skipped = _needed(found, inside, problem, points)
    result = correlate(run, current.name, residuals, problem.candidates[needed])
    entries = found.coarse_entries + result.kernel_entries
    found = replace(found, evaluated=len(needed), skipped=skipped, kernel_entries=entries)
    return found.with_values(needed, result.values)


def _needed(
    found: Correlations, inside: NDArray[np.int64], problem: CandidateProblem, points: int | None
) -> tuple[NDArray[np.int64], int]:
    """Return which candidates a certificate needs evaluated, and how many their bound alone leaves out.

    points: of all candidates, where a pass over all costs half; it costs as much as their inner products with the rows.
    """
    n = len(problem.candidates)
    waiting, skipped = unknown_candidates(found, inside, problem, found.screened)
    left = 0 if points is None else len(np.unique(problem.candidates[waiting] % points))
    if points is not None and left > points // 2:  # leaving out a few points would cost more
        return np.arange(n), 0
    return waiting, skipped


def unknown_candidates(
    found: Correlations, inside: NDArray[np.int64], problem: CandidateProblem, known: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """Return the candidates that may be active, as far as is known, and how many others a bound alone leaves out.

    Of the working set (at the positions `inside`) and of `known` (M,) candidates nothing more need be known; a bound
    holds others at zero (mathematics.md, eq. 48).
    """
    bounded = rules.cannot_be_active(found.values, found.errors, problem.tau, shared=problem.shared)
    known = known.copy()
    known[inside] = True
    return np.flatnonzero(~(bounded | known)), int(np.count_nonzero(bounded & ~known))


def screened(
    run: Run, current: WorkingSet, weights: Weights, found: Correlations, problem: CandidateProblem
) -> Correlations:
    """Return the correlations, candidates marked that the Gap Safe test (mathematics.md, eq. 47) excludes for all."""
    excluded = np.ones(len(found.values), bool)
    certificates = certify(run, current, weights, found, problem)
    for (_, columns, tau), certificate in zip(problem.solves, certificates, strict=True):
        safe = gap_safe_screen(np.abs(found.values[:, columns]), found.norm_bounds, certificate, tau)
        excluded &= safe & ~(found.errors[:, columns] > 0).any(axis=1)
    return replace(found, screened=found.screened | excluded)
