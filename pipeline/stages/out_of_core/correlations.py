"""Correlations c_mᵀr of all candidates: exact where evaluated, else bounded; certificates over all candidates."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime.stored_arrays import Arrays, as_arrays, as_dataclass
from pipeline.solvers import working_set_rules as rules
from pipeline.solvers.duality_gap import Certificate, certify_support, gap_safe_screen
from pipeline.solvers.weights import Weights
from pipeline.stages.out_of_core.correlation_pass import (
    correlate,
    correlation_errors,
    is_symmetric,
    pass_name,
)
from pipeline.stages.out_of_core.working_set import RESIDUALS, WorkingSet, compute_residuals
from pipeline.stages.run_workspace import Run
from pipeline.stages.training_rows import positions_of


@dataclass(frozen=True)
class Correlations:
    """Correlations c_mᵀr (M, T) of all candidates: exact where evaluated this round, else the last value with a bound.

    norm_bounds (M,) ≥ ‖c_m‖; residuals (n, T) of the last pass; errors (M, T) of the values, 0 where evaluated now;
    screened (M,): zero in every solution, never evaluated again; evaluated, skipped: numbers of candidates of the last
    pass, skipped ones outside the working set.
    """

    values: NDArray[np.float64]
    norm_bounds: NDArray[np.float64]
    residuals: NDArray[np.float64]
    errors: NDArray[np.float64]
    screened: NDArray[np.bool_]
    evaluated: int
    skipped: int
    kernel_entries: int

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

    def moved_to(self, residuals: NDArray[np.float64]) -> "Correlations":
        """Return the values, with their errors at other residuals (n, T): mathematics.md, eq. 48."""
        moved = np.linalg.norm(residuals - self.residuals, axis=0)
        with np.errstate(invalid="ignore"):  # 0 times infinity, of candidates that were never evaluated
            errors = np.where(np.isinf(self.errors), np.inf, self.errors + np.multiply.outer(self.norm_bounds, moved))
        return replace(self, residuals=residuals, errors=errors, evaluated=0, kernel_entries=0)

    def with_values(self, which: NDArray[np.int64], values: NDArray[np.float64]) -> "Correlations":
        """Return the correlations with those of some candidates replaced by exact ones."""
        found, errors = self.values.copy(), self.errors.copy()
        found[which], errors[which] = values, 0.0
        return replace(self, values=found, errors=errors)


@dataclass(frozen=True)
class SolvedSet:
    """A working set that was solved on, at a penalty, and all candidates (M,), by row, that it is to serve."""

    run: Run
    candidates: NDArray[np.int64]
    penalty: float
    working_set: WorkingSet
    weights: Weights

    @cached_property
    def inside(self) -> NDArray[np.int64]:
        """The positions of the working set among the candidates, (W,) i8."""
        return positions_of(self.candidates, self.working_set.candidates)

    @property
    def tau(self) -> float:
        """√penalty."""
        return float(np.sqrt(self.penalty))

    def violations(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return |c_mᵀr| / τ, (M, T): above 1 a candidate violates; see `working_set_rules.violations`."""
        return rules.violations(values, self.tau)

    def residuals(self) -> NDArray[np.float64]:
        """Return the residuals (n, T) of all training rows."""
        current, weights = self.working_set, self.weights
        active = current.columns.cut(weights.columns)
        return compute_residuals(self.run, current.name, active, weights.weights, weights.intercept)

    def gram_correlations(self, stripe: int = 512) -> NDArray[np.float64]:
        """Return c_mᵀr of the working set, (W, T), from its statistics; a stripe of the Gram at a time."""
        statistics, weights = self.working_set.statistics, self.weights
        found = statistics.kty - np.outer(statistics.column_sums, weights.intercept)
        for start in range(0, len(found), stripe):
            rows = slice(start, start + stripe)
            found[rows] -= statistics.gram[rows][:, weights.columns] @ weights.weights
        return found

    def certify(self, found: Correlations) -> list[Certificate]:
        """Return the certificate of every solve over all candidates (mathematics.md, eqs. 43 and 44).

        A candidate that was not evaluated is bounded by τ, so it does not scale the dual point.
        """
        weights, statistics, certificates = self.weights, self.working_set.statistics, []
        kty, yty = statistics.centred_targets() if self.run.intercept else (statistics.kty, statistics.yty)
        kty, values, active = kty[weights.columns], found.values, found.values[self.inside[weights.columns]]
        rounding, errors = statistics.rounding(), np.zeros(values.shape[1])
        if len(self.inside) < len(self.candidates):
            errors = correlation_errors(self.run, found.residuals)
        for output in range(values.shape[1]):
            evaluated = found.errors[:, output] <= 0
            certificates.append(
                certify_support(
                    weights.weights[:, output].copy(),
                    active[:, output].copy(),
                    kty[:, output],
                    float(yty[output]),
                    self.tau,
                    float(np.abs(values[evaluated, output]).max(initial=0.0)),
                    rounding.beside(float(errors[output])),
                )
            )
        return certificates

    def screened(self, found: Correlations) -> Correlations:
        """Return the correlations with candidates marked that the Gap Safe test excludes (mathematics.md, eq. 47)."""
        excluded = np.ones(len(found.values), bool)
        for output, certificate in enumerate(self.certify(found)):
            safe = gap_safe_screen(found.values[:, output], found.norm_bounds, certificate, self.tau)
            excluded &= safe & (found.errors[:, output] <= 0)
        return replace(found, screened=found.screened | excluded)

    def unknown(self, found: Correlations, known: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
        """Return the candidates that may be active, and how many others only a bound holds at zero.

        The working set and `known` (M,) candidates are left out.
        """
        bounded = rules.cannot_be_active(found.values, found.errors, self.tau)
        known = known.copy()
        known[self.inside] = True
        return np.flatnonzero(~(bounded | known)), int(np.count_nonzero(bounded & ~known))

    def correlations(self, before: Correlations | None) -> Correlations:
        """Return the committed correlations of all candidates, or compute what `before` does not bound."""

        def make() -> Arrays:
            residuals = self.residuals()
            found = self._first_pass(residuals) if before is None else self._next_pass(residuals, before)
            # Inside the working set the Gram gives them. Tiles of another shape round their float32 columns otherwise,
            # and the gap of weights that are exact for the Gram would end at that rounding instead of near zero.
            return as_arrays(self.screened(found.with_values(self.inside, self.gram_correlations())))

        found = as_dataclass(self.run.once(stored_name(self.working_set.name), make), Correlations)
        clean(self.run, self.working_set.name)
        return found

    def _first_pass(self, residuals: NDArray[np.float64]) -> Correlations:
        result, n = correlate(self.run, self.working_set.name, residuals, self.candidates), len(self.candidates)
        found = Correlations.unknown(n, residuals).with_values(np.arange(n), result.values)
        norms, entries = np.sqrt(result.square_bounds), result.kernel_entries
        return replace(found, norm_bounds=norms, evaluated=n, kernel_entries=entries)

    def _next_pass(self, residuals: NDArray[np.float64], before: Correlations) -> Correlations:
        """Return the correlations, given those of the round before: of candidates that these do not bound."""
        found = before.moved_to(residuals)
        needed, skipped = self._needed(found)
        result = correlate(self.run, self.working_set.name, residuals, self.candidates[needed])
        found = replace(found, evaluated=len(needed), skipped=skipped, kernel_entries=result.kernel_entries)
        return found.with_values(needed, result.values)

    def _needed(self, found: Correlations) -> tuple[NDArray[np.int64], int]:
        """Return which candidates a certificate needs evaluated, and how many a bound alone leaves out.

        A pass over all candidates costs half, so some are left out only if these have half of the points.
        """
        waiting, skipped = self.unknown(found, found.screened)
        n = self.run.shape.n_train
        if is_symmetric(self.run, self.candidates) and len(np.unique(self.candidates[waiting] % n)) > n // 2:
            return np.arange(len(self.candidates)), 0
        return waiting, skipped


def stored_name(name: str) -> str:
    """Return the name under which the correlations of a round are committed."""
    return f"scores/{name}-scores.npz"


def clean(run: Run, name: str) -> None:
    """Remove what the passes of a round have left."""
    for each in (pass_name(name), f"{name}-{RESIDUALS}"):
        run.drop(f"passes/{each}")
