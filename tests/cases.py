"""The ways through a training, as arguments of the main command on the tables of 900 rows (`tables` in conftest.py).

One table of cases for the tests of stop and resume: whoever computes a case, and wherever it is stopped, killed or
refused a write, the bytes of its model are those of the same run in one process and in one go. Such a run of each is
`finished_run(*CASES[name].arguments, *SERIAL, dataset=CASES[name].dataset(tables))`.
"""

from pathlib import Path
from typing import NamedTuple

SERIAL = ("--scheduler", "serial")


class Case(NamedTuple):
    """A table, classes, values or images, and the words of what is asked beside it."""

    table: str
    words: str

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(self.words.split())

    def dataset(self, tables: Path) -> Path:
        return tables / f"{self.table}.npz"


WEIGHTED = "--set data.weights=w --class-weight balanced"
ROUNDS = "--centers 300 --set centers.working_set=100"
ON_DEMAND = "--centers 400 --set centers.columns=on-demand"
COPIES = "--copies 3 --features-dir=none --features raw --sigma2 16 --penalty 1"
EACH = "--checkpoint-every 0.000001s"  # after each sweep
CASES = {
    "least squares": Case("values", "--centers 60 --sigma2 auto"),
    "by a budget": Case("classes", "--budget 1s"),  # it grows, and is cut
    "one for each class": Case("classes", "--centers 60 --penalty 1 --refit ridge"),
    "weights": Case("classes", f"--centers 60 --penalty auto {WEIGHTED}"),
    "product-laplace": Case("values", "--centers 60 --kernel product-laplace --sigma2 auto"),
    "plain steps": Case("classes", f"--centers 60 --penalty 1 --schedule uniform {EACH}"),
    "a search": Case("classes", "--centers 60 --penalty auto --refit ridge"),
    "a selection": Case("classes", "--centers 150 --sigma2 0.3 --select greedy:20"),
    "a selection, moved": Case("values", "--centers 100 --sigma2 1 --select greedy:12 --move-centers 4"),
    "copies, a refit, moved": Case("images", f"{COPIES} --centers 40 --refit ridge --move-centers 4"),
    "learned scales": Case("classes", "--centers 60 --scale learned"),
    "a metric": Case("values", "--centers 60 --select greedy:20 --scale metric"),
    "rounds": Case("classes", f"{ROUNDS} --penalty 1 --refit ridge"),
    "rounds, weights": Case("classes", f"{ROUNDS} --penalty 1 {WEIGHTED}"),
    "rounds, learned scales": Case("values", f"{ROUNDS} --penalty 1 --scale learned --features-dir=none"),
    "on demand": Case("classes", f"{ON_DEMAND} --penalty 1 --refit ridge --features-dir=none {WEIGHTED}"),
    "on demand, little room": Case("values", f"{ON_DEMAND} --penalty 1 --set centers.working_set=120"),
}
