"""Loaded by every Python that has this folder on its path: notes each piece of a pass that has been added.

SLKL_SPY names the file of the notes, a line each: seconds, process, what is added up and the signature of its grid,
number of the piece.
SLKL_SPY_SECONDS makes each piece last so much longer, which costs no processor.
"""

import os
import sys

if os.environ.get("SLKL_SPY") and "pip" not in sys.argv[0]:
    import time
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from pipeline.runtime.committed_sums import signature
    from pipeline.stages.block_values import BlockAdder
    from pipeline.stages.out_of_core.score_pass import ScoreAdder
    from pipeline.stages.statistics_pass import StatisticsAdder

    def spied(real: Callable[..., Iterator[int]]) -> Callable[..., Iterator[int]]:
        def add(self: Any, pieces: range, sums: Any, team: Any) -> Iterator[int]:
            for piece in real(self, pieces, sums, team):
                time.sleep(float(os.environ.get("SLKL_SPY_SECONDS", "0")))
                with Path(os.environ["SLKL_SPY"]).open("a") as notes:
                    kind = type(self).__name__ + str(signature(self.task.grid)[0])
                    notes.write(f"{time.monotonic()} {os.getpid()} {kind} {piece}\n")
                yield piece

        return add

    for adder in (BlockAdder, ScoreAdder, StatisticsAdder):
        adder.add = spied(adder.add)  # type: ignore[method-assign]
