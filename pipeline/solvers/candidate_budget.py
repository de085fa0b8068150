"""How many candidates a budget of time and memory pays for.

Time is counted in operations at a nominal rate: a budget is a number of candidates, the same on every machine with
memory for them, so that it gives the same model wherever it is spent. A core of today is as fast as that or faster.
"""

from dataclasses import dataclass
from math import floor, log10

from pipeline.solvers.bandwidth_choice import STEPS, TRIAL_CENTERS, TRIAL_ROWS, centers_used
from pipeline.solvers.forward_backward_selection import forward_size
from pipeline.solvers.ridge import RIDGES

DEFAULT_BUDGET = 60.0  # core seconds
CENTERS = 1000  # candidates where no budget says how many
LEAST_ROWS = 200  # for a ridge, which a tenth of them choose, in place of a penalty
OPERATIONS_A_SECOND = 4e10  # of one core, mostly matrix products and factorisations; measured 4e10 to 8e10
GRAMS = 8  # held at once at most, while rows are streamed or weights are fitted, with room for the blocks
GRAMS_OF_A_CHOICE = 10  # where centers are chosen greedily
PROCESS_BYTES = 512 * 2**20  # of interpreter, libraries and rows, in the limit of a command
VALUE_OPERATIONS = 40  # that a kernel value costs beside its scalar product, at the rate above
WIDTHS = 6  # tried while one is refined, about
ROUNDS = 3  # in which scales are learned, as they are counted; seen were 4 to 8
LEAST_CENTERS = 500  # candidates whatever the budget, of as many rows
NEWTON_ROUNDS = 20  # of a penalised solve, each with a factor of its support
VECTOR_SLOWNESS = 8  # of products of a matrix and a vector, which a greedy choice is made of


@dataclass(frozen=True)
class Fit:
    """The size of a fit, and how its weights are found.

    penalised: by solves with an l1 penalty; chosen: how many centers a greedy choice takes, 0 where it finds their
    number, None without such a choice; scaled: scales of the features are learned.
    """

    n_rows: int
    n_features: int
    n_outputs: int
    penalised: bool = False
    chosen: int | None = None
    scaled: bool = False

    def operations(self, m: int) -> float:
        """Return the operations of a fit with m candidates, choice of width and scales included."""
        n, t = self.n_rows, self.n_outputs
        few, used = min(m, TRIAL_CENTERS), centers_used(m, self.chosen)
        operations = self._least_squares(n, m)
        operations += len(STEPS) * self._least_squares(min(n, TRIAL_ROWS), few)
        operations += WIDTHS * self._least_squares(min(n, max(TRIAL_ROWS, 4 * used)), used)
        if self.scaled:
            operations += ROUNDS * self._round(few)
        if self.penalised:
            operations += t * NEWTON_ROUNDS * m**3 / 3.0
        if self.chosen is not None:
            operations += 2 * VECTOR_SLOWNESS * 2.0 * max(self.chosen, forward_size(m)) ** 2 * m
        return operations

    def rounds_within(self, budget: float) -> int:
        """Return how many rounds of scales half of a budget of core seconds pays for; 0 if below ROUNDS."""
        rounds = int(budget * OPERATIONS_A_SECOND / 2 / self._round(min(self.n_rows, TRIAL_CENTERS)))
        return rounds if rounds >= ROUNDS else 0

    def _round(self, m: int) -> float:
        """Return the operations of a round with m candidates: a fit, and its derivatives."""
        return self._least_squares(self.n_rows, m) + 2.0 * self.n_rows * m * self.n_features * (1 + self.n_outputs)

    def _least_squares(self, n: int, m: int) -> float:
        """Return the operations of columns, of their Gram, and of weights at every ridge."""
        statistics = n * m * (2.0 * self.n_features + m + 2 * self.n_outputs + VALUE_OPERATIONS)
        return statistics + (len(RIDGES) + 2) * (m**3 / 3.0 + 2.0 * m**2 * self.n_outputs)

    def memory_bytes(self, m: int) -> int:
        """Return the memory of a fit with m candidates, beside the process."""
        grams = GRAMS if self.chosen is None else GRAMS_OF_A_CHOICE
        return 8 * (grams * m * m + 2 * m * self.n_features)


def candidates_within(fit: Fit, budget: float, memory_bytes: int) -> int:
    """Return the largest number of candidates, up to all rows, that `budget` core seconds and the memory pay for.

    Rounded down to two figures, unless it is all rows. At least LEAST_CENTERS, or all of fewer rows, at any cost:
    the caller refuses a fit that does not fit the memory.
    """

    def fits(m: int) -> bool:
        in_time = m <= LEAST_CENTERS or fit.operations(m) <= budget * OPERATIONS_A_SECOND
        return in_time and fit.memory_bytes(m) <= memory_bytes

    if fits(fit.n_rows):
        return fit.n_rows
    low, high = min(LEAST_CENTERS, fit.n_rows), fit.n_rows  # fits, or is the least there is; does not fit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    unit = 10 ** max(floor(log10(low)) - 1, 0)
    return low // unit * unit
