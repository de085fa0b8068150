"""A fit, from rows to weights: the one story of the command, of `pipeline.train` and of the estimators.

Candidates → scales of the features → kernel width → statistics → weights (solve, path, selection or least squares,
refit, moved centers) → temperature of the probabilities.
"""

from pipeline.stages.accumulate_statistics import accumulate_statistics
from pipeline.stages.draw_candidates import draw_candidates
from pipeline.stages.final_weights import FinalWeights
from pipeline.stages.solve_weights import solve_weights
from pipeline.stages.workspace import Workspace


def fit(work: Workspace) -> FinalWeights:
    """Return the weights of a fit, committed; what a workspace has committed before is not done again.

    Raises InvalidDataError for data that cannot be fitted, StoppedError on request.
    """
    draw_candidates(work)
    accumulate_statistics(work)
    return solve_weights(work)
