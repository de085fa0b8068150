"""Scores of all candidates at several penalties of a path, in one pass, and the largest penalty there is.

The residuals of the penalties stand beside each other: kernel values are computed once for all of them. A path is
solved on the fit rows, so that residuals of held-out rows count as zero.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.solvers import Certificate, certify_support
from pipeline.solvers.output_groups import Outputs
from pipeline.solvers.regularization_path import penalty_max
from pipeline.stages.accumulate_statistics import load_statistics
from pipeline.stages.candidate_names import positions_of
from pipeline.stages.one_vs_all import groups_of
from pipeline.stages.out_of_core.kept_columns import KeptColumns, nothing_kept
from pipeline.stages.out_of_core.path_working_set import PathSet
from pipeline.stages.out_of_core.residuals import compute_residuals, residual_pass
from pipeline.stages.out_of_core.score_pass import score_candidates, score_pass
from pipeline.stages.run_state import Run
from pipeline.stages.target_facts import held_out_rows, read_target_facts
from storage.arrays import read_dataclass, write_dataclass
from storage.errors import ANEW
from storage.files import make_folder
from storage.folders import remove_folder


@dataclass(frozen=True)
class PathScores:
    """Scores c_mᵀR of all candidates (M, k·T) at k solutions on the fit rows, and the kernel entries that it took."""

    scores: NDArray[np.float64]
    kernel_entries: int

    def at(self, number: int, n_outputs: int) -> NDArray[np.float64]:
        """Return those of one solution, (M, T)."""
        return self.scores[:, number * n_outputs : (number + 1) * n_outputs]


def score_solutions(
    run: Run, current: PathSet, candidates: NDArray[np.int64], tables: NDArray[np.float64]
) -> PathScores:
    """Return the scores at weights (k, columns, T) of a working set: committed ones, or those of one pass."""
    fit = load_statistics(run.layout, current.columns.fit)
    columns = np.flatnonzero(tables.any(axis=(0, 2)))
    weights = tables[:, columns].transpose(1, 0, 2).reshape(len(columns), -1)
    intercept = np.concatenate([intercept_of(run, fit, table) for table in tables])
    scored = _committed(run, current.name, candidates, current.kept.cut(columns), weights, intercept)
    # Of the working set the Gram gives the scores, see `candidate_scores.score_all_candidates`.
    kty = np.tile(fit.kty, len(tables))
    inside = kty - np.outer(fit.column_sums, intercept) - fit.gram[:, columns] @ weights
    scored.scores[positions_of(candidates, current.candidates)] = inside
    return scored


def largest_penalty(
    run: Run, name: str, candidates: NDArray[np.int64], statistics: GramStatistics, *, fit_only: bool
) -> float:
    """Return the penalty at which the weights of all candidates are zero; 1 where they are at any: one pass.

    statistics: of any columns on the rows that count; the pass is named after `name`. mathematics.md, eq. 51.
    """
    nothing = np.empty((0, run.shape.n_outputs))
    mean = intercept_of(run, statistics, np.zeros((statistics.n_centers, run.shape.n_outputs)))
    scored = _committed(run, name, candidates, nothing_kept(), nothing, mean, fit_only=fit_only)
    return penalty_max(scored.scores, shared=run.config.solver.coupling == "shared") or 1.0


def intercept_of(run: Run, statistics: GramStatistics, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the intercept (T,) that goes with weights (columns, T), zero where none is fitted."""
    return statistics.intercept(weights) if run.config.solver.intercept else np.zeros(weights.shape[1])


def certify(
    run: Run,
    current: PathSet,
    table: NDArray[np.float64],
    scores: NDArray[np.float64],
    penalty: float,
    candidates: NDArray[np.int64],
) -> list[Certificate]:
    """Return the certificates, over all candidates, of the solves at a penalty (mathematics.md, eqs. 43 and 44).

    table (columns, T): weights on the working set; scores (M, T) of all candidates.
    """
    fit = load_statistics(run.layout, current.columns.fit)
    kty, yty = fit.centred_targets() if run.config.solver.intercept else (fit.kty, fit.yty)
    inside, rounding = positions_of(candidates, current.candidates), fit.rounding()

    def of_group(group: Outputs) -> Certificate:
        outputs = list(group)
        of_outputs = scores[:, outputs]
        largest = float(np.linalg.norm(of_outputs, axis=1).max(initial=0.0))
        inputs = table[:, outputs], of_outputs[inside], kty[:, outputs], float(yty[outputs].sum())
        return certify_support(*inputs, float(np.sqrt(penalty)), largest, rounding)

    return [of_group(group) for group in groups_of(run)]


def _committed(
    run: Run,
    name: str,
    candidates: NDArray[np.int64],
    columns: KeptColumns,
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    *,
    fit_only: bool = True,
) -> PathScores:
    """Return the scores at weights (a, k·T) of some columns: those committed under a name, or those of a pass."""
    path = run.layout.round_scores(name)
    if not path.exists():
        residuals = compute_residuals(run, name, columns, weights, intercept)
        if fit_only:
            residuals[held_out_rows(run, read_target_facts(run.layout))] = 0.0
        result = score_candidates(run, name, residuals, candidates)
        make_folder(path.parent)
        write_dataclass(path, PathScores(result.scores, result.kernel_entries))
    for folder in (score_pass(run, name), residual_pass(run, name)):
        remove_folder(folder, durable=False)
    return read_dataclass(path, PathScores, remedy=ANEW)
