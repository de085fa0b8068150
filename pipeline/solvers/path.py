"""A path of penalties, from the one at which every weight is zero downwards, each solve started from the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pipeline.solvers.iterations import warm_state
from pipeline.solvers.options import SolverOptions
from pipeline.solvers.problem import Problem
from pipeline.solvers.solve import Solution, solve
from pipeline.solvers.state import Record, SolverState


def penalty_max(kty: np.ndarray, *, shared: bool) -> float:
    """Return the smallest penalty λν at which every weight of every output is zero: max_m (c_mᵀy)².

    kty (M, T). With one kernel for all outputs (`shared`) the row norms over the outputs count, else the largest
    output does.
    """
    squares = kty**2
    return float(squares.sum(axis=1).max(initial=0.0) if shared else squares.max(initial=0.0))


def spaced(first: float, last: float, count: int) -> tuple[float, ...]:
    """Return `count` penalties from `first` down (or up) to `last`, evenly spaced in their logarithm."""
    if count == 1:
        return (float(last),)
    inner = np.exp(np.linspace(np.log(first), np.log(last), count))[1:-1]
    return (float(first), *(float(value) for value in inner), float(last))


def solve_path(
    problem: Problem,
    penalties: Sequence[float],
    options: SolverOptions,
    generator: np.random.Generator,
    *,
    start_weights: np.ndarray | None = None,
    start: SolverState | None = None,
    on_record: Callable[[float, Record, SolverState], None] | None = None,
) -> Iterator[Solution]:
    """Solve the problem at each penalty in turn, each started from the weights of the one before; yield as they come.

    `problem.penalty` is ignored; the first solve starts from `start` (to the same bytes), else from `start_weights`
    (M, T), else from zero; `on_record(penalty, record, state)` gets every iteration. Costs little more than the last
    solve where the penalties fall, since supports grow along them.
    """
    for penalty in penalties:
        if start is None and start_weights is not None:
            start = warm_state(start_weights)
        report = None if on_record is None else _with_penalty(on_record, penalty)
        solution = solve(replace(problem, penalty=penalty), options, generator, start=start, on_record=report)
        start, start_weights = None, solution.weights
        yield solution


def _with_penalty(
    on_record: Callable[[float, Record, SolverState], None], penalty: float
) -> Callable[[Record, SolverState], None]:
    return lambda record, state: on_record(penalty, record, state)
