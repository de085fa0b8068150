"""Loaded by every Python that has this folder on its path: notes each piece of a pass that has been added.

SLKL_SPY names the file of the notes, a line each: seconds, process, signature of the grid and folder of the pass,
number of the piece.
SLKL_SPY_SECONDS makes each piece last so much longer, which costs no processor.
"""

import os
import sys

if os.environ.get("SLKL_SPY") and "pip" not in sys.argv[0]:
    import time
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from pipeline.runtime import row_pass

    under_way = [""]  # the folder of the pass: a process has one share at a time
    compute = row_pass.compute_assignment

    def named(task: Any, share: Any) -> Any:
        under_way[0] = share.folder.name
        return compute(task, share)

    row_pass.compute_assignment = named

    real = row_pass.add_pieces

    def spied(task: Any, *arguments: Any) -> Iterator[int]:
        for piece in real(task, *arguments):
            time.sleep(float(os.environ.get("SLKL_SPY_SECONDS", "0")))
            with Path(os.environ["SLKL_SPY"]).open("a") as notes:
                kind = f"{row_pass.signature(task.grid)[0]}:{under_way[0]}"
                notes.write(f"{time.monotonic()} {os.getpid()} {kind} {piece}\n")
            yield piece

    row_pass.add_pieces = spied
