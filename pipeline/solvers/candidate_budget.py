"""How many candidates a budget of time and memory pays for, and what the trials of kernels cost.

Time is counted in operations at a nominal rate: a budget is a number of candidates, the same on every machine with
memory for them, so that it gives the same model wherever it is spent. A core of today is as fast as that or faster.
"""

from dataclasses import dataclass
from math import floor, log10

from pipeline.solvers.forward_backward_selection import forward_size
from pipeline.solvers.kernel_trials import SLOPE_OPERATIONS, SLOPE_ROWS, Sample, Trial

DEFAULT_BUDGET = 30.0  # A fit takes these core seconds by default.
CENTERS = 1000  # A fit without a budget has this number of candidates.
# What few rows are; `fit.target_facts` says what each number decides.
LEAST_FOLDED_ROWS = 5  # Of fewer different rows, folds tell nothing.
FOLDED_ROWS = 1000  # Of fewer different rows, all are held out in folds: a part of them tells too little.
LEFT_OUT_ROWS = 10_000  # Of fewer rows, all are worth a value: a tenth of them, held out, tells too little.
OPERATIONS_A_SECOND = 3.6e10  # A core does these, mostly in matrix products; measured: 3.8e10 to 8e10.
GRAMS = 8  # A fit has memory for these at once, beside the blocks, while rows are streamed or weights fitted.
GRAMS_OF_A_CHOICE = 10  # A greedy choice of centers has memory for these.
PROCESS_BYTES = 512 * 2**20  # Interpreter, libraries and rows take this part of the memory limit of a command.
VALUE_OPERATIONS = 120  # A kernel value costs these beside its scalar product, at the rate above.
LEAST_CENTERS = 500  # Whatever the budget, a fit has these candidates, or all of fewer rows.
SHARE_OF_TRIALS = 0.5  # Trials of kernels take at most this share of a budget.
RIDGES_TRIED = 4  # The search for a ridge factorises its Gram about four times.
GRAM_SLOWNESS, FACTOR_SLOWNESS = 1.3, 1.4  # Exact sums of products, and factors, cost these multiples of a product.
TRIAL_OPERATIONS = 1e8  # A trial costs at least this, however small it is.
NEWTON_ROUNDS = 20  # A penalised solve takes these, each with a factor of its support.
VECTOR_SLOWNESS = 8  # A greedy choice multiplies matrices by vectors, which takes longer by this factor.


@dataclass(frozen=True)
class Fit:
    """The size of a fit, and how its weights are found."""

    n_rows: int
    n_features: int
    n_outputs: int
    penalised: bool = False  # solved with an l1 penalty
    chosen: int = 0  # centers that a greedy choice takes, 0 without one
    of_classes: bool = False  # fits probabilities, for which few rows are left out one by one

    def operations(self, m: int) -> float:
        """Return the operations of a fit with m candidates, to which it grew in steps."""
        of_row = m * (2.0 * self.n_features + 2 * self.n_outputs + VALUE_OPERATIONS) + GRAM_SLOWNESS * m**2
        operations = self.n_rows * of_row + 2 * solve_operations(m, self.n_outputs)
        if self.of_classes and self.n_rows < LEFT_OUT_ROWS:
            operations += 2.0 * self.n_rows * m**2
        if self.penalised:
            operations += self.n_outputs * NEWTON_ROUNDS * m**3 / 3.0
        if self.chosen:
            operations += 2 * VECTOR_SLOWNESS * 2.0 * max(self.chosen, forward_size(m)) ** 2 * m
        return operations

    def memory_bytes(self, m: int) -> int:
        grams = GRAMS_OF_A_CHOICE if self.chosen else GRAMS
        return 8 * (grams * m * m + 2 * m * self.n_features)


def solve_operations(m: int, n_outputs: int) -> float:
    """Return the operations of finding a ridge for m candidates."""
    return RIDGES_TRIED * (FACTOR_SLOWNESS * m**3 / 3.0 + 4.0 * m**2 * n_outputs)


def slope_operations(sample: Sample, trial: Trial) -> float:
    """Return the operations of the derivatives of a fit."""
    (n, d), n_outputs = sample.X.shape, sample.targets.shape[1]
    return min(2.0 * min(n, SLOPE_ROWS) * trial.n_centers * d * (1 + n_outputs), SLOPE_OPERATIONS)


def trial_operations(sample: Sample, trial: Trial) -> float:
    """Return the operations of a trial on a sample."""
    (n, d), m, n_outputs = sample.X.shape, trial.n_centers, sample.targets.shape[1]
    metric = 2.0 * n * d**2 if trial.scales.ndim == 2 else 0.0
    columns = n * m * (2.0 * d + 2 * n_outputs + VALUE_OPERATIONS)
    solves = solve_operations(m, n_outputs)
    if sample.by_folds:  # This takes one more factor, and each row without its fold.
        solves = 2 * solves + RIDGES_TRIED * n * (m**2 + n * m / sample.n_folds)
    return TRIAL_OPERATIONS + metric + columns + n * m**2 + solves


def steps_to(most: int, first: int) -> list[int]:
    """Return the sizes at which a growing fit checks its held-out loss; the last is `most`.

    Each is half of the next; the smallest is below 2·`first` (mathematics.md, eq. 75).
    """
    steps = [most]
    while steps[0] >= 2 * first:
        steps.insert(0, steps[0] // 2)
    return steps


def candidates_within(fit: Fit, operations: float, memory_bytes: int) -> int:
    """Return the largest number of candidates, up to all rows, that the operations and the memory pay for.

    Rounded down to two figures, unless it is all rows. At least LEAST_CENTERS, or all of fewer rows, at any cost:
    the caller refuses a fit that does not fit the memory.
    """

    def fits(m: int) -> bool:
        return (m <= LEAST_CENTERS or fit.operations(m) <= operations) and fit.memory_bytes(m) <= memory_bytes

    if fits(fit.n_rows):
        return fit.n_rows
    low, high = min(LEAST_CENTERS, fit.n_rows), fit.n_rows  # `low` fits or is the least; `high` does not fit.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    unit = 10 ** max(floor(log10(low)) - 1, 0)
    return low // unit * unit
