"""How many candidates a budget of time and memory pays for, and how large the trials of kernels may be.

Time is counted in operations at a nominal rate: a budget is a number of candidates, the same on every machine with
memory for them, so that it gives the same model wherever it is spent. A core of today is as fast as that or faster.
"""

from dataclasses import dataclass
from math import floor, log10

from pipeline.solvers.forward_backward_selection import forward_size
from pipeline.solvers.kernel_trials import MOST_OF_METRIC, SLOPE_ROWS, START_CENTERS

DEFAULT_BUDGET = 60.0  # core seconds
CENTERS = 1000  # candidates where no budget says how many
# What few rows are; `fit.target_facts` says what each number decides.
LEAST_FOLDED_ROWS = 50  # Of fewer different rows, folds tell nothing: a penalty takes the place of a ridge.
FOLDED_ROWS = 1000  # Of fewer different rows, all are held out in folds: a part of them tells too little.
LEFT_OUT_ROWS = 10_000  # Of fewer rows, all are worth a value: a tenth of them, held out, tells too little.
OPERATIONS_A_SECOND = 3.6e10  # of one core, mostly matrix products; measured 3.8e10 to 8e10
GRAMS = 8  # held at once at most, while rows are streamed or weights are fitted, with room for the blocks
GRAMS_OF_A_CHOICE = 10  # where centers are chosen greedily
PROCESS_BYTES = 512 * 2**20  # of interpreter, libraries and rows, in the limit of a command
VALUE_OPERATIONS = 120  # that a kernel value costs beside its scalar product, at the rate above
LEAST_CENTERS = 500  # candidates whatever the budget, of as many rows
MOST_TRIED = 2000  # candidates on which kernels are tried: a fit of more costs more than it tells
RIDGES_TRIED = 4  # factors of a Gram while its ridge is found, about
# Of each setting, about; of a search with scales, in so many rounds; seen were 33 to 89, in 5 to 16 rounds.
WIDTHS_TRIED, TRIALS_OF_SCALES, ROUNDS = 3, 45, 9
LARGER_STARTS = 3  # of rounds of scales, which begin on more candidates
SEARCHES = 2.3  # of two kernels: each from the beginning, and a shorter one from the scales of the better one
SHARE_OF_TRIALS = 0.25  # of a budget
GRAM_SLOWNESS, FACTOR_SLOWNESS = 1.3, 1.4  # of products that are added exactly, and of factors
DISTANCES = 8e6  # of pairs of points, whose typical distance is measured in each round, for each feature
TRIAL_OPERATIONS = 2e8  # of a trial, however small: calls, and its part of the typical distances
NEWTON_ROUNDS = 20  # of a penalised solve, each with a factor of its support
VECTOR_SLOWNESS = 8  # of products of a matrix and a vector, which a greedy choice is made of


@dataclass(frozen=True)
class TrialSizes:
    """On how many fit rows kernels are tried, and on how many candidates: all, finalists, and the width of the best."""

    n_rows: int
    few: int
    more: int
    most: int = 0  # 0 where a fit that grows tries widths itself


# The smallest first; held-out rows come on top of the rows, half as many at most.
TRIAL_SIZES = (
    TrialSizes(1000, 100, 200),
    TrialSizes(2000, 150, 300),
    TrialSizes(4000, 250, 500),
    TrialSizes(6000, 350, 700),
    TrialSizes(8000, 400, 800),
)


@dataclass(frozen=True)
class Fit:
    """The size of a fit, and how its weights are found."""

    n_rows: int
    n_features: int
    n_outputs: int
    penalised: bool = False  # by solves with an l1 penalty
    chosen: int = 0  # how many centers a greedy choice takes, 0 without one
    kernels: int = 1  # how many are tried
    widths: bool = False  # the width is chosen
    scaled: bool = False  # scales of the features are learned
    of_classes: bool = False  # whose probabilities few rows are left out for one by one

    def operations(self, m: int, budget: float = DEFAULT_BUDGET) -> float:
        """Return the operations of a fit with m candidates, in steps, with the trials that a budget pays for."""
        t, operations, before = self.n_outputs, self._trials(self.trial_sizes(budget)), 0
        for size in steps_to(m):
            of_row = size * (2.0 * self.n_features + 2 * t + VALUE_OPERATIONS)
            of_row += GRAM_SLOWNESS * (size**2 - before**2)
            fits = WIDTHS_TRIED if self.widths and tries_widths(size, m) else 1
            operations += fits * (self.n_rows * of_row + self._solves(size))
            before = size if is_joined(size, m) else 0
        if self.of_classes and self.n_rows < LEFT_OUT_ROWS:
            operations += 2.0 * self.n_rows * m**2
        if self.penalised:
            operations += t * NEWTON_ROUNDS * m**3 / 3.0
        if self.chosen:
            operations += 2 * VECTOR_SLOWNESS * 2.0 * max(self.chosen, forward_size(m)) ** 2 * m
        return operations + self._solves(m) / 2

    def trial_sizes(self, budget: float) -> TrialSizes:
        """Return the largest trials that a share of a budget of core seconds pays for; the smallest whatever it is."""
        most = SHARE_OF_TRIALS * budget * OPERATIONS_A_SECOND
        fitting = [sizes for sizes in TRIAL_SIZES if self._trials(sizes) <= most]
        return fitting[-1] if fitting else TRIAL_SIZES[0]

    def _trials(self, sizes: TrialSizes) -> float:
        rows, few, more = (min(size, self.n_rows) for size in (sizes.n_rows, sizes.few, sizes.more))
        searches = SEARCHES if self.kernels > 1 else 1
        slopes = ROUNDS * 2.0 * min(rows, SLOPE_ROWS) * few * self.n_features * (1 + self.n_outputs)
        trials = TRIALS_OF_SCALES if self.scaled else WIDTHS_TRIED
        slopes += ROUNDS * DISTANCES * self.n_features  # of typical widths
        operations = searches * (trials * self._trial(rows, few) + self.scaled * slopes)
        operations += searches * self.scaled * LARGER_STARTS * self._trial(rows, min(START_CENTERS * few, self.n_rows))
        # Of a second kernel one that counts as two, since its columns cost more; of scales two, and two rounds more.
        finalists = 1 + 2 * (self.kernels - 1) + 4 * self.scaled
        return operations + finalists * WIDTHS_TRIED * self._trial(rows, more)

    def _trial(self, n_fit: int, m: int) -> float:
        n, d = 1.5 * n_fit, self.n_features
        metric = 2.0 * n * d**2 if self.scaled and d <= MOST_OF_METRIC else 0.0
        columns = n * m * (2.0 * d + 2 * self.n_outputs + VALUE_OPERATIONS)
        return TRIAL_OPERATIONS + metric + columns + n_fit * m**2 + self._solves(m)

    def _solves(self, m: int) -> float:
        return RIDGES_TRIED * (FACTOR_SLOWNESS * m**3 / 3.0 + 4.0 * m**2 * self.n_outputs)

    def memory_bytes(self, m: int) -> int:
        grams = GRAMS_OF_A_CHOICE if self.chosen else GRAMS
        return 8 * (grams * m * m + 2 * m * self.n_features)


def steps_to(most: int) -> list[int]:
    """Return the numbers of candidates at which a fit looks whether more lower its held-out loss; the last is `most`.

    They are LEAST_CENTERS, and twice as many each time; the last two differ by half at least (mathematics.md, eq. 75).
    """
    steps, size = [], LEAST_CENTERS
    while 1.5 * size <= most:
        steps.append(size)
        size *= 2
    return [*steps, most]


def tries_widths(size: int, most: int) -> bool:
    """Return whether a fit of so many candidates is cheap beside that of the most, so that several widths are tried."""
    return 4 * size <= most


def is_joined(size: int, most: int) -> bool:
    """Return whether a fit of so many candidates has the width of the most, whose Gram its own is a part of."""
    return 3 * size > most


def candidates_within(fit: Fit, budget: float, memory_bytes: int) -> int:
    """Return the largest number of candidates, up to all rows, that `budget` core seconds and the memory pay for.

    Rounded down to two figures, unless it is all rows. At least LEAST_CENTERS, or all of fewer rows, at any cost:
    the caller refuses a fit that does not fit the memory.
    """

    def fits(m: int) -> bool:
        in_time = m <= LEAST_CENTERS or fit.operations(m, budget) <= budget * OPERATIONS_A_SECOND
        return in_time and fit.memory_bytes(m) <= memory_bytes

    if fits(fit.n_rows):
        return fit.n_rows
    low, high = min(LEAST_CENTERS, fit.n_rows), fit.n_rows  # fits, or is the least there is; does not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    unit = 10 ** max(floor(log10(low)) - 1, 0)
    return low // unit * unit
