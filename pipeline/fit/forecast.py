"""How long a run will take: the operations of its passes over the rows and of its solves, at the rate of a usual core.

Without a start of the compiler, and on cores that nothing else uses.
"""

from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_rows import FeatureShape
from pipeline.fit.filled_settings import count_candidates, fit_of, grows, is_chosen, is_in_rounds
from pipeline.solvers import candidate_budget as costs

FASTER = 1.5  # A usual core, than the rate of a budget; measured: 5.4e10 operations a second.
IMAGE_OPERATIONS = 5000  # of a feature of an image, decoding and deforming included
USUAL_CENTERS = 1500  # that get a weight: solves and what follows are of them
START_SECONDS = 3.0  # of interpreter and libraries, reading, and writing the model


def forecast(config: TrainConfig, shape: FeatureShape, cores: int, *, built: bool) -> str:
    """Return a line that tells the time, or what is counted where it cannot be known; `built`: features are stored."""
    m = count_candidates(config, shape.n_train)
    if is_in_rounds(config, shape.n_train):
        values = f"{shape.n_train:.3g} x {m:.3g} kernel values in a pass over all candidates"
        return f"time unknown: candidates come in by rounds, as many as weights need; {values}"
    if config.solver.penalty == "auto" or config.solver.move_centers:
        return "time unknown: it depends on how soon a search of penalties or places gains nothing"
    budget = (config.centers.budget or costs.DEFAULT_BUDGET) * costs.OPERATIONS_A_SECOND
    if grows(config):
        operations = budget
    else:
        fit, s = fit_of(config, shape), min(m, USUAL_CENTERS) if config.solver.is_penalised else m
        of_row = (m - s) * (2.0 * (shape.n_features + shape.n_outputs) + costs.VALUE_OPERATIONS)
        operations = fit.operations(s) + shape.n_train * (of_row + costs.GRAM_SLOWNESS * (m**2 - s**2))
        operations += costs.SHARE_OF_TRIALS * budget if is_chosen(config.kernel) else 0.0
    if config.features.name != "raw" and not built:
        passes = 1 if config.resources.stores_features else 2
        operations += passes * IMAGE_OPERATIONS * (shape.n_train + shape.n_test) * shape.n_features
    operations += shape.n_test * m * (2.0 * shape.n_features + costs.VALUE_OPERATIONS)
    seconds = START_SECONDS + operations / (FASTER * costs.OPERATIONS_A_SECOND * cores)
    units = ((90, "seconds", 1), (90 * 60, "minutes", 60), (float("inf"), "hours", 3600))
    number, unit = next((seconds / of_one, name) for below, name, of_one in units if seconds < below)
    return f"{'at most ' * grows(config)}about {number:.0f} {unit} on {cores} core{'s' * (cores > 1)}"
