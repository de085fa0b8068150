"""The number of candidates of a fit by a budget: they grow in steps, while more of them lower the held-out error.

A step has twice the candidates of the one before, which are the first of them: the Gram grows, and is not made again.
"""

import numpy as np
from scipy.linalg import LinAlgError

from pipeline.errors import InvalidDataError
from pipeline.kernels.gram_statistics import joined, statistics_by_part
from pipeline.runtime.stored_arrays import as_arrays
from pipeline.solvers.candidate_budget import steps_to
from pipeline.solvers.kernel_trials import least_gain
from pipeline.solvers.ridge import SplitStatistics, refit
from pipeline.stages.accumulate_statistics import (
    ALL,
    FIT,
    HELD_OUT,
    commit_parts,
    name_of,
    statistics_of,
    statistics_pass,
)
from pipeline.stages.training_rows import count_held_out
from pipeline.stages.workspace import CANDIDATES, STATISTICS, Workspace

RIDGE_ERRORS = "ridges"  # the array (ridges, 2) of fractions of the diagonal and held-out errors
Errors = list[tuple[float, float]]


def grow_candidates(work: Workspace) -> None:
    """Commit the statistics of as many candidates as lower the held-out error by more than chance, and cut the others.

    With the candidates are then committed the ridges that were tried on so many, and their held-out errors.
    """
    with work.stage(STATISTICS):
        if work.final is not None:
            return  # nothing reads the statistics any more
        if RIDGE_ERRORS not in work.choices:
            size, errors = _grown(work)
            copied = {name: np.array(values) for name, values in work.choices.items()}
            cut = {name: copied[name][:size] for name in ("index", "X")}
            work.commit(CANDIDATES, copied | cut | {RIDGE_ERRORS: np.array(errors)})
        if work.committed(name_of(ALL), mapped=True) is None:
            size = len(work.choices["index"])
            if work.committed(name_of(FIT), mapped=True) is None:  # a finished run has none, and solves again
                again = None
                for step in steps_to(size):  # the same steps, so that no bit differs
                    again = _step(work, again, step)
            parts = [statistics_of(work, name_of(part)) for part in (FIT, HELD_OUT)]  # a kill may leave one cut
            whole = all(part.n_centers == size for part in parts)
            fit, held_out = parts if whole else (part.cut(np.arange(size)) for part in parts)
            commit_parts(work, fit, held_out, ("", "", ALL) if whole else (FIT, HELD_OUT, ALL))


def _grown(work: Workspace) -> tuple[int, Errors]:
    """Commit the statistics of steps; return how many candidates to keep, and held-out errors of ridges with them."""
    steps, parts, kept = steps_to(work.n_candidates), _committed(work), 0
    chance, errors, error, ridge = least_gain(count_held_out(work, work.facts)), Errors(), np.inf, None
    for size in steps:
        if parts is None or parts[0].n_centers < size:
            parts = _step(work, parts, size)
        fit, held_out = (part.prefix(size) for part in parts)
        try:
            tried = refit(fit, held_out, fit, intercept=work.intercept, start=ridge).held_out_errors
        except LinAlgError as error_of_gram:
            raise InvalidDataError(f"least squares: {error_of_gram}; use a larger `kernel.sigma2`") from None
        fraction, found = min(tried, key=lambda pair: pair[1])
        work.log(f"{size} candidates: held-out mean squared error {found:.6g}", candidates=size, hold_out_error=found)
        gains = found < (1 - chance) * error
        if found < error:
            kept, errors, error, ridge = size, list(tried), found, round(np.log10(fraction))
        if not gains:
            break
    if kept < steps[-1]:
        work.log(f"{kept} of {steps[-1]} candidates are kept: more lower the error by no more than chance explains")
    return kept, errors


def _committed(work: Workspace) -> SplitStatistics | None:
    """Return the parts that an earlier session has committed, of as many columns as the last whole step had."""
    if any(work.committed(name_of(part), mapped=True) is None for part in (FIT, HELD_OUT)):
        return None
    fit, held_out = (statistics_of(work, name_of(part)) for part in (FIT, HELD_OUT))
    return fit, held_out.prefix(fit.n_centers)


def _step(work: Workspace, before: SplitStatistics | None, size: int) -> SplitStatistics:
    """Commit the statistics of the first `size` candidates; those of the ones before are taken over."""
    n_kept, name = before[0].n_centers if before else 0, f"{STATISTICS}-{size}"
    task = statistics_pass(work.row_task, (FIT, HELD_OUT), size, n_kept=n_kept)
    sums = statistics_by_part(work.add_up(STATISTICS, task, name, f"{size} candidates"))
    for number, part in ((1, HELD_OUT), (0, FIT)):
        whole = joined(before[number] if before else None, np.arange(n_kept), sums.pop(part))
        work.commit(name_of(part), as_arrays(whole))
    work.drop(f"passes/{name}")
    return statistics_of(work, name_of(FIT)), statistics_of(work, name_of(HELD_OUT))
