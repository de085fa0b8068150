"""Loaded by every Python that has this folder on its path: notes each piece of a pass that has been added.

SLKL_SPY names the file of the notes, a line each: seconds, process, what is added up with the signature of its grid
and the folder of the pass, number of the piece.
SLKL_SPY_SECONDS makes each piece last so much longer, which costs no processor.
"""

import os
import sys

if os.environ.get("SLKL_SPY") and "pip" not in sys.argv[0]:
    import time
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from pipeline.runtime import row_pass
    from pipeline.runtime.committed_sums import signature
    from pipeline.stages.block_pass import OpenPass
    from pipeline.stages.out_of_core.correlation_pass import OpenTiles

    under_way = [""]  # the folder of the pass: a process has one share at a time
    compute = row_pass._compute

    def named(task: Any, share: Any) -> Any:
        under_way[0] = share.folder.name
        return compute(task, share)

    row_pass._compute = named

    def spied(real: Callable[..., Iterator[int]]) -> Callable[..., Iterator[int]]:
        def add(self: Any, pieces: range, sums: Any, team: Any) -> Iterator[int]:
            for piece in real(self, pieces, sums, team):
                time.sleep(float(os.environ.get("SLKL_SPY_SECONDS", "0")))
                with Path(os.environ["SLKL_SPY"]).open("a") as notes:
                    kind = f"{type(self).__name__}{signature(self.task.grid)[0]}:{under_way[0]}"
                    notes.write(f"{time.monotonic()} {os.getpid()} {kind} {piece}\n")
                yield piece

        return add

    for adder in (OpenPass, OpenTiles):
        adder.add = spied(adder.add)  # type: ignore[method-assign]
